"""The real engine over a device and a host whose every action takes a known time. Holds no assertion.

Nothing is slept or computed: one counter of ns is what the engine's clock reads, and what each part adds to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from arm_workloads import Recipe, request_of

import runner.engine
import runner.executor
import runner.measure
from runner.commands import EVENTS, OUTPUT_READY, STREAMS, Command, Download, Record, Wait
from runner.config import Fence, RunnerConfig
from runner.core import Request
from runner.device.base import DeviceReport
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.executor import InFlight
from runner.inputs.arms import ARMS
from runner.inputs.batch import InputBatch
from runner.inputs.compile import StepCompiler
from runner.measure import Instrument
from runner.models import ModelSpec
from runner.scheduler import Scheduler
from runner.spans import Level, Span


@dataclass(slots=True)
class Clock:
    now_ns: int = 1_000_000

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, duration_ns: int) -> None:
        self.now_ns += duration_ns


@dataclass(frozen=True, slots=True)
class HostTimes:
    """ns of the host's work. `read`, `retire` and `stamp` are one phase; `between`: after a step is recorded,
    in no phase.
    """

    admit: int = 3
    schedule: int = 50
    update_batch: int = 20
    stage: int = 30
    compile: int = 40
    launch: int = 60
    read: int = 8
    retire: int = 12
    stamp: int = 5
    record: int = 15
    between: int = 7

    @property
    def total(self) -> int:
        """Of a whole round of the engine's loop, host work apart."""
        planning = self.admit + self.schedule + self.update_batch + self.stage + self.compile + self.launch
        return planning + self.retiring + self.record + self.between

    @property
    def retiring(self) -> int:
        return self.read + self.retire + self.stamp


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """ns: `spans` of a command by name, 0 for others; `pause` before every command on the compute stream;
    `latency` from when a step is handed over until an idle device starts it; `enqueue` of a command by the
    host, within its launch, where such spans are recorded at all (None: they are not).
    """

    spans: Mapping[str, int]
    pause: int = 0
    latency: int = 11
    enqueue: int | None = None


class SimulatedDevice(NullDevice):
    """Two streams, events between them, and a report of what ran when; every token is 0."""

    def __init__(
        self, model: ModelSpec, config: RunnerConfig, clock: Clock, host: HostTimes, times: DeviceTimes
    ) -> None:
        super().__init__(model, config, lambda _step_id, _commands: None)
        self._clock = clock
        self._host = host
        self._times = times
        self._free_ns = dict.fromkeys(STREAMS, 0)
        self._event_ns: dict[tuple[str, int], int] = {}
        self._start_ns: dict[int, int] = {}
        self._spans: dict[int, list[Span]] = {}

    def execute(self, step_id: int, commands: Sequence[Command]) -> None:
        self._spans[step_id] = []
        rest_ns = self._host.launch
        for command in commands:
            rest_ns -= self._queue(step_id, command)
        self._clock.advance(rest_ns)
        for command in commands:
            if isinstance(command, Download):
                self._answer(self.host[command.buffer][: command.count], command.buffer)
        started_ns = self._clock.now_ns + self._times.latency
        for stream in STREAMS:
            self._free_ns[stream] = max(self._free_ns[stream], started_ns)
        self._start_ns[step_id] = self._free_ns["compute"]
        for command in commands:
            self._run(step_id, command)

    def _queue(self, step_id: int, command: Command) -> int:
        """The host's own time for a command, where it has any."""
        if self._times.enqueue is None or command.span is None:
            return 0
        start_ns = self._clock.now_ns
        self._clock.advance(self._times.enqueue)
        self._spans[step_id].append(Span(step_id, command.span, "host", start_ns, self._clock.now_ns))
        return self._times.enqueue

    def _run(self, step_id: int, command: Command) -> None:
        stream = command.on_stream
        if isinstance(command, Record):
            self._event_ns[command.event, step_id] = self._free_ns[stream]
        elif isinstance(command, Wait):
            self._free_ns[stream] = max(self._free_ns[stream], self._event_ns[command.event, step_id])
        else:
            assert command.span is not None
            start_ns = self._free_ns[stream] + (self._times.pause if stream == "compute" else 0)
            end_ns = start_ns + self._times.spans.get(command.span, 0)
            self._free_ns[stream] = end_ns
            self._spans[step_id].append(Span(step_id, command.span, stream, start_ns, end_ns))

    def wait(self, event: str, step_id: int) -> None:
        assert event in EVENTS
        self._clock.now_ns = max(self._clock.now_ns, self._event_ns[event, step_id])

    def report(self, step_id: int) -> DeviceReport:
        return DeviceReport(self._start_ns[step_id], self._event_ns[OUTPUT_READY, step_id], {}, {}, 0)

    def spans(self, step_id: int, names: Sequence[str]) -> Sequence[Span]:
        return self._spans[step_id]

    def reset(self, level: Level = "off") -> None:
        self.level = level


