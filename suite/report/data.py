"""ReportData: what the page is made of, as plain values and DataFrames, built from a loaded run folder.

Warm-up and failed runs never enter a statistic; they are counted and listed. A column or metric that an
older result file lacks is simply absent here, and "n/a" on the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

import pandas as pd

from suite.attribution import Line
from suite.bill import ArmBill
from suite.break_even import Cell
from suite.case_label import case_title
from suite.comparison import Comparison
from suite.control import control_verdict
from suite.metrics import CACHING_OFF, DEFINITIONS, SPECULATION_OFF, Definition, is_timed
from suite.record import Failure, Metric, RunRecord, Status
from suite.report.samples import pooled_steps, with_latencies, with_step_times
from suite.report.upload_totals import upload_totals
from suite.report.wording import rounds_used
from suite.step_costs import ArmKey, StepCosts, of_arm
from suite.validity.rule import Finding, broken_rules, invalid_runs


class LoadedRun(Protocol):
    """What is asked of a loaded run folder; `suite.store` has it."""

    @property
    def config(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def environment(self) -> Mapping[str, Any]: ...
    @property
    def runs(self) -> Sequence[RunRecord]: ...
    @property
    def summary(self) -> Mapping[str, Any] | None: ...
    @property
    def invocation(self) -> Mapping[str, Any]: ...
    @property
    def warnings(self) -> Sequence[str]: ...
    @property
    def skipped(self) -> Sequence[tuple[str, str]]: ...
    @property
    def is_interrupted(self) -> bool: ...
    @property
    def one_in(self) -> int: ...
    def steps(self, run_id: str) -> pd.DataFrame: ...
    def requests(self, run_id: str) -> pd.DataFrame: ...


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A completed run that counts, with one row per step and one per request."""

    record: RunRecord
    steps: pd.DataFrame
    requests: pd.DataFrame


