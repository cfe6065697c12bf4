"""Writes a step's arrays into the host sides of its buffers (numpy). Knows layouts, not arms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner import slot_state
from runner.commands import MetadataLayout, RowFlag
from runner.config import RunnerConfig
from runner.core import RequestState, StepPlan
from runner.inputs.batch import InputBatch
from runner.inputs.float_bits import held_rows
from runner.inputs.routes import SampledRoute

HostBuffers = Mapping[str, NDArray[Any]]


class PackedStep:
    """Where a step's tokens lie: computed once, read by everything that writes or plans.

    starts [rows + 1] int32: offset of each row among the packed tokens. flat [tokens]: index of each token
    in the flattened rows. is_token [tokens] bool. supplied [k] int32: packed offsets of supplied positions.
    """

    __slots__ = ("batch", "flat", "is_token", "num_tokens", "starts", "supplied")

    def __init__(self, batch: InputBatch, config: RunnerConfig) -> None:
        rows = batch.num_rows
        self.batch = batch
        self.starts = np.zeros(rows + 1, np.int32)
        np.cumsum(batch.count[:rows], out=self.starts[1:])
        self.num_tokens = int(self.starts[-1])
        offsets = np.arange(rows, dtype=np.int64) * config.max_model_len
        offsets += batch.first[:rows] - self.starts[:-1]
        self.flat = np.repeat(offsets, batch.count[:rows]) + np.arange(self.num_tokens)
        self.is_token = batch.is_token_ids.reshape(-1)[self.flat]
        self.supplied = np.flatnonzero(~self.is_token).astype(np.int32)

    def chunks(self) -> list[tuple[int, int, int, int]]:
        """(row, first position, first offset, tokens) of each row that has supplied rows in this step."""
        found = []
        for row in range(self.batch.num_rows):
            rows = self.batch.supplied[row]
            first = int(self.batch.first[row])
            if rows is not None and first < len(rows):
                count = min(int(self.batch.count[row]), len(rows) - first)
                found.append((row, first, int(self.starts[row]), count))
        return found


def write_ids(host: HostBuffers, step: PackedStep) -> None:
    np.take(step.batch.token_ids.reshape(-1), step.flat, out=host["input_ids"][: step.num_tokens])


def write_flags(host: HostBuffers, step: PackedStep) -> None:
    host["is_token_ids"][: step.num_tokens] = step.is_token


def write_embeds(host: HostBuffers, step: PackedStep) -> None:
    """Each chunk's supplied rows at their packed offsets; what lies between is left as it is."""
    for row, first, offset, count in step.chunks():
        rows = step.batch.supplied[row]
        assert rows is not None
        host["inputs_embeds"][offset : offset + count] = rows[first : first + count]


def write_packed_rows(host: HostBuffers, step: PackedStep) -> None:
    """The supplied rows only, one after another, in the order of `step.supplied`."""
    filled = 0
    for row, first, offset, count in step.chunks():
        rows = step.batch.supplied[row]
        assert rows is not None
        chosen = rows[first : first + count][~step.is_token[offset : offset + count]]
        host["supplied_rows"][filled : filled + len(chosen)] = chosen
        filled += len(chosen)
    assert filled == len(step.supplied)


def write_token_index(host: HostBuffers, step: PackedStep) -> int:
    """Packed offsets of token positions; how many there are."""
    index = np.flatnonzero(step.is_token)
    host["token_index"][: len(index)] = index
    return len(index)


def write_rope(host: HostBuffers, step: PackedStep) -> None:
    """M-RoPE positions [tokens, 3]: a prompt's own, then the index plus the prompt's offset."""
    batch, target = step.batch, host["rope_positions"][: step.num_tokens]
    rows = batch.num_rows
    shift = batch.first[:rows] - step.starts[:-1] + batch.rope_offset[:rows]
    target[:] = (np.repeat(shift, batch.count[:rows]) + np.arange(step.num_tokens))[:, None]
    for row in range(rows):
        prompt, first = batch.rope[row], int(batch.first[row])
        if prompt is not None and first < len(prompt):
            count = min(int(batch.count[row]), len(prompt) - first)
            offset = int(step.starts[row])
            target[offset : offset + count] = prompt[first : first + count]


