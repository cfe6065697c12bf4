"""CudaDevice: commands are launched at once on real streams. The only file that names torch.cuda."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from runner.commands import (
    OUTPUT_READY,
    RING_SIZE,
    STREAMS,
    BufferSpec,
    Command,
    Record,
    Stream,
    Wait,
    buffer_table,
)
from runner.config import RunnerConfig
from runner.core import DeviceError, DeviceInfo, RunnerError
from runner.device.base import Device, DeviceReport, poison_host
from runner.device.torch_trace import TorchTrace
from runner.kernels.program import Body, CopyCounter, Program
from runner.kernels.sync_watch import SYNC_WARNING
from runner.measure import now_ns
from runner.models import ModelSpec
from runner.ranges import NoRanges, Ranges
from runner.spans import Level, Span, records_device
from runner.sync_check import SyncFinding

_NOT_DONE = "it was not done when the step was retired"
_WAIT_TIMEOUT_S = 120.0
# A wait looks without a pause for so long, then sleeps between two looks: longer than a step, since a sleep
# ends some 100 us late, which sync would pay in every step and async would hide.
_SPIN_S = 0.05
_PAUSE_S = 0.0001
_WARM_UPS = 2  # kernels are compiled and libraries make their workspaces before a capture

ProgramFactory = Callable[
    [ModelSpec, RunnerConfig, Mapping[str, BufferSpec], Mapping[str, torch.Tensor], torch.device],
    Program,
]


class _TimedCommand(NamedTuple):
    """A command between two events of its stream, and when the host queued it."""

    name: str
    stream: Stream
    start: Any
    end: Any
    queued_ns: int
    queued_end_ns: int


class _LaunchedStep:
    """A step's events and its account; the device time between `start` and the output event is its own."""

    def __init__(self, start: Any) -> None:
        self.start = start
        self.start_ns: int | None = None  # on the host's clock, once its report was asked for
        self.events: dict[str, Any] = {}
        self.copies = CopyCounter()
        self.timed: list[_TimedCommand] = []


