"""Values of 16 bits on the host, which holds them as their bits: to and from float32 (numpy)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.core import FloatType, SuppliedRows, host_type


def rounded(values: NDArray[np.float32], dtype: FloatType) -> NDArray[Any]:
    """The nearest values of `dtype`, halves to even, as the host holds them. Too large a value is infinite.

    Not for a NaN.
    """
    if dtype == "float32":
        return values
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(values).view(np.uint32)  # bfloat16 is the upper half of a float32
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def as_float32(held: NDArray[Any], dtype: FloatType) -> NDArray[np.float32]:
    """Values of `dtype`, given as the host holds them."""
    if dtype == "float16":
        return held.view(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        return (held.astype(np.uint32) << 16).view(np.float32)
    return held


def is_finite(held: NDArray[Any], dtype: FloatType) -> NDArray[np.bool_]:
    """Of each value, given as the host holds it."""
    if dtype == "bfloat16":
        exponent = np.uint16(0x7F80)  # all ones in an infinity and in a NaN
        found: NDArray[np.bool_] = (held & exponent) != exponent
    else:
        found = np.isfinite(held.view(np.float16) if dtype == "float16" else held)
    return found


def held_rows(embeds: SuppliedRows) -> NDArray[Any]:
    """A view of supplied rows [num_rows, hidden_size], as the host holds their type."""
    rows = np.frombuffer(embeds.data, host_type(embeds.dtype))
    return rows.reshape(embeds.num_rows, embeds.hidden_size)
