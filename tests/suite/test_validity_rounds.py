"""Rules over the rounds of an arm: drift, found where it is planted and not where there is only noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from records import make_request, make_run, make_step
from scipy import stats

from suite.case_design import Design
from suite.checks import check_runs, invalid_runs, machine_drifts
from suite.summary import summarise
from suite.validity.rounds import DRIFT_ALPHA, MIN_DRIFT, trend

REQUEST = make_request("a", num_prompt_tokens=1)
STEPS = [make_step(i, 10 * i, 10 * i + 10, num_rows=1, num_tokens=1) for i in range(3)]


def rounds(logs, arm="ids", **changes):
    """Runs whose output throughput has these logarithms, beside a constant."""
    return [
        make_run(
            [REQUEST],
            STEPS,
            duration_s=math.exp(-log),
            run_id=f"{arm}-r{number}",
            round=number,
            arm=arm,
            **changes,
        )
        for number, log in enumerate(logs)
    ]


def check(runs, **options):
    return check_runs(runs, lambda _: [REQUEST], lambda _: STEPS, **options)


def noise(num_rounds, sigma=0.01, seed=0):
    return np.random.default_rng(seed).normal(0, sigma, num_rounds)


def test_a_trend_over_the_rounds_is_told_with_its_size_and_direction():
    (finding,) = check(rounds(noise(10, 0.005) - 0.01 * np.arange(10)))
    assert (finding.rule, finding.run_id, finding.is_timing) == ("drift", "ids-r9", True)
    assert (
        finding.message.startswith("output_throughput went down by 8.")
        and "10 rounds (p = " in finding.message
    )
    (finding,) = check(rounds(noise(10, 0.005) + 0.01 * np.arange(10)))
    assert "went up by 9." in finding.message


def test_a_drift_leaves_its_arms_rounds_in_the_figures_but_the_arm_is_not_valid():
    """It ran alone: there is no ratio that could stand, and the arm is marked."""
    runs = rounds(noise(10, 0.005) - 0.01 * np.arange(10))
    found = check(runs)
    assert invalid_runs(found) == frozenset()
    (arm,) = summarise(runs, found)
    assert arm.metrics["output_throughput"].num_rounds == 10 and not arm.is_valid and arm.num_invalid == 0


def test_a_first_round_that_is_slow_is_no_trend_but_a_slow_warming_is():
    assert check(rounds([-0.2, *noise(9, 0.005)])) == []
    assert [one.rule for one in check(rounds(-0.2 * np.exp(-np.arange(12) / 5)))] == ["drift"]


def test_a_trend_too_small_to_matter_and_one_of_few_rounds_are_not_told():
    assert check(rounds(0.002 * np.arange(10))) == []  # 1.8 % in all, exactly
    assert check(rounds(0.05 * np.arange(4))) == []


def test_a_run_that_broke_a_rule_of_its_own_is_in_no_trend():
    drifting = [*noise(9, 0.002), -3.0]
    runs = rounds(drifting)
    runs[-1] = runs[-1].model_copy(update={"tokens": None})
    assert [one.rule for one in check(runs)] == ["tokens-unchecked"]


def test_arms_are_looked_at_apart_and_in_the_metrics_that_decide():
    level, falling = rounds(noise(10, 0.002)), rounds(-0.02 * np.arange(10), arm="refresh")
    assert [one.run_id for one in check([*level, *falling])] == ["refresh-r9"]
    # The latencies of these runs are all alike: in them there is no trend.
    assert check([*level, *falling], design_of=held_against(None, "median_e2e_ms", "median_itl_ms")) == []


def held_against(reference, *metrics):
    run = rounds([0.0])[0]
    return {(run.scenario, run.case_id): Design(reference, metrics or ("output_throughput",))}


def test_a_machine_that_slows_all_arms_alike_breaks_no_rule_and_is_told():
    slower = -0.02 * np.arange(10)
    runs = [*rounds(slower + noise(10, 0.002)), *rounds(slower + noise(10, 0.002, 1), arm="refresh")]
    design_of = held_against("ids")
    assert check(runs, design_of=design_of) == []
    (told,) = machine_drifts(runs, [], design_of)
    assert "the machine changed: output_throughput of all arms together went down by 16." in told
    assert (
        machine_drifts([*rounds(noise(10)), *rounds(noise(10, seed=1), arm="refresh")], [], design_of) == ()
    )


def test_an_arm_that_drifts_from_the_reference_is_in_doubt_and_the_reference_is_not():
    slower = -0.02 * np.arange(10)
    reference, alike = rounds(slower), rounds(slower + noise(10, 0.002), arm="gated")
    apart = rounds(noise(10, 0.002), arm="refresh")  # level, beside a reference that becomes slower
    design_of = held_against("ids")
    (finding,) = check([*reference, *alike, *apart], design_of=design_of)
    assert (finding.rule, finding.run_id) == ("drift", "refresh-r9")
    assert finding.message.startswith("output_throughput against ids went up by 19.")
    assert machine_drifts([*reference, *alike, *apart], [], design_of) == (), "not all of them did"
    assert machine_drifts([*reference, *alike], [], design_of) != ()


def test_half_the_arms_do_not_make_a_change_of_the_machine_though_the_mean_of_all_moves():
    """The reference arm is so noisy that no ratio to it has a trend."""
    falling = -0.02 * np.arange(10)
    runs = [*rounds(noise(10, 0.08, 1), arm="gated"), *rounds(noise(10, 0.002, 2))]
    runs += [*rounds(falling, arm="refresh"), *rounds(falling + noise(10, 0.002, 3), arm="skip")]
    design_of = held_against("gated")
    assert check(runs, design_of=design_of) == []
    assert machine_drifts(runs, [], design_of) == ()


def test_an_arm_of_too_few_rounds_hides_no_change_of_the_machine():
    slower = -0.02 * np.arange(10)
    runs = [*rounds(slower + noise(10, 0.002)), *rounds(slower + noise(10, 0.002, 1), arm="refresh")]
    (told,) = machine_drifts([*runs, *rounds([0.0, 0.1], arm="gated")], [], held_against("ids"))
    assert "10 rounds" in told


def test_the_reference_is_looked_at_by_itself_where_no_valid_run_was_beside_it():
    runs, beside = rounds(-0.02 * np.arange(10)), rounds(np.zeros(10), arm="refresh")
    beside = [run.model_copy(update={"tokens": None}) for run in beside]
    found = check([*runs, *beside], design_of=held_against("ids"))
    assert {one.rule for one in found if one.run_id.startswith("ids")} == {"drift"}


def test_a_drift_is_of_the_ratio_to_both_runs_of_the_reference_in_a_round():
    """One of them by itself would be a trend; the mean of both, which the arm is judged by, is none."""
    x = np.arange(10)
    once, again = rounds(-0.02 * x), rounds(0.02 * x, is_aa=True)
    again = [run.model_copy(update={"run_id": f"aa{run.run_id}"}) for run in again]
    runs = [*once, *again, *rounds(noise(10, 0.002), arm="refresh")]
    assert check(runs, design_of=held_against("ids")) == []
    assert [one.rule for one in check([*once, *runs[20:]], design_of=held_against("ids"))] == ["drift"]


def test_a_reference_that_ran_alone_is_looked_at_by_itself_and_no_machine_is_blamed():
    runs = rounds(-0.02 * np.arange(10))
    design_of = held_against("ids")
    assert [one.rule for one in check(runs, design_of=design_of)] == ["drift"]
    assert machine_drifts(runs, [], design_of) == ()


def test_rounds_that_the_reference_lacks_or_that_are_invalid_are_in_no_trend_of_a_ratio():
    reference = rounds(np.zeros(6))
    runs = rounds([*noise(6, 0.001), *(0.1 * np.arange(8))], arm="refresh")
    design_of = held_against("ids")
    assert check([*reference, *runs], design_of=design_of) == []
    apart = rounds(0.05 * np.arange(6), arm="refresh")
    reference[0] = reference[0].model_copy(update={"tokens": None})
    reference[1] = reference[1].model_copy(update={"tokens": None})
    found = check([*reference, *apart], design_of=design_of)
    assert {one.rule for one in found} == {"tokens-unchecked", "drift"}  # four rounds are left: by itself
    (drift,) = [one for one in found if one.rule == "drift"]
    assert drift.message.startswith("output_throughput went up")


def test_repeats_of_the_reference_may_be_all_that_is_left_of_it():
    again = [
        run.model_copy(update={"run_id": f"aa{run.round}"})
        for run in rounds(-0.02 * np.arange(10), is_aa=True)
    ]
    assert [(one.rule, one.run_id) for one in check(again, design_of=held_against("ids"))] == [
        ("drift", "aa9")
    ]


def test_warm_ups_and_runs_with_instruments_are_in_no_trend():
    runs = rounds([0.0] * 6)
    others = rounds([-1.0] * 6, arm="ids", is_warmup=True) + rounds(
        [-2.0] * 6, arm="ids", instrument="events"
    )
    assert check([*others, *runs]) == []


@pytest.mark.parametrize("sigma", [0.005, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("num_rounds", [5, 10, 40])
def test_noise_alone_is_called_a_drift_in_at_most_1_percent(sigma, num_rounds):
    """Of 2,000 arms: at 1 % the share has a standard error of 0.22 %, so at most 1.7 % here."""
    x, drawn = (
        np.arange(num_rounds, dtype=float),
        np.random.default_rng(3).normal(0, sigma, (2_000, num_rounds)),
    )
    found = [trend(x, logs) for logs in drawn]
    told = np.mean([abs(change) >= MIN_DRIFT and p_value < DRIFT_ALPHA for change, p_value in found])
    assert told <= 0.017


def test_a_drift_of_5_percent_over_10_rounds_of_1_percent_noise_is_found_in_nine_of_ten():
    """Of 2,000 arms: near 90 % the share has a standard error of 0.7 %."""
    x = np.arange(10, dtype=float)
    drawn = np.random.default_rng(4).normal(0, 0.01, (2_000, 10)) + math.log(1.05) * x / 9
    found = [trend(x, logs) for logs in drawn]
    assert np.mean([abs(c) >= MIN_DRIFT and p < DRIFT_ALPHA for c, p in found]) >= 0.88


@pytest.mark.parametrize("seed", range(5))
def test_the_trend_equals_that_of_scipy(seed):
    draw = np.random.default_rng(seed)
    x, logs = np.sort(draw.choice(50, 9, replace=False)).astype(float), draw.normal(0, 0.1, 9)
    change, p_value = trend(x, logs)
    expected = stats.linregress(x, logs)
    assert change == pytest.approx(expected.slope * (x[-1] - x[0]))
    assert p_value == pytest.approx(expected.pvalue)


def test_a_line_without_noise_has_a_p_value_all_the_same():
    assert trend(np.arange(5.0), np.zeros(5)) == (0.0, 1.0)
    change, p_value = trend(np.arange(5.0), 0.1 * np.arange(5.0))
    assert change == pytest.approx(0.4) and p_value < 1e-9
