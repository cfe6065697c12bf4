"""Paged attention over packed variable-length rows, for transformers' layers and our own (torch).

Each row of a step is one request: its new tokens' queries attend to its whole context in the paged cache.
How that is computed is a backend's: `PagedStep` is what it makes of one step.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch

from runner.core import AttentionName
from runner.kernels.geometry import StepGeometry, StepLimits
from runner.kernels.kvcache import KVCache

ATTENTION_NAME = "stepcost_paged"


class PagedStep(Protocol):
    """One step's view of the cache."""

    @property
    def geometry(self) -> StepGeometry: ...

    @property
    def cache(self) -> KVCache: ...

    def attend(self, layer: int, query: torch.Tensor, scaling: float, window: int | None) -> torch.Tensor:
        """Attention of packed queries [tokens, heads, head_dim]: the same shape.

        A query sees the positions of its row up to its own, or before its key end where there are key ends
        and, under a `window`, no more than that many back from its own, which counts.
        """
        ...


class AttentionBackend(Protocol):
    """A way to compute attention; `name` is what forces it, `description` what a record says.

    `can_be_captured`: its host half reads nothing of the device, as in a captured graph nothing may.
    """

    name: AttentionName
    description: str
    can_be_captured: bool

    def begin(self, geometry: StepGeometry, cache: KVCache, limits: StepLimits) -> PagedStep: ...


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    paged_step: PagedStep | None = None,
    sliding_window: int | None = None,
    **_unused: object,  # transformers passes every model's extras to every attention function
) -> tuple[torch.Tensor, None]:
    """Attention of packed queries [1, heads, tokens, head_dim] over the paged cache.

    Writes key and value [1, kv_heads, tokens, head_dim] first. Returns [1, tokens, heads, head_dim]. Without
    a step the model is being compiled, and an operator stands for all of this (compiled_forward.py).
    """
    layer = module.layer_idx
    assert isinstance(layer, int)
    rows = as_rows(query), as_rows(key), as_rows(value)
    return attend_rows(paged_step, layer, *rows, scaling, sliding_window)[None], None


def as_rows(given: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, head_dim] of [1, heads, tokens, head_dim]."""
    return given[0].transpose(0, 1)


def attend_rows(
    step: PagedStep | None,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    """Attention of query [tokens, heads, head_dim] over the paged cache, which takes key and value first.

    Those are [tokens, kv_heads, head_dim]; returns [tokens, heads, head_dim]. Without a step, that operator.
    """
    if step is None:
        by_head = (given.transpose(0, 1)[None] for given in (query, key, value))
        attended = torch.ops.stepcost.paged_attention(*by_head, layer, scaling, window or 0)
        return cast(torch.Tensor, attended[0])
    step.cache.write(layer, key, value, step.geometry.slot_mapping)
    return step.attend(layer, query, scaling, window)
