"""From logits to tokens: what a request asks of its sampler, read from its slot (torch).

Pure functions. A token depends on its logits, its slot's tables and its position, bit for bit, and on no
other row: sums are integer sums, which have no order, and what is not a sum is done element by element.
Nothing waits for the device: what could be left out is told by the host (`SamplerNeed`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from runner.core import MAX_BAD_WORD_LENGTH, MAX_BAD_WORDS
from runner.kernels.noise import gumbel, uniform_bits
from runner.slot_state import BAD_WORDS_FIRST, NO_ID, STOPS_FIRST, Real, SamplerNeed, Whole

# Elements of logits processed at once: it bounds temporaries, 64 bytes an element at most, to 512 MiB.
_CHUNK_ELEMENTS = 1 << 23
_WEIGHT_BITS = 40  # of a probability's integer weight; the most likely token weighs 2**40
_MAX_FLOAT = torch.finfo(torch.float32).max
_MIN_POSITIVE = torch.finfo(torch.float32).tiny
_NEUTRAL = {
    Real.TEMPERATURE: 0.0,
    Real.TOP_P: 1.0,
    Real.MIN_P: 0.0,
    Real.REPETITION: 1.0,
    Real.PRESENCE: 0.0,
    Real.FREQUENCY: 0.0,
}


class SlotTables(NamedTuple):
    """What the slots hold (runner/slot_state.py).

    reals [slots, len(Real)] float32, wholes [slots, WHOLE_WIDTH] int32, history [slots, width] int32.
    """

    reals: torch.Tensor
    wholes: torch.Tensor
    history: torch.Tensor


class Rows(NamedTuple):
    """The slot's values of some rows: reals [rows, 1] by column, wholes and history [rows, width]."""

    reals: dict[Real, torch.Tensor]
    wholes: torch.Tensor
    history: torch.Tensor
    positions: torch.Tensor

    def whole(self, column: Whole) -> torch.Tensor:
        """[rows, 1] int64"""
        return self.wholes[:, column, None].long()


