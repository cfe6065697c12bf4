"""Paged attention by torch.nn.attention.varlen, which is FlashAttention over a block table (torch >= 2.11).

Prefill chunks and decodes go in one launch; 16 bits only (runner.kernels.attention_choice).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from runner.core import AttentionName
from runner.kernels.geometry import StepGeometry, StepLimits
from runner.kernels.kvcache import KVCache


def has_block_table() -> bool:
    try:
        function = _varlen_attn()
    except (ImportError, AttributeError):
        return False
    return "block_table" in inspect.signature(function).parameters


def _varlen_attn() -> Callable[..., Any]:
    function: Callable[..., Any] = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    return function


@dataclass(frozen=True, slots=True)
class _VarlenStep:
    """`starts`, `ends` and `block_table` as int32, which the kernel wants: cast once a step."""

    geometry: StepGeometry
    cache: KVCache
    limits: StepLimits
    starts: torch.Tensor
    ends: torch.Tensor
    block_table: torch.Tensor

    def attend(self, layer: int, query: torch.Tensor, scaling: float, window: int | None) -> torch.Tensor:
        output: torch.Tensor = _varlen_attn()(
            query.contiguous(),
            self.cache.keys[layer],
            self.cache.values[layer],
            self.starts,
            None,
            self.limits.max_query,
            self.limits.max_context,
            scale=scaling,
            # How far to the left and right of itself a query sees, itself not counted.
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=query.shape[1] != self.cache.keys[layer].shape[2],
            seqused_k=self.ends,
            block_table=self.block_table,
        )
        return output


class VarlenAttention:
    name: AttentionName = "varlen"
    description = "varlen"
    can_be_captured = True

    def begin(self, geometry: StepGeometry, cache: KVCache, limits: StepLimits) -> _VarlenStep:
        starts, ends = geometry.starts.int(), geometry.ends.int()
        return _VarlenStep(geometry, cache, limits, starts, ends, geometry.block_table.int().contiguous())
