"""16-bit values on the host: torch's own rounding and reading, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runner.core import FloatType, Prompt, Request, RequestError, SamplingParams, SuppliedRows
from runner.inputs.float_bits import as_float32, is_finite, rounded
from runner.inputs.supplied import in_model_type

HALVES: list[FloatType] = ["bfloat16", "float16"]
EVERY = np.arange(1 << 16, dtype=np.uint16)


def torch_bits(values: np.ndarray, dtype: FloatType) -> np.ndarray:
    return torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.uint16).numpy()


@pytest.mark.parametrize("dtype", HALVES)
@given(bits=st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=64))
def test_any_number_is_rounded_as_torch_rounds_it(dtype: FloatType, bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    assert (rounded(values, dtype) == torch_bits(values, dtype)).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_a_number_half_way_between_two_goes_to_the_even_one(dtype: FloatType) -> None:
    finite = EVERY[is_finite(EVERY, dtype)]
    values = np.sort(as_float32(finite, dtype).astype(np.float64))
    half_way = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    assert (rounded(half_way, dtype) == torch_bits(half_way, dtype)).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_every_pattern_is_read_as_torch_reads_it_and_finite_ones_come_back(dtype: FloatType) -> None:
    read = torch.from_numpy(EVERY).view(getattr(torch, dtype))
    assert (is_finite(EVERY, dtype) == read.isfinite().numpy()).all()
    finite = EVERY[is_finite(EVERY, dtype)]
    values = as_float32(finite, dtype)
    assert (values == read.float().numpy()[is_finite(EVERY, dtype)]).all()
    assert (rounded(values, dtype) == finite).all()


def test_float32_is_left_alone() -> None:
    values = np.array([1.0, -0.0, 3.4e38], np.float32)
    assert rounded(values, "float32") is values and as_float32(values, "float32") is values


# ---- supplied rows, when a request is admitted

VALUES = np.array([[1.0, -2.5], [0.1, 1e-3]], np.float32)


def request(values: np.ndarray, dtype: FloatType = "float32", mask: bytes | None = None) -> Request:
    rows = SuppliedRows(rounded(values, dtype).tobytes(), len(values), values.shape[1], dtype, mask)
    return Request("r", Prompt((5, 6) if mask else (), embeds=rows), SamplingParams(4))


@pytest.mark.parametrize("own", ["float32", *HALVES])
@pytest.mark.parametrize("came", ["float32", *HALVES])
def test_rows_of_another_type_are_cast_with_a_note_and_those_of_the_models_are_left(
    came: FloatType, own: FloatType
) -> None:
    given = request(VALUES, came, mask=b"\1\0")
    found, note = in_model_type(given, own)
    assert found.prompt.embeds is not None and given.prompt.embeds is not None
    if came == own:
        assert found is given and note is None
        return
    assert note == f"supplied rows came in {came} and were cast to {own} when they were admitted"
    expected = rounded(as_float32(rounded(VALUES, came), came), own)
    assert found.prompt.embeds.data == expected.tobytes()
    assert (found.prompt.embeds.dtype, found.prompt.embeds.mask) == (own, b"\1\0")
    assert found.prompt.token_ids == (5, 6) and found.sampling is given.sampling


def test_a_value_the_models_type_cannot_hold_is_refused_with_its_place_and_value() -> None:
    values = VALUES.copy()
    values[1, 0] = 7e4
    with pytest.raises(RequestError) as caught:
        in_model_type(request(values), "float16")
    told = str(caught.value)
    assert "request r: supplied row 1 holds 70000.0 at value 0" in told
    assert "too large for float16" in told and "runner.dtype" in told
    in_model_type(request(values), "bfloat16")
    values[1, 0] = 65504
    in_model_type(request(values), "float16")


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC1, 0xFFFF])
def test_bits_that_are_no_number_are_refused_before_they_reach_a_block(bits: int) -> None:
    rows = SuppliedRows(np.array([0, bits], np.uint16).tobytes(), 1, 2, "bfloat16")
    with pytest.raises(RequestError, match=r"supplied row 0 holds -?(nan|inf) at value 1; every value"):
        in_model_type(Request("r", Prompt((), embeds=rows), SamplingParams(4)), "bfloat16")
