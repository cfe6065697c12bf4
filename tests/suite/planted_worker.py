"""A worker whose runs of one arm are slower by a known share of every step: the real one, but for its device.

In the device's process every `forward` is followed by a busy wait, so long as a share of the time since the
last one. The host switches it on for the runs of one arm.
"""

from __future__ import annotations

import multiprocessing
import time
from functools import partial

from planting import busy_wait

from runner.device.process import ProcessDevice
from suite import worker


def serve_slowed(share: float, is_slow, *arguments: object) -> None:
    """Entry of the device's process; `is_slow` is shared with the host."""
    from runner.device import process_child

    class Slowed(process_child.Program):
        last_ns = 0

        def reset(self, *others):
            self.last_ns = 0  # the first step of a run has none before it
            return super().reset(*others)

        def execute(self, command, copies):
            super().execute(command, copies)
            if command[0] == "forward":
                if is_slow.value and self.last_ns:
                    busy_wait(round(share * (time.perf_counter_ns() - self.last_ns)))
                self.last_ns = time.perf_counter_ns()

    process_child.Program = Slowed
    process_child.serve(*arguments)


class SlowedDevice(ProcessDevice):
    def __init__(self, share: float, model, config) -> None:
        self.is_slow = multiprocessing.RawValue("b", 0)
        super().__init__(model, config, partial(serve_slowed, share, self.is_slow))


def main(share: float, arm_name: str) -> None:
    """Serve as suite.worker does; runs of `arm_name` are slow."""

    class Engine(worker.Engine):
        def __init__(self, model, config, device, arm, *others) -> None:
            device.is_slow.value = arm.name == arm_name
            super().__init__(model, config, device, arm, *others)

    worker.Engine = Engine
    worker.open_device = lambda kind, model, config: SlowedDevice(share, model, config)
    worker.main()