@dataclass(frozen=True)
class Series:
    """One arm of one case: `runs` are its measured rounds in order, `records` all that were started.

    What many charts ask of its runs is worked out once.
    """

    scenario: str
    case_id: str
    case_label: str
    arm: str
    runs: tuple[MeasuredRun, ...]
    records: tuple[RunRecord, ...]
    findings: tuple[Finding, ...] = ()
    costs: StepCosts | None = None  # of its instrumented run; None: there was none
    bill: ArmBill | None = None  # of its runs with repeated commands; None: there were none
    one_in: int = 1  # of each kind of step 1 in so many is here: an archive left the others out

    @property
    def doubts(self) -> tuple[Finding, ...]:
        """Of its rounds taken together, which say nothing against any one run."""
        return tuple(found for found in self.findings if not broken_rules((found,)))

    @property
    def thinning(self) -> str:
        """What to say beside figures of steps where an archive left most of them out; else empty."""
        if self.one_in == 1:
            return ""
        return f" Of each kind of step 1 in {self.one_in:,} is here: the archive left out the others."

    @property
    def label(self) -> str:
        return f"{self.case_label} · {self.arm}"

    @property
    def control(self) -> str | None:
        """What came of a negative control (suite/control.py); None for an arm meant to be right."""
        return control_verdict(self.records)

    @property
    def num_failed(self) -> int:
        return sum(record.status is Status.FAILED for record in self.records)

    @property
    def num_interrupted(self) -> int:
        return sum(record.status is Status.INTERRUPTED for record in self.records)

    @property
    def num_warmup(self) -> int:
        return sum(record.is_warmup and not record.repeats for record in self.records)

    @property
    def num_instrumented(self) -> int:
        return sum(record.is_instrumented for record in self.records)

    @cached_property
    def valid_runs(self) -> tuple[MeasuredRun, ...]:
        """Those whose times may enter a figure."""
        invalid = invalid_runs(self.findings)
        return tuple(run for run in self.runs if run.record.run_id not in invalid)

    @property
    def invalid_runs(self) -> tuple[MeasuredRun, ...]:
        invalid = invalid_runs(self.findings)
        return tuple(run for run in self.runs if run.record.run_id in invalid)

    @cached_property
    def pooled_steps(self) -> pd.DataFrame:
        """Kind and times of the steps of the valid runs."""
        return pooled_steps([run.steps for run in self.valid_runs])

    @cached_property
    def upload_totals(self) -> pd.DataFrame:
        """What its runs uploaded, valid or not: bytes and copies are no times."""
        return upload_totals([run.steps for run in self.runs])

    def metrics(self, name: str) -> list[Metric]:
        """This metric of every measured round that recorded it, defined or not; a time of the valid ones."""
        runs = self.valid_runs if is_timed(name) else self.runs
        return [run.record.metrics[name] for run in runs if name in run.record.metrics]

    def values(self, name: str) -> list[float]:
        """The defined values of a metric, one for each round that has one."""
        return [metric.value for metric in self.metrics(name) if metric.value is not None]

    def rounds_used(self, name: str) -> str:
        """Of how many rounds the figure of a metric is: "n = 6 of 8 rounds: 2 INVALID (foreign-load)"."""
        broken = broken_rules(self.findings) if is_timed(name) else {}
        bad = [rules for run in self.runs if (rules := broken.get(run.record.run_id))]
        which = dict.fromkeys(rule for rules in bad for rule in rules)
        return rounds_used(len(self.values(name)), len(self.runs), len(bad), tuple(which))

    @property
    def has_cache(self) -> bool:
        return self._is_on("prefix_cache_hit_rate", CACHING_OFF)

    @property
    def has_drafts(self) -> bool:
        return self._is_on("acceptance_rate", SPECULATION_OFF)

    def _is_on(self, name: str, off: str) -> bool:
        """Whether what a metric is about was switched on; not where older result files lack the metric."""
        return any(metric.reason != off for metric in self.metrics(name))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What its measured runs warn of, each kind once."""
        return tuple(dict.fromkeys(text for run in self.runs for text in run.record.warnings))

    @property
    def silent_waits(self) -> tuple[str, ...]:
        """What the run that looked for silent waits found, each kind once."""
        checked = [record for record in self.records if record.sync_check != "off"]
        return tuple(dict.fromkeys(text for record in checked for text in record.warnings))

    def reason(self, name: str) -> str:
        """Why `values(name)` is empty."""
        if not self.runs and not self.num_failed and not self.num_interrupted:
            return "no round was measured"  # a folder of `suite cost` has none
        if not self.runs:
            return f"no run completed ({self.num_failed} failed, {self.num_interrupted} interrupted)"
        if is_timed(name) and not self.valid_runs:
            rules = dict.fromkeys(one.rule for one in self.findings if invalid_runs((one,)))
            return f"every round is INVALID: {', '.join(rules)}"
        reasons = {metric.reason for metric in self.metrics(name) if metric.reason}
        return "; ".join(sorted(reasons)) or "not in these result files"


@dataclass(frozen=True, slots=True)
class ScenarioData:
    """One scenario: its resolved configuration and every arm of every case."""

    name: str
    description: str
    config: Mapping[str, Any] | None
    series: tuple[Series, ...]
    notes: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()
    attribution: tuple[Line, ...] = ()  # of its cases that replay a list of steps
    break_even: tuple[Cell, ...] = ()  # of its sweep, where it has one
    file: str = "SCENARIO"  # as the command line named it, so that a command can be copied

    @property
    def gates(self) -> Mapping[str, float]:
        """What a good request meets: name -> ms; empty where the scenario sets none."""
        gates = (self.config or {}).get("goodput")
        return (
            {str(key): value for key, value in gates.items() if value} if isinstance(gates, Mapping) else {}
        )

    @property
    def measured(self) -> tuple[Series, ...]:
        return tuple(series for series in self.series if series.runs)

    @property
    def thinned_bill(self) -> str:
        """Why a bill that was measured cannot be shown; empty where none was, or all steps are here."""
        records = [record for one in self.series if one.one_in > 1 for record in one.records]
        if not any(record.repeats for record in records):
            return ""
        return "what repeated commands cost needs every step, and here are 1 in a few; summary.json has it"


@dataclass(frozen=True, slots=True)
class UnmeasuredRun:
    """A run that failed or was interrupted, and why."""

    record: RunRecord

    @property
    def failure(self) -> Failure:
        return self.record.failure or Failure(kind=self.record.status.value, message="no cause was recorded")


@dataclass(frozen=True, slots=True)
class ReportData:
    scenarios: tuple[ScenarioData, ...]
    unmeasured: tuple[UnmeasuredRun, ...]
    skipped: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    environment: Mapping[str, Any]
    definitions: tuple[Definition, ...]
    is_interrupted: bool
    invocation: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    run_labels: Mapping[str, str] = field(default_factory=dict)  # run_id -> readable name
    progress: str = ""  # of a run that goes on: "3 of 12 runs so far, at ..."

    @property
    def series(self) -> tuple[Series, ...]:
        return tuple(series for scenario in self.scenarios for series in scenario.series)


def from_loaded(
    loaded: LoadedRun,
    costs: Mapping[ArmKey, StepCosts] = MappingProxyType({}),
    comparisons: Sequence[Comparison] = (),
    bills: Sequence[ArmBill] = (),
    attribution: Sequence[Line] = (),
    break_even: Sequence[Cell] = (),
) -> ReportData:
    """Everything the page shows, out of a run folder that `loaded` has opened, and what was made of it."""
    findings = _findings(loaded.summary)
    records = list(loaded.runs)
    configs = {str(config.get("name", "")): config for config in loaded.config}
    names = list(dict.fromkeys([record.scenario for record in records]))
    scenarios = tuple(
        _scenario(
            name, configs.get(name), [r for r in records if r.scenario == name], findings, loaded, costs
        )
        for name in names
    )
    scenarios = tuple(_with_bills(_with_comparisons(one, comparisons), bills) for one in scenarios)
    command_line = str(loaded.environment.get("command_line") or "")
    scenarios = tuple(replace(one, file=scenario_file(command_line, one.name)) for one in scenarios)
    scenarios = tuple(_with_attribution(one, attribution, break_even) for one in scenarios)
    return ReportData(
        scenarios=scenarios,
        unmeasured=tuple(
            UnmeasuredRun(record) for record in records if record.status is not Status.COMPLETED
        ),
        skipped=tuple((str(name), str(reason)) for name, reason in loaded.skipped),
        findings=findings,
        environment=loaded.environment,
        definitions=tuple(DEFINITIONS.values()),
        is_interrupted=loaded.is_interrupted,
        invocation=loaded.invocation,
        warnings=tuple(loaded.warnings),
        run_labels={record.run_id: run_label(record) for record in records},
    )


def scenario_file(command_line: str, name: str) -> str:
    """The argument of a command line that names a scenario's file; "SCENARIO" where it cannot be known."""
    files = [word for word in command_line.split() if word.endswith((".yaml", ".yml"))]
    files = [word for word in files if word.rpartition("/")[2].rpartition(".")[0] == name]
    return files[0] if files else "SCENARIO"


