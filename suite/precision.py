"""Precision: how many rounds a case needs, decided by the width of its intervals alone, within a budget.

Pure. What the intervals say is never looked at, only how wide they are, and never before MIN_ROUNDS rounds:
a rule that stops on a verdict finds one by waiting for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from suite.errors import SuiteError
from suite.ratios import Interval

MIN_ROUNDS = 10
MAX_ROUNDS = 1_000
DEFAULT_BUDGET_S = 600.0
_LONGEST_BUDGET_S = 2700 * 3600.0

_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|m|h)\s*")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Precision:
    """`percent`: how wide the 95 % interval of every ratio may be, end to end. `budget_s`: of all cases."""

    percent: float
    budget_s: float = DEFAULT_BUDGET_S

    def is_reached(self, intervals: Sequence[Interval | None], num_rounds: int) -> bool:
        """Whether every interval is narrow enough; None for one that there is not yet."""
        if num_rounds < MIN_ROUNDS or not intervals:
            return False
        width = math.log1p(self.percent / 100)
        return all(one is not None and one.high - one.low <= width for one in intervals)


def share_s(left_s: float, num_cases_left: int) -> float:
    """What the next case may take: what one leaves is for those after it."""
    return max(0.0, left_s) / num_cases_left


def is_spent(spent_s: float, round_s: Sequence[float], limit_s: float) -> bool:
    """Whether one more round of median length would end behind the limit; never before there was one."""
    return bool(round_s) and spent_s + median(round_s) > limit_s


def read_precision(percent: str | None, budget: str | None) -> Precision | None:
    """From the options' texts, "1%" and "10m"; None where no precision is asked for."""
    if percent is None:
        return None
    found = _PERCENT.fullmatch(percent)
    if found is None or not 0 < float(found[1]) <= 100:
        shown = percent.strip() or "''"
        raise SuiteError(
            f"--until-precision {shown}: it must be a percentage above 0 and at most 100, with its sign: "
            "write for instance 1%"
        )
    return Precision(float(found[1]), DEFAULT_BUDGET_S if budget is None else read_budget(budget))


def read_budget(text: str) -> float:
    """Seconds, from the text of an option such as "10m"."""
    found = _DURATION.fullmatch(text)
    if found is None or not 0 < float(found[1]) * _SECONDS[found[2]] <= _LONGEST_BUDGET_S:
        shown = text.strip() or "''"
        raise SuiteError(
            f"--budget {shown}: it must be a duration above 0 and at most 2700h, with its unit: write for "
            "instance 90s, 10m or 1h"
        )
    return float(found[1]) * _SECONDS[found[2]]
