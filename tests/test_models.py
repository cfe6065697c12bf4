"""The presets: facts equal to the built model's, weights equal everywhere, diverse output."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from runner.core import Image, Prompt, RunnerError
from runner.models import MODELS, TINY_GEMMA3_VL, ModelSpec, VisionSpec, get_model
from runner.weights import build_model
from suite.oracle import Reference, preprocess

NAMES = sorted(MODELS)

assert TINY_GEMMA3_VL.vision is not None
VISION: VisionSpec = TINY_GEMMA3_VL.vision


@cache
def model_of(name: str) -> Any:
    return build_model(MODELS[name])


def text_config(name: str) -> Any:
    return model_of(name).config.get_text_config()


def seeded_image(seed: int) -> Image:
    height, width, channels = VISION.image_shape
    return Image(random.Random(seed).randbytes(height * width * channels), VISION.image_shape)


def as_array(image: Image) -> np.ndarray:
    return np.frombuffer(image.data, np.uint8).reshape(image.shape)


@pytest.mark.parametrize("name", NAMES)
def test_a_presets_shapes_are_those_of_the_built_model(name: str) -> None:
    spec, config, model = MODELS[name], text_config(name), model_of(name)
    text = model.model.language_model if spec.is_multimodal else model.model
    assert text.get_input_embeddings().weight.shape == (spec.vocab_size, spec.hidden_size)
    assert model.lm_head.weight.shape == (spec.vocab_size, spec.hidden_size)
    assert len(text.layers) == spec.num_layers
    for layer in text.layers:
        attention = layer.self_attn
        assert attention.q_proj.weight.shape == (spec.num_heads * spec.head_dim, spec.hidden_size)
        assert attention.k_proj.weight.shape[0] == spec.num_kv_heads * spec.head_dim
        assert attention.head_dim == spec.head_dim
    assert config.max_position_embeddings == spec.max_position


@pytest.mark.parametrize("name", NAMES)
def test_a_presets_window_is_that_of_the_sliding_layers(name: str) -> None:
    spec, config = MODELS[name], text_config(name)
    kinds = set(config.layer_types)
    if spec.sliding_window is None:
        assert kinds == {"full_attention"}
    else:
        assert kinds == {"full_attention", "sliding_attention"}
        assert config.sliding_window == spec.sliding_window


@pytest.mark.parametrize("name", NAMES)
def test_reserved_ids_are_the_configs_special_ids(name: str) -> None:
    spec, config = MODELS[name], text_config(name)
    special = {config.pad_token_id, config.bos_token_id, config.eos_token_id}
    if spec.vision is not None:
        special |= set(spec.vision.placeholder_ids())
        video = getattr(model_of(name).config, "video_token_id", None)
        special |= set() if video is None else {video}
    assert spec.eos_token_id == config.eos_token_id
    assert spec.reserved_ids == special
    assert all(0 <= token < spec.vocab_size for token in spec.reserved_ids)


def test_the_placeholders_are_those_of_the_configuration() -> None:
    config = model_of("tiny-gemma3-vl").config
    assert VISION.image_token_id == config.image_token_id
    assert VISION.begin_token_id == config.boi_token_index
    assert VISION.end_token_id == config.eoi_token_index
    assert VISION.rows_per_image == config.mm_tokens_per_image
    assert VISION.image_height == VISION.image_width == config.vision_config.image_size


def test_an_image_at_the_grid_size_gives_the_stated_rows() -> None:
    model = model_of("tiny-gemma3-vl").model
    pixels = preprocess([seeded_image(1), seeded_image(2)], VISION)
    rows = model.get_image_features(pixels).pooler_output
    assert rows.shape == (2, VISION.rows_per_image, TINY_GEMMA3_VL.hidden_size)


def test_image_rows_are_about_as_large_as_text_embeddings() -> None:
    model = model_of("tiny-gemma3-vl").model
    rows = model.get_image_features(preprocess([seeded_image(1)], VISION)).pooler_output
    words = model.get_input_embeddings()(torch.arange(3, 200))
    assert 0.5 < float(rows.std() / words.std()) < 2


def test_an_unknown_model_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(
        RunnerError,
        match=r"'gpt-5'; known models: gemma-3-12b, .*large-gemma3-vl.*, tiny-qwen3",
    ):
        get_model("gpt-5")


PRINT_WEIGHTS = """
import hashlib
from runner.models import MODELS
from runner.weights import build_model
for name, spec in sorted(MODELS.items()):
    for key, value in build_model(spec).state_dict().items():
        print(name, key, hashlib.sha256(value.numpy().tobytes()).hexdigest())
