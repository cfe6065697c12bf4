"""Our attention kernels equal plain dense attention, in Triton's interpreter and float32, whatever the shape.

The interpreter's 16-bit arithmetic is not that of a GPU: other types are tested there (test_gpu_attention).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from runner.config import RunnerConfig
from runner.kernels import triton_attention
from runner.kernels.geometry import StepGeometry, StepLimits
from runner.kernels.kvcache import KVCache
from runner.kernels.triton_attention import TritonAttention, num_splits
from runner.models import TINY_QWEN3

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the kernels are compiled: tests marked gpu"
)


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of (positions cached before, new tokens), in a cache of shuffled blocks."""

    rows: tuple[tuple[int, int], ...]
    kv_heads: int
    group: int
    head_dim: int
    block_size: int
    window: int | None
    spare_context: int  # the host's guess is so much too long
    seed: int
    images: tuple[tuple[tuple[int, int], ...], ...] = ()  # of each row, [first, end) among its new tokens

    def key_end(self, row: int, number: int) -> int:
        """Behind the last position that a row's new token of that number sees."""
        images = self.images[row] if self.images else ()
        ends = (end for first, end in images if first <= number < end)
        return self.rows[row][0] + next(ends, number + 1)


CASES = st.builds(
    Case,
    rows=st.lists(
        st.one_of(
            st.tuples(st.integers(0, 90), st.just(1)),
            st.tuples(st.integers(0, 40), st.integers(2, 37)),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 7]),
    head_dim=st.sampled_from([4, 16, 24, 32]),
    block_size=st.integers(1, 19),
    window=st.one_of(st.none(), st.integers(1, 40)),
    spare_context=st.integers(0, 20),
    seed=st.integers(0, 1000),
)


