"""The oracle on supplied rows and on M-RoPE, held against decodes that share none of its code.

A decode here computes the whole sequence anew for every token: the composite model's own forward where
there are ids and images, its language model over rows laid out by the test where rows are supplied.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from runner.core import Image, Prompt, Request, SamplingParams, SuppliedRows
from runner.models import MODELS, ModelSpec, VisionSpec
from runner.weights import build_model
from suite.oracle import Check, Oracle, patchify, preprocess

NUM_OUTPUT = 10
GEMMA, QWEN = MODELS["tiny-gemma3-vl"], MODELS["tiny-qwen2.5-vl"]
MULTIMODAL = [GEMMA, QWEN]
EVERY = sorted(MODELS.values(), key=lambda spec: spec.name)


@cache
def model_of(name: str) -> Any:
    return build_model(MODELS[name])


@cache
def oracle_of(name: str) -> Oracle:
    return Oracle(MODELS[name], num_threads=1)


def vision_of(spec: ModelSpec) -> VisionSpec:
    assert spec.vision is not None
    return spec.vision


def text_of(spec: ModelSpec) -> Any:
    model = model_of(spec.name).model
    return model.language_model if spec.is_multimodal else model


def ids_of(spec: ModelSpec, count: int, seed: int) -> tuple[int, ...]:
    ids = [token for token in range(spec.vocab_size) if token not in spec.reserved_ids]
    return tuple(random.Random(seed).choices(ids, k=count))


def image_of(spec: ModelSpec, seed: int) -> Image:
    height, width, channels = vision_of(spec).image_shape
    return Image(random.Random(seed).randbytes(height * width * channels), (height, width, channels))


def pixels_of(image: Image) -> np.ndarray:
    return np.frombuffer(image.data, np.uint8).reshape(image.shape)


def with_images(spec: ModelSpec, *texts: int) -> Prompt:
    """So much text before, between and after images: one image fewer than there are texts."""
    ids: tuple[int, ...] = ()
    for number, count in enumerate(texts):
        ids += vision_of(spec).placeholder_ids() if number else ()
        ids += ids_of(spec, count, seed=number)
    return Prompt(ids, tuple(image_of(spec, number) for number in range(len(texts) - 1)))


def judged(spec: ModelSpec, prompt: Prompt, output: Sequence[int]) -> Check:
    request = Request("r", prompt, SamplingParams(NUM_OUTPUT, ignore_eos=True))
    return oracle_of(spec.name).check(request, output)


# Independent decodes


def processed(spec: ModelSpec, images: Sequence[Image]) -> dict[str, torch.Tensor]:
    """What the family's own Hugging Face processor gives its model for these images."""
    arrays, vision = [pixels_of(image) for image in images], vision_of(spec)
    if spec.family == "gemma3":
        size = {"height": vision.image_height, "width": vision.image_width}
        gemma = Gemma3ImageProcessorPil(
            size=size, image_mean=list(vision.channel_mean), image_std=list(vision.channel_std)
        )
        return {"pixel_values": gemma(arrays, return_tensors="pt").pixel_values}
    found = qwen_processor(vision)(arrays, return_tensors="pt")
    return {"pixel_values": found["pixel_values"], "image_grid_thw": found["image_grid_thw"]}


def qwen_processor(vision: VisionSpec) -> Any:
    return Qwen2VLImageProcessorPil(
        min_pixels=1,
        max_pixels=1 << 24,
        patch_size=vision.patch_size,
        merge_size=vision.merge_size,
        image_mean=list(vision.channel_mean),
        image_std=list(vision.channel_std),
    )


def image_kinds(spec: ModelSpec, prompt: Prompt, length: int) -> torch.Tensor:
    kinds = torch.zeros(1, length, dtype=torch.int32)
    for position, token in enumerate(prompt.token_ids):
        kinds[0, position] = token == vision_of(spec).image_token_id
    return kinds


