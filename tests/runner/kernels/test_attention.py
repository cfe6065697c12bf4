"""Paged attention equals plain dense attention, token by token, whatever the batch looks like."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config import RunnerConfig
from runner.kernels.attention import paged_attention
from runner.kernels.geometry import StepGeometry, StepLimits
from runner.kernels.kvcache import KVCache
from runner.kernels.sdpa_attention import SdpaAttention
from runner.models import TINY_QWEN3

HEADS, DIM = 4, 8
SCALING = 1 / math.sqrt(DIM)


@dataclass(frozen=True, slots=True)
class Row:
    """One request's share: `first` positions lie in the cache already, `count` are new."""

    first: int
    count: int
    images: tuple[tuple[int, int], ...] = ()  # [first, end) among the new positions, in order

    @property
    def end(self) -> int:
        return self.first + self.count

    def key_end(self, number: int) -> int:
        """Behind the last position that its new position of that number sees."""
        ends = (end for first, end in self.images if first <= number < end)
        return self.first + next(ends, number + 1)


class Batch:
    """Random keys, values and queries of every row, in a cache whose blocks are dealt at random."""

    def __init__(self, rows: list[Row], block_size: int, kv_heads: int, seed: int) -> None:
        self.rows = rows
        self._generator = torch.Generator().manual_seed(seed)
        widths = [-(-row.end // block_size) for row in rows]
        self.num_blocks = sum(widths) + 3
        blocks = list(range(self.num_blocks))
        random.Random(seed).shuffle(blocks)
        self.tables = [[blocks.pop() for _ in range(width)] for width in widths]
        self.free_blocks = blocks
        self.block_size = block_size
        model = replace(TINY_QWEN3, num_layers=2, num_heads=HEADS, num_kv_heads=kv_heads, head_dim=DIM)
        config = RunnerConfig(num_blocks=self.num_blocks, block_size=block_size)
        self.cache = KVCache(model, config, torch.float32, torch.device("cpu"))
        self.keys = [self._draw(row.end, kv_heads) for row in rows]
        self.values = [self._draw(row.end, kv_heads) for row in rows]
        self.queries = [self._draw(row.count, HEADS) for row in rows]
        for index, row in enumerate(rows):
            if row.first:
                mapping = torch.tensor([self.place(index, position) for position in range(row.first)])
                keys, values = self.keys[index][: row.first], self.values[index][: row.first]
                self.cache.write(1, keys, values, mapping)

    def _draw(self, count: int, heads: int) -> torch.Tensor:
        return torch.randn(count, heads, DIM, generator=self._generator)

    def place(self, row: int, position: int) -> int:
        """The flat cache position of a row's position."""
        return self.tables[row][position // self.block_size] * self.block_size + position % self.block_size

    def geometry(self) -> StepGeometry:
        new = [(i, p) for i, row in enumerate(self.rows) for p in range(row.first, row.end)]
        starts = [0]
        for row in self.rows:
            starts.append(starts[-1] + row.count)
        width = max(len(table) for table in self.tables)
        # Beyond a row's own blocks its table holds what an earlier row left there.
        table = [[*own, *[self.free_blocks[0]] * (width - len(own))] for own in self.tables]
        return StepGeometry(
            starts=torch.tensor(starts),
            first=torch.tensor([row.first for row in self.rows]),
            ends=torch.tensor([row.end for row in self.rows]),
            block_table=torch.tensor(table),
            slot_mapping=torch.tensor([self.place(i, p) for i, p in new]),
            rope_positions=torch.tensor([[p for _, p in new]]),
            key_ends=self.key_ends(),
        )

    def key_ends(self) -> torch.Tensor | None:
        if not any(row.images for row in self.rows):
            return None
        return torch.tensor([row.key_end(number) for row in self.rows for number in range(row.count)])

    def limits(self) -> StepLimits:
        counts = [row.count for row in self.rows]
        return StepLimits(max(counts), max(row.end for row in self.rows), counts.count(1))

    def paged(self, window: int | None) -> torch.Tensor:
        """The runner's answer: [tokens, heads, dim]."""
        new_keys = [keys[row.first :] for keys, row in zip(self.keys, self.rows, strict=True)]
        new_values = [values[row.first :] for values, row in zip(self.values, self.rows, strict=True)]
        output, _ = paged_attention(
            SimpleNamespace(layer_idx=1),
            torch.cat(self.queries).transpose(0, 1)[None],
            torch.cat(new_keys).transpose(0, 1)[None],
            torch.cat(new_values).transpose(0, 1)[None],
            None,
            scaling=SCALING,
            paged_step=SdpaAttention().begin(self.geometry(), self.cache, self.limits()),
            sliding_window=window,
        )
        return output[0]

    def dense(self, window: int | None) -> torch.Tensor:
        """The definition, one query at a time."""
        outputs = []
        for index, row in enumerate(self.rows):
            for i in range(row.count):
                position = row.first + i
                oldest = 0 if window is None else max(0, position - window + 1)
                keys = self.keys[index][oldest : row.key_end(i)]
                values = self.values[index][oldest : row.key_end(i)]
                outputs.append(_attend(self.queries[index][i], keys, values))
        return torch.stack(outputs)


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """query [heads, dim], keys and values [positions, kv_heads, dim] -> [heads, dim]."""
    group = HEADS // keys.shape[1]
    result = []
    for head in range(HEADS):
        scores = keys[:, head // group] @ query[head] * SCALING
        result.append(torch.softmax(scores, dim=0) @ values[:, head // group])
    return torch.stack(result)


def assert_equal(batch: Batch, window: int | None) -> None:
    with torch.inference_mode():
        torch.testing.assert_close(batch.paged(window), batch.dense(window), rtol=1e-5, atol=1e-5)


WINDOWS = [None, 1, 3, 8, 100]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_whole_prompt(window: int | None, kv_heads: int) -> None:
    assert_equal(Batch([Row(0, 13)], 4, kv_heads, seed=1), window)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("first", "count"), [(4, 4), (5, 6), (1, 2), (3, 1), (16, 9), (11, 5)])
def test_a_chunk_attends_to_the_chunks_before_it(window: int | None, first: int, count: int) -> None:
    assert_equal(Batch([Row(first, count)], 4, 2, seed=2), window)


@pytest.mark.parametrize("window", WINDOWS)
def test_chunks_and_decodes_in_one_step(window: int | None) -> None:
    batch = Batch([Row(9, 1), Row(0, 6), Row(30, 1), Row(8, 5), Row(0, 1), Row(3, 1)], 4, 2, seed=3)
    assert_equal(batch, window)


@pytest.mark.parametrize("window", WINDOWS)
def test_many_decodes_of_unequal_length_are_right_though_they_are_cut_into_buckets(
    window: int | None,
) -> None:
    firsts = [50, 2, 31, 7, 0, 64, 15, 16, 40, 5, 63]
    assert_equal(Batch([Row(first, 1) for first in firsts], 4, 2, seed=4), window)


@pytest.mark.parametrize("window", WINDOWS)
def test_many_decodes_of_equal_length(window: int | None) -> None:
    assert_equal(Batch([Row(20, 1)] * 12, 4, 2, seed=5), window)


@pytest.mark.parametrize("window", WINDOWS)
def test_rows_of_an_image_see_all_of_it_and_no_more(window: int | None) -> None:
    """Images at either end of a chunk, behind others, beside a decode and a chunk without any."""
    rows = [Row(9, 9, ((0, 4), (5, 9))), Row(30, 1), Row(8, 5), Row(0, 7, ((2, 6),)), Row(7, 12, ((1, 11),))]
    assert_equal(Batch(rows, 4, 2, seed=8), window)


def test_an_image_attended_to_causally_is_noticed() -> None:
    batch = Batch([Row(3, 9, ((2, 7),))], 4, 2, seed=9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "key_ends", lambda self: None)
        with pytest.raises(AssertionError, match="not close"):
            assert_equal(batch, None)


@st.composite
def with_images(draw: st.DrawFn) -> Row:
    first, count = draw(st.integers(0, 20)), draw(st.integers(1, 16))
    cuts = sorted(draw(st.sets(st.integers(0, count), max_size=6)))
    images = tuple(zip(cuts[::2], cuts[1::2], strict=False))
    return Row(first, count, images)


@st.composite
def batches(draw: st.DrawFn, max_rows: int = 6) -> Batch:
    row = st.one_of(
        st.builds(Row, st.integers(0, 40), st.just(1)),
        st.builds(Row, st.integers(0, 20), st.integers(1, 12)),
        with_images(),
    )
    return Batch(
        rows=draw(st.lists(row, min_size=1, max_size=max_rows)),
        block_size=draw(st.integers(1, 9)),
        kv_heads=draw(st.sampled_from([1, 2, 4])),
        seed=draw(st.integers(0, 1000)),
    )


ANY_WINDOW = st.one_of(st.none(), st.integers(1, 24))


@settings(max_examples=80)
@given(batch=batches(), window=ANY_WINDOW)
def test_any_batch_equals_dense_attention(batch: Batch, window: int | None) -> None:
    assert_equal(batch, window)


@settings(max_examples=40)
@given(
    firsts=st.lists(st.integers(0, 70), min_size=8, max_size=20),
    block_size=st.integers(1, 9),
    window=ANY_WINDOW,
    seed=st.integers(0, 1000),
)
def test_any_large_batch_of_decodes_equals_dense_attention(
    firsts: list[int], block_size: int, window: int | None, seed: int
) -> None:
    assert_equal(Batch([Row(first, 1) for first in firsts], block_size, 2, seed), window)


@settings(max_examples=40)
@given(batch=batches(), window=ANY_WINDOW)
def test_what_lies_in_unwritten_positions_never_leaks(batch: Batch, window: int | None) -> None:
    """Free blocks, the tails of last blocks and other layers may hold anything finite."""
    with torch.inference_mode():
        before = batch.paged(window)
        written = {batch.place(i, p) for i, row in enumerate(batch.rows) for p in range(row.end)}
        rest = [place for place in range(batch.num_blocks * batch.block_size) if place not in written]
        for tensor in (batch.cache.keys[1], batch.cache.values[1]):
            tensor.flatten(0, 1)[rest] = -3e3
        batch.cache.keys[0].fill_(7.0)
        batch.cache.values[0].fill_(7.0)
        assert batch.cache.kept is not None
        batch.cache.kept.write_all()
        assert torch.equal(batch.paged(window), before)


def test_one_request_does_not_see_another() -> None:
    rows = [Row(9, 1), Row(0, 6), Row(5, 1), Row(8, 5)]
    with torch.inference_mode():
        before = Batch(rows, 4, 2, seed=6).paged(None)
        batch = Batch(rows, 4, 2, seed=6)
        batch.keys[1] += 5
        batch.values[1] += 5
        changed = (batch.paged(None) != before).flatten(1).any(dim=1)
    assert changed.tolist() == [False] + [True] * 6 + [False] * 6


def test_a_step_writes_its_keys_and_values_into_the_cache_of_its_layer_only() -> None:
    batch = Batch([Row(3, 2), Row(0, 5)], 4, 2, seed=7)
    batch.paged(None)
    flat_keys, flat_values = batch.cache.keys[1].flatten(0, 1), batch.cache.values[1].flatten(0, 1)
    for index, row in enumerate(batch.rows):
        for position in range(row.end):
            place = batch.place(index, position)
            assert torch.equal(flat_keys[place], batch.keys[index][position])
            assert torch.equal(flat_values[place], batch.values[index][position])
    assert float(batch.cache.keys[0].unique()) == float(batch.cache.values[0].unique())
