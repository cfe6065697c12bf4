"""Published models' shapes, from their published configurations, for random weights of our own.

Standard library only. Two things differ from the checkpoints: the head is not tied to the embeddings, so that
greedy output of random weights is diverse (the matrix multiplication is the same), and image rows attend
causally unless a scenario says `image_attention: bidirectional`. They are meant for a GPU; nothing is loaded
from anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from runner.model_spec import ModelSpec, VisionSpec

_STD = 1.6  # of a token's embedding as a whole: weight_std is this over the root of the width


def _gemma3(
    name: str, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, seed: int
) -> ModelSpec:
    """Gemma 3: five layers of a window of 1,024, then one of full attention; 896 x 896 images of 256 rows."""
    image_token, begin, end, rows = 262_144, 255_999, 256_000, 256
    return ModelSpec(
        name=name,
        family="gemma3",
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=256,
        vocab_size=262_208,
        max_position=131_072,
        eos_token_id=1,
        sliding_window=1_024,
        reserved_ids=frozenset({0, 1, 2, image_token, begin, end}),
        vision=VisionSpec(
            image_token_id=image_token,
            begin_token_id=begin,
            end_token_id=end,
            image_height=896,
            image_width=896,
            grid_height=16,
            grid_width=16,
            channel_mean=(0.5, 0.5, 0.5),
            channel_std=(0.5, 0.5, 0.5),
        ),
        rope="1d",
        weight_std=_STD / hidden**0.5,
        weight_seed=seed,
        hf_config={
            "text_config": {
                "vocab_size": 262_208,
                "hidden_size": hidden,
                "intermediate_size": intermediate,
                "num_hidden_layers": layers,
                "num_attention_heads": heads,
                "num_key_value_heads": kv_heads,
                "head_dim": 256,
                "query_pre_attn_scalar": 256,
                "sliding_window": 1_024,
                "max_position_embeddings": 131_072,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
                },
                "tie_word_embeddings": False,
                "pad_token_id": 0,
                "eos_token_id": 1,
                "bos_token_id": 2,
            },
            "vision_config": {
                "hidden_size": 1_152,
                "intermediate_size": 4_304,
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "image_size": 896,
                "patch_size": 14,
            },
            "mm_tokens_per_image": rows,
            "image_token_index": image_token,
            "boi_token_index": begin,
            "eoi_token_index": end,
            "tie_word_embeddings": False,
        },
    )


QWEN25_VL_7B = ModelSpec(
    name="qwen2.5-vl-7b",
    family="qwen2.5-vl",
    hidden_size=3_584,
    num_layers=28,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    vocab_size=152_064,
    max_position=128_000,
    eos_token_id=151_645,
    sliding_window=None,
    reserved_ids=frozenset({151_643, 151_645, 151_652, 151_653, 151_655, 151_656}),
    # The model takes images of any size; ours are all 448 x 448, which makes 256 rows.
    vision=VisionSpec(
        image_token_id=151_655,
        begin_token_id=151_652,
        end_token_id=151_653,
        image_height=448,
        image_width=448,
        grid_height=16,
        grid_width=16,
        channel_mean=(0.48145466, 0.4578275, 0.40821073),
        channel_std=(0.26862954, 0.26130258, 0.27577711),
        patch_size=14,
        merge_size=2,
    ),
    rope="mrope",
    weight_std=_STD / 3_584**0.5,
    weight_seed=20240607,
    hf_config={
        "text_config": {
            "vocab_size": 152_064,
            "hidden_size": 3_584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 128_000,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1_000_000.0,
                "mrope_section": [16, 24, 24],
            },
            "tie_word_embeddings": False,
            "bos_token_id": 151_643,
            "eos_token_id": 151_645,
        },
        "vision_config": {
            "depth": 32,
            "hidden_size": 1_280,
            "intermediate_size": 3_420,
            "num_heads": 16,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 3_584,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
        "image_token_id": 151_655,
        "video_token_id": 151_656,
        "vision_start_token_id": 151_652,
        "vision_end_token_id": 151_653,
        "tie_word_embeddings": False,
    },
)

QWEN3_06B = ModelSpec(
    name="qwen3-0.6b",
    family="qwen3",
    hidden_size=1_024,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=151_936,
    max_position=40_960,
    eos_token_id=151_645,
    sliding_window=None,
    reserved_ids=frozenset({151_643, 151_645}),
    vision=None,
    rope="1d",
    weight_std=_STD / 1_024**0.5,
    weight_seed=20240608,
    hf_config={
        "vocab_size": 151_936,
        "hidden_size": 1_024,
        "intermediate_size": 3_072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "tie_word_embeddings": False,
        "bos_token_id": 151_643,
        "eos_token_id": 151_645,
    },
)

REAL_SHAPES: Mapping[str, ModelSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            _gemma3("gemma-3-4b", 2_560, 10_240, 34, 8, 4, 20240605),
            _gemma3("gemma-3-12b", 3_840, 15_360, 48, 16, 8, 20240606),
            QWEN25_VL_7B,
            QWEN3_06B,
        )
    }
)
