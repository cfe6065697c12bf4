"""Whole numbers drawn by weight: what a histogram of lengths or counts is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt


class WeightedValues:
    """Draws each value as often as its weight says; the order they are given in changes nothing.

    There must be at least one value, and every weight must be above 0; they need not add up to 1.
    """

    def __init__(self, weights: Mapping[int, float]) -> None:
        ordered = sorted(weights.items())
        self._values = np.array([value for value, _ in ordered], np.int64)
        cumulative = np.cumsum([weight for _, weight in ordered])
        self._ends = cumulative / cumulative[-1]

    def draw(self, generator: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        drawn: npt.NDArray[np.int64] = self._values[
            np.searchsorted(self._ends, generator.random(count), side="right")
        ]
        return drawn
