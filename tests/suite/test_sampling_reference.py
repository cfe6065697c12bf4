"""The definition of sampling that tokens are judged by: worked examples, and where its ties begin and end."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from runner.core import Prompt, Request, SamplingParams, SuppliedRows
from suite.oracle import judge
from suite.sampling_reference import SamplingReference, gumbel

EOS, VOCAB = 1, 12
PROMPT = Prompt((2, 3))


def reference_of(prompt: Prompt = PROMPT, **given_params: Any) -> SamplingReference:
    sampling = SamplingParams(**{"max_tokens": 20, "ignore_eos": True, **given_params})
    return SamplingReference(Request("r", prompt, sampling), EOS)


def logits_of(seed: int, vocab: int = VOCAB) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=vocab) * 2


def at_probabilities(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities))


def kept(reference: SamplingReference, logits: np.ndarray, output: tuple[int, ...] = ()) -> list[int]:
    return np.flatnonzero(reference.probabilities(logits, output)).tolist()


# Processing


def test_penalties_by_hand() -> None:
    logits = np.array([2.0, -2.0, 2.0, -2.0, 0.0, 2.0])
    reference = reference_of(
        Prompt((0, 1, 0, 4)), repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5
    )
    found = reference.processed(logits, (2, 3, 3, 4))
    assert found.tolist() == [1.0, -4.0, 0.25, -5.0, -0.75, 2.0]


def test_ids_of_the_prompt_are_penalised_where_there_are_any() -> None:
    logits = np.full(20, 4.0)

    def penalised(prompt: Prompt, output: tuple[int, ...] = ()) -> list[int]:
        reference = reference_of(prompt, repetition_penalty=2.0)
        return np.flatnonzero(reference.processed(logits, output) != 4).tolist()

    pure = SuppliedRows(bytes(16), 4, 1)
    spliced = replace(pure, mask=bytes([0, 1, 1, 0]))
    assert penalised(Prompt((5, 6, 7, 8))) == [5, 6, 7, 8]
    assert penalised(Prompt((), embeds=pure)) == []
    assert penalised(Prompt((), embeds=pure), (9, 9, -1, 20)) == [9]
    assert penalised(Prompt((5, 6, 7, 8), embeds=spliced), (9,)) == [5, 8, 9]


def test_bans_by_hand() -> None:
    words = ((7,), (4, 5), (2, 3, 6), (30,))
    reference = reference_of(bad_words=words, min_tokens=2, stop_token_ids=(8,), ignore_eos=False)

    def banned(output: tuple[int, ...]) -> list[int]:
        return np.flatnonzero(np.isneginf(reference.processed(np.zeros(VOCAB), output))).tolist()

    assert banned(()) == [EOS, 7, 8]  # (2, 3) are the prompt's
    assert banned((4,)) == [EOS, 5, 7, 8]
    assert banned((4, 9)) == [7]
    assert banned((2, 3)) == [6, 7]
    assert banned((9, 2, 3)) == [6, 7]
    assert banned((2, 3, 9)) == [7]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "given_params",
    [{}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.15}, {"top_k": 6, "top_p": 0.8, "min_p": 0.05}],
)
def test_probabilities_are_those_of_transformers(seed: int, given_params: dict[str, Any]) -> None:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.8)])
    warpers += [MinPLogitsWarper(given_params["min_p"])] if "min_p" in given_params else []
    warpers += [TopKLogitsWarper(given_params["top_k"])] if "top_k" in given_params else []
    warpers += [TopPLogitsWarper(given_params["top_p"])] if "top_p" in given_params else []
    logits = logits_of(seed)
    expected = warpers(torch.zeros(1, 1, dtype=torch.int64), torch.from_numpy(logits)[None])[0].softmax(dim=0)
    found = reference_of(temperature=0.8, **given_params).probabilities(logits, ())
    assert found == pytest.approx(expected.numpy(), abs=1e-7)


@pytest.mark.parametrize(
    ("given_params", "expected"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 2, 3]),
        ({"top_k": 2}, [1, 2]),
        ({"top_k": 4}, [0, 1, 2, 3, 4]),  # the last two are equal
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.41}, [1, 2]),
        ({"top_p": 0.89}, [1, 2, 3]),
        ({"top_p": 0.91}, [0, 1, 2, 3, 4]),
        ({"min_p": 0.49}, [1, 2, 3]),
        ({"min_p": 0.51}, [1, 2]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 2, "top_p": 0.6}, [1, 2]),  # of 4/7 and 3/7
        ({"top_k": 2, "top_p": 0.55}, [1]),
        ({"temperature": 0.0}, [1]),
    ],
)
def test_the_tokens_kept_by_hand(given_params: dict[str, Any], expected: list[int]) -> None:
    logits = at_probabilities(0.05, 0.4, 0.3, 0.2, 0.05)
    assert kept(reference_of(**{"temperature": 1.0, **given_params}), logits) == expected


def test_a_token_is_right_only_if_its_score_is_the_highest() -> None:
    logits = logits_of(1)
    reference = reference_of(temperature=1.5, seed=77)
    for output in ((), (4,), (4, 5)):
        noise = gumbel(77, len(PROMPT) + len(output), VOCAB)
        expected = int((logits / 1.5 + noise).argmax())
        assert reference.token(logits, output) == expected
        right = [token for token in range(VOCAB) if reference.is_right(logits, output, token)]
        assert right == [expected]


def test_nothing_is_right_where_everything_is_banned() -> None:
    words = tuple((token,) for token in range(4))
    for temperature in (0.0, 1.0):
        banning = reference_of(temperature=temperature, bad_words=words)
        assert not banning.is_right(np.zeros(4), (), 0)
        assert not banning.is_tie(np.zeros(4), (), 0, margin=1.0)


# Ties

samplings = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.4, 1.0, 3.0]),
        "top_k": st.sampled_from([0, 1, 2, 5]),
        "top_p": st.sampled_from([1.0, 0.2, 0.6, 0.95]),
        "min_p": st.sampled_from([0.0, 0.05, 0.4]),
        "repetition_penalty": st.sampled_from([1.0, 1.5, 0.6]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "seed": st.integers(0, 9),
    }
)


@settings(max_examples=400)
@given(
    samplings, st.integers(0, 10**6), st.sampled_from([0.3, 0.03, 0.001]), st.sampled_from([(), (4, 4, 5)])
)
def test_whatever_small_differences_could_make_right_is_right_or_a_tie(
    given_params: dict[str, Any], seed: int, margin: float, output: tuple[int, ...]
) -> None:
    reference, logits = reference_of(**given_params), logits_of(seed)
    shift = np.random.default_rng(seed + 1).uniform(-0.499, 0.499, VOCAB) * margin
    token = reference.token(logits + shift, output)
    assert reference.is_right(logits, output, token) or reference.is_tie(logits, output, token, margin)


@given(samplings, st.integers(0, 10**6), st.sampled_from([(), (4, 4, 5)]))
def test_with_a_tiny_margin_only_the_right_token_passes(
    given_params: dict[str, Any], seed: int, output: tuple[int, ...]
) -> None:
    reference, logits = reference_of(**given_params), logits_of(seed)
    right = [token for token in range(VOCAB) if reference.is_right(logits, output, token)]
    tied = [token for token in range(VOCAB) if reference.is_tie(logits, output, token, 1e-9)]
    assert len(right) == 1
    assume(given_params["min_p"] < 1)
    assert set(tied) <= set(right)


# Tokens 0 and 1 lie a stated part of the margin apart, at an edge, and noise would choose 1.
MARGIN = 1e-3


def seed_that_prefers(token: int, vocab: int = 4) -> int:
    """The noise of that token is the highest of all, by much."""
    for seed in range(1000):
        noise = gumbel(seed, len(PROMPT), vocab)
        if noise[token] > np.delete(noise, token).max() + 3:
            return seed
    raise AssertionError("no such seed")


EDGES: dict[str, tuple[dict[str, Any], float]] = {
    "top_k": ({"top_k": 1}, 0.0),
    "min_p": ({"min_p": 0.5}, math.log(2)),
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("part", "is_tie"), [(0.5, True), (0.9, True), (1.1, False), (5.0, False)])
def test_a_token_at_an_edge_is_a_tie_within_the_margin(edge: str, part: float, is_tie: bool) -> None:
    given_params, distance = EDGES[edge]
    reference = reference_of(temperature=1.0, seed=seed_that_prefers(1), **given_params)
    logits = np.array([1.0, 1.0 - distance - part * MARGIN, -3.0, -3.0])
    assert reference.token(logits, ()) == 0
    assert not reference.is_right(logits, (), 1)
    assert reference.is_tie(logits, (), 1, MARGIN) == is_tie
    assert not reference.is_tie(logits, (), 2, MARGIN)
    # Kept by the same distance, the token wins; the one it beats is a tie only where it might be dropped.
    logits = np.array([1.0, 1.0 - distance + part * MARGIN, -3.0, -3.0])
    assert reference.is_right(logits, (), 1)
    assert reference.is_tie(logits, (), 0, MARGIN) == is_tie


@pytest.mark.parametrize(("part", "is_tie"), [(0.1, True), (2.0, False)])
def test_a_token_at_the_edge_of_the_nucleus_is_a_tie_within_the_margin(part: float, is_tie: bool) -> None:
    """The first token has 0.6 and a little more, or less, of the probability."""
    for sign in (1, -1):
        share = 0.6 + sign * part * MARGIN
        logits = at_probabilities(share, 1 - share - 2e-4, 1e-4, 1e-4)
        reference = reference_of(temperature=1.0, top_p=0.6, seed=seed_that_prefers(1))
        right, other = (0, 1) if sign > 0 else (1, 0)
        assert reference.is_right(logits, (), right)
        assert reference.is_tie(logits, (), other, MARGIN) == is_tie
        assert not reference.is_tie(logits, (), 2, MARGIN)


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
@pytest.mark.parametrize(("part", "is_tie"), [(0.5, True), (0.95, True), (1.05, False), (3.0, False)])
def test_scores_tie_within_a_margin_of_logits_whatever_the_temperature(
    temperature: float, part: float, is_tie: bool
) -> None:
    reference = reference_of(temperature=temperature, seed=5)
    noise = temperature * gumbel(5, len(PROMPT), 4).astype(np.float64)
    logits = np.array([4.0, 4.0 - part * MARGIN, 0.0, 0.0]) - noise
    assert reference.is_right(logits, (), 0)
    assert reference.is_tie(logits, (), 1, MARGIN) == is_tie
    assert not reference.is_tie(logits, (), 2, MARGIN)


def test_a_penalty_that_magnifies_logits_magnifies_their_margin() -> None:
    logits = np.array([-1.0, -1.0 - 0.5 * MARGIN, -9.0, -9.0])
    magnified = reference_of(Prompt((0, 1)), repetition_penalty=8.0)
    assert magnified.processed(logits, ())[1] == pytest.approx(-8 - 4 * MARGIN)
    assert magnified.is_tie(logits, (), 1, MARGIN)
    logits[1] = -1.0 - 1.5 * MARGIN
    assert not magnified.is_tie(logits, (), 1, MARGIN)


def test_a_banned_token_is_never_a_tie() -> None:
    for temperature in (0.0, 1.0):
        reference = reference_of(temperature=temperature, bad_words=((1,),))
        assert not reference.is_tie(np.array([1.0, 1.0, 0.0]), (), 1, margin=0.5)


@given(st.integers(0, 10**6), st.floats(0, 3e-4))
def test_greedy_ties_are_those_of_plain_requests(seed: int, deviations: float) -> None:
    logits = torch.from_numpy(logits_of(seed)).float()
    best = int(logits.argmax())
    other = (best + 1) % VOCAB
    logits[other] = logits[best] - deviations * logits.std()
    deviation = float(logits.std())
    assume(abs(float(logits[best] - logits[other]) / deviation - 1e-4) > 1e-6)
    plain = judge(logits[None], [other])
    reference = reference_of(logprobs=3)
    row = logits.double().numpy()
    assert reference.is_right(row, (), other) == bool(plain.num_right)
    assert (not plain.num_right and reference.is_tie(row, (), other, 1e-4 * deviation)) == bool(
        plain.num_ties
    )
