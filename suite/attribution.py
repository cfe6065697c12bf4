"""Attribution: what one choice of a runner costs, from arms that ran the very same steps.

Pure: records in, lines out. Each line but those against `ids` compares two arms that differ in one choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.ratios import Interval, Ratio, factor
from suite.verdict import UNKNOWN_FLOOR, Floor, Word


@dataclass(frozen=True, slots=True)
class Line:
    """`over` / `under` in time a token, on one kind of step of one case.

    `ratio` is None exactly where no rounds were compared: the arms run the same commands there, one is
    missing, or the line does not apply; `reason` says which. `verdict` is of `over`: it is faster, slower,
    equal... `factors`: lines whose ratios multiply to this one's, made from the same rounds. `note`: what
    belongs beside it.
    """

    scenario: str
    case_id: str
    case_label: str
    name: str  # such as "flag upload"
    over: str
    under: str
    kind: str  # of step: suite.metrics.STEP_KINDS
    ratio: Ratio | None
    verdict: Word
    reason: str
    floor: Floor = UNKNOWN_FLOOR
    factors: tuple[Line, ...] = ()
    note: str = ""

    @property
    def value(self) -> float | None:
        return None if self.ratio is None else self.ratio.value

    @property
    def interval(self) -> Interval | None:
        return None if self.ratio is None else self.ratio.interval

    @property
    def product(self) -> float | None:
        """Of the factors; None where there are none, or one has no ratio."""
        logs = [one.ratio.mean_log for one in self.factors if one.ratio is not None]
        known = [log for log in logs if log is not None]
        return factor(sum(known)) if known and len(known) == len(self.factors) else None

    def document(self) -> dict[str, object]:
        """For JSON; ratios are factors, so that 1.03 is 3 % more time a token."""
        interval = self.interval
        return {
            "scenario": self.scenario,
            "case_id": self.case_id,
            "case_label": self.case_label,
            "line": self.name,
            "over": self.over,
            "under": self.under,
            "kind": self.kind,
            "ratio": self.value,
            "interval_low": None if interval is None else factor(interval.low),
            "interval_high": None if interval is None else factor(interval.high),
            "num_rounds": 0 if self.ratio is None else self.ratio.num_rounds,
            "noise_floor": factor(self.floor.value),
            "verdict": self.verdict.value,
            "reason": self.reason,
            "note": self.note,
            "product_of_factors": self.product,
            "factors": [one.document() for one in self.factors],
        }
