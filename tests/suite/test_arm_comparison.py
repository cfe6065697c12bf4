"""From the records of a case to its comparisons: which runs enter, against what, and the verdict."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from records import make_request, make_run

from suite.case_design import AT_ONCE_METRICS, OPEN_LOOP_METRICS, Design, designs, primary_metrics
from suite.checks import Finding
from suite.comparison import WRONG_ARM, WRONG_REFERENCE, WRONG_TOKENS, compare
from suite.metrics import empty_metrics
from suite.ratios import LeftOut
from suite.record import Status
from suite.report.comparison_text import sentences
from suite.store import to_json
from suite.summary import to_document
from suite.verdict import BEYOND_UNSTEADY, NO_FLOOR, UNSTEADY, Word

CASE_ID = "1234567890abcdef"
DESIGN = {("smoke", CASE_ID): Design("sync-ids", AT_ONCE_METRICS)}


def runs_of(arm, factor, num_rounds=10, seed=0, is_aa=False, **changes):
    """Rounds of 0.2 % noise in which the machine itself drifts by half."""
    noise = np.random.default_rng([seed, *arm.encode(), is_aa]).normal(0, 0.002, num_rounds)
    return [
        make_run(
            [make_request()],
            duration_s=float((1 + 0.05 * number) * np.exp(noise[number]) / factor),
            arm=arm,
            round=number,
            run_id=f"{arm}-{'aa' if is_aa else 'r'}{number}",
            is_aa=is_aa,
            **changes,
        )
        for number in range(num_rounds)
    ]


def experiment(num_rounds=10, **factors):
    """The reference arm, its A/A repeats, and arms by factor of its speed."""
    return [
        *runs_of("sync-ids", 1.0, num_rounds),
        *runs_of("sync-ids", 1.0, num_rounds, is_aa=True),
        *(run for arm, factor in factors.items() for run in runs_of(arm, factor, num_rounds)),
    ]


def words(runs, design_of=DESIGN, findings=()):
    return {one.arm: one.verdict.word for one in compare(runs, design_of, findings)}


def test_planted_effects_are_told_and_no_effect_is_equal_though_the_machine_drifts():
    runs = experiment(ids=1.03, refresh=0.97, flags=1.0)
    assert words(runs) == {"ids": Word.FASTER, "refresh": Word.SLOWER, "flags": Word.EQUAL}
    (ids, *_) = compare(runs, DESIGN)
    assert (ids.reference, ids.metric, ids.ratio.num_rounds) == ("sync-ids", "output_throughput", 10)
    assert ids.ratio.value == pytest.approx(1.03, abs=0.004)


def test_of_a_latency_less_is_faster():
    def served(arm, per_token_ms, is_aa=False):
        for number in range(6):
            gap = per_token_ms * (1 + 0.001 * number * (-1) ** number)
            request = make_request(token_ms=[gap * index for index in range(1, 9)])
            run_id = f"{arm}{number}{is_aa}"
            yield make_run([request], arm=arm, round=number, run_id=run_id, is_aa=is_aa)

    runs = [*served("sync-ids", 10), *served("sync-ids", 10, True), *served("ids", 9), *served("all", 11)]
    found = compare(runs, {("smoke", CASE_ID): Design("sync-ids", OPEN_LOOP_METRICS)})
    assert [(one.arm, one.metric, one.verdict.word) for one in found] == [
        ("ids", "median_e2e_ms", Word.FASTER),
        ("all", "median_e2e_ms", Word.SLOWER),
        ("ids", "median_itl_ms", Word.FASTER),
        ("all", "median_itl_ms", Word.SLOWER),
    ]


@pytest.mark.parametrize("num_rounds", [1, 2, 4])
def test_too_few_rounds_cannot_tell_however_large_the_effect(num_rounds):
    (one,) = compare(experiment(num_rounds, ids=3.0), DESIGN)
    rounds = "1 round" if num_rounds == 1 else f"{num_rounds} rounds"
    assert one.verdict.word is Word.CANNOT_TELL
    assert one.verdict.reason == f"{rounds}, at least 5 are needed"


def test_without_a_a_runs_one_cannot_tell_and_the_interval_is_there_all_the_same():
    runs = [run for run in experiment(ids=1.03) if not run.is_aa]
    (one,) = compare(runs, DESIGN)
    assert (one.verdict.word, one.verdict.reason) == (Word.CANNOT_TELL, NO_FLOOR)
    assert one.ratio.interval.low > 0.02


@pytest.mark.parametrize(("factor", "word"), [(1.05, Word.CANNOT_TELL), (1.2, Word.FASTER)])
def test_a_reference_that_differs_from_itself_decides_nothing_of_that_size(factor, word):
    runs = [run for run in experiment(ids=factor) if not run.is_aa]
    (one,) = compare([*runs, *runs_of("sync-ids", 1.1, is_aa=True)], DESIGN)
    assert one.verdict.word is word
    assert one.verdict.reason == (UNSTEADY if word is Word.CANNOT_TELL else BEYOND_UNSTEADY)
    assert one.floor.value is None and one.floor.shift == pytest.approx(math.log(1.1), abs=0.01)


def test_a_wrong_arm_gets_no_verdict_and_neither_does_any_arm_beside_a_wrong_reference():
    wrong = runs_of("ids", 1.5, num_wrong=1)
    control = runs_of("stale", 1.5, is_control=True)
    found = {one.arm: one for one in compare([*experiment(), *wrong, *control], DESIGN)}
    assert found["ids"].verdict.word is found["stale"].verdict.word is Word.NONE
    assert (found["ids"].verdict.reason, found["stale"].verdict.reason) == (WRONG_TOKENS, WRONG_ARM)
    assert found["ids"].ratio.value is None
    runs = [*runs_of("sync-ids", 1.0, num_wrong=1), *runs_of("ids", 1.5)]
    (one,) = compare(runs, DESIGN)
    assert (one.verdict.word, one.verdict.reason) == (Word.CANNOT_TELL, WRONG_REFERENCE)


def test_warm_up_instrumented_repeated_and_lost_runs_enter_nothing():
    runs = experiment(ids=1.03)
    (plain,) = compare(runs, DESIGN)
    lost = {"status": Status.FAILED, "metrics": empty_metrics("died")}
    beside = [
        *runs_of("ids", 9.0, 3, is_warmup=True),
        *runs_of("ids", 9.0, 3, instrument="events"),
        *runs_of("ids", 9.0, 3, repeats={"merge": 9}),
        *runs_of("ids", 9.0, 3, **lost),
        *runs_of("sync-ids", 9.0, 3, is_aa=True, is_warmup=True),
    ]
    (found,) = compare([*runs, *beside], DESIGN)
    assert (found.ratio, found.floor) == (plain.ratio, plain.floor)


def test_an_invalid_run_leaves_with_its_pair_and_that_is_told():
    runs = experiment(ids=1.03)
    odd = Finding("ids-r3", "off-schedule", "late", "leave a core", True)
    few = Finding("ids-r9", "too-few-rounds", "few", "use more", True)
    (one,) = compare(runs, DESIGN, [odd, few])
    assert one.ratio.num_rounds == 9
    assert one.ratio.notes == () and one.ratio.left_out == LeftOut(10, 1, ("off-schedule",))
    assert one.document()["notes"] == ["1 of 10 rounds INVALID (off-schedule)"]


def test_a_round_has_two_runs_of_the_reference_arm_and_both_count():
    """An arm's ratio is to their geometric mean: less noise than to one of them."""
    runs = [*runs_of("sync-ids", 1.0), *runs_of("sync-ids", 1.0, is_aa=True), *runs_of("ids", 1.03)]
    speed = {run.run_id: np.log(run.metrics["output_throughput"].value) for run in runs}
    expected = [
        speed[f"ids-r{n}"] - (speed[f"sync-ids-r{n}"] + speed[f"sync-ids-aa{n}"]) / 2 for n in range(10)
    ]
    (one,) = compare(runs, DESIGN)
    assert one.ratio.mean_log == pytest.approx(np.mean(expected))
    assert one.ratio.spread == pytest.approx(np.std(expected, ddof=1))


