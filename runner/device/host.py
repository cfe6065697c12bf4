"""HostDevice: commands run in the caller's own process, in an order the contract allows.

`inline` runs all at once, `lazy` nothing until someone waits, `shuffle` any ready command next, drawn from a
seed. Deterministic, never for timing: a runner is right only if all orders give the same tokens.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from runner.commands import EVENTS, STREAMS, Command, Stream, buffer_table
from runner.config import RunnerConfig
from runner.core import DeviceError, DeviceInfo
from runner.device.base import Device, DeviceReport, poison_host
from runner.device.command_runner import CommandRunner
from runner.device.report import ReportRing, SpanRing
from runner.device.torch_trace import TorchTrace
from runner.kernels.program import Program, Wire
from runner.models import ModelSpec
from runner.spans import Level, Span, records_device
from runner.sync_check import SyncFinding

Order = Literal["inline", "lazy", "shuffle"]


class HostDevice(Device):
    """One queue a stream; a Wait holds its queue until its event is recorded.

    `graph_sizes`: decode steps filled up to these numbers of rows, as a GPU's captured graphs are. Computed
    as any other: so it is seen that padding changes no token.
    """

    def __init__(
        self,
        model: ModelSpec,
        config: RunnerConfig,
        order: Order,
        seed: int = 0,
        graph_sizes: tuple[int, ...] = (),
    ) -> None:
        buffers = buffer_table(config, model)
        kind = f"shuffle:{seed}" if order == "shuffle" else order
        torch.set_num_threads(config.num_threads)
        self.host = {name: np.zeros(item.shape, item.host_dtype) for name, item in buffers.items()}
        tensors = {name: torch.from_numpy(array) for name, array in self.host.items()}
        program = Program(model, config, buffers, tensors, torch.device("cpu"))
        if graph_sizes:
            program.capture_graphs(graph_sizes)
        self.info = DeviceInfo(
            kind,
            "cpu",
            config.num_threads,
            torch.__version__,
            program.attention,
            graph_sizes,
            program.fuses_routes,
            program.compiled,
        )
        shape = ReportRing.shape(len(buffers))
        self._reports = ReportRing(tuple(buffers), np.full(shape, -1, np.int64))
        self._spans = SpanRing(tuple(buffers), np.zeros(SpanRing.shape(config), np.int64))
        self._trace = TorchTrace()
        self._runner = CommandRunner(
            program, self._reports, self._spans, self._publish, self._trace.make_ranges
        )
        self._order = order
        self._seed = seed
        self._failure: DeviceError | None = None
        self._start()

    def execute(self, step_id: int, commands: Sequence[Command]) -> None:
        self._check()
        for command in commands:
            self._queues[command.on_stream].append((step_id, command.to_wire()))
        if self._order == "inline":
            self._run_while_ready()
        elif self._order == "shuffle":
            self._run_some()

    def wait(self, event: str, step_id: int) -> None:
        self._check()
        while self._reached[event] < step_id:
            ready = self._ready()
            assert ready, f"nothing will ever record {event} of step {step_id}"
            self._run_next(ready)
        if self._order == "shuffle":
            self._run_some()

    def report(self, step_id: int) -> DeviceReport:
        self._check()
        return self._reports.read(step_id)

    def spans(self, step_id: int, names: Sequence[str]) -> Sequence[Span]:
        self._check()
        return self._spans.read(step_id, names) if records_device(self.level) else ()

    def num_recompiled(self) -> int:
        return self._runner.num_recompiled

    def sync_findings(self) -> Sequence[SyncFinding]:
        return self._runner.sync_findings

    def reset(self, level: Level = "off") -> None:
        self._check()
        self.level = level
        self._runner.reset(level, self.sync_check)
        poison_host(self.host)
        self._start()

    def start_trace(self) -> None:
        self._trace.start()

    def write_trace(self, path: str) -> None:
        self._trace.write(path)

    def close(self) -> None:
        """Nothing outlives the object."""

    def _start(self) -> None:
        self._random = random.Random(self._seed)
        self._queues: dict[Stream, deque[tuple[int, Wire]]] = {name: deque() for name in STREAMS}
        self._reached = dict.fromkeys(EVENTS, -1)

    def _ready(self) -> list[Stream]:
        """Streams whose next command may run."""
        return [name for name in STREAMS if self._queues[name] and self._may_run(*self._queues[name][0])]

    def _may_run(self, step_id: int, command: Wire) -> bool:
        return command[0] != "wait" or self._reached[str(command[1])] >= step_id

    def _choose(self, ready: list[Stream]) -> Stream:
        """`lazy` takes the last stream, so that an output is there before any more is computed."""
        if self._order == "shuffle":
            return self._random.choice(ready)
        return ready[-1] if self._order == "lazy" else ready[0]

    def _run_next(self, ready: list[Stream]) -> None:
        stream = self._choose(ready)
        step_id, command = self._queues[stream].popleft()
        try:
            self._runner.run(step_id, command)
        except DeviceError as error:
            self._failure = error
            raise

    def _run_while_ready(self) -> None:
        while ready := self._ready():
            self._run_next(ready)

    def _run_some(self) -> None:
        """A drawn number of commands: often few or all, so that both extremes are met."""
        most = sum(len(queue) for queue in self._queues.values())
        count = self._random.choice((0, self._random.randint(0, most), most))
        for _ in range(count):
            ready = self._ready()
            if not ready:
                return
            self._run_next(ready)

    def _publish(self, event: str, step_id: int) -> None:
        self._reached[event] = step_id

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
