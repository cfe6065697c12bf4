"""Comparison: an arm of a case held against the case's reference arm, in a primary metric, round by round.

Made from records alone. Only runs that measured and broke no rule enter; a wrong arm gets no verdict. Of the
reference arm a round has two runs where there are A/A runs, and both count.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from suite.case_design import CaseKey, Design, old_design
from suite.checks import Broken, Finding, broken_rules
from suite.metrics import DEFINITIONS
from suite.ratios import Interval, LeftOut, Ratio, factor, paired_ratio, with_left_out
from suite.record import RunRecord, Status
from suite.verdict import Floor, Verdict, Word, adjusted_p_values, decide, noise_floor

WRONG_ARM = "wrong by design, speed not judged"
WRONG_TOKENS = "wrong tokens, speed not judged"
WRONG_REFERENCE = "the reference arm has wrong tokens"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`arm` / `reference` in `metric`; `adjusted_p` is Holm's over all comparisons of the case."""

    scenario: str
    case_id: str
    case_label: str
    arm: str
    reference: str
    metric: str
    ratio: Ratio
    floor: Floor
    verdict: Verdict
    adjusted_p: float | None = None

    @property
    def smallest_effect(self) -> float | None:
        """The smallest log ratio decided with a power of 0.8; the floor is part of it."""
        return None if self.floor.value is None else self.ratio.smallest_effect(self.floor.value)

    def document(self) -> dict[str, object]:
        """For JSON; ratios are factors, so that 1.03 is 3 % more than the reference arm."""
        ratio, definition = self.ratio, DEFINITIONS[self.metric]
        return {
            "scenario": self.scenario,
            "case_id": self.case_id,
            "case_label": self.case_label,
            "arm": self.arm,
            "reference": self.reference,
            "metric": self.metric,
            "better": definition.better,
            "num_rounds": ratio.num_rounds,
            "ratio": ratio.value,
            **_ends("interval", ratio.interval),
            "p_value": ratio.p_value,
            "adjusted_p_value": self.adjusted_p,
            "noise_floor": factor(self.floor.value),
            "noise_floor_reason": self.floor.reason,
            "num_aa_rounds": self.floor.num_rounds,
            "smallest_effect": factor(self.smallest_effect),
            **_ends("bootstrap", ratio.bootstrap),
            "bootstrap_disagrees": ratio.bootstrap_disagrees,
            "verdict": self.verdict.word.value,
            "reason": self.verdict.reason,
            "notes": list(ratio.all_notes),
        }


def compare(
    runs: Sequence[RunRecord], design_of: Mapping[CaseKey, Design], findings: Sequence[Finding] = ()
) -> tuple[Comparison, ...]:
    """Every arm of every case against its reference, in the order the arms first ran."""
    invalid = broken_rules(findings)
    cases: dict[CaseKey, list[RunRecord]] = {}
    for run in runs:
        cases.setdefault((run.scenario, run.case_id), []).append(run)
    return tuple(
        comparison
        for key, group in cases.items()
        for comparison in _compare_case(group, design_of.get(key) or old_design(group), invalid)
    )


def _compare_case(runs: Sequence[RunRecord], design: Design, invalid: Broken) -> Iterable[Comparison]:
    arms = dict.fromkeys(run.arm for run in runs)
    if design.reference not in arms:
        return ()
    found = [
        _compare_arm(runs, arm, design.reference, metric, invalid)
        for metric in design.metrics
        for arm in arms
        if arm != design.reference
    ]
    return _decided(found)


def _compare_arm(
    runs: Sequence[RunRecord], arm: str, reference: str, metric: str, invalid: Broken
) -> Comparison:
    """Without a verdict yet, unless there can be none."""
    over = [run for run in runs if run.arm == arm and run.is_measured]
    under, again = reference_runs(runs, reference)
    why = why_not_judged([run for run in runs if run.arm == arm])
    if why is None and has_wrong_tokens(run for run in runs if run.arm == reference):
        ratio = Ratio(0, reason=WRONG_REFERENCE)
    else:
        ratio = Ratio(0, reason=why) if why else paired_runs(over, under, metric, invalid, again=again)
    return Comparison(
        scenario=runs[0].scenario,
        case_id=runs[0].case_id,
        case_label=runs[0].case_label,
        arm=arm,
        reference=reference,
        metric=metric,
        ratio=ratio,
        floor=aa_floor(runs, reference, metric, invalid),
        verdict=Verdict(Word.NONE if why else Word.CANNOT_TELL, why or ""),
    )


