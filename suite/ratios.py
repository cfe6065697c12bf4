"""Ratios of two arms from rounds that ran both: interval, p value, what could have been detected.

Pure: numbers in, numbers out; knows no run, metric or file. What is not defined is None with a reason,
never NaN and never a warning. scipy is loaded where it is used: loading takes a third of a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

MIN_ROUNDS = 5
"""Pairs of rounds before a ratio has an interval."""

BOOTSTRAP_ROUNDS = 20
"""Pairs of rounds from which resampling says something of its own."""

CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
POWER = 0.8

_NUM_RESAMPLES = 2_000
_MAX_DISAGREEMENT = 0.2  # of the t interval's width, at either end
_LARGEST_LOG = 700.0
_TINY = 1e-12  # a spread of log ratios that only rounding makes


@dataclass(frozen=True, slots=True)
class Interval:
    """Of a log ratio."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Ratio:
    """One arm over another, from `num_rounds` pairs; all but the count is None where `reason` says why.

    `mean_log` is the mean of the logs of the paired ratios, `interval` Student's t interval of it (95 %),
    `p_value` two-sided against 0, `spread` the standard deviation of a pair's log ratio. `bootstrap` is a
    percentile bootstrap of the same mean, from BOOTSTRAP_ROUNDS pairs. `notes` says what was left out or odd.
    """

    num_rounds: int
    mean_log: float | None = None
    interval: Interval | None = None
    p_value: float | None = None
    spread: float | None = None
    bootstrap: Interval | None = None
    notes: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def value(self) -> float | None:
        """exp of the mean log ratio."""
        return factor(self.mean_log)

    @property
    def bootstrap_disagrees(self) -> bool:
        """Whether an end of the bootstrap interval is off by more than a fifth of the t interval's width."""
        if self.bootstrap is None or self.interval is None:
            return False
        off = max(
            abs(self.bootstrap.low - self.interval.low),
            abs(self.bootstrap.high - self.interval.high),
        )
        return off > _MAX_DISAGREEMENT * 2 * self.interval.half_width + _TINY

    def smallest_effect(self, floor: float = 0.0) -> float | None:
        """The smallest true log ratio whose interval would lie beyond `floor` with a power of 0.8.

        From the spread and number of rounds seen: power of the one-sample t test (noncentral t).
        """
        if self.spread is None:
            return None
        error = self.spread / math.sqrt(self.num_rounds)
        return floor + _noncentrality(self.num_rounds) * error


def factor(log: float | None) -> float | None:
    """exp of a log ratio; None where there is none, or it is beyond any number."""
    return None if log is None or log > _LARGEST_LOG else math.exp(log)


def paired_ratio(
    over: Mapping[int, float | None], under: Mapping[int, float | None], min_rounds: int = MIN_ROUNDS
) -> Ratio:
    """`over` / `under`, each round -> value; only rounds with a positive value of both make a pair."""
    pairs, notes = _pairs(over, under)
    if len(pairs) < min_rounds:
        needed = f"{_rounds(len(pairs))}, at least {min_rounds} are needed"
        return Ratio(len(pairs), notes=notes, reason=f"cannot tell: {needed}")
    return ratio_of_logs(np.asarray(pairs, dtype=np.float64), notes)


def ratio_of_logs(logs: Values, notes: tuple[str, ...] = ()) -> Ratio:
    """The ratio of at least two paired log ratios, shape (rounds,)."""
    mean, half_width, p_value = t_interval(logs)
    spread = float(np.std(logs, ddof=1))
    if spread <= _TINY:
        spread = 0.0
        notes = (*notes, f"all {_rounds(logs.size)} gave the same ratio, so the interval has no width")
    return Ratio(
        num_rounds=int(logs.size),
        mean_log=float(mean),
        interval=Interval(float(mean - half_width), float(mean + half_width)),
        p_value=float(p_value),
        spread=spread,
        bootstrap=_bootstrap(logs) if logs.size >= BOOTSTRAP_ROUNDS and spread else None,
        notes=notes,
    )


def t_interval(logs: Values) -> tuple[Values, Values, Values]:
    """Mean, half-width of Student's 95 % interval and p value against 0, over the last axis (at least 2).

    Without any spread the width is 0, and p is 1 for a mean of 0 and 0 for another.
    """
    from scipy import special

    num = logs.shape[-1]
    mean = np.asarray(logs.mean(axis=-1))
    spread = np.asarray(logs.std(axis=-1, ddof=1))
    error = np.where(spread <= _TINY, 0.0, spread / math.sqrt(num))
    statistic = np.divide(
        np.abs(mean), error, out=np.where(np.abs(mean) <= _TINY, 0.0, np.inf), where=error > 0
    )
    p_value: Values = np.asarray(2 * special.stdtr(num - 1, -statistic))
    return mean, quantile(num) * error, p_value


def quantile(num_rounds: int) -> float:
    """Of Student's t at 97.5 %."""
    from scipy import special

    return float(special.stdtrit(num_rounds - 1, 1 - ALPHA / 2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given: at most one false find in 20 families."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _pairs(
    over: Mapping[int, float | None], under: Mapping[int, float | None]
) -> tuple[list[float], tuple[str, ...]]:
    both = sorted(over.keys() & under.keys())
    alone = len(over.keys() ^ under.keys())
    logs = [
        math.log(first) - math.log(second)
        for first, second in ((over[number], under[number]) for number in both)
        if _is_positive(first) and _is_positive(second)
    ]
    left_out = len(both) - len(logs)
    notes = []
    if alone:
        notes.append(f"{_rounds(alone)} left out: only one of the two has it")
    if left_out:
        notes.append(f"{_rounds(left_out)} left out: a value is missing or not positive")
    return logs, tuple(notes)


def _is_positive(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0


def _rounds(count: int) -> str:
    return f"{count} round" if count == 1 else f"{count} rounds"


def _noncentrality(num_rounds: int) -> float:
    """How many standard errors a true effect must measure to be found with a power of 0.8."""
    from scipy import special

    return float(special.nctdtrinc(num_rounds - 1, 1 - POWER, quantile(num_rounds)))


def _bootstrap(logs: Values) -> Interval:
    """Percentiles of resampled means; the draws are fixed, so that a report is the same each time."""
    draws = np.random.default_rng(0).integers(0, logs.size, size=(_NUM_RESAMPLES, logs.size))
    low, high = np.percentile(logs[draws].mean(axis=1), [100 * ALPHA / 2, 100 * (1 - ALPHA / 2)])
    return Interval(float(low), float(high))
