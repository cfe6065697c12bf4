"""The ways to bring looked-up and supplied rows together (torch). Each does exactly its own passes.

`where` is what vLLM's V1 runner does, pass by pass: no `out=` may make it cheaper than it is there. Flags are
bytes of 0 and 1, read as booleans without a pass of their own.
"""

from __future__ import annotations

import torch


def safe_ids_where(ids: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
    """ids [n] with 0 at supplied positions: a new tensor."""
    return torch.where(is_token.view(torch.bool), ids, 0)


def safe_ids_clamp(ids: torch.Tensor) -> torch.Tensor:
    """ids [n] with 0 for a negative id: a new tensor."""
    return ids.clamp(min=0)


def merge_where(looked_up: torch.Tensor, is_token: torch.Tensor, inputs_embeds: torch.Tensor) -> None:
    """An n x hidden `where` to a temporary, then a copy back."""
    inputs_embeds.copy_(torch.where(is_token.view(torch.bool)[:, None], looked_up, inputs_embeds))


def merge_copy(looked_up: torch.Tensor, inputs_embeds: torch.Tensor) -> None:
    """All rows looked up: one copy."""
    inputs_embeds.copy_(looked_up)


def merge_index(looked_up: torch.Tensor, token_index: torch.Tensor, inputs_embeds: torch.Tensor) -> None:
    """Looked-up rows [tokens, hidden] put at token_index [tokens]."""
    inputs_embeds[token_index] = looked_up


def merge_overlay(
    resident_rows: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    inputs_embeds: torch.Tensor,
) -> None:
    """Arena rows `source` written over rows `target` of inputs_embeds."""
    inputs_embeds.index_copy_(0, target, resident_rows.index_select(0, source))


def fused_index(
    ids: torch.Tensor, is_token: torch.Tensor, arena_rows: torch.Tensor, vocab_size: int
) -> torch.Tensor:
    """Row of the joint table of each position: its id's, or its arena row behind the vocabulary."""
    return torch.where(is_token, ids, vocab_size + arena_rows)


def merge_fused(table: torch.Tensor, index: torch.Tensor, inputs_embeds: torch.Tensor) -> None:
    """One gather from the joint table straight into the model's input: one read, one write."""
    torch.index_select(table, 0, index, out=inputs_embeds)
