"""The oracle accepts what transformers generates, and finds every fault planted in a decode loop.

The loop below is the faultless runner: transformers' public forward with a key-value cache, one
token a step. Each test plants one fault in it: a fault the oracle cannot see makes a test fail.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from functools import cache
from types import MappingProxyType
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from runner.core import Image, Prompt, Request, RunnerError, SamplingParams
from runner.models import MODELS, TINY_GEMMA3_VL, TINY_QWEN3, ModelSpec
from runner.weights import build_model
from suite.oracle import Check, Oracle, Reference, assert_diverse, cache_name, judge, max_ties, verdict

NUM_OUTPUT = 24
SHORT, LONG = 20, 48  # LONG is beyond the sliding window of 32

assert TINY_GEMMA3_VL.vision is not None
VISION = TINY_GEMMA3_VL.vision


@cache
def model_of(name: str) -> Any:
    return build_model(MODELS[name])


@cache
def oracle_of(name: str) -> Oracle:
    return Oracle(MODELS[name], num_threads=1)


def text_ids(spec: ModelSpec, count: int, seed: int) -> tuple[int, ...]:
    ids = [token for token in range(spec.vocab_size) if token not in spec.reserved_ids]
    return tuple(random.Random(seed).choices(ids, k=count))


def image(seed: int) -> Image:
    height, width, channels = VISION.image_shape
    return Image(random.Random(seed).randbytes(height * width * channels), VISION.image_shape)


def image_prompt(*seeds: int) -> Prompt:
    """Text, then each image with its placeholders, then text."""
    ids = text_ids(TINY_GEMMA3_VL, 8, seed=1)
    ids += VISION.placeholder_ids() * len(seeds) + text_ids(TINY_GEMMA3_VL, 8, seed=2)
    return Prompt(ids, tuple(image(seed) for seed in seeds))


def request(prompt: Prompt) -> Request:
    return Request("r", prompt, SamplingParams(NUM_OUTPUT, ignore_eos=True))


def pixels(prompt: Prompt) -> torch.Tensor:
    rows = [torch.frombuffer(bytearray(item.data), dtype=torch.uint8) for item in prompt.images]
    grid = torch.stack(rows).reshape(-1, *VISION.image_shape).permute(0, 3, 1, 2)
    return grid / 127.5 - 1  # mean and std are one half


def correct_positions(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count)


def keep(_: DynamicCache) -> None:
    return None


def generate(
    model: Any,
    prompt: Prompt,
    positions: Callable[[int, int], torch.Tensor] = correct_positions,
    after_prefill: Callable[[DynamicCache], None] = keep,
    token_type_ids: torch.Tensor | None = None,
) -> list[int]:
    """NUM_OUTPUT greedy tokens; `positions` and `after_prefill` are where faults are planted."""
    key_values = DynamicCache()
    ids = torch.tensor([prompt.token_ids])
    kept = {cache_name(model): key_values}
    inputs: dict[str, object] = {"pixel_values": pixels(prompt)} if prompt.images else {}
    if token_type_ids is not None:
        inputs["token_type_ids"] = token_type_ids
    output: list[int] = []
    first = 0
    with torch.inference_mode():
        while len(output) < NUM_OUTPUT:
            logits = model(
                input_ids=ids,
                position_ids=positions(first, ids.shape[1])[None],
                use_cache=True,
                **kept,
                **inputs,
            ).logits[0, -1]
            if first == 0:
                after_prefill(key_values)
            output.append(int(logits.argmax()))
            first += ids.shape[1]
            ids, inputs = torch.tensor([output[-1:]]), {}
    return output


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("length", [1, SHORT, LONG])
def test_every_token_of_a_faultless_loop_is_right(name: str, length: int) -> None:
    prompt = Prompt(text_ids(MODELS[name], length, seed=length))
    check = oracle_of(name).check(request(prompt), generate(model_of(name), prompt))
    assert check == Check(num_right=NUM_OUTPUT)


@pytest.mark.parametrize("seeds", [(1,), (1, 2)])
def test_every_token_of_a_faultless_loop_with_images_is_right(seeds: tuple[int, ...]) -> None:
    prompt = image_prompt(*seeds)
    output = generate(model_of("tiny-gemma3-vl"), prompt)
    assert oracle_of("tiny-gemma3-vl").check(request(prompt), output) == Check(num_right=NUM_OUTPUT)


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("index", [0, 11, NUM_OUTPUT - 1])
def test_one_wrong_token_is_found_at_its_index(name: str, index: int) -> None:
    prompt = Prompt(text_ids(MODELS[name], SHORT, seed=3))
    right = generate(model_of(name), prompt)
    wrong = list(right)
    wrong[index] += 1
    check = oracle_of(name).check(request(prompt), wrong)
    assert check.num_wrong >= 1
    assert check.first_wrong == index
    assert check.num_checked == NUM_OUTPUT
    at = index - check.shown_from
    assert (check.expected[at], check.produced[at]) == (right[index], wrong[index])
    assert check.expected[:at] == tuple(right[check.shown_from : index])


@pytest.mark.parametrize("name", sorted(MODELS))
def test_two_swapped_rows_are_found(name: str) -> None:
    prompts = [Prompt(text_ids(MODELS[name], SHORT, seed=seed)) for seed in (4, 5)]
    outputs = [generate(model_of(name), prompt) for prompt in prompts]
    for prompt, output in zip(prompts, reversed(outputs), strict=True):
        assert oracle_of(name).check(request(prompt), output).first_wrong == 0


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("shifted_from", [0, SHORT, SHORT + 8])
def test_a_position_off_by_one_is_found(name: str, shifted_from: int) -> None:
    def off_by_one(first: int, count: int) -> torch.Tensor:
        right = correct_positions(first, count)
        return torch.where(right > shifted_from, right + 1, right)

    prompt = Prompt(text_ids(MODELS[name], SHORT, seed=6))
    output = generate(model_of(name), prompt, positions=off_by_one)
    check = oracle_of(name).check(request(prompt), output)
    assert check.num_wrong >= 1
    assert check.first_wrong is not None
    assert check.first_wrong >= shifted_from - SHORT


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_block_written_twice_is_found(name: str) -> None:
    def second_block_over_first(key_values: DynamicCache) -> None:
        for layer in key_values.layers:
            for stored in (layer.keys, layer.values):
                stored[:, :, :16] = stored[:, :, 16:32].clone()

    prompt = Prompt(text_ids(MODELS[name], LONG, seed=7))
    output = generate(model_of(name), prompt, after_prefill=second_block_over_first)
    check = oracle_of(name).check(request(prompt), output)
    assert check.num_wrong >= 1
    assert check.first_wrong != 0  # the prefill itself read the right block


@pytest.mark.parametrize("served", [(1, 3), (2, 1)], ids=["another image", "images swapped"])
def test_the_wrong_image_is_found(served: tuple[int, int]) -> None:
    output = generate(model_of("tiny-gemma3-vl"), image_prompt(*served))
    check = oracle_of("tiny-gemma3-vl").check(request(image_prompt(1, 2)), output)
    assert check.num_wrong >= 1


def test_image_rows_attending_both_ways_are_found() -> None:
    prompt = image_prompt(1, 2)
    is_image = torch.tensor([[int(token == VISION.image_token_id) for token in prompt.token_ids]])
    output = generate(model_of("tiny-gemma3-vl"), prompt, token_type_ids=is_image)
    assert oracle_of("tiny-gemma3-vl").check(request(prompt), output).num_wrong >= 1
    assert both_ways().check(request(prompt), output) == Check(num_right=NUM_OUTPUT)


@cache
def both_ways() -> Oracle:
    return Oracle(dataclasses.replace(TINY_GEMMA3_VL, image_attention="bidirectional"), num_threads=1)


def test_image_rows_attending_causally_are_found_where_they_should_not() -> None:
    prompt = image_prompt(1, 2)
    output = generate(model_of("tiny-gemma3-vl"), prompt)
    assert both_ways().check(request(prompt), output).num_wrong >= 1
    text = Prompt(text_ids(TINY_GEMMA3_VL, LONG, seed=1))
    plain = generate(model_of("tiny-gemma3-vl"), text)
    assert both_ways().check(request(text), plain) == Check(num_right=NUM_OUTPUT)


def test_one_block_of_two_images_is_found_where_they_are_two() -> None:
    """Rows of one image may not see those of the next."""
    prompt = image_prompt(1, 2)
    first = prompt.token_ids.index(VISION.image_token_id)
    last = len(prompt.token_ids) - prompt.token_ids[::-1].index(VISION.image_token_id)
    joined = torch.zeros(1, len(prompt.token_ids), dtype=torch.int64)
    joined[0, first:last] = 1
    output = generate(model_of("tiny-gemma3-vl"), prompt, token_type_ids=joined)
    assert both_ways().check(request(prompt), output).num_wrong >= 1


@pytest.mark.parametrize("window", [31, 33, 4096])
def test_another_sliding_window_is_found(window: int) -> None:
    text: Any = TINY_GEMMA3_VL.hf_config["text_config"]
    config = {**TINY_GEMMA3_VL.hf_config, "text_config": {**text, "sliding_window": window}}
    wrong = build_model(dataclasses.replace(TINY_GEMMA3_VL, hf_config=MappingProxyType(config)))
    prompt = Prompt(text_ids(TINY_GEMMA3_VL, LONG, seed=8))
    check = oracle_of("tiny-gemma3-vl").check(request(prompt), generate(wrong, prompt))
    assert check.num_wrong >= 1


def test_an_image_token_in_the_output_is_an_ordinary_token() -> None:
    prompt = image_prompt(1)
    output = [*generate(model_of("tiny-gemma3-vl"), prompt)[:4], VISION.image_token_id, 7]
    check = oracle_of("tiny-gemma3-vl").check(request(prompt), output)
    assert (check.first_wrong, check.num_checked) == (4, 6)


@pytest.mark.parametrize("invalid", [-1, 4096])
def test_an_id_outside_the_vocabulary_is_wrong(invalid: int) -> None:
    prompt = Prompt(text_ids(TINY_QWEN3, SHORT, seed=9))
    output = [*generate(model_of("tiny-qwen3"), prompt)[:4], invalid, 7]
    check = oracle_of("tiny-qwen3").check(request(prompt), output)
    assert (check.first_wrong, check.num_checked) == (4, 6)


def test_placeholders_and_image_rows_that_disagree_are_refused() -> None:
    prompt = Prompt((5, VISION.image_token_id, 6), (image(1),))
    with pytest.raises(AssertionError, match="1 placeholders, 16 image rows"):
        oracle_of("tiny-gemma3-vl").check(request(prompt), [1])


def test_an_empty_output_checks_nothing() -> None:
    assert oracle_of("tiny-qwen3").check(request(Prompt((5, 6))), []) == Check()


def test_the_same_content_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = Oracle(TINY_GEMMA3_VL, num_threads=1)
    judged: list[Prompt] = []
    compute = oracle.logits

    def counting(prompt: Prompt, output_ids: Any) -> torch.Tensor:
        judged.append(prompt)
        return compute(prompt, output_ids)

    monkeypatch.setattr(oracle, "logits", counting)
    first = oracle.check(request(image_prompt(1)), [5, 6])
    assert oracle.check(Request("other", image_prompt(1), SamplingParams(9)), [5, 6]) is first
    assert len(judged) == 1
    oracle.check(request(image_prompt(1)), [5, 7])
    oracle.check(request(image_prompt(2)), [5, 6])
    assert len(judged) == 3


@pytest.mark.parametrize("name", sorted(MODELS))
def test_logits_are_those_of_the_models_own_forward_with_its_soft_cap(name: str) -> None:
    spec = MODELS[name]
    prompt, output = Prompt(text_ids(spec, SHORT, seed=10)), [5, 6, 7]
    if spec.is_multimodal:
        text: Any = spec.hf_config["text_config"]
        config = {**spec.hf_config, "text_config": {**text, "final_logit_softcapping": 5.0}}
        spec = dataclasses.replace(spec, hf_config=MappingProxyType(config))
    own = build_model(spec)
    with torch.inference_mode():
        expected = own(input_ids=torch.tensor([[*prompt.token_ids, 5, 6]]), use_cache=False).logits
    if spec.is_multimodal:  # the composite forward leaves the cap to its caller
        expected = torch.tanh(expected / 5) * 5
    logits = Oracle(spec, num_threads=1).logits(prompt, output)
    torch.testing.assert_close(logits, expected[0, SHORT - 1 :], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_continuation_rests_on_all_that_came_before(name: str) -> None:
    prompt = Prompt(text_ids(MODELS[name], SHORT, seed=8))
    with torch.inference_mode():
        output = Reference(MODELS[name], model_of(name)).greedy([prompt], NUM_OUTPUT)[0]
    assert oracle_of(name).check(request(prompt), output) == Check(num_right=NUM_OUTPUT)


class OlderModel(torch.nn.Module):
    """Like those of an older transformers: a name it does not know is dropped."""

    def forward(self, past_key_values: object = None, **others: object) -> object:
        return past_key_values


class NewerModel(torch.nn.Module):
    def forward(self, cache: object = None, **others: object) -> object:
        return cache


@pytest.mark.parametrize("model", [OlderModel(), NewerModel()], ids=["older", "newer"])
def test_the_cache_is_given_by_the_name_that_the_model_knows(model: torch.nn.Module) -> None:
    given = object()
    assert model(**{cache_name(model): given}) is given


def test_the_thread_count_is_the_oracles_only_within_its_forwards() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    oracle = Oracle(TINY_QWEN3, num_threads=before + 1)
    hook = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda *_: seen.append(torch.get_num_threads())
    )
    try:
        oracle.check(request(Prompt((5, 6))), [7])
    finally:
        hook.remove()
    assert set(seen) == {before + 1}
    assert torch.get_num_threads() == before
    with pytest.raises(AssertionError):
        oracle.check(request(Prompt((5, 6), (image(1),))), [7])
    assert torch.get_num_threads() == before


# The tie rule, on made-up logits: the maximum is at id 0, and id 1 lies a stated number of standard
# deviations under it.


def logits_with_margin(deviations: float) -> torch.Tensor:
    row = torch.randn(1, 4096, generator=torch.Generator().manual_seed(1)).clamp(max=4)
    row[0, 0] = 6.0
    row[0, 1] = 6.0 - deviations * float(row.std())
    return row


@pytest.mark.parametrize(
    ("deviations", "kind"),
    [
        (0.0, "right"),
        (0.5e-4, "tie"),
        (0.95e-4, "tie"),
        (1.05e-4, "wrong"),
        (1e-3, "wrong"),
        (1.0, "wrong"),
    ],
)
def test_a_tie_ends_at_its_margin(deviations: float, kind: str) -> None:
    check = judge(logits_with_margin(deviations), [1])
    counts = {"right": check.num_right, "tie": check.num_ties, "wrong": check.num_wrong}
    assert counts == {"right": 0, "tie": 0, "wrong": 0} | {kind: 1}


def test_the_tie_margin_scales_with_the_logits() -> None:
    assert judge(1000 * logits_with_margin(0.5e-4), [1]).num_ties == 1
    assert judge(1000 * logits_with_margin(2e-4), [1]).num_wrong == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_undefined_logits_are_wrong(value: float) -> None:
    logits = torch.zeros(2, 8)
    logits[1] = value
    assert judge(logits, [3, 3]).first_wrong == 1


@pytest.mark.parametrize(("best", "invalid"), [(0, -1), (7, 8)])
def test_an_id_outside_the_vocabulary_does_not_pass_for_its_neighbour(best: int, invalid: int) -> None:
    logits = torch.eye(8)[[best]]
    assert judge(logits, [best]) == Check(num_right=1)
    assert judge(logits, [invalid]).num_wrong == 1


def test_equal_logits_are_right_whichever_id_was_taken() -> None:
    assert judge(torch.zeros(3, 8), [0, 5, 7]) == Check(num_right=3)


def test_the_shown_ids_stay_within_the_output() -> None:
    logits = torch.eye(8)[[3, 4, 5]]
    assert judge(logits, [0, 4, 5]).expected == (3, 4, 5)
    last = judge(logits, [3, 4, 0])
    assert (last.shown_from, last.expected, last.produced) == (0, (3, 4, 5), (3, 4, 0))


# Many checks as one verdict.


def test_a_verdict_sums_its_checks_and_names_the_first_wrong_token() -> None:
    checks = {
        "a": Check(num_right=10),
        "b": Check(num_right=7, num_wrong=3, first_wrong=4),
        "c": Check(num_right=9, num_wrong=1, first_wrong=0),
    }
    tokens, note = verdict(checks)
    assert (tokens.num_checked, tokens.num_right, tokens.num_wrong) == (30, 26, 4)
    assert (tokens.num_requests_right, tokens.num_requests_wrong) == (1, 2)
    assert tokens.first_wrong == ("b", 4)
    assert not tokens.is_right
    assert note is None


@pytest.mark.parametrize(("num_checked", "allowed"), [(0, 0), (1, 1), (200, 1), (201, 2), (1000, 5)])
def test_ties_are_excused_up_to_half_a_percent_rounded_up(num_checked: int, allowed: int) -> None:
    assert max_ties(num_checked) == allowed


def test_ties_within_the_cap_leave_a_run_right() -> None:
    tokens, note = verdict({"a": Check(num_right=995, num_ties=5, first_tie=3)})
    assert tokens.is_right
    assert (tokens.num_ties, tokens.num_wrong, tokens.num_requests_right) == (5, 0, 1)
    assert note is None


def test_ties_above_the_cap_are_all_wrong_and_the_note_says_so() -> None:
    checks = {"a": Check(num_right=500), "b": Check(num_right=494, num_ties=6, first_tie=3)}
    tokens, note = verdict(checks)
    assert not tokens.is_right
    assert (tokens.num_wrong, tokens.num_ties, tokens.num_right) == (6, 0, 994)
    assert tokens.first_wrong == ("b", 3)
    assert tokens.num_requests_wrong == 1
    assert note is not None
    assert "6 of 1000 tokens are ties" in note


def test_a_run_without_tokens_is_not_right() -> None:
    assert not verdict({"a": Check()})[0].is_right
    assert not verdict({})[0].is_right


# What is asserted when a model is loaded.


def collapsed(spec: ModelSpec) -> ModelSpec:
    """The preset with transformers' default spread and a tied head: it repeats its last token."""
    config = {**spec.hf_config, "tie_word_embeddings": True}
    if spec.is_multimodal:
        text: Any = spec.hf_config["text_config"]
        config["text_config"] = {**text, "tie_word_embeddings": True}
    return dataclasses.replace(spec, weight_std=0.02, hf_config=MappingProxyType(config))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_collapsed_model_is_refused_with_its_name_and_figure(name: str) -> None:
    with pytest.raises(RunnerError, match=rf"{name} is not diverse: \d+% of its output tokens"):
        Oracle(collapsed(MODELS[name]), num_threads=1)


def test_a_model_that_does_not_see_its_images_is_refused() -> None:
    blind = build_model(TINY_GEMMA3_VL)
    with torch.no_grad():
        blind.model.multi_modal_projector.mm_input_projection_weight.zero_()
    with pytest.raises(RunnerError, match="4 of 66 pairs of different prompts"):
        assert_diverse(Reference(TINY_GEMMA3_VL, blind))


def test_a_model_is_loaded_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    Oracle(TINY_QWEN3, num_threads=1)
    monkeypatch.setattr("suite.oracle.build_model", None)
    Oracle(TINY_QWEN3, num_threads=1)
