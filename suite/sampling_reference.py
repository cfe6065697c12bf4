"""What a request's sampling parameters make of logits: the definition, one position at a time (numpy).

Written for the oracle, in float64, without a thought for speed, and with nothing of the runner's kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from runner.core import Prompt, Request, SamplingParams

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# What float32 may add to the doubt about logits: a score is rounded three times (division, noise, sum), and
# noise is 17 at most; the mass of a nucleus is a sum of float32 weights.
_SCORE_ROUNDING = 2.0**-22
_MAX_NOISE = 17.0
_MASS_ROUNDING = 1e-6
_TINY = float(np.finfo(np.float32).tiny)
_LARGEST = float(np.finfo(np.float32).max)


# ---- noise: SplitMix64 (Steele, Lea, Flood 2014), stream upon stream

_GAMMA = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def splitmix64(seed: int, index: int) -> int:
    """Output number `index`, from 0, of the generator seeded with `seed`."""
    return int(_outputs(seed, np.array([index], np.uint64))[0])


def _outputs(seed: int, indices: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = np.uint64(seed & _WORD) + (indices + np.uint64(1)) * np.uint64(_GAMMA)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def uniform_bits(seed: int, position: int, vocab_size: int) -> NDArray[np.uint64]:
    """The upper 23 bits of output number `token` of a stream whose seed is itself output number `position`
    of a stream whose seed is the request's, mixed."""
    of_position = splitmix64(splitmix64(seed, 0), position)
    return _outputs(of_position, np.arange(vocab_size, dtype=np.uint64)) >> np.uint64(41)


def gumbel(seed: int, position: int, vocab_size: int) -> NDArray[np.float32]:
    """Noise of each token id, as float32."""
    uniform = (uniform_bits(seed, position, vocab_size) + 0.5) / 2.0**23
    noise: NDArray[np.float32] = (-np.log(-np.log(uniform))).astype(np.float32)
    return noise


# ---- parameters


@dataclass(frozen=True, slots=True)
class _Reals:
    """The real-valued parameters as a float32 holds them."""

    temperature: float
    top_p: float
    min_p: float
    repetition: float
    presence: float
    frequency: float

    @classmethod
    def of(cls, sampling: SamplingParams) -> _Reals:
        given = (
            *(sampling.temperature, sampling.top_p, sampling.min_p),
            *(sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty),
        )
        held = cls(*(float(np.float32(min(value, _LARGEST))) for value in given))
        return replace(held, repetition=max(held.repetition, _TINY))


