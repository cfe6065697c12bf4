"""Pieces: a lane's nested spans cut into stretches that belong to one span each. Standard library only.

A piece is the exclusive time of its span: what lies within it and within no span nested in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from runner.spans import Span
from suite.errors import SuiteError

UNATTRIBUTED = "unattributed"


class TimedSpan(NamedTuple):
    """A span that has times."""

    step_id: int
    name: str
    start_ns: int
    end_ns: int


class Piece(NamedTuple):
    """[start_ns, end_ns) of one lane, never empty. `source`: index of its span; None between two spans."""

    step_id: int
    name: str
    start_ns: int
    end_ns: int
    source: int | None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


def timed(span: Span, step_id: int) -> TimedSpan:
    """The span as one of that step. SuiteError where it ends before it starts, or has no times."""
    if span.start_ns is None or span.end_ns is None or span.end_ns < span.start_ns:
        raise SuiteError(
            f"span {span.name} of step {span.step_id} in lane {span.lane} runs from {span.start_ns} to "
            f"{span.end_ns} ns: it cannot end before it starts; the run's spans are damaged, run again"
        )
    return TimedSpan(step_id, span.name, span.start_ns, span.end_ns)


def pieces_of(spans: Sequence[TimedSpan], slack_ns: int = 0) -> list[Piece]:
    """A lane's time from the first span's start to the last one's end, in order, without a hole.

    The time between two spans that lie in no other is `unattributed` and belongs to the earlier one's step.
    Where two spans overlap and neither lies within the other, the earlier is cut: by `slack_ns` at most,
    else SuiteError.
    """
    return list(_Cutter(spans, slack_ns).pieces())


class _Cutter:
    """Goes through the spans by their start; `_open` holds those that are not over, the innermost last."""

    def __init__(self, spans: Sequence[TimedSpan], slack_ns: int) -> None:
        self._spans = spans
        self._slack_ns = slack_ns
        self._open: list[int] = []
        self._last_step_id = 0
        self._time_ns = 0  # all before it is cut

    def pieces(self) -> Iterator[Piece]:
        spans = self._spans
        order = sorted(range(len(spans)), key=lambda index: (spans[index].start_ns, -spans[index].end_ns))
        if order:
            self._time_ns = spans[order[0]].start_ns
            self._last_step_id = spans[order[0]].step_id
        for index in order:
            yield from self._close_until(spans[index].start_ns)
            yield from self._advance(spans[index].start_ns)
            self._end_overlapped(spans[index])
            self._open.append(index)
        if order:
            yield from self._close_until(max(span.end_ns for span in spans))

    def _close_until(self, time_ns: int) -> Iterator[Piece]:
        while self._open and self._spans[self._open[-1]].end_ns <= time_ns:
            yield from self._advance(self._spans[self._open[-1]].end_ns)
            self._last_step_id = self._spans[self._open.pop()].step_id

    def _advance(self, time_ns: int) -> Iterator[Piece]:
        """The time up to there goes to the innermost open span."""
        if time_ns == self._time_ns:
            return
        if self._open:
            source = self._open[-1]
            yield Piece(self._spans[source].step_id, self._spans[source].name, self._time_ns, time_ns, source)
        else:
            yield Piece(self._last_step_id, UNATTRIBUTED, self._time_ns, time_ns, None)
        self._time_ns = time_ns

    def _end_overlapped(self, span: TimedSpan) -> None:
        """What is open must hold all of a new span, or nearly be over."""
        while self._open and span.end_ns > (outer := self._spans[self._open[-1]]).end_ns:
            if outer.end_ns - span.start_ns > self._slack_ns:
                raise SuiteError(
                    f"span {span.name} of step {span.step_id} [{span.start_ns}, {span.end_ns}) ns overlaps "
                    f"{outer.name} of step {outer.step_id} [{outer.start_ns}, {outer.end_ns}) ns in the same "
                    "lane and does not lie within it; the run's spans are damaged, run again"
                )
            self._last_step_id = self._spans[self._open.pop()].step_id
