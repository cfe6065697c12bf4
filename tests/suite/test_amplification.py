"""The slope of step time on the number of repeats: from synthetic steps of known cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from records import make_step

from runner.measure import StepRecord
from runner.repeats import NO_REPEATS, Turn, repeats_in
from runner.spans import Span
from suite.amplification import (
    AmplifiedRun,
    amplified_costs,
    command_times,
    estimate,
    largest_k,
    round_slopes_us,
    same_steps,
    step_times_us,
)
from suite.turns import balanced_turns

SPAN = "upload.is_token_ids"
KINDS = ("prefill", *["mixed", "decode"] * 10)


def steps_of(time_us: Callable[[int, str], float], kinds: Sequence[str] = KINDS) -> list[StepRecord]:
    """Steps one behind the other on the device, each as long as asked for."""
    end_ns, steps = 1_000_000, []
    for step_id, kind in enumerate(kinds):
        start_ns = end_ns
        end_ns += round(1000 * time_us(step_id, kind))
        steps.append(make_step(step_id, 0, 0, kind, device_start_ns=start_ns, device_end_ns=end_ns))
    return steps


def run_of(number: int, k: int, time_us: Callable[[int, str], float], span: str = SPAN) -> AmplifiedRun:
    return AmplifiedRun(number, steps_of(time_us), {span: k})


def rounds_of(
    num_rounds: int, time_us: Callable[[int, int, int, str], float], ks: Sequence[int] = (1, 33, 257)
) -> list[AmplifiedRun]:
    """`time_us(round, k, step_id, kind)`."""

    def timed(number: int, k: int) -> Callable[[int, str], float]:
        return lambda step_id, kind: time_us(number, k, step_id, kind)

    return [run_of(number, k, timed(number, k)) for number in range(num_rounds) for k in ks]


def cost_of(runs: Sequence[AmplifiedRun], kind: str = "decode"):
    return estimate(list(round_slopes_us(runs, SPAN, kind).values()))


def test_a_steps_time_runs_from_device_end_to_device_end_and_the_first_has_none() -> None:
    assert step_times_us(steps_of(lambda step_id, _: 10.0 * step_id, KINDS[:4])) == {1: 10, 2: 20, 3: 30}
    assert step_times_us([]) == {}


def test_a_known_slope_is_found_exactly_whatever_else_a_step_takes() -> None:
    runs = rounds_of(5, lambda _n, k, step_id, kind: 900 + 37 * step_id + k * (3 if kind == "decode" else 8))
    decode, mixed = cost_of(runs), cost_of(runs, "mixed")
    assert decode.mean_us == pytest.approx(3) and mixed.mean_us == pytest.approx(8)
    assert decode.low_us == pytest.approx(3) and decode.high_us == pytest.approx(3)
    assert decode.num_rounds == 5 and decode.is_decided


def test_a_machine_that_gets_slower_from_round_to_round_changes_nothing() -> None:
    runs = rounds_of(6, lambda number, k, _id, _kind: 1000 + 400 * number + 2 * k)
    assert cost_of(runs).mean_us == pytest.approx(2)


def test_a_few_steps_that_stood_still_do_not_move_the_slope() -> None:
    def time_us(number: int, k: int, step_id: int, _kind: str) -> float:
        stall = 50_000 if k == 257 and step_id in (2, 4) else 0
        return 1000 + 2 * k + stall

    found = cost_of(rounds_of(5, time_us))
    assert found.mean_us == pytest.approx(2)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw = random.Random(7)
    hits = decided = 0
    for _ in range(200):
        runs = rounds_of(5, lambda _n, k, _id, _kind: 1000 + 5 * k + draw.expovariate(1 / 200), (1, 65))
        found = cost_of(runs)
        assert found.low_us is not None and found.high_us is not None
        hits += found.low_us <= 5 <= found.high_us
        decided += found.is_decided
    assert 180 <= hits <= 199
    assert decided >= 100


def test_what_costs_nothing_is_hardly_ever_decided_and_has_an_upper_bound() -> None:
    draw, decided = random.Random(3), 0
    for _ in range(100):
        runs = rounds_of(8, lambda _n, _k, _id, _kind: 1000 + draw.gauss(0, 50))
        line = next(cost for cost in amplified_costs(runs, None, (), [SPAN]) if cost.kind == "decode")
        assert line.cost is not None and line.upper_us is not None and 0 <= line.upper_us < 1
        decided += line.cost.is_decided
    assert decided <= 10


def test_fewer_than_five_rounds_decide_nothing_and_one_has_no_interval() -> None:
    def time_us(number: int, k: int, _id: int, _kind: str) -> float:
        return 1000 + 3 * k + number

    four, one = cost_of(rounds_of(4, time_us)), cost_of(rounds_of(1, time_us))
    assert four.low_us is not None and four.low_us > 0 and not four.is_decided
    assert (one.mean_us, one.low_us, one.is_decided) == (pytest.approx(3), None, False)


def turned(num_rounds: int, is_async: bool, time_us: Callable[[AmplifiedRun, int], float]):
    """Runs whose steps have turns, `time_us` of a run without steps and a step."""
    turns: list[Turn] = [NO_REPEATS, (SPAN, 65), ("merge", 9), ("lookup", 5)]
    draw = random.Random(5)
    empty = [
        AmplifiedRun(number, (), {SPAN: 65, "merge": 9, "lookup": 5}, of_run, is_async)
        for number in range(num_rounds)
        for of_run in balanced_turns(turns, draw)
    ]
    return [
        replace(run, steps=steps_of(lambda step_id, _kind, run=run: time_us(run, step_id))) for run in empty
    ]


def k_in(run: AmplifiedRun, span: str, step_id: int) -> int:
    return repeats_in(step_id, run.repeats, run.turns).get(span, 1)


def test_runs_that_are_slow_as_a_whole_move_nothing_where_steps_take_turns() -> None:
    speeds = random.Random(1)

    def time_us(run: AmplifiedRun, step_id: int) -> float:
        slow = 1000 if run.turns[0] == NO_REPEATS else 0  # the run of a round that begins plain
        return (
            2000 + slow + 2 * k_in(run, SPAN, step_id) + 40 * k_in(run, "merge", step_id) + speeds.gauss(0, 9)
        )

    runs = turned(6, False, time_us)
    assert cost_of(runs).mean_us == pytest.approx(2, abs=4)
    found = estimate(list(round_slopes_us(runs, "merge", "decode").values()))
    assert found.low_us is not None and found.high_us is not None
    assert found.low_us <= 40 <= found.high_us


def test_under_async_what_the_next_step_has_less_to_wait_for_counts_against_the_cost() -> None:
    """A step longer by 2 us a repeat, whose next one is shorter by as much: nothing is exposed."""

    def time_us(run: AmplifiedRun, step_id: int) -> float:
        hidden = 2 * (k_in(run, SPAN, step_id - 1) - 1) if step_id else 0
        return 2000 + 2 * k_in(run, SPAN, step_id) - hidden

    shown = cost_of(turned(8, False, time_us))
    hidden = cost_of(turned(24, True, time_us))
    assert shown.is_decided and shown.low_us is not None and shown.low_us > 1
    assert not hidden.is_decided and abs(hidden.mean_us) < 0.5


def test_only_the_rounds_own_baseline_and_repeats_are_compared() -> None:
    """In one round another span is repeated too: those runs say nothing about this one."""
    runs = rounds_of(5, lambda _n, k, _id, _kind: 1000 + 2 * k, (1, 9))
    runs += [run_of(number, 65, lambda _id, _kind: 9000, "merge") for number in range(5)]
    runs.append(run_of(5, 9, lambda _id, _kind: 1018))  # interrupted before its baseline
    slopes = round_slopes_us(runs, SPAN, "decode")
    assert list(slopes) == [0, 1, 2, 3, 4]
    assert list(slopes.values()) == pytest.approx([2] * 5)
    merge = round_slopes_us(runs, "merge", "decode")
    assert list(merge.values()) == pytest.approx([(9000 - 1002) / 64] * 5)


def test_a_run_with_other_steps_is_not_held_against_the_rest() -> None:
    runs = rounds_of(5, lambda _n, k, _id, _kind: 1000 + 2 * k, (1, 9))
    other = AmplifiedRun(0, steps_of(lambda _id, _kind: 5000, KINDS[:-1]), {SPAN: 9})
    assert same_steps([*runs, other]) == runs
    lines = amplified_costs([*runs, other], None, (), [SPAN])
    assert {line.kind for line in lines} == {"decode", "mixed"}
    assert all(line.cost is not None and line.cost.mean_us == pytest.approx(2) for line in lines)


def test_device_and_enqueue_time_come_from_the_instrumented_run_by_kind_of_step() -> None:
    steps = steps_of(lambda _id, _kind: 1000, ("prefill", "mixed", "decode", "decode"))
    spans = [
        Span(step_id, SPAN, "compute", 0, duration)
        for step_id, duration in ((0, 90_000), (1, 70_000), (2, 4_000), (2, 6_000), (3, 5_000), (3, 9_000))
    ]
    found = command_times(steps, spans, SPAN, "decode")
    assert (found.per_step, found.device_us, found.device_reason) == (2.0, 5.5, None)
    assert found.enqueue_us is None and found.enqueue_reason is not None
    enqueued = [*spans, Span(2, SPAN, "host", 100, 1_100), Span(3, SPAN, "host", 100, 3_100)]
    assert command_times(steps, enqueued, SPAN, "decode").enqueue_us == 2.0
    unread = [Span(2, SPAN, "compute", None, None, "never recorded")]
    lost = command_times(steps, unread, SPAN, "decode")
    assert (lost.per_step, lost.device_us, lost.device_reason) == (0.5, None, "never recorded")


def test_a_span_has_a_line_only_for_kinds_of_steps_that_run_it() -> None:
    runs = rounds_of(5, lambda _n, k, _id, _kind: 1000 + 2 * k, (1, 9))
    spans = [Span(step.step_id, SPAN, "compute", 0, 800) for step in runs[0].steps if step.kind == "mixed"]
    (line,) = amplified_costs(runs, runs[0], spans, [SPAN, "merge"])
    assert (line.span, line.kind, line.ks, line.num_steps) == (SPAN, "mixed", (1, 9), 10)
    assert line.step_us == pytest.approx(1002)
    assert line.share == pytest.approx(2 / 1002)
    assert line.times.device_us == 0.8


@pytest.mark.parametrize(
    ("command_us", "per_step", "step_us", "k"),
    [
        (10, 1, 10_000, 101),
        (10, 2, 10_000, 51),
        (0.01, 1, 10_000, 4096),
        (5000, 1, 10_000, 2),
        (0, 1, 1, 4096),
    ],
)
def test_repeats_make_a_tenth_of_the_step(command_us, per_step, step_us, k) -> None:
    assert largest_k(command_us, per_step, step_us, 4096) == k
