"""From a loaded run folder to the StepCosts of each arm that has an instrumented run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from runner.core import RunnerError
from runner.measure import StepRecord
from runner.models import get_model
from runner.spans import Span, records_host
from suite.arms import named_arm
from suite.ceilings import CeilingShare, shares
from suite.checks import Finding, invalid_runs
from suite.cost_tables import cost_tables
from suite.errors import SuiteError
from suite.kept_ceilings import from_document
from suite.kept_span_costs import NOT_KEPT, instrument_us
from suite.lanes import lanes
from suite.record import RunRecord, Status
from suite.span_costs import span_costs
from suite.step_costs import ArmKey, StepCosts

_NO_CEILINGS = (
    "the ceilings of this machine were not known: `python -m suite micro --only ceilings --dtype {dtype}`, "
    "with the run's --device, --model and --threads, measures them once, in half a minute, for the runs that "
    "follow"
)
_CHECKPOINT = "no ceilings are measured for a checkpoint"


class LoadedSteps(Protocol):
    """What is asked of a loaded run folder; `suite.store` has it. `config`: its resolved scenarios."""

    @property
    def config(self) -> Sequence[Mapping[str, Any]]: ...
    def step_records(self, run_id: str) -> Sequence[StepRecord]: ...
    def spans(self, run_id: str) -> Sequence[Span]: ...
    def ceilings(self) -> Mapping[str, Any]: ...
    def micro(self) -> Mapping[str, Any]: ...


def costs_by_arm(
    runs: Iterable[RunRecord], loaded: LoadedSteps, findings: Sequence[Finding] = ()
) -> dict[ArmKey, StepCosts]:
    """Of each arm with instrumented runs, the first VALID one that completed, or why there are none."""
    groups: dict[ArmKey, list[RunRecord]] = {}
    for run in runs:
        if run.is_instrumented:
            groups.setdefault((run.scenario, run.case_id, run.arm), []).append(run)
    return {key: _costs_of(group, loaded, findings) for key, group in groups.items()}


def _costs_of(runs: Sequence[RunRecord], loaded: LoadedSteps, findings: Sequence[Finding]) -> StepCosts:
    completed = [run for run in runs if run.status is Status.COMPLETED]
    if not completed:
        return _without(runs[0], "no run with instruments completed")
    invalid = invalid_runs(findings)
    run = next((run for run in completed if run.run_id not in invalid), None)
    if run is None:
        run = completed[0]
        why = next(one for one in findings if one.run_id == run.run_id and invalid_runs([one]))
        return _without(run, f"the run is INVALID: {why.rule}: {why.message}")
    if not records_host(run.instrument):
        return _without(run, f"level {run.instrument} records nothing of its own: use --instrument events")
    try:
        records, spans = loaded.step_records(run.run_id), loaded.spans(run.run_id)
        if not spans:
            return _without(run, "its spans are not in the run folder")
        tables, shown = cost_tables(span_costs(records, spans)), lanes(records, spans)
    except SuiteError as error:
        return _without(run, str(error))
    reached, no_shares, caveat = _shares(run, loaded, records, spans)
    paid_us, why_not = _instrument_us(run, loaded, records, spans)
    return StepCosts(
        run_id=run.run_id,
        level=run.instrument,
        num_steps=len(records),
        num_spans=len(spans),
        clock_uncertainty_ns=run.clock_uncertainty_ns,
        tables=tables,
        shares=reached,
        no_shares=no_shares,
        caveat=caveat,
        instrument_us=paid_us,
        no_instrument_us=why_not,
        lanes=shown,
    )


def _instrument_us(
    run: RunRecord, loaded: LoadedSteps, records: Sequence[StepRecord], spans: Sequence[Span]
) -> tuple[float | None, str | None]:
    """What the spans of a step cost, or why that is not known."""
    try:
        paid_us = instrument_us(loaded.micro(), run.instrument, spans, records)
    except (ValueError, SuiteError) as error:
        return None, str(error)
    return paid_us, NOT_KEPT if paid_us is None else None


def _shares(
    run: RunRecord, loaded: LoadedSteps, records: Sequence[StepRecord], spans: Sequence[Span]
) -> tuple[tuple[CeilingShare, ...], str | None, str | None]:
    """Shares of the ceilings that were known when it ran, or none and why; what to know of the ceilings."""
    if _is_of_checkpoint(run, loaded.config):
        return (), _CHECKPOINT, None
    try:
        kept = from_document(loaded.ceilings()).get(run.case_id)
        if kept is None:
            return (), _NO_CEILINGS.format(dtype=run.dtype), None
        model, arm = get_model(kept.model), named_arm(run.arm)
        found = shares(kept.ceilings, records, spans, model, arm, run.dtype)
    except (ValueError, RunnerError, SuiteError) as error:
        return (), f"ceilings.json of the run cannot be used: {error}", None
    return tuple(found), None if found else "no step was recorded", kept.ceilings.caveat


def _is_of_checkpoint(run: RunRecord, scenarios: Sequence[Mapping[str, Any]]) -> bool:
    """Whether its model is none of the presets, though it may be named like one."""
    given = next((one.get("model") for one in scenarios if one.get("name") == run.scenario), None)
    return isinstance(run.case_values.get("model", given), Mapping)


def _without(run: RunRecord, reason: str) -> StepCosts:
    return StepCosts(
        *(run.run_id, run.instrument, 0, 0, run.clock_uncertainty_ns, None, reason),
        no_shares=reason,
        no_instrument_us=reason,
    )
