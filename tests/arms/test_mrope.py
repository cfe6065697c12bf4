"""Positions of Qwen2.5-VL, and images that come as images or as embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from arm_models import vision_of
from arm_reference import qwen_patches, reference_of
from arm_workloads import Arrivals, image_of, outputs, supplied_rows, text_ids, wrong_requests

from runner.admission import admit
from runner.config import RunnerConfig
from runner.core import Prompt, Request, SamplingParams, SuppliedRows
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.inputs.rope_positions import prompt_positions
from runner.kernels.encoder import normalise_pixels, to_patches
from runner.models import TINY_GEMMA3_VL, TINY_QWEN25_VL, ModelSpec

QWEN = TINY_QWEN25_VL
CONFIG = RunnerConfig(
    max_num_seqs=3,
    max_num_batched_tokens=40,
    max_model_len=128,
    block_size=8,
    num_blocks=48,
    num_encoder_slots=4,
    num_resident_rows=200,
)


def with_images(num_images: int, before: int, between: int, after: int) -> Prompt:
    vision = vision_of(QWEN)
    ids: tuple[int, ...] = text_ids(QWEN, before, 1)
    for index in range(num_images):
        ids += vision.placeholder_ids() + text_ids(
            QWEN, between if index < num_images - 1 else after, index + 2
        )
    return Prompt(ids, tuple(image_of(QWEN.name, index) for index in range(num_images)))


def request(name: str, prompt: Prompt, max_tokens: int = 6) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens, ignore_eos=True))


def our_positions(prompt: Prompt, length: int) -> np.ndarray[Any, Any]:
    """[3, length]: the prompt's positions, then those of the tokens that follow."""
    state = admit(request("r", prompt), QWEN, CONFIG)
    positions, offset = prompt_positions(state, vision_of(QWEN))
    rest = np.arange(len(prompt), length) + offset
    return np.concatenate([positions.T, np.broadcast_to(rest, (3, len(rest)))], axis=1)


@pytest.mark.parametrize("num_images", range(4))
@pytest.mark.parametrize(("before", "between", "after"), [(0, 0, 1), (5, 0, 7), (3, 4, 2), (1, 1, 1)])
def test_positions_are_those_of_transformers(num_images: int, before: int, between: int, after: int) -> None:
    prompt = with_images(num_images, before, between, after)
    if not len(prompt):
        prompt = Prompt(text_ids(QWEN, 3, 9))
    length = len(prompt) + 5
    reference = reference_of(QWEN.name)
    places = reference.image_places(prompt)
    types = torch.zeros(1, length, dtype=torch.int32)
    types[0, places] = 1
    ids = torch.full((1, length), 5)
    ids[0, places] = vision_of(QWEN).image_token_id
    vision = vision_of(QWEN)
    grid = torch.tensor([[1, vision.grid_height * 2, vision.grid_width * 2]] * num_images)
    expected, delta = reference.model.model.get_rope_index(
        input_ids=ids, mm_token_type_ids=types, image_grid_thw=grid if num_images else None
    )
    np.testing.assert_array_equal(our_positions(prompt, length), expected[:, 0].numpy())
    state = admit(request("r", prompt), QWEN, CONFIG)
    assert prompt_positions(state, vision)[1] == int(delta)


def test_height_and_width_are_told_apart() -> None:
    positions = our_positions(with_images(1, 2, 0, 1), 2 + 26 + 1)
    image = positions[:, 3:27]
    assert set(image[0]) == {3}
    assert set(image[1]) == {3, 4, 5, 6}
    assert set(image[2]) == {3, 4, 5, 6, 7, 8}
    assert positions[:, 27].tolist() == [9, 9, 9]


def test_embeddings_alone_get_text_positions() -> None:
    """Rows of an image among them as well: nothing says that they are one (vLLM #45252)."""
    rows = supplied_rows(QWEN, text_ids(QWEN, 30, 1))
    np.testing.assert_array_equal(our_positions(Prompt((), (), rows), 34), np.tile(np.arange(34), (3, 1)))


