"""Break-even: over the cases of a sweep, where async scheduling pays and where it does not.

Pure: records in, cells out. A case has a cell for each two arms that differ in nothing but scheduling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from suite.ratios import Interval, Ratio, factor
from suite.verdict import UNKNOWN_FLOOR, Floor, Word


@dataclass(frozen=True, slots=True)
class Cell:
    """The async arm `over` its sync twin `under` in `metric`, in one case of a sweep.

    `values`: swept key -> value. `verdict` is of the async arm. Without an interval `reason` says why.
    """

    scenario: str
    case_id: str
    case_label: str
    values: Mapping[str, object]
    over: str
    under: str
    metric: str  # of suite.metrics.DEFINITIONS
    better: Literal["higher", "lower"]
    ratio: Ratio
    verdict: Word
    reason: str
    floor: Floor = UNKNOWN_FLOOR

    @property
    def value(self) -> float | None:
        return self.ratio.value

    @property
    def interval(self) -> Interval | None:
        """Of the log ratio."""
        return self.ratio.interval

    def document(self) -> dict[str, object]:
        """For JSON; ratios are factors."""
        interval = self.interval
        return {
            "scenario": self.scenario,
            "case_id": self.case_id,
            "case_label": self.case_label,
            "values": dict(self.values),
            "over": self.over,
            "under": self.under,
            "metric": self.metric,
            "better": self.better,
            "ratio": self.value,
            "interval_low": None if interval is None else factor(interval.low),
            "interval_high": None if interval is None else factor(interval.high),
            "num_rounds": self.ratio.num_rounds,
            "noise_floor": factor(self.floor.value),
            "verdict": self.verdict.value,
            "reason": self.reason,
        }
