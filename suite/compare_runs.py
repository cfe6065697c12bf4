"""The same case and arm in two run folders: which belong together, and what differs between them.

Cases are matched by content (case_id), never by name. Made from records alone; a wrong arm gets no verdict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from suite.case_design import CaseKey, Design, old_design
from suite.case_label import case_title
from suite.checks import Broken, Finding, broken_rules
from suite.comparison import (
    aa_floor,
    by_round,
    has_wrong_tokens,
    left_out_rounds,
    paired_runs,
    why_not_judged,
)
from suite.metrics import DEFINITIONS
from suite.ratios import LeftOut, Ratio, factor, unpaired_ratio
from suite.record import RunRecord
from suite.verdict import Floor, Verdict, Word, adjusted_p_values, decide

WRONG_BASE = "the base has wrong tokens"
OTHER_WORKLOAD = "the requests are others, though the case is the same: its workload hash differs"
NO_DIRECTION = "neither more nor less of it is better"


@dataclass(frozen=True, slots=True)
class Side:
    """One run folder. Two with the same `interleaved` took turns in the same rounds (suite/baseline.py)."""

    name: str
    runs: tuple[RunRecord, ...]
    design_of: Mapping[CaseKey, Design]
    findings: tuple[Finding, ...] = ()
    interleaved: str | None = None

    @property
    def broken(self) -> Broken:
        return broken_rules(self.findings)

    def cases(self) -> Mapping[str, list[RunRecord]]:
        """case_id -> its runs."""
        found: dict[str, list[RunRecord]] = {}
        for run in self.runs:
            found.setdefault(run.case_id, []).append(run)
        return found


@dataclass(frozen=True, slots=True)
class Middle:
    """The median over a side's rounds that count, and how many those are; None where there are none."""

    value: float | None
    num_rounds: int
    left_out: LeftOut | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """`head` / `base` in a metric of one arm of one case; `adjusted_p` is Holm's over all compared."""

    scenario: str
    case_id: str
    case_label: str
    arm: str
    base: str
    head: str
    metric: str
    base_middle: Middle
    head_middle: Middle
    ratio: Ratio
    floor: Floor
    verdict: Verdict
    adjusted_p: float | None = None

    @property
    def case(self) -> str:
        return case_title(self.scenario, self.case_label)

    @property
    def pairing(self) -> str:
        return "paired" if self.ratio.is_paired else "unpaired"

    @property
    def smallest_effect(self) -> float | None:
        """The smallest log ratio decided with a power of 0.8; the floor is part of it."""
        return None if self.floor.value is None else self.ratio.smallest_effect(self.floor.value)

    @property
    def notes(self) -> tuple[str, ...]:
        """What of either side was left out, or is odd."""
        return (*(() if self.ratio.is_paired else self.lost), *self.ratio.all_notes)

    @property
    def lost(self) -> tuple[str, ...]:
        """Which rounds of either side count for nothing: "head: 1 of 9 rounds INVALID (drift)"."""
        sides = ((self.base, self.base_middle.left_out), (self.head, self.head_middle.left_out))
        return tuple(f"{name}: {left_out}" for name, left_out in sides if left_out)

    def document(self) -> dict[str, object]:
        """For JSON; ratios are factors, so that 1.03 is 3 % more than the base."""
        ratio, definition = self.ratio, DEFINITIONS[self.metric]
        interval = ratio.interval
        return {
            "scenario": self.scenario,
            "case_id": self.case_id,
            "case_label": self.case_label,
            "arm": self.arm,
            "base": self.base,
            "head": self.head,
            "metric": self.metric,
            "unit": definition.unit,
            "better": definition.better,
            "base_median": self.base_middle.value,
            "head_median": self.head_middle.value,
            "num_base_rounds": self.base_middle.num_rounds,
            "num_head_rounds": self.head_middle.num_rounds,
            "interval_kind": self.pairing,
            "ratio": ratio.value,
            "interval_low": factor(interval.low) if interval else None,
            "interval_high": factor(interval.high) if interval else None,
            "p_value": ratio.p_value,
            "adjusted_p_value": self.adjusted_p,
            "noise_floor": factor(self.floor.value),
            "noise_floor_reason": self.floor.reason,
            "smallest_effect": factor(self.smallest_effect),
            "verdict": self.verdict.word.value,
            "reason": self.verdict.reason,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Missing:
    """An arm of a case of the base that a head lacks, in words as well."""

    scenario: str
    case_id: str
    case_label: str
    arm: str
    head: str
    text: str

    @property
    def case(self) -> str:
        return case_title(self.scenario, self.case_label)


@dataclass(frozen=True, slots=True)
class Compared:
    """`unmatched`: cases and arms without a partner, in words.

    `missing`: of them, every arm of the base that is right by design.
    """

    differences: tuple[Difference, ...]
    unmatched: tuple[str, ...]
    missing: tuple[Missing, ...] = ()


def compare_sides(
    base: Side, heads: Sequence[Side], metrics: Sequence[str] = (), more: Sequence[str] = ()
) -> Compared:
    """Every arm of every case that a head shares with the base, in `metrics`, or else the primary ones.

    `more` metrics are compared as well. Holm is over all there is.
    """
    found = [one for head in heads for one in _differences(base, head, metrics, more)]
    unmatched = [text for head in heads for text in _unmatched(base, head)]
    missing = tuple(one for head in heads for one in _missing(base, head))
    return Compared(tuple(_decided(found)), tuple(dict.fromkeys(unmatched)), missing)


def _missing(base: Side, head: Side) -> Iterator[Missing]:
    others = head.cases()
    for case_id, runs in base.cases().items():
        first = runs[0]
        arms = {run.arm for run in others.get(case_id, ())}
        for arm in dict.fromkeys(run.arm for run in runs if not run.is_control and run.arm not in arms):
            text = f"{_name(first)}: arm {arm} of {base.name} is missing in {head.name}"
            yield Missing(first.scenario, case_id, first.case_label, arm, head.name, text)


def _unmatched(base: Side, head: Side) -> Iterator[str]:
    for side, other in ((base, head), (head, base)):
        others = other.cases()
        for case_id, runs in side.cases().items():
            if case_id not in others:
                yield f"{_name(runs[0])} of {side.name} has no partner in {other.name}{_alike(runs, other)}"
                continue
            arms = {run.arm for run in others[case_id]}
            for arm in dict.fromkeys(run.arm for run in runs if run.arm not in arms):
                yield f"{_name(runs[0])}: arm {arm} of {side.name} has no partner in {other.name}"


def _name(run: RunRecord) -> str:
    return f"the case {case_title(run.scenario, run.case_label)} ({run.case_id})"


def _alike(runs: Sequence[RunRecord], other: Side) -> str:
    """That a case of the same name is there, and is another: sizes, traffic, model or seed differ."""
    named = (runs[0].scenario, runs[0].case_label)
    twins = dict.fromkeys(run.case_id for run in other.runs if (run.scenario, run.case_label) == named)
    if not twins:
        return ""
    return f"; one of the same name there is another case ({', '.join(twins)}): its content differs"


def _differences(base: Side, head: Side, metrics: Sequence[str], more: Sequence[str]) -> Iterator[Difference]:
    cases = head.cases()
    for case_id, base_runs in base.cases().items():
        head_runs = cases.get(case_id, [])
        design = base.design_of.get((base_runs[0].scenario, case_id)) or old_design(base_runs)
        arms = {run.arm for run in head_runs}
        for metric in dict.fromkeys((*(metrics or design.metrics), *more)):
            for arm in dict.fromkeys(run.arm for run in base_runs if run.arm in arms):
                pair = _Pair(base, head, base_runs, head_runs, design.reference, arm, metric)
                yield pair.difference()


@dataclass(frozen=True, slots=True)
class _Pair:
    """One arm and metric of a case that both sides have."""

    base: Side
    head: Side
    base_runs: Sequence[RunRecord]
    head_runs: Sequence[RunRecord]
    reference: str | None
    arm: str
    metric: str

    def difference(self) -> Difference:
        """Without a verdict yet, unless there can be none."""
        first = self.base_runs[0]
        why = why_not_judged([run for run in self.head_runs if run.arm == self.arm])
        if why is None and DEFINITIONS[self.metric].better == "neither":
            verdict = Verdict(Word.NONE, NO_DIRECTION)
        else:
            verdict = Verdict(Word.NONE if why else Word.CANNOT_TELL, why or "")
        return Difference(
            scenario=first.scenario,
            case_id=first.case_id,
            case_label=first.case_label,
            arm=self.arm,
            base=self.base.name,
            head=self.head.name,
            metric=self.metric,
            base_middle=self._middle(self.base_runs, self.base),
            head_middle=self._middle(self.head_runs, self.head),
            ratio=self._ratio(why),
            floor=self._floor(),
            verdict=verdict,
        )

    def _ratio(self, why: str | None) -> Ratio:
        if why is None and has_wrong_tokens(run for run in self.base_runs if run.arm == self.arm):
            why = WRONG_BASE
        if why is None and not self._is_same_workload():
            why = OTHER_WORKLOAD
        why = why or self._why_no_data(self.base_runs, self.base)
        why = why or self._why_no_data(self.head_runs, self.head)
        if why is not None:
            return Ratio(0, reason=why, num_under=None if self._is_interleaved() else 0)
        over, under = self._measured(self.head_runs), self._measured(self.base_runs)
        invalid, base_invalid = self.head.broken, self.base.broken
        if self._is_interleaved():
            return paired_runs(over, under, self.metric, invalid, base_invalid)
        return unpaired_ratio(
            list(by_round(over, self.metric, invalid).values()),
            list(by_round(under, self.metric, base_invalid).values()),
        )

    def _why_no_data(self, runs: Sequence[RunRecord], side: Side) -> str | None:
        """Where no round that counts has a value: the metric's own reason, if it has one."""
        if any(value is not None for value in self._values(runs, side)):
            return None
        found = [run.metrics.get(self.metric) for run in self._measured(runs)]
        reasons = [metric.reason for metric in found if metric is not None and metric.reason]
        return f"no data in {side.name}: {reasons[0] if reasons else 'no round of it counts'}"

    def _is_interleaved(self) -> bool:
        return self.base.interleaved is not None and self.base.interleaved == self.head.interleaved

    def _is_same_workload(self) -> bool:
        hashes = [{run.workload_hash for run in runs} for runs in (self.base_runs, self.head_runs)]
        return hashes[0] == hashes[1]

    def _measured(self, runs: Sequence[RunRecord]) -> list[RunRecord]:
        return [run for run in runs if run.arm == self.arm and run.is_measured]

    def _values(self, runs: Sequence[RunRecord], side: Side) -> list[float | None]:
        return list(by_round(self._measured(runs), self.metric, side.broken).values())

    def _middle(self, runs: Sequence[RunRecord], side: Side) -> Middle:
        there = [value for value in self._values(runs, side) if value is not None]
        left_out = left_out_rounds((self._measured(runs), side.broken))
        return Middle(median(there) if there else None, len(there), left_out)

    def _floor(self) -> Floor:
        """The wider of both sides'; none where one has none."""
        if self.reference is None:
            return Floor(None, reason="the case has no reference arm")
        sides = ((self.base, self.base_runs), (self.head, self.head_runs))
        floors = {side.name: aa_floor(runs, self.reference, self.metric, side.broken) for side, runs in sides}
        absent = [f"{name}: {floor.reason}" for name, floor in floors.items() if floor.value is None]
        if not absent:
            return max(floors.values(), key=lambda floor: floor.value or 0.0)
        return Floor(
            None,
            min(floor.num_rounds for floor in floors.values()),
            "; ".join(absent),
            is_unsteady=any(floor.is_unsteady for floor in floors.values()),
            shift=_shift(floors.values()),
        )


def _shift(floors: Collection[Floor]) -> float | None:
    """How far what sets either side's arm apart from itself may shift the ratio of both: by the sum.

    None where one side tells neither that nor its noise, or neither side is unsteady.
    """
    known = [floor for floor in floors if floor.is_unsteady or floor.value is not None]
    if len(known) < len(floors) or not any(floor.is_unsteady for floor in known):
        return None
    shift = sum(floor.shift or 0.0 for floor in known)
    return max(shift, *(floor.value or 0.0 for floor in known))


def _decided(found: Sequence[Difference]) -> Iterator[Difference]:
    """With Holm's correction over all that have a p value, and the verdicts."""
    adjusted = adjusted_p_values([(one.ratio, one.floor) for one in found])
    for one, p_value in zip(found, adjusted, strict=True):
        better = DEFINITIONS[one.metric].better
        if one.verdict.word is Word.NONE or better == "neither":
            yield one
        else:
            verdict = decide(one.ratio, one.floor, better, p_value)
            yield replace(one, adjusted_p=p_value, verdict=verdict)
