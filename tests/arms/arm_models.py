"""Very small twins of the presets, for the tests that run a model hundreds of times. Holds no assertion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.models import TINY_GEMMA3_VL, TINY_QWEN3, TINY_QWEN25_VL, ModelSpec, VisionSpec


def vision_of(model: ModelSpec) -> VisionSpec:
    assert model.vision is not None
    return model.vision


def _text(model: ModelSpec, num_layers: int, **changes: object) -> dict[str, Any]:
    given: Any = model.hf_config.get("text_config", model.hf_config)
    return {
        **given,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        **changes,
    }


def _vision(model: ModelSpec, **changes: object) -> dict[str, Any]:
    given: Any = model.hf_config["vision_config"]
    return {**given, **changes}


_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 32,
    "weight_std": 0.2,
}

# One sliding and one full layer; an image of 28 x 28 pixels takes four rows.
MICRO_GEMMA3_VL = replace(
    TINY_GEMMA3_VL,
    name="micro-gemma3-vl",
    num_layers=2,
    sliding_window=8,
    vision=replace(vision_of(TINY_GEMMA3_VL), image_height=28, image_width=28, grid_height=2, grid_width=2),
    hf_config={
        **TINY_GEMMA3_VL.hf_config,
        "text_config": _text(
            TINY_GEMMA3_VL,
            2,
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
        ),
        "vision_config": _vision(
            TINY_GEMMA3_VL, hidden_size=32, intermediate_size=32, num_hidden_layers=1, image_size=28
        ),
        "mm_tokens_per_image": 4,
    },
    **_SIZES,
)

# The same weights; an image's rows attend to one another in both directions, as in Gemma 3's checkpoints.
MICRO_BOTH_WAYS = replace(MICRO_GEMMA3_VL, name="micro-gemma3-vl-both-ways", image_attention="bidirectional")

MICRO_QWEN3 = replace(
    TINY_QWEN3, name="micro-qwen3", num_layers=1, hf_config=_text(TINY_QWEN3, 1, head_dim=32), **_SIZES
)

# An image of 56 x 84 pixels takes a grid of 2 x 3 rows.
MICRO_QWEN25_VL = replace(
    TINY_QWEN25_VL,
    name="micro-qwen2.5-vl",
    num_layers=1,
    vision=replace(vision_of(TINY_QWEN25_VL), image_height=56, image_width=84, grid_height=2, grid_width=3),
    hf_config={
        **TINY_QWEN25_VL.hf_config,
        "text_config": _text(
            TINY_QWEN25_VL,
            1,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]},
        ),
        "vision_config": _vision(
            TINY_QWEN25_VL,
            depth=1,
            hidden_size=32,
            intermediate_size=32,
            out_hidden_size=64,
            fullatt_block_indexes=[0],
        ),
    },
    **_SIZES,
)

TINY = (TINY_GEMMA3_VL, TINY_QWEN25_VL, TINY_QWEN3)
MICRO = (MICRO_GEMMA3_VL, MICRO_QWEN25_VL, MICRO_QWEN3)
