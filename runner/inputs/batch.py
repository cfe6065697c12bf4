"""InputBatch: the persistent rows of the host half, updated by differences between steps (numpy).

As in vLLM's V1 runner: a request keeps its row while it is scheduled in every step, a hole left by one that
went is filled by a newcomer, and remaining holes by moving the last rows down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.config import RunnerConfig
from runner.core import RequestState, ScheduledRow, StepPlan, SuppliedRows
from runner.inputs.float_bits import held_rows
from runner.inputs.rope_positions import prompt_positions
from runner.models import ModelSpec
from runner.slot_state import needs_of

IN_FLIGHT_ID = -1  # stands where a sampled id is still on the device only


class InputBatch:
    """Rows [0, num_rows) are this step's requests, in row order.

    token_ids [max_num_seqs, max_model_len] int32; is_token_ids, the same shape, bool: false at supplied
    positions; block_table [max_num_seqs, max_blocks_per_seq] int32; first, count, slots, num_blocks,
    rope_offset [max_num_seqs]; in_flight [max_num_seqs] bool: the row's last id of this step is known to
    the device only; has_mask: its supplied rows come with a mask; samples: its sampled tokens of this step
    count; num_drafts: so many of its last ids are guesses; is_guess: `first` is one, because it takes drafts
    in flight for right; needs: what it asks of the sampler; is_plain: it is greedy and asks nothing.
    supplied, rope: a row's supplied rows, as the host holds their type, and M-RoPE prompt positions, or None.

    A row given to a prompt of embeddings only keeps the ids of its last owner, as in vLLM's V1 runner,
    unless `clears_supplied_ids`, as in its V2 runner.
    """

    def __init__(self, model: ModelSpec, config: RunnerConfig, clears_supplied_ids: bool = False) -> None:
        rows = config.max_num_seqs
        self.token_ids = np.zeros((rows, config.max_model_len), np.int32)
        self.is_token_ids = np.ones((rows, config.max_model_len), np.bool_)
        self.block_table = np.zeros((rows, config.max_blocks_per_seq), np.int32)
        self.first = np.zeros(rows, np.int32)
        self.count = np.zeros(rows, np.int32)
        self.slots = np.zeros(rows, np.int32)
        self.num_blocks = np.zeros(rows, np.int32)
        self.rope_offset = np.zeros(rows, np.int64)
        self.in_flight = np.zeros(rows, np.bool_)
        self.has_mask = np.zeros(rows, np.bool_)
        self.samples = np.zeros(rows, np.bool_)
        self.num_drafts = np.zeros(rows, np.int32)
        self.needs = np.zeros(rows, np.int32)
        self.is_plain = np.ones(rows, np.bool_)
        self.supplied: list[NDArray[Any] | None] = [None] * rows
        self.rope: list[NDArray[np.int64] | None] = [None] * rows
        self.request_ids: list[str] = []
        self.row_of: dict[str, int] = {}
        self._model = model
        self._dtype = config.dtype
        self._speculates = config.num_speculative_tokens > 0
        self._clears_supplied_ids = clears_supplied_ids
        self._num_known = [0] * rows
        self._admission = [0] * rows  # preemptions a row's request had when it was added

    @property
    def num_rows(self) -> int:
        return len(self.request_ids)

    @property
    def is_guess(self) -> NDArray[np.bool_]:
        return self.in_flight if self._speculates else np.zeros_like(self.in_flight)

    @property
    def has_supplied(self) -> bool:
        """Whether any live request was admitted with embeddings, even if it decodes by now."""
        return any(rows is not None for rows in self.supplied)

    def update(self, plan: StepPlan, requests: Mapping[str, RequestState]) -> None:
        """Make the rows those of `plan`; `requests` gives tokens and block tables."""
        holes = self._remove_all_but({row.request_id for row in plan.rows}, requests)
        for entry in plan.rows:
            if entry.request_id not in self.row_of:
                self._add(entry, requests[entry.request_id], holes)
        self._condense(holes)
        if plan.rows:
            self._refresh(plan.rows, requests)

    def _remove_all_but(self, scheduled: set[str], requests: Mapping[str, RequestState]) -> list[int]:
        """Drop rows that rest, and those of requests preempted and resumed since; largest number first."""
        holes = [
            row
            for name, row in self.row_of.items()
            if name not in scheduled or requests[name].num_preemptions != self._admission[row]
        ]
        for row in holes:
            del self.row_of[self.request_ids[row]]
            self.supplied[row] = self.rope[row] = None
        return sorted(holes, reverse=True)

    def _add(self, entry: ScheduledRow, state: RequestState, holes: list[int]) -> None:
        if holes:
            row = holes.pop()
            self.request_ids[row] = entry.request_id
        else:
            row = self.num_rows
            self.request_ids.append(entry.request_id)
        self.row_of[entry.request_id] = row
        self.num_blocks[row] = 0
        self.slots[row] = entry.slot
        self._admission[row] = state.num_preemptions
        self.needs[row] = needs_of(state.request.sampling)
        self.is_plain[row] = state.request.sampling.is_plain
        self._write_prompt(row, state)

    def _write_prompt(self, row: int, state: RequestState) -> None:
        prompt = state.request.prompt
        self._num_known[row] = len(prompt)
        self.is_token_ids[row] = True
        self.has_mask[row] = prompt.embeds is not None and prompt.embeds.mask is not None
        if prompt.token_ids:
            self.token_ids[row, : len(prompt)] = prompt.token_ids
        if prompt.embeds is not None and self._reads_supplied(state):
            self._write_supplied(row, prompt.embeds)
        if self._model.rope == "mrope" and self._model.vision is not None:
            self.rope[row], self.rope_offset[row] = prompt_positions(state, self._model.vision)

    def _reads_supplied(self, state: RequestState) -> bool:
        """Whether supplied rows are still to be read: kept in the arena, they have a place unless the prefix
        cache gave every supplied position.
        """
        return not self._clears_supplied_ids or state.resident_first is not None

    def _write_supplied(self, row: int, embeds: SuppliedRows) -> None:
        assert embeds.dtype == self._dtype, f"supplied rows in {embeds.dtype}, the model in {self._dtype}"
        self.supplied[row] = held_rows(embeds)
        is_supplied = (
            np.ones(embeds.num_rows, np.bool_)
            if embeds.mask is None
            else np.frombuffer(embeds.mask, np.bool_)
        )
        self.is_token_ids[row, : embeds.num_rows] = ~is_supplied
        if self._clears_supplied_ids:
            self.token_ids[row, : embeds.num_rows][is_supplied] = 0

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
        self.request_ids[target] = name
        self.row_of[name] = target
        # Whole ids, unknown ones too: what a supplied position holds must be what it held before.
        for array in (
            self.token_ids,
            self.is_token_ids,
            self.slots,
            self.num_blocks,
            self.rope_offset,
            self.has_mask,
            self.needs,
            self.is_plain,
        ):
            array[target] = array[source]
        blocks = self.num_blocks[source]
        self.block_table[target, :blocks] = self.block_table[source, :blocks]
        self._num_known[target] = self._num_known[source]
        self._admission[target] = self._admission[source]
        self.supplied[target], self.supplied[source] = self.supplied[source], None
        self.rope[target], self.rope[source] = self.rope[source], None

    def _refresh(self, entries: Sequence[ScheduledRow], requests: Mapping[str, RequestState]) -> None:
        """Bring the rows' tokens and blocks up to what is known now.

        Whole columns at a time: setting one number of an array takes as long as setting a few hundred.
        """
        names, _, firsts, counts, samples, _, drafts = zip(*entries, strict=True)
        rows = np.asarray([self.row_of[name] for name in names])
        self.first[rows] = firsts
        self.count[rows] = counts
        self.samples[rows] = samples
        self.num_drafts[rows] = drafts
        states = [requests[name] for name in names]
        totals = [state.num_prompt + len(state.output_ids) for state in states]
        ends = (self.first[rows] + self.count[rows]).tolist()
        self._write_ids(rows.tolist(), states, totals)
        in_flight = [
            end - num_drafts > total for end, num_drafts, total in zip(ends, drafts, totals, strict=True)
        ]
        self.in_flight[rows] = in_flight
        self._write_unknown_ids(zip(rows.tolist(), states, totals, ends, drafts, in_flight, strict=True))
        self._write_blocks(rows.tolist(), states)

    def _write_ids(self, rows: list[int], states: list[RequestState], totals: list[int]) -> None:
        """Sampled ids that have become known; one a row, where no drafts were accepted."""
        single: list[tuple[int, int, int]] = []  # row, position, id
        for row, state, total in zip(rows, states, totals, strict=True):
            known = self._num_known[row]
            if total == known + 1:
                single.append((row, known, state.output_ids[-1]))
            elif total > known:
                self.token_ids[row, known:total] = state.output_ids[known - state.num_prompt :]
            self._num_known[row] = max(total, known)
        if single:
            at, positions, ids = zip(*single, strict=True)
            self.token_ids[list(at), list(positions)] = ids

    def _write_unknown_ids(self, rows: Iterable[tuple[int, RequestState, int, int, int, bool]]) -> None:
        """Ids only the device knows, and drafts; of each row (row, state, total, end, drafts, unknown)."""
        single: list[tuple[int, int]] = []
        for row, state, total, end, num_drafts, is_in_flight in rows:
            if is_in_flight and end == total + 1:
                single.append((row, total))
            elif is_in_flight:
                self.token_ids[row, total:end] = IN_FLIGHT_ID
            elif num_drafts:
                self.token_ids[row, total:end] = state.draft_ids[:num_drafts]
        if single:
            at, positions = zip(*single, strict=True)
            self.token_ids[list(at), list(positions)] = IN_FLIGHT_ID

    def _write_blocks(self, rows: list[int], states: list[RequestState]) -> None:
        num_blocks = self.num_blocks.tolist()
        for row, state in zip(rows, states, strict=True):
            known, total = num_blocks[row], len(state.block_ids)
            if total > known:
                self.block_table[row, known:total] = state.block_ids[known:]
                self.num_blocks[row] = total
