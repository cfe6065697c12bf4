"""Verdict: what a ratio says beside the noise floor, in one of four words, and why.

Pure. The floor is the half-width of the 95 % t interval of the A/A log ratio, one arm against itself in the
same rounds, and never below MIN_FLOOR. There is none where A/A itself shows a difference beyond MIN_FLOOR:
what sets the arm apart from itself may shift any other interval as much, so that only one that lies beyond
the farther end of A/A's decides, and nobody is equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from suite.ratios import ALPHA, Interval, Ratio, holm

MIN_FLOOR = math.log(1.005)
"""Two arms that differ by less than 0.5 % are equal for every use, however quiet the machine."""

NO_FLOOR = "no A/A rounds give the noise floor (aa: true runs the reference arm twice a round)"

UNSTEADY = "A/A: an arm differs from itself by more than chance, so that a difference no larger tells nothing"

BEYOND_FLOOR = "the interval lies wholly outside the noise floor"

BEYOND_UNSTEADY = "the interval lies wholly beyond even what A/A shows: an arm that differs from itself"


class Word(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal within the floor"
    CANNOT_TELL = "cannot tell"
    NONE = "no verdict"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` says why it is what it is, in one line. NONE: a wrong arm, whose speed is not judged."""

    word: Word
    reason: str


@dataclass(frozen=True, slots=True)
class Floor:
    """A log ratio that noise alone may show; None, with a reason, where it is not known.

    `is_unsteady`: an arm differs from itself, by `shift` at most, a log ratio; None where that is not known.
    """

    value: float | None
    num_rounds: int = 0
    reason: str | None = None
    is_unsteady: bool = False
    shift: float | None = None

    def p_value(self, ratio: Ratio) -> float | None:
        """Two-sided, of no difference beyond the shift if there is one; None where there is no interval."""
        if not self.shift or ratio.mean_log is None:
            return ratio.p_value
        if abs(ratio.mean_log) <= self.shift:
            return 1.0
        return ratio.p_against(math.copysign(self.shift, ratio.mean_log))


UNKNOWN_FLOOR = Floor(None, reason=NO_FLOOR)


def noise_floor(same: Ratio | None) -> Floor:
    """The floor from the A/A ratio; None: there were no A/A runs."""
    if same is None:
        return UNKNOWN_FLOOR
    if same.interval is None:
        return Floor(None, same.num_rounds, f"A/A: {same.reason}")
    if _is_outside(same.interval, MIN_FLOOR):
        farther = max(abs(same.interval.low), abs(same.interval.high))
        return Floor(None, same.num_rounds, UNSTEADY, is_unsteady=True, shift=farther)
    return Floor(max(MIN_FLOOR, same.interval.half_width), same.num_rounds)


def adjusted_p_values(judged: Sequence[tuple[Ratio, Floor]]) -> list[float | None]:
    """Of each floor for its ratio, with Holm's correction over all that have one; None for the others."""
    p_values = [floor.p_value(ratio) for ratio, floor in judged]
    adjusted = iter(holm([p_value for p_value in p_values if p_value is not None]))
    return [None if p_value is None else next(adjusted) for p_value in p_values]


def decide(
    ratio: Ratio, floor: Floor, better: Literal["higher", "lower"], adjusted_p: float | None
) -> Verdict:
    """The verdict on a ratio of a metric.

    `adjusted_p`: of `adjusted_p_values`, over all comparisons of the case.
    """
    if ratio.interval is None:
        return Verdict(Word.CANNOT_TELL, (ratio.reason or "").removeprefix("cannot tell: "))
    limit = floor.value if floor.shift is None else floor.shift
    if limit is None:
        return Verdict(Word.CANNOT_TELL, floor.reason or "")
    is_outside = _is_outside(ratio.interval, limit)
    if is_outside and adjusted_p is not None and adjusted_p <= ALPHA:
        is_higher = ratio.interval.low > 0
        word = Word.FASTER if is_higher == (better == "higher") else Word.SLOWER
        return Verdict(word, BEYOND_UNSTEADY if floor.is_unsteady else BEYOND_FLOOR)
    if is_outside:
        return Verdict(Word.CANNOT_TELL, "one of several comparisons: by chance alone often enough (Holm)")
    if floor.is_unsteady:
        return Verdict(Word.CANNOT_TELL, floor.reason or UNSTEADY)
    if -limit <= ratio.interval.low and ratio.interval.high <= limit:
        return Verdict(Word.EQUAL, "the interval lies wholly inside the noise floor")
    return Verdict(Word.CANNOT_TELL, "the interval reaches across the edge of the noise floor")


def _is_outside(interval: Interval, floor: float) -> bool:
    return interval.low > floor or interval.high < -floor
