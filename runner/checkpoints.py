"""A checkpoint in a folder as transformers saves it: what its config.json says as a ModelSpec.

Reads no weights (runner/weights.py does). transformers' own config classes fill in what the file leaves out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from runner.core import RunnerError, first_line
from runner.model_spec import ModelSpec, VisionSpec

FAMILIES: Mapping[str, str] = {
    "llama": "llama",
    "qwen3": "qwen3",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3-text",
    "qwen2_5_vl": "qwen2.5-vl",
}
"""model_type of config.json -> family."""

_QWEN25_IMAGE_SIDE = 448
_QWEN25_MEAN = (0.48145466, 0.4578275, 0.40821073)
_QWEN25_STD = (0.26862954, 0.26130258, 0.27577711)
_GEMMA3_MEAN = _GEMMA3_STD = (0.5, 0.5, 0.5)


def checkpoint_spec(folder: Path) -> ModelSpec:
    """The model of a checkpoint's folder. RunnerError names the file and what is wrong with it."""
    path = folder / "config.json"
    try:
        stamp = path.stat().st_mtime_ns
    except OSError as error:
        hint = "; convert a GGUF file with python -m suite convert" if folder.suffix == ".gguf" else ""
        raise RunnerError(
            f"{path}: {error.strerror}; a checkpoint is a folder with config.json, as transformers saves "
            f"one{hint}"
        ) from None
    return _spec(folder.resolve(), stamp)


@cache
def _spec(folder: Path, _stamp: int) -> ModelSpec:
    family = _family(folder / "config.json")
    config = _config(folder)
    text = config.get_text_config()
    _check_is_causal(folder / "config.json", text)
    vision = _vision(folder / "config.json", family, config)
    mrope = family == "qwen2.5-vl"
    rope: Literal["1d", "mrope"] = "mrope" if mrope else "1d"
    kinds = set(getattr(text, "layer_types", None) or ())
    return ModelSpec(
        name=folder.name,
        family=family,
        hidden_size=text.hidden_size,
        num_layers=text.num_hidden_layers,
        num_heads=text.num_attention_heads,
        num_kv_heads=text.num_key_value_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        vocab_size=text.vocab_size,
        max_position=text.max_position_embeddings,
        eos_token_id=_eos(folder / "config.json", config),
        sliding_window=text.sliding_window if "sliding_attention" in kinds else None,
        reserved_ids=_reserved(config, text, vision),
        vision=vision,
        rope=rope,
        weight_std=0.0,
        weight_seed=0,
        hf_config=config.to_dict(),
        checkpoint=str(folder),
        # As its images were trained to attend.
        image_attention="bidirectional" if family == "gemma3" else "causal",
    )


def _family(path: Path) -> str:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunnerError(f"{path}: it is no JSON document ({error}); take it from the checkpoint") from None
    kind = str(data.get("model_type", "missing")) if isinstance(data, dict) else "missing"
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise RunnerError(f"{path}: model_type {kind!r} is no model this runner runs; it runs {known}")
    return FAMILIES[kind]


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises what its many parts raise
        raise RunnerError(
            f"{folder / 'config.json'}: transformers cannot read it: {first_line(error)}"
        ) from None


def _check_is_causal(path: Path, text: Any) -> None:
    """An encoder of Gemma's build, whose tokens see those behind them, generates nothing step by step."""
    if getattr(text, "use_bidirectional_attention", None) not in (None, False, "vision"):
        raise RunnerError(
            f"{path}: use_bidirectional_attention is {text.use_bidirectional_attention!r}: it is an encoder, "
            "and this runner generates; take the checkpoint of a decoder"
        )


def _eos(path: Path, config: Any) -> int:
    """Of the whole model, where its config says one, or of its text model."""
    eos = getattr(config, "eos_token_id", None)
    eos = config.get_text_config().eos_token_id if eos is None else eos
    first = eos[0] if isinstance(eos, list) and eos else eos
    if not isinstance(first, int):
        raise RunnerError(f"{path}: eos_token_id is {eos!r}; a runner must know when an output ends: set it")
    return first


def _reserved(config: Any, text: Any, vision: VisionSpec | None) -> frozenset[int]:
    ids: set[int] = set()
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        value = getattr(text, name, None)
        ids |= set(value) if isinstance(value, list) else {value} if isinstance(value, int) else set()
    if vision is not None:
        ids |= set(vision.placeholder_ids())
        video = getattr(config, "video_token_id", None)
        ids |= {video} if isinstance(video, int) else set()
    return frozenset(ids)


def _vision(path: Path, family: str, config: Any) -> VisionSpec | None:
    if family == "gemma3":
        return _gemma3_vision(path, config)
    return _qwen25_vision(config) if family == "qwen2.5-vl" else None


def _gemma3_vision(path: Path, config: Any) -> VisionSpec:
    """Images of the one size that its tower takes; its patches are averaged down to an image's rows."""
    vision = config.vision_config
    patches, wanted = vision.image_size // vision.patch_size, math.isqrt(config.mm_tokens_per_image)
    if not 1 <= wanted <= patches:
        raise RunnerError(
            f"{path}: mm_tokens_per_image is {config.mm_tokens_per_image}, and an image of "
            f"{vision.image_size} pixels has {patches} x {patches} patches; set it to {patches**2} at most"
        )
    grid = patches // (patches // wanted)
    return VisionSpec(
        image_token_id=config.image_token_id,
        begin_token_id=config.boi_token_index,
        end_token_id=config.eoi_token_index,
        image_height=vision.image_size,
        image_width=vision.image_size,
        grid_height=grid,
        grid_width=grid,
        channel_mean=_GEMMA3_MEAN,
        channel_std=_GEMMA3_STD,
    )


def _qwen25_vision(config: Any) -> VisionSpec:
    """Images of one size: the model takes any, and a run compares steps of equal ones."""
    vision = config.vision_config
    merge, patch = vision.spatial_merge_size, vision.patch_size
    side = math.floor(_QWEN25_IMAGE_SIDE / (patch * merge)) * patch * merge
    grid = side // (patch * merge)
    return VisionSpec(
        image_token_id=config.image_token_id,
        begin_token_id=config.vision_start_token_id,
        end_token_id=config.vision_end_token_id,
        image_height=side,
        image_width=side,
        grid_height=grid,
        grid_width=grid,
        channel_mean=_QWEN25_MEAN,
        channel_std=_QWEN25_STD,
        patch_size=patch,
        merge_size=merge,
    )
