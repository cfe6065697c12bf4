"""A recording stand-in for the torch.cuda calls that the CUDA device makes. Work runs at once, on the CPU.

Time is a counter of nanoseconds that every recorded event advances; like CUDA's, an elapsed time is a float32
of milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from runner.commands import BufferSpec
from runner.config import RunnerConfig
from runner.kernels.program import Body, CopyCounter, Program, Wire
from runner.models import ModelSpec

# A step records its events in this order; the first event of all ties the clocks.
EVENT_NAMES = ("start", "uploads", "sampled", "output")


class FakeCuda:
    """`log` holds one line for each call that orders work; `elapsed` the pairs whose distance was asked."""

    def __init__(self, tick_ns: int = 1_000) -> None:
        self.log: list[str] = []
        self.event_names: tuple[str, ...] = EVENT_NAMES
        self.elapsed: list[tuple[str, str]] = []
        self.pinned: list[int] = []
        self.streams: list[FakeStream] = []
        self.current: FakeStream | None = None
        self.tick_ns = tick_ns
        self.now_ns = 0
        self.events: list[FakeEvent] = []
        self.timers: list[FakeEvent] = []
        self.sync_debug_modes: list[str] = []
        self.graphs: list[FakeGraph] = []
        self.captures: FakeGraph | None = None

    def install(self, patch: pytest.MonkeyPatch) -> None:
        zeros = torch.zeros

        def pinned_zeros(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            tensor: torch.Tensor = zeros(*shape, **options)
            if pin_memory:
                self.pinned.append(tensor.nbytes)
            return tensor

        patch.setattr(torch, "zeros", pinned_zeros)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_name", lambda: "a fake device")
        patch.setattr(torch.cuda, "synchronize", lambda: self.log.append("synchronize device"))
        patch.setattr(torch.cuda, "Stream", lambda: FakeStream(self))
        patch.setattr(torch.cuda, "Event", lambda **options: FakeEvent(self, **options))
        patch.setattr(torch.cuda, "stream", self.on)
        patch.setattr(torch.cuda, "set_sync_debug_mode", self.sync_debug_modes.append)
        patch.setattr(torch.cuda, "CUDAGraph", lambda: FakeGraph(self))
        patch.setattr(torch.cuda, "graph", self.capturing)

    @contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        assert self.current is None, "streams are not nested"
        self.current = stream
        try:
            yield
        finally:
            self.current = None

    @contextmanager
    def capturing(self, graph: FakeGraph, pool: object, stream: FakeStream) -> Iterator[None]:
        assert self.captures is None and self.current is None
        assert pool is (self.graphs[0] if len(self.graphs) > 1 else None), "graphs share one pool"
        self.captures, self.current = graph, stream
        self.log.append(f"{stream.name}: capture {graph.name}")
        try:
            yield
        finally:
            self.captures = self.current = None

    def clear(self) -> None:
        """Forget what happened; the next event is a step's first."""
        self.log.clear()
        self.elapsed.clear()
        self.events.clear()
        self.timers.clear()


class FakeStream:
    def __init__(self, cuda: FakeCuda) -> None:
        self.name = ("compute", "output")[len(cuda.streams)]
        self._cuda = cuda
        cuda.streams.append(self)

    def wait_event(self, event: FakeEvent) -> None:
        assert event.is_recorded, "a wait for an event nobody recorded does nothing"
        assert event.is_blocking, "an event that only times may be recorded again"
        self._cuda.log.append(f"{self.name}: wait {event.name}")


class FakeEvent:
    def __init__(self, cuda: FakeCuda, enable_timing: bool = False, blocking: bool = False) -> None:
        self.is_timed, self.is_blocking = enable_timing, blocking
        self.is_recorded = False
        self.time_ns = 0
        self._cuda = cuda
        self.is_done = True  # as soon as it is recorded
        made = cuda.events if blocking else cuda.timers  # the latter time spans, and nobody waits for them
        number = len(made)
        self.name = f"{cuda.event_names[number % 4]} {number // 4}" if blocking else f"timer {number}"
        made.append(self)

    def record(self, stream: FakeStream) -> None:
        is_reusable = not self.is_blocking
        assert is_reusable or not self.is_recorded, "recorded again it would wake its waiter a step late"
        self.is_recorded = True
        self._cuda.now_ns += self._cuda.tick_ns
        self.time_ns = self._cuda.now_ns
        if self.is_blocking:
            self._cuda.log.append(f"{stream.name}: record {self.name}")

    def query(self) -> bool:
        is_reached = self.is_recorded and self.is_done
        if is_reached and self.is_blocking:
            self._cuda.log.append(f"host: reached {self.name}")
        return is_reached

    def synchronize(self) -> None:
        assert self.is_recorded
        self._cuda.log.append(f"host: synchronize {self.name}")

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.is_timed
        assert end.is_timed
        self._cuda.elapsed.append((self.name, end.name))
        return float(np.float32((end.time_ns - self.time_ns) / 1e6))


class FakeGraph:
    """Replays by calling again what was captured: the body is told by who captures it (LoggedProgram)."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.name = f"graph {len(cuda.graphs)}"
        self.body: Body | None = None
        self._cuda = cuda
        self._output: torch.Tensor | None = None
        cuda.graphs.append(self)

    def pool(self) -> FakeGraph:
        return self._cuda.graphs[0]

    def captured(self, body: Body) -> torch.Tensor:
        """A capture computes nothing: its output is memory that replays write."""
        assert self._output is None, "captured twice"
        self.body, self._output = body, torch.full_like(body(), torch.nan)
        return self._output

    def replay(self) -> None:
        assert self.body is not None and self._output is not None
        assert self._cuda.current is not None, "replayed on no stream"
        self._cuda.log.append(f"{self._cuda.current.name}: replay {self.name}")
        self._output.copy_(self.body())


class LoggedProgram(Program):
    """The real program on CPU tensors; each command is logged with the stream it was launched on."""

    cuda: FakeCuda
    can_be_captured = True  # here a replay computes again

    def _decode_body(self, size: int, inputs: str) -> Body:
        body = super()._decode_body(size, inputs)

        def logged() -> torch.Tensor:
            if self.cuda.captures is not None:
                return self.cuda.captures.captured(body)
            assert self.cuda.current is not None, "launched on no stream"
            return body()

        return logged

    def execute(self, command: Wire, copies: CopyCounter) -> None:
        assert self.cuda.current is not None, "launched on no stream"
        what = " ".join(str(part) for part in command[:2] if isinstance(part, str))
        self.cuda.log.append(f"{self.cuda.current.name}: {what}")
        super().execute(command, copies)


def program_maker(cuda: FakeCuda) -> Any:
    """Makes the program of a device under `cuda`."""

    def make(
        spec: ModelSpec,
        config: RunnerConfig,
        buffers: Mapping[str, BufferSpec],
        host: Mapping[str, torch.Tensor],
        device: torch.device,
    ) -> Program:
        assert device.type == "cuda"
        program = LoggedProgram(spec, config, buffers, host, torch.device("cpu"))
        program.cuda = cuda
        return program

    return make
