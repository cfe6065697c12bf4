"""Whether spans fit into their steps: leaves add up to no more than what they are leaves of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runner.measure import StepRecord
from runner.spans import Span
from suite.errors import SuiteError
from suite.lane_pieces import UNATTRIBUTED
from suite.record import RunRecord
from suite.span_costs import DEVICE_SLACK_NS, StepCost, span_costs
from suite.validity.rule import Finding, broken

HOST_SLACK_NS = 1_000
"""A step's record and its spans read the clock one after the other."""

_AROUND = frozenset({"hash", "record", UNATTRIBUTED})
"""Before the step's planning begins, after its record is made, and between its spans."""


def spans_within_step(
    run: RunRecord, steps: Sequence[StepRecord], spans: Sequence[Span]
) -> Iterable[Finding]:
    """By the exclusive times of suite/span_costs.py."""
    if not spans:
        return
    try:
        costs = span_costs(steps, spans)
    except SuiteError as error:
        yield broken("spans-within-step", run, str(error))
        return
    for record, cost in zip(steps, costs.steps, strict=True):
        message = _too_long(record, cost)
        if message:
            yield broken("spans-within-step", run, message)
            return


def _too_long(record: StepRecord, cost: StepCost) -> str | None:
    """In words; None for a step that holds its spans."""
    within_ns = record.end_ns - record.start_ns
    host_ns = sum(ns for name, ns in cost.host.items() if name not in _AROUND)
    device_ns = cost.device_ns - cost.device[UNATTRIBUTED]
    if host_ns > within_ns + HOST_SLACK_NS:
        return (
            f"step {record.step_id}: its host spans add up to {host_ns:,} ns, the step took {within_ns:,} ns"
        )
    if device_ns > record.device_ns + DEVICE_SLACK_NS:
        return (
            f"step {record.step_id}: its device spans add up to {device_ns:,} ns, its device time is "
            f"{record.device_ns:,} ns"
        )
    return None
