"""Lanes of a few steps: which steps, cut at the edges, gaps with their causes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from runner.measure import StepRecord
from runner.spans import NO_STEP, Span
from suite.errors import SuiteError
from suite.lanes import LaneGap, LanePiece, lanes

STEP_NS = 1_000  # host 0 to 300, handed over at 300, device 400 to 900


def record(step_id: int, **values: Any) -> StepRecord:
    first = STEP_NS * step_id
    known: dict[str, Any] = {item.name: 0 for item in fields(StepRecord)}
    known |= {
        "step_id": step_id,
        "kind": "decode",
        "ids_route": "slice",
        "embeds_route": "merge",
        "num_rows": 4,
        "num_tokens": 4,
        "num_decode_rows": 4,
        "num_supplied_rows": 1,
        "start_ns": first,
        "end_ns": first + 990,
        "device_start_ns": first + 400,
        "device_end_ns": first + 900,
        "copies": {"ids": 1, "flags": 1},
        "bytes": {"ids": 100, "flags": 4},
    }
    return StepRecord(**(known | values))


def spans_of(step_id: int) -> list[Span]:
    first = STEP_NS * step_id
    return [
        Span(step_id, "schedule", "host", first, first + 200),
        Span(step_id, "launch", "host", first + 200, first + 300),
        Span(step_id, "wait.output", "host", first + 300, first + 980),
        Span(step_id, "forward", "compute", first + 400, first + 900),
    ]


def run(count: int) -> tuple[list[StepRecord], list[Span]]:
    return [record(number) for number in range(count)], [
        span for number in range(count) for span in spans_of(number)
    ]


def test_the_steps_begin_with_the_steady_window() -> None:
    records, spans = run(40)
    found = lanes(records, spans, 3)
    assert found is not None and found.window is not None
    ids = [step.step_id for step in found.steps]
    assert ids == [found.window.first_step_id + i for i in range(3)]
    assert found.not_steady is None


def test_times_are_since_the_first_of_the_steps_was_planned() -> None:
    records, spans = run(40)
    found = lanes(records, spans, 2)
    assert found is not None
    first = found.steps[0]
    assert (first.start_ns, first.end_ns, first.upload_bytes) == (0, 990, 104)
    own = [piece for piece in found.pieces if piece.step_id == first.step_id]
    assert own == [
        LanePiece("host", "schedule", first.step_id, 0, 200),
        LanePiece("host", "launch", first.step_id, 200, 300),
        LanePiece("host", "wait.output", first.step_id, 300, 980),
        LanePiece("compute", "forward", first.step_id, 400, 900),
    ]


def test_a_gap_belongs_to_the_step_that_ends_it_and_is_laid_to_what_the_host_did() -> None:
    records, spans = run(40)
    found = lanes(records, spans, 2)
    assert found is not None
    second = found.steps[1].step_id
    causes = {"wait.output": 80, "unattributed": 20, "schedule": 200, "launch": 100, "handoff": 100}
    assert [gap for gap in found.gaps if gap.step_id == second] == [LaneGap(second, 900, 1_400, causes)]


def test_what_reaches_over_the_edges_is_cut_there() -> None:
    records, spans = run(40)
    first = 9  # the steady window's
    late = Span(first - 1, "download", "output", STEP_NS * first - 100, STEP_NS * first + 150)
    found = lanes(records, [*spans, late], 2)
    assert found is not None and found.steps[0].step_id == first
    assert LanePiece("output", "download", first - 1, 0, 150) in found.pieces
    assert max(piece.end_ns for piece in found.pieces) <= 1_990
    (before,) = [gap for gap in found.gaps if gap.start_ns == 0]
    assert before.end_ns == 400  # it began before the first of these steps was planned


def test_steps_and_spans_far_away_change_nothing() -> None:
    records, spans = run(40)
    far = Span(NO_STEP, "wait.arrivals", "host", 10**9, 10**9 + 5, None)
    assert lanes(records, [*spans, far], 2) == lanes(records, spans, 2)


def test_a_run_that_never_settles_is_shown_from_its_middle_and_it_is_said() -> None:
    records, spans = run(6)
    found = lanes(records, spans, 2)
    assert found is not None
    assert [step.step_id for step in found.steps] == [3, 4]
    assert found.window is None and found.not_steady is not None and "6 steps" in found.not_steady


def test_a_run_shorter_than_the_picture_is_shown_whole() -> None:
    records, spans = run(3)
    found = lanes(records, spans, 12)
    assert found is not None and [step.step_id for step in found.steps] == [0, 1, 2]


def test_a_run_without_steps_has_none() -> None:
    assert lanes([], []) is None


def test_spans_that_cannot_be_are_refused() -> None:
    records, spans = run(4)
    with pytest.raises(SuiteError, match="cannot end before it starts"):
        lanes(records, [*spans, Span(2, "forward", "compute", 2_500, 2_400)])
