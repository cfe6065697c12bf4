"""A spec's transformers model: a preset with random weights, the same in every process, or a checkpoint.

Shared by the device half and by the oracle, so it holds nothing of how the runner computes: the model is
unmodified transformers, and only the values of its parameters are set here.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
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

from runner.core import RunnerError, first_line, usable_cores
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

_DRAWS = frozenset({torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default})


def build_model(spec: ModelSpec, dtype: torch.dtype = torch.float32) -> Any:
    """The spec's model on the CPU, in eval mode, without gradients. RunnerError: a damaged checkpoint."""
    if spec.checkpoint is not None:
        return _loaded(spec, dtype)
    model = _undrawn(spec)
    _fill(model.named_parameters(), spec, dtype)
    _round(model, dtype)
    return model.eval()


def build_embedding(spec: ModelSpec, dtype: torch.dtype = torch.float32) -> Any:
    """The input embedding of that model. Of a preset's weights no other is drawn, which takes as long as all
    of them for a large one.
    """
    if spec.checkpoint is not None:
        return _loaded(spec, dtype).get_input_embeddings()
    model = _undrawn(spec)
    embedding = model.get_input_embeddings()
    own = {id(parameter) for parameter in embedding.parameters()}
    _fill((item for item in model.named_parameters() if id(item[1]) in own), spec, dtype)
    _round(embedding, dtype)
    return embedding.eval()


def _loaded(spec: ModelSpec, dtype: torch.dtype) -> Any:
    """A checkpoint's model, ready to be computed with."""
    folder, model_class = spec.checkpoint, _CLASSES[spec.family][1]
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
    return model.requires_grad_(False).eval()


class _NothingDrawn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it zeros stand for what would be drawn at random.

    torch and transformers each draw a model's weights when it is made, on one core: of a large model that is
    minutes, for values that ours replace. Zeros and not whatever was there: some initialisers draw again
    until all values lie within bounds.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0].zero_() if func in _DRAWS else func(*args, **(kwargs or {}))


def _undrawn(spec: ModelSpec) -> Any:
    """A preset's model with zeros where values are drawn."""
    config_class, model_class = _CLASSES[spec.family]
    with _NothingDrawn():  # type: ignore[no-untyped-call]
        return model_class(config_class(**spec.hf_config)).requires_grad_(False)


def _round(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Parameters and the scale of embeddings to `dtype`; frequencies of RoPE stay float32, as transformers
    keeps them when it loads a checkpoint in 16 bits.
    """
    scales = (buffer for name, buffer in model.named_buffers() if name.endswith("embed_scale"))
    for tensor in (*model.parameters(), *scales):
        tensor.data = tensor.data.to(dtype)


def _fill(parameters: Iterable[tuple[str, torch.nn.Parameter]], spec: ModelSpec, dtype: torch.dtype) -> None:
    """Draw every matrix from its own generator, so that a value depends on name and seed alone: not on which
    core draws it, nor beside which others.
    """
    matrices: list[tuple[str, torch.nn.Parameter]] = []
    for name, parameter in parameters:
        if parameter.dim() >= 2:
            matrices.append((name, parameter))
        elif name.endswith("bias"):
            parameter.zero_()  # norm weights keep transformers' values
    is_inference = torch.is_inference_mode_enabled()

    def draw(item: tuple[str, torch.nn.Parameter]) -> None:
        with torch.inference_mode(is_inference):  # each thread has a mode of its own
            _draw(*item, spec, dtype)

    matrices.sort(key=lambda item: -item[1].numel())
    with ThreadPoolExecutor(usable_cores()) as pool:
        for _ in pool.map(draw, matrices):
            pass  # what one of them raises is raised here


def _draw(name: str, parameter: torch.nn.Parameter, spec: ModelSpec, dtype: torch.dtype) -> None:
    """In float32, then rounded at once: of a large model both together would not fit."""
    std = _PROJECTOR_STD if name.endswith(_PROJECTOR) else spec.weight_std
    generator = torch.Generator().manual_seed(spec.weight_seed ^ zlib.crc32(name.encode()))
    parameter.data = parameter.data.normal_(0.0, std, generator=generator).to(dtype)
