"""What is recorded: a StepRecord a step, a Timeline a request, and spans where asked for. Stdlib only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.ranges import NoRanges, Ranges, nvtx_ranges
from runner.spans import Level, Span, records_host
from runner.sync_check import SyncCheck


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One retired step.

    Times are `time.perf_counter_ns` (one clock for both processes of a CPU device). Host time is the sum
    of the host's own work on the step, waits not included; device time runs from the first command's
    start to the output's being there: drafts that stay on the device are proposed after it, and delay the
    next step's start. `copies` and `bytes` are counted at the copies themselves, by buffer,
    host to device; `download_bytes` likewise, device to host.
    """

    step_id: int
    kind: str  # "prefill" | "decode" | "mixed"
    ids_route: str  # "host" | "mixed" | "slice" | "scatter" | "draft"
    embeds_route: str  # "merge" | "lookup" | "graph"
    num_rows: int
    num_tokens: int
    num_decode_rows: int
    num_prefill_tokens: int
    num_image_rows: int  # rows of encoded images spliced in this step
    num_supplied_rows: int
    num_images_encoded: int
    num_waiting: int
    num_free_blocks: int
    num_preempted: int
    start_ns: int  # planning begins
    end_ns: int  # retired
    schedule_ns: int
    update_batch_ns: int
    compile_ns: int
    launch_ns: int
    wait_fence_ns: int
    host_work_ns: int
    wait_output_ns: int
    retire_ns: int
    handoff_ns: int  # from the launch, or from the device's being free, to the device's start
    device_start_ns: int
    device_end_ns: int
    copies: Mapping[str, int]
    bytes: Mapping[str, int]
    download_bytes: int
    hash_ns: int = 0  # prompts hashed for the prefix cache since the last step
    num_draft_tokens: int = 0  # guesses among its tokens
    num_accepted_tokens: int = 0  # of them, those that were right
    graph_rows: int = 0  # of the captured step that was replayed; 0: it was launched command by command

    @property
    def host_ns(self) -> int:
        return (
            self.hash_ns
            + self.schedule_ns
            + self.update_batch_ns
            + self.compile_ns
            + self.launch_ns
            + self.retire_ns
            + self.host_work_ns
        )

    @property
    def device_ns(self) -> int:
        return self.device_end_ns - self.device_start_ns


@dataclass(slots=True)
class Timeline:
    """When things happened to one request (ns, the clock of StepRecord)."""

    sent_ns: int
    first_scheduled_ns: int | None = None
    token_ns: list[int] = field(default_factory=list)
    finished_ns: int | None = None


def now_ns() -> int:
    """The one clock of all records."""
    return time.perf_counter_ns()


def keep_busy(duration_us: int) -> None:
    """Use the calling thread for that long, as work would; sleeping would free the core."""
    end_ns = now_ns() + duration_us * 1000
    while now_ns() < end_ns:
        pass


class Instrument:
    """What is written down of a run beside its StepRecords: spans and ranges, as far as `level` asks.

    `ranges` stand in for NVTX's own. `spans` holds what was recorded so far; it survives an error.
    `sync_check`: what the device does about silent waits, at any level.
    """

    def __init__(
        self, level: Level = "off", ranges: Ranges | None = None, sync_check: SyncCheck = "off"
    ) -> None:
        self.level: Level = level
        self.sync_check: SyncCheck = sync_check
        self.spans: list[Span] = []
        self.ranges = ranges or (NoRanges() if level == "off" else nvtx_ranges())
        self._open: dict[int, tuple[object, str, int]] = {}

    def clock(self, step_id: int) -> StepClock:
        """A clock for the host's phases of one step."""
        return StepClock(step_id, None if self.level == "off" else self)

    def start_step(self, step_id: int, label: str) -> None:
        """Open the step's own range; others may open and close before it is ended."""
        if self.level != "off":
            self._open[step_id] = (self.ranges.start(label, step_id), label, now_ns())

    def end_step(self, step_id: int) -> None:
        if step_id in self._open:
            handle, label, start_ns = self._open.pop(step_id)
            if records_host(self.level):
                self.spans.append(Span(step_id, label, "steps", start_ns, now_ns()))
            self.ranges.end(handle)

    def close(self) -> None:
        """End what an error left open."""
        for step_id in list(self._open):
            self.end_step(step_id)


class StepClock:
    """The host's phases of one step. `with clock.phase("compile"): ...` adds to that phase's time."""

    __slots__ = ("instrument", "phase_ns", "start_ns", "step_id")

    def __init__(self, step_id: int = -1, instrument: Instrument | None = None) -> None:
        self.start_ns = now_ns()
        self.step_id = step_id
        self.phase_ns: dict[str, int] = {}
        self.instrument = instrument

    def phase(self, name: str) -> _Phase:
        return _Phase(self, name)


class _Phase:
    """Closes whatever happens inside it; an exception's time is counted as well."""

    __slots__ = ("_clock", "_name", "_start_ns")

    def __init__(self, clock: StepClock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._start_ns = 0

    def __enter__(self) -> None:
        instrument = self._clock.instrument
        if instrument is not None:
            instrument.ranges.push(self._name, self._clock.step_id)
        self._start_ns = now_ns()

    def __exit__(self, *_exception: object) -> None:
        end_ns = now_ns()
        clock, name = self._clock, self._name
        clock.phase_ns[name] = clock.phase_ns.get(name, 0) + end_ns - self._start_ns
        instrument = clock.instrument
        if instrument is not None:
            instrument.ranges.pop()
            if records_host(instrument.level):
                instrument.spans.append(Span(clock.step_id, name, "host", self._start_ns, end_ns))


@dataclass(slots=True)
class Recorder:
    """All that an engine measured so far; what is here survives an error."""

    steps: list[StepRecord] = field(default_factory=list)
    timelines: dict[str, Timeline] = field(default_factory=dict)