@torch.inference_mode()
def decode_ids(
    spec: ModelSpec, prompt: Prompt, positions: Callable[[int], torch.Tensor] | None = None
) -> list[int]:
    """Greedy tokens by the composite forward, which places images and positions itself."""
    output: list[int] = []
    inputs: dict[str, Any] = processed(spec, prompt.images) if prompt.images else {}
    for _ in range(NUM_OUTPUT):
        ids = torch.tensor([[*prompt.token_ids, *output]])
        if spec is QWEN and prompt.images:
            inputs["mm_token_type_ids"] = image_kinds(spec, prompt, ids.shape[1])
        if positions is not None:
            inputs["position_ids"] = positions(ids.shape[1])
        logits = model_of(spec.name)(input_ids=ids, use_cache=False, **inputs).logits
        output.append(int(logits[0, -1].argmax()))
    return output


@torch.inference_mode()
def decode_rows(spec: ModelSpec, rows: torch.Tensor, positions: torch.Tensor) -> list[int]:
    """Greedy tokens after rows [tokens, hidden]; `positions` [axes, 1, tokens] go on by one a token."""
    output: list[int] = []
    text = text_of(spec)
    for _ in range(NUM_OUTPUT):
        place = positions if spec is QWEN else positions[0]
        hidden = text(inputs_embeds=rows[None], position_ids=place, use_cache=False).last_hidden_state
        output.append(int(model_of(spec.name).lm_head(hidden[0, -1]).argmax()))
        rows = torch.cat([rows, looked_up(spec, output[-1:])])
        positions = torch.cat([positions, positions.max() + torch.ones(3, 1, 1, dtype=torch.int64)], dim=2)
    return output


def plain_positions(count: int) -> torch.Tensor:
    return torch.arange(count).expand(3, 1, count)


@torch.inference_mode()
def looked_up(spec: ModelSpec, ids: Sequence[int]) -> torch.Tensor:
    rows: torch.Tensor = text_of(spec).get_input_embeddings()(torch.tensor(list(ids)))
    return rows


@torch.inference_mode()
def laid_out(spec: ModelSpec, prompt: Prompt) -> torch.Tensor:
    """Rows [tokens, hidden] of a prompt of ids and images, by transformers' own processor and tower."""
    rows = looked_up(spec, prompt.token_ids).clone()
    if prompt.images:
        given = list(processed(spec, prompt.images).values())
        features = model_of(spec.name).model.get_image_features(*given).pooler_output
        is_image = image_kinds(spec, prompt, len(prompt.token_ids))[0].bool()
        rows[is_image] = torch.cat([feature.flatten(0, -2) for feature in features])
    return rows


def grid_positions(spec: ModelSpec, prompt: Prompt) -> torch.Tensor:
    count = len(prompt.token_ids)
    if spec is not QWEN or not prompt.images:
        return plain_positions(count)
    found: torch.Tensor = model_of(spec.name).model.get_rope_index(
        torch.tensor([prompt.token_ids]),
        image_kinds(spec, prompt, count),
        image_grid_thw=processed(spec, prompt.images)["image_grid_thw"],
    )[0]
    return found


def noisy(rows: torch.Tensor, seed: int) -> torch.Tensor:
    return rows + torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed)) * rows.std()


def supplied(rows: torch.Tensor, mask: bytes | None = None) -> SuppliedRows:
    return SuppliedRows(rows.numpy().tobytes(), rows.shape[0], rows.shape[1], mask=mask)


# M-RoPE and images

PLACES = [(9,), (0, 5), (7, 1), (3, 4), (4, 3, 6), (0, 0, 2), (2, 5, 1)]


@pytest.mark.parametrize("texts", PLACES, ids=lambda texts: "-".join(map(str, texts)))
@pytest.mark.parametrize("spec", MULTIMODAL, ids=lambda spec: spec.name)
def test_images_at_any_place_are_right_as_the_model_itself_decodes_them(
    spec: ModelSpec, texts: tuple[int, ...]
) -> None:
    prompt = with_images(spec, *texts)
    assert judged(spec, prompt, decode_ids(spec, prompt)) == Check(num_right=NUM_OUTPUT)


