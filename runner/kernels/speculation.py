"""Draft tokens: proposed by prompt lookup, and verified against what was sampled (torch).

Everything stays on the device: no number of accepted tokens is waited for.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from runner.slot_state import NO_ID


class Expanded(NamedTuple):
    """Rows spread over what is sampled of them: a row of d drafts takes its last d + 1 positions.

    row, within, offset [num_logits]: the row of each sampled position, its place in the row, and its offset
    among the packed tokens.
    """

    row: torch.Tensor
    within: torch.Tensor
    offset: torch.Tensor


def expand(starts: torch.Tensor, num_drafts: torch.Tensor, num_logits: int) -> Expanded:
    """The sampled positions of packed rows; starts [rows + 1], num_drafts [rows], both int64."""
    row = torch.repeat_interleave(1 + num_drafts, output_size=num_logits)
    ends = (1 + num_drafts).cumsum(0)
    within = torch.arange(num_logits, device=starts.device) - (ends - 1 - num_drafts)[row]
    return Expanded(row, within, (starts[1:] - 1 - num_drafts)[row] + within)


def accept(
    tokens: torch.Tensor, ids: torch.Tensor, expanded: Expanded, num_rows: int, max_drafts: int
) -> torch.Tensor:
    """[rows, 1 + max_drafts] int64: each row's tokens up to the first its drafts did not foresee, then NO_ID.

    tokens [num_logits]: sampled; ids: the packed input ids, whose drafts stand one behind the position that
    foresees them. The token sampled where a draft turns out wrong is right: it follows right ones only.
    """
    shape = (num_rows, 1 + max_drafts)
    sampled = torch.full(shape, NO_ID, dtype=torch.long, device=tokens.device)
    sampled[expanded.row, expanded.within] = tokens
    foreseen = torch.full(shape, NO_ID - 1, dtype=torch.long, device=tokens.device)
    # A row's first id is no draft: moved to the end, where nothing is compared.
    foreseen[expanded.row, expanded.within - 1] = ids[expanded.offset].long()
    is_right = (sampled == foreseen)[:, :max_drafts]
    num_right = is_right.long().cumprod(dim=1).sum(dim=1)
    places = torch.arange(1 + max_drafts, device=tokens.device)
    return sampled.where(places <= num_right[:, None], NO_ID)


def propose(
    history: torch.Tensor, lengths: torch.Tensor, max_drafts: int, shortest: int, longest: int
) -> torch.Tensor:
    """[rows, max_drafts] int32: what followed the last earlier occurrence of each row's last tokens.

    history [rows, width] int32, NO_ID where a position has no id; lengths [rows]: ids of each row. Of the
    last `longest` tokens, or of fewer down to `shortest` where those never occurred before. NO_ID from the
    first token that is not there: where nothing occurred before, or where a prompt of embeddings has no ids.
    Prompt lookup decoding: A. Saxena, 2023.
    """
    rows, width = history.shape
    places = torch.arange(width, device=history.device)
    # Matches end before the last token: what follows them must be known.
    begin = torch.full((rows,), -1, dtype=torch.long, device=history.device)
    for length in range(shortest, longest + 1):
        found = _last_occurrence(history, lengths, places, length)
        begin = torch.where(found >= 0, found + length, begin)
    wanted = begin[:, None] + torch.arange(max_drafts, device=history.device)
    drafts = history.gather(1, wanted.clamp(0, width - 1))
    is_there = (begin[:, None] >= 0) & (wanted < lengths[:, None]) & (drafts >= 0)
    return drafts.where(is_there.long().cumprod(dim=1).bool(), NO_ID)


def _last_occurrence(
    history: torch.Tensor, lengths: torch.Tensor, places: torch.Tensor, length: int
) -> torch.Tensor:
    """[rows] where the row's last `length` tokens stood last before, or -1."""
    width = history.shape[1]
    matches = places < (lengths - length)[:, None]
    for index in range(length):
        last = history.gather(1, (lengths - length + index).clamp(0)[:, None])
        shifted = history[:, (places + index).clamp(max=width - 1)]
        matches = matches & (shifted == last) & (last >= 0)
    return torch.where(matches, places, -1).amax(dim=1)
