"""Whether reported log-probabilities are those of the reference (numpy)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from runner.core import TokenLogprobs
from suite.tolerance import LOGPROB_MARGIN as MARGIN

Floats = NDArray[np.float64]


def first_fault(
    log_probs: Floats, output_ids: Sequence[int], reported: Sequence[TokenLogprobs], width: int
) -> str | None:
    """What is wrong first, or None. `log_probs` (outputs, vocabulary) are the reference's.

    Where two of them are nearer than MARGIN either may be reported as the likelier.
    """
    if not len(log_probs) == len(output_ids) == len(reported):
        return f"{len(output_ids)} output tokens, {len(reported)} reports"
    for index, (row, token, report) in enumerate(zip(log_probs, output_ids, reported, strict=True)):
        fault = fault_at(row, token, report, width)
        if fault is not None:
            return f"output token {index}: {fault}"
    return None


def fault_at(
    row: Floats, token: int, report: TokenLogprobs, width: int, margin: float = MARGIN
) -> str | None:
    """What is wrong first at one output token, whose log-probabilities are `row` (vocabulary)."""
    faults = (*_faults_of_sampled(row, token, report, margin), *_faults_of_top(row, report, width, margin))
    return next(iter(faults), None)


def _faults_of_sampled(row: Floats, token: int, report: TokenLogprobs, margin: float) -> Iterator[str]:
    own = row[token]
    if not abs(report.logprob - own) <= margin:
        yield f"log-probability {report.logprob:.6f} of id {token}, expected {own:.6f}"
    least = 1 + int((row > own + margin).sum())
    most = int((row >= own - margin).sum())  # itself counted
    if not least <= report.rank <= most:
        yield f"rank {report.rank} of id {token}, expected {least} to {most}"


def _faults_of_top(row: Floats, report: TokenLogprobs, width: int, margin: float) -> Iterator[str]:
    ids, values = [token for token, _ in report.top], [value for _, value in report.top]
    if len(set(ids)) != width or len(ids) != width or not all(0 <= token < len(row) for token in ids):
        yield f"the {width} likeliest ids are reported as {ids}"
        return
    if values != sorted(values, reverse=True):
        yield f"the likeliest are not in order: {values}"
    for value, token in zip(values, ids, strict=True):
        if not abs(value - row[token]) <= margin:
            yield f"log-probability {value:.6f} of id {token}, expected {row[token]:.6f}"
    if width and row[ids].min() < np.sort(row)[-width] - margin:
        yield f"ids {ids} are not the {width} likeliest"
