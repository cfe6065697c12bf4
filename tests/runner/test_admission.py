"""What is refused before it reaches the scheduler, always by name and with the numbers that disagree."""

from __future__ import annotations

import math

import pytest
from fabrication import SMALL_VL, VISION, image, prompt_of, request, text, text_request

from runner.admission import admit
from runner.config import RunnerConfig
from runner.core import (
    Image,
    ImageSpan,
    Prompt,
    Request,
    RequestError,
    RequestStatus,
    SamplingParams,
)
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3, ModelSpec

CONFIG = RunnerConfig(
    max_num_seqs=4, max_num_batched_tokens=32, max_model_len=128, block_size=4, num_blocks=20
)


def refusal(candidate: Request, model: ModelSpec = TINY_QWEN3, config: RunnerConfig = CONFIG) -> str:
    with pytest.raises(RequestError) as caught:
        admit(candidate, model, config)
    message = str(caught.value)
    assert candidate.request_id in message
    return message


def test_an_admitted_request_waits_with_nothing_computed() -> None:
    state = admit(text_request(TINY_QWEN3, "r", 10), TINY_QWEN3, CONFIG)
    assert state.status is RequestStatus.WAITING
    assert (state.num_prompt, state.num_tokens, state.num_computed) == (10, 10, 0)
    assert (state.output_ids, state.block_ids, state.slot) == ([], [], None)


def test_an_empty_prompt_is_refused() -> None:
    assert "empty" in refusal(request("r", Prompt(())))


def test_a_prompt_that_leaves_no_room_for_output_is_refused_with_both_lengths() -> None:
    config = RunnerConfig(max_num_seqs=4, max_model_len=64)
    message = refusal(text_request(TINY_QWEN3, "r", 64), config=config)
    assert "64 tokens" in message
    assert "max_model_len is 64" in message
    assert admit(text_request(TINY_QWEN3, "r", 63), TINY_QWEN3, config).num_prompt == 63


def test_a_request_larger_than_the_cache_is_refused_with_both_sizes() -> None:
    message = refusal(text_request(TINY_QWEN3, "r", 70, max_tokens=20))
    assert "90 positions" in message
    assert "holds 80" in message
    assert "num_blocks" in message


def test_a_request_as_large_as_the_cache_is_admitted() -> None:
    admit(text_request(TINY_QWEN3, "r", 70, max_tokens=10), TINY_QWEN3, CONFIG)


def test_the_length_limit_counts_before_the_cache_does() -> None:
    """max_tokens beyond the model's length takes no blocks: the request will be cut there."""
    config = RunnerConfig(max_num_seqs=4, max_model_len=80, block_size=4, num_blocks=20)
    admit(text_request(TINY_QWEN3, "r", 70, max_tokens=1000), TINY_QWEN3, config)


@pytest.mark.parametrize("token", [-1, TINY_QWEN3.vocab_size])
def test_an_id_outside_the_vocabulary_is_refused_with_its_position(token: int) -> None:
    message = refusal(request("r", Prompt((5, 6, token, 7))))
    assert f"token id {token} at position 2" in message
    assert str(TINY_QWEN3.vocab_size) in message


def test_the_ends_of_the_vocabulary_are_admitted() -> None:
    admit(request("r", Prompt((0, TINY_QWEN3.vocab_size - 1))), TINY_QWEN3, CONFIG)


def test_images_on_a_text_model_are_refused_with_their_number() -> None:
    message = refusal(request("r", Prompt((5, 6), (image(1), image(2)))))
    assert "takes no images, got 2" in message


@pytest.mark.parametrize(("num_placeholders", "num_images"), [(16, 0), (16, 2), (15, 1), (17, 1), (0, 1)])
def test_placeholders_and_image_tokens_that_disagree_are_refused_with_both_numbers(
    num_placeholders: int, num_images: int
) -> None:
    ids = (5, *(VISION.image_token_id,) * num_placeholders, 6)
    images = tuple(image(seed) for seed in range(num_images))
    message = refusal(request("r", Prompt(ids, images)), TINY_GEMMA3_VL)
    assert f"{num_placeholders} image placeholders" in message
    assert f"{num_images} images give {num_images * 16} image tokens" in message


