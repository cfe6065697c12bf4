"""What the host did while the compute stream had nothing to run. Standard library only."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from suite.busy_time import Interval
from suite.lane_pieces import UNATTRIBUTED, Piece

HANDOFF = "handoff"
"""From when a step has been handed over until the device, idle, starts it."""


class HostLine:
    """The host's pieces, to be asked what ran when."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._starts = [piece.start_ns for piece in pieces]

    def within(self, start_ns: int, end_ns: int) -> Iterator[tuple[str, int]]:
        """(name, ns) of the host's innermost spans in an interval, its whole length in all."""
        time_ns = start_ns
        for index in range(self._index_at(start_ns), len(self._pieces)):
            piece = self._pieces[index]
            if piece.start_ns >= end_ns:
                break
            first_ns, last_ns = max(piece.start_ns, time_ns), min(piece.end_ns, end_ns)
            if last_ns > first_ns:
                yield UNATTRIBUTED, first_ns - time_ns
                yield piece.name, last_ns - first_ns
                time_ns = last_ns
        yield UNATTRIBUTED, end_ns - time_ns

    def _index_at(self, time_ns: int) -> int:
        return max(0, bisect_right(self._starts, time_ns) - 1)


def causes_of(gap: Interval, host: HostLine, handed_over_ns: int | None) -> dict[str, int]:
    """ns of the gap by cause, the gap's length in all.

    `handed_over_ns`: when the step that ends the gap had been handed over; None where nobody knows. Before
    it, the cause is the host's innermost span; after it, `handoff`, whatever the host does meanwhile.
    """
    end_ns = gap.end_ns if handed_over_ns is None else min(gap.end_ns, max(gap.start_ns, handed_over_ns))
    causes: Counter[str] = Counter()
    for name, duration_ns in host.within(gap.start_ns, end_ns):
        causes[name] += duration_ns
    causes[HANDOFF] += gap.end_ns - end_ns
    return {name: duration_ns for name, duration_ns in causes.items() if duration_ns}
