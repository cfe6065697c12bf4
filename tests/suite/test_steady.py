"""The steady window: it opens once the batch is what it will be, closes before the drain, or says why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from arm_models import MICRO_QWEN3
from arm_workloads import Arrivals, Recipe, request_of
from records import make_step

from runner.config import RunnerConfig
from runner.core import Request
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.measure import StepRecord
from suite.steady import NotSettled, SteadyWindow, Window, steady_window


def steps(
    rows: Sequence[int], waiting: int | Sequence[int] = 0, kind: str = "decode", **changes: int
) -> list[StepRecord]:
    queue = [waiting] * len(rows) if isinstance(waiting, int) else waiting
    return [
        make_step(index, 0, 0, kind, num_rows=count, num_waiting=left, **changes)
        for index, (count, left) in enumerate(zip(rows, queue, strict=True))
    ]


def window_of(records: Sequence[StepRecord], num_steps: int | None = None) -> Window:
    found = steady_window(records, num_steps)
    assert isinstance(found, Window), found
    return found


def reason_of(records: Sequence[StepRecord]) -> str:
    found = steady_window(records, None)
    assert isinstance(found, NotSettled), found
    return found.reason


# ---- the rule


def test_the_first_step_counts_for_nothing_and_the_window_begins_after_eight_more() -> None:
    assert window_of(steps([64] * 40)) == Window(9, 39, 31, 64, "run")


def test_the_window_begins_once_the_filling_is_behind() -> None:
    rows = [*range(4, 64, 4), *[64] * 30]  # 15 steps of filling: the eighth within 6 of 64 is the 22nd
    found = window_of(steps(rows))
    assert rows[found.first_step_id - 8 : found.first_step_id] == [60, *[64] * 7]


def test_it_ends_before_the_drain_and_not_at_a_dip_that_others_will_fill() -> None:
    rows = [*[64] * 20, 40, *[64] * 20, *range(57, 0, -4)]
    queue = [*range(30, 9, -1), *[0] * 35]
    assert window_of(steps(rows, queue)) == Window(9, 40, 32, 64, "drain")
    assert window_of(steps(rows)).last_step_id == 19, "nothing waits: that dip is a drain"


def test_one_row_less_of_few_is_no_drain() -> None:
    assert window_of(steps([4] * 12 + [3] * 5 + [2] * 5)).last_step_id == 16


def test_it_ends_after_the_number_of_steps_asked_for() -> None:
    assert window_of(steps([64] * 200), 64) == Window(9, 72, 64, 64, "num_steps")
    with pytest.raises(ValueError, match="a window of 0 steps"):
        SteadyWindow(0)


def test_a_slow_filling_does_not_pass_for_a_settled_batch() -> None:
    """A new row every 10 steps, each prompt computed in chunks: nobody has left, and somebody waits."""
    filling = [1 + index // 10 for index in range(200)]
    queue = [20 - rows for rows in filling]
    assert "20 requests wait" in reason_of(steps([1] * 30, 20, "mixed"))
    assert "the batch is being filled" in reason_of(steps(filling[:190], queue[:190], "mixed"))
    leaving = [*steps(filling, queue, "mixed"), *steps([20] * 9, 0, "mixed")]
    assert "prompts were computed" in reason_of(leaving)


def test_a_batch_that_requests_leave_and_join_may_compute_prompts() -> None:
    queue = [30 - index // 4 for index in range(40)]
    found = window_of(steps([16] * 40, queue, "mixed"))
    assert found.first_step_id == 9


def test_one_that_leaves_is_seen_though_another_takes_its_place_at_once() -> None:
    """A closed loop: as many rows at every step, and never anyone waiting."""
    records = [
        make_step(index, 0, 0, "mixed", num_rows=16, num_decode_rows=16 - (index % 3 == 2))
        for index in range(40)
    ]
    assert window_of(records).first_step_id == 9
    preempted = [replace(record, num_preempted=record.step_id < 20) for record in records]
    assert window_of(preempted).first_step_id == 28
    assert "none has left" in reason_of([replace(record, num_decode_rows=15) for record in records])


def test_one_that_is_preempted_has_not_left() -> None:
    before, after = (steps([16] * 20, kind="mixed", num_decode_rows=count) for count in (15, 14))
    after[0] = replace(after[0], num_preempted=1)
    assert "none has left" in reason_of([*before, *after])


# ---- what is not settled


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "the run has no steps"),
        (steps([4] * 8), "the run has 8 steps; 10 are the least that can do"),
        (steps([4] * 9), "the batch settled, but no step came before it drained"),
        (steps([64, 50] * 20), "the last 8 steps have from 50 to 64 rows"),
        (steps([64] * 40, num_preempted=1), "requests were preempted in the last 8 steps"),
        (steps([2] * 40, kind="prefill"), "none has left, and prompts were computed in the last 8 steps"),
    ],
)
def test_a_run_without_a_window_says_why(records: list[StepRecord], reason: str) -> None:
    assert reason_of(records) == reason


# ---- step by step, over the engine's own steps

CONFIG = RunnerConfig(
    max_num_seqs=16,
    max_num_batched_tokens=64,
    max_model_len=128,
    block_size=8,
    num_blocks=512,
)


def requests(count: int, length: int, max_tokens: Sequence[int]) -> list[tuple[int, Request]]:
    recipes = [Recipe("ids", length, max_tokens=max_tokens[i % len(max_tokens)]) for i in range(count)]
    return [(0, request_of(MICRO_QWEN3, f"r{index}", recipe)) for index, recipe in enumerate(recipes)]


def served(arm: str, arrivals: list[tuple[int, Request]]) -> list[StepRecord]:
    engine = Engine(MICRO_QWEN3, CONFIG, NullDevice(MICRO_QWEN3, CONFIG, lambda *_: None), ARMS[arm])
    engine.run(Arrivals(arrivals))
    return engine.recorder.steps


@pytest.mark.parametrize("arm", ["sync-ids", "ids"])
def test_of_a_served_queue_it_is_the_full_batch_between_filling_and_drain(arm: str) -> None:
    records = served(arm, requests(48, 24, (20, 26, 33, 41)))
    found = window_of(records)
    inside = [step for step in records if found.first_step_id <= step.step_id <= found.last_step_id]
    assert found.num_rows == 16
    assert found.end == "drain"
    assert len(inside) == found.num_steps > 40
    assert min(step.num_rows for step in inside) >= 14
    assert {step.kind for step in inside} == {"decode", "mixed"}
    later = records[found.last_step_id + 1 :]
    assert max(step.num_rows for step in later) < 15


@pytest.mark.parametrize("num_steps", [None, 5, 64])
def test_told_step_by_step_it_is_the_same_window(num_steps: int | None) -> None:
    records = served("ids", requests(48, 24, (20, 26, 33, 41)))
    online = SteadyWindow(num_steps)
    opened = []
    inside = []
    for record in records:
        was_open = online.is_open
        if online.update(record):
            inside.append(record.step_id)
            assert was_open, "a capture that begins by is_open would have missed it"
        opened.append(online.is_open)
    found = window_of(records, num_steps)
    assert inside == list(range(found.first_step_id, found.last_step_id + 1))
    assert online.result == found
    assert opened.index(True) == found.first_step_id - 1


def test_few_requests_that_start_and_end_together_settle_in_decode() -> None:
    records = served("sync-ids", requests(4, 60, (40,)))
    found = window_of(records)
    assert {step.kind for step in records[found.first_step_id : found.last_step_id + 1]} == {"decode"}
    assert isinstance(steady_window(served("sync-ids", requests(4, 60, (5,)))), NotSettled)
