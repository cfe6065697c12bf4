"""Whether a run may be believed: VALID, or INVALID with rule, what was seen, and the remedy.

Findings are values; printing them is someone else's job. An INVALID run is shown and marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from runner.measure import StepRecord
from suite.metrics import is_completed, step_wall_ms
from suite.record import Metric, RequestRecord, RunRecord, Status

MIN_ROUNDS = 2
"""One measured round shows no spread at all."""

SEND_SLACK_MS = 20.0
"""A request may be handed over this much later than the longest step, which it had to wait for."""


MAX_UNASKED_HIT_RATE = 1.0
"""Percent of prompt positions that prompts drawn at random may find in the prefix cache."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`is_timing`: what it finds casts doubt on the times, not on the tokens or the accounts."""

    name: str
    text: str
    remedy: str
    is_timing: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a run broke: `message` holds what was seen."""

    run_id: str
    rule: str
    message: str
    remedy: str
    is_timing: bool


_RULES = (
    Rule(
        "run-failed",
        "the run ended before all its requests did",
        "see the failure's detail; the times of such a run enter no statistic",
    ),
    Rule(
        "tokens-wrong",
        "an output token is not the model's own choice, or more are ties than rounding explains "
        "(negative controls excepted)",
        "find the cause with `check` on the same scenario; a wrong arm gets no speed verdict",
    ),
    Rule(
        "tokens-unchecked",
        "no output token was held against the oracle",
        "let at least one request complete",
    ),
    Rule(
        "logprobs-wrong",
        "a log-probability is not the model's own (negative controls excepted)",
        "find the cause with `check` on the same scenario: the tokens may be right and the logits not",
    ),
    Rule(
        "requests-failed",
        "a request got no or not all of its tokens",
        "mend the requests the report lists, or the limits they exceed",
    ),
    Rule(
        "requests-conserved",
        "requests in = completed + failed",
        "a fault of the program: please report it with the run folder",
    ),
    Rule(
        "tokens-conserved",
        "positions computed by steps = prompts + outputs - cached + recomputed + wasted + rejected drafts, "
        "over all requests",
        "a fault of the program: please report it with the run folder",
    ),
    Rule(
        "other-steps",
        "a run of a list of steps takes exactly those: how many, the rows, tokens and images of each",
        "raise runner.max_num_seqs, runner.num_blocks, runner.num_encoder_slots or runner.num_resident_rows: "
        "an async arm gives back what a request held one step after it ended. Record runs whose requests end "
        "by their length: one that a token ends takes a step more under async",
    ),
    Rule(
        "off-schedule",
        "requests are handed over at their scheduled time, give or take the step that was running",
        "leave a core for the host, lower the arrival rate, or shorten the steps",
        is_timing=True,
    ),
    Rule(
        "too-few-rounds",
        f"fewer than {MIN_ROUNDS} rounds were measured, so that no spread can be seen",
        f"use --rounds {MIN_ROUNDS} or more",
        is_timing=True,
    ),
)
RULES: Mapping[str, Rule] = MappingProxyType({rule.name: rule for rule in _RULES})


def check_runs(
    runs: Sequence[RunRecord],
    requests_of: Callable[[str], Sequence[RequestRecord]],
    steps_of: Callable[[str], Sequence[StepRecord]],
) -> list[Finding]:
    """Every rule that a run breaks; interrupted and warm-up runs are not judged.

    Of one with instruments or repeated commands the times are not: nobody relies on them.
    """
    judged = [run for run in runs if not run.is_warmup and run.status is not Status.INTERRUPTED]
    findings: list[Finding] = []
    for run in judged:
        broken = check_run(run, requests_of(run.run_id), steps_of(run.run_id))
        findings += [finding for finding in broken if run.is_timed_alike or not finding.is_timing]
    return [*findings, *_too_few_rounds([run for run in judged if run.is_measured])]


def check_run(
    run: RunRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> list[Finding]:
    if run.status is Status.FAILED:
        message = run.failure.message if run.failure else "no cause was recorded"
        return [_finding("run-failed", run, message)]
    return [
        *_tokens(run),
        *_logprobs(run),
        *_requests_failed(run, requests),
        *_requests_conserved(run, requests),
        *_tokens_conserved(run, requests, steps),
        *_other_steps(run),
        *_off_schedule(run, requests, steps),
    ]


def cache_warnings(metrics: Mapping[str, Metric], shares_by_design: bool) -> tuple[str, ...]:
    """What to beware of where prompts that were not meant to share hit the prefix cache."""
    rate = metrics["prefix_cache_hit_rate"].value
    if shares_by_design or rate is None or rate <= MAX_UNASKED_HIT_RATE:
        return ()
    return (
        f"the prefix cache gave {rate:.1f} % of prompt positions, though traffic.shared_prefix is not set: "
        "repeated prompts make this run faster than distinct ones would",
    )


def _finding(rule: str, run: RunRecord, message: str) -> Finding:
    broken = RULES[rule]
    return Finding(run.run_id, rule, message, broken.remedy, broken.is_timing)


def _tokens(run: RunRecord) -> Iterable[Finding]:
    tokens = run.tokens
    if tokens is None or tokens.num_checked == 0:
        yield _finding("tokens-unchecked", run, "no output token was checked")
    elif tokens.num_wrong and not run.is_control:
        where = tokens.first_wrong
        first = f"; the first: request {where[0]}, output token {where[1]}" if where else ""
        message = f"{tokens.num_wrong} of {tokens.num_checked} output tokens are wrong{first}"
        yield _finding("tokens-wrong", run, message)


def _logprobs(run: RunRecord) -> Iterable[Finding]:
    found = run.logprobs
    if found is not None and found.num_wrong and not run.is_control:
        where = found.first_wrong
        first = f"; the first: request {where[0]}, output token {where[1]}" if where else ""
        error = "missing or no number" if found.max_error is None else f"off by up to {found.max_error:.2g}"
        message = (
            f"the log-probabilities of {found.num_wrong} of {found.num_checked} output tokens are wrong, "
            f"{error}{first}"
        )
        yield _finding("logprobs-wrong", run, message)


def _requests_failed(run: RunRecord, requests: Sequence[RequestRecord]) -> Iterable[Finding]:
    failed = [request for request in requests if not is_completed(request)]
    if failed:
        cause = failed[0].error or failed[0].finish_reason
        message = f"{len(failed)} of {len(requests)} requests failed; the first: {cause}"
        yield _finding("requests-failed", run, message)


def _requests_conserved(run: RunRecord, requests: Sequence[RequestRecord]) -> Iterable[Finding]:
    distinct = len({request.request_id for request in requests})
    if not len(requests) == distinct == run.num_requests:
        message = (
            f"{run.num_requests} requests went in, {len(requests)} are recorded ({distinct} different ones)"
        )
        yield _finding("requests-conserved", run, message)


def _tokens_conserved(
    run: RunRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> Iterable[Finding]:
    """Not defined where a request was dropped half-way: how much of it was computed is unknown."""
    if any(not is_completed(r) and r.first_scheduled_ns is not None for r in requests):
        return
    by_requests = sum(num_computed(request) for request in requests if is_completed(request))
    by_steps = sum(step.num_tokens for step in steps)
    if by_steps != by_requests:
        message = f"the steps computed {by_steps} positions, the requests account for {by_requests}"
        yield _finding("tokens-conserved", run, message)


def num_computed(request: RequestRecord) -> int:
    """Positions that steps computed for a completed request, by its own account.

    The last output token ends its request: it is sampled, and never computed as a position. An accepted
    draft is an output token; a rejected one was computed for nothing.
    """
    needed = request.num_prompt_tokens - request.num_cached_tokens + request.num_output_tokens - 1
    rejected = request.num_drafted_tokens - request.num_accepted_tokens
    return needed + request.num_recomputed_tokens + request.num_wasted_tokens + rejected


def _other_steps(run: RunRecord) -> Iterable[Finding]:
    if run.step_list is not None and run.step_list.difference is not None:
        yield _finding("other-steps", run, run.step_list.difference)


def _off_schedule(
    run: RunRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> Iterable[Finding]:
    """An engine takes new requests between steps, so a step may delay one by its whole length.

    One that had to wait for a place, of max_concurrency, could be sent when the place became free.
    """
    if not requests:
        return
    late_ms = max((request.sent_ns - due_ns) / 1e6 for request, due_ns in _due(run, requests))
    early_ms = max((request.scheduled_ns - request.sent_ns) / 1e6 for request in requests)
    walls = step_wall_ms(requests, steps)
    allowed_ms = (float(walls.max()) if walls.size else 0.0) + SEND_SLACK_MS
    if late_ms > allowed_ms:
        message = (
            f"a request was handed over {late_ms:.1f} ms after its scheduled time; the longest "
            f"step explains {allowed_ms:.1f} ms"
        )
        yield _finding("off-schedule", run, message)
    if early_ms > 0:
        message = f"a request was handed over {early_ms:.1f} ms before its scheduled time"
        yield _finding("off-schedule", run, message)


def _due(run: RunRecord, requests: Sequence[RequestRecord]) -> Iterator[tuple[RequestRecord, int]]:
    """When each request could be sent at the earliest (ns)."""
    most = run.max_concurrency
    ended = sorted(request.finished_ns or request.sent_ns for request in requests)
    in_order = sorted(requests, key=lambda request: (request.scheduled_ns, request.sent_ns))
    for place, request in enumerate(in_order):
        has_place = most is None or place < most
        free_ns = request.scheduled_ns if has_place else ended[place - (most or 0)]
        yield request, max(request.scheduled_ns, free_ns)


def _too_few_rounds(measured: Sequence[RunRecord]) -> Iterable[Finding]:
    arms: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in measured:
        arms.setdefault((run.scenario, run.case_id, run.arm), []).append(run)
    for runs in arms.values():
        completed = [run for run in runs if run.status is Status.COMPLETED]
        if len(completed) < MIN_ROUNDS:
            message = f"{len(completed)} rounds were measured; at least {MIN_ROUNDS} are needed"
            yield _finding("too-few-rounds", runs[-1], message)
