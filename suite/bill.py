"""The bill of a step: what the commands of an arm cost in place, from the runs that repeat them.

Pure functions from records to lines, and from lines to a document and a table. An undefined figure is null
with a reason beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from runner.measure import StepRecord
from runner.spans import Span
from suite.amplification import (
    KINDS,
    AmplifiedCost,
    amplified_costs,
    same_steps,
)
from suite.case_label import case_title
from suite.checks import Finding, invalid_runs
from suite.errors import SuiteError
from suite.ratios import CONFIDENCE, MIN_ROUNDS
from suite.record import RunRecord, Status
from suite.repeatable import in_order
from suite.slopes import AmplifiedRun
from suite.validity import machine

_HEADER = ("span", "n", "us a step", "95 %", "share", "device us", "k", "")
_LEFT = (0, 7)

_EXPLAINED = (
    "us a step: the slope of the step's time on k, how often its n commands are run: their cost in place; "
    f"{CONFIDENCE:.0%}: Student's interval over rounds; device us: the median of one command on the "
    "device's own clock"
)


@dataclass(frozen=True, slots=True)
class ArmBill:
    """`notes` say what the figures lack; `busy`, one of them, that others used the machine meanwhile."""

    scenario: str
    case_id: str
    case_label: str
    arm: str
    num_rounds: int
    lines: tuple[AmplifiedCost, ...]
    notes: tuple[str, ...] = ()
    busy: str = ""


def arm_bills(
    runs: Sequence[RunRecord],
    steps_of: Callable[[str], Sequence[StepRecord]],
    spans_of: Callable[[str], Sequence[Span]],
    findings: Sequence[Finding] = (),
) -> tuple[ArmBill, ...]:
    """One for each case and arm that has runs with repeats, in the order they first ran.

    Runs that failed, were interrupted or are INVALID are left out, as is the first of an arm, which warms up.
    """
    groups: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in runs:
        if run.repeats and not run.is_warmup:
            groups.setdefault((run.scenario, run.case_id, run.arm), []).append(run)
    return tuple(_arm_bill(group, steps_of, spans_of, findings) for group in groups.values())


def _arm_bill(
    runs: Sequence[RunRecord],
    steps_of: Callable[[str], Sequence[StepRecord]],
    spans_of: Callable[[str], Sequence[Span]],
    findings: Sequence[Finding],
) -> ArmBill:
    invalid = invalid_runs(findings)
    completed = [run for run in runs if run.status is Status.COMPLETED and run.run_id not in invalid]
    timed = [_timed(run, steps_of(run.run_id)) for run in completed if run.instrument == "off"]
    steps, spans, why_no_spans = _seen(completed, steps_of, spans_of)
    names = in_order(tuple(dict.fromkeys(span for run in runs for span in run.repeats)))
    lines = amplified_costs(timed, steps, spans, names)
    num_rounds = max((line.cost.num_rounds for line in lines if line.cost is not None), default=0)
    busy = _busy([run for run in completed if run.instrument == "off"])
    return ArmBill(
        scenario=runs[0].scenario,
        case_id=runs[0].case_id,
        case_label=runs[0].case_label,
        arm=runs[0].arm,
        num_rounds=num_rounds,
        lines=tuple(lines),
        notes=tuple(
            [
                *_notes(runs, timed, lines, names, num_rounds, spans),
                *_invalid_notes(runs, findings),
                *([why_no_spans] if why_no_spans else ()),
                *([busy] if busy else ()),
            ]
        ),
        busy=busy,
    )


def _timed(run: RunRecord, steps: Sequence[StepRecord]) -> AmplifiedRun:
    lead_in = frozenset(step.step_id for step in steps if run.is_lead_in(step.step_id))
    return AmplifiedRun(run.round, steps, run.turns, run.scheduling == "async", lead_in)


def _seen(
    completed: Sequence[RunRecord],
    steps_of: Callable[[str], Sequence[StepRecord]],
    spans_of: Callable[[str], Sequence[Span]],
) -> tuple[Sequence[StepRecord] | None, Sequence[Span], str | None]:
    """Steps, but those of a lead-in, and spans of the run with device spans; without them None, and why."""
    seen = next((run for run in completed if run.instrument == "events"), None)
    if seen is None:
        return None, (), "no run with device spans: n and device us are not known"
    try:
        steps = [step for step in steps_of(seen.run_id) if not seen.is_lead_in(step.step_id)]
        spans = [span for span in spans_of(seen.run_id) if not seen.is_lead_in(span.step_id)]
    except SuiteError as error:
        return None, (), f"n and device us are not known: {error}"
    if not spans:
        return None, (), f"the spans of {seen.run_id} are gone: n and device us are not known"
    return steps, spans, None


def _notes(
    runs: Sequence[RunRecord],
    timed: Sequence[AmplifiedRun],
    lines: Sequence[AmplifiedCost],
    names: Sequence[str],
    num_rounds: int,
    spans: Sequence[Span],
) -> Iterable[str]:
    if any(run.tokens is not None and run.tokens.num_wrong > 0 for run in runs):
        yield "the tokens of this arm are wrong: it computes something else than a right one"
    recorded = {span.name for span in spans}
    absent = [name for name in names if spans and name not in recorded]
    if num_rounds < MIN_ROUNDS and len(absent) < len(names):
        yield f"{num_rounds} whole rounds, and {MIN_ROUNDS} are needed to decide anything"
    if lost := sum(run.status is not Status.COMPLETED for run in runs):
        yield f"{lost} of {len(runs)} runs failed or were interrupted, and are left out"
    if others := len(timed) - len(same_steps(timed)):
        yield f"{others} runs took other steps than the first, and are left out"
    if timed and (num_lead_in := len(timed[0].lead_in)):
        yield f"{num_lead_in} steps of the list only bring rows as far as decoding: they are in no line"
    if absent:
        yield f"no step of this arm has a command of {', '.join(absent)}"
    untimed = [name for name in names if name not in absent and not any(line.span == name for line in lines)]
    if untimed:
        yield f"not timed, for want of a whole round: {', '.join(untimed)}"


def _invalid_notes(runs: Sequence[RunRecord], findings: Sequence[Finding]) -> Iterable[str]:
    """By rule, how many of the runs that completed broke it, and what was seen in the first of them."""
    completed = {run.run_id for run in runs if run.status is Status.COMPLETED}
    found: dict[str, dict[str, Finding]] = {}
    for finding in findings:
        if finding.run_id in completed & invalid_runs([finding]):
            found.setdefault(finding.rule, {}).setdefault(finding.run_id, finding)
    for rule, of_run in found.items():
        first = next(iter(of_run.values()))
        some = f"{len(of_run)} of {len(runs)} runs"
        yield f"{some} broke {rule} and are left out ({first.run_id}: {first.message}): {first.remedy}"


def _busy(timed: Sequence[RunRecord]) -> str:
    """What a measured run would be INVALID for.

    Here every step with repeats stands beside the same one without, so that a neighbour widens the interval
    and shifts nothing: the runs count.
    """
    rules = (machine.foreign_load, machine.stolen_time, machine.gpu)
    broken = [names for run in timed if (names := [one.rule for rule in rules for one in rule(run)])]
    if not broken:
        return ""
    which = ", ".join(dict.fromkeys(name for names in broken for name in names))
    return (
        f"others used the machine during {len(broken)} of {len(timed)} runs ({which}): on an idle one the "
        "intervals are narrower"
    )


def verdict(line: AmplifiedCost) -> str:
    """ "decided", or what can be said instead."""
    if line.cost is None:
        return "no whole round"
    if line.cost.is_decided:
        return "decided"
    if line.cost.num_rounds < MIN_ROUNDS:
        return f"cannot tell: {line.cost.num_rounds} of {MIN_ROUNDS} rounds{_at_most(line)}"
    return f"cannot tell{_at_most(line)}"


def _at_most(line: AmplifiedCost) -> str:
    return "" if line.upper_us is None else f": at most {_us(line.upper_us)} us"


def documents(bills: Sequence[ArmBill]) -> list[dict[str, object]]:
    """As plain values for JSON."""
    return [
        {
            "scenario": bill.scenario,
            "case_id": bill.case_id,
            "case_label": bill.case_label,
            "arm": bill.arm,
            "num_rounds": bill.num_rounds,
            "notes": list(bill.notes),
            "lines": [_line_document(line) for line in bill.lines],
        }
        for bill in bills
    ]


def _line_document(line: AmplifiedCost) -> dict[str, object]:
    cost = line.cost
    return {
        "span": line.span,
        "kind": line.kind,
        "ks": list(line.ks),
        "num_steps": line.num_steps,
        "num_rounds": cost.num_rounds if cost else 0,
        "step_us": line.step_us,
        "commands_per_step": line.times.per_step,
        "cost_us": cost.mean_us if cost else None,
        "cost_low_us": cost.low_us if cost else None,
        "cost_high_us": cost.high_us if cost else None,
        "share": line.share,
        "is_decided": cost is not None and cost.is_decided,
        "upper_us": line.upper_us,
        "verdict": verdict(line),
        "device_us": line.times.device_us,
        "device_reason": line.times.device_reason,
        "enqueue_us": line.times.enqueue_us,
        "enqueue_reason": line.times.enqueue_reason,
    }


def text_lines(bill: ArmBill) -> list[str]:
    """As a table, for people: a block for each kind of step."""
    title = case_title(bill.scenario, bill.case_label)
    found = [f"{title}, arm {bill.arm}, {bill.num_rounds} rounds"]
    for kind in KINDS:
        lines = [line for line in bill.lines if line.kind == kind]
        if lines:
            found += ["", *_kind_lines(kind, lines)]
    return [*found, "", _EXPLAINED, *(f"note: {note}" for note in bill.notes)]


def _kind_lines(kind: str, lines: Sequence[AmplifiedCost]) -> list[str]:
    first = lines[0]
    rows = [_HEADER, *(_cells(line) for line in lines)]
    rows.append(_sum_cells(lines))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    head = f"{kind} step: {_us(first.step_us)} us without repeats ({first.num_steps} steps a run)"
    return [head, *(_aligned(row, widths) for row in rows)]


def _cells(line: AmplifiedCost) -> tuple[str, ...]:
    cost, enqueue = line.cost, line.times.enqueue_us
    interval = "n/a"
    if cost is not None and cost.low_us is not None and cost.high_us is not None:
        interval = f"[{_us(cost.low_us)}, {_us(cost.high_us)}]"
    device = "n/a" if line.times.device_us is None else _us(line.times.device_us)
    return (
        line.span,
        f"{line.times.per_step:.3g}",
        _us(cost.mean_us) if cost else "n/a",
        interval,
        "n/a" if line.share is None else f"{line.share:.2%}",
        device if enqueue is None else f"{device}, enqueue {_us(enqueue)}",
        ", ".join(map(str, line.ks)),
        verdict(line),
    )


def _sum_cells(lines: Sequence[AmplifiedCost]) -> tuple[str, ...]:
    known = [line.cost.mean_us for line in lines if line.cost is not None]
    share = f"{sum(known) / lines[0].step_us:.2%}" if lines[0].step_us > 0 else "n/a"
    return ("all of these", "", _us(sum(known)), "", share, "", "", "")


def _us(value: float) -> str:
    """Three figures, and never an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        f"{cell:<{width}}" if column in _LEFT else f"{cell:>{width}}"
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"  {'  '.join(padded)}".rstrip()