@pytest.mark.parametrize("texts", [texts for texts in PLACES if len(texts) > 1])
def test_one_axis_positions_on_an_image_prompt_are_found(texts: tuple[int, ...]) -> None:
    prompt = with_images(QWEN, *texts)
    output = decode_ids(QWEN, prompt, positions=plain_positions)
    assert judged(QWEN, prompt, output).num_wrong >= 1


def test_height_and_width_taken_for_each_other_are_found() -> None:
    """Seen in some prompts only: which of two axes a row lies on changes few of the tokens after it."""

    def num_wrong(prompt: Prompt) -> int:
        def swapped(count: int) -> torch.Tensor:
            found: torch.Tensor = model_of(QWEN.name).model.get_rope_index(
                torch.zeros(1, count, dtype=torch.int64),
                image_kinds(QWEN, prompt, count),
                image_grid_thw=processed(QWEN, prompt.images)["image_grid_thw"],
            )[0]
            return found[[0, 2, 1]]

        return judged(QWEN, prompt, decode_ids(QWEN, prompt, positions=swapped)).num_wrong

    counts = [num_wrong(with_images(QWEN, *texts)) for texts in PLACES if len(texts) > 1]
    assert sum(map(bool, counts)) >= 2


def test_patches_are_those_of_the_hugging_face_processor() -> None:
    vision = vision_of(QWEN)
    images = [image_of(QWEN, seed) for seed in (1, 2)]
    expected = qwen_processor(vision)([pixels_of(image) for image in images], return_tensors="pt")
    patches = patchify(preprocess(images, vision), vision)
    torch.testing.assert_close(patches, expected["pixel_values"], rtol=0, atol=2e-6)
    merge = vision.merge_size
    grid = [1, vision.grid_height * merge, vision.grid_width * merge]
    assert expected["image_grid_thw"].tolist() == [grid, grid]
    # Alike patches would hide a wrong order of them.
    assert len({tuple(patch.tolist()) for patch in patches}) == len(patches)


def test_channel_statistics_are_the_hugging_face_processors_defaults() -> None:
    defaults, vision = Qwen2VLImageProcessorPil(), vision_of(QWEN)
    assert list(vision.channel_mean) == list(defaults.image_mean)
    assert list(vision.channel_std) == list(defaults.image_std)
    assert (vision.patch_size, vision.merge_size) == (defaults.patch_size, defaults.merge_size)


# Supplied rows


@pytest.mark.parametrize("noise", [False, True], ids=["as looked up", "with noise"])
@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: spec.name)
def test_pure_rows_are_judged_by_what_was_supplied(spec: ModelSpec, noise: bool) -> None:
    ids = ids_of(spec, 14, seed=5)
    rows = noisy(looked_up(spec, ids), 1) if noise else looked_up(spec, ids)
    prompt = Prompt((), embeds=supplied(rows))
    right = decode_rows(spec, rows, plain_positions(14))
    assert judged(spec, prompt, right) == Check(num_right=NUM_OUTPUT)
    by_ids = decode_ids(spec, Prompt(ids))
    if noise:
        assert judged(spec, prompt, by_ids).num_wrong >= 1
    else:
        assert by_ids == right


@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: spec.name)
def test_spliced_rows_count_where_the_mask_says_and_ids_elsewhere(spec: ModelSpec) -> None:
    """Beside a supplied row stands an id of no meaning, and under an id stands a row of none."""
    ids, decoys = ids_of(spec, 16, seed=6), ids_of(spec, 16, seed=7)
    mask = np.array([0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0], np.uint8)
    is_given = torch.from_numpy(mask).bool()
    given = noisy(looked_up(spec, ids), 2)
    held = tuple(np.where(mask, decoys, ids).tolist())
    prompt = Prompt(held, embeds=supplied(given, mask.tobytes()))
    rows = torch.where(is_given[:, None], given, looked_up(spec, ids))
    assert judged(spec, prompt, decode_rows(spec, rows, plain_positions(16))) == Check(num_right=NUM_OUTPUT)

    faults = {
        "supplied rows looked up over": looked_up(spec, held),
        "every row taken": given,
        "the rows before noise": looked_up(spec, ids),
        "one row not taken": torch.where((is_given & (torch.arange(16) != 5))[:, None], given, rows * 0),
    }
    faults["one row not taken"][~is_given] = looked_up(spec, ids)[~is_given]
    for name, wrong in faults.items():
        output = decode_rows(spec, wrong, plain_positions(16))
        assert judged(spec, prompt, output).num_wrong >= 1, name


