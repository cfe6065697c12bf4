"""How much longer a step gets for each repeat of a span's commands: one round of runs, by least squares.

Pure numbers: knows runs, steps and turns, no interval and no bill. A step's time runs from the device end of
the step before to its own: those stretches cover a run without gap or overlap, so whatever delays the device
is in exactly one of them, whether the host works meanwhile (async) or before (sync). The first has none.

In every step each run of a round has another turn (suite/turns.py), so a step's time is what the step takes
anyway, times how slow the run is as a whole, plus what its turn adds. Where under async scheduling the device
waits for the host, a step that ends later leaves the next one less to wait for: there what a turn adds to the
next step counts as well, so that a cost which the host hides is none. All of it is fitted at once, in shares
of the step's median time; times further than three robust standard deviations off the fit (a core taken away
for a moment) are left out, and it is fitted again.
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

MAX_WAITING = 0.01
_MAX_DEVIATIONS = 3.0
_NORMAL = 1.4826  # standard deviations in a median absolute deviation of normal values
_MAX_FITS = 6


@dataclass(frozen=True, slots=True)
class AmplifiedRun:
    """One run of a round; `turns`: what it repeated in which step.

    `lead_in`: ids of steps that only bring rows as far as decoding (suite/step_list.py): in no figure.
    """

    round: int
    steps: Sequence[StepRecord]
    turns: Sequence[Turn] = ()
    is_async: bool = False
    lead_in: frozenset[int] = frozenset()

    def k(self, span: str, step_id: int) -> int:
        """How often the span's commands were run in a step."""
        return repeats_in(step_id, {}, self.turns).get(span, 1)

    def is_plain(self, step_id: int) -> bool:
        return not repeats_in(step_id, {}, self.turns)


def step_times_us(steps: Sequence[StepRecord]) -> dict[int, float]:
    """Step id -> from the previous step's device end to its own."""
    return {step.step_id: (step.device_end_ns - last.device_end_ns) / 1000 for last, step in pairwise(steps)}


def waits_for_host(runs: Sequence[AmplifiedRun]) -> bool:
    """Whether, under async, the device was idle for MAX_WAITING of the time because nothing was launched."""
    waited_ns = total_ns = 0
    for run in runs:
        for last, step in pairwise(run.steps if run.is_async else ()):
            if step.step_id in run.lead_in:
                continue
            waited_ns += max(0, step.device_start_ns - last.device_end_ns - step.handoff_ns)
            total_ns += step.device_end_ns - last.device_end_ns
    return waited_ns > MAX_WAITING * total_ns


def round_slopes_us(
    runs: Sequence[AmplifiedRun], pairs: Collection[Pair], counts_next: bool
) -> dict[Pair, float]:
    """The slope of each pair in us a repeat, from the runs of one round, which took the same steps.

    `counts_next`: what a pair adds to the next step is part of it (waits_for_host).

    Empty where the runs are too few to tell all of them apart, as where a round was cut short.
    """
    steps = enumerate(runs[0].steps)
    counted = [place for place, step in steps if place and step.step_id not in runs[0].lead_in]
    of_runs = [list(step_times_us(run.steps).values()) for run in runs]
    times = np.asarray([[of_run[place - 1] for place in counted] for of_run in of_runs], dtype=np.float64)
    if times.size == 0:
        return {}
    weights = 1 / np.maximum(np.median(times, axis=0), 1.0)
    effects = dict(_effects(runs, pairs, counted, weights, counts_next))
    owns = [pair for pair in pairs if (pair, "own") in effects]
    if not owns:
        return {}
    columns = np.stack([*_of_runs(*times.shape), *effects.values()], axis=-1)
    fitted = _robust_fit(columns, times * weights)
    if fitted is None:
        return {}
    found = dict(zip(effects, fitted[-len(effects) :], strict=True))
    return {pair: float(found[pair, "own"] + found.get((pair, "next"), 0.0)) for pair in owns}


def _effects(
    runs: Sequence[AmplifiedRun],
    pairs: Collection[Pair],
    counted: Sequence[int],
    weights: Floats,
    counts_next: bool,
) -> Iterator[tuple[tuple[Pair, str], Floats]]:
    """A column for what a pair adds to its own step and one for the next; none without any.

    Columns are tables with a row a run and a place for each step that is `counted`, by its place.
    """
    steps = runs[0].steps
    repeats = [[repeats_in(step.step_id, {}, run.turns) for step in steps] for run in runs]
    for span, kind in pairs:
        is_kind = np.asarray([step.kind == kind for step in steps])
        more = np.asarray([[of_step.get(span, 1) - 1 for of_step in of_run] for of_run in repeats])
        added = np.where(is_kind, more, 0).astype(np.float64)
        own, after = (added[:, np.asarray(counted) - back] * weights for back in (0, 1))
        if _varies(own):
            yield ((span, kind), "own"), own
        if counts_next and _varies(after):
            yield ((span, kind), "next"), after


def _varies(column: Floats) -> bool:
    return bool((column != column[0]).any())


def _of_runs(num_runs: int, num_steps: int) -> Iterator[Floats]:
    """A column for each run but the first."""
    for run in range(1, num_runs):
        column = np.zeros((num_runs, num_steps))
        column[run] = 1.0
        yield column


def _robust_fit(columns: Floats, values: Floats) -> Floats | None:
    """Least squares without outliers; None where the columns cannot be told apart.

    `values` by run and step, `columns` likewise with one number for each column: the coefficients come back.
    Each step has a level of its own beside them.
    """
    kept = np.ones(values.shape, dtype=np.bool_)
    fitted: Floats | None = None
    for _ in range(_MAX_FITS):
        fit = _fit_within_steps(columns, values, kept)
        if fit is None:
            break
        fitted, predicted = fit
        residuals = np.abs(values - predicted)
        scale = _NORMAL * float(np.median(residuals[kept]))
        inside = residuals <= max(_MAX_DEVIATIONS * scale, 1e-9)
        if (inside == kept).all():
            break
        kept = inside
    return fitted


def _fit_within_steps(
    columns: Floats, values: Floats, kept: NDArray[np.bool_]
) -> tuple[Floats, Floats] | None:
    """The coefficients and all predicted values; None where the columns or a step's level cannot be told.

    The levels are never solved for: least squares of what deviates from each step's mean over the kept runs
    has the same coefficients (Frisch and Waugh, 1933), and needs a time linear in the number of steps.
    """
    counts = kept.sum(axis=0)
    if not counts.all():
        return None
    column_means = (columns * kept[..., np.newaxis]).sum(axis=0) / counts[:, np.newaxis]
    value_means = (values * kept).sum(axis=0) / counts
    deviating = (columns - column_means)[kept]
    found, _, rank, _ = np.linalg.lstsq(deviating, (values - value_means)[kept], rcond=None)
    if rank < columns.shape[-1]:
        return None
    coefficients = found.astype(np.float64)
    return coefficients, value_means + (columns - column_means) @ coefficients
