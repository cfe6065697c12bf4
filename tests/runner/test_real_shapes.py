"""The shapes of published models: what is stated is what transformers builds, here without memory."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

from runner.models import ALL_MODELS, MODELS
from runner.real_shapes import REAL_SHAPES
from runner.weights import _CLASSES

NAMES = sorted(REAL_SHAPES)
# Parameters of the language model with its head untied, as its authors count them (billions), and 15 %.
BILLIONS = {"gemma-3-4b": 4.55, "gemma-3-12b": 12.8, "qwen2.5-vl-7b": 7.6, "qwen3-0.6b": 0.75}


@cache
def model_of(name: str) -> Any:
    spec = REAL_SHAPES[name]
    config_class, model_class = _CLASSES[spec.family]
    with torch.device("meta"):
        return model_class(config_class(**spec.hf_config))


def text_of(name: str) -> Any:
    model = model_of(name)
    return model.model.language_model if REAL_SHAPES[name].is_multimodal else model.model


@pytest.mark.parametrize("name", NAMES)
def test_the_stated_shape_is_that_of_the_built_model(name: str) -> None:
    spec, text = REAL_SHAPES[name], text_of(name)
    assert text.get_input_embeddings().weight.shape == (spec.vocab_size, spec.hidden_size)
    assert model_of(name).lm_head.weight.shape == (spec.vocab_size, spec.hidden_size)
    assert len(text.layers) == spec.num_layers
    for layer in text.layers:
        attention = layer.self_attn
        assert attention.q_proj.weight.shape == (spec.num_heads * spec.head_dim, spec.hidden_size)
        assert attention.k_proj.weight.shape == (spec.num_kv_heads * spec.head_dim, spec.hidden_size)
    config = model_of(name).config.get_text_config()
    assert (config.max_position_embeddings, config.eos_token_id) == (spec.max_position, spec.eos_token_id)


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_parameters_is_the_published_one(name: str) -> None:
    head = model_of(name).lm_head.weight.numel()
    count = sum(parameter.numel() for parameter in text_of(name).parameters()) + head
    assert math.isclose(count / 1e9, BILLIONS[name], rel_tol=0.15), f"{count / 1e9:.2f} billion"


@pytest.mark.parametrize("name", [name for name in NAMES if "gemma" in name])
def test_five_windows_then_one_full_attention(name: str) -> None:
    kinds = model_of(name).config.get_text_config().layer_types
    assert [index for index, kind in enumerate(kinds) if kind == "full_attention"] == list(
        range(5, len(kinds), 6)
    )
    assert model_of(name).config.get_text_config().sliding_window == REAL_SHAPES[name].sliding_window


@pytest.mark.parametrize("name", [name for name in NAMES if REAL_SHAPES[name].is_multimodal])
def test_an_image_takes_the_stated_rows(name: str) -> None:
    spec, config = REAL_SHAPES[name], model_of(name).config
    vision = spec.vision
    assert vision is not None
    if vision.patch_size:
        side = config.vision_config.patch_size * config.vision_config.spatial_merge_size
        assert (vision.image_height // side, vision.image_width // side) == (
            vision.grid_height,
            vision.grid_width,
        )
        assert config.image_token_id == vision.image_token_id
    else:
        assert vision.rows_per_image == config.mm_tokens_per_image
        assert vision.image_height == config.vision_config.image_size
        assert config.image_token_id == vision.image_token_id
    assert all(token < spec.vocab_size for token in spec.reserved_ids)


def test_no_name_is_given_twice() -> None:
    assert len(ALL_MODELS) == len(MODELS) + len(REAL_SHAPES)
    assert all(name == spec.name for name, spec in ALL_MODELS.items())
