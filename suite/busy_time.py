"""BusyTime: when something ran, as one union of intervals, and how much of any other interval it covers.

All in integer ns. Standard library only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Interval(NamedTuple):
    """[start_ns, end_ns)"""

    start_ns: int
    end_ns: int


class BusyTime:
    """The union of intervals, which may overlap and come in any order."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self.intervals = tuple(_union(intervals))
        self._starts = [interval.start_ns for interval in self.intervals]
        self._before = [0]  # busy ns before the interval of that index
        for interval in self.intervals:
            self._before.append(self._before[-1] + interval.end_ns - interval.start_ns)

    def covered_ns(self, start_ns: int, end_ns: int) -> int:
        """How much of [start_ns, end_ns) is busy."""
        return self._until(end_ns) - self._until(start_ns)

    def gaps(self) -> Iterator[Interval]:
        """What lies between two intervals."""
        for earlier, later in zip(self.intervals, self.intervals[1:], strict=False):
            yield Interval(earlier.end_ns, later.start_ns)

    def _until(self, time_ns: int) -> int:
        """Busy ns before a time."""
        index = bisect_right(self._starts, time_ns) - 1
        if index < 0:
            return 0
        interval = self.intervals[index]
        return self._before[index] + min(time_ns, interval.end_ns) - interval.start_ns


def _union(intervals: Iterable[Interval]) -> Iterator[Interval]:
    start_ns, end_ns = None, 0
    for interval in sorted(intervals):
        if start_ns is None:
            start_ns, end_ns = interval
        elif interval.start_ns <= end_ns:
            end_ns = max(end_ns, interval.end_ns)
        else:
            yield Interval(start_ns, end_ns)
            start_ns, end_ns = interval
    if start_ns is not None:
        yield Interval(start_ns, end_ns)