def _with_bills(scenario: ScenarioData, bills: Sequence[ArmBill]) -> ScenarioData:
    by_key = {(bill.scenario, bill.case_id, bill.arm): bill for bill in bills}
    series = (replace(one, bill=by_key.get((one.scenario, one.case_id, one.arm))) for one in scenario.series)
    return replace(scenario, series=tuple(series))


def _with_comparisons(scenario: ScenarioData, comparisons: Sequence[Comparison]) -> ScenarioData:
    return replace(scenario, comparisons=tuple(one for one in comparisons if one.scenario == scenario.name))


def _with_attribution(
    scenario: ScenarioData, attribution: Sequence[Line], break_even: Sequence[Cell]
) -> ScenarioData:
    return replace(
        scenario,
        attribution=tuple(one for one in attribution if one.scenario == scenario.name),
        break_even=tuple(one for one in break_even if one.scenario == scenario.name),
    )


def run_label(record: RunRecord) -> str:
    return f"{case_title(record.scenario, record.case_label)} · {record.arm} · {round_label(record)}"


def round_label(record: RunRecord) -> str:
    """Rounds as people count them, from 1, as on the terminal."""
    if record.rotation is not None:
        return f"token check, order {record.rotation + 1}"
    if record.sync_check != "off":
        return "check for silent waits"
    if record.repeats:
        return f"repeated commands, round {record.round + 1}"
    kind = "warm-up " if record.is_warmup else "" if record.is_timed_alike else "instrumented "
    kind = "repeat in " if record.is_aa else kind
    return f"{kind}round {record.round + 1}"