def sample(
    logits: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    has_params: torch.Tensor,
    tables: SlotTables,
    needs: SamplerNeed = SamplerNeed.ALL,
) -> torch.Tensor:
    """Token ids [rows] int64 of logits [rows, vocab], which stay as they are.

    `positions` [rows] int64 index prompt and output: history[slots[i], :positions[i]] are the ids before
    the token to be sampled. Rows may share a slot. A row whose `has_params` [rows] bool is false is greedy,
    whatever its slot holds. `needs` must hold what any row needs; more changes no token. As in vLLM's V1
    sampler: stop tokens before the minimal length and bad words banned, penalties, temperature, min_p, top_k,
    top_p, then the maximum of logits and Gumbel noise (which is a draw from their softmax).

    Equal logits: the lowest id. Nothing left to sample: id 0. Takes at most 64 bytes of temporaries for each
    of 2**23 elements (or of one row, if it is longer), and nothing beyond an argmax for no needs.
    """
    if not needs:
        return logits.argmax(dim=-1)
    num_rows, vocab = logits.shape
    per_chunk = max(1, _CHUNK_ELEMENTS // vocab)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    for first in range(0, num_rows, per_chunk):
        chunk = slice(first, first + per_chunk)
        rows = rows_of(slots[chunk], positions[chunk], has_params[chunk], tables)
        tokens[chunk] = scores(logits[chunk], rows, needs).argmax(dim=-1)
    return tokens


def token_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities float32 and ids int32, both [rows, 1 + width], of raw logits [rows, vocab].

    Column 0 is about the sampled `tokens` [rows] int64: the log-probability and, among the ids, the rank: one
    more than there are likelier tokens. Then the `width` likeliest tokens, best first.
    """
    logits = logits.to(torch.float32)
    chosen = logits.gather(1, tokens[:, None])
    best = logits.topk(width, dim=1)
    rank = (logits > chosen).sum(dim=1, keepdim=True) + 1
    values = torch.cat([chosen, best.values], dim=1) - logits.logsumexp(dim=1, keepdim=True)
    return values, torch.cat([rank, best.indices], dim=1).to(torch.int32)


def rows_of(
    slots: torch.Tensor, positions: torch.Tensor, has_params: torch.Tensor, tables: SlotTables
) -> Rows:
    """The values of each row's slot, neutral ones where it has none."""
    has = has_params[:, None]
    held = tables.reals[slots].clamp(max=_MAX_FLOAT)
    reals = {column: torch.where(has, held[:, column, None], _NEUTRAL[column]) for column in Real}
    # -1 stands for no id, no word, no cut (`top_k`) and no length that were still to be reached.
    wholes = torch.where(has, tables.wholes[slots], NO_ID)
    return Rows(reals, wholes, tables.history[slots], torch.where(has_params, positions, 0)[:, None])


def scores(logits: torch.Tensor, rows: Rows, needs: SamplerNeed) -> torch.Tensor:
    """What a row's token is the maximum of: float32 [rows, vocab]; -inf cannot be sampled."""
    logits = logits.to(torch.float32)
    if needs & SamplerNeed.MIN_TOKENS:
        logits = ban_stops(logits, rows)
    if needs & SamplerNeed.BAD_WORDS:
        logits = ban_words(logits, rows)
    if needs & SamplerNeed.PENALTIES:
        logits = penalise(logits, rows)
    if not needs & SamplerNeed.NOISE:
        return logits
    temperature = rows.reals[Real.TEMPERATURE]
    is_random = temperature > 0
    scaled = scale(logits, torch.where(is_random, temperature, 1.0))
    if needs & SamplerNeed.MIN_P:
        scaled = scaled.masked_fill(scaled < _log_min_p(rows), -math.inf)
    if needs & SamplerNeed.TOP_K_TOP_P:
        scaled = truncate(scaled, rows.whole(Whole.TOP_K), rows.reals[Real.TOP_P])
    scaled += gumbel(uniform_bits(_seeds(rows), rows.positions[:, 0], logits.shape[1]))
    return torch.where(is_random, scaled, logits)


def ban_stops(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    """No stop token while a request is shorter than it must become."""
    stops = rows.wholes[:, STOPS_FIRST:BAD_WORDS_FIRST]
    is_short = rows.positions < rows.whole(Whole.MIN_LENGTH)
    return logits.masked_fill(_marked(stops, is_short.expand_as(stops), logits.shape[1]), -math.inf)


def ban_words(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    """No last id of a word whose other ids are the newest of the output; ids of the prompt do not count."""
    words = rows.wholes[:, BAD_WORDS_FIRST:].view(-1, MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH)
    prefixes, last = words[:, :, :-1], words[:, :, -1]
    back = torch.arange(MAX_BAD_WORD_LENGTH - 1, 0, -1, device=words.device)
    places = rows.positions - back
    newest = rows.history.gather(1, places.clamp(0, rows.history.shape[1] - 1))
    is_output = places >= rows.whole(Whole.NUM_PROMPT)
    matches = (prefixes == NO_ID) | ((prefixes == newest[:, None]) & is_output[:, None])
    return logits.masked_fill(_marked(last, matches.all(dim=2), logits.shape[1]), -math.inf)


def penalise(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Repetition over ids of prompt and output; frequency and presence over those of the output.

    Takes int32 and bool [rows, vocab + 1] beside the logits, and int64 [rows, max_model_len].
    """
    vocab = logits.shape[1]
    places = torch.arange(rows.history.shape[1], device=logits.device)
    is_before = places < rows.positions
    is_output = is_before & (places >= rows.whole(Whole.NUM_PROMPT))
    counts = _counts(rows.history, is_output, vocab)
    repetition = rows.reals[Real.REPETITION].clamp(min=_MIN_POSITIVE)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition).clamp_(max=_MAX_FLOAT)
    logits = torch.where(_marked(rows.history, is_before, vocab), repeated, logits)
    logits = logits - rows.reals[Real.FREQUENCY] * counts
    return logits - rows.reals[Real.PRESENCE] * (counts > 0)


def scale(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """(logits - their maximum) / temperature [rows, 1]: 0 at most, so that no temperature overflows."""
    top = logits.amax(dim=1, keepdim=True).clamp_(min=-_MAX_FLOAT)
    return (logits - top).div_(temperature)


def truncate(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """-inf where a token is not among the `top_k` [rows, 1] likeliest, nor among the fewest of those that
    together have `top_p` [rows, 1] of their probability.

    `scaled` [rows, vocab] has 0 as its maximum. top_k below 1 or above the vocabulary, and top_p 1, keep
    all; tokens as likely as the last one kept are kept.
    """
    vocab = scaled.shape[1]
    ordered = scaled.sort(dim=1, descending=True).values
    last = torch.where(top_k < 1, vocab, top_k).clamp(max=vocab) - 1
    least = ordered.gather(1, last)
    weights = _weights(ordered).masked_fill_(ordered < least, 0)
    reached = weights.cumsum(dim=1).to(torch.float64)
    wanted = reached[:, -1:] * top_p.to(torch.float64)
    last = (reached < wanted).sum(dim=1, keepdim=True).clamp_(max=vocab - 1)
    nucleus = torch.where(top_p < 1, ordered.gather(1, last), -math.inf)
    return scaled.masked_fill(scaled < torch.maximum(least, nucleus), -math.inf)


def _weights(scaled: torch.Tensor) -> torch.Tensor:
    """Probabilities as int64, in units of 2**-40 of the largest: their sum is exact in any order.

    By way of float64, as the noise is: vector and scalar code give the same float32.
    """
    return scaled.to(torch.float64).exp_().to(torch.float32).mul_(2.0**_WEIGHT_BITS).to(torch.int64)


def _log_min_p(rows: Rows) -> torch.Tensor:
    """[rows, 1]; in float64, then rounded, so that a row's place in the batch does not matter."""
    return rows.reals[Real.MIN_P].to(torch.float64).log().to(torch.float32)


def _seeds(rows: Rows) -> torch.Tensor:
    """[rows] int64 of their two halves."""
    low, high = rows.wholes[:, Whole.SEED_LOW].long(), rows.wholes[:, Whole.SEED_HIGH].long()
    return (high << 32) | (low & 0xFFFFFFFF)


def _marked(ids: torch.Tensor, counts: torch.Tensor, vocab: int) -> torch.Tensor:
    """bool [rows, vocab]: true at the ids [rows, width] that count; those outside the vocabulary do not."""
    marks = torch.zeros(len(ids), vocab + 1, dtype=torch.bool, device=ids.device)
    return marks.scatter_(1, _or_beyond(ids, counts, vocab), True)[:, :vocab]


def _counts(ids: torch.Tensor, counts: torch.Tensor, vocab: int) -> torch.Tensor:
    """int32 [rows, vocab]: how often each id is among those that count."""
    index = _or_beyond(ids, counts, vocab)
    ones = torch.ones((), dtype=torch.int32, device=ids.device).expand_as(index)
    totals = torch.zeros(len(ids), vocab + 1, dtype=torch.int32, device=ids.device)
    return totals.scatter_add_(1, index, ones)[:, :vocab]


def _or_beyond(ids: torch.Tensor, counts: torch.Tensor, vocab: int) -> torch.Tensor:
    """int64 ids, and a column past the vocabulary for what does not count."""
    return torch.where(counts & (ids >= 0) & (ids < vocab), ids, vocab).long()
