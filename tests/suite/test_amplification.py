"""The slope of step time on repeats: from synthetic steps of known cost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from records import make_step

from runner.measure import StepRecord
from runner.repeats import NO_REPEATS, Turn
from runner.spans import Span
from suite import slopes
from suite.amplification import (
    Estimate,
    amplified_costs,
    command_times,
    estimate,
    largest_k,
    same_steps,
    slopes_us,
)
from suite.slopes import AmplifiedRun, step_times_us
from suite.turns import shuffled_turns

FLAGS, MERGE = "upload.is_token_ids", "merge"
TURNS: tuple[Turn, ...] = (NO_REPEATS, NO_REPEATS, (FLAGS, 33), (FLAGS, 257), (MERGE, 9), ("lookup", 5))
KINDS = ("prefill", *["mixed", "decode"] * 10)
TimeOf = Callable[[AmplifiedRun, int, str], float]


def steps_of(
    time_us: Callable[[int, str], float], kinds: Sequence[str] = KINDS, waiting_us: float = 0
) -> list[StepRecord]:
    """Steps one behind the other on the device, each as long as asked for, a wait for its launch included."""
    end_ns, steps = 1_000_000, []
    for step_id, kind in enumerate(kinds):
        start_ns = end_ns + round(1000 * waiting_us)
        end_ns += round(1000 * time_us(step_id, kind))
        steps.append(make_step(step_id, 0, 0, kind, device_start_ns=start_ns, device_end_ns=end_ns))
    return steps


def rounds_of(
    num_rounds: int,
    time_us: TimeOf,
    is_async: bool = False,
    turns: Sequence[Turn] = TURNS,
    seed: int = 5,
    waiting_us: float = 0,
) -> list[AmplifiedRun]:
    """Whole rounds; `time_us` is asked of each run (without its steps), step and kind."""
    draw = random.Random(seed)
    empty = [
        AmplifiedRun(number, (), of_run, is_async)
        for number in range(num_rounds)
        for of_run in shuffled_turns(turns, draw)
    ]
    return [
        replace(
            run, steps=steps_of(lambda step_id, kind, run=run: time_us(run, step_id, kind), KINDS, waiting_us)
        )
        for run in empty
    ]


def cost_of(runs: Sequence[AmplifiedRun], kind: str = "decode", span: str = FLAGS) -> Estimate:
    names = dict.fromkeys(name for run in runs for name, _ in run.turns if name)
    pairs = [(name, of_kind) for name in names for of_kind in ("decode", "mixed")]
    return estimate(slopes_us(runs, pairs)[span, kind])


def dummy_column_fit(columns: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """The same least squares with a column for each step: coefficients, predictions, and whether all is told.

    `kept` entries alone have a value; NaN stands for the others.
    """
    num_runs, num_steps, _ = columns.shape
    of_steps = np.tile(np.eye(num_steps), (num_runs, 1))
    design = np.hstack([of_steps, columns.reshape(num_runs * num_steps, -1)])
    flat = values.ravel()
    kept = ~np.isnan(flat)
    found, _, rank, _ = np.linalg.lstsq(design[kept], flat[kept], rcond=None)
    return found[num_steps:], (design @ found).reshape(values.shape), bool(rank == design.shape[1])


@pytest.mark.parametrize("seed", range(8))
def test_taking_the_steps_levels_out_is_the_fit_with_a_column_for_each_step(seed: int) -> None:
    draw = np.random.default_rng(seed)
    num_runs, num_steps = int(draw.integers(2, 8)), int(draw.integers(5, 40))
    of_runs = np.zeros((num_runs, num_steps, num_runs - 1))
    for run in range(1, num_runs):
        of_runs[run, :, run - 1] = 1
    added = draw.choice([0.0, 0.0, 8.0, 4095.0], (num_runs, num_steps, 2)) / 900
    columns = np.concatenate([of_runs, added], axis=-1)
    values = draw.normal(1, 0.1, (num_runs, num_steps))
    values[draw.random(values.shape) < 0.1] = np.nan
    expected, predicted, is_told = dummy_column_fit(columns, values)
    kept = ~np.isnan(values)
    fit = slopes._fit_within_steps(columns, np.where(kept, values, 1e6), kept)
    assert (fit is not None) is is_told
    if fit is not None:
        assert fit[0] == pytest.approx(expected, abs=1e-9) and fit[1] == pytest.approx(predicted, abs=1e-9)


def test_columns_that_the_steps_explain_or_a_step_without_any_run_cannot_be_told() -> None:
    column = np.zeros((3, 4, 1))
    column[1] = 1
    values, all_kept = np.ones((3, 4)), np.ones((3, 4), dtype=np.bool_)
    assert slopes._fit_within_steps(column, values, all_kept) is not None
    alike = np.full((3, 4, 1), 0.1) * np.arange(4)[:, np.newaxis]
    assert slopes._fit_within_steps(np.concatenate([column, alike], axis=-1), values, all_kept) is None
    without = all_kept.copy()
    without[:, 2] = False
    assert slopes._fit_within_steps(column, values, without) is None


def test_a_round_of_many_long_runs_is_fitted_in_a_moment() -> None:
    spans = [f"span{number}" for number in range(12)]
    turns: list[Turn] = [*[NO_REPEATS] * 5, *[(span, 9 + number) for number, span in enumerate(spans)]]
    kinds = ["prefill", *["mixed", "decode"] * 1000]
    draw = random.Random(1)
    runs = []
    for of_run in shuffled_turns(turns, draw):
        run = AmplifiedRun(0, (), of_run)
        times = steps_of(lambda step_id, _, run=run: 900 + 7 * run.k("span3", step_id), kinds)
        runs.append(replace(run, steps=times))
    pairs = [(span, kind) for span in spans for kind in ("decode", "mixed")]
    begin_s = time.perf_counter()
    found = slopes.round_slopes_us(runs, pairs, True)
    assert time.perf_counter() - begin_s < 2 and len(runs) == 17
    assert found["span3", "decode"] == pytest.approx(7, abs=1e-3)
    assert found["span4", "mixed"] == pytest.approx(0, abs=1e-3)


def test_a_steps_time_runs_from_device_end_to_device_end_and_the_first_has_none() -> None:
    assert step_times_us(steps_of(lambda step_id, _: 10.0 * step_id, KINDS[:4])) == {1: 10, 2: 20, 3: 30}
    assert step_times_us([]) == {}


def test_known_slopes_are_found_exactly_whatever_else_a_step_takes() -> None:
    def time_us(run: AmplifiedRun, step_id: int, kind: str) -> float:
        flags = 3 if kind == "decode" else 8
        return 900 + 37 * step_id + flags * run.k(FLAGS, step_id) + 40 * run.k(MERGE, step_id)

    for is_async in (False, True):
        runs = rounds_of(5, time_us, is_async)
        decode = cost_of(runs)
        assert decode.mean_us == pytest.approx(3, abs=1e-3) and decode.num_rounds == 5 and decode.is_decided
        assert decode.low_us == pytest.approx(3, abs=1e-3) and decode.high_us == pytest.approx(3, abs=1e-3)
        assert cost_of(runs, "mixed").mean_us == pytest.approx(8, abs=1e-3)
        assert cost_of(runs, "decode", MERGE).mean_us == pytest.approx(40, abs=1e-3)
        assert cost_of(runs, "mixed", "lookup").mean_us == pytest.approx(0, abs=1e-3)


def test_a_machine_that_gets_slower_and_runs_that_are_slow_as_a_whole_change_nothing() -> None:
    def time_us(run: AmplifiedRun, step_id: int, kind: str) -> float:
        plain = 2000 * (1 + run.round / 5) * (1.5 if run.turns[0] == NO_REPEATS else 1)
        return plain + 2 * run.k(FLAGS, step_id)

    assert cost_of(rounds_of(6, time_us)).mean_us == pytest.approx(2, abs=0.1)


def test_a_few_steps_that_stood_still_do_not_move_the_slope() -> None:
    draw = random.Random(2)

    def time_us(run: AmplifiedRun, step_id: int, kind: str) -> float:
        return 1000 + 2 * run.k(FLAGS, step_id) + draw.gauss(0, 5) + 50_000 * (draw.random() < 0.05)

    found = cost_of(rounds_of(8, time_us))
    assert found.mean_us == pytest.approx(2, abs=0.05) and found.is_decided


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw = random.Random(7)

    def time_us(run: AmplifiedRun, step_id: int, kind: str) -> float:
        return 1000 + 5 * run.k(FLAGS, step_id) + draw.expovariate(1 / 200)

    hits = 0
    for seed in range(100):
        found = cost_of(rounds_of(5, time_us, bool(seed % 2), (NO_REPEATS, (FLAGS, 65)), seed))
        assert found.low_us is not None and found.high_us is not None
        hits += found.low_us <= 5 <= found.high_us
    assert 88 <= hits <= 100


def test_what_costs_nothing_is_hardly_ever_decided_and_has_an_upper_bound() -> None:
    draw, decided = random.Random(3), 0

    def time_us(run: AmplifiedRun, step_id: int, kind: str) -> float:
        return 1000 + draw.gauss(0, 50)

    for seed in range(60):
        runs = rounds_of(6, time_us, False, (NO_REPEATS, (FLAGS, 65)), seed)
        line = next(cost for cost in amplified_costs(runs, None, (), [FLAGS]) if cost.kind == "decode")
        assert line.cost is not None and line.upper_us is not None and 0 <= line.upper_us < 3
        decided += line.cost.is_decided
    assert decided <= 8


def test_under_async_what_the_next_step_has_less_to_wait_for_counts_against_the_cost() -> None:
    """A step longer by 2 us a repeat, whose next one is shorter by as much: nothing is exposed."""

    def time_us(run: AmplifiedRun, step_id: int, kind: str) -> float:
        hidden = 2 * (run.k(FLAGS, step_id - 1) - 1) if step_id else 0
        return 2000 + 2 * run.k(FLAGS, step_id) - hidden

    hidden = cost_of(rounds_of(8, time_us, True, waiting_us=600))
    shown = cost_of(rounds_of(8, time_us, True, waiting_us=15))
    assert abs(hidden.mean_us) < 0.01
    assert shown.mean_us == pytest.approx(2, abs=0.7) and shown.is_decided


@pytest.mark.parametrize("is_async", [False, True])
def test_what_comes_behind_a_turn_does_not_count_as_its_own(is_async: bool) -> None:
    """With two turns, the step behind a repeated one is likelier to be plain than not in a careless deal."""

    def time_us(run: AmplifiedRun, step_id: int, kind: str) -> float:
        return 6000 + 100 * run.k(FLAGS, step_id)

    found = cost_of(rounds_of(5, time_us, is_async, (NO_REPEATS, (FLAGS, 7))))
    assert found.mean_us == pytest.approx(100, rel=1e-3)


def test_fewer_than_five_rounds_decide_nothing_and_one_has_no_interval() -> None:
    def time_us(run: AmplifiedRun, step_id: int, kind: str) -> float:
        return 1000 + 3 * run.k(FLAGS, step_id) + run.round

    four, one = cost_of(rounds_of(4, time_us)), cost_of(rounds_of(1, time_us))
    assert four.low_us is not None and four.low_us > 0 and not four.is_decided
    assert (one.mean_us, one.low_us, one.is_decided) == (pytest.approx(3, abs=1e-3), None, False)


def test_a_round_cut_short_where_nothing_can_be_told_apart_is_left_out() -> None:
    def time_us(run: AmplifiedRun, step_id: int, kind: str) -> float:
        return 1000 + 3 * run.k(FLAGS, step_id)

    *whole, _ = rounds_of(6, time_us, False, (NO_REPEATS, (FLAGS, 33)))
    assert cost_of(whole).num_rounds == 5
    (line,) = [cost for cost in amplified_costs(whole[-1:], None, (), [FLAGS]) if cost.kind == "decode"]
    assert line.cost is None and line.share is None and line.upper_us is None


def test_a_run_with_other_steps_is_not_held_against_the_rest() -> None:
    def time_us(run: AmplifiedRun, step_id: int, kind: str) -> float:
        return 1000 + 2 * run.k(FLAGS, step_id)

    runs = rounds_of(5, time_us)
    other = AmplifiedRun(0, steps_of(lambda _id, _kind: 5000, KINDS[:-1]), TURNS)
    assert same_steps([*runs, other]) == runs
    lines = amplified_costs([*runs, other], None, (), [FLAGS])
    assert {line.kind for line in lines} == {"decode", "mixed"}
    assert all(line.cost is not None and line.cost.mean_us == pytest.approx(2, abs=1e-3) for line in lines)


def test_what_is_repeated_in_a_lead_in_step_is_in_no_line() -> None:
    lead_in = frozenset(range(1, len(KINDS), 4))  # every other mixed step

    def time_us(run: AmplifiedRun, step_id: int, kind: str) -> float:
        return 5000 + 90 * run.k(FLAGS, step_id) if step_id in lead_in else 1000 + 2 * run.k(FLAGS, step_id)

    runs = [replace(run, lead_in=lead_in) for run in rounds_of(5, time_us)]
    lines = {line.kind: line for line in amplified_costs(runs, None, (), [FLAGS])}
    for line in lines.values():
        assert line.cost is not None and line.cost.mean_us == pytest.approx(2, abs=1e-3)
        assert line.step_us == pytest.approx(1002, rel=1e-3)
    assert (lines["mixed"].num_steps, lines["decode"].num_steps) == (5, 10)
    billed = {line.kind: line for line in amplified_costs(rounds_of(5, time_us), None, (), [FLAGS])}
    assert billed["mixed"].step_us > 1500  # what it was while they were counted


def test_device_and_enqueue_time_come_from_the_instrumented_run_by_kind_of_step() -> None:
    steps = steps_of(lambda _id, _kind: 1000, ("prefill", "mixed", "decode", "decode"))
    spans = [
        Span(step_id, FLAGS, "compute", 0, duration)
        for step_id, duration in ((0, 90_000), (1, 70_000), (2, 4_000), (2, 6_000), (3, 5_000), (3, 9_000))
    ]
    found = command_times(steps, spans, FLAGS, "decode")
    assert (found.per_step, found.device_us, found.device_reason) == (2.0, 5.5, None)
    assert found.enqueue_us is None and found.enqueue_reason is not None
    enqueued = [*spans, Span(2, FLAGS, "host", 100, 1_100), Span(3, FLAGS, "host", 100, 3_100)]
    assert command_times(steps, enqueued, FLAGS, "decode").enqueue_us == 2.0
    unread = [Span(2, FLAGS, "compute", None, None, "never recorded")]
    lost = command_times(steps, unread, FLAGS, "decode")
    assert (lost.per_step, lost.device_us, lost.device_reason) == (0.5, None, "never recorded")


def test_a_span_has_a_line_only_for_kinds_of_steps_that_run_it() -> None:
    def time_us(run: AmplifiedRun, step_id: int, kind: str) -> float:
        return 1000 + 2 * run.k(FLAGS, step_id) * (kind == "mixed")

    runs = rounds_of(5, time_us, False, (NO_REPEATS, (FLAGS, 9)))
    seen = steps_of(lambda _id, _kind: 1000)
    spans = [Span(step.step_id, FLAGS, "compute", 0, 800) for step in seen if step.kind == "mixed"]
    (line,) = amplified_costs(runs, seen, spans, [FLAGS, MERGE])
    assert (line.span, line.kind, line.ks, line.num_steps) == (FLAGS, "mixed", (1, 9), 10)
    assert line.step_us == pytest.approx(1002)
    assert line.share == pytest.approx(2 / 1002, rel=1e-3)
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
