"""What a request asks of its sampler fits its slot, whatever it asks."""

from __future__ import annotations

import numpy as np
import pytest

from runner.core import Prompt, Request, RequestState, SamplingParams
from runner.slot_state import NO_ID, STOPS_FIRST, WHOLE_WIDTH, Real, Whole, real_row, whole_row


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


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32, 2**62 + 5, 2**63 - 1])
def test_both_halves_of_a_seed_are_kept(seed: int) -> None:
    state = RequestState(Request("r", Prompt((5, 6, 7)), SamplingParams(4, seed=seed)), ())
    row = np.zeros(WHOLE_WIDTH, np.int32)
    row[:] = whole_row(state, eos_token_id=1)
    low, high = (int(row[column]) & 0xFFFFFFFF for column in (Whole.SEED_LOW, Whole.SEED_HIGH))
    assert high << 32 | low == seed


@pytest.mark.parametrize(("ignore_eos", "stops"), [(False, [8, 9, 1]), (True, [8, 9])])
def test_what_min_tokens_holds_back_is_every_token_that_could_stop_it(
    ignore_eos: bool, stops: list[int]
) -> None:
    sampling = SamplingParams(4, ignore_eos=ignore_eos, stop_token_ids=(8, 9), min_tokens=2)
    row = whole_row(RequestState(Request("r", Prompt((5, 6, 7)), sampling), ()), eos_token_id=1)
    assert row[STOPS_FIRST : STOPS_FIRST + 4] == stops + [NO_ID] * (4 - len(stops))
