"""The schema of a scenario's `traffic.sampling`, and the SamplingParams of each request.

A request's own seed is drawn from the scenario's and its place among the requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from runner.core import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_LOGPROBS,
    MAX_STOP_TOKENS,
    SamplingParams,
)
from runner.models import ModelSpec
from suite.errors import KeyedError
from suite.schema import AsTuple, Ratio, Seed, StrictModel, broken_rule

MIN_TEMPERATURE = 0.01
"""vLLM takes any smaller one for this; greedy is 0."""

_NEEDS_NOISE = ("top_k", "top_p", "min_p", "seed")
"""Of no effect on a greedy choice."""

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


def _as_word(value: object) -> object:
    """A bare id is a word of one token."""
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


BadWord = Annotated[
    tuple[TokenId, ...],
    AsTuple,
    BeforeValidator(_as_word),
    Field(min_length=1, max_length=MAX_BAD_WORD_LENGTH),
]


class Sampling(StrictModel):
    """How tokens are chosen: the words and meanings of runner.core.SamplingParams. Greedy by default.

    `seed` is what every request sends: equal seeds give equal noise at equal positions. Without one each
    request has a seed of its own, so no two share their noise, and the same scenario's seed gives the same
    ones again. `bad_words` holds token ids and lists of them. `logprobs` counts the most likely tokens
    reported beside the sampled one; 0 reports that one only.
    """

    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Ratio = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    bad_words: Annotated[tuple[BadWord, ...], AsTuple, Field(max_length=MAX_BAD_WORDS)] = ()
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    stop_token_ids: Annotated[tuple[TokenId, ...], AsTuple, Field(max_length=MAX_STOP_TOKENS)] = ()
    min_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    seed: Seed | None = None

    @field_validator("temperature")
    @classmethod
    def _is_greedy_or_warm(cls, value: float) -> float:
        if 0 < value < MIN_TEMPERATURE:
            raise broken_rule(f"it must be 0 (greedy) or at least {MIN_TEMPERATURE}")
        return value

    def params(self, max_tokens: int, ignore_eos: bool, own_seed: int) -> SamplingParams:
        """Of one request; `own_seed` holds where no seed is given for all."""
        values = dict(self)
        seed = values.pop("seed")
        return SamplingParams(max_tokens, ignore_eos, seed=own_seed if seed is None else seed, **values)

    def notes(self) -> list[str]:
        """What is not at its default, for the report."""
        given = [
            f"{name} {value}"
            for name, value in self.model_dump(mode="json").items()
            if value != type(self).model_fields[name].default and value != []
        ]
        if not given:
            return []
        notes = [f"sampling (traffic.sampling): {', '.join(given)}"]
        idle = [name for name in _NEEDS_NOISE if getattr(self, name) != type(self).model_fields[name].default]
        if idle and not self.temperature:
            notes.append(f"traffic.sampling.temperature is 0 (greedy): {', '.join(idle)} change nothing")
        return notes


def check_token_ids(sampling: Sampling, model: ModelSpec) -> None:
    """KeyedError for an id that the model's vocabulary lacks."""
    for key, token_id in _token_ids(sampling):
        if token_id >= model.vocab_size:
            raise KeyedError(
                f"traffic.sampling.{key}",
                f"token id {token_id} is outside {model.name}'s vocabulary of {model.vocab_size}: "
                f"use ids from 0 to {model.vocab_size - 1}",
            )


def _token_ids(sampling: Sampling) -> Iterator[tuple[str, int]]:
    for token_id in sampling.stop_token_ids:
        yield "stop_token_ids", token_id
    for word in sampling.bad_words:
        for token_id in word:
            yield "bad_words", token_id


def lasting_token(sampling: Sampling, model: ModelSpec) -> int:
    """An id that ends no request: what a device that computes nothing may let every row sample."""
    ending = {model.eos_token_id, *sampling.stop_token_ids}
    return next(token_id for token_id in range(model.vocab_size) if token_id not in ending)