@dataclass(slots=True)
class LateArrivals:
    """`first` at once, `later` once nothing else runs, after a wait of `wait_ns`."""

    clock: Clock
    first: list[Request]
    later: list[Request] = field(default_factory=list)
    wait_ns: int = 0

    def due(self) -> list[Request]:
        given, self.first = self.first, []
        return given

    def wait(self) -> bool:
        if not self.later:
            return False
        self.clock.advance(self.wait_ns)
        self.first, self.later = self.later, []
        return True


def patch_times(patch: pytest.MonkeyPatch, clock: Clock, host: HostTimes) -> None:
    """Make the engine's clock this one, and its phases last as long as `host` says."""
    for module in (runner.measure, runner.executor, runner.engine):
        patch.setattr(module, "now_ns", clock)
    patch.setattr(runner.engine, "keep_busy", lambda duration_us: clock.advance(duration_us * 1000))
    for owner, name, duration_ns in (
        (Engine, "submit", host.admit),
        (Scheduler, "plan", host.schedule),
        (InputBatch, "update", host.update_batch),
        (StepCompiler, "stage", host.stage),
        (StepCompiler, "compile", host.compile),
        (InFlight, "read", host.read),
        (Scheduler, "retire", host.retire),
        (Engine, "_stamp", host.stamp),
        (InFlight, "record", host.record),
        (Instrument, "end_step", host.between),
    ):
        patch.setattr(owner, name, _delayed(getattr(owner, name), clock, duration_ns))


def _delayed(call: Callable[..., Any], clock: Clock, duration_ns: int) -> Callable[..., Any]:
    def delayed(*given: Any, **named: Any) -> Any:
        clock.advance(duration_ns)
        return call(*given, **named)

    return delayed


@dataclass(frozen=True, slots=True)
class Simulated:
    engine: Engine
    spans: list[Span]


def simulate(
    patch: pytest.MonkeyPatch,
    model: ModelSpec,
    arm: str,
    host: HostTimes,
    times: DeviceTimes,
    host_work_us: int = 0,
    num_tokens: int = 6,
    later_after_ns: int | None = None,
    fence: Fence = "uploads",
) -> Simulated:
    """One request served, and another after a wait where one is given."""
    config = RunnerConfig(
        max_num_seqs=2,
        max_num_batched_tokens=32,
        max_model_len=64,
        block_size=8,
        num_blocks=32,
        num_resident_rows=64,
        host_work_us=host_work_us,
        fence=fence,
    )
    clock = Clock()
    requests = [request_of(model, name, Recipe("ids", 8, max_tokens=num_tokens)) for name in ("a", "b")]
    with patch.context() as patched:
        patch_times(patched, clock, host)
        instrument = Instrument("events")
        device = SimulatedDevice(model, config, clock, host, times)
        engine = Engine(model, config, device, ARMS[arm], instrument)
        later = requests[1:] if later_after_ns is not None else []
        engine.run(LateArrivals(clock, requests[:1], later, later_after_ns or 0))
    return Simulated(engine, instrument.spans)
