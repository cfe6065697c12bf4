"""The median's interval against its definition, and against draws from a lopsided distribution."""

from __future__ import annotations

import random

import pytest

from suite.micro.median import estimate


def test_known_ranks() -> None:
    """From tables of the sign test: 6 of 6, then the 2nd of 9, the 6th of 20, the 40th of 100."""
    for n, rank in ((6, 1), (9, 2), (20, 6), (41, 14), (100, 40)):
        found = estimate(list(range(1, n + 1)))
        assert (found.low, found.high) == (rank, n + 1 - rank)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_too_few_samples_give_a_median_and_a_reason(n: int) -> None:
    found = estimate([3.0] * n)
    assert (found.value, found.low, found.high, found.n, found.least) == (3.0, None, None, n, 3.0)
    assert found.reason == f"{n} samples; an interval needs 6"


def test_coverage_of_a_lopsided_distribution() -> None:
    draw, covered = random.Random(5), 0
    for _ in range(2000):
        found = estimate([draw.expovariate(1.0) for _ in range(21)])
        assert found.low is not None and found.high is not None
        covered += found.low <= 0.6931 <= found.high
    assert 0.945 <= covered / 2000 <= 0.995
