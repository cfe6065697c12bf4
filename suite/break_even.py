"""Break-even: over the cases of a sweep, where async scheduling pays and where it does not.

Pure: records in, cells out. A case has a cell for each two arms that differ in nothing but scheduling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from suite.case_design import CaseKey, Design
from suite.checks import Finding
from suite.comparison import Comparison, compare
from suite.metrics import DEFINITIONS
from suite.ratios import Interval, Ratio, factor
from suite.record import RunRecord
from suite.verdict import UNKNOWN_FLOOR, Floor, Word, adjusted_p_values, decide

TWINS = (
    ("async-rows", "sync-rows"),
    ("refresh", "gated"),
    ("fused", "sync-fused"),
    ("ids", "sync-ids"),
)
"""Async arms and their sync twins, which differ in scheduling alone."""


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
            "noise_floor_reason": self.floor.reason,
            "verdict": self.verdict.value,
            "reason": self.reason,
        }


def break_even(
    runs: Sequence[RunRecord], design_of: Mapping[CaseKey, Design], findings: Sequence[Finding] = ()
) -> tuple[Cell, ...]:
    """A cell for each case of a sweep and each of TWINS that it ran, in the order the cases ran.

    In the case's first primary metric, by the rules of suite.comparison: Holm's correction is over all cells
    of a scenario, since one looks at all of them for where the sign turns.
    """
    cases: dict[CaseKey, list[RunRecord]] = {}
    for run in runs:
        cases.setdefault((run.scenario, run.case_id), []).append(run)
    num_cases = Counter(scenario for scenario, _ in cases)
    cells: dict[str, list[Cell]] = {}
    for key, group in cases.items():
        if num_cases[key[0]] > 1 and key in design_of and design_of[key].metrics:
            found = _cells(group, design_of[key], findings)
            cells.setdefault(key[0], []).extend(found)
    return tuple(cell for found in cells.values() for cell in _decided(found))


def _cells(runs: Sequence[RunRecord], design: Design, findings: Sequence[Finding]) -> Iterator[Cell]:
    """Without Holm's correction, and so without a verdict, unless there can be none."""
    arms = {run.arm for run in runs}
    metric = design.metrics[0]
    better = DEFINITIONS[metric].better
    assert better != "neither", f"{metric} has no better direction"
    floor = next((one.floor for one in _compared(runs, design.reference, metric, findings)), UNKNOWN_FLOOR)
    for over, under in TWINS:
        if not {over, under} <= arms or any(run.scheduling == "async" for run in runs if run.arm == under):
            continue
        one = next(found for found in _compared(runs, under, metric, findings) if found.arm == over)
        yield Cell(
            scenario=one.scenario,
            case_id=one.case_id,
            case_label=one.case_label,
            values=runs[0].case_values,
            over=over,
            under=under,
            metric=metric,
            better=better,
            ratio=one.ratio,
            verdict=one.verdict.word,
            reason=one.verdict.reason,
            floor=floor,
        )


def _compared(
    runs: Sequence[RunRecord], reference: str | None, metric: str, findings: Sequence[Finding]
) -> tuple[Comparison, ...]:
    key = (runs[0].scenario, runs[0].case_id)
    return compare(runs, {key: Design(reference, (metric,))}, findings)


def _decided(cells: Sequence[Cell]) -> Iterator[Cell]:
    judged = [cell for cell in cells if cell.verdict is not Word.NONE]
    adjusted = iter(adjusted_p_values([(cell.ratio, cell.floor) for cell in judged]))
    for cell in cells:
        if cell.verdict is Word.NONE:
            yield cell
            continue
        verdict = decide(cell.ratio, cell.floor, cell.better, next(adjusted))
        yield replace(cell, verdict=verdict.word, reason=verdict.reason)
