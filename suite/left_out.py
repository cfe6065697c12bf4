"""What a run left out because its budget was spent, from its configuration and its records alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.case_label import case_title
from suite.record import RunRecord
from suite.store import LoadedRun


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Of one case: `num_rounds` of `planned_rounds` were made by every arm. `lacks`: what else is missing."""

    scenario: str
    case_id: str
    case_label: str
    num_rounds: int
    planned_rounds: int
    lacks: tuple[str, ...]

    @property
    def text(self) -> str:
        """ "smoke [x=1]: 2 of 6 rounds, no run with instruments"."""
        rounds = f"{self.num_rounds} of {self.planned_rounds} rounds"
        return f"{case_title(self.scenario, self.case_label)}: {', '.join((rounds, *self.lacks))}"

    def document(self) -> dict[str, object]:
        """For JSON."""
        return {
            "scenario": self.scenario,
            "case_id": self.case_id,
            "case_label": self.case_label,
            "num_rounds": self.num_rounds,
            "planned_rounds": self.planned_rounds,
            "lacks": list(self.lacks),
        }


def left_out(loaded: LoadedRun) -> tuple[LeftOut, ...]:
    """Every case with fewer runs than were planned, in the plan's order; none where no budget was given."""
    if _budget_s(loaded) is None:
        return ()
    found = (_of_case(loaded, case) for case in loaded.cases)
    return tuple(one for one in found if one.num_rounds < one.planned_rounds or one.lacks)


def left_out_texts(found: Sequence[LeftOut], loaded: LoadedRun) -> list[str]:
    """A line for each case, and how to go on; that is not possible with steps that an archive has thinned."""
    if not found:
        return []
    lines = [f"the budget of {_budget_s(loaded):g} s was spent: {one.text}" for one in found]
    how = f"what was left out is done by `{_command(loaded)}`, within as much time again"
    return [*lines, how] if loaded.one_in == 1 else lines


def left_out_document(found: Sequence[LeftOut], loaded: LoadedRun) -> dict[str, object]:
    """For JSON."""
    cases = [one.document() for one in found]
    return {"budget_s": _budget_s(loaded), "cases": cases, "command": _command(loaded)}


def _budget_s(loaded: LoadedRun) -> float | None:
    """The time that the whole run was given; None where it was given none."""
    found = loaded.invocation.get("budget_s")
    is_own = loaded.invocation.get("until_precision_percent") is None
    return float(found) if is_own and isinstance(found, int | float) else None


def _command(loaded: LoadedRun) -> str:
    return f"python -m suite run --resume {shlex.quote(str(loaded.path))}"


def _of_case(loaded: LoadedRun, case: Mapping[str, Any]) -> LeftOut:
    scenario, case_id = str(case.get("scenario")), str(case.get("case_id"))
    arms, runs = list(case.get("arms") or ()), _runs_of(loaded, scenario, case_id)
    rounds: dict[int, set[str]] = {}
    for run in runs:
        if run.is_measured:
            rounds.setdefault(run.round, set()).add(run.arm)
    return LeftOut(
        scenario=scenario,
        case_id=case_id,
        case_label=str(case.get("label")),
        num_rounds=sum(made >= set(arms) for made in rounds.values()),
        planned_rounds=int(case.get("rounds") or 0),
        lacks=tuple(_lacks(loaded, scenario, arms, runs)),
    )


def _runs_of(loaded: LoadedRun, scenario: str, case_id: str) -> list[RunRecord]:
    return [run for run in loaded.runs if (run.scenario, run.case_id) == (scenario, case_id)]


def _lacks(loaded: LoadedRun, scenario: str, arms: Sequence[str], runs: Sequence[RunRecord]) -> Iterator[str]:
    unchecked = [arm for arm in arms if not any(run.arm == arm and run.rotation is not None for run in runs)]
    if unchecked:
        yield f"no check of the tokens of {', '.join(unchecked)} before"
    asked = loaded.invocation
    if asked.get("instrument") != "off" and not _is_whole(arms, [run for run in runs if run.is_instrumented]):
        yield "not every run with instruments"
    if asked.get("sync_check") != "off" and not _is_whole(arms, [r for r in runs if r.sync_check != "off"]):
        yield "not every look for silent waits"
    config = next((one for one in loaded.config if one.get("name") == scenario), {})
    if config.get("amplify") and not _is_whole(arms, [run for run in runs if run.turns]):
        yield "no rounds of repeats"


def _is_whole(arms: Sequence[str], runs: Sequence[RunRecord]) -> bool:
    return {run.arm for run in runs} >= set(arms)