def test_an_image_whose_placeholders_are_not_adjacent_is_refused_with_its_positions() -> None:
    half = (VISION.image_token_id,) * 8
    message = refusal(request("r", Prompt((5, *half, 6, *half), (image(1),))), TINY_GEMMA3_VL)
    assert "image 0" in message
    assert "positions 1 to 17" in message


def test_an_image_of_another_size_is_refused_with_both_shapes() -> None:
    wrong = image(1, (30, 150, 3))
    ids = (5, *VISION.placeholder_ids())
    message = refusal(request("r", Prompt(ids, (wrong,))), TINY_GEMMA3_VL)
    assert "(30, 150, 3)" in message
    assert "(112, 112, 3)" in message


def test_the_spans_lie_where_the_placeholders_are() -> None:
    prompt = prompt_of(SMALL_VL, [4, ("image", 1), 2, ("image", 2), ("image", 1), 3], seed=1)
    state = admit(request("r", prompt), SMALL_VL, CONFIG)
    assert state.spans == (
        ImageSpan(prompt.images[0].key, 0, first=5, count=3),
        ImageSpan(prompt.images[1].key, 1, first=12, count=3),
        ImageSpan(prompt.images[2].key, 2, first=17, count=3),
    )
    assert state.spans[0].key == state.spans[2].key
    for span in state.spans:
        assert set(prompt.token_ids[span.first : span.end]) == {SMALL_VL.vision.image_token_id}


def test_images_that_touch_are_told_apart() -> None:
    vision = SMALL_VL.vision
    prompt = Prompt((7, *(vision.image_token_id,) * 6), (image(1, (2, 2, 3)), image(2, (2, 2, 3))))
    spans = admit(request("r", prompt), SMALL_VL, CONFIG).spans
    assert [(span.first, span.end) for span in spans] == [(1, 4), (4, 7)]


def test_the_same_bytes_in_another_shape_have_another_key() -> None:
    data = bytes(range(250)) * 54
    wide, tall = Image(data, (30, 150, 3)), Image(data, (150, 30, 3))
    assert wide.data == tall.data
    assert wide.key != tall.key


def test_equal_images_have_equal_keys_and_one_byte_makes_another() -> None:
    data = bytearray(range(12))
    key = Image(bytes(data), (2, 2, 3)).key
    assert Image(bytes(data), (2, 2, 3)).key == key
    data[-1] ^= 1
    assert Image(bytes(data), (2, 2, 3)).key != key


@pytest.mark.parametrize("shape", [(2, 2, 1), (2, 3, 3), (2, 2, 4), (4, 1, 1)])
def test_an_image_whose_bytes_do_not_fill_its_shape_is_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(RequestError, match="12 bytes"):
        Image(bytes(12), shape)


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_max_tokens_below_one_is_refused(max_tokens: int) -> None:
    with pytest.raises(RequestError, match=f"max_tokens is {max_tokens}"):
        SamplingParams(max_tokens)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", math.nan),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("bad_words", ((),)),
        ("bad_words", ((5,) * 9,)),
        ("bad_words", ((5,),) * 17),
        ("logprobs", -1),
        ("logprobs", 21),
        ("stop_token_ids", (5,) * 17),
        ("min_tokens", -1),
        ("min_tokens", 5),
        ("seed", -1),
        ("seed", 2**63),
    ],
)
def test_a_sampling_value_out_of_range_is_named_with_the_rule(name: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(4, **{name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}; it must be ")


def test_greedy_requests_that_ask_for_no_more_are_plain() -> None:
    assert SamplingParams(4, ignore_eos=True, stop_token_ids=(7,), seed=3).is_plain
    assert not any(
        SamplingParams(4, **given).is_plain  # type: ignore[arg-type]
        for given in ({"temperature": 0.5}, {"logprobs": 0}, {"min_tokens": 1}, {"bad_words": ((5,),)})
    )


def test_a_prompt_knows_its_length() -> None:
    assert len(Prompt(text(TINY_QWEN3, 9, seed=1))) == 9
