"""Rules about all rounds of an arm: enough of them, and no trend.

A machine that becomes slower slows all arms of a round alike, which their ratios do not show: what would
harm a comparison is a trend of the ratio. Where no arm ran beside, it is a trend of the figure itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

import numpy as np
import numpy.typing as npt

from suite.case_label import case_title
from suite.record import RunRecord
from suite.validity.rule import MIN_ROUNDS, Finding, broken

MIN_ROUNDS_OF_DRIFT = 5
MIN_DRIFT = math.log(1.03)
"""From the first round to the last, by the line fitted."""
DRIFT_ALPHA = 0.01

CaseKey = tuple[str, str]
"""scenario, case_id"""


class Compared(Protocol):
    """What a case compares its arms with, and in which metrics."""

    @property
    def reference(self) -> str | None: ...
    @property
    def metrics(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class _Alone:
    """Of a folder that tells none."""

    reference: str | None = None
    metrics: tuple[str, ...] = ("output_throughput",)


ALONE = _Alone()


def over_rounds(
    measured: Sequence[RunRecord], invalid: frozenset[str], compared: Mapping[CaseKey, Compared]
) -> Iterable[Finding]:
    """Of each arm; `compared` says what each case compares with what, in which a trend would do harm."""
    arms: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in measured:
        arms.setdefault((run.scenario, run.case_id, run.arm), []).append(run)
    for runs in arms.values():
        yield from _too_few_rounds(runs)
    valid = {key: [run for run in runs if run.run_id not in invalid] for key, runs in arms.items()}
    for (scenario, case_id, arm), runs in valid.items():
        case = compared.get((scenario, case_id), ALONE)
        others = [name for of, at, name in valid if (of, at) == (scenario, case_id) and name != arm]
        if case.reference == arm and others:
            continue  # the others are held against it
        beside = valid.get((scenario, case_id, case.reference or ""), []) if arm != case.reference else []
        for metric in case.metrics:
            yield from _drift(runs, beside, metric)


def machine_drifts(
    measured: Sequence[RunRecord], invalid: frozenset[str], compared: Mapping[CaseKey, Compared]
) -> Iterable[str]:
    """Cases in which all arms became slower or faster together, which their ratios do not show."""
    cases: dict[CaseKey, dict[str, list[RunRecord]]] = {}
    for run in measured:
        if run.run_id not in invalid:
            of_case = cases.setdefault((run.scenario, run.case_id), {})
            of_case.setdefault(run.arm, []).append(run)
    for key, arms in cases.items():
        for metric in compared.get(key, ALONE).metrics if len(arms) > 1 else ():
            found = _trend_text(_together([*arms.values()], metric))
            if found is not None:
                first = next(iter(arms.values()))[0]
                yield (
                    f"{case_title(first.scenario, first.case_label)}: the machine changed: {metric} of all "
                    f"{len(arms)} arms together {found}; ratios compare arms within a round and stand, but "
                    "figures by themselves are of no steady machine"
                )


def _together(arms: Sequence[Sequence[RunRecord]], metric: str) -> dict[int, float]:
    """Round -> mean of the logarithms of all arms, of the rounds that all have."""
    logs = [_logs(runs, metric) for runs in arms]
    return {number: fmean(of_arm[number] for of_arm in logs) for number in set.intersection(*map(set, logs))}


def _too_few_rounds(runs: Sequence[RunRecord]) -> Iterable[Finding]:
    completed = [run for run in runs if run.is_completed]
    if len(completed) < MIN_ROUNDS:
        message = f"{len(completed)} rounds were measured; at least {MIN_ROUNDS} are needed"
        yield broken("too-few-rounds", runs[-1], message)


def _drift(runs: Sequence[RunRecord], beside: Sequence[RunRecord], metric: str) -> Iterable[Finding]:
    """Of the ratio to what ran beside in the same rounds; of the metric itself where nothing did."""
    logs, against = _logs(runs, metric), ""
    if beside:
        under = _logs(beside, metric)
        logs = {number: log - under[number] for number, log in logs.items() if number in under}
        against = f" against {beside[0].arm}"
    found = _trend_text(logs)
    if found is not None:
        yield broken("drift", runs[-1], f"{metric}{against} {found}")


def _trend_text(logs: Mapping[int, float]) -> str | None:
    """ "went up by 8.3 % over 20 rounds (p = 0.001)"; None where there is no trend that matters."""
    if len(logs) < MIN_ROUNDS_OF_DRIFT:
        return None
    rounds, values = np.asarray(sorted(logs.items()), dtype=np.float64).T
    change, p_value = trend(rounds, values)
    if abs(change) < MIN_DRIFT or p_value >= DRIFT_ALPHA:
        return None
    size = 100 * abs(math.expm1(change))
    return (
        f"went {'up' if change > 0 else 'down'} by {size:.1f} % over {len(logs)} rounds (p = {p_value:.2g})"
    )


def _logs(runs: Sequence[RunRecord], metric: str) -> dict[int, float]:
    """Round -> logarithm, of those that completed and have a positive value."""
    return {
        run.round: math.log(value)
        for run in runs
        if run.is_completed and (value := _value(run, metric)) is not None and value > 0
    }


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
