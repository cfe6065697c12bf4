"""Rules about all rounds of an arm: enough of them, and no trend."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from suite.record import RunRecord
from suite.validity.rule import MIN_ROUNDS, Finding, broken

MIN_ROUNDS_OF_DRIFT = 5
MIN_DRIFT = math.log(1.03)
"""From the first round to the last, by the line fitted."""
DRIFT_ALPHA = 0.01

FALLBACK_METRICS = ("output_throughput",)

CaseKey = tuple[str, str]
"""scenario, case_id"""


def over_rounds(
    measured: Sequence[RunRecord], invalid: frozenset[str], metrics_of: Mapping[CaseKey, Sequence[str]]
) -> Iterable[Finding]:
    """Of each arm; `metrics_of` says what each case compares, in which a trend would do harm."""
    arms: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in measured:
        arms.setdefault((run.scenario, run.case_id, run.arm), []).append(run)
    for (scenario, case_id, _), runs in arms.items():
        yield from _too_few_rounds(runs)
        for metric in metrics_of.get((scenario, case_id), FALLBACK_METRICS):
            yield from _drift([run for run in runs if run.run_id not in invalid], metric)


def _too_few_rounds(runs: Sequence[RunRecord]) -> Iterable[Finding]:
    completed = [run for run in runs if run.is_completed]
    if len(completed) < MIN_ROUNDS:
        message = f"{len(completed)} rounds were measured; at least {MIN_ROUNDS} are needed"
        yield broken("too-few-rounds", runs[-1], message)


def _drift(runs: Sequence[RunRecord], metric: str) -> Iterable[Finding]:
    points = sorted(
        (run.round, math.log(value))
        for run in runs
        if run.is_completed and (value := _value(run, metric)) is not None and value > 0
    )
    if len(points) < MIN_ROUNDS_OF_DRIFT:
        return
    rounds, logs = np.asarray(points, dtype=np.float64).T
    change, p_value = trend(rounds, logs)
    if abs(change) >= MIN_DRIFT and p_value < DRIFT_ALPHA:
        message = (
            f"{metric} went {'up' if change > 0 else 'down'} by {100 * abs(math.expm1(change)):.1f} % over "
            f"{len(points)} rounds (p = {p_value:.2g})"
        )
        yield broken("drift", runs[-1], message)


def trend(rounds: npt.NDArray[np.float64], logs: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Change of the fitted line from the first round to the last, and the p value of its slope (Student's t).

    Ordinary least squares; both arrays of shape (rounds,), at least 3. A line without any residual has p 0,
    or 1 where it is level.
    """
    from scipy import special

    x = rounds - rounds.mean()
    slope = float(x @ logs / (x @ x))
    residuals = logs - logs.mean() - slope * x
    freedom = rounds.size - 2
    error = math.sqrt(float(residuals @ residuals) / freedom / float(x @ x))
    change = slope * float(rounds.max() - rounds.min())
    if error < 1e-15:
        return change, 0.0 if abs(change) > 1e-12 else 1.0
    return change, float(2 * special.stdtr(freedom, -abs(slope) / error))


def _value(run: RunRecord, metric: str) -> float | None:
    return run.metrics[metric].value if metric in run.metrics else None
