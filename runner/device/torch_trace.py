"""TorchTrace: torch's own profiler around what a device runs, under the spans' names.

To be started, written and given its ranges on the one thread that runs the commands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from runner.ranges import STEP_RANGE, Ranges, nvtx_ranges

_ACTIVITIES = (ProfilerActivity.CPU, ProfilerActivity.CUDA)


class TorchTrace:
    """What ran from `start` to `write`, on the CPU and, where there is one, on the GPU."""

    def __init__(self) -> None:
        self._profile: Any = None
        self._ranges = TorchRanges()

    def start(self) -> None:
        self._profile = profile(activities=[item for item in _ACTIVITIES if _is_supported(item)])
        self._profile.start()

    def write(self, path: str) -> None:
        """Stop, and write the trace as Chrome trace events. Nothing may be running."""
        assert self._profile is not None, "no trace was started"
        stopped, self._profile = self._profile, None
        self._ranges.close()
        stopped.stop()
        stopped.export_chrome_trace(path)

    def make_ranges(self) -> Ranges:
        """The trace's own while there is one, NVTX's otherwise."""
        return nvtx_ranges() if self._profile is None else self._ranges


def _is_supported(activity: ProfilerActivity) -> bool:
    supported: Callable[[], set[ProfilerActivity]] = supported_activities
    return activity in supported()


class TorchRanges:
    """A range a command, in a range a step: torch's have no payload to tell the step by.

    A command of another step than the last ends that one's range. Ranges across threads are not recorded.
    """

    def __init__(self) -> None:
        self._open: list[Any] = []
        self._step_id: int | None = None

    def push(self, name: str, step_id: int) -> None:
        if step_id != self._step_id:
            self.close()
            self._enter(f"{STEP_RANGE}{step_id}")
            self._step_id = step_id
        self._enter(name)

    def pop(self) -> None:
        self._open.pop().__exit__(None, None, None)

    def start(self, name: str, step_id: int) -> object:
        return None

    def end(self, handle: object) -> None:
        pass

    def close(self) -> None:
        """End the last step's range, and what an error left open in it."""
        self._step_id = None
        while self._open:
            with contextlib.suppress(RuntimeError):
                self.pop()

    def _enter(self, name: str) -> None:
        scope: Any = record_function(name)
        scope.__enter__()
        self._open.append(scope)
