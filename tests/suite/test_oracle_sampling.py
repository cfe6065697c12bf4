"""The oracle on sampled tokens: it accepts what the sampler makes of transformers' logits, and finds faults.

The loop below has no cache: transformers' own forward of all tokens so far, then the runner's sampler. Each
fault is planted in what the sampler is given.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from runner.core import Image, Prompt, Request, RequestState, SamplingParams, SuppliedRows, TokenLogprobs
from runner.kernels.sample import SlotTables, sample, token_logprobs
from runner.models import MODELS
from runner.slot_state import history_of, needs_of, real_row, whole_row
from runner.weights import build_model
from suite.oracle import Check, Oracle, judge_sampled
from suite.reported_logprobs import first_fault
from suite.sampling_reference import SamplingReference

NUM_OUTPUT = 24
TEXT, VISUAL = MODELS["tiny-qwen3"], MODELS["tiny-gemma3-vl"]


@cache
def oracle_of(name: str) -> Oracle:
    return Oracle(MODELS[name], num_threads=1)


@cache
def model_of(name: str) -> Any:
    return build_model(MODELS[name])


def ids(count: int, seed: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.choices(range(10, TEXT.vocab_size), k=count))


def request(prompt: Prompt | None = None, **given: Any) -> Request:
    asked = SamplingParams(**{"max_tokens": NUM_OUTPUT, "ignore_eos": True, **given})
    return Request("r", prompt or Prompt(ids(12, 1)), asked)


@cache
def rows_of(prompt: Prompt) -> torch.Tensor:
    """What the text model is given for a prompt without images, (tokens, hidden)."""
    with torch.inference_mode():
        looked_up = model_of(TEXT.name).get_input_embeddings()(
            torch.tensor(prompt.token_ids or (0,) * len(prompt))
        )
    if prompt.embeds is None:
        return looked_up
    given = torch.frombuffer(bytearray(prompt.embeds.data), dtype=torch.float32).reshape(len(prompt), -1)
    is_given = torch.tensor([prompt.embeds.is_supplied(position) for position in range(len(prompt))])
    return torch.where(is_given[:, None], given, looked_up)


@torch.inference_mode()
def generate(
    asked: Request,
    position_of: Callable[[int], int] = lambda position: position,
    history: Callable[[list[int]], list[int]] = lambda known: known,
    sampling: SamplingParams | None = None,
) -> list[int]:
    """NUM_OUTPUT tokens; a fault is another position, history or other parameters than were asked for."""
    model = model_of(TEXT.name)
    state = RequestState(asked if sampling is None else replace(asked, sampling=sampling), ())
    rows = rows_of(asked.prompt)
    for _ in range(NUM_OUTPUT):
        logits = model(inputs_embeds=rows[None], use_cache=False).logits[0, -1:]
        known = history(history_of(state))
        tables = SlotTables(
            torch.tensor([real_row(state.request.sampling)]),
            torch.tensor([whole_row(state, TEXT.eos_token_id)], dtype=torch.int32),
            torch.tensor([[*known, 0, 0]], dtype=torch.int32),
        )
        place = torch.tensor([position_of(state.num_tokens)])
        has, needs = torch.ones(1, dtype=torch.bool), needs_of(state.request.sampling)
        token = sample(logits, torch.zeros(1, dtype=torch.int64), place, has, tables, needs)
        state.output_ids += token.tolist()
        rows = torch.cat([rows, model.get_input_embeddings()(token)])
    return state.output_ids


def check(asked: Request, output: Sequence[int]) -> Check:
    return oracle_of(TEXT.name).check(asked, output)


PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 1.0, "seed": 2**63 - 1},
    {"temperature": 0.5, "seed": 3, "top_k": 20},
    {"temperature": 2.0, "seed": 4, "top_p": 0.7},
    {"temperature": 1.0, "seed": 5, "min_p": 0.1},
    {"temperature": 1.5, "seed": 6, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "frequency_penalty": 0.5},
    {"repetition_penalty": 0.6, "frequency_penalty": -0.5, "presence_penalty": -0.5},
    {"min_tokens": 9, "ignore_eos": False, "stop_token_ids": (12, 13)},
    {"logprobs": 3},
]


def supplied(mask: bytes | None = None) -> Prompt:
    looked_up = rows_of(Prompt(ids(12, 2)))
    noisy = looked_up + torch.randn(looked_up.shape, generator=torch.Generator().manual_seed(1)) * 0.02
    return Prompt(
        ids(12, 3) if mask else (),
        embeds=SuppliedRows(noisy.numpy().tobytes(), *noisy.shape, mask=mask),
    )


PROMPTS = {
    "ids": lambda: Prompt(ids(12, 1)),
    "pure": supplied,
    "spliced": lambda: supplied(bytes([0, 1, 1, 0] * 3)),
}


@pytest.mark.parametrize("kind", PROMPTS)
@pytest.mark.parametrize("given", PARAMETERS, ids=str)
def test_every_token_of_a_faultless_loop_is_right(given: dict[str, Any], kind: str) -> None:
    asked = request(PROMPTS[kind](), **given)
    assert check(asked, generate(asked)) == Check(num_right=NUM_OUTPUT)


RANDOM: dict[str, Any] = {"temperature": 1.0, "seed": 8}
FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another seed": (RANDOM, {"seed": 9}),
    "the seed's upper half": (RANDOM, {"seed": 8 + 2**32}),
    "another temperature": (RANDOM, {"temperature": 1.3}),
    "greedy": (RANDOM, {"temperature": 0.0}),
    "top_k ignored": ({**RANDOM, "temperature": 3.0, "top_k": 10}, {"top_k": 0}),
    "top_k off by one": ({**RANDOM, "temperature": 9.0, "top_k": 3}, {"top_k": 4}),
    "top_p ignored": ({**RANDOM, "temperature": 2.0, "top_p": 0.5}, {"top_p": 1.0}),
    "min_p ignored": ({**RANDOM, "temperature": 3.0, "min_p": 0.2}, {"min_p": 0.0}),
    "no repetition penalty": ({"repetition_penalty": 0.5}, {"repetition_penalty": 1.0}),
    "no presence penalty": ({**RANDOM, "top_k": 4, "presence_penalty": 2.0}, {"presence_penalty": 0.0}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_other_parameters_than_asked_for_are_found(fault: str) -> None:
    given, changes = FAULTS[fault]
    asked = request(**given)
    output = generate(asked, sampling=replace(asked.sampling, **changes))
    found = check(asked, output)
    assert found.num_wrong >= 1
    assert found.first_wrong is not None
    at = found.first_wrong - found.shown_from
    assert found.expected[at] != found.produced[at] == output[found.first_wrong]


@pytest.mark.parametrize("late", [-1, 1])
def test_noise_of_another_position_is_found(late: int) -> None:
    asked = request(**RANDOM)
    assert check(asked, generate(asked, position_of=lambda position: position + late)).first_wrong == 0


def test_a_history_that_is_not_the_requests_own_is_found() -> None:
    """Penalties and bad words read real tokens: neither placeholders nor another request's.

    The model hardly repeats itself, so what is rewarded, not what is penalised, shows.
    """
    output = generate(request())
    words = tuple((output[i], output[i + 1]) for i in range(2, 18))
    for given in (
        {"repetition_penalty": 0.5},
        {"frequency_penalty": -2.0, "presence_penalty": -2.0, **RANDOM},
        {"bad_words": words},
    ):
        asked = request(**given)
        right = generate(asked)
        assert check(asked, right) == Check(num_right=NUM_OUTPUT)
        unknown = generate(asked, history=lambda known: [*known[:12], *[-1] * (len(known) - 12)])
        assert check(asked, unknown).num_wrong >= 1
    assert check(request(), output) == Check(num_right=NUM_OUTPUT)


def test_what_is_beside_a_supplied_row_is_no_id() -> None:
    """A penalty on ids nobody said: the prompt's own decoys are the likeliest tokens."""
    output = generate(request(supplied()))
    prompt = supplied()
    mask = bytes([1] * 12)
    beside = Prompt(tuple(output[:12]), embeds=replace(prompt.embeds, mask=mask))  # type: ignore[type-var]
    asked = request(beside, repetition_penalty=3.0)
    assert check(asked, generate(asked)) == Check(num_right=NUM_OUTPUT)
    found = check(asked, generate(asked, history=lambda known: [*output[:12], *known[12:]]))
    assert found.first_wrong is not None


