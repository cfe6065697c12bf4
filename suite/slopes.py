"""How much longer a step gets for each repeat of a span's commands: one round of runs, by least squares.

Pure numbers: knows runs, steps and turns, no interval and no bill. A step's time runs from the device end of
the step before to its own: those stretches cover a run without gap or overlap, so whatever delays the device
is in exactly one of them, whether the host works meanwhile (async) or before (sync). The first has none.

In every step each run of a round has another turn (suite/turns.py), so a step's time is what the step takes
anyway, times how slow the run is as a whole, plus what its turn adds. Under async scheduling a step that ends
later may leave the next one less to wait for: what a turn adds to the next step counts as well, so that a
cost which the host hides is none. All of it is fitted at once, in shares of the step's median time; times
further than three robust standard deviations off the fit (a core taken away for a moment) are left out, and
it is fitted again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from runner.measure import StepRecord
from runner.repeats import Turn, repeats_in

Pair = tuple[str, str]
"""A span and a kind of step."""

Floats = NDArray[np.float64]

_MAX_DEVIATIONS = 3.0
_NORMAL = 1.4826  # standard deviations in a median absolute deviation of normal values
_MAX_FITS = 6


@dataclass(frozen=True, slots=True)
class AmplifiedRun:
    """One run of a round; `turns`: what it repeated in which step."""

    round: int
    steps: Sequence[StepRecord]
    turns: Sequence[Turn] = ()
    is_async: bool = False

    def k(self, span: str, step_id: int) -> int:
        """How often the span's commands were run in a step."""
        return repeats_in(step_id, {}, self.turns).get(span, 1)

    def is_plain(self, step_id: int) -> bool:
        return not repeats_in(step_id, {}, self.turns)


def step_times_us(steps: Sequence[StepRecord]) -> dict[int, float]:
    """Step id -> from the previous step's device end to its own."""
    return {step.step_id: (step.device_end_ns - last.device_end_ns) / 1000 for last, step in pairwise(steps)}


def round_slopes_us(runs: Sequence[AmplifiedRun], pairs: Collection[Pair]) -> dict[Pair, float]:
    """The slope of each pair in us a repeat, from the runs of one round, which took the same steps.

    Empty where the runs are too few to tell all of them apart, as where a round was cut short.
    """
    times = np.asarray([list(step_times_us(run.steps).values()) for run in runs], dtype=np.float64)
    if times.size == 0:
        return {}
    weights = 1 / np.maximum(np.median(times, axis=0), 1.0)
    effects = dict(_effects(runs, pairs, weights))
    owns = [pair for pair in pairs if (pair, "own") in effects]
    design = np.column_stack([*_step_and_run(*times.shape), *effects.values()])
    fitted = _robust_fit(design, (times * weights).ravel())
    if fitted is None:
        return {}
    found = dict(zip(effects, fitted[-len(effects) :], strict=True)) if effects else {}
    return {pair: float(found[pair, "own"] + found.get((pair, "next"), 0.0)) for pair in owns}


def _effects(
    runs: Sequence[AmplifiedRun], pairs: Collection[Pair], weights: Floats
) -> Iterator[tuple[tuple[Pair, str], Floats]]:
    """A column for what a pair adds to its own step and, under async, one for the next; none without any."""
    steps = runs[0].steps
    for pair in pairs:
        added = np.asarray([[_added(run, step, pair) for step in steps] for run in runs], dtype=np.float64)
        own, after = added[:, 1:] * weights, added[:, :-1] * weights
        if _varies(own):
            yield (pair, "own"), own.ravel()
        if runs[0].is_async and _varies(after):
            yield (pair, "next"), after.ravel()


def _added(run: AmplifiedRun, step: StepRecord, pair: Pair) -> int:
    span, kind = pair
    return run.k(span, step.step_id) - 1 if step.kind == kind else 0


def _varies(column: Floats) -> bool:
    return bool((column != column[0]).any())


def _step_and_run(num_runs: int, num_steps: int) -> Iterator[Floats]:
    """A column for each step, and for each run but the first."""
    for step in range(num_steps):
        yield np.tile(np.arange(num_steps) == step, num_runs).astype(np.float64)
    for run in range(1, num_runs):
        yield np.repeat(np.arange(num_runs) == run, num_steps).astype(np.float64)


def _robust_fit(design: Floats, values: Floats) -> Floats | None:
    """Least squares without outliers; None where the columns cannot be told apart."""
    kept = np.ones(len(values), dtype=np.bool_)
    fitted: Floats | None = None
    for _ in range(_MAX_FITS):
        found, _, rank, _ = np.linalg.lstsq(design[kept], values[kept], rcond=None)
        if rank < design.shape[1]:
            break
        fitted = found.astype(np.float64)
        residuals = np.abs(values - design @ found)
        scale = _NORMAL * float(np.median(residuals[kept]))
        inside = residuals <= max(_MAX_DEVIATIONS * scale, 1e-9)
        if (inside == kept).all():
            break
        kept = inside
    return fitted