class Step:
    """Everything random; what no row may see is far away from what it may."""

    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(case.seed)
        self.case = case
        counts = torch.tensor([count for _, count in case.rows])
        self.first = torch.tensor([first for first, _ in case.rows])
        self.ends = self.first + counts
        self.starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        widths = (self.ends + case.block_size - 1) // case.block_size
        num_blocks = int(widths.sum()) + 1
        model = replace(
            TINY_QWEN3,
            num_layers=1,
            num_heads=case.kv_heads * case.group,
            num_kv_heads=case.kv_heads,
            head_dim=case.head_dim,
        )
        config = RunnerConfig(num_blocks=num_blocks, block_size=case.block_size)
        self.cache = KVCache(model, config, torch.float32, torch.device("cpu"))
        blocks = torch.randperm(num_blocks, generator=generator)
        self.table = torch.full((len(case.rows), int(widths.max())), int(blocks[-1]))
        place = 0
        for row, width in enumerate(widths.tolist()):
            self.table[row, :width] = blocks[place : place + width]
            place += width
        shape = (len(case.rows), int(self.ends.max()), case.kv_heads, case.head_dim)
        self.keys = torch.randn(shape, generator=generator)
        self.values = torch.randn(shape, generator=generator)
        heads, tokens = case.kv_heads * case.group, int(self.starts[-1])
        # As transformers gives it: heads first, so that rows of a token lie apart.
        self.query = torch.randn(heads, tokens, case.head_dim, generator=generator).transpose(0, 1)
        for row, end in enumerate(self.ends.tolist()):
            slots = torch.tensor([self.slot(row, position) for position in range(end)])
            self.cache.write(0, self.keys[row, :end], self.values[row, :end], slots)

    def slot(self, row: int, position: int) -> int:
        size = self.case.block_size
        return int(self.table[row, position // size]) * size + position % size

    def attend(self) -> torch.Tensor:
        counts = [count for _, count in self.case.rows]
        limits = StepLimits(max(counts), int(self.ends.max()) + self.case.spare_context, counts.count(1))
        none = torch.empty(0, dtype=torch.int64)
        geometry = StepGeometry(self.starts, self.first, self.ends, self.table, none, none, self.key_ends)
        step = TritonAttention().begin(geometry, self.cache, limits)
        return step.attend(0, self.query, self.scaling, self.case.window)

    @property
    def key_ends(self) -> torch.Tensor | None:
        rows = self.case.rows
        ends = [self.case.key_end(row, n) for row, (_, count) in enumerate(rows) for n in range(count)]
        return torch.tensor(ends) if self.case.images else None

    @property
    def scaling(self) -> float:
        return 1 / math.sqrt(self.case.head_dim)

    def dense(self) -> torch.Tensor:
        """The definition, one row at a time, over keys that never were in blocks."""
        outputs = []
        for row, (first, count) in enumerate(self.case.rows):
            start, end = int(self.starts[row]), first + count
            keys = self.keys[row, :end].repeat_interleave(self.case.group, dim=1)
            values = self.values[row, :end].repeat_interleave(self.case.group, dim=1)
            scores = torch.einsum("qhd,khd->hqk", self.query[start : start + count], keys) * self.scaling
            behind = torch.arange(first, end)[:, None] - torch.arange(end)[None, :]
            key_ends = torch.tensor([self.case.key_end(row, number) for number in range(count)])
            is_seen = torch.arange(end)[None, :] < key_ends[:, None]
            if self.case.window is not None:
                is_seen &= behind < self.case.window
            weights = scores.masked_fill(~is_seen, -math.inf).softmax(dim=-1)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
        return torch.cat(outputs)


@pytest.fixture
def splits_early() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_attention, "_MIN_POSITIONS_A_SPLIT", 8)
        yield


def assert_dense(case: Case) -> None:
    step = Step(case)
    torch.testing.assert_close(step.attend(), step.dense(), rtol=1e-5, atol=1e-5)


@settings(max_examples=25)
@given(case=CASES)
def test_any_step_equals_dense_attention(case: Case) -> None:
    assert_dense(case)


@settings(max_examples=20)
@given(case=CASES)
def test_any_step_with_its_contexts_cut_into_parts_equals_dense_attention(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_attention, "_MIN_POSITIONS_A_SPLIT", 8)
        assert_dense(case)


@st.composite
def with_images(draw: st.DrawFn) -> Case:
    """Images anywhere among new tokens, also over the tiles that queries are cut into."""
    case = draw(CASES)
    images = []
    for _, count in case.rows:
        cuts = sorted(draw(st.sets(st.integers(0, count), max_size=6))) if count > 1 else []
        images.append(tuple(zip(cuts[::2], cuts[1::2], strict=False)))
    return replace(case, images=tuple(images))


@settings(max_examples=25)
@given(case=with_images())
def test_images_that_attend_in_both_directions_equal_dense_attention(case: Case) -> None:
    assert_dense(case)


@pytest.mark.parametrize("window", [None, 1, 5, 40])
def test_an_image_longer_than_a_tile_of_queries_sees_all_of_itself(window: int | None) -> None:
    rows, images = ((3, 90), (40, 1), (7, 35)), (((2, 88),), (), ((0, 35),))
    assert_dense(Case(rows, 2, 2, 16, 4, window, 0, seed=2, images=images))


def test_a_kernel_without_key_ends_is_noticed() -> None:
    step = Step(Case(((3, 20),), 1, 2, 16, 4, None, 0, seed=3, images=(((4, 16),),)))
    wanted = step.dense()
    step.case = replace(step.case, images=())
    assert not torch.allclose(step.attend(), wanted, atol=1e-2)


def decodes(*firsts: int, window: int | None = None) -> Case:
    rows = tuple((first, 1) for first in firsts)
    return Case(rows, 2, 2, 16, 4, window, 0, seed=1)


@pytest.mark.parametrize("window", [None, 1, 9, 30])
def test_parts_beyond_a_short_context_weigh_nothing(window: int | None, splits_early: None) -> None:
    """The number of parts is that of the longest row: a row of one position leaves most of them empty."""
    assert num_splits(96, 8, None) > 8
    assert_dense(decodes(95, 0, 40, 7, window=window))


def test_a_row_of_one_token_is_never_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode is the decode kernel's; with no decodes counted, nobody computes it."""
    step = Step(Case(((5, 1), (0, 3)), 1, 1, 16, 4, None, 0, seed=1))
    wanted = step.dense()
    monkeypatch.setattr(
        triton_attention.torch, "empty", lambda *shape, **options: torch.full(*shape, math.nan, **options)
    )
    geometry = StepGeometry(step.starts, step.first, step.ends, step.table, step.ends, step.ends)
    begin = TritonAttention().begin
    without = begin(geometry, step.cache, StepLimits(3, 6, 0)).attend(0, step.query, step.scaling, None)
    assert bool(without[0].isnan().all())
    torch.testing.assert_close(without[1:], wanted[1:], rtol=1e-5, atol=1e-5)


def test_what_lies_in_unwritten_positions_never_leaks(splits_early: None) -> None:
    step = Step(decodes(17, 50, 2))
    before = step.attend()
    written = {step.slot(row, p) for row, end in enumerate(step.ends.tolist()) for p in range(end)}
    flat_keys, flat_values = step.cache.keys[0].flatten(0, 1), step.cache.values[0].flatten(0, 1)
    rest = [place for place in range(len(flat_keys)) if place not in written]
    flat_keys[rest] = math.nan
    flat_values[rest] = math.nan
    assert torch.equal(step.attend(), before)


def test_few_rows_are_cut_into_more_parts_than_many_and_none_is_short() -> None:
    assert num_splits(8192, 4, None) == 32
    assert num_splits(8192, 64, None) == 8
    assert num_splits(8192, 1024, None) == 1
    assert num_splits(200, 4, None) == 1
    assert num_splits(8192, 4, window=512) == 4