def test_a_stop_token_before_the_minimal_length_is_found() -> None:
    output = generate(request())
    asked = request(stop_token_ids=(output[5], output[3]), min_tokens=10)
    assert check(asked, output).first_wrong == 3
    assert check(asked, generate(asked)) == Check(num_right=NUM_OUTPUT)
    late = replace(asked, sampling=replace(asked.sampling, min_tokens=3))
    assert check(late, output) == Check(num_right=NUM_OUTPUT)


def test_image_placeholders_are_ids_like_others() -> None:
    vision = VISUAL.vision
    assert vision is not None
    height, width, channels = vision.image_shape
    image = Image(random.Random(1).randbytes(height * width * channels), vision.image_shape)
    prompt = Prompt((*vision.placeholder_ids(), *ids(5, 4)), (image,))
    oracle = oracle_of(VISUAL.name)
    asked = request(prompt, repetition_penalty=4.0)
    logits = oracle.logits(prompt, [0])[0]
    penalised = SamplingReference(asked, VISUAL.eos_token_id).processed(logits.double().numpy(), ())
    changed = np.flatnonzero(penalised != logits.double().numpy()).tolist()
    assert changed == sorted({*vision.placeholder_ids(), *ids(5, 4)})
    assert vision.image_token_id in changed


def test_the_same_output_under_other_parameters_is_judged_anew() -> None:
    asked = request(**RANDOM)
    output = generate(asked)
    oracle = Oracle(TEXT, num_threads=1)
    first = oracle.check(asked, output)
    assert first.num_wrong == 0
    for changes in ({"seed": 9}, {"temperature": 0.0}, {"temperature": 0.9}):
        other = replace(asked, sampling=replace(asked.sampling, **changes))
        assert oracle.check(other, output).num_wrong >= 1
    assert oracle.check(replace(asked, request_id="other"), output) is first


