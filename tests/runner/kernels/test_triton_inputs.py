"""Our input kernels equal the torch operations they stand for, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from runner.commands import MetadataLayout, RowFlag
from runner.kernels import merge, triton_inputs
from runner.kernels.decode_inputs import DecodeInputs
from runner.kernels.geometry import StepGeometry
from runner.kernels.program import _StepMetadata

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the kernels are compiled: tests marked gpu"
)

MAX_ROWS, MAX_WIDTH = 6, 70  # more columns than are copied at once
NUM_BLOCKS = 500


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of a decode step; `num_routed` of its ids were sampled by the last step."""

    firsts: tuple[int, ...]
    on_device: tuple[bool, ...]
    block_size: int
    spare_columns: int
    by_slot: bool
    has_rope: bool
    num_routed: int | None
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    size = draw(st.sampled_from([1, 3, 16]))
    rows = draw(st.integers(1, MAX_ROWS))
    return Case(
        firsts=tuple(draw(st.lists(st.integers(4, 60 * size), min_size=rows, max_size=rows))),
        on_device=tuple(draw(st.lists(st.booleans(), min_size=rows, max_size=rows))),
        block_size=size,
        spare_columns=draw(st.integers(0, 3)),
        by_slot=draw(st.booleans()),
        has_rope=draw(st.booleans()),
        num_routed=draw(st.one_of(st.none(), st.integers(1, rows))),
        seed=draw(st.integers(0, 1000)),
    )


class Step:
    """A step's packed metadata as the host writes it, and the device's tables."""

    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(case.seed)

        def draw(limit: int, *shape: int) -> torch.Tensor:
            return torch.randint(limit, shape, generator=generator)

        rows, routed = len(case.firsts), case.num_routed or 0
        self.case = case
        self.width = min(MAX_WIDTH, max(case.firsts) // case.block_size + 1 + case.spare_columns)
        self.layout = MetadataLayout(rows, self.width, routed, 0, False, case.by_slot, 0)
        self.slots = torch.randperm(MAX_ROWS, generator=generator)[:rows]
        flags = torch.tensor(case.on_device) * int(RowFlag.ON_DEVICE) + int(RowFlag.SAMPLES)
        parts = [
            torch.arange(rows + 1),
            torch.tensor(case.firsts),
            self.slots,
            draw(NUM_BLOCKS, rows * self.width),
            torch.randperm(rows, generator=generator)[:routed],
            draw(MAX_ROWS, routed),
        ]
        if case.by_slot:
            parts += [flags, torch.zeros(rows, dtype=torch.int64)]
        self.packed = torch.cat(parts).to(torch.int32)
        assert len(self.packed) == self.layout.size
        # Never more than the host guessed.
        self.computed = torch.full((MAX_ROWS,), 1)
        self.computed[self.slots] = torch.tensor(case.firsts) - draw(4, rows)
        self.rope = draw(1000, MAX_ROWS, 3) if case.has_rope else None
        self.sampled = draw(90, MAX_ROWS).to(torch.int32) if case.num_routed is not None else None
        self.ids = draw(90, MAX_ROWS + 2).to(torch.int32)

    def inputs(self) -> DecodeInputs:
        """As an earlier step of other rows left them."""
        axes = 3 if self.case.has_rope else 1
        made = DecodeInputs(MAX_ROWS, MAX_WIDTH, axes, self.case.block_size, NUM_BLOCKS, torch.device("cpu"))
        for tensor in (made.first, made.ends, made.slot_mapping, made.rope_positions, made.block_table):
            tensor.fill_(77)
        return made


def by_torch(step: Step) -> tuple[DecodeInputs, torch.Tensor]:
    """As the program does without our kernels: positions, routes, and what a graph is given."""
    case, layout, rows = step.case, step.layout, len(step.case.firsts)
    metadata = _StepMetadata(layout, step.packed, rows, step.computed)
    ids = step.ids.clone()
    rope = metadata.positions[None]
    if step.rope is not None:
        rope = step.rope[:rows].T - (metadata.lag if case.by_slot else 0)
    blocks = metadata.block_table[metadata.row_of_token, metadata.positions // case.block_size]
    geometry = StepGeometry(
        metadata.starts,
        metadata.first,
        metadata.first + metadata.starts.diff(),
        metadata.block_table,
        blocks * case.block_size + metadata.positions % case.block_size,
        rope,
    )
    inputs = step.inputs()
    inputs.fill(geometry, ids)
    if step.sampled is not None:
        ids.index_copy_(0, metadata.route_target, step.sampled[metadata.route_source])
    return inputs, ids


@settings(max_examples=40)
@given(case=cases())
def test_a_decode_steps_rows_routes_and_padding_are_those_of_torch(case: Case) -> None:
    step = Step(case)
    wanted, wanted_ids = by_torch(step)
    inputs, ids = step.inputs(), step.ids.clone()
    given_rows = triton_inputs.GivenRows(step.packed, step.layout, step.computed, step.rope, step.sampled)
    triton_inputs.fill_decode_inputs(inputs, given_rows, ids, case.block_size)
    for name in ("starts", "first", "ends", "slot_mapping", "rope_positions"):
        assert torch.equal(getattr(inputs, name), getattr(wanted, name)), name
    rows = len(case.firsts)
    assert torch.equal(inputs.block_table[:rows, : step.width], wanted.block_table[:rows, : step.width])
    assert torch.equal(inputs.block_table[rows:, 0], wanted.block_table[rows:, 0])
    assert torch.equal(ids, wanted_ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("count", "hidden"), [(0, 8), (1, 8), (5, 96), (3, 1500)])
def test_overlay_is_that_of_torch_whatever_the_elements(dtype: Any, count: int, hidden: int) -> None:
    """16 bits are merely copied, which the interpreter can."""
    generator = torch.Generator().manual_seed(count)
    arena = torch.randn(9, hidden, generator=generator).to(dtype)
    embeds = torch.randn(7, hidden, generator=generator).to(dtype)
    source = torch.randint(9, (count,), generator=generator)
    target = torch.randperm(7, generator=generator)[:count]
    wanted = embeds.clone()
    merge.merge_overlay(arena, source, target, wanted)
    triton_inputs.merge_overlay(arena, source, target, embeds)
    assert torch.equal(embeds, wanted)
