"""The median of samples and an interval for it, from order statistics alone. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

CONFIDENCE = 0.95
FEWEST = 6
"""With fewer samples not even the smallest and the largest enclose the median with 95 %."""

METHOD = (
    "median of samples; interval: the order statistics that enclose the median with at least 95 % "
    "(binomial, no assumption about the distribution; samples taken as independent)"
)


class Estimate(NamedTuple):
    """`low` and `high` are None where there are too few samples; `reason` says so. `least`: the smallest."""

    value: float
    low: float | None
    high: float | None
    n: int
    least: float
    reason: str | None = None


def estimate(samples: Sequence[float]) -> Estimate:
    """Of at least one sample."""
    ordered, n = sorted(samples), len(samples)
    middle = float(median(ordered))
    rank = _rank(n)
    if rank is None:
        return Estimate(middle, None, None, n, float(ordered[0]), f"{n} samples; an interval needs {FEWEST}")
    return Estimate(middle, float(ordered[rank - 1]), float(ordered[n - rank]), n, float(ordered[0]))


def _rank(n: int) -> int | None:
    """The largest k for which the k-th smallest and the k-th largest of n enclose the median with 95 %.

    They miss it when fewer than k of n samples fall on one side of it: twice P(Binomial(n, 1/2) < k).
    """
    tail, k = 0.0, 0
    while k < n:
        tail += math.comb(n, k) / 2**n
        if 2 * tail > 1 - CONFIDENCE:
            break
        k += 1
    return k or None