def test_an_empty_output_and_unknown_ids() -> None:
    asked = request(**RANDOM)
    output = generate(asked)
    assert check(asked, []) == Check()
    for invalid in (-1, TEXT.vocab_size):
        found = check(asked, [*output[:4], invalid, 7])
        assert (found.first_wrong, found.num_checked, found.num_right) == (4, 6, 4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_undefined_logits_are_wrong(value: float) -> None:
    for given in (RANDOM, {"presence_penalty": 1.0}):
        reference = SamplingReference(request(**given), TEXT.eos_token_id)
        found = judge_sampled(torch.full((2, 8), value), [3, 3], reference)
        assert (found.num_checked, found.num_wrong, found.first_wrong) == (2, 2, 0)


# Probabilities


def test_probabilities_are_those_of_the_next_token() -> None:
    asked = request(temperature=0.7)
    output = generate(asked)
    oracle = oracle_of(TEXT.name)
    expected = (oracle.logits(asked.prompt, output).double() / 0.7).softmax(dim=1).numpy()
    assert oracle.probabilities(asked, output) == pytest.approx(expected, abs=1e-6)
    assert oracle.probabilities(asked, []).shape == (0, TEXT.vocab_size)
    greedy = oracle.probabilities(request(), output)
    assert greedy.argmax(axis=1).tolist() == oracle.logits(asked.prompt, output).argmax(dim=1).tolist()
    assert greedy.sum(axis=1).tolist() == [1.0] * NUM_OUTPUT


def test_sampled_tokens_are_distributed_as_the_oracle_says() -> None:
    """The first token of one prompt under 4,000 seeds, against what another model's parameters would give."""
    asked = request(temperature=1.0, top_k=12)
    oracle = oracle_of(TEXT.name)
    logits = oracle.logits(asked.prompt, [0]).expand(4000, -1)
    state = RequestState(asked, ())
    wholes = torch.tensor([whole_row(state, TEXT.eos_token_id)] * 4000, dtype=torch.int32)
    wholes[:, 3] = torch.arange(4000)
    reals = torch.tensor([real_row(asked.sampling)] * 4000)
    tables = SlotTables(reals, wholes, torch.full((4000, 20), -1, dtype=torch.int32))
    slots, has = torch.arange(4000), torch.ones(4000, dtype=torch.bool)
    tokens = sample(logits, slots, torch.full((4000,), 12), has, tables, needs_of(asked.sampling))
    for given, is_fit in (({}, True), ({"temperature": 1.15}, False)):
        told = replace(asked, sampling=replace(asked.sampling, **given))
        probabilities = oracle.probabilities(told, [0])[0]
        counts = np.bincount(tokens.numpy(), minlength=TEXT.vocab_size)
        kept = np.flatnonzero(probabilities)
        assert len(kept) == 12
        assert counts[kept].sum() == 4000
        p = chisquare(counts[kept], probabilities[kept] * 4000).pvalue
        assert (p > 1e-3) == is_fit


# Log-probabilities


def reports(asked: Request, output: Sequence[int], width: int) -> list[TokenLogprobs]:
    """As the sampler gives them, from the oracle's logits."""
    logits = oracle_of(TEXT.name).logits(asked.prompt, output)
    values, chosen = token_logprobs(logits, torch.tensor(output), width)
    return [
        TokenLogprobs(own[0], place[0], tuple(zip(place[1:], own[1:], strict=True)))
        for own, place in zip(values.tolist(), chosen.tolist(), strict=True)
    ]


@pytest.mark.parametrize("width", [0, 1, 20])
def test_reported_logprobs_are_right_whatever_was_asked_of_the_sampler(width: int) -> None:
    asked = request(**RANDOM, top_k=3, logprobs=width)
    output = generate(asked)
    reference = oracle_of(TEXT.name).logprobs(asked, output)
    assert first_fault(reference, output, reports(asked, output, width), width) is None


def test_every_fault_of_reported_logprobs_is_found() -> None:
    asked = request(**RANDOM)
    output = generate(asked)
    reference = oracle_of(TEXT.name).logprobs(asked, output)
    right = reports(asked, output, 3)
    logprob, rank, top = right[7]
    (best, likely), second, third = top
    stranger = (output[0] + 1, float(reference[7, output[0] + 1]))
    faults = {
        "log-probability": right[7]._replace(logprob=logprob + 3e-4),
        "not a number": right[7]._replace(logprob=float("nan")),
        "rank": right[7]._replace(rank=rank + 1),
        "rank from 0": right[7]._replace(rank=rank - 1),
        "one short": right[7]._replace(top=top[:2]),
        "out of order": right[7]._replace(top=(second, (best, likely), third)),
        "wrong value": right[7]._replace(top=((best, likely + 3e-4), second, third)),
        "one twice": right[7]._replace(top=(top[0], top[0], third)),
        "not the likeliest": right[7]._replace(top=(top[0], second, stranger)),
        "no id": right[7]._replace(top=(top[0], second, (-1, -9.0))),
    }
    for name, report in faults.items():
        found = first_fault(reference, output, [*right[:7], report, *right[8:]], 3)
        assert found is not None, name
        assert "output token 7" in found
    assert (
        first_fault(reference, output, right[:-1], 3)
        == f"{NUM_OUTPUT} output tokens, {NUM_OUTPUT - 1} reports"
    )
    tempered = oracle_of(TEXT.name).logits(asked.prompt, output).double() / 0.9
    assert first_fault(tempered.log_softmax(dim=1).numpy(), output, right, 3) is not None


def test_equal_logits_may_be_reported_either_way() -> None:
    reference = np.log(np.array([[0.4, 0.4, 0.2]]))
    own = float(reference[0, 0])
    for rank in (1, 2):
        for ids_in_order in ((0, 1), (1, 0)):
            report = TokenLogprobs(own, rank, tuple((token, own) for token in ids_in_order))
            assert first_fault(reference, [1], [report], 2) is None
    assert first_fault(reference, [1], [TokenLogprobs(own, 3, ())], 0) is not None
