"""The gate: limits on how much a metric may change (--fail-on), and what comparisons say of them.

Pure. A limit is broken where the whole interval lies beyond it, or where there is nothing to compare, be it
of one arm of one case, or because too few rounds are left of which none is INVALID: a gate that finds no data
must not open. What one cannot tell breaks nothing, and is told. Where a run differs from itself the interval
is taken to reach as much farther.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from suite.compare_runs import Compared, Difference, Missing
from suite.comparison import WRONG_ARM
from suite.errors import SuiteError
from suite.metrics import DEFINITIONS
from suite.ratios import ALPHA, holm
from suite.schema import one_of
from suite.verdict import UNSTEADY

_LIMIT = re.compile(r"\s*([^<>\s]+)\s*([<>])\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*%\s*")
_MAX_PERCENT = 1_000_000
_GRAMMAR = "write METRIC, < or >, and a signed percentage, such as output_throughput<-3% or p99_ttft_ms>+5%"


@dataclass(frozen=True, slots=True)
class Limit:
    """`is_below`: broken by a change below `log`, a log ratio; else by one above. `text` is the user's."""

    text: str
    metric: str
    is_below: bool
    log: float


class Outcome(StrEnum):
    BROKEN = "FAILED"
    NO_DATA = "FAILED, no data"
    HELD = "held"
    CANNOT_TELL = "CANNOT TELL"

    @property
    def is_failure(self) -> bool:
        return self in (Outcome.BROKEN, Outcome.NO_DATA)


@dataclass(frozen=True, slots=True)
class Judged:
    """One limit held against one difference; None: there was none with its metric, or an arm is `missing`."""

    limit: Limit
    difference: Difference | None
    outcome: Outcome
    reason: str
    missing: Missing | None = None

    def document(self) -> dict[str, object]:
        one = self.difference or self.missing
        return {
            "limit": self.limit.text.strip(),
            "metric": self.limit.metric,
            "scenario": one.scenario if one else None,
            "case_id": one.case_id if one else None,
            "case_label": one.case_label if one else None,
            "arm": one.arm if one else None,
            "head": one.head if one else None,
            "outcome": self.outcome.name.lower(),
            "is_failure": self.outcome.is_failure,
            "reason": self.reason,
        }


def read_limits(texts: Sequence[str]) -> tuple[Limit, ...]:
    """From the option's texts. SuiteError for one that is none, with the metrics there are."""
    return tuple(map(read_limit, texts))


def read_limit(text: str) -> Limit:
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise SuiteError(f"--fail-on {text!r}: {_GRAMMAR}")
    metric, sign, percent = found[1], found[2], float(found[3])
    if metric not in DEFINITIONS:
        raise SuiteError(f"--fail-on {text!r}: {metric} is no metric: {one_of(metric, DEFINITIONS)}")
    if not -100 < percent <= _MAX_PERCENT:
        raise SuiteError(
            f"--fail-on {text!r}: a limit is above -100 % (all of it is gone) and at most "
            f"{_MAX_PERCENT:,} %; {_GRAMMAR}"
        )
    return Limit(text.strip(), metric, sign == "<", math.log1p(percent / 100))


def judge(limits: Sequence[Limit], compared: Compared) -> tuple[Judged, ...]:
    """Every limit on every difference in its metric, and on every arm of the base that a head lacks.

    Arms that are wrong by design are not held to any.
    """
    return tuple(one for limit in limits for one in _judge(limit, compared))


def _judge(limit: Limit, compared: Compared) -> list[Judged]:
    found = _judge_differences(limit, compared.differences)
    found += [Judged(limit, None, Outcome.NO_DATA, one.text, one) for one in compared.missing]
    return found or [Judged(limit, None, Outcome.NO_DATA, "no case and arm are in both")]


def _judge_differences(limit: Limit, differences: Sequence[Difference]) -> list[Judged]:
    own = [one for one in differences if one.metric == limit.metric and one.verdict.reason != WRONG_ARM]
    found = [_look(limit, one) for one in own]
    adjusted = holm([_p_value(one) for one in found])
    return [_by_chance(one) if p_value > ALPHA else one for one, p_value in zip(found, adjusted, strict=True)]


def _by_chance(one: Judged) -> Judged:
    if one.outcome is not Outcome.BROKEN:
        return one
    reason = "one of several held to the limit: by chance alone often enough (Holm)"
    return replace(one, outcome=Outcome.CANNOT_TELL, reason=reason)


def _p_value(one: Judged) -> float:
    """Of no difference from the limit, or from what a shift makes of it; 1 where there is no interval."""
    assert one.difference is not None
    shift = one.difference.floor.shift or 0.0
    found = one.difference.ratio.p_against(
        one.limit.log - shift if one.limit.is_below else one.limit.log + shift
    )
    return 1.0 if found is None else found


def _look(limit: Limit, one: Difference) -> Judged:
    ratio = one.ratio
    if ratio.num_rounds == 0 or ratio.num_under == 0:
        return Judged(limit, one, Outcome.NO_DATA, _plain(ratio.reason) or "no round of both has a value")
    if ratio.interval is None and one.lost:
        told = () if ratio.is_paired else one.lost  # a paired ratio's reason names them
        return Judged(limit, one, Outcome.NO_DATA, "; ".join([*told, _plain(ratio.reason)]))
    if ratio.interval is None:
        return Judged(limit, one, Outcome.CANNOT_TELL, _plain(ratio.reason))
    shift = one.floor.shift if one.floor.is_unsteady else 0.0
    if shift is None:
        return Judged(limit, one, Outcome.CANNOT_TELL, one.floor.reason or UNSTEADY)
    low, high = ratio.interval.low - shift, ratio.interval.high + shift
    whole = "the whole interval, even shifted by what A/A shows," if shift else "the whole interval"
    if (high < limit.log) if limit.is_below else (low > limit.log):
        return Judged(limit, one, Outcome.BROKEN, f"{whole} lies beyond the limit")
    if (low >= limit.log) if limit.is_below else (high <= limit.log):
        return Judged(limit, one, Outcome.HELD, f"{whole} lies within the limit")
    reason = one.floor.reason if shift else None
    return Judged(limit, one, Outcome.CANNOT_TELL, reason or "the interval reaches across the limit")


def _plain(reason: str | None) -> str:
    return (reason or "").removeprefix("cannot tell: ")
