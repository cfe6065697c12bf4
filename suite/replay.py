"""The same recorded steps again: who is handed to the engine at which ask, and whether its steps are those.

An engine asks for requests before every step, and what it plans follows from what it was handed at which ask:
clocks have no part in it. So a replay by asks has the very steps of its first run, one right after the other,
and a list of steps can be played to every arm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from runner.core import Request
from runner.measure import StepRecord, now_ns
from runner.repeats import Turn, repeats_in
from runner.spans import upload_span
from suite.arrivals import EndedNs, OnPoll, ScheduledArrivals, WorkloadArrivals
from suite.workload import WorkloadRequest

_SAME = (
    *("step_id", "kind", "ids_route", "embeds_route", "num_rows", "num_tokens", "num_decode_rows"),
    *("num_prefill_tokens", "num_image_rows", "num_supplied_rows", "num_images_encoded", "num_waiting"),
    *("num_free_blocks", "num_preempted", "num_draft_tokens", "num_accepted_tokens", "download_bytes"),
)
assert set(_SAME) <= {item.name for item in fields(StepRecord)}


class RecordedArrivals:
    """Requests as `arrivals` hand them over; `handed_at` says at which ask each was."""

    def __init__(self, arrivals: WorkloadArrivals) -> None:
        self._arrivals = arrivals
        self.handed_at: list[int] = []
        self._num_asks = 0

    @property
    def start_ns(self) -> int:
        return self._arrivals.start_ns

    def start(self, on_poll: OnPoll | None = None, ended_ns: EndedNs | None = None) -> None:
        self._arrivals.start(on_poll, ended_ns)

    def scheduled_ns(self, index: int) -> int:
        return self._arrivals.scheduled_ns(index)

    def due(self) -> Sequence[Request]:
        due = self._arrivals.due()
        self.handed_at += [self._num_asks] * len(due)
        self._num_asks += 1
        return due

    def wait(self) -> bool:
        return self._arrivals.wait()


class ReplayedArrivals(ScheduledArrivals):
    """Each request at the ask it was recorded at, whatever the time; nothing waits for a clock."""

    def __init__(self, requests: Sequence[WorkloadRequest], handed_at: Sequence[int]) -> None:
        super().__init__(requests, is_timed=False)
        assert len(requests) == len(handed_at), "the first run ended before all its requests were handed over"
        self._handed_at = handed_at
        self._num_asks = 0

    def due(self) -> Sequence[Request]:
        first = self._num_sent
        while self._num_sent < len(self._handed_at) and self._handed_at[self._num_sent] <= self._num_asks:
            self._num_sent += 1
        self._num_asks += 1
        if self._on_poll is not None:
            self._on_poll(now_ns(), self._num_sent)
        return [item.request for item in self._requests[first : self._num_sent]]

    def wait(self) -> bool:
        return self._num_sent < len(self._requests)


class StepArrivals(ReplayedArrivals):
    """Each request before the step of a list that it belongs to; it is due when it is handed over."""

    def __init__(self, requests: Sequence[WorkloadRequest]) -> None:
        asks = [item.ask for item in requests if item.ask is not None]
        assert len(asks) == len(requests), "a request of a list of steps belongs to none of them"
        super().__init__(requests, asks)
        self._due_ns: list[int] = []

    def due(self) -> Sequence[Request]:
        at_ns = now_ns()
        due = super().due()
        self._due_ns += [at_ns] * len(due)
        return due

    def scheduled_ns(self, index: int) -> int:
        """Of a request that was never handed over: the start."""
        return self._due_ns[index] if index < len(self._due_ns) else self.start_ns


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """What the first run of an arm did. `repeats` and `turns`: how often it ran the commands of a span."""

    run_id: str
    handed_at: tuple[int, ...]
    steps: tuple[StepRecord, ...]
    output_ids: Mapping[str, tuple[int, ...]]
    repeats: Mapping[str, int]
    turns: Sequence[Turn] = ()


def first_difference(
    first: RecordedSteps,
    steps: Sequence[StepRecord],
    output_ids: Mapping[str, tuple[int, ...]],
    repeats: Mapping[str, int],
    turns: Sequence[Turn] = (),
) -> str | None:
    """Where a replay left its record, in one sentence; None where it is the same to the byte.

    Its tokens must be the same, and of each step what was planned, the routes, and copies and bytes by
    buffer, which a repeated upload does that many times.
    """
    for recorded, replayed in zip(first.steps, steps, strict=False):
        before = repeats_in(recorded.step_id, first.repeats, first.turns)
        now = repeats_in(recorded.step_id, repeats, turns)
        found = _step_difference(recorded, replayed, _factor(before, now))
        if found is not None:
            return f"step {recorded.step_id} is not the one that {first.run_id} recorded: {found}"
    if len(steps) != len(first.steps):
        return f"{first.run_id} recorded {len(first.steps)} steps, and this run took {len(steps)}"
    for request_id, ids in first.output_ids.items():
        if output_ids.get(request_id) != ids:
            return f"request {request_id} has other tokens than in {first.run_id}, whose steps are the same"
    return None


def _factor(before: Mapping[str, int], now: Mapping[str, int]) -> Callable[[str], tuple[int, int]]:
    """How often a buffer's uploads were run, then and now."""

    def factor(buffer: str) -> tuple[int, int]:
        span = upload_span(buffer)
        return before.get(span, 1), now.get(span, 1)

    return factor


def _step_difference(
    recorded: StepRecord, replayed: StepRecord, factor: Callable[[str], tuple[int, int]]
) -> str | None:
    for name in _SAME:
        before, now = getattr(recorded, name), getattr(replayed, name)
        if before != now:
            return f"its {name} was {before}, and is {now}"
    for name in ("copies", "bytes"):
        before, now = getattr(recorded, name), getattr(replayed, name)
        for buffer in sorted({*before, *now}):
            then_k, now_k = factor(buffer)
            due = before.get(buffer, 0) * now_k // then_k
            if now.get(buffer, 0) != due:
                return f"its {name} of {buffer} should be {due}, and are {now.get(buffer, 0)}"
    return None
