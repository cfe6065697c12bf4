"""Lanes: what host and device did during a few steady steps of a run, piece by piece, for a picture of them.

From StepRecords and Spans to plain values, in integer ns since the first of these steps was planned. The
pieces are those of suite/span_costs.py, cut at the edges of the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runner.measure import StepRecord
from runner.spans import NO_STEP, Span
from suite.busy_time import BusyTime
from suite.lane_pieces import Piece, pieces_of
from suite.span_costs import DEVICE_SLACK_NS, CostLane, busy_intervals, by_lane, idle_gaps
from suite.steady import Window, steady_window

NUM_STEPS = 12


class LanePiece(NamedTuple):
    """[start_ns, end_ns) of a lane that belongs to one step and one span, or to none (`unattributed`)."""

    lane: CostLane
    name: str
    step_id: int
    start_ns: int
    end_ns: int


class LaneGap(NamedTuple):
    """When the compute stream had nothing to run before a step, and why: ns by cause."""

    step_id: int
    start_ns: int
    end_ns: int
    causes: Mapping[str, int]


class LaneStep(NamedTuple):
    """What a step held. `start_ns`, `end_ns`: from its planning until it was retired."""

    step_id: int
    kind: str
    ids_route: str
    embeds_route: str
    num_rows: int
    num_tokens: int
    num_supplied_rows: int
    upload_bytes: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """`steps` follow one another in the run; `window` are the steady ones among them, else `not_steady`."""

    steps: tuple[LaneStep, ...]
    pieces: tuple[LanePiece, ...]
    gaps: tuple[LaneGap, ...]
    window: Window | None
    not_steady: str | None


def lanes(records: Sequence[StepRecord], spans: Iterable[Span], num_steps: int = NUM_STEPS) -> Lanes | None:
    """Of `num_steps` steps from the start of the steady window, or from the middle of a run without one.

    A window near the end is preceded by other steps, and one that is shorter is followed by some. None for a
    run without steps; SuiteError for spans that cannot be.
    """
    if not records:
        return None
    window = steady_window(records, num_steps)
    steady = window if isinstance(window, Window) else None
    first = _first_index(records, steady, num_steps)
    chosen = records[first : first + num_steps]
    start_ns, end_ns = chosen[0].start_ns, max(record.end_ns for record in chosen)
    around = records[max(0, first - 2) : first + num_steps + 2]
    pieces, gaps = _drawn(around, _near(spans, around))
    return Lanes(
        steps=tuple(_step(record, start_ns) for record in chosen),
        pieces=tuple(
            _cut(piece, start_ns, end_ns) for piece in pieces if _is_within(piece, start_ns, end_ns)
        ),
        gaps=tuple(
            gap._replace(
                start_ns=max(gap.start_ns, start_ns) - start_ns, end_ns=min(gap.end_ns, end_ns) - start_ns
            )
            for gap in gaps
            if _is_within(gap, start_ns, end_ns)
        ),
        window=steady,
        not_steady=None if isinstance(window, Window) else window.reason,
    )


def _first_index(records: Sequence[StepRecord], window: Window | None, num_steps: int) -> int:
    wanted = len(records) // 2
    if window is not None:
        ids = [record.step_id for record in records]
        wanted = ids.index(window.first_step_id)
    return max(0, min(wanted, len(records) - num_steps))


def _near(spans: Iterable[Span], around: Sequence[StepRecord]) -> list[Span]:
    """Those of these steps, and the host's of no step that lie among them."""
    ids = {record.step_id for record in around}
    first_ns, last_ns = around[0].start_ns, max(record.end_ns for record in around)
    return [
        span
        for span in spans
        if span.step_id in ids
        or (span.step_id == NO_STEP and span.start_ns is not None and first_ns <= span.start_ns < last_ns)
    ]


def _drawn(records: Sequence[StepRecord], spans: Iterable[Span]) -> tuple[list[LanePiece], list[LaneGap]]:
    timed, _ = by_lane(spans, {record.step_id: record for record in records})
    host = pieces_of(timed["host"])
    drawn = [_piece("host", piece) for piece in host if piece.source is not None]
    for lane in ("compute", "output"):
        found = pieces_of(timed[lane], DEVICE_SLACK_NS)
        drawn += [_piece(lane, piece) for piece in found if piece.source is not None]
    busy = BusyTime(busy_intervals(records, timed["compute"]))
    gaps = [
        LaneGap(item.step_id, item.gap.start_ns, item.gap.end_ns, item.causes)
        for item in idle_gaps(records, busy, host, timed["host"])
    ]
    return drawn, gaps


def _piece(lane: CostLane, piece: Piece) -> LanePiece:
    return LanePiece(lane, piece.name, piece.step_id, piece.start_ns, piece.end_ns)


def _is_within(item: LanePiece | LaneGap, start_ns: int, end_ns: int) -> bool:
    return item.end_ns > start_ns and item.start_ns < end_ns


def _cut(piece: LanePiece, start_ns: int, end_ns: int) -> LanePiece:
    first, last = max(piece.start_ns, start_ns), min(piece.end_ns, end_ns)
    return piece._replace(start_ns=first - start_ns, end_ns=last - start_ns)


def _step(record: StepRecord, start_ns: int) -> LaneStep:
    return LaneStep(
        step_id=record.step_id,
        kind=record.kind,
        ids_route=record.ids_route,
        embeds_route=record.embeds_route,
        num_rows=record.num_rows,
        num_tokens=record.num_tokens,
        num_supplied_rows=record.num_supplied_rows,
        upload_bytes=sum(record.bytes.values()),
        start_ns=record.start_ns - start_ns,
        end_ns=record.end_ns - start_ns,
    )
