"""What the device keeps of a request in its slot, so that sampling asks the host for row numbers only.

One row a slot in each of three buffers, uploaded when the request takes the slot: `sampling_reals`,
`sampling_wholes` and `token_history` (the ids before the next position, -1 where a position has none). The
device itself appends what it samples to the history. Standard library only.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from runner.core import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_STOP_TOKENS,
    RequestState,
    SamplingParams,
)

NO_ID = -1
_SEED_BITS = 32
_MOST = 2**31 - 1  # of int32; no vocabulary and no model length comes near it
_MAX_FLOAT = float.fromhex("0x1.fffffep+127")  # of float32


class Real(IntEnum):
    """Columns of `sampling_reals` [slots, 6] float32."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    REPETITION = 3
    PRESENCE = 4
    FREQUENCY = 5


class Whole(IntEnum):
    """The first columns of `sampling_wholes` [slots, WHOLE_WIDTH] int32.

    MIN_LENGTH: prompt and output length before which no stop token may be sampled. Then come NUM_STOPS
    stop token ids and MAX_BAD_WORDS sequences of MAX_BAD_WORD_LENGTH ids, each with its last id in the last
    column; NO_ID fills what is not there.
    """

    TOP_K = 0
    NUM_PROMPT = 1
    MIN_LENGTH = 2
    SEED_LOW = 3
    SEED_HIGH = 4


class SamplerNeed(IntFlag):
    """The parts of the sampler that some row of a step needs. The empty one: all rows are greedy."""

    MIN_TOKENS = 1
    BAD_WORDS = 2
    PENALTIES = 4
    NOISE = 8
    MIN_P = 16
    TOP_K_TOP_P = 32
    ALL = 63


NUM_STOPS = MAX_STOP_TOKENS + 1  # and EOS
STOPS_FIRST = len(Whole)
BAD_WORDS_FIRST = STOPS_FIRST + NUM_STOPS
WHOLE_WIDTH = BAD_WORDS_FIRST + MAX_BAD_WORDS * MAX_BAD_WORD_LENGTH


def needs_of(sampling: SamplingParams) -> SamplerNeed:
    """What one request needs; a step needs what any of its rows does (`|`)."""
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    is_random = sampling.temperature > 0
    needed = {
        SamplerNeed.MIN_TOKENS: sampling.min_tokens > 0,
        SamplerNeed.BAD_WORDS: bool(sampling.bad_words),
        SamplerNeed.PENALTIES: penalties != (1.0, 0.0, 0.0),
        SamplerNeed.NOISE: is_random,
        SamplerNeed.MIN_P: is_random and sampling.min_p > 0,
        SamplerNeed.TOP_K_TOP_P: is_random and (sampling.top_k > 0 or sampling.top_p < 1),
    }
    return SamplerNeed(sum(need for need, is_needed in needed.items() if is_needed))


def real_row(sampling: SamplingParams) -> list[float]:
    """A slot's row of `sampling_reals`."""
    return [
        min(sampling.temperature, _MAX_FLOAT),
        sampling.top_p,
        sampling.min_p,
        min(sampling.repetition_penalty, _MAX_FLOAT),
        sampling.presence_penalty,
        sampling.frequency_penalty,
    ]


def whole_row(state: RequestState, eos_token_id: int) -> list[int]:
    """A slot's row of `sampling_wholes`; the seed as two signed halves."""
    sampling = state.request.sampling
    stops = [*sampling.stop_token_ids, *([] if sampling.ignore_eos else [eos_token_id])]
    row = [
        min(sampling.top_k, _MOST),
        state.num_prompt,
        min(state.num_prompt + sampling.min_tokens, _MOST),
        _signed(sampling.seed & 0xFFFFFFFF),
        _signed(sampling.seed >> _SEED_BITS),
        *stops,
        *[NO_ID] * (NUM_STOPS - len(stops)),
    ]
    for word in sampling.bad_words:
        row += [*[NO_ID] * (MAX_BAD_WORD_LENGTH - len(word)), *word]
    return row + [NO_ID] * (WHOLE_WIDTH - len(row))


def history_of(state: RequestState) -> list[int]:
    """The ids a request has so far, NO_ID at supplied positions: what is beside a supplied row is no id."""
    prompt = state.request.prompt
    embeds = prompt.embeds
    ids = list(prompt.token_ids) or [NO_ID] * state.num_prompt
    if embeds is not None and embeds.mask is not None:
        ids = [NO_ID if given else token for token, given in zip(ids, embeds.mask, strict=True)]
    return ids + state.output_ids


def _signed(bits: int) -> int:
    return bits - (1 << _SEED_BITS) if bits >> (_SEED_BITS - 1) else bits
