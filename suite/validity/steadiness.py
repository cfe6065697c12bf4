"""Whether a run settled, where its traffic lets one ask: by its batch, or by its queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from runner.measure import StepRecord
from suite.metrics import NS_PER_MS
from suite.record import RequestRecord, RunRecord
from suite.steady import SETTLING_STEPS, NotSettled, steady_window, tolerance
from suite.validity.rule import Finding, broken

MIN_GROWTH = 0.1
"""Seconds that the queue delay grows in a second: what is served is 1 / 1.1 of what comes."""

LEAST_STEPS = 4 * SETTLING_STEPS
"""A run of fewer is too short to ask."""

MIN_STAYS = 2.0
"""By so many times of a median request the delay must grow over the run: a queue goes up and down by one."""


def not_steady(
    run: RunRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> Iterable[Finding]:
    """`run.settles` says what can be asked; nothing, of a short closed batch, a ramp or a trace."""
    if run.settles == "batch":
        yield from _batch(run, requests, steps)
    elif run.settles == "queue":
        yield from _queue(run, requests)


def _batch(
    run: RunRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> Iterable[Finding]:
    """By suite/steady.py, which sees steps alone; here it is known besides when the first request left.

    Prompts of one output token leave without ever decoding, so that by the steps none has left.
    """
    if len(steps) < LEAST_STEPS:
        return
    window = steady_window(steps)
    left_ns = min((r.finished_ns for r in requests if r.finished_ns is not None), default=None)
    later = [step for step in steps if left_ns is not None and step.start_ns >= left_ns]
    if isinstance(window, NotSettled) and not _is_ever_level(later):
        yield broken("not-steady", run, f"the batch never settled: {window.reason}")


def _is_ever_level(steps: Sequence[StepRecord]) -> bool:
    """Whether some consecutive steps have as many rows as they must to have settled."""
    for first in range(len(steps) - SETTLING_STEPS + 1):
        recent = steps[first : first + SETTLING_STEPS]
        rows = [step.num_rows for step in recent]
        is_level = max(rows) - min(rows) <= tolerance(float(np.median(rows)))
        if is_level and not any(step.num_preempted for step in recent):
            return True
    return False


def _queue(run: RunRecord, requests: Sequence[RequestRecord]) -> Iterable[Finding]:
    """By the slope of the queue delay over the scheduled arrival, by least squares."""
    served = [request for request in requests if request.first_scheduled_ns is not None]
    scheduled = np.asarray([r.scheduled_ns for r in served], dtype=np.int64)
    if len(served) < 2 or scheduled.min() == scheduled.max():
        return
    at_ms = (scheduled - scheduled.min()) / NS_PER_MS
    delay_ms = np.asarray([(r.first_scheduled_ns or 0) - r.scheduled_ns for r in served]) / NS_PER_MS
    stay_ms = np.median([((r.finished_ns or 0) - (r.first_scheduled_ns or 0)) / NS_PER_MS for r in served])
    slope = float(np.polyfit(at_ms, delay_ms, 1)[0])
    if slope >= MIN_GROWTH and slope * at_ms.max() >= MIN_STAYS * max(float(stay_ms), 0.0):
        message = (
            f"the queue delay grew by {1000 * slope:.0f} ms in every second, {slope * at_ms.max():.0f} ms "
            "over the run: more comes than is served"
        )
        yield broken("not-steady", run, message)
