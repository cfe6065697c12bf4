"""Which range a kernel or a copy belongs to: the innermost one open on the launching thread. Stdlib only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from suite.profile.capture import CapturedRange, DeviceWork

Thread = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Launch:
    """The call that asked for some device work: on which thread, and when."""

    pid: int
    tid: int
    start_ns: int


class _Nest:
    """Nested ranges of one thread, to be asked which is the innermost at a time."""

    def __init__(self, ranges: Iterable[CapturedRange]) -> None:
        # An outer range is first where two start together.
        self._ranges = sorted(ranges, key=lambda item: (item.start_ns, -_end(item)))
        self._starts = [item.start_ns for item in self._ranges]
        self._outer: list[int | None] = []
        stack: list[int] = []
        for index, item in enumerate(self._ranges):
            while stack and _end(self._ranges[stack[-1]]) <= item.start_ns:
                stack.pop()
            self._outer.append(stack[-1] if stack else None)
            stack.append(index)

    def at(self, time_ns: int) -> CapturedRange | None:
        """The last range to start by then, or the nearest one around it that is still open."""
        index: int | None = bisect_right(self._starts, time_ns) - 1
        if index == -1:
            return None
        while index is not None and _end(self._ranges[index]) <= time_ns:
            index = self._outer[index]
        return None if index is None else self._ranges[index]


def _end(item: CapturedRange) -> float:
    return float("inf") if item.end_ns is None else item.end_ns


def attribute(
    work: Sequence[tuple[DeviceWork, int | None]],
    launches: Mapping[tuple[int | None, int], Launch],
    ranges: Sequence[CapturedRange],
) -> tuple[DeviceWork, ...]:
    """Every work with its range, by (process, correlation id) of its launch.

    `work` comes with the process that asked for it, None where the file does not say. Start/end ranges take
    no part: they belong to no thread.
    """
    by_thread: dict[Thread, list[CapturedRange]] = {}
    for item in ranges:
        if item.is_nested:
            by_thread.setdefault((item.pid, item.tid), []).append(item)
    nests = {thread: _Nest(items) for thread, items in by_thread.items()}
    return tuple(replace(one, range=_range_of(one, pid, launches, nests)) for one, pid in work)


def _range_of(
    work: DeviceWork,
    pid: int | None,
    launches: Mapping[tuple[int | None, int], Launch],
    nests: Mapping[Thread, _Nest],
) -> CapturedRange | None:
    launch = None if work.correlation_id is None else launches.get((pid, work.correlation_id))
    nest = None if launch is None else nests.get((launch.pid, launch.tid))
    return nest.at(launch.start_ns) if launch and nest else None
