"""What the host half must know of supplied rows beyond their shape: their values (numpy)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from runner.core import FloatType, Request, RequestError, SuppliedRows
from runner.inputs.float_bits import as_float32, held_rows, is_finite, rounded


def in_model_type(request: Request, dtype: FloatType) -> tuple[Request, str | None]:
    """The request with its supplied rows in the model's type, and a note where they came in another.

    RequestError for a value that is NaN or infinite, through which a reused block would spoil other
    requests, or one that is too large for the model's type.
    """
    embeds = request.prompt.embeds
    if embeds is None:
        return request, None
    held = held_rows(embeds)
    _check(request, embeds, is_finite(held, embeds.dtype), "every value must be finite")
    if embeds.dtype == dtype:
        return request, None
    cast = rounded(as_float32(held, embeds.dtype), dtype)
    too_large = f"it is too large for {dtype}, the type of the model (runner.dtype)"
    _check(request, embeds, is_finite(cast, dtype), too_large)
    given = SuppliedRows(cast.tobytes(), embeds.num_rows, embeds.hidden_size, dtype, embeds.mask)
    note = f"supplied rows came in {embeds.dtype} and were cast to {dtype} when they were admitted"
    return replace(request, prompt=replace(request.prompt, embeds=given)), note


def _check(request: Request, embeds: SuppliedRows, fine: NDArray[np.bool_], rule: str) -> None:
    """RequestError for the first value that is not fine."""
    if fine.all():
        return
    row, column = (int(place) for place in np.argwhere(~fine)[0])
    value = as_float32(held_rows(embeds)[row, column : column + 1], embeds.dtype)[0]
    raise RequestError(
        f"request {request.request_id}: supplied row {row} holds {value} at value {column}; {rule}"
    )
