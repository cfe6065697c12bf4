"""How a call is timed: many calls a sample, many samples, its buffers rotated. Knows no library.

A clock's reading costs as much as a small copy, so one sample is many calls, at least `min_sample_ns` long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from suite.micro.median import Estimate, estimate

Call = Callable[[], object]

_MAX_GROWTH = 64
_HEADROOM = 1.2


class Sample(NamedTuple):
    """All calls of a sample: their time where they ran, and what the host took to queue them, if apart."""

    elapsed_ns: float
    enqueue_ns: float | None


class SampleTimer(Protocol):
    def time(self, calls: Sequence[Call]) -> Sample:
        """Run the calls one after another, once each."""


class HostTimer:
    """Calls that are over when they return."""

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns

    def time(self, calls: Sequence[Call]) -> Sample:
        clock_ns = self._clock_ns
        start_ns = clock_ns()
        for call in calls:
            call()
        return Sample(clock_ns() - start_ns, None)


class TimingEvent(Protocol):
    def record(self) -> object: ...
    def synchronize(self) -> object: ...
    def elapsed_time(self, end: TimingEvent) -> float:
        """Milliseconds."""


class EventTimer:
    """Calls that a device runs later: one pair of events around all of a sample's.

    Nothing else may be queued when a sample begins, and the host waits for nothing between the events. Where
    queueing takes longer than running, the device idles between calls, and the elapsed time is the host's:
    both are told, so that this is seen.
    """

    def __init__(
        self,
        make_event: Callable[[], TimingEvent],
        synchronize: Callable[[], object],
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._make_event = make_event
        self._synchronize = synchronize
        self._clock_ns = clock_ns

    def time(self, calls: Sequence[Call]) -> Sample:
        start, end = self._make_event(), self._make_event()
        self._synchronize()
        start.record()
        start_ns = self._clock_ns()
        for call in calls:
            call()
        enqueue_ns = self._clock_ns() - start_ns
        end.record()
        end.synchronize()
        return Sample(start.elapsed_time(end) * 1e6, enqueue_ns)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: samples until `budget_ns` is spent, within the limits on their number.

    Once `limit_ns` is spent, `fewest_samples` will do: calls of seconds are rare, and so are their surprises.
    """

    min_sample_ns: int = 1_000_000
    min_samples: int = 7
    max_samples: int = 41
    fewest_samples: int = 3
    budget_ns: int = 60_000_000
    limit_ns: int = 1_000_000_000
    max_calls: int = 1 << 20


DEFAULT_EFFORT = Effort()


class Timing(NamedTuple):
    """Per call, in ns. `calls` of them made a sample."""

    per_call: Estimate
    enqueue: Estimate | None
    calls: int

    @property
    def is_launch_bound(self) -> bool:
        """Whether the device waited for the host between calls, so that the time is the host's."""
        return self.enqueue is not None and self.enqueue.value > 0.9 * self.per_call.value


class _Rotation:
    """Hands out calls in turn, so that a sample goes on where the last one ended."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._next = 0

    def take(self, count: int) -> list[Call]:
        first, size = self._next, len(self._calls)
        self._next = (first + count) % size
        return [self._calls[(first + index) % size] for index in range(count)]


def measure(timer: SampleTimer, calls: Sequence[Call], effort: Effort = DEFAULT_EFFORT) -> Timing:
    """Time calls that do the same to different memory; a full turn of them, if cheap, warms up."""
    rotation = _Rotation(calls)
    first_ns = timer.time(rotation.take(1)).elapsed_ns  # with what only a first call does
    affordable = int(effort.budget_ns / 4 / max(1.0, first_ns))
    if affordable:
        timer.time(rotation.take(min(len(calls), affordable)))
    count = (
        _calibrate(timer, rotation, effort) if first_ns < max(effort.budget_ns, effort.min_sample_ns) else 1
    )
    samples: list[Sample] = []
    spent_ns = 0.0
    while not _is_enough(len(samples), spent_ns, effort):
        sample = timer.time(rotation.take(count))
        spent_ns += max(sample.elapsed_ns, sample.enqueue_ns or 0)
        samples.append(sample)
    return _timing(samples, count)


def _is_enough(num_samples: int, spent_ns: float, effort: Effort) -> bool:
    if spent_ns >= effort.limit_ns:
        return num_samples >= effort.fewest_samples
    if spent_ns >= effort.budget_ns:
        return num_samples >= effort.min_samples
    return num_samples >= effort.max_samples


def _calibrate(timer: SampleTimer, rotation: _Rotation, effort: Effort) -> int:
    """Calls for a sample of the least length."""
    count = 1
    while count < effort.max_calls:
        elapsed_ns = timer.time(rotation.take(count)).elapsed_ns
        if elapsed_ns >= effort.min_sample_ns:
            break
        growth = _HEADROOM * effort.min_sample_ns / max(1.0, elapsed_ns)
        count = min(effort.max_calls, int(count * min(growth, _MAX_GROWTH)) + 1)
    return count


def _timing(samples: Sequence[Sample], count: int) -> Timing:
    queued = [sample.enqueue_ns / count for sample in samples if sample.enqueue_ns is not None]
    return Timing(
        per_call=estimate([sample.elapsed_ns / count for sample in samples]),
        enqueue=estimate(queued) if queued else None,
        calls=count,
    )


def nothing() -> None:
    """What the empty loop calls."""


def floor(timer: SampleTimer, effort: Effort = DEFAULT_EFFORT) -> Timing:
    """The empty loop: what every figure holds beside the work itself."""
    return measure(timer, (nothing,), effort)