@pytest.mark.parametrize("spec", MULTIMODAL, ids=lambda spec: spec.name)
@pytest.mark.parametrize("texts", [(6, 5), (4, 3, 4)], ids=["one image", "two images"])
def test_images_beside_spliced_rows_keep_their_rows_and_their_grid(
    spec: ModelSpec, texts: tuple[int, ...]
) -> None:
    whole = with_images(spec, *texts)
    is_text = [token not in spec.reserved_ids for token in whole.token_ids]
    mask = bytes(text and position % 2 for position, text in enumerate(is_text))
    is_given = torch.tensor(list(mask)).bool()
    rows = laid_out(spec, whole)
    given = noisy(rows, 3)
    decoys = ids_of(spec, len(mask), seed=8)
    held = tuple(d if g else t for t, d, g in zip(whole.token_ids, decoys, mask, strict=True))
    prompt = Prompt(held, whole.images, supplied(given, mask))
    rows = torch.where(is_given[:, None], given, rows)
    right = decode_rows(spec, rows, grid_positions(spec, whole))
    assert judged(spec, prompt, right) == Check(num_right=NUM_OUTPUT)
    assert judged(spec, prompt, decode_ids(spec, whole)).num_wrong >= 1
    flat = decode_rows(spec, rows, plain_positions(len(mask)))
    if spec is QWEN:
        assert judged(spec, prompt, flat).num_wrong >= 1
    else:
        assert flat == right


@pytest.mark.parametrize("spec", MULTIMODAL, ids=lambda spec: spec.name)
def test_an_image_handed_over_as_rows_has_the_positions_of_text(spec: ModelSpec) -> None:
    whole = with_images(spec, 4, 5)
    rows = laid_out(spec, whole)
    prompt = Prompt((), embeds=supplied(rows))
    as_text = decode_rows(spec, rows, plain_positions(len(whole)))
    assert judged(spec, prompt, as_text) == Check(num_right=NUM_OUTPUT)
    as_image = decode_ids(spec, whole)
    assert (judged(spec, prompt, as_image).num_wrong == 0) == (spec is GEMMA)


@pytest.mark.parametrize("spec", MULTIMODAL, ids=lambda spec: spec.name)
def test_an_image_token_beside_a_supplied_row_is_no_placeholder(spec: ModelSpec) -> None:
    ids = ids_of(spec, 9, seed=9)
    held = (*ids[:4], vision_of(spec).image_token_id, *ids[5:])
    rows = noisy(looked_up(spec, ids), 4)
    mask = bytes(position == 4 for position in range(9))
    given = torch.where(torch.tensor(list(mask)).bool()[:, None], rows, looked_up(spec, ids))
    prompt = Prompt(held, embeds=supplied(rows, mask))
    assert judged(spec, prompt, decode_rows(spec, given, plain_positions(9))) == Check(num_right=NUM_OUTPUT)


def test_the_same_ids_with_other_rows_are_judged_anew() -> None:
    """The oracle remembers verdicts by content; rows are part of it."""
    spec = MODELS["tiny-qwen3"]
    rows = looked_up(spec, ids_of(spec, 12, seed=10))
    output = decode_rows(spec, rows, plain_positions(12))
    assert judged(spec, Prompt((), embeds=supplied(rows)), output).num_wrong == 0
    assert judged(spec, Prompt((), embeds=supplied(noisy(rows, 5))), output).num_wrong >= 1
