"""What is recorded: a StepRecord a step, a Timeline a request. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field


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


class StepClock:
    """The host's phases of one step. `with clock.phase("compile"): ...` adds to that phase's time."""

    def __init__(self) -> None:
        self.start_ns = now_ns()
        self.phase_ns: dict[str, int] = {}

    def phase(self, name: str) -> _Phase:
        return _Phase(self.phase_ns, name)


class _Phase:
    """Closes whatever happens inside it; an exception's time is counted as well."""

    __slots__ = ("_name", "_start_ns", "_totals")

    def __init__(self, totals: dict[str, int], name: str) -> None:
        self._totals = totals
        self._name = name
        self._start_ns = 0

    def __enter__(self) -> None:
        self._start_ns = now_ns()

    def __exit__(self, *_exception: object) -> None:
        elapsed_ns = now_ns() - self._start_ns
        self._totals[self._name] = self._totals.get(self._name, 0) + elapsed_ns


@dataclass(slots=True)
class Recorder:
    """All that an engine measured so far; what is here survives an error."""

    steps: list[StepRecord] = field(default_factory=list)
    timelines: dict[str, Timeline] = field(default_factory=dict)