class SamplingReference:
    """One request's rules. `logits` are always raw ones, float64 [vocabulary] with a finite maximum, and
    `output` all output ids before."""

    def __init__(self, request: Request, eos_token_id: int) -> None:
        self._sampling = request.sampling
        self._reals = _Reals.of(request.sampling)
        self._prompt_ids = _prompt_ids(request.prompt)
        self._num_prompt = len(request.prompt)
        self._stop_ids = set(request.sampling.stop_token_ids)
        if not request.sampling.ignore_eos:
            self._stop_ids.add(eos_token_id)

    def probabilities(self, logits: Floats, output: Sequence[int]) -> Floats:
        """What each token is sampled with, [vocabulary]; greedy: 1 for the maximum."""
        processed = self.processed(logits, output)
        if not self._reals.temperature:
            certain: Floats = (np.arange(len(logits)) == processed.argmax()).astype(np.float64)
            return certain
        weights = self._weights(processed, processed.max()) * self._kept(processed)
        probabilities: Floats = weights / weights.sum()
        return probabilities

    def token(self, logits: Floats, output: Sequence[int]) -> int:
        """The right token; of equals the lowest id."""
        return int(self._scores(logits, output).argmax())

    def is_right(self, logits: Floats, output: Sequence[int], token: int) -> bool:
        """Whether the token has the highest score."""
        scores = self._scores(logits, output)
        return bool(scores[token] == scores.max() > -np.inf)

    def is_tie(self, logits: Floats, output: Sequence[int], token: int, margin: float) -> bool:
        """Whether the token would be right for some logits, each less than half a margin from these.

        Two logits nearer to each other than the margin may change places. So it is at the edges of top-k,
        top-p and min-p: a token that may have been kept may be sampled, and one that may have been dropped
        need not be beaten.
        """
        low, high = (self.processed(logits + shift, output) for shift in (-margin / 2, margin / 2))
        surely, possibly = self._kept_between(low, high, _MASS_ROUNDING)
        surely[token] = False  # it need not beat itself
        top, noise = high.max(), self._noise(output, len(logits))
        if not possibly[token] or not np.isfinite(high[token]):
            return False
        best = np.where(surely, self._scaled(low, top) + noise, -np.inf).max()
        own = self._scaled(high, top)[token] + noise[token]
        rounding = _SCORE_ROUNDING * (_MAX_NOISE + abs(own)) if self._reals.temperature else 0.0
        return bool(own + rounding > best)

    def processed(self, logits: Floats, output: Sequence[int]) -> Floats:
        """Logits with penalties and bans: none falls where its raw logit rises."""
        result = self._penalised(logits, output)
        result[self._banned(output, len(logits))] = -np.inf
        return result

    def _penalised(self, logits: Floats, output: Sequence[int]) -> Floats:
        vocab_size, reals = len(logits), self._reals
        seen = _within({*self._prompt_ids, *output}, vocab_size)
        result = logits.copy()
        result[seen] *= np.where(result[seen] > 0, 1 / reals.repetition, reals.repetition)
        result = np.minimum(result, _LARGEST)
        counts = Counter(output)
        for token in _within(counts, vocab_size):
            result[token] -= reals.frequency * counts[token] + reals.presence
        return result

    def _banned(self, output: Sequence[int], vocab_size: int) -> list[int]:
        banned = set(self._stop_ids) if len(output) < self._sampling.min_tokens else set()
        for *prefix, last in self._sampling.bad_words:
            if not prefix or list(output[-len(prefix) :]) == prefix:
                banned.add(last)
        return _within(banned, vocab_size)

    def _scores(self, logits: Floats, output: Sequence[int]) -> Floats:
        """What the maximum is taken of: -inf where a token is not kept."""
        processed = self.processed(logits, output)
        scores = self._scaled(processed, processed.max()) + self._noise(output, len(logits))
        return np.where(self._kept(processed), scores, -np.inf)

    def _scaled(self, processed: Floats, top: float) -> Floats:
        """Differences to `top` first, which no temperature can take the noise from by rounding."""
        scaled: Floats = (processed - max(top, -_LARGEST)) / (self._reals.temperature or 1.0)
        return scaled

    def _weights(self, processed: Floats, top: float) -> Floats:
        return np.exp(self._scaled(processed, top))

    def _noise(self, output: Sequence[int], vocab_size: int) -> Floats:
        if not self._reals.temperature:
            return np.zeros(vocab_size)
        position = self._num_prompt + len(output)
        return gumbel(self._sampling.seed, position, vocab_size).astype(np.float64)

    # ---- which tokens are kept

    def _kept(self, processed: Floats) -> Mask:
        return self._kept_between(processed, processed, rounding=0)[0]

    def _kept_between(self, low: Floats, high: Floats, rounding: float) -> tuple[Mask, Mask]:
        """Tokens kept whatever the logits between `low` and `high`, and tokens kept for some of them.

        A token is surely kept if it is when it lies low and all others high, possibly the other way round.
        """
        if not self._reals.temperature:
            return np.ones(len(low), np.bool_), np.ones(len(low), np.bool_)
        surely, possibly = self._reaching(low, high), self._reaching(high, low)
        top, top_p = high.max(), self._reals.top_p
        if top_p >= 1:
            return surely, possibly
        low_weights, high_weights = self._weights(low, top), self._weights(high, top)
        before = _mass_above(low, high, np.where(possibly, high_weights, 0))
        wanted = top_p * (1 - rounding) * low_weights[surely].sum()
        before_at_least = _mass_above(high, low, np.where(surely, low_weights, 0))
        wanted_at_most = top_p * (1 + rounding) * high_weights[possibly].sum()
        return surely & (before < wanted), possibly & (before_at_least < wanted_at_most)

    def _reaching(self, own: Floats, others: Floats) -> Mask:
        """Tokens that min-p and top-k keep when each has its `own` logit and all others have `others`."""
        with np.errstate(divide="ignore"):
            least = others.max() + self._reals.temperature * np.log(self._reals.min_p)
        top_k = self._sampling.top_k or len(own)
        kept: Mask = (own >= least) & (_mass_above(own, others, np.ones(len(own))) < top_k)
        return kept


def _mass_above(own: Floats, others: Floats, weights: Floats) -> Floats:
    """For each token, the weight of all other tokens whose `others` lies above its `own`."""
    order = np.argsort(others)
    from_place = np.append(np.cumsum(weights[order][::-1])[::-1], 0.0)
    above = from_place[np.searchsorted(others[order], own, side="right")]
    without_self: Floats = above - weights * (others > own)
    return np.maximum(without_self, 0)


def _prompt_ids(prompt: Prompt) -> set[int]:
    """Ids that count as said before: none of supplied rows; an image's placeholders are ids like others."""
    embeds = prompt.embeds
    return {
        token
        for position, token in enumerate(prompt.token_ids)
        if embeds is None or not embeds.is_supplied(position)
    }


def _within(ids: Iterable[int], vocab_size: int) -> list[int]:
    return sorted(token for token in ids if 0 <= token < vocab_size)
