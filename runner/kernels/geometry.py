"""Where a step's rows lie: tensors on the device, and the few maxima the host knows beforehand (torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True, slots=True)
class StepGeometry:
    """Tensors on the device; nobody has to wait for their values.

    starts [rows + 1], first [rows] and ends [rows]: offset of each row among the packed tokens, position of
    its first new token, and its context length after the step. block_table [rows, width];
    slot_mapping [tokens] int64; rope_positions [axes, tokens] int64, one axis or three. key_ends [tokens]
    int64: the position behind the last that each token sees; None where that is its own for all of them.
    """

    starts: torch.Tensor
    first: torch.Tensor
    ends: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    rope_positions: torch.Tensor
    key_ends: torch.Tensor | None = None


class StepLimits(NamedTuple):
    """What a launch must be sized by. `max_query` tokens of a row and `max_context` positions at most, of
    which the latter may be more than any row has; `num_decodes` rows have one token.
    """

    max_query: int
    max_context: int
    num_decodes: int
