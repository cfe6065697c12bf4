"""StepCosts: what the instrumented run of an arm says of its steps, read from a loaded run folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from runner.measure import StepRecord
from runner.spans import Level, Span, records_host
from suite.cost_tables import CostTables, cost_tables
from suite.errors import SuiteError
from suite.record import RunRecord, Status
from suite.span_costs import span_costs

ArmKey = tuple[str, str, str]
"""scenario, case_id, arm"""


class LoadedSteps(Protocol):
    """What is asked of a loaded run folder; `suite.store` has it."""

    def step_records(self, run_id: str) -> Sequence[StepRecord]: ...
    def spans(self, run_id: str) -> Sequence[Span]: ...


@dataclass(frozen=True, slots=True)
class StepCosts:
    """`tables` is None exactly when `reason` says why. `num_spans` were recorded in `num_steps` steps.

    `clock_uncertainty_ns`: of device times on the host's clock; 0 where both have one clock.
    """

    run_id: str
    level: Level
    num_steps: int
    num_spans: int
    clock_uncertainty_ns: int | None
    tables: CostTables | None
    reason: str | None = None

    def document(self) -> dict[str, object]:
        """For JSON."""
        return {
            "run_id": self.run_id,
            "level": self.level,
            "num_steps": self.num_steps,
            "num_spans": self.num_spans,
            "clock_uncertainty_ns": self.clock_uncertainty_ns,
            "reason": self.reason,
            "tables": self.tables.document() if self.tables else None,
        }


def costs_by_arm(runs: Iterable[RunRecord], loaded: LoadedSteps) -> dict[ArmKey, StepCosts]:
    """Of each arm with instrumented runs, the first that completed, or why there are no figures."""
    groups: dict[ArmKey, list[RunRecord]] = {}
    for run in runs:
        if run.instrument != "off":
            groups.setdefault((run.scenario, run.case_id, run.arm), []).append(run)
    return {key: _costs_of(group, loaded) for key, group in groups.items()}


def of_arm(costs: Mapping[ArmKey, StepCosts], run: RunRecord) -> StepCosts | None:
    return costs.get((run.scenario, run.case_id, run.arm))


def _costs_of(runs: Sequence[RunRecord], loaded: LoadedSteps) -> StepCosts:
    completed = [run for run in runs if run.status is Status.COMPLETED]
    if not completed:
        return _without(runs[0], "no run with instruments completed")
    run = completed[0]
    if not records_host(run.instrument):
        return _without(run, f"level {run.instrument} records nothing of its own: use --instrument events")
    try:
        records, spans = loaded.step_records(run.run_id), loaded.spans(run.run_id)
        if not spans:
            return _without(run, "its spans are not in the run folder")
        tables = cost_tables(span_costs(records, spans))
    except SuiteError as error:
        return _without(run, str(error))
    return StepCosts(run.run_id, run.instrument, len(records), len(spans), run.clock_uncertainty_ns, tables)


def _without(run: RunRecord, reason: str) -> StepCosts:
    return StepCosts(run.run_id, run.instrument, 0, 0, run.clock_uncertainty_ns, None, reason)
