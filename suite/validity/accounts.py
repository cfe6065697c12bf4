"""Rules about accounts: what went in came out, was counted once, in order, and adds up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import le

import numpy as np

from runner.measure import StepRecord
from suite.metrics import NS_PER_MS, is_completed, step_wall_ms
from suite.record import RequestRecord, RunRecord
from suite.validity.rule import Finding, broken

LITTLE_TOLERANCE = 0.05
"""Of the time all requests spent in the system."""

_ORDERED = ("median", "p90", "p95", "p99", "max")
_ROUNDING = 1e-9  # of a figure: sums in floating point


def requests_failed(run: RunRecord, requests: Sequence[RequestRecord]) -> Iterable[Finding]:
    failed = [request for request in requests if not is_completed(request)]
    if failed:
        cause = failed[0].error or failed[0].finish_reason
        message = f"{len(failed)} of {len(requests)} requests failed; the first: {cause}"
        yield broken("requests-failed", run, message)


def requests_conserved(run: RunRecord, requests: Sequence[RequestRecord]) -> Iterable[Finding]:
    distinct = len({request.request_id for request in requests})
    if not len(requests) == distinct == run.num_requests:
        message = (
            f"{run.num_requests} requests went in, {len(requests)} are recorded ({distinct} different ones)"
        )
        yield broken("requests-conserved", run, message)
        return
    finished, running = sum(map(is_completed, requests)), sum(map(_is_running, requests))
    failed = len(requests) - finished - running
    figures = [run.metrics.get(name) for name in ("completed_requests", "failed_requests")]
    told = [figure.value for figure in figures if figure is not None and figure.value is not None]
    if len(told) == 2 and told != [finished, failed + running]:
        message = (
            f"{run.num_requests} requests went in: {finished} finished, {failed} failed, {running} running "
            f"at the end; the figures say {told[0]:g} completed and {told[1]:g} not"
        )
        yield broken("requests-conserved", run, message)


def _is_running(request: RequestRecord) -> bool:
    return (
        not is_completed(request) and request.finished_ns is None and request.first_scheduled_ns is not None
    )


def tokens_conserved(
    run: RunRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> Iterable[Finding]:
    """Not defined where a request was dropped half-way: how much of it was computed is unknown."""
    if any(not is_completed(r) and r.first_scheduled_ns is not None for r in requests):
        return
    by_requests = sum(num_computed(request) for request in requests if is_completed(request))
    by_steps = sum(step.num_tokens for step in steps)
    if by_steps != by_requests:
        message = f"the steps computed {by_steps} positions, the requests account for {by_requests}"
        yield broken("tokens-conserved", run, message)


def num_computed(request: RequestRecord) -> int:
    """Positions that steps computed for a completed request, by its own account.

    The last output token ends its request: it is sampled, and never computed as a position. An accepted
    draft is an output token; a rejected one was computed for nothing.
    """
    needed = request.num_prompt_tokens - request.num_cached_tokens + request.num_output_tokens - 1
    rejected = request.num_drafted_tokens - request.num_accepted_tokens
    return needed + request.num_recomputed_tokens + request.num_wasted_tokens + rejected


def other_steps(run: RunRecord) -> Iterable[Finding]:
    if run.step_list is not None and run.step_list.difference is not None:
        yield broken("other-steps", run, run.step_list.difference)


def tokens_counted(run: RunRecord, requests: Sequence[RequestRecord]) -> Iterable[Finding]:
    for request in requests:
        counts = (request.num_output_tokens, len(request.output_ids), len(request.token_ns))
        if len(set(counts)) > 1:
            message = (
                f"request {request.request_id} has {counts[0]} output tokens by its number, {counts[1]} by "
                f"its ids and {counts[2]} by their times"
            )
            yield broken("tokens-counted", run, message)
            return


def times_in_order(run: RunRecord, requests: Sequence[RequestRecord]) -> Iterable[Finding]:
    """Whether it was sent too early or too late is another rule's (schedule.py)."""
    for request in requests:
        if not _is_in_order(request):
            (earlier, earlier_ns), (later, later_ns) = next(
                (one, other) for one, other in pairwise(_moments(request)) if other[1] < one[1]
            )
            message = (
                f"request {request.request_id}: {later} lies {(earlier_ns - later_ns) / NS_PER_MS:.3f} ms "
                f"before {earlier}"
            )
            yield broken("times-in-order", run, message)
            return


def _is_in_order(request: RequestRecord) -> bool:
    """Of a hundred thousand requests of a hundred tokens each, without a word for every token."""
    tokens = request.token_ns
    edges = (request.sent_ns, request.first_scheduled_ns, *tokens[:1], *tokens[-1:], request.finished_ns)
    known = [at_ns for at_ns in edges if at_ns is not None]
    return known == sorted(known) and all(map(le, tokens, tokens[1:]))


def _moments(request: RequestRecord) -> Iterable[tuple[str, int]]:
    moments = [("its sending", request.sent_ns), ("the first step of it", request.first_scheduled_ns)]
    moments += [(f"output token {index}", at_ns) for index, at_ns in enumerate(request.token_ns)]
    moments.append(("its end", request.finished_ns))
    return [(what, at_ns) for what, at_ns in moments if at_ns is not None]


def littles_law(
    run: RunRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> Iterable[Finding]:
    """Two accounts of request-seconds that share no time stamp but the steps' own.

    L = sum over steps of (rows + waiting) x wall time / T, and rate x W = sum over requests of
    (end - sending) / T (Little 1961). A request is in no plan before the step after the one in which it
    came, under async before the next but one, and may be in one plan more after its end: so many walls may
    be missing, or too many.
    """
    if not requests or not steps or not all(map(is_completed, requests)):
        return
    walls = step_wall_ms(requests, steps)
    seen_ms = float(np.sum(walls * [step.num_rows + step.num_waiting for step in steps]))
    stays = [(request.sent_ns, request.finished_ns or request.sent_ns) for request in requests]
    lived_ms = sum(end - sent for sent, end in stays) / NS_PER_MS
    ends = np.asarray([step.end_ns for step in steps], dtype=np.int64)
    came, went = (np.searchsorted(ends, [stay[which] for stay in stays], "right") for which in (0, 1))
    padded = np.append(walls, [0.0, 0.0, 0.0])
    edges_ms = float(np.sum(padded[came] + padded[came + 1] + padded[went] + padded[went + 1]))
    if abs(seen_ms - lived_ms) > LITTLE_TOLERANCE * lived_ms + edges_ms:
        span_ms = max((max(end for _, end in stays) - min(sent for sent, _ in stays)) / NS_PER_MS, 1e-6)
        message = (
            f"by the steps {seen_ms / span_ms:.3f} requests were in the system at a time, by rate x mean "
            f"time in the system {lived_ms / span_ms:.3f}"
        )
        yield broken("littles-law", run, message)


def peak_above_mean(run: RunRecord) -> Iterable[Finding]:
    values = {name: metric.value for name, metric in run.metrics.items() if metric.value is not None}
    for sample in [name.removeprefix("max_") for name in values if name.startswith("max_")]:
        ordered = [f"{statistic}_{sample}" for statistic in _ORDERED if f"{statistic}_{sample}" in values]
        pairs = [*pairwise(ordered), (f"mean_{sample}", f"max_{sample}")]
        for low, high in pairs:
            if low in values and values[low] > values[high] * (1 + _ROUNDING):
                message = f"{low} is {values[low]:g}, and {high} is {values[high]:g}"
                yield broken("peak-above-mean", run, message)
                return
