"""The language model's forward under torch.compile, compiled for every step before there is any (torch).

Attention is not compiled: it is one operator, which finds the step's cache where the caller laid it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from runner.kernels.attention import PagedStep, as_rows, attend_rows

BACKEND = "inductor"
"""Of torch.compile."""

_STEP: ContextVar[PagedStep | None] = ContextVar("step", default=None)


@torch.library.custom_op(
    "stepcost::paged_attention",
    mutates_args=(),  # the cache is no argument: a step's layers are ordered by what they hand on
    schema="(Tensor query, Tensor key, Tensor value, int layer, float scaling, int window) -> Tensor",
)
def attend_in_step(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int, scaling: float, window: int
) -> torch.Tensor:
    """Paged attention in the current step; a `window` of 0 is none. Without a step all is zero."""
    step = _STEP.get()
    if step is None:
        return _output_of(query).zero_()
    rows = as_rows(query), as_rows(key), as_rows(value)
    return attend_rows(step, layer, *rows, scaling, window or None)[None].contiguous()


@attend_in_step.register_fake
def _shape_of_attention(query: torch.Tensor, *_others: object) -> torch.Tensor:
    return _output_of(query)


def _output_of(query: torch.Tensor) -> torch.Tensor:
    """[1, tokens, heads, head_dim] of queries [1, heads, tokens, head_dim]."""
    _, heads, tokens, head_dim = query.shape
    return query.new_empty(1, tokens, heads, head_dim)


class CompiledForward:
    """`forward` compiled whole: of positions [axes, tokens], and ids [tokens] or embeddings [tokens, hidden].

    `num_graphs` counts what was compiled: a number of tokens is no reason for another, except one alone.
    """

    def __init__(self, forward: Callable[..., torch.Tensor]) -> None:
        self.num_graphs = 0
        self._inner: Callable[..., Any] = torch._dynamo.lookup_backend(BACKEND)
        self._compiled = torch.compile(forward, fullgraph=True, backend=self._compile_graph)

    def __call__(
        self,
        step: PagedStep,
        positions: torch.Tensor,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
    ) -> torch.Tensor:
        token = _STEP.set(step)
        try:
            return self._compiled(_laid_out_plainly(positions), input_ids, inputs_embeds)
        finally:
            _STEP.reset(token)

    def warm_up(
        self, positions: torch.Tensor, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None
    ) -> None:
        """Compile what inputs like these need and is not there yet."""
        positions = _laid_out_plainly(positions)
        for tensor, dim in ((positions, 1), (input_ids, 0), (inputs_embeds, 0)):
            if tensor is not None and tensor.shape[dim] > 1:
                torch._dynamo.mark_dynamic(tensor, dim)
        self._compiled(positions, input_ids, inputs_embeds)

    def _compile_graph(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        self.num_graphs += 1
        return self._inner(graph, inputs)


def _laid_out_plainly(positions: torch.Tensor) -> torch.Tensor:
    """Some steps have them transposed; another layout would be compiled anew."""
    return positions.clone(memory_format=torch.contiguous_format)
