"""From the runs of an experiment to what summary.json and summary.csv hold: pure functions.

Warm-up, instrumented, failed and interrupted runs never enter a statistic; they are counted. Nor do the times
of a run that is INVALID; what it merely counted (requests, tokens, steps) does.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

from suite.checks import Finding, invalid_runs
from suite.comparison import Comparison
from suite.control import control_verdict
from suite.metrics import is_timed, least_samples
from suite.record import LogprobVerdict, RunRecord, Status, TokenVerdict
from suite.step_costs import ArmKey, StepCosts

SUMMARY_SCHEMA_VERSION = 1

_COLUMNS = (
    "scenario",
    "case_id",
    "case_label",
    "arm",
    "metric",
    "unit",
    "better",
    "num_rounds",
    "median",
    "minimum",
    "maximum",
    "reason",
)


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """A metric over rounds: median, range, and the rounds' values. None has a reason."""

    name: str
    unit: str
    better: str
    median: float | None
    minimum: float | None
    maximum: float | None
    values: tuple[float, ...]
    reason: str | None
    num_samples: int | None = None  # of the round that had fewest; None: no round has a value

    @property
    def num_rounds(self) -> int:
        return len(self.values)

    @property
    def caution(self) -> str | None:
        """Why a percentile is not what its name says: in some round no sample can lie beyond it."""
        least = least_samples(self.name)
        if self.num_samples is None or self.num_samples >= least:
            return None
        return f"of {self.num_samples} samples a round; {least} are needed for one to lie beyond it"