class CudaDevice(Device):
    """Host buffers are pinned; copies are asynchronous and read their source when they run.

    Events are new for every step: one that is recorded again before its waiter runs would wake it a step
    late. A wait polls its event, so that a device that hangs is told of. Events that only time spans nobody
    waits for; they come from a pool and go back when their spans are read.

    With `cuda_graphs`, decode steps are captured when the device is opened, at a ladder of sizes, and
    replayed; all others are launched command by command. With `torch_compile` what is captured is compiled.
    """

    def __init__(
        self, model: ModelSpec, config: RunnerConfig, make_program: ProgramFactory = Program
    ) -> None:
        if not is_available():
            raise RunnerError("no CUDA device is available here; use --device process")
        # A convolution in TF32 may differ from float32 by more than the token check forgives.
        torch.backends.cudnn.allow_tf32 = False
        buffers = buffer_table(config, model)
        pinned = {name: _pinned(item) for name, item in buffers.items()}
        self.host = {name: tensor.numpy() for name, tensor in pinned.items()}
        self._program = make_program(model, config, buffers, pinned, torch.device("cuda"))
        captures = config.cuda_graphs and self._program.can_be_captured
        sizes = graph_ladder(config.max_num_seqs) if captures else ()
        new_stream: Callable[[], Any] = torch.cuda.Stream
        self._streams = {name: new_stream() for name in STREAMS}
        self._steps: dict[int, _LaunchedStep] = {}
        self._failure: DeviceError | None = None
        self._ranges: Ranges = NoRanges()
        self._trace = TorchTrace()
        self._timers: list[Any] = []
        self._step_id = -1
        self._graph_pool: Any = None
        if sizes:
            self._program.capture_graphs(sizes, self._capture)
            torch.cuda.synchronize()
        self.info = DeviceInfo(
            "cuda",
            device_name(),
            config.num_threads,
            torch.__version__,
            self._program.attention,
            sizes,
            self._program.fuses_routes,
            self._program.compiled,
        )
        self._start_clock()

    def execute(self, step_id: int, commands: Sequence[Command]) -> None:
        self._check()
        start = self._new_event()
        start.record(self._streams["compute"])
        step = self._steps[step_id] = _LaunchedStep(start)
        self._steps.pop(step_id - 2 * RING_SIZE, None)
        self._step_id = self._program.watch.step_id = step_id
        with self._sync_debug():
            for command in commands:
                try:
                    self._launch(command, step)
                except Exception as error:
                    self._fail(step_id, command, error)

    def wait(self, event: str, step_id: int) -> None:
        self._check()
        try:
            _wait_until_reached(self._steps[step_id].events[event])
        except (RuntimeError, TimeoutError) as error:
            self._fail(step_id, event, error)

    def report(self, step_id: int) -> DeviceReport:
        self._check()
        step = self._steps[step_id]
        start_ns = step.start_ns = self._since_last_start(step.start)
        elapsed_ns = _elapsed_ns(step.start, step.events[OUTPUT_READY])
        return DeviceReport(
            start_ns=start_ns,
            end_ns=start_ns + elapsed_ns,
            copies=step.copies.copies_by_buffer,
            bytes=step.copies.bytes_by_buffer,
            download_bytes=step.copies.download_bytes,
        )

    def spans(self, step_id: int, names: Sequence[str]) -> Sequence[Span]:
        """Of the host queueing commands, and of the streams running them, durations from adjacent events."""
        self._check()
        if not records_device(self.level):
            return ()
        step = self._steps[step_id]
        assert step.start_ns is not None, "a step's report is asked for before its spans"
        spans = [Span(step_id, item.name, "host", item.queued_ns, item.queued_end_ns) for item in step.timed]
        for stream in STREAMS:
            timed = [item for item in step.timed if item.stream == stream]
            spans += self._chained(step_id, stream, step, timed)
        step.timed = []
        return spans

    def _chained(
        self, step_id: int, lane: Stream, step: _LaunchedStep, timed: Sequence[_TimedCommand]
    ) -> Iterator[Span]:
        """Elapsed times are float32 milliseconds: each between neighbours only, summed in integers."""
        last, time_ns = step.start, step.start_ns or 0
        for item in timed:
            if not item.end.query():
                yield Span(step_id, item.name, lane, None, None, _NOT_DONE)
                continue  # its events are not put back: they are still to come
            time_ns = start_ns = time_ns + _elapsed_ns(last, item.start)
            time_ns += _elapsed_ns(item.start, item.end)
            yield Span(step_id, item.name, lane, start_ns, time_ns)
            if last is not step.start:
                self._timers.append(last)
            self._timers.append(item.start)
            last = item.end
        if last is not step.start:
            self._timers.append(last)

    def num_recompiled(self) -> int:
        self._check()
        return self._program.num_recompiled

    def sync_findings(self) -> Sequence[SyncFinding]:
        self._check()
        return self._program.watch.findings

    def reset(self, level: Level = "off") -> None:
        self._check()
        self.level = level
        self._program.watch.mode = self.sync_check
        self._program.watch.clear()
        self._ranges = NoRanges() if level == "off" else self._trace.make_ranges()
        torch.cuda.synchronize()
        self._steps.clear()
        self._program.reset()
        torch.cuda.synchronize()  # the fills ran on the default stream, which no other stream waits for
        poison_host(self.host)
        self._start_clock()

    def start_trace(self) -> None:
        self._check()
        self._trace.start()

    def write_trace(self, path: str) -> None:
        self._check()
        torch.cuda.synchronize()
        self._trace.write(path)

    def start_capture(self) -> None:
        profiler: Any = torch.cuda.profiler
        profiler.start()

    def stop_capture(self) -> None:
        if self._failure is None:  # a wait would fail too, and hide the first failure
            torch.cuda.synchronize()
        profiler: Any = torch.cuda.profiler
        profiler.stop()

    def close(self) -> None:
        if self._failure is None:
            torch.cuda.synchronize()

    def _capture(self, body: Body) -> Body:
        """What replays `body`. Graphs share the memory of their temporaries: none runs beside another."""
        stream = self._streams["compute"]
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                body()
        torch.cuda.synchronize()
        make: Callable[[], Any] = torch.cuda.CUDAGraph
        capturing: Callable[..., Any] = torch.cuda.graph
        graph = make()
        with capturing(graph, pool=self._graph_pool, stream=stream):
            output = body()
        self._graph_pool = self._graph_pool or graph.pool()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay

    def _launch(self, command: Command, step: _LaunchedStep) -> None:
        stream = self._streams[command.on_stream]
        if isinstance(command, Record):
            event = step.events[command.event] = self._new_event()
            event.record(stream)
        elif isinstance(command, Wait):
            stream.wait_event(step.events[command.event])
        elif self.level == "off":
            with torch.cuda.stream(stream):
                self._program.execute(command.to_wire(), step.copies)
        else:
            self._launch_in_span(command, step, stream)

    def _launch_in_span(self, command: Command, step: _LaunchedStep, stream: Any) -> None:
        name = command.span
        assert name is not None
        is_timed = records_device(self.level)
        self._ranges.push(name, self._step_id)
        try:
            queued_ns = now_ns()
            start = self._mark(stream) if is_timed else None
            with torch.cuda.stream(stream):
                self._program.execute(command.to_wire(), step.copies)
            if is_timed:
                item = _TimedCommand(name, command.on_stream, start, self._mark(stream), queued_ns, now_ns())
                step.timed.append(item)
        finally:
            self._ranges.pop()

    @contextmanager
    def _sync_debug(self) -> Iterator[None]:
        """While the check is on, torch warns of every wait it makes; the watch hears it and knows the place.

        Never torch's own errors: they would end a command half-way, and the allowed waits with it.
        """
        if self._program.watch.mode == "off":
            yield
            return
        set_mode: Callable[[str], None] = torch.cuda.set_sync_debug_mode
        with warnings.catch_warnings():
            warnings.filterwarnings("always", message=SYNC_WARNING)
            warnings.filterwarnings("ignore", message=".*prototype feature")  # of the mode itself
            warnings.showwarning = self._program.watch.hear
            set_mode("warn")
            try:
                yield
            finally:
                set_mode("default")

    def _mark(self, stream: Any) -> Any:
        """A timing event recorded on the stream; nobody will ever wait for it."""
        make: Callable[..., Any] = torch.cuda.Event
        event = self._timers.pop() if self._timers else make(enable_timing=True)
        event.record(stream)
        return event

    def _start_clock(self) -> None:
        """Tie an event to the host's clock. Its uncertainty is the time of one record and synchronize."""
        before_ns = now_ns()
        self._last_start = self._new_event()
        self._last_start.record(self._streams["compute"])
        self._last_start.synchronize()
        self._last_start_ns = now_ns()
        self.clock_uncertainty_ns = self._last_start_ns - before_ns

    def _since_last_start(self, start: Any) -> int:
        """Host time of a start event, summed in integers from step to step.

        An elapsed time is a float32 of milliseconds: over a minute it counts in steps of 4 us.
        """
        self._last_start_ns += _elapsed_ns(self._last_start, start)
        self._last_start = start
        return self._last_start_ns

    def _new_event(self) -> Any:
        event: Callable[..., Any] = torch.cuda.Event
        return event(enable_timing=True, blocking=True)

    def _fail(self, step_id: int, what: Command | str, error: Exception) -> None:
        text = f"step {step_id}: {what} failed on the device: {type(error).__name__}: {error}"
        self._failure = DeviceError(text, step_id, str(what), "")
        raise self._failure from error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def _elapsed_ns(start: Any, end: Any) -> int:
    elapsed_ms: float = start.elapsed_time(end)
    return round(elapsed_ms * 1e6)


