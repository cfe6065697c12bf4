"""Whether a runner's log-probabilities are the model's own: held against the oracle's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from runner.core import FloatType, Request, RequestState, TokenLogprobs
from suite.record import LogprobVerdict, RequestRecord
from suite.reported_logprobs import fault_at
from suite.tolerance import logprob_margin


class TokenError(NamedTuple):
    """An absolute error of one output token, and the largest that rounding explains there."""

    value: float
    margin: float


class Reference(Protocol):
    """What is asked of the oracle."""

    def logprobs(self, request: Request, output_ids: Sequence[int], /) -> Any:
        """An array: log-softmax of the model's own logits for each output token, (outputs, vocabulary)."""


def check_logprobs(
    oracle: Reference,
    completed: Iterable[RequestRecord],
    asked: Mapping[str, Request],
    states: Mapping[str, RequestState],
    dtype: FloatType = "float32",
) -> LogprobVerdict | None:
    """Every completed request that asked for any; None where none did. `dtype`: of the runner's model."""
    errors: dict[str, list[TokenError]] = {}
    for record in completed:
        request = asked[record.request_id]
        num_top = request.sampling.logprobs
        if num_top is not None and record.output_ids:
            expected = np.asarray(oracle.logprobs(request, record.output_ids), np.float64)
            given = states[record.request_id].logprobs
            errors[record.request_id] = position_errors(expected, record.output_ids, given, num_top, dtype)
    return _verdict(errors) if errors else None


def position_errors(
    expected: npt.NDArray[np.float64],
    output_ids: Sequence[int],
    given: Sequence[TokenLogprobs],
    num_top: int,
    dtype: FloatType = "float32",
) -> list[TokenError]:
    """The largest absolute error at each output token; infinite where one is missing or no number.

    `expected` has shape (outputs, vocabulary). The most likely tokens must have the log-probabilities that
    the model gives those ids, and the highest there are.
    """
    missing = [TokenError(math.inf, 0.0)] * (len(output_ids) - len(given))
    rows = zip(expected, output_ids, given, strict=False)
    return [_position_error(row, token, found, num_top, dtype) for row, token, found in rows] + missing


def _position_error(
    row: npt.NDArray[np.float64], token_id: int, found: TokenLogprobs, num_top: int, dtype: FloatType
) -> TokenError:
    margin = logprob_margin(dtype, float(row.std()))
    ids = [token_id, *(top_id for top_id, _ in found.top)]
    if len(found.top) != num_top or not all(0 <= top_id < len(row) for top_id in ids):
        return TokenError(math.inf, margin)
    values = np.array([found.logprob, *(value for _, value in found.top)])
    highest = -np.sort(-row)[:num_top]
    error = float(np.abs(np.concatenate([values - row[ids], values[1:] - highest])).max())
    if math.isnan(error) or (error <= margin and fault_at(row, token_id, found, num_top, margin)):
        return TokenError(math.inf, margin)  # a rank, an order or an id is wrong though each value is near
    return TokenError(error, margin)


def _verdict(errors: Mapping[str, Sequence[TokenError]]) -> LogprobVerdict:
    wrong = [
        (name, index)
        for name, found in errors.items()
        for index, error in enumerate(found)
        if error.value > error.margin
    ]
    values = [error.value for found in errors.values() for error in found]
    return LogprobVerdict(
        num_checked=len(values),
        num_wrong=len(wrong),
        max_error=max(filter(math.isfinite, values), default=None),
        first_wrong=wrong[0] if wrong else None,
    )