"""


def test_weights_are_equal_in_two_fresh_processes() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PRINT_WEIGHTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": threads},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed, threads in (("1", "1"), ("2", "2"))
    ]
    first, second = (process.communicate(timeout=120)[0].splitlines() for process in processes)
    assert sorted({line.split()[0] for line in first}) == NAMES
    assert len(first) == len(second)
    assert [line for line in first if line not in second] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_two_weight_matrices_are_alike(name: str) -> None:
    """Each is drawn from its own seed, so that a layer taken for another shows in the tokens."""
    matrices = [value.flatten()[:64] for value in model_of(name).parameters() if value.dim() > 1]
    assert not any(torch.equal(left, right) for left, right in combinations(matrices, 2))


def greedy(spec: ModelSpec, prompts: list[Prompt]) -> list[list[int]]:
    with torch.inference_mode():
        return Reference(spec, model_of(spec.name)).greedy(prompts, 32)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_output_is_diverse(name: str) -> None:
    spec = MODELS[name]
    draw = random.Random(5)
    prompts = [Prompt(tuple(draw.choices(range(3, 4000), k=40))) for _ in range(8)]
    outputs = greedy(spec, prompts)
    assert len({tuple(output) for output in outputs}) == len(prompts)
    assert sum(len(set(output)) for output in outputs) / len(outputs) >= 16


def test_the_image_alone_changes_the_output() -> None:
    ids = (*range(100, 108), *VISION.placeholder_ids(), *range(200, 216))
    outputs = greedy(TINY_GEMMA3_VL, [Prompt(ids, (seeded_image(seed),)) for seed in range(4)])
    assert len({tuple(output) for output in outputs}) == 4


@cache
def hugging_face_pixels(*seeds: int) -> torch.Tensor:
    """The Hugging Face processor's pixels; at the grid size there is nothing to resize."""
    processor = Gemma3ImageProcessorPil(
        size={"height": VISION.image_height, "width": VISION.image_width},
        image_mean=list(VISION.channel_mean),
        image_std=list(VISION.channel_std),
    )
    images = [as_array(seeded_image(seed)) for seed in seeds]
    pixels: torch.Tensor = processor(images, return_tensors="pt").pixel_values
    return pixels


def test_channel_statistics_are_the_hugging_face_processors_defaults() -> None:
    processor = Gemma3ImageProcessorPil()
    assert list(VISION.channel_mean) == list(processor.image_mean)
    assert list(VISION.channel_std) == list(processor.image_std)


def test_the_oracles_pixels_equal_the_hugging_face_processors() -> None:
    pixels = preprocess([seeded_image(1), seeded_image(2)], VISION)
    torch.testing.assert_close(pixels, hugging_face_pixels(1, 2), rtol=0, atol=1e-6)
    assert not torch.allclose(pixels, hugging_face_pixels(2, 1), atol=1e-2)


def test_the_runners_pixels_equal_the_hugging_face_processors() -> None:
    from runner.kernels.encoder import normalise_pixels

    images = np.stack([as_array(seeded_image(seed)) for seed in (1, 2)])
    pixels = normalise_pixels(torch.from_numpy(images), VISION.channel_mean, VISION.channel_std)
    torch.testing.assert_close(pixels, hugging_face_pixels(1, 2), rtol=0, atol=1e-6)
