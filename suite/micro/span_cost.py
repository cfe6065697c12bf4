"""What spans cost a step, by arithmetic: ns per span x spans per step / time of a step. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from runner.measure import StepRecord
from runner.spans import Level, Span
from suite.micro.median import Estimate

_HOST_LANES = ("host", "steps")


class SpanCost(NamedTuple):
    """ns a span at one level, beyond what the same code takes at level `off`.

    host: a phase of the host. command: a command of the device, where it runs. read: the host's part of a
    command's span, once its step is retired; zero but at level `events`.
    """

    level: Level
    host: Estimate
    command: Estimate
    read: Estimate


class SpansPerStep(NamedTuple):
    """Means over the steps counted: spans of the host, the step's own range among them, and of commands."""

    host: float
    command: float


def spans_per_step(spans: Sequence[Span], steps: Sequence[StepRecord]) -> SpansPerStep:
    """Of these steps, from a run at level `events`. ValueError without a step."""
    if not steps:
        raise ValueError("there is no step to count the spans of")
    ids = {step.step_id for step in steps}
    of_steps = [span for span in spans if span.step_id in ids]
    num_host = sum(span.lane in _HOST_LANES for span in of_steps)
    return SpansPerStep(num_host / len(ids), (len(of_steps) - num_host) / len(ids))


def instrument_share(cost: SpanCost, counted: SpansPerStep, step_ns: float) -> float:
    """The share of a step of `step_ns` that its spans take, were none of it hidden."""
    return instrument_ns(cost, counted) / step_ns


def instrument_ns(cost: SpanCost, counted: SpansPerStep) -> float:
    """ns of a step that its spans take: what host and device pay, though async hides one behind the other."""
    of_commands = (cost.command.value + cost.read.value) * counted.command
    return cost.host.value * counted.host + of_commands