def write_pixels(host: HostBuffers, plan: StepPlan, requests: Mapping[str, RequestState]) -> None:
    for item, encode in enumerate(plan.encodes):
        image = requests[encode.request_id].request.prompt.images[encode.image]
        host["pixels"][item] = np.frombuffer(image.data, np.uint8).reshape(image.shape)


def write_residents(host: HostBuffers, plan: StepPlan, requests: Mapping[str, RequestState]) -> None:
    """Newcomers' supplied rows and masks, at their places in the arena."""
    for item in plan.residents:
        embeds = requests[item.request_id].request.prompt.embeds
        assert embeds is not None
        places = slice(item.first, item.first + item.num_rows)
        host["resident_rows"][places] = held_rows(embeds)
        if embeds.mask is not None:
            host["resident_mask"][places] = np.frombuffer(embeds.mask, np.uint8)


def write_metadata(
    target: NDArray[np.int32],
    layout: MetadataLayout,
    step: PackedStep,
    route: SampledRoute,
    place_source: NDArray[np.int32],
    resident_first: NDArray[np.int32],
    images: NDArray[np.int32],
) -> None:
    """Pack a step's small integers; `resident_first` [rows] is -1 for a row without an arena place.

    `images` [2, num_images]: the packed offsets of each image's first row, in order, and behind its last.
    """
    batch, rows = step.batch, layout.num_rows
    target[: rows + 1] = step.starts
    target[layout.num_computed : layout.slots] = batch.first[:rows]
    target[layout.slots : layout.block_table] = batch.slots[:rows]
    table = target[layout.block_table : layout.route_target].reshape(rows, layout.table_width)
    table[:] = batch.block_table[:rows, : layout.table_width]
    target[layout.route_target : layout.route_source] = route.target
    target[layout.route_source : layout.place_target] = route.source
    if layout.num_placed:
        target[layout.place_target : layout.place_source] = step.supplied
        target[layout.place_source : layout.supplied_length] = place_source
    if layout.derives_flags:
        lengths = [0 if given is None else len(given) for given in batch.supplied[:rows]]
        target[layout.supplied_length : layout.resident_first] = lengths
        target[layout.resident_first : layout.has_mask] = resident_first
        target[layout.has_mask : layout.row_flags] = batch.has_mask[:rows]
    if layout.by_slot:
        target[layout.row_flags : layout.row_drafts] = _row_flags(batch)
        target[layout.row_drafts : layout.draft_target] = batch.num_drafts[:rows]
    target[layout.draft_target : layout.draft_source] = route.draft_target
    target[layout.draft_source : layout.image_first] = route.draft_source
    target[layout.image_first : layout.size] = images.reshape(-1)


def _row_flags(batch: InputBatch) -> NDArray[np.int32]:
    rows = batch.num_rows
    flags = batch.samples[:rows] * np.int32(RowFlag.SAMPLES)
    flags |= ~batch.is_plain[:rows] * np.int32(RowFlag.HAS_PARAMS)
    flags |= batch.is_guess[:rows] * np.int32(RowFlag.ON_DEVICE)
    return flags


def write_params(host: HostBuffers, slot: int, state: RequestState, eos_token_id: int) -> None:
    """A newcomer's sampling parameters."""
    host["sampling_reals"][slot] = slot_state.real_row(state.request.sampling)
    host["sampling_wholes"][slot] = slot_state.whole_row(state, eos_token_id)


def write_history(host: HostBuffers, slot: int, state: RequestState) -> None:
    """A newcomer's ids so far."""
    history = slot_state.history_of(state)
    host["token_history"][slot, : len(history)] = history
