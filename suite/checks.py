"""Whether a run may be believed: VALID, or INVALID with rule, what was seen, and the remedy.

Findings are values; printing them is someone else's job. An INVALID run is shown and marked, and enters no
figure. The rules themselves are in suite/validity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from runner.measure import StepRecord
from runner.spans import Span
from suite.case_design import CaseKey, Design
from suite.errors import SuiteError
from suite.record import RequestRecord, RunRecord, Status
from suite.validity import accounts, machine, nesting, rounds, schedule, steadiness, tokens
from suite.validity.rule import RULES, Broken, Finding, Rule, broken, broken_rules, invalid_runs

__all__ = [
    "RULES",
    "Broken",
    "Finding",
    "Rule",
    "broken_rules",
    "check_run",
    "check_runs",
    "has_wrong_accounts",
    "invalid_runs",
    "machine_drifts",
]

_NO_DESIGNS: Mapping[CaseKey, Design] = MappingProxyType({})


def check_runs(
    runs: Sequence[RunRecord],
    requests_of: Callable[[str], Sequence[RequestRecord]],
    steps_of: Callable[[str], Sequence[StepRecord]],
    spans_of: Callable[[str], Sequence[Span]] | None = None,
    design_of: Mapping[CaseKey, Design] = _NO_DESIGNS,
) -> list[Finding]:
    """Every rule that a run breaks; interrupted and warm-up runs are not judged.

    Of one with instruments or repeated commands the times are not: nobody relies on them. `design_of` each
    case: what its arms are compared with and in which metrics, in which a drift would be one.
    """
    judged = [run for run in runs if not run.is_warmup and run.status is not Status.INTERRUPTED]
    findings: list[Finding] = []
    for run in judged:
        findings += _check_recorded(run, requests_of, steps_of)
        if spans_of is not None and run.is_instrumented and run.is_completed:
            findings += _check_spans(run, steps_of, spans_of)
    findings += machine.gpu_clocks([run for run in judged if run.is_timed_alike and run.is_completed])
    timed = [run for run in judged if run.is_timed_alike]
    return [*findings, *rounds.over_rounds(timed, invalid_runs(findings), design_of)]


def machine_drifts(
    runs: Sequence[RunRecord],
    findings: Sequence[Finding],
    design_of: Mapping[CaseKey, Design] = _NO_DESIGNS,
) -> tuple[str, ...]:
    """Of each case whose arms all became slower or faster together, in words; no rule is broken by that."""
    timed = [run for run in runs if run.is_timed_alike and run.status is not Status.INTERRUPTED]
    return tuple(rounds.machine_drifts(timed, invalid_runs(findings), design_of))


def _check_recorded(
    run: RunRecord,
    requests_of: Callable[[str], Sequence[RequestRecord]],
    steps_of: Callable[[str], Sequence[StepRecord]],
) -> list[Finding]:
    """Of a run whose tables are gone only what its record says can be judged."""
    try:
        requests, steps = requests_of(run.run_id), steps_of(run.run_id)
    except SuiteError as error:
        return [broken("tables-damaged", run, str(error)), *tokens.tokens(run), *tokens.logprobs(run)]
    return check_run(run, requests, steps)


def _check_spans(
    run: RunRecord,
    steps_of: Callable[[str], Sequence[StepRecord]],
    spans_of: Callable[[str], Sequence[Span]],
) -> list[Finding]:
    """Damaged steps or spans are told elsewhere, and cost their own figures only."""
    try:
        return [*nesting.spans_within_step(run, steps_of(run.run_id), spans_of(run.run_id))]
    except SuiteError:
        return []


def check_run(
    run: RunRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> list[Finding]:
    """What one run by itself breaks."""
    if run.status is Status.FAILED:
        message = run.failure.message if run.failure else "no cause was recorded"
        return [broken("run-failed", run, message)]
    found = [*_correctness(run, requests, steps)]
    return [*found, *_timing(run, requests, steps)] if run.is_timed_alike else found


def _correctness(
    run: RunRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> Iterable[Finding]:
    yield from tokens.tokens(run)
    yield from tokens.logprobs(run)
    yield from accounts.requests_failed(run, requests)
    yield from accounts.requests_conserved(run, requests)
    yield from accounts.tokens_conserved(run, requests, steps)
    yield from accounts.other_steps(run)
    yield from accounts.tokens_counted(run, requests)
    yield from accounts.times_in_order(run, requests)
    yield from accounts.littles_law(run, requests, steps)
    yield from accounts.peak_above_mean(run)


def _timing(
    run: RunRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> Iterable[Finding]:
    yield from schedule.off_schedule(run, requests, steps)
    yield from schedule.off_rate(run, requests, steps)
    yield from steadiness.not_steady(run, requests, steps)
    yield from tokens.cache_hits(run)
    yield from machine.foreign_load(run)
    yield from machine.stolen_time(run)
    yield from machine.compiled_within(run)
    yield from machine.gpu(run)


def has_wrong_accounts(findings: Iterable[Finding]) -> bool:
    """Whether a figure is not what it says it is: no matter of noise, so that it fails the command."""
    return any(RULES[found.rule].is_fault for found in findings if found.rule in RULES)