def graph_ladder(max_rows: int) -> tuple[int, ...]:
    """Rows of the decode steps to capture, as vLLM has them: 1, 2, 4, then every 8th, from 256 every 16th.

    The last is `max_rows`, so that every decode step has one.
    """
    ladder = [1, 2, 4, *range(8, 256, 8), *range(256, max_rows + 1, 16)]
    return (*(size for size in ladder if size < max_rows), max_rows)


def _wait_until_reached(event: Any) -> None:
    """TimeoutError where a device that hangs never gets there; a blocking wait would hang with it."""
    begin = time.monotonic()
    while not event.query():
        waited_s = time.monotonic() - begin
        if waited_s > _WAIT_TIMEOUT_S:
            raise TimeoutError(f"not reached within {_WAIT_TIMEOUT_S:g} s")
        if waited_s > _SPIN_S:
            time.sleep(_PAUSE_S)


def is_available() -> bool:
    return torch.cuda.is_available()


def cache_bytes() -> int:
    """Size of the cache that all of the device shares."""
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


def memory_bytes() -> int:
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


def device_name() -> str:
    return torch.cuda.get_device_name()


def _pinned(item: BufferSpec) -> torch.Tensor:
    dtype = torch.from_numpy(np.empty(0, item.host_dtype)).dtype
    return torch.zeros(item.shape, dtype=dtype, pin_memory=True)
