"""What a request asks of its sampler fits its slot, whatever it asks."""

from __future__ import annotations

import numpy as np
import pytest

from runner.core import Prompt, Request, RequestState, SamplingParams
from runner.slot_state import WHOLE_WIDTH, Real, Whole, real_row, whole_row


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(1, temperature=1.0, top_k=2**31),
        SamplingParams(1, temperature=1.0, top_k=2**80),
        SamplingParams(2**31, min_tokens=2**31 - 2),
        SamplingParams(2**40, min_tokens=2**40, seed=2**63 - 1),
    ],
)
def test_numbers_beyond_any_model_are_kept_as_the_largest_ones(sampling: SamplingParams) -> None:
    """One request that asks for more than an int32 holds once ended the whole run."""
    state = RequestState(Request("r", Prompt((5, 6, 7)), sampling), ())
    row = np.zeros(WHOLE_WIDTH, np.int32)
    row[:] = whole_row(state, eos_token_id=1)
    assert row[Whole.TOP_K] == min(sampling.top_k, 2**31 - 1)
    assert row[Whole.MIN_LENGTH] == min(3 + sampling.min_tokens, 2**31 - 1)


@pytest.mark.filterwarnings("error")
def test_reals_beyond_float32_are_kept_as_the_largest_ones() -> None:
    row = np.zeros(len(Real), np.float32)
    row[:] = real_row(SamplingParams(1, temperature=1e300, repetition_penalty=1e39))
    assert np.isfinite(row).all()
    assert row[Real.TEMPERATURE] == row[Real.REPETITION] == np.finfo(np.float32).max
