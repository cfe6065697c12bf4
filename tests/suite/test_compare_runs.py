"""Which runs of two folders belong together, what enters, and what is said of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from compared_folders import CASE_ID, experiment, rounds_of

from suite.case_design import Design
from suite.checks import Finding
from suite.compare_runs import NO_DIRECTION, OTHER_WORKLOAD, WRONG_BASE, Side, compare_sides
from suite.comparison import WRONG_ARM, WRONG_TOKENS
from suite.ratios import unpaired_ratio
from suite.record import Status
from suite.verdict import NO_FLOOR, UNSTEADY, Word

DESIGN = {("smoke", CASE_ID): Design("sync-ids", ("output_throughput",))}


def side(name, runs, findings=(), interleaved=None):
    return Side(name, tuple(runs), DESIGN, tuple(findings), interleaved)


def compared(base, *heads, metrics=(), more=()):
    named = [side(f"head{number}", runs) for number, runs in enumerate(heads)]
    return compare_sides(side("base", base), named, metrics, more)


def words(found):
    return {one.arm: one.verdict.word for one in found.differences}


def test_planted_changes_are_told_by_arm_and_no_change_is_equal():
    base = experiment(1, ids=1.2, refresh=1.1, skip=1.0)
    head = experiment(2, ids=1.2 * 1.03, refresh=1.1 * 0.97, skip=1.0)
    found = compared(base, head)
    told = {
        "sync-ids": Word.EQUAL,
        "ids": Word.FASTER,
        "refresh": Word.SLOWER,
        "skip": Word.EQUAL,
    }
    assert words(found) == told and found.unmatched == ()
    ids = next(one for one in found.differences if one.arm == "ids")
    assert ids.ratio.value == pytest.approx(1.03, abs=0.004)
    assert (ids.pairing, ids.base_middle.num_rounds, ids.head_middle.num_rounds) == ("unpaired", 10, 10)
    assert ids.head_middle.value == pytest.approx(3 * 1.2 * 1.03, rel=0.01)


def test_cases_are_matched_by_content_and_never_by_name():
    other = [run.model_copy(update={"case_id": "f" * 16}) for run in experiment(2)]
    found = compared(experiment(1), other)
    assert found.differences == ()
    assert len(found.unmatched) == 2
    assert all("its content differs" in text for text in found.unmatched)
    renamed = [run.model_copy(update={"scenario": "renamed"}) for run in experiment(2)]
    assert words(compared(experiment(1), renamed)) == {"sync-ids": Word.EQUAL}


def test_an_arm_or_a_case_that_only_one_run_has_is_named():
    found = compared(experiment(1, ids=1.1), experiment(2, skip=1.1))
    assert list(words(found)) == ["sync-ids"]
    assert found.unmatched == (
        f"the case smoke ({CASE_ID}): arm ids of base has no partner in head0",
        f"the case smoke ({CASE_ID}): arm skip of head0 has no partner in base",
    )


def test_the_same_case_with_other_requests_is_not_compared():
    other = [run.model_copy(update={"workload_hash": "11"}) for run in experiment(2)]
    (one,) = compared(experiment(1), other).differences
    assert (one.verdict.word, one.verdict.reason) == (Word.CANNOT_TELL, OTHER_WORKLOAD)


def test_wrong_tokens_get_no_verdict_and_neither_does_an_arm_that_is_wrong_by_design():
    wrong, control = rounds_of("ids", 1.5, num_wrong=1), rounds_of("stale", 1.5, is_control=True)
    base = experiment(1, ids=1.0, stale=1.0)
    found = {one.arm: one for one in compared(base, [*experiment(2), *wrong, *control]).differences}
    assert (found["ids"].verdict.word, found["ids"].verdict.reason) == (Word.NONE, WRONG_TOKENS)
    assert (found["stale"].verdict.word, found["stale"].verdict.reason) == (Word.NONE, WRONG_ARM)
    found = compared([*experiment(1), *wrong], experiment(2, ids=1.0))
    ids = next(one for one in found.differences if one.arm == "ids")
    assert (ids.verdict.word, ids.verdict.reason) == (Word.CANNOT_TELL, WRONG_BASE)


def test_runs_that_broke_a_rule_or_did_not_finish_do_not_enter():
    head = experiment(2)
    head = [
        run.model_copy(update={"status": Status.FAILED}) if run.round == 3 and not run.is_aa else run
        for run in head
    ]
    finding = Finding("sync-ids-r0", "off-schedule", "seen", "remedy", True)
    few = Finding("sync-ids-r1", "too-few-rounds", "seen", "remedy", True)
    (one,) = compare_sides(side("base", experiment(1)), [side("head", head, [finding, few])]).differences
    assert (one.ratio.num_rounds, one.ratio.num_under) == (8, 10)
    assert one.notes == ("head: 1 of 9 rounds INVALID (off-schedule)",)
    assert one.document()["notes"] == list(one.notes)
    (one,) = compare_sides(side("base", experiment(1), [finding]), [side("head", experiment(2))]).differences
    assert (one.ratio.num_rounds, one.ratio.num_under) == (10, 9)


def test_where_a_side_has_no_data_the_metrics_own_reason_is_told():
    (one,) = compared(experiment(1), experiment(2), metrics=("request_goodput",)).differences
    assert (one.verdict.word, one.verdict.reason) == (
        Word.CANNOT_TELL,
        "no data in base: no goodput gates are set",
    )
    failed = [run.model_copy(update={"status": Status.FAILED}) for run in experiment(2)]
    (one,) = compared(experiment(1), failed).differences
    assert one.verdict.reason == "no data in head0: no round of it counts"
    assert (one.base_middle.num_rounds, one.head_middle.num_rounds) == (10, 0)


def test_the_floor_is_the_wider_of_both_runs_and_missing_where_one_has_none():
    loud = [
        run.model_copy(update={"metrics": scaled(run, math.exp(0.04 * (-1) ** run.round))})
        if run.is_aa
        else run
        for run in experiment(2)
    ]
    (one,) = compared(experiment(1), loud).differences
    (swapped,) = compared(loud, experiment(1)).differences
    assert one.floor.value == swapped.floor.value and one.floor.value > 0.02
    quiet = [run for run in experiment(2) if not run.is_aa]
    (one,) = compared(experiment(1), quiet).differences
    assert one.verdict.word is Word.CANNOT_TELL and one.verdict.reason == f"head0: {NO_FLOOR}"
    unsteady = [*quiet, *rounds_of("sync-ids", 1.02, 2, is_aa=True)]
    for other, least in ((experiment(1), 0.02), (loud, 0.02), (unsteady, 0.04)):
        (one,) = compared(unsteady, other).differences
        assert one.floor.is_unsteady and one.floor.value is None and least < one.floor.shift < least + 0.02
        assert one.verdict.word is Word.CANNOT_TELL and one.verdict.reason.startswith(f"base: {UNSTEADY}")
    for sides in ((unsteady, quiet), (quiet, unsteady)):
        (one,) = compared(*sides).differences
        assert one.floor.is_unsteady and one.floor.shift is None
        assert UNSTEADY in one.verdict.reason and NO_FLOOR in one.verdict.reason


def drifting(runs):
    """As on a machine that gets a tenth faster from round to round."""
    return [run.model_copy(update={"metrics": scaled(run, 1 + 0.1 * run.round)}) for run in runs]


def scaled(run, factor):
    metric = run.metrics["output_throughput"]
    changed = metric.model_copy(update={"value": metric.value * factor})
    return {**run.metrics, "output_throughput": changed}


def test_runs_that_took_turns_are_paired_so_that_a_drift_cancels():
    base, head = drifting(experiment(1)), drifting(experiment(2, sync_ids=1.03))
    apart = compare_sides(side("base", base), [side("head", head)]).differences[0]
    together = compare_sides(
        side("base", base, interleaved="x"), [side("head", head, interleaved="x")]
    ).differences[0]
    assert (together.verdict.word, together.pairing) == (Word.FASTER, "paired")
    assert (apart.verdict.word, apart.pairing) == (Word.CANNOT_TELL, "unpaired")
    other = compare_sides(side("base", base, interleaved="x"), [side("head", head, interleaved="y")])
    assert other.differences[0].pairing == "unpaired"


def test_holm_is_over_all_arms_and_heads_that_are_compared():
    one = compared(experiment(1), experiment(2, sync_ids=1.004))
    many = compared(experiment(1), *(experiment(2, sync_ids=1.004) for _ in range(4)))
    p_value = one.differences[0].ratio.p_value
    assert one.differences[0].adjusted_p == p_value
    assert many.differences[0].adjusted_p == pytest.approx(min(1.0, 4 * p_value))


def test_metrics_are_the_primary_ones_or_those_asked_for_and_those_of_limits_besides():
    def metrics(**options):
        return [one.metric for one in compared(experiment(1), experiment(2), **options).differences]

    assert metrics() == ["output_throughput"]
    assert metrics(metrics=("median_e2e_ms",)) == ["median_e2e_ms"]
    assert metrics(more=("p99_ttft_ms", "output_throughput")) == ["output_throughput", "p99_ttft_ms"]


def test_of_a_metric_without_a_direction_the_ratio_is_shown_and_nothing_judged():
    (one,) = compared(experiment(1), experiment(2), metrics=("output_tokens",)).differences
    assert (one.verdict.word, one.verdict.reason) == (Word.NONE, NO_DIRECTION)
    assert one.ratio.value == 1.0


def test_two_arms_without_any_difference_win_at_most_one_time_in_twenty():
    """2,000 comparisons of two runs of one program: the Monte-Carlo error of 5 % is 0.5 %."""
    draw = np.random.default_rng(5)
    values = np.exp(draw.normal(0, [[[0.01]], [[0.02]]], (2, 2000, 8)))
    p_values = [unpaired_ratio(list(over), list(under)).p_value for over, under in zip(*values, strict=True)]
    assert np.mean(np.asarray(p_values) < 0.05) < 0.065
    assert np.mean(np.asarray(p_values) < 0.05) > 0.035