def test_images_beside_embeddings_keep_their_grid() -> None:
    prompt = with_images(2, 4, 3, 2)
    mask = bytes(token < 4000 for token in prompt.token_ids)
    spliced = Prompt(prompt.token_ids, prompt.images, supplied_rows(QWEN, prompt.token_ids, mask))
    np.testing.assert_array_equal(
        our_positions(spliced, len(prompt) + 3), our_positions(prompt, len(prompt) + 3)
    )


def test_a_supplied_row_with_the_image_token_is_text() -> None:
    """The id at a supplied position is of no meaning."""
    token = vision_of(QWEN).image_token_id
    ids = (5, token, 6)
    spliced = Prompt(ids, (), supplied_rows(QWEN, ids, bytes([0, 1, 0])))
    np.testing.assert_array_equal(our_positions(spliced, 4), np.tile(np.arange(4), (3, 1)))


# ---- an image as an image, and as embeddings


def as_embeddings(model: ModelSpec, prompt: Prompt) -> Prompt:
    rows = reference_of(model.name).prompt_rows(prompt).numpy()
    return Prompt((), (), SuppliedRows(rows.tobytes(), len(prompt), model.hidden_size))


def picture(model: ModelSpec) -> Prompt:
    vision = vision_of(model)
    return Prompt(
        (*text_ids(model, 4, 1), *vision.placeholder_ids(), *text_ids(model, 5, 2)),
        (image_of(model.name, 1),),
    )


@pytest.mark.parametrize("arm", ["sync-rows", "refresh", "fused"])
@pytest.mark.parametrize("model", [TINY_GEMMA3_VL, TINY_QWEN25_VL], ids=lambda model: model.name)
def test_an_image_as_embeddings_is_the_image_only_where_positions_are_the_same(
    model: ModelSpec, arm: str, devices: Any
) -> None:
    prompt = picture(model)
    engine = Engine(model, CONFIG, devices("inline", model, CONFIG), ARMS[arm])
    arrivals = [(0, request("image", prompt)), (0, request("embeddings", as_embeddings(model, prompt)))]
    engine.run(Arrivals(arrivals))
    assert wrong_requests(engine) == {}, "each is right by its own positions"
    tokens = outputs(engine)
    assert (tokens["image"] == tokens["embeddings"]) == (model.rope == "1d")


def test_qwen_grid_reaches_decodes_across_chunks(devices: Any) -> None:
    """Images cut into chunks, and tokens after them, whose positions lag behind their index."""
    config = RunnerConfig(
        max_num_seqs=2,
        max_num_batched_tokens=7,
        max_model_len=128,
        block_size=8,
        num_blocks=40,
        num_encoder_slots=2,
    )
    for name in ("ids", "sync-ids"):
        engine = Engine(QWEN, config, devices("inline", QWEN, config), ARMS[name])
        made = [(i, request(f"r{i}", with_images(i, 2, 1, 3), 5)) for i in range(3)]
        engine.run(Arrivals(made))
        assert wrong_requests(engine) == {}


# ---- pixels


def test_patches_and_pixels_are_those_of_the_image_processor() -> None:
    vision = vision_of(QWEN)
    image = image_of(QWEN.name, 3)
    pixels = np.frombuffer(image.data, np.uint8).reshape(image.shape)
    expected = qwen_patches(pixels)
    normalised = normalise_pixels(
        torch.from_numpy(pixels.copy())[None], vision.channel_mean, vision.channel_std
    )
    ours = to_patches(normalised[0], vision)
    assert expected["image_grid_thw"].tolist() == [[1, vision.grid_height * 2, vision.grid_width * 2]]
    torch.testing.assert_close(ours, expected["pixel_values"], rtol=1e-5, atol=1e-6)
    # Distinct patches, or a wrong order of them would not show.
    assert len({tuple(row.tolist()) for row in ours}) == len(ours)


def test_encoded_rows_are_those_of_transformers(devices: Any) -> None:
    for model in (TINY_GEMMA3_VL, TINY_QWEN25_VL):
        image = image_of(model.name, 5)
        device: Any = devices("inline", model, CONFIG)
        pixels = np.frombuffer(image.data, np.uint8).reshape(image.shape)
        with torch.inference_mode():
            rows = device._runner._program._model.encode(torch.from_numpy(pixels.copy()))
        torch.testing.assert_close(rows, reference_of(model.name).image_rows(image), rtol=1e-3, atol=1e-4)
