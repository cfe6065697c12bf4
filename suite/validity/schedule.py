"""Rules about the schedule: requests sent when they should be, at the rate that was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from runner.measure import StepRecord
from suite.metrics import NS_PER_MS, step_wall_ms
from suite.record import RequestRecord, RunRecord
from suite.validity.rule import Finding, broken

SEND_SLACK_MS = 20.0
"""A request may be handed over this much later than the longest step, which it had to wait for."""

RATE_TOLERANCE = 0.02
MIN_REQUESTS_OF_RATE = 10
"""With fewer, one step more or less is much of the rate."""


def off_schedule(
    run: RunRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> Iterable[Finding]:
    """An engine takes new requests between steps, so a step may delay one by its whole length.

    One that had to wait for a place, of max_concurrency, could be sent when the place became free.
    """
    if not requests:
        return
    late_ms = max((request.sent_ns - due_ns) / NS_PER_MS for request, due_ns in _due(run, requests))
    early_ms = max((request.scheduled_ns - request.sent_ns) / NS_PER_MS for request in requests)
    walls = step_wall_ms(requests, steps)
    allowed_ms = (float(walls.max()) if walls.size else 0.0) + SEND_SLACK_MS
    if late_ms > allowed_ms:
        message = (
            f"a request was handed over {late_ms:.1f} ms after its scheduled time; the longest "
            f"step explains {allowed_ms:.1f} ms"
        )
        yield broken("off-schedule", run, message)
    if early_ms > 0:
        message = f"a request was handed over {early_ms:.1f} ms before its scheduled time"
        yield broken("off-schedule", run, message)


def _due(run: RunRecord, requests: Sequence[RequestRecord]) -> Iterator[tuple[RequestRecord, int]]:
    """When each request could be sent at the earliest (ns)."""
    most = run.max_concurrency
    ended = sorted(request.finished_ns or request.sent_ns for request in requests)
    in_order = sorted(requests, key=lambda request: (request.scheduled_ns, request.sent_ns))
    for place, request in enumerate(in_order):
        has_place = most is None or place < most
        free_ns = request.scheduled_ns if has_place else ended[place - (most or 0)]
        yield request, max(request.scheduled_ns, free_ns)


def off_rate(
    run: RunRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> Iterable[Finding]:
    """Of an open loop that may send freely: (n - 1) / time from the first request to the last.

    One step is allowed beside the tolerance: the last request may come when one has just begun. With a limit
    on concurrency a rate above what is served cannot be sent; that shows in the queue delay.
    """
    scheduled = np.sort([request.scheduled_ns for request in requests])
    if (
        run.max_concurrency is not None
        or len(requests) < MIN_REQUESTS_OF_RATE
        or scheduled[0] == scheduled[-1]
    ):
        return
    sent = np.sort([request.sent_ns for request in requests])
    asked_ms, taken_ms = (float(times[-1] - times[0]) / NS_PER_MS for times in (scheduled, sent))
    walls = step_wall_ms(requests, steps)
    step_ms = float(np.median(walls)) if walls.size else 0.0
    if abs(taken_ms - asked_ms) > RATE_TOLERANCE * asked_ms + step_ms + SEND_SLACK_MS:
        asked, achieved = (1000 * (len(requests) - 1) / max(ms, 1e-6) for ms in (asked_ms, taken_ms))
        message = f"{asked:.4g} requests/s were asked for and {achieved:.4g} requests/s sent"
        yield broken("off-rate", run, message)
