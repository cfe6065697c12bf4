"""Which attention backend a device gets: what was asked for, or the best it can do (torch)."""

from __future__ import annotations

import importlib.util
import os

import torch

from runner.config import RunnerConfig
from runner.core import AttentionName, RunnerError
from runner.kernels.attention import AttentionBackend
from runner.kernels.sdpa_attention import SdpaAttention
from runner.models import ModelSpec

_VARLEN_BLOCK = 256  # FlashAttention 2's pages are multiples of this
_VARLEN_MAX_HEAD_DIM = 256


def choose_attention(
    config: RunnerConfig, model: ModelSpec, dtype: torch.dtype, device: torch.device
) -> AttentionBackend:
    """RunnerError where the one asked for is not possible here.

    `auto`: on a GPU our own kernels, or what torch has for 16 bits; on a CPU, torch's reference.
    """
    if config.attention != "auto":
        reason = why_not(config.attention, config, model, dtype, device)
        if reason is not None:
            raise RunnerError(
                f"runner.attention is {config.attention!r}, but {reason}; use 'auto' or another of "
                "sdpa, varlen, triton"
            )
        return _make(config.attention)
    order: tuple[AttentionName, ...] = ("triton", "varlen") if device.type == "cuda" else ()
    possible = (name for name in order if why_not(name, config, model, dtype, device) is None)
    return _make(next(possible, "sdpa"))


def why_not(
    name: AttentionName, config: RunnerConfig, model: ModelSpec, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why a backend is not possible, or None."""
    if name == "triton":
        return _why_not_triton(device)
    return _why_not_varlen(config, model, dtype, device) if name == "varlen" else None


def _why_not_triton(device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed (pip install triton)"
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"its kernels run on a GPU, and this device is a {device.type.upper()}"
    return None


def _why_not_varlen(
    config: RunnerConfig, model: ModelSpec, dtype: torch.dtype, device: torch.device
) -> str | None:
    if device.type != "cuda":
        return f"FlashAttention runs on a GPU, and this device is a {device.type.upper()}"
    if not varlen_is_paged():
        return f"torch {torch.__version__} has no varlen_attn with a block table"
    if model.attends_both_ways:
        return f"it has no mask for images of {model.name} that attend in both directions (image_attention)"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"FlashAttention computes in 16 bits, and the model is in {dtype}".replace("torch.", "")
    if config.block_size % _VARLEN_BLOCK:
        return f"its blocks are multiples of {_VARLEN_BLOCK} positions, and runner.block_size is " + str(
            config.block_size
        )
    if model.head_dim > _VARLEN_MAX_HEAD_DIM:
        return f"its heads have {_VARLEN_MAX_HEAD_DIM} elements at most, and {model.name}'s {model.head_dim}"
    return None


def varlen_is_paged() -> bool:
    """Whether the installed torch has varlen_attn with a block table."""
    from runner.kernels.varlen_attention import has_block_table

    return has_block_table()


def _make(name: AttentionName) -> AttentionBackend:
    # Imported here: the product works without triton, and with a torch that has no varlen_attn.
    if name == "triton":
        from runner.kernels.triton_attention import TritonAttention

        return TritonAttention()
    if name == "varlen":
        from runner.kernels.varlen_attention import VarlenAttention

        return VarlenAttention()
    return SdpaAttention()
