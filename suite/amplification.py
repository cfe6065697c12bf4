"""The in-situ cost of a command: how much longer a run gets for each time the command is run once more.

Pure functions. Of every round the slope of step time on repeats (suite/slopes.py); over rounds the mean, with
Student's 95 % interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from runner.measure import StepRecord
from runner.spans import Span
from suite.ratios import MIN_ROUNDS, quantile
from suite.slopes import AmplifiedRun, Pair, round_slopes_us, step_times_us, waits_for_host

TRIMMED = 0.25
"""Of a run's steps, on either side, for the time of one without repeats."""

KINDS = ("decode", "mixed", "prefill")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over rounds in us. Without an interval there were too few rounds for one."""

    mean_us: float
    low_us: float | None
    high_us: float | None
    num_rounds: int

    @property
    def is_decided(self) -> bool:
        """Whether the interval leaves no doubt that it is not 0."""
        if self.low_us is None or self.high_us is None or self.num_rounds < MIN_ROUNDS:
            return False
        return self.low_us > 0 or self.high_us < 0


@dataclass(frozen=True, slots=True)
class CommandTimes:
    """What an instrumented run says of a span in steps of one kind. None has a reason.

    `per_step`: how many commands a step has. Device and enqueue time: the median of one command, in us.
    """

    per_step: float
    device_us: float | None
    device_reason: str | None
    enqueue_us: float | None
    enqueue_reason: str | None


@dataclass(frozen=True, slots=True)
class AmplifiedCost:
    """A line of the bill: all commands of a span in steps of one kind, in a step.

    `cost` is None where no round was whole. `step_us`: the step without repeats.
    """

    span: str
    kind: str
    ks: tuple[int, ...]
    num_steps: int
    step_us: float
    cost: Estimate | None
    times: CommandTimes

    @property
    def share(self) -> float | None:
        """Of the step's time."""
        return self.cost.mean_us / self.step_us if self.cost is not None and self.step_us > 0 else None

    @property
    def upper_us(self) -> float | None:
        """What it costs at most, at 97.5 %; None where too few rounds bound it."""
        if self.cost is None or self.cost.high_us is None:
            return None
        return max(0.0, self.cost.high_us)


def middle_mean(values: Iterable[float]) -> float:
    """The mean of the middle half."""
    from scipy import stats  # slow to load, and most commands never need it

    return float(stats.trim_mean(np.asarray(list(values), dtype=np.float64), TRIMMED))


def estimate(values_us: Sequence[float]) -> Estimate:
    """The mean of independent values, with Student's interval from two on. ValueError for none."""
    count, mean = len(values_us), statistics.fmean(values_us)
    if count < 2:
        return Estimate(mean, None, None, count)
    half = quantile(count) * statistics.stdev(values_us) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count)


def slopes_us(runs: Sequence[AmplifiedRun], pairs: Collection[Pair]) -> dict[Pair, list[float]]:
    """The slopes of each pair, one of every whole round."""
    slopes: dict[Pair, list[float]] = {pair: [] for pair in pairs}
    counts_next = waits_for_host(runs)
    for number in dict.fromkeys(run.round for run in runs):
        of_round = [run for run in runs if run.round == number]
        for pair, slope in round_slopes_us(of_round, pairs, counts_next).items():
            slopes[pair].append(slope)
    return slopes


def plain_step_us(runs: Sequence[AmplifiedRun], kind: str) -> float | None:
    """A step of that kind where nothing is repeated: the mean over runs of the middle mean."""
    means = []
    for run in runs:
        times = step_times_us(run.steps)
        plain = [
            times[step.step_id]
            for step in run.steps
            if step.kind == kind
            and step.step_id in times
            and step.step_id not in run.lead_in
            and run.is_plain(step.step_id)
        ]
        means += [middle_mean(plain)] if plain else []
    return statistics.fmean(means) if means else None


def command_times(steps: Sequence[StepRecord], spans: Sequence[Span], name: str, kind: str) -> CommandTimes:
    """Device and enqueue time of a span's commands, from a run with `--instrument events`."""
    ids = {step.step_id for step in steps if step.kind == kind}
    found = [span for span in spans if span.name == name and span.step_id in ids]
    device = [span for span in found if span.lane in ("compute", "output")]
    enqueued = [span for span in found if span.lane == "host"]
    device_us, device_reason = _median_us(device, "no instrumented run has it")
    enqueue_us, enqueue_reason = _median_us(enqueued, "the commands of a step travel in one message")
    per_step = len(device) / len(ids) if ids else 0.0
    return CommandTimes(per_step, device_us, device_reason, enqueue_us, enqueue_reason)


def _median_us(spans: Sequence[Span], reason: str) -> tuple[float | None, str | None]:
    known = [span.duration_ns for span in spans if span.duration_ns is not None]
    if known:
        return statistics.median(known) / 1000, None
    reasons = [span.reason for span in spans if span.reason is not None]
    return None, reasons[0] if reasons else reason


def amplified_costs(
    runs: Sequence[AmplifiedRun],
    instrumented: Sequence[StepRecord] | None,
    spans: Sequence[Span],
    names: Sequence[str],
) -> list[AmplifiedCost]:
    """The bill of an arm: a line for each span and kind of step that has its commands.

    `instrumented` are the steps of a run that repeats nothing, and `spans` its own. Without it, every span of
    `names` has a line for every kind of step there is.
    """
    alike = same_steps(runs)
    times = {
        (name, kind): command_times(instrumented or (), spans, name, kind) for kind in KINDS for name in names
    }
    pairs = [pair for pair, found in times.items() if instrumented is None or found.per_step > 0]
    slopes = slopes_us(alike, pairs)
    lines = [_line(alike, pair, times[pair], slopes[pair]) for pair in pairs]
    return [line for line in lines if line is not None]


def _line(
    runs: Sequence[AmplifiedRun], pair: Pair, times: CommandTimes, slopes: Sequence[float]
) -> AmplifiedCost | None:
    """None where no step but the first is of that kind."""
    span, kind = pair
    step_us = plain_step_us(runs, kind)
    if step_us is None:
        return None
    return AmplifiedCost(
        span=span,
        kind=kind,
        ks=tuple(sorted({run.k(span, step.step_id) for run in runs for step in run.steps})),
        num_steps=sum(
            step.kind == kind and step.step_id not in runs[0].lead_in for step in runs[0].steps[1:]
        ),
        step_us=step_us,
        cost=estimate(slopes) if slopes else None,
        times=times,
    )


def same_steps(runs: Sequence[AmplifiedRun]) -> list[AmplifiedRun]:
    """Those that took the same steps as the first: no other can be held against it step by step."""
    return [run for run in runs if _plan_of(run) == _plan_of(runs[0])]


def _plan_of(run: AmplifiedRun) -> list[tuple[int, str, int, int]]:
    return [(step.step_id, step.kind, step.num_rows, step.num_tokens) for step in run.steps]


def largest_k(command_us: float, per_step: float, step_us: float, most: int, share: float = 0.1) -> int:
    """The k at which the repeated part is that share of the step, from 2 to `most`."""
    once_us = command_us * per_step
    if once_us <= 0:
        return most
    return max(2, min(most, 1 + round(share * step_us / once_us)))
