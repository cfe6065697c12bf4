"""A step's inputs in our own Triton kernels: where a decode step's rows lie in one launch, and `overlay`.

Each equals the torch operations it stands for (runner/kernels/program.py, decode_inputs.py, merge.py): they
move and add whole numbers, or copy elements of any type.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from runner.commands import MetadataLayout, RowFlag
from runner.kernels.decode_inputs import DecodeInputs

_COLUMNS = 64  # of a block table, copied at once
_MAX_ELEMENTS = 1024  # of a row of embeddings, copied at once


class GivenRows(NamedTuple):
    """What a decode step's rows are found from: the packed metadata and its layout; `computed` [slots];
    `rope` [tokens, 3] from the host, or None; `sampled`, the last step's ids to be routed, or None.
    """

    packed: torch.Tensor
    layout: MetadataLayout
    computed: torch.Tensor
    rope: torch.Tensor | None
    sampled: torch.Tensor | None


# Offsets change from step to step: each alignment of each would be a compilation of its own.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=[
        "num_rows",
        "num_routed",
        "table_width",
        "num_computed_at",
        "slots_at",
        "table_at",
        "target_at",
        "source_at",
        "flags_at",
        "scratch",
    ]
)
def decode_inputs_kernel(  # type: ignore[no-untyped-def]
    packed,
    computed,
    given_rope,
    sampled,
    first,
    ends,
    block_table,
    slot_mapping,
    rope,
    input_ids,
    num_rows,
    num_routed,
    table_width,
    num_computed_at,
    slots_at,
    table_at,
    target_at,
    source_at,
    flags_at,
    own_width,
    total_rows,
    scratch,
    BLOCK_SIZE: tl.constexpr,
    BY_SLOT: tl.constexpr,
    ON_DEVICE: tl.constexpr,
    HAS_ROPE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One row: its position, context, slot and block table; or a row of padding; and one routed id."""
    row = tl.program_id(0)
    if row < num_routed:
        target = tl.load(packed + target_at + row)
        tl.store(input_ids + target, tl.load(sampled + tl.load(packed + source_at + row)))
    if row < num_rows:
        planned = tl.load(packed + num_computed_at + row).to(tl.int64)
        position = planned
        if BY_SLOT:
            known = tl.load(computed + tl.load(packed + slots_at + row))
            is_on_device = (tl.load(packed + flags_at + row) & ON_DEVICE) != 0
            position = tl.where(is_on_device, known, planned)
        table = packed + table_at + row * table_width
        block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
        tl.store(first + row, position)
        tl.store(ends + row, position + 1)
        tl.store(slot_mapping + row, block * BLOCK_SIZE + position % BLOCK_SIZE)
        if HAS_ROPE:
            lag = planned - position
            for axis in tl.static_range(3):
                tl.store(rope + axis * total_rows + row, tl.load(given_rope + row * 3 + axis) - lag)
        else:
            tl.store(rope + row, position)
        for begin in range(0, table_width, COLUMNS):
            column = begin + tl.arange(0, COLUMNS)
            is_there = column < table_width
            tl.store(block_table + row * own_width + column, tl.load(table + column, mask=is_there), is_there)
    else:
        tl.store(first + row, 0)
        tl.store(ends + row, 1)
        tl.store(slot_mapping + row, scratch.to(tl.int64) * BLOCK_SIZE)
        tl.store(block_table + row * own_width, scratch)
        tl.store(rope + row, 0)
        if HAS_ROPE:
            tl.store(rope + total_rows + row, 0)
            tl.store(rope + 2 * total_rows + row, 0)
        tl.store(input_ids + row, 0)


def fill_decode_inputs(
    inputs: DecodeInputs, given: GivenRows, input_ids: torch.Tensor, block_size: int
) -> None:
    """A decode step's rows into `inputs`, padding behind them, and its routed ids: one launch."""
    layout = given.layout
    # Not read where it is None, but a pointer all the same.
    rope = inputs.rope_positions if given.rope is None else given.rope
    sampled = input_ids if given.sampled is None else given.sampled
    decode_inputs_kernel[(inputs.num_rows,)](
        given.packed,
        given.computed,
        rope,
        sampled,
        inputs.first,
        inputs.ends,
        inputs.block_table,
        inputs.slot_mapping,
        inputs.rope_positions,
        input_ids,
        layout.num_rows,
        0 if given.sampled is None else layout.num_routed,
        layout.table_width,
        layout.num_computed,
        layout.slots,
        layout.block_table,
        layout.route_target,
        layout.route_source,
        layout.row_flags,
        inputs.block_table.stride(0),
        inputs.num_rows,
        inputs.scratch,
        BLOCK_SIZE=block_size,
        BY_SLOT=layout.by_slot,
        ON_DEVICE=int(RowFlag.ON_DEVICE),
        HAS_ROPE=given.rope is not None,
        COLUMNS=_COLUMNS,
        num_warps=1,
    )


@triton.jit  # type: ignore[untyped-decorator]
def overlay_kernel(  # type: ignore[no-untyped-def]
    rows, source, target, inputs_embeds, hidden, row_stride, ELEMENTS: tl.constexpr
):
    """A part of one row."""
    number = tl.program_id(0)
    column = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    is_there = column < hidden
    taken = tl.load(source + number).to(tl.int64) * row_stride
    given = tl.load(rows + taken + column, mask=is_there)
    tl.store(inputs_embeds + tl.load(target + number).to(tl.int64) * hidden + column, given, mask=is_there)


def merge_overlay(
    resident_rows: torch.Tensor, source: torch.Tensor, target: torch.Tensor, inputs_embeds: torch.Tensor
) -> None:
    """Arena rows `source` written over rows `target` of inputs_embeds: one read and one write of each."""
    hidden = inputs_embeds.shape[1]
    if not len(source):
        return
    elements = min(_MAX_ELEMENTS, triton.next_power_of_2(hidden))
    overlay_kernel[(len(source), triton.cdiv(hidden, elements))](
        resident_rows, source, target, inputs_embeds, hidden, resident_rows.stride(0), ELEMENTS=elements
    )
