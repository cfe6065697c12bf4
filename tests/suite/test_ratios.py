"""Paired log ratios against figures of an independent source (scipy.stats) and by hand; and what has none."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suite.ratios import MIN_ROUNDS, holm, paired_ratio, ratio_of_logs, t_interval, unpaired_ratio

FAST = {0: 105.0, 1: 103.0, 2: 108.0, 3: 104.0, 4: 109.0, 5: 102.0}
SLOW = {0: 100.0, 1: 101.0, 2: 99.0, 3: 100.0, 4: 102.0, 5: 100.5}


def noisy(seed, count, size=0.01, effect=0.0):
    return np.random.default_rng(seed).normal(effect, size, count)


def test_ratio_interval_and_p_value_are_those_of_the_paired_t_test_on_logs():
    ratio = paired_ratio(FAST, SLOW)
    over, under = (np.log(list(values.values())) for values in (FAST, SLOW))
    test = stats.ttest_rel(over, under)
    expected = test.confidence_interval(0.95)
    assert ratio.value == pytest.approx(stats.gmean(np.exp(over - under)))
    assert (ratio.interval.low, ratio.interval.high) == pytest.approx((expected.low, expected.high))
    assert ratio.p_value == pytest.approx(test.pvalue)
    assert ratio.num_rounds == 6 and ratio.reason is None and ratio.notes == ()


def test_rounds_are_paired_by_number_so_a_drift_of_the_machine_cancels():
    drift = {number: 100.0 * 2**number for number in range(6)}
    faster = {number: 1.03 * drift[number] for number in reversed(range(6))}
    ratio = paired_ratio(faster, drift)
    assert ratio.value == pytest.approx(1.03)
    assert ratio.interval.half_width == pytest.approx(0, abs=1e-12)


def test_fewer_than_five_pairs_cannot_tell():
    ratio = paired_ratio({0: 2.0, 1: 2.0}, {0: 1.0, 1: 1.0})
    assert ratio.reason == "cannot tell: 2 rounds, at least 5 are needed"
    assert (ratio.value, ratio.interval, ratio.p_value, ratio.smallest_effect()) == (None, None, None, None)
    four, five = ({number: 1.0 + number for number in range(count)} for count in (4, 5))
    assert paired_ratio(four, five).reason == "cannot tell: 4 rounds, at least 5 are needed"
    assert paired_ratio(five, four).num_rounds == 4
    assert paired_ratio(five, five).num_rounds == 5 == MIN_ROUNDS and paired_ratio(five, five).reason is None
    assert paired_ratio({}, {}).reason == "cannot tell: 0 rounds, at least 5 are needed"


def test_only_rounds_that_both_have_make_a_pair_and_the_rest_is_told():
    over = {**FAST, 6: 100.0, 7: None, 8: 0.0, 9: -1.0, 10: math.inf, 11: math.nan}
    under = {**SLOW, **dict.fromkeys(range(7, 12), 100.0), 12: 100.0}
    ratio = paired_ratio(over, under)
    assert ratio.num_rounds == 6 and ratio.value == paired_ratio(FAST, SLOW).value
    assert ratio.notes == (
        "2 rounds left out: only one of the two has it",
        "5 rounds left out: a value is missing or not positive",
    )


def test_the_same_ratio_each_time_has_no_width_and_says_so():
    same = dict.fromkeys(range(5), 7.0)
    equal = paired_ratio(same, same)
    assert (equal.value, equal.p_value, equal.interval.half_width) == (1.0, 1.0, 0.0)
    assert equal.notes == ("all 5 rounds gave the same ratio, so the interval has no width",)
    twice = paired_ratio({number: 14.0 for number in same}, same)
    assert twice.value == pytest.approx(2) and twice.p_value == 0.0 and twice.interval.half_width == 0
    assert twice.smallest_effect() == 0 and twice.bootstrap is None


@given(st.dictionaries(st.integers(0, 30), st.none() | st.floats(), max_size=30), st.randoms())
def test_no_input_gives_a_warning_or_a_nan(over, random):
    under = {number: random.choice([0.0, 1.0, 1e-300, 1e300, None, value]) for number, value in over.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ratio = paired_ratio(over, under)
    figures = (ratio.mean_log, ratio.p_value, ratio.spread, ratio.smallest_effect())
    assert all(figure is None or math.isfinite(figure) for figure in figures)
    assert (ratio.interval is None) == (ratio.reason is not None)


def test_holm_by_hand_and_in_the_order_given():
    assert holm([]) == [] and holm([0.2]) == [0.2]
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.6]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_no_correction_and_bonferroni(p_values):
    for raw, adjusted in zip(p_values, holm(p_values), strict=True):
        assert raw <= adjusted <= min(1.0, len(p_values) * raw)


def test_the_bootstrap_is_there_from_twenty_rounds_agrees_on_plain_noise_and_is_the_same_each_time():
    assert ratio_of_logs(noisy(1, 19)).bootstrap is None
    ratio = ratio_of_logs(noisy(1, 40))
    assert ratio.bootstrap == ratio_of_logs(noisy(1, 40)).bootstrap
    assert not ratio.bootstrap_disagrees
    assert ratio.bootstrap.low == pytest.approx(ratio.interval.low, abs=0.1 * ratio.interval.half_width)


def test_the_bootstrap_disagrees_where_one_round_makes_the_spread():
    logs = np.append(noisy(1, 19, 0.001), 1.0)
    assert ratio_of_logs(logs).bootstrap_disagrees
    assert not ratio_of_logs(noisy(1, 20)).bootstrap_disagrees


@pytest.mark.parametrize("num_rounds", [5, 10, 30])
def test_the_smallest_effect_is_found_with_a_power_of_80_percent(num_rounds):
    """20,000 experiments: the share found has a standard error of 0.28 %; five of them are allowed."""
    pair = ratio_of_logs(np.resize([-1.0, 1.0], num_rounds))
    scale = 1 / pair.spread
    effect = ratio_of_logs(scale * np.resize([-1.0, 1.0], num_rounds)).smallest_effect()
    logs = np.random.default_rng(num_rounds).normal(effect, 1.0, (20_000, num_rounds))
    mean, half_width, _ = t_interval(logs)
    assert np.mean(mean - half_width > 0) == pytest.approx(0.8, abs=0.014)
    floored = ratio_of_logs(scale * np.resize([-1.0, 1.0], num_rounds)).smallest_effect(0.7)
    assert floored == pytest.approx(effect + 0.7)


def test_many_experiments_at_once_are_the_same_as_one_after_the_other():
    logs = noisy(3, 60, effect=0.002).reshape(6, 10)
    mean, half_width, p_value = t_interval(logs)
    for index in range(6):
        ratio = ratio_of_logs(logs[index])
        one = (ratio.mean_log, ratio.interval.half_width, ratio.p_value)
        assert (mean[index], half_width[index], p_value[index]) == pytest.approx(one)


def test_unpaired_ratio_interval_and_p_value_are_those_of_welchs_test_on_logs():
    over, under = np.exp(noisy(1, 7, 0.02, 0.03)), np.exp(noisy(2, 11, 0.05))
    ratio = unpaired_ratio(list(over), list(under))
    test = stats.ttest_ind(np.log(over), np.log(under), equal_var=False)
    expected = test.confidence_interval(0.95)
    assert ratio.value == pytest.approx(stats.gmean(over) / stats.gmean(under))
    assert (ratio.interval.low, ratio.interval.high) == pytest.approx((expected.low, expected.high))
    assert (ratio.p_value, ratio.degrees) == pytest.approx((test.pvalue, test.df))
    assert ratio.p_against(ratio.interval.high) == pytest.approx(0.05)
    assert (ratio.num_rounds, ratio.num_under, ratio.is_paired) == (7, 11, False)


def test_unpaired_rounds_that_are_too_few_or_have_no_value_cannot_tell():
    ratio = unpaired_ratio([1.0, 2.0, None, 0.0, math.nan, math.inf], [1.0] * 9)
    assert ratio.reason == "cannot tell: 2 and 9 rounds, at least 5 of each are needed"
    assert ratio.notes == ("4 rounds left out: a value is missing or not positive",)
    assert (ratio.value, ratio.interval, ratio.p_value, ratio.smallest_effect()) == (None, None, None, None)
    assert unpaired_ratio([], []).reason == "cannot tell: 0 and 0 rounds, at least 5 of each are needed"


def test_unpaired_values_without_any_spread_give_an_interval_without_width():
    same, other = unpaired_ratio([2.0] * 5, [2.0] * 5), unpaired_ratio([3.0] * 5, [2.0] * 5)
    assert (same.p_value, same.interval.half_width, same.value) == (1.0, 0.0, 1.0)
    assert (other.p_value, other.interval.half_width) == (0.0, 0.0) and other.value == pytest.approx(1.5)
    assert "no width" in other.notes[0]


def test_a_paired_p_value_against_a_limit_is_that_of_the_test_on_shifted_logs():
    logs = noisy(3, 8, 0.02, 0.05)
    expected = stats.ttest_1samp(logs, 0.03).pvalue
    assert ratio_of_logs(logs).p_against(0.03) == pytest.approx(expected)
    assert ratio_of_logs(logs).p_against(0.0) == pytest.approx(ratio_of_logs(logs).p_value)
    assert paired_ratio({}, {}).p_against(0.0) is None