@dataclass(frozen=True, slots=True)
class InstrumentSummary:
    """What an arm's instrument did to its speed: output throughput with it over the median without.

    One run each way tells little: a ratio within the spread of the rounds says nothing. What a span costs by
    itself is measured by `suite micro --only instrument`.
    """

    level: str
    num_runs: int
    throughput_ratio: float | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One arm of one case over its measured rounds. `tokens` adds up every run's verdict.

    `control` says what came of a negative control (suite/control.py); None for an arm meant to be right.
    """

    scenario: str
    case_id: str
    case_label: str
    case_values: Mapping[str, object]
    arm: str
    num_rounds: int
    num_failed: int
    num_interrupted: int
    num_warmup: int
    tokens: TokenVerdict | None
    metrics: Mapping[str, MetricSummary]
    findings: tuple[Finding, ...]
    control: str | None = None
    logprobs: LogprobVerdict | None = None
    instrument: InstrumentSummary | None = None
    num_invalid: int = 0  # of its rounds: their times are in no figure

    @property
    def has_no_speed(self) -> bool:
        """Whether no verdict on its speed may be given: a negative control, or an arm with wrong tokens."""
        return self.control is not None or (self.tokens is not None and self.tokens.num_wrong > 0)

    @property
    def is_valid(self) -> bool:
        return self.num_rounds > 0 and not self.findings


def summarise(runs: Sequence[RunRecord], findings: Sequence[Finding]) -> tuple[ArmSummary, ...]:
    """One summary for each case and arm, in the order they first ran."""
    groups: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((run.scenario, run.case_id, run.arm), []).append(run)
    return tuple(_summarise_arm(group, findings) for group in groups.values())


def _summarise_arm(runs: Sequence[RunRecord], findings: Sequence[Finding]) -> ArmSummary:
    measured = [run for run in runs if run.status is Status.COMPLETED and run.is_measured]
    run_ids = {run.run_id for run in runs}
    mine = tuple(finding for finding in findings if finding.run_id in run_ids)
    invalid = invalid_runs(mine)
    valid = [run for run in measured if run.run_id not in invalid]
    names = dict.fromkeys(name for run in measured for name in run.metrics)
    return ArmSummary(
        scenario=runs[0].scenario,
        case_id=runs[0].case_id,
        case_label=runs[0].case_label,
        case_values=runs[0].case_values,
        arm=runs[0].arm,
        num_rounds=len(measured),
        num_failed=sum(run.status is Status.FAILED for run in runs),
        num_interrupted=sum(run.status is Status.INTERRUPTED for run in runs),
        num_warmup=sum(run.is_warmup and not run.repeats for run in runs),
        num_invalid=len(measured) - len(valid),
        instrument=_instrument([run for run in runs if run.is_instrumented], valid),
        tokens=add_tokens(run.tokens for run in runs),
        metrics={
            name: _over_rounds(name, valid if is_timed(name) else measured, measured, mine) for name in names
        },
        findings=mine,
        control=control_verdict(runs),
        logprobs=add_logprobs(run.logprobs for run in runs),
    )


def _instrument(instrumented: Sequence[RunRecord], measured: Sequence[RunRecord]) -> InstrumentSummary | None:
    if not instrumented:
        return None
    ratio, reason = throughput_ratio(instrumented, measured)
    return InstrumentSummary(instrumented[0].instrument, len(instrumented), ratio, reason)


def throughput_ratio(
    instrumented: Sequence[RunRecord], measured: Sequence[RunRecord]
) -> tuple[float | None, str | None]:
    """Median output throughput with instruments over that without, or None and why."""
    on, off = throughputs(instrumented), throughputs(measured)
    if not on or not off:
        return None, f"no run {'without' if on else 'with'} instruments has a throughput"
    return statistics.median(on) / statistics.median(off), None


def throughputs(runs: Sequence[RunRecord]) -> list[float]:
    """Output throughput of the runs that completed and have one."""
    completed = [run for run in runs if run.status is Status.COMPLETED]
    metrics = [run.metrics["output_throughput"] for run in completed if "output_throughput" in run.metrics]
    return [metric.value for metric in metrics if metric.value]


def _over_rounds(
    name: str, counted: Sequence[RunRecord], measured: Sequence[RunRecord], findings: Sequence[Finding]
) -> MetricSummary:
    """Over the runs that count for it; `measured`, of which some run has it, tell its unit otherwise."""
    metrics = [run.metrics[name] for run in counted if name in run.metrics]
    defined = [(metric.value, metric.num_samples) for metric in metrics if metric.value is not None]
    values = tuple(value for value, _ in defined)
    first = next(iter(metrics), None) or next(run.metrics[name] for run in measured if name in run.metrics)
    reason = first.reason if metrics else _all_invalid(findings)
    return MetricSummary(
        name=first.name,
        unit=first.unit,
        better=first.better,
        median=statistics.median(values) if values else None,
        minimum=min(values, default=None),
        maximum=max(values, default=None),
        values=values,
        reason=None if values else reason,
        num_samples=min((num for _, num in defined), default=None),
    )


def _all_invalid(findings: Sequence[Finding]) -> str:
    rules = dict.fromkeys(finding.rule for finding in findings if finding.run_id in invalid_runs([finding]))
    return f"every round is INVALID: {', '.join(rules)}"


def add_tokens(verdicts: Iterable[TokenVerdict | None]) -> TokenVerdict | None:
    """The verdicts of several runs as one; None where no run was checked."""
    checked = [verdict for verdict in verdicts if verdict is not None]
    if not checked:
        return None
    return TokenVerdict(
        num_checked=sum(verdict.num_checked for verdict in checked),
        num_right=sum(verdict.num_right for verdict in checked),
        num_wrong=sum(verdict.num_wrong for verdict in checked),
        num_ties=sum(verdict.num_ties for verdict in checked),
        num_requests_right=sum(verdict.num_requests_right for verdict in checked),
        num_requests_wrong=sum(verdict.num_requests_wrong for verdict in checked),
        first_wrong=next((v.first_wrong for v in checked if v.first_wrong is not None), None),
    )


def add_logprobs(verdicts: Iterable[LogprobVerdict | None]) -> LogprobVerdict | None:
    """The verdicts of several runs as one; None where no run was checked."""
    checked = [verdict for verdict in verdicts if verdict is not None]
    if not checked:
        return None
    errors = [verdict.max_error for verdict in checked if verdict.max_error is not None]
    return LogprobVerdict(
        num_checked=sum(verdict.num_checked for verdict in checked),
        num_wrong=sum(verdict.num_wrong for verdict in checked),
        max_error=max(errors, default=None),
        first_wrong=next((v.first_wrong for v in checked if v.first_wrong is not None), None),
    )


def to_document(
    arms: Sequence[ArmSummary],
    findings: Sequence[Finding],
    skipped: Sequence[tuple[str, str]],
    is_interrupted: bool,
    costs: Mapping[ArmKey, StepCosts] = MappingProxyType({}),
    comparisons: Sequence[Comparison] = (),
) -> dict[str, object]:
    """What summary.json holds; `costs` by scenario, case and arm."""
    return {
        "schema_version": SUMMARY_SCHEMA_VERSION,
        "status": "interrupted" if is_interrupted else "completed",
        "arms": [_arm_document(arm, costs.get((arm.scenario, arm.case_id, arm.arm))) for arm in arms],
        "comparisons": [comparison.document() for comparison in comparisons],
        "findings": [asdict(finding) for finding in findings],
        "skipped": [{"scenario": name, "reason": reason} for name, reason in skipped],
    }


def _arm_document(arm: ArmSummary, costs: StepCosts | None) -> dict[str, object]:
    return {
        "scenario": arm.scenario,
        "case_id": arm.case_id,
        "case_label": arm.case_label,
        "case_values": dict(arm.case_values),
        "arm": arm.arm,
        "num_rounds": arm.num_rounds,
        "num_failed": arm.num_failed,
        "num_interrupted": arm.num_interrupted,
        "num_warmup": arm.num_warmup,
        "num_invalid": arm.num_invalid,
        "instrument": asdict(arm.instrument) if arm.instrument else None,
        "step_costs": costs.document() if costs else None,
        "is_valid": arm.is_valid,
        "control": arm.control,
        "tokens": arm.tokens.model_dump(mode="json") if arm.tokens else None,
        "logprobs": arm.logprobs.model_dump(mode="json") if arm.logprobs else None,
        "metrics": {
            name: {**asdict(metric), "num_rounds": metric.num_rounds, "caution": metric.caution}
            for name, metric in arm.metrics.items()
        },
    }


def to_csv(arms: Sequence[ArmSummary]) -> str:
    """What summary.csv holds: a line for each case, arm and metric; an undefined value is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for arm in arms:
        where = (arm.scenario, arm.case_id, arm.case_label, arm.arm)
        for metric in arm.metrics.values():
            figures = (metric.median, metric.minimum, metric.maximum)
            about = (metric.name, metric.unit, metric.better, metric.num_rounds)
            writer.writerow([*where, *about, *figures, metric.reason])
    return text.getvalue()
