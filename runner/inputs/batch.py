"""InputBatch: the persistent rows of the host half, updated by differences between steps (numpy).

As in vLLM's V1 runner: a request keeps its row while it is scheduled in every step, a hole left by one that
went is filled by a newcomer, and remaining holes by moving the last rows down.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runner.config import RunnerConfig
from runner.core import RequestState, ScheduledRow, StepPlan


class InputBatch:
    """Rows [0, num_rows) are this step's requests, in row order.

    token_ids [max_num_seqs, max_model_len] int32; block_table [max_num_seqs, max_blocks_per_seq] int32;
    first, count, slots, num_blocks [max_num_seqs] int32.
    """

    def __init__(self, config: RunnerConfig) -> None:
        rows = config.max_num_seqs
        self.token_ids = np.zeros((rows, config.max_model_len), np.int32)
        self.block_table = np.zeros((rows, config.max_blocks_per_seq), np.int32)
        self.first = np.zeros(rows, np.int32)
        self.count = np.zeros(rows, np.int32)
        self.slots = np.zeros(rows, np.int32)
        self.num_blocks = np.zeros(rows, np.int32)
        self._num_known = [0] * rows
        self.request_ids: list[str] = []
        self.row_of: dict[str, int] = {}

    @property
    def num_rows(self) -> int:
        return len(self.request_ids)

    def update(self, plan: StepPlan, requests: Mapping[str, RequestState]) -> None:
        """Make the rows those of `plan`; `requests` gives tokens and block tables."""
        scheduled = {row.request_id for row in plan.rows}
        holes = [row for name, row in self.row_of.items() if name not in scheduled]
        for row in holes:
            del self.row_of[self.request_ids[row]]
        holes.sort(reverse=True)
        for entry in plan.rows:
            if entry.request_id not in self.row_of:
                self._add(entry, requests[entry.request_id], holes)
        self._condense(holes)
        for entry in plan.rows:
            self._refresh(entry, requests[entry.request_id])

    def _add(self, entry: ScheduledRow, state: RequestState, holes: list[int]) -> None:
        if holes:
            row = holes.pop()
            self.request_ids[row] = entry.request_id
        else:
            row = self.num_rows
            self.request_ids.append(entry.request_id)
        self.row_of[entry.request_id] = row
        prompt = state.request.prompt.token_ids
        self.token_ids[row, : len(prompt)] = prompt
        self._num_known[row] = len(prompt)
        self.num_blocks[row] = 0
        self.slots[row] = entry.slot

    def _condense(self, holes: list[int]) -> None:
        """Fill the holes left (largest first) with the last rows."""
        for hole in reversed(holes):
            while self.request_ids and self._is_hole(self.num_rows - 1):
                self.request_ids.pop()
            if hole >= self.num_rows:
                break
            self._move(self.num_rows - 1, hole)

    def _is_hole(self, row: int) -> bool:
        return self.row_of.get(self.request_ids[row]) != row

    def _move(self, source: int, target: int) -> None:
        name = self.request_ids.pop()
        known = self._num_known[source]
        blocks = self.num_blocks[source]
        self.request_ids[target] = name
        self.row_of[name] = target
        self.token_ids[target, :known] = self.token_ids[source, :known]
        self.block_table[target, :blocks] = self.block_table[source, :blocks]
        self._num_known[target] = known
        self.num_blocks[target] = blocks
        self.slots[target] = self.slots[source]

    def _refresh(self, entry: ScheduledRow, state: RequestState) -> None:
        """Bring a row's tokens and blocks up to what is known now."""
        row = self.row_of[entry.request_id]
        self.first[row] = entry.first
        self.count[row] = entry.num_tokens
        known, total = self._num_known[row], state.num_tokens
        if total > known:
            self.token_ids[row, known:total] = state.output_ids[known - state.num_prompt :]
            self._num_known[row] = total
        blocks = int(self.num_blocks[row])
        if len(state.block_ids) > blocks:
            self.block_table[row, blocks : len(state.block_ids)] = state.block_ids[blocks:]
            self.num_blocks[row] = len(state.block_ids)
