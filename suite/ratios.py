"""Ratios of two arms from rounds that ran both, or from rounds of two runs: interval, p value, what could
have been detected.

Pure: numbers in, numbers out; knows no run, metric or file. What is not defined is None with a reason,
never NaN and never a warning. scipy is loaded where it is used: loading takes a third of a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
class LeftOut:
    """Of `num_rounds` that came to their end, those that count for nothing: a run of them is INVALID."""

    num_rounds: int
    num_invalid: int
    rules: tuple[str, ...]  # that were broken, each once

    def __str__(self) -> str:
        return f"{self.num_invalid} of {_rounds(self.num_rounds)} INVALID ({', '.join(self.rules)})"


@dataclass(frozen=True, slots=True)
class Ratio:
    """One arm over another, from `num_rounds` pairs; all but the count is None where `reason` says why.

    `mean_log` is the mean of the logs of the paired ratios, `interval` Student's t interval of it (95 %),
    `p_value` two-sided against 0, `spread` the standard deviation of a pair's log ratio. `bootstrap` is a
    percentile bootstrap of the same mean, from BOOTSTRAP_ROUNDS pairs. `notes` says what was left out or odd;
    `left_out` are the rounds that are INVALID, None where there are none.

    Unpaired, `num_rounds` are those over and `num_under` those under the line: `mean_log` is the difference
    of the means of logs, `interval` Welch's. There is no spread of a pair then.
    """

    num_rounds: int
    mean_log: float | None = None
    interval: Interval | None = None
    p_value: float | None = None
    spread: float | None = None
    bootstrap: Interval | None = None
    notes: tuple[str, ...] = ()
    reason: str | None = None
    num_under: int | None = None
    error: float | None = None  # standard error of mean_log
    degrees: float | None = None  # of freedom, of Student's t
    left_out: LeftOut | None = None

    @property
    def all_notes(self) -> tuple[str, ...]:
        """For JSON, which has no other place for what was left out."""
        return self.notes if self.left_out is None else (str(self.left_out), *self.notes)

    @property
    def is_paired(self) -> bool:
        return self.num_under is None

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

        From the standard error and degrees of freedom seen: power of the t test (noncentral t).
        """
        if self.error is None or self.degrees is None:
            return None
        return floor + _noncentrality(self.degrees) * self.error

    def p_against(self, limit: float) -> float | None:
        """The two-sided p value of a log ratio of `limit`; None where there is no interval."""
        if self.mean_log is None or self.error is None or self.degrees is None:
            return None
        return _p_value(self.mean_log - limit, self.error, self.degrees)


def with_left_out(ratio: Ratio, left_out: LeftOut | None) -> Ratio:
    """The ratio, and what was left out beside the reason where too little is left."""
    if left_out is None:
        return ratio
    reason = None if ratio.reason is None else f"{ratio.reason}; {left_out}"
    return replace(ratio, left_out=left_out, reason=reason)


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
        error=spread / math.sqrt(logs.size),
        degrees=float(logs.size - 1),
    )


def unpaired_ratio(
    over: Sequence[float | None], under: Sequence[float | None], min_rounds: int = MIN_ROUNDS
) -> Ratio:
    """`over` / `under`, a value a round, of two runs that share no rounds: Welch's t on the logs.

    Welch (1947) and Satterthwaite (1946): the two may spread differently. What changed on the machine between
    the runs is in the difference, and no interval of it tells that apart.
    """
    sides = [np.log([value for value in values if _is_positive(value)]) for values in (over, under)]
    left_out = len(over) + len(under) - sum(side.size for side in sides)
    notes = (f"{_rounds(left_out)} left out: a value is missing or not positive",) if left_out else ()
    counts = tuple(int(side.size) for side in sides)
    if min(counts) < min_rounds:
        needed = f"{counts[0]} and {_rounds(counts[1])}, at least {min_rounds} of each are needed"
        return Ratio(counts[0], notes=notes, reason=f"cannot tell: {needed}", num_under=counts[1])
    mean = float(sides[0].mean() - sides[1].mean())
    error, degrees = _welch(*sides)
    half_width = _quantile(degrees) * error
    if error == 0.0:
        notes = (*notes, "all rounds of each gave the same value, so the interval has no width")
    return Ratio(
        num_rounds=counts[0],
        mean_log=mean,
        interval=Interval(mean - half_width, mean + half_width),
        p_value=_p_value(mean, error, degrees),
        notes=notes,
        num_under=counts[1],
        error=error,
        degrees=degrees,
    )


def _welch(over: Values, under: Values) -> tuple[float, float]:
    """Standard error of the difference of means, and Satterthwaite's degrees of freedom."""
    parts = [float(np.var(side, ddof=1)) / side.size for side in (over, under)]
    total = sum(parts)
    if total <= _TINY**2:
        return 0.0, float(over.size + under.size - 2)
    shares = (part**2 / (side.size - 1) for part, side in zip(parts, (over, under), strict=True))
    return math.sqrt(total), total**2 / sum(shares)


def _p_value(distance: float, error: float, degrees: float) -> float:
    """Two-sided; without any error 1 for a distance of 0 and 0 for another."""
    from scipy import special

    if error == 0.0:
        return 1.0 if abs(distance) <= _TINY else 0.0
    return float(2 * special.stdtr(degrees, -abs(distance) / error))


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
    return _quantile(num_rounds - 1)


def _quantile(degrees: float) -> float:
    from scipy import special

    return float(special.stdtrit(degrees, 1 - ALPHA / 2))


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


def _noncentrality(degrees: float) -> float:
    """How many standard errors a true effect must measure to be found with a power of 0.8."""
    from scipy import special

    return float(special.nctdtrinc(degrees, 1 - POWER, _quantile(degrees)))


def _bootstrap(logs: Values) -> Interval:
    """Percentiles of resampled means; the draws are fixed, so that a report is the same each time."""
    draws = np.random.default_rng(0).integers(0, logs.size, size=(_NUM_RESAMPLES, logs.size))
    low, high = np.percentile(logs[draws].mean(axis=1), [100 * ALPHA / 2, 100 * (1 - ALPHA / 2)])
    return Interval(float(low), float(high))
