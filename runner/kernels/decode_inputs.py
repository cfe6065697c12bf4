"""DecodeInputs: where the rows of a step of one token a row lie, in tensors that never move (torch).

A captured graph reads fixed addresses: these, and the device sides of the named buffers. Rows beyond a step's
own are padding: one position each, in a scratch block nobody else reads, of id 0.
"""

from __future__ import annotations

import torch

from runner.kernels.geometry import StepGeometry


class DecodeInputs:
    """Of `num_rows` rows, all of them padding until a step fills its own in; block `scratch` is theirs."""

    def __init__(
        self,
        num_rows: int,
        table_width: int,
        num_axes: int,
        block_size: int,
        scratch: int,
        device: torch.device,
    ) -> None:
        self._scratch, self._scratch_slot = scratch, scratch * block_size
        self.starts = torch.arange(num_rows + 1, device=device)
        self.first = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.ends = torch.ones(num_rows, dtype=torch.int64, device=device)
        self.block_table = torch.full((num_rows, table_width), scratch, dtype=torch.int32, device=device)
        self.slot_mapping = torch.full((num_rows,), self._scratch_slot, dtype=torch.int64, device=device)
        self.rope_positions = torch.zeros((num_axes, num_rows), dtype=torch.int64, device=device)

    @property
    def num_rows(self) -> int:
        return len(self.first)

    @property
    def scratch(self) -> int:
        return self._scratch

    def geometry(self, count: int) -> StepGeometry:
        """Views of the first `count` rows."""
        return StepGeometry(
            starts=self.starts[: count + 1],
            first=self.first[:count],
            ends=self.ends[:count],
            block_table=self.block_table[:count],
            slot_mapping=self.slot_mapping[:count],
            rope_positions=self.rope_positions[:, :count],
        )

    def fill(self, step: StepGeometry, input_ids: torch.Tensor) -> None:
        """Take a step's rows over, and make padding of all behind them, in `input_ids` too."""
        count, width = step.block_table.shape
        self.first[:count].copy_(step.first)
        self.ends[:count].copy_(step.ends)
        self.block_table[:count, :width].copy_(step.block_table)
        self.slot_mapping[:count].copy_(step.slot_mapping)
        self.rope_positions[:, :count].copy_(step.rope_positions)
        self.pad(count, input_ids)

    def pad(self, count: int, input_ids: torch.Tensor) -> None:
        """Make padding of the rows from `count` on."""
        self.first[count:].zero_()
        self.ends[count:].fill_(1)
        self.block_table[count:, :1].fill_(self._scratch)
        self.slot_mapping[count:].fill_(self._scratch_slot)
        self.rope_positions[:, count:].zero_()
        input_ids[count : self.num_rows].zero_()
