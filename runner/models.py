"""The preset table: small models for a CPU, and the shapes of published ones (runner/real_shapes.py).

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from runner.core import RunnerError
from runner.model_spec import ImageAttention as ImageAttention
from runner.model_spec import ModelSpec as ModelSpec
from runner.model_spec import VisionSpec as VisionSpec
from runner.real_shapes import REAL_SHAPES

_TINY_TEXT: dict[str, object] = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}

_TINY_GEMMA3_VISION = VisionSpec(
    image_token_id=4093,
    begin_token_id=4094,
    end_token_id=4095,
    image_height=112,
    image_width=112,
    grid_height=4,
    grid_width=4,
    channel_mean=(0.5, 0.5, 0.5),
    channel_std=(0.5, 0.5, 0.5),
)

# Weights of std 0.1 and an untied head keep greedy output diverse; transformers' default of 0.02, or a
# tied head, makes a random Gemma 3 repeat its last token, which would hide a wrong embedding.
TINY_GEMMA3_VL = ModelSpec(
    name="tiny-gemma3-vl",
    family="gemma3",
    hidden_size=256,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=4096,
    max_position=4096,
    eos_token_id=1,
    sliding_window=32,
    reserved_ids=frozenset({0, 1, 2, 4093, 4094, 4095}),
    vision=_TINY_GEMMA3_VISION,
    rope="1d",
    weight_std=0.1,
    weight_seed=20240601,
    hf_config={
        "text_config": {
            **_TINY_TEXT,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "query_pre_attn_scalar": 64,
        },
        "vision_config": {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 112,
            "patch_size": 14,
        },
        "mm_tokens_per_image": 16,
        "image_token_index": 4093,
        "boi_token_index": 4094,
        "eoi_token_index": 4095,
        "tie_word_embeddings": False,
    },
)

# As wide as a real model and as little else as possible: copies and merges of a step's rows are a share of
# it that can be seen on a CPU. Its vision tower is the tiny one.
_LARGE_WIDTH = 2560
LARGE_GEMMA3_VL = replace(
    TINY_GEMMA3_VL,
    name="large-gemma3-vl",
    hidden_size=_LARGE_WIDTH,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    weight_std=0.03,  # times the root of the width as much as the tiny one's, so that positions tell
    weight_seed=20240604,
    hf_config={
        **TINY_GEMMA3_VL.hf_config,
        "text_config": {
            **_TINY_TEXT,
            "hidden_size": _LARGE_WIDTH,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 64,
        },
    },
)

TINY_QWEN3 = ModelSpec(
    name="tiny-qwen3",
    family="qwen3",
    hidden_size=256,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=4096,
    max_position=4096,
    eos_token_id=1,
    sliding_window=None,
    reserved_ids=frozenset({0, 1, 2}),
    vision=None,
    rope="1d",
    weight_std=0.1,
    weight_seed=20240602,
    hf_config=dict(_TINY_TEXT),
)

# Not square, so that height and width positions cannot be confused.
_TINY_QWEN25_VISION = VisionSpec(
    image_token_id=4093,
    begin_token_id=4094,
    end_token_id=4095,
    image_height=112,
    image_width=168,
    grid_height=4,
    grid_width=6,
    channel_mean=(0.48145466, 0.4578275, 0.40821073),
    channel_std=(0.26862954, 0.26130258, 0.27577711),
    patch_size=14,
    merge_size=2,
)

TINY_QWEN25_VL = ModelSpec(
    name="tiny-qwen2.5-vl",
    family="qwen2.5-vl",
    hidden_size=256,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=4096,
    max_position=4096,
    eos_token_id=1,
    sliding_window=None,
    reserved_ids=frozenset({0, 1, 2, 4092, 4093, 4094, 4095}),
    vision=_TINY_QWEN25_VISION,
    rope="mrope",
    weight_std=0.1,
    weight_seed=20240603,
    hf_config={
        "text_config": {
            **{key: value for key, value in _TINY_TEXT.items() if key != "head_dim"},
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [8, 12, 12],
            },
        },
        "vision_config": {
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 256,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        "image_token_id": 4093,
        "video_token_id": 4092,
        "vision_start_token_id": 4094,
        "vision_end_token_id": 4095,
        "tie_word_embeddings": False,
    },
)

# Those that a CPU runs in seconds.
MODELS: Mapping[str, ModelSpec] = MappingProxyType(
    {spec.name: spec for spec in (TINY_GEMMA3_VL, TINY_QWEN25_VL, TINY_QWEN3, LARGE_GEMMA3_VL)}
)

ALL_MODELS: Mapping[str, ModelSpec] = MappingProxyType({**MODELS, **REAL_SHAPES})

_BOTH_WAYS = frozenset({"gemma3"})  # families whose images can attend in both directions


def get_model(name: str) -> ModelSpec:
    """The preset of that name; RunnerError lists the valid names."""
    try:
        return ALL_MODELS[name]
    except KeyError:
        raise RunnerError(f"no model {name!r}; known models: {', '.join(sorted(ALL_MODELS))}") from None


def with_image_attention(model: ModelSpec, wanted: ImageAttention | None) -> ModelSpec:
    """The model with its image rows attending so; None: as its spec says. RunnerError where it cannot."""
    if wanted is None:
        return model
    if wanted == "bidirectional" and model.family not in _BOTH_WAYS:
        reason = (
            "takes no images" if model.vision is None else "is none whose images attend in both directions"
        )
        raise RunnerError(f"image_attention is 'bidirectional', but {model.name} {reason}; remove it")
    return replace(model, image_attention=wanted)