def _scenario(
    name: str,
    config: Mapping[str, Any] | None,
    records: Sequence[RunRecord],
    findings: Sequence[Finding],
    loaded: LoadedRun,
    costs: Mapping[ArmKey, StepCosts],
) -> ScenarioData:
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        groups.setdefault((record.case_id, record.arm), []).append(record)
    labels = _distinct_labels(records)
    series = tuple(
        _series(groups[key], labels[key[0]], findings, loaded, of_arm(costs, groups[key][0]))
        for key in _in_order(groups, config)
    )
    notes = tuple(dict.fromkeys(note for record in records for note in record.notes))
    return ScenarioData(
        name=name,
        description=str((config or {}).get("description") or ""),
        config=config,
        series=series,
        notes=notes,
    )


def _in_order(
    groups: Mapping[tuple[str, str], Sequence[RunRecord]], config: Mapping[str, Any] | None
) -> list[tuple[str, str]]:
    """Cases as they ran; the arms of each as the scenario names them, for rounds shuffle them."""
    cases = list(dict.fromkeys(case_id for case_id, _ in groups))
    named = (config or {}).get("arms")
    arms = [str(arm) for arm in named] if isinstance(named, list) else []

    def place(key: tuple[str, str]) -> tuple[int, int]:
        return cases.index(key[0]), arms.index(key[1]) if key[1] in arms else len(arms)

    return sorted(groups, key=place)


def _distinct_labels(records: Iterable[RunRecord]) -> dict[str, str]:
    """case_id -> label; two cases that share a label get the start of their id as well."""
    labels = {record.case_id: record.case_label for record in records}
    counts = pd.Series(labels, dtype=object).value_counts()
    return {
        case_id: label if counts[label] == 1 else f"{label} ({case_id[:8]})"
        for case_id, label in labels.items()
    }


def _series(
    records: Sequence[RunRecord],
    label: str,
    findings: Sequence[Finding],
    loaded: LoadedRun,
    costs: StepCosts | None,
) -> Series:
    run_ids = {record.run_id for record in records}
    measured = [r for r in records if r.status is Status.COMPLETED and r.is_measured]
    measured.sort(key=lambda record: record.round)
    return Series(
        scenario=records[0].scenario,
        case_id=records[0].case_id,
        case_label=label,
        arm=records[0].arm,
        runs=tuple(_measured_run(record, loaded) for record in measured),
        records=tuple(records),
        findings=tuple(finding for finding in findings if finding.run_id in run_ids),
        costs=costs,
        one_in=loaded.one_in,
    )


def _measured_run(record: RunRecord, loaded: LoadedRun) -> MeasuredRun:
    requests = with_latencies(loaded.requests(record.run_id))
    return MeasuredRun(record, with_step_times(loaded.steps(record.run_id), requests), requests)


def _findings(summary: Mapping[str, Any] | None) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            run_id=str(item.get("run_id", "")),
            rule=str(item.get("rule", "unknown")),
            message=str(item.get("message", "")),
            remedy=str(item.get("remedy", "")),
            is_timing=bool(item.get("is_timing", False)),
        )
        for item in (summary or {}).get("findings") or ()
    )
