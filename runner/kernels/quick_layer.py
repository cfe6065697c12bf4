"""QuickLayer: a decoder layer of transformers in few operations, for a decode step on a CPU (torch).

The few rows of such a step are computed in microseconds: what a layer costs beyond its products is the number
of operations, and of modules called one by another. Values stay those of the layer, to float32's rounding.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from runner.kernels.attention import PagedStep, attend_rows
from runner.kernels.packed_linear import PackedLinear
from runner.kernels.quick_norm import QuickNorm, normed

_LAYERS = frozenset(
    {
        "LlamaDecoderLayer",
        "Qwen3DecoderLayer",
        "Qwen2_5_VLDecoderLayer",
        "Gemma3DecoderLayer",
    }
)
"""Classes of transformers whose arithmetic is that of `QuickLayer.forward`."""


class _HeadNorm(nn.Module):
    """The norms of queries and keys as one, over all of their heads; [tokens, heads, head_dim]."""

    def __init__(self, queries: QuickNorm, keys: QuickNorm, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        weights = [queries.weight.expand(num_heads, -1), keys.weight.expand(num_kv_heads, -1)]
        self._weight = torch.cat(weights)
        self._epsilon = queries.epsilon

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return normed(given, self._epsilon).mul_(self._weight)


class QuickLayer(nn.Module):
    """In the place of `layer`, whose weights it takes over in another layout."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self._layer = attention.layer_idx
        self._scaling = attention.scaling
        self._window = getattr(attention, "sliding_window", None)
        self._head_dim = attention.head_dim
        self._num_heads = attention.q_proj.out_features // self._head_dim
        num_kv_heads = attention.k_proj.out_features // self._head_dim
        self._num_rotated = self._num_heads + num_kv_heads
        self._before_attention = QuickNorm.of(layer.input_layernorm)
        self._qkv = PackedLinear.of([attention.q_proj, attention.k_proj, attention.v_proj])
        self._head_norm = _head_norm(attention, self._num_heads, num_kv_heads)
        self._out = PackedLinear.of([attention.o_proj])
        # Gemma 3 norms what a block gives as well; there the norm after attention is of that kind.
        is_normed_twice = hasattr(layer, "pre_feedforward_layernorm")
        before_mlp = layer.pre_feedforward_layernorm if is_normed_twice else layer.post_attention_layernorm
        self._after_attention = QuickNorm.of(layer.post_attention_layernorm) if is_normed_twice else None
        self._before_mlp = QuickNorm.of(before_mlp)
        self._gate_up = PackedLinear.of([mlp.gate_proj, mlp.up_proj])
        self._activate = mlp.act_fn
        self._down = PackedLinear.of([mlp.down_proj])
        self._after_mlp = QuickNorm.of(layer.post_feedforward_layernorm) if is_normed_twice else None

    @staticmethod
    def knows(layer: nn.Module) -> bool:
        """Whether its class is known, its norms are, and its linear layers are plain ones."""
        if type(layer).__name__ not in _LAYERS:
            return False
        norms = [part for name, part in layer.named_modules() if name.endswith("norm")]
        linears = [part for name, part in layer.named_modules() if name.endswith("_proj")]
        return all(map(QuickNorm.knows, norms)) and all(type(linear) is nn.Linear for linear in linears)

    def forward(
        self,
        hidden: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        paged_step: PagedStep | None = None,
        **_unused: object,  # transformers passes every layer what any layer may want
    ) -> torch.Tensor:
        """Hidden states [1, tokens, hidden], and the cosine and sine [1, tokens, head_dim] of positions.

        Without a step the model is being compiled, as in `paged_attention`.
        """
        attended = self._attend(self._before_attention(hidden), position_embeddings, paged_step)
        hidden = _added(hidden, self._out(attended), self._after_attention)
        gate, up = self._gate_up(self._before_mlp(hidden)).chunk(2, dim=-1)
        return _added(hidden, self._down(self._activate(gate) * up), self._after_mlp)

    def _attend(
        self,
        given: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        step: PagedStep | None,
    ) -> torch.Tensor:
        """[1, tokens, heads * head_dim]"""
        heads = self._qkv(given)[0].unflatten(-1, (-1, self._head_dim))
        queries_and_keys, values = heads[:, : self._num_rotated], heads[:, self._num_rotated :]
        if self._head_norm is not None:
            queries_and_keys = self._head_norm(queries_and_keys)
        rotated = _rotated(queries_and_keys, *position_embeddings)
        queries, keys = rotated[:, : self._num_heads], rotated[:, self._num_heads :]
        attended = attend_rows(step, self._layer, queries, keys, values, self._scaling, self._window)
        return attended.flatten(1)[None]


def _head_norm(attention: Any, num_heads: int, num_kv_heads: int) -> _HeadNorm | None:
    """None where a model has none."""
    if not hasattr(attention, "q_norm"):
        return None
    norms = (QuickNorm.of(attention.q_norm), QuickNorm.of(attention.k_norm))
    return _HeadNorm(*norms, num_heads, num_kv_heads)


def _rotated(given: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary positions of [tokens, heads, head_dim]: either half of a head with the other one's sine."""
    assert len(cosine) == 1, "positions of several axes are to be one by now"
    half = given.shape[-1] // 2
    sine = sine[0].unsqueeze(1)
    first, second = given[..., :half], given[..., half:]
    rotated = given * cosine[0].unsqueeze(1)
    rotated[..., :half].addcmul_(second, sine[..., :half], value=-1)
    rotated[..., half:].addcmul_(first, sine[..., half:])
    return rotated


def _added(hidden: torch.Tensor, block: torch.Tensor, norm: QuickNorm | None) -> torch.Tensor:
    """What a block gives is nobody else's: the sum is written there."""
    given = block if norm is None else norm(block)
    return cast(torch.Tensor, given).add_(hidden)