def aa_floor(runs: Sequence[RunRecord], reference: str, metric: str, invalid: Broken) -> Floor:
    """The noise floor of a case from its runs: the reference arm against itself in the same rounds."""
    under, again = reference_runs(runs, reference)
    return noise_floor(paired_runs(again, under, metric, invalid) if again else None)


def reference_runs(
    runs: Sequence[RunRecord], reference: str
) -> tuple[Sequence[RunRecord], Sequence[RunRecord]]:
    """Of the reference arm: the runs of the rounds, and those made again in the same rounds (A/A)."""
    alike = [run for run in runs if run.arm == reference and run.is_timed_alike]
    return [run for run in alike if not run.is_aa], [run for run in alike if run.is_aa]


def _decided(found: Sequence[Comparison]) -> list[Comparison]:
    """With Holm's correction over all that have a p value, and the verdicts."""
    adjusted = adjusted_p_values([(one.ratio, one.floor) for one in found])
    decided = []
    for one, p_value in zip(found, adjusted, strict=True):
        if one.verdict.word is not Word.NONE:
            better = DEFINITIONS[one.metric].better
            assert better != "neither", f"{one.metric} has no better direction"
            one = replace(one, adjusted_p=p_value, verdict=decide(one.ratio, one.floor, better, p_value))
        decided.append(one)
    return decided


def why_not_judged(runs: Sequence[RunRecord]) -> str | None:
    if any(run.is_control for run in runs):
        return WRONG_ARM
    return WRONG_TOKENS if has_wrong_tokens(runs) else None


def has_wrong_tokens(runs: Iterable[RunRecord]) -> bool:
    return any(run.tokens is not None and run.tokens.num_wrong > 0 for run in runs)


def paired_runs(
    over: Sequence[RunRecord],
    under: Sequence[RunRecord],
    metric: str,
    invalid: Broken,
    under_invalid: Broken | None = None,
    again: Sequence[RunRecord] = (),
) -> Ratio:
    """Of runs that took turns in the same rounds; `under_invalid`: where those under are another folder's.

    A round of which either run is INVALID is left out of both. `again`: what ran once more under the line;
    where that is valid, the round's value there is the geometric mean of both, which has less noise.
    """
    sides = ((over, invalid), (under, invalid if under_invalid is None else under_invalid))
    bad = invalid_rounds(*sides)
    of_over, of_under = (
        by_round([run for run in runs if run.round not in bad], metric, ()) for runs, _ in sides
    )
    of_both = _mean_of_both(of_under, by_round(again, metric, sides[1][1]))
    return with_left_out(paired_ratio(of_over, of_both), left_out_rounds(*sides))


def _mean_of_both(
    once: Mapping[int, float | None], again: Mapping[int, float | None]
) -> dict[int, float | None]:
    """Each round's geometric mean; the first value alone where the second is none, or has no logarithm."""
    return {
        number: math.sqrt(value * second)
        if value and value > 0 and (second := again.get(number)) and second > 0
        else value
        for number, value in once.items()
    }


def invalid_rounds(*sides: tuple[Sequence[RunRecord], Broken]) -> frozenset[int]:
    """Of which a run that came to its end, of any side, is INVALID."""
    return frozenset(
        run.round for runs, broken in sides for run in runs if run.is_completed and run.run_id in broken
    )


def left_out_rounds(*sides: tuple[Sequence[RunRecord], Broken]) -> LeftOut | None:
    """Of rounds that all sides share; a failed run is no INVALID one, and told elsewhere."""
    completed = [(run, broken) for runs, broken in sides for run in runs if run.is_completed]
    bad = sorted((run.round, rules) for run, broken in completed if (rules := broken.get(run.run_id)))
    if not bad:
        return None
    which = dict.fromkeys(rule for _, rules in bad for rule in rules)
    return LeftOut(len({run.round for run, _ in completed}), len({number for number, _ in bad}), tuple(which))


def by_round(runs: Sequence[RunRecord], metric: str, invalid: Container[str]) -> dict[int, float | None]:
    """Of the runs that completed and broke no rule."""
    return {
        run.round: run.metrics[metric].value if metric in run.metrics else None
        for run in runs
        if run.status is Status.COMPLETED and run.run_id not in invalid
    }


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {f"{name}_low": factor(low), f"{name}_high": factor(high)}
