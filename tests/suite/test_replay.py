"""A replay has the steps of its first run: the same asks, no clock, and every difference is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from records import make_step

from runner.core import Prompt, Request, SamplingParams
from suite.arrivals import ScheduledArrivals
from suite.replay import RecordedArrivals, RecordedSteps, ReplayedArrivals, first_difference
from suite.workload import WorkloadRequest

BYTES = {"is_token_ids": 64, "step_metadata.0": 400}
COPIES = {"is_token_ids": 1, "step_metadata.0": 1}
STEPS = (
    make_step(0, 0, 1, "mixed", num_rows=2, bytes=BYTES, copies=COPIES),
    make_step(1, 1, 2, "decode", num_rows=2, bytes={"step_metadata.1": 40}, copies={"step_metadata.1": 1}),
)
FIRST = RecordedSteps("first", (0, 0), STEPS, {"a": (5, 6), "b": (7,)}, {"upload.is_token_ids": 1})


def requests(*arrivals_s: float) -> list[WorkloadRequest]:
    return [
        WorkloadRequest(
            request=Request(f"{index}", Prompt((5, 6, 7)), SamplingParams(4)),
            arrival_s=arrival_s,
            kind="text",
            num_image_tokens=0,
        )
        for index, arrival_s in enumerate(arrivals_s)
    ]


def ids(due) -> list[str]:
    return [request.request_id for request in due]


def test_requests_are_handed_over_at_the_ask_they_were_handed_over_at_first() -> None:
    given = requests(0, 0, 0.02, 0.03)
    recorded = RecordedArrivals(ScheduledArrivals(given, is_timed=True))
    recorded.start()
    asked = []
    while recorded.wait() or len(asked) < 4:
        asked.append(ids(recorded.due()))
    assert [name for due in asked for name in due] == ["0", "1", "2", "3"] and len(asked) > 2

    replayed = ReplayedArrivals(given, recorded.handed_at)
    replayed.start()
    again = [ids(replayed.due()) for _ in asked]
    assert again == asked
    assert not replayed.wait()


def test_a_replay_does_not_wait_for_a_clock() -> None:
    given = requests(0, 3600)
    replayed = ReplayedArrivals(given, (0, 2))
    assert ids(replayed.due()) == ["0"]
    assert replayed.wait() and replayed.due() == []
    assert replayed.wait() and ids(replayed.due()) == ["1"]
    assert not replayed.wait()


def test_repeated_uploads_and_nothing_else_may_have_more_copies() -> None:
    tripled = replace(STEPS[0], copies=COPIES | {"is_token_ids": 3}, bytes=BYTES | {"is_token_ids": 3 * 64})
    steps, ids_now = (tripled, STEPS[1]), dict(FIRST.output_ids)
    assert first_difference(FIRST, STEPS, ids_now, {}) is None
    assert first_difference(FIRST, steps, ids_now, {"upload.is_token_ids": 3}) is None
    assert first_difference(FIRST, STEPS, ids_now, {"upload.is_token_ids": 3}) == (
        "step 0 is not the one that first recorded: its copies of is_token_ids should be 3, and are 1"
    )
    assert "copies of is_token_ids should be 1, and are 3" in str(first_difference(FIRST, steps, ids_now, {}))
    assert (
        first_difference(replace(FIRST, steps=steps, repeats={"upload.is_token_ids": 3}), STEPS, ids_now, {})
        is None
    )


def test_both_buffers_of_a_ring_are_repeated_by_the_name_of_one_span() -> None:
    repeats = {"upload.step_metadata": 2}
    doubled = tuple(
        replace(
            step,
            copies={name: n * (2 if "meta" in name else 1) for name, n in step.copies.items()},
            bytes={name: n * (2 if "meta" in name else 1) for name, n in step.bytes.items()},
        )
        for step in STEPS
    )
    assert first_difference(FIRST, doubled, dict(FIRST.output_ids), repeats) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "decode"}, "its kind was mixed, and is decode"),
        ({"num_rows": 3}, "its num_rows was 2, and is 3"),
        ({"num_tokens": 9}, "its num_tokens was 0, and is 9"),
        ({"ids_route": "scatter"}, "its ids_route was host, and is scatter"),
        ({"num_free_blocks": 1}, "its num_free_blocks was 0, and is 1"),
        ({"bytes": BYTES | {"is_token_ids": 65}}, "its bytes of is_token_ids should be 64, and are 65"),
        ({"bytes": BYTES | {"inputs_embeds": 4}}, "its bytes of inputs_embeds should be 0, and are 4"),
        ({"download_bytes": 4}, "its download_bytes was 0, and is 4"),
    ],
)
def test_any_other_step_is_told_by_what_differs(change, words) -> None:
    steps = (replace(STEPS[0], **change), STEPS[1])
    found = first_difference(FIRST, steps, dict(FIRST.output_ids), {})
    assert found == f"step 0 is not the one that first recorded: {words}"


def test_fewer_steps_and_other_tokens_are_told() -> None:
    assert first_difference(FIRST, STEPS[:1], {}, {}) == "first recorded 2 steps, and this run took 1"
    found = first_difference(FIRST, STEPS, {"a": (5, 6), "b": (8,)}, {})
    assert found == "request b has other tokens than in first, whose steps are the same"