def test_a_repeat_of_the_reference_that_is_invalid_or_lost_leaves_its_round_to_the_other():
    runs = experiment(ids=1.03)
    late = Finding("sync-ids-aa3", "off-schedule", "late", "leave a core", True)
    (one,) = compare(runs, DESIGN, [late])
    gone = [run for run in runs if run.run_id != "sync-ids-aa3"]
    (other,) = compare(gone, DESIGN)
    assert one.ratio.num_rounds == other.ratio.num_rounds == 10 and one.ratio.left_out is None
    assert one.ratio.mean_log == other.ratio.mean_log != compare(runs, DESIGN)[0].ratio.mean_log


def test_holm_counts_the_arms_of_a_case_and_no_arm_of_another():
    (alone,) = compare(experiment(ids=1.01), DESIGN)
    among = {one.arm: one for one in compare(experiment(ids=1.01, all=1.0, flags=1.0), DESIGN)}
    assert alone.adjusted_p == alone.ratio.p_value
    assert among["ids"].adjusted_p == pytest.approx(3 * alone.ratio.p_value)
    other = [run.model_copy(update={"case_id": "b" * 16}) for run in experiment(ids=1.01)]
    both = compare([*experiment(ids=1.01), *other], {**DESIGN, ("smoke", "b" * 16): DESIGN["smoke", CASE_ID]})
    assert [one.adjusted_p for one in both] == [alone.ratio.p_value] * 2


