"""A spec's transformers model: a preset with random weights, the same in every process, or a checkpoint.

Shared by the device half and by the oracle, so it holds nothing of how the runner computes: the model is
unmodified transformers, and only the values of its parameters are set here.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from transformers import (
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging as hf_logging

from runner.core import RunnerError, first_line
from runner.model_spec import ModelSpec

_CLASSES: dict[str, tuple[Any, Any]] = {
    "gemma3": (Gemma3Config, Gemma3ForConditionalGeneration),
    "gemma3-text": (Gemma3TextConfig, Gemma3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2.5-vl": (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}

# transformers initialises Gemma 3's image projector to zeros, which gives every image the same rows; this
# spread gives image rows about the size of text embeddings (weight_std * sqrt(hidden_size)).
_PROJECTOR = "multi_modal_projector.mm_input_projection_weight"
_PROJECTOR_STD = 0.2


def build_model(spec: ModelSpec, dtype: torch.dtype = torch.float32) -> Any:
    """The spec's model on the CPU, in eval mode, without gradients. RunnerError: a damaged checkpoint."""
    config_class, model_class = _CLASSES[spec.family]
    if spec.checkpoint is not None:
        return _loaded(model_class, spec.checkpoint, dtype).requires_grad_(False).eval()
    model = model_class(config_class(**spec.hf_config))
    _fill(model, spec)
    _round(model, dtype)
    return model.eval()


def _loaded(model_class: Any, folder: str, dtype: torch.dtype) -> Any:
    hf_logging.disable_progress_bar()  # a worker's standard error is for errors
    try:
        model, told = model_class.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # transformers and safetensors raise what they meet
        raise RunnerError(f"{folder}: its weights cannot be loaded: {first_line(error)}") from None
    missing = sorted(told["missing_keys"])
    if missing:  # transformers would draw them at random, and say so only in a log
        raise RunnerError(f"{folder}: {len(missing)} weights are not there, the first {missing[0]}")
    return model


def _round(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Parameters and the scale of embeddings to `dtype`; frequencies of RoPE stay float32, as transformers
    keeps them when it loads a checkpoint in 16 bits.
    """
    scales = (buffer for name, buffer in model.named_buffers() if name.endswith("embed_scale"))
    for tensor in (*model.parameters(), *scales):
        tensor.data = tensor.data.to(dtype)


def _fill(model: torch.nn.Module, spec: ModelSpec) -> None:
    """Draw every matrix from its own generator, so that a value depends on name and seed alone."""
    for name, parameter in model.requires_grad_(False).named_parameters():
        if parameter.dim() < 2:
            if name.endswith("bias"):
                parameter.zero_()  # some are drawn from torch's global generator
            continue  # norm weights keep transformers' values
        std = _PROJECTOR_STD if name.endswith(_PROJECTOR) else spec.weight_std
        generator = torch.Generator().manual_seed(spec.weight_seed ^ zlib.crc32(name.encode()))
        parameter.normal_(0.0, std, generator=generator)
