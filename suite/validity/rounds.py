"""Rules about all rounds of an arm: enough of them, and no trend.

A machine that becomes slower slows all arms of a round alike, which their ratios do not show: what would
harm a comparison is a trend of the ratio. Where no arm ran beside, it is a trend of the figure itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np
import numpy.typing as npt

from suite.case_design import AT_ONCE_METRICS, CaseKey, Design
from suite.case_label import case_title
from suite.record import RunRecord
from suite.validity.rule import MIN_ROUNDS, Finding, broken

MIN_ROUNDS_OF_DRIFT = 5
MIN_DRIFT = math.log(1.03)
"""From the first round to the last, by the line fitted."""
DRIFT_ALPHA = 0.01

_ALONE = Design(None, AT_ONCE_METRICS)

Arms = Mapping[str, Sequence[RunRecord]]
"""Arm of a case -> its runs, those made again for the noise floor among them."""
Logs = Mapping[int, float]
"""Round -> logarithm of a metric, or of a ratio."""


def over_rounds(
    timed: Sequence[RunRecord], invalid: frozenset[str], design_of: Mapping[CaseKey, Design]
) -> Iterator[Finding]:
    """Of each arm of each case; `timed` are the runs that were timed alike, A/A ones among them."""
    for arms in _cases([run for run in timed if not run.is_aa]).values():
        for runs in arms.values():
            yield from _too_few_rounds(runs)
    for key, arms in _cases([run for run in timed if run.run_id not in invalid]).items():
        design = design_of.get(key, _ALONE)
        for metric in design.metrics:
            yield from _drifts(arms, design.reference, metric)


def machine_drifts(
    timed: Sequence[RunRecord], invalid: frozenset[str], design_of: Mapping[CaseKey, Design]
) -> Iterator[str]:
    """Cases in which all arms became slower or faster alike, which their ratios do not show."""
    for key, arms in _cases([run for run in timed if run.run_id not in invalid]).items():
        design = design_of.get(key, _ALONE)
        for metric in design.metrics:
            found = None if any(_drifts(arms, design.reference, metric)) else _alike(arms, metric)
            if found is not None:
                first = next(iter(arms.values()))[0]
                yield (
                    f"{case_title(first.scenario, first.case_label)}: the machine changed: {metric} of all "
                    f"arms together {found}; ratios compare arms within a round and stand, but figures by "
                    "themselves are of a machine that was not steady"
                )


def _cases(runs: Iterable[RunRecord]) -> dict[CaseKey, dict[str, list[RunRecord]]]:
    found: dict[CaseKey, dict[str, list[RunRecord]]] = {}
    for run in runs:
        found.setdefault((run.scenario, run.case_id), {}).setdefault(run.arm, []).append(run)
    return found


def _too_few_rounds(runs: Sequence[RunRecord]) -> Iterator[Finding]:
    completed = [run for run in runs if run.is_completed]
    if len(completed) < MIN_ROUNDS:
        message = f"{len(completed)} rounds were measured; at least {MIN_ROUNDS} are needed"
        yield broken("too-few-rounds", runs[-1], message)


def _drifts(arms: Arms, reference: str | None, metric: str) -> Iterator[Finding]:
    """Of the ratio to the reference arm; of an arm's own figure where nothing ran beside it."""
    logs = {arm: _logs(runs, metric) for arm, runs in arms.items()}
    under = logs.get(reference or "", {})
    ratios = {arm: _over(of_arm, under) for arm, of_arm in logs.items() if arm != reference}
    are_held = any(len(ratio) >= MIN_ROUNDS_OF_DRIFT for ratio in ratios.values())
    for arm, of_arm in logs.items():
        if arm == reference and are_held:
            continue  # they are held against it
        ratio = ratios.get(arm, {})
        is_held = len(ratio) >= MIN_ROUNDS_OF_DRIFT
        found = _trend_text(ratio if is_held else of_arm)
        if found is not None:
            against = f" against {reference}" if is_held else ""
            last = max(arms[arm], key=lambda run: (not run.is_aa, run.round))
            yield broken("drift", last, f"{metric}{against} {found}")


def _alike(arms: Arms, metric: str) -> str | None:
    """What all arms did together, each of them the same way; None where that does not matter."""
    logs = [of_arm for runs in arms.values() if len(of_arm := _logs(runs, metric)) >= MIN_ROUNDS_OF_DRIFT]
    if len(logs) < 2:
        return None
    changes = [trend(*_line(of_arm))[0] for of_arm in logs]
    if abs(sum(np.sign(changes))) < len(changes) or min(map(abs, changes)) < MIN_DRIFT:
        return None
    shared = set.intersection(*map(set, logs))
    return _trend_text({number: fmean(of_arm[number] for of_arm in logs) for number in shared})


def _over(logs: Logs, under: Logs) -> dict[int, float]:
    return {number: log - under[number] for number, log in logs.items() if number in under}


def _trend_text(logs: Logs) -> str | None:
    """ "went up by 8.3 % over 20 rounds (p = 0.001)"; None where there is no trend that matters."""
    if len(logs) < MIN_ROUNDS_OF_DRIFT:
        return None
    change, p_value = trend(*_line(logs))
    if abs(change) < MIN_DRIFT or p_value >= DRIFT_ALPHA:
        return None
    size = 100 * abs(math.expm1(change))
    return (
        f"went {'up' if change > 0 else 'down'} by {size:.1f} % over {len(logs)} rounds (p = {p_value:.2g})"
    )


def _line(logs: Logs) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    rounds, values = np.asarray(sorted(logs.items()), dtype=np.float64).T
    return rounds, values


def _logs(runs: Sequence[RunRecord], metric: str) -> dict[int, float]:
    """Of the runs that completed and have a positive value; the mean of both where a round has two."""
    found: dict[int, list[float]] = {}
    for run in runs:
        value = _value(run, metric)
        if run.is_completed and value is not None and value > 0:
            found.setdefault(run.round, []).append(math.log(value))
    return {number: fmean(logs) for number, logs in found.items()}


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