def test_closed_loops_are_judged_by_throughput_and_open_ones_by_latency():
    assert primary_metrics("all_at_once") == primary_metrics("closed_loop") == AT_ONCE_METRICS
    for kind in ("constant", "trace", "poisson"):
        assert primary_metrics(kind) == OPEN_LOOP_METRICS


def test_a_folder_says_the_design_and_an_older_one_is_compared_with_its_first_right_sync_arm():
    stored = {
        "scenario": "smoke",
        "case_id": CASE_ID,
        "reference": "ids",
        "primary_metrics": ["median_e2e_ms", "?", {"a": 1}, ["b"], None],
    }
    assert designs([stored, {"scenario": "old", "case_id": "x"}]) == {
        ("smoke", CASE_ID): Design("ids", ("median_e2e_ms",))
    }
    runs = [
        *runs_of("stale", 1, is_control=True, scheduling="sync"),
        *runs_of("ids", 1, scheduling="async"),
        *runs_of("sync-ids", 1, scheduling="sync"),
    ]
    assert {one.reference for one in compare(runs, {})} == {"sync-ids"}
    assert compare(runs_of("sync-ids", 1.0), {}) == compare([], {}) == ()


def test_the_document_is_strict_json_with_ratios_as_factors_or_null():
    decided = compare(experiment(ids=1.03), DESIGN)
    undecided = compare(experiment(2, ids=1.03), DESIGN)
    document = to_document((), (), (), False, comparisons=[*decided, *undecided])
    one, other = json.loads(to_json(document))["comparisons"]
    assert one["ratio"] == pytest.approx(1.03, abs=0.004) and one["verdict"] == "faster"
    assert one["interval_low"] < one["ratio"] < one["interval_high"]
    assert one["noise_floor"] == pytest.approx(1.005) and one["num_aa_rounds"] == one["num_rounds"] == 10
    assert one["smallest_effect"] > one["noise_floor"]
    assert other["ratio"] is other["interval_low"] is other["smallest_effect"] is None
    assert other["verdict"] == "cannot tell" and other["reason"] == "2 rounds, at least 5 are needed"


def test_sentences_say_the_verdict_with_its_evidence_and_count_where_there_are_many():
    runs = experiment(ids=1.03, flags=1.0)
    faster, equal = (text.replace("\u00a0", " ") for text in sentences(compare(runs, DESIGN)))
    assert faster.startswith("ids is faster than sync-ids: output throughput +")
    assert "95 % interval +" in faster and "n = 10 rounds; noise floor 0.50 %" in faster
    assert equal.startswith("flags and sync-ids are equal within the noise floor: ")
    (doubt,) = sentences(compare(experiment(2, ids=1.03), DESIGN))
    assert doubt == (
        "Whether ids is faster or slower than sync-ids in output throughput one cannot tell: 2 rounds, at "
        "least 5 are needed."
    )


def test_two_metrics_of_an_open_loop_are_told_apart_where_neither_can_be_told():
    runs = experiment(2, ids=1.03)
    found = compare(runs, {("smoke", CASE_ID): Design("sync-ids", OPEN_LOOP_METRICS)})
    latency, gap = sentences(found)
    assert "in median E2E latency one cannot tell" in latency
    assert "in median inter-token latency one cannot tell" in gap
    assert latency.count("latency") == 1
    many = sentences(compare(experiment(a=1.03, b=1.04, c=0.9, d=1.0, e=1.0), DESIGN))
    assert len(many) == 4
    assert (
        many[-1].replace("\u00a0", " ") == "Of 5 comparisons: 2 faster, 1 slower, 2 equal within the floor."
    )
    assert sentences(compare([*experiment(), *runs_of("ids", 1.5, num_wrong=1)], DESIGN)) == []
