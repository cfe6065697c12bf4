"""The four words, the noise floor, and planted effects: how often a verdict is wrong, and how often found.

Shares of 2,000 experiments have a standard error of at most 1.1 % (0.5 % near 5 or 95 %); the limits below
are the product's, and where a share lies near one the tolerance is written beside it.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from suite.ratios import Interval, Ratio, holm, ratio_of_logs
from suite.verdict import MIN_FLOOR, NO_FLOOR, UNSTEADY, Floor, Word, decide, noise_floor

NUM_EXPERIMENTS = 2_000
NOISE = 0.01  # of one run; a paired ratio has sqrt(2) of it


def seen(low, high):
    return Ratio(10, mean_log=(low + high) / 2, interval=Interval(low, high), p_value=0.001, spread=0.01)


@pytest.mark.parametrize(
    ("low", "high", "better", "word"),
    [
        (0.011, 0.02, "higher", Word.FASTER),
        (0.011, 0.02, "lower", Word.SLOWER),
        (-0.02, -0.011, "higher", Word.SLOWER),
        (-0.02, -0.011, "lower", Word.FASTER),
        (-0.009, 0.01, "higher", Word.EQUAL),
        (0.009, 0.011, "higher", Word.CANNOT_TELL),
        (-0.03, 0.03, "lower", Word.CANNOT_TELL),
    ],
)
def test_wholly_outside_decides_wholly_inside_is_equal_and_anything_else_cannot_tell(low, high, better, word):
    assert decide(seen(low, high), Floor(0.01, 10), better, 0.001).word is word


def test_without_a_floor_or_enough_rounds_there_is_no_verdict_however_large_the_effect():
    verdict = decide(seen(1.0, 1.1), noise_floor(None), "higher", 0.0)
    assert (verdict.word, verdict.reason) == (Word.CANNOT_TELL, NO_FLOOR)
    few = Ratio(2, reason="cannot tell: 2 rounds, at least 5 are needed")
    assert decide(few, Floor(0.01, 10), "higher", None).reason == "2 rounds, at least 5 are needed"
    assert noise_floor(few).value is None and "A/A: cannot tell: 2 rounds" in noise_floor(few).reason


def test_what_holm_does_not_let_pass_is_no_winner():
    assert decide(seen(0.011, 0.02), Floor(0.01, 10), "higher", 0.06).word is Word.CANNOT_TELL


def test_the_floor_is_the_half_width_of_the_a_a_interval_and_never_below_half_a_percent():
    logs = np.random.default_rng(2).normal(0, 0.02, 8)
    assert noise_floor(ratio_of_logs(logs)).value == ratio_of_logs(logs).interval.half_width > MIN_FLOOR
    assert noise_floor(ratio_of_logs(np.zeros(8))).value == MIN_FLOOR == pytest.approx(math.log(1.005))


def test_of_an_arm_that_differs_from_itself_what_is_beyond_the_farther_end_is_told():
    """What is beyond it is told, and nothing else: being within so wide a floor makes nobody equal."""
    for sign in (1, -1):
        floor = noise_floor(ratio_of_logs(sign * np.array([0.02, 0.03, 0.04, 0.03, 0.02, 0.04])))
        assert floor.is_unsteady and (floor.value, floor.reason) == (None, UNSTEADY)
        assert 0.03 < floor.shift < 0.05
        assert decide(seen(0.4, 0.5), floor, "higher", 0.001).word is Word.FASTER
        for low, high in ((0.01, 0.5), (-0.01, 0.01), (0.03, 0.035)):
            verdict = decide(seen(low, high), floor, "higher", 0.001)
            assert (verdict.word, verdict.reason) == (Word.CANNOT_TELL, UNSTEADY)
    steady = noise_floor(ratio_of_logs(np.array([0.02, -0.03, 0.04, 0.03, -0.02])))
    assert not steady.is_unsteady and steady.shift is None


def test_the_p_value_beside_an_unsteady_floor_is_of_no_difference_beyond_the_shift():
    ratio = ratio_of_logs(np.random.default_rng(4).normal(0.05, 0.01, 10))
    assert Floor(0.01).p_value(ratio) == ratio.p_value
    unsteady = Floor(None, is_unsteady=True, shift=0.04)
    assert unsteady.p_value(ratio) == ratio.p_against(0.04) > ratio.p_value
    below = ratio_of_logs(-np.random.default_rng(4).normal(0.05, 0.01, 10))
    assert unsteady.p_value(below) == pytest.approx(unsteady.p_value(ratio))
    assert Floor(None, is_unsteady=True, shift=0.06).p_value(ratio) == 1.0
    assert unsteady.p_value(Ratio(2, reason="few")) is None


def test_chance_makes_no_winner_of_arms_that_a_shift_sets_apart_by_as_much_as_the_reference_from_itself():
    """Every arm is off by what the second run of the reference is off by, and none is faster."""
    random = np.random.default_rng(6)
    winners = 0
    for _ in range(NUM_EXPERIMENTS):
        noise = random.normal(0, 0.01, (5, 10))
        floor = noise_floor(ratio_of_logs(0.03 + noise[1] - noise[0]))
        ratios = [ratio_of_logs(0.03 + arm - noise[0]) for arm in noise[2:]]
        adjusted = holm([floor.p_value(ratio) for ratio in ratios])
        words = [decide(ratio, floor, "higher", p).word for ratio, p in zip(ratios, adjusted, strict=True)]
        winners += any(word in (Word.FASTER, Word.SLOWER) for word in words)
    assert winners / NUM_EXPERIMENTS <= 0.05


def experiments(effects, num_rounds, seed=0, noise=NOISE):
    """Whole experiments: an arm for each effect beside the reference and its A/A repeat, one machine."""
    random = np.random.default_rng(seed)
    shape = (NUM_EXPERIMENTS, len(effects) + 2, num_rounds)
    machine = random.normal(0, 0.2, (NUM_EXPERIMENTS, 1, num_rounds))  # of a round: all its runs share it
    runs = random.normal(0, noise, shape) + machine
    runs[:, 2:] += np.log1p(effects)[:, None]
    for reference, again, *arms in runs:
        ratios = [ratio_of_logs(arm - reference) for arm in arms]
        floor = noise_floor(ratio_of_logs(again - reference))
        adjusted = holm([ratio.p_value for ratio in ratios])
        verdicts = [decide(ratio, floor, "higher", p).word for ratio, p in zip(ratios, adjusted, strict=True)]
        yield ratios, verdicts


@pytest.mark.parametrize("num_rounds", [5, 10])
def test_no_effect_gives_a_winner_among_three_arms_in_at_most_5_percent(num_rounds):
    winners = sum(
        any(word in (Word.FASTER, Word.SLOWER) for word in verdicts)
        for _, verdicts in experiments([0.0, 0.0, 0.0], num_rounds)
    )
    assert winners / NUM_EXPERIMENTS <= 0.05


def test_three_percent_with_ten_rounds_and_one_percent_noise_is_found_in_at_least_90_percent():
    words = Counter(verdicts[0] for _, verdicts in experiments([0.03], 10))
    assert words[Word.FASTER] / NUM_EXPERIMENTS >= 0.90
    assert words[Word.SLOWER] == words[Word.EQUAL] == 0


def test_three_percent_is_found_beside_arms_without_an_effect():
    verdicts = [verdicts for _, verdicts in experiments([0.03, 0.0, 0.0], 10)]
    assert sum(words[0] is Word.FASTER for words in verdicts) / NUM_EXPERIMENTS >= 0.90
    assert sum(words[0] in (Word.SLOWER, Word.EQUAL) for words in verdicts) == 0


@pytest.mark.parametrize(("effect", "num_rounds"), [(0.0, 5), (0.0, 10), (0.03, 10), (-0.2, 19)])
def test_intervals_cover_the_truth_in_95_percent(effect, num_rounds):
    """Within 93 to 97 %: four standard errors of 0.5 % around 95 %."""
    covered = [
        ratios[0].interval.low <= math.log1p(effect) <= ratios[0].interval.high
        for ratios, _ in experiments([effect], num_rounds)
    ]
    assert 0.93 <= np.mean(covered) <= 0.97


def test_equal_is_said_on_a_quiet_machine_and_not_of_a_difference_beyond_the_floor():
    quiet = Counter(verdicts[0] for _, verdicts in experiments([0.0], 10, noise=0.002))
    assert quiet[Word.EQUAL] / NUM_EXPERIMENTS >= 0.95
    apart = Counter(verdicts[0] for _, verdicts in experiments([0.01], 10, noise=0.002))
    assert apart[Word.EQUAL] == 0
