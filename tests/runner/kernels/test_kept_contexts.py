"""Contexts kept from step to step are what a gather from the cache gives, whatever happens to the blocks."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config import RunnerConfig
from runner.kernels.attention import attend_rows
from runner.kernels.geometry import StepGeometry, StepLimits
from runner.kernels.kept_contexts import DecodeRows, KeptContexts, KeptRows
from runner.kernels.kvcache import KVCache
from runner.kernels.sdpa_attention import SdpaAttention
from runner.models import TINY_QWEN3

HEADS, KV_HEADS, DIM = 4, 2, 8
WINDOWS = (None, 5)  # of the first and the second layer
MODEL = replace(TINY_QWEN3, num_layers=2, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM)


@dataclass
class Row:
    """A request: its blocks, how many positions are computed, and how many it will have."""

    blocks: list[int]
    length: int
    goal: int


@dataclass
class Traffic:
    """Requests that come, are cut into chunks, share blocks, trade places and go."""

    seed: int
    block_size: int
    num_blocks: int
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.free = list(range(self.num_blocks))
        self.num_users = [0] * self.num_blocks

    def change(self) -> None:
        """Between two steps: some go, some come, some trade places."""
        for row in [row for row in self.rows if row.length >= row.goal or self.draw.random() < 0.05]:
            self.rows.remove(row)
            self._release(row.blocks)
        for _ in range(self.draw.choice([0, 0, 1, 3])):
            self.admit()
        if len(self.rows) > 1 and self.draw.random() < 0.2:
            self.draw.shuffle(self.rows)

    def step(self) -> list[tuple[Row, int]]:
        """Rows, and how many new tokens each has: their blocks are there by then."""
        step = []
        for row in self.rows:
            count = self.draw.choice([1, 1, 1, self.draw.randint(1, 7)])
            while count and not self._grow(row, row.length + count):
                count -= 1
            if count:
                step.append((row, count))
        return step

    def reject(self, step: list[tuple[Row, int]]) -> None:
        """Behind it: some of a row's new tokens were guesses, and wrong ones."""
        for row, count in step:
            if count > 1 and self.draw.random() < 0.3:
                row.length -= self.draw.randint(1, count - 1)

    def admit(self) -> None:
        """Anew, or behind full blocks of another: even ones that are written to in this very step."""
        shared: list[int] = []
        if self.rows and self.draw.random() < 0.5:
            other = self.draw.choice(self.rows)
            num_full = (other.length + 1) // self.block_size  # with its next token, if it gets one
            shared = other.blocks[: self.draw.randint(0, min(num_full, len(other.blocks)))]
        for block in shared:
            self.num_users[block] += 1
        length = len(shared) * self.block_size
        self.rows.insert(
            self.draw.randint(0, len(self.rows)), Row([*shared], length, length + self.draw.randint(1, 20))
        )

    def _grow(self, row: Row, length: int) -> bool:
        while len(row.blocks) * self.block_size < length:
            if not self.free:
                return False
            block = self.free.pop()
            self.num_users[block] += 1
            row.blocks.append(block)
        return True

    def _release(self, blocks: list[int]) -> None:
        """The last to go is the first to be used again, so that the same block soon is another's."""
        for block in blocks:
            self.num_users[block] -= 1
            if not self.num_users[block]:
                self.free.append(block)


def geometry_of(step: list[tuple[Row, int]], block_size: int) -> tuple[StepGeometry, StepLimits]:
    counts = [count for _, count in step]
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    places = [
        row.blocks[position // block_size] * block_size + position % block_size
        for row, count in step
        for position in range(row.length, row.length + count)
    ]
    width = max(len(row.blocks) for row, _ in step)
    ends = [row.length + count for row, count in step]
    geometry = StepGeometry(
        starts=torch.tensor(starts),
        first=torch.tensor([row.length for row, _ in step]),
        ends=torch.tensor(ends),
        block_table=torch.tensor([[*row.blocks, *[0] * (width - len(row.blocks))] for row, _ in step]),
        slot_mapping=torch.tensor(places),
        rope_positions=torch.tensor([places]),
    )
    return geometry, StepLimits(max(counts), max(ends), counts.count(1))


def caches(num_blocks: int, block_size: int) -> tuple[KVCache, KVCache]:
    """One that keeps contexts, and one that gathers them."""
    config = RunnerConfig(num_blocks=num_blocks, block_size=block_size)
    keeping, gathering = (KVCache(MODEL, config, torch.float32, torch.device("cpu")) for _ in range(2))
    assert keeping.kept is not None
    gathering.kept = None
    return keeping, gathering


def attended(
    cache: KVCache, step: list[tuple[Row, int]], block_size: int, given: list[torch.Tensor]
) -> list[torch.Tensor]:
    """What each layer gives of its queries, keys and values."""
    geometry, limits = geometry_of(step, block_size)
    paged = SdpaAttention().begin(geometry, cache, limits)
    return [
        attend_rows(paged, layer, *(tensor + layer for tensor in given), 0.3, window)
        for layer, window in enumerate(WINDOWS)
    ]


def assert_alike(traffic: Traffic, num_steps: int, reset_at: int | None = None) -> None:
    keeping, gathering = caches(traffic.num_blocks, traffic.block_size)
    draw = torch.Generator().manual_seed(traffic.seed)
    for number in range(num_steps):
        traffic.change()
        if number == reset_at:
            keeping.poison()
            gathering.poison()
        step = traffic.step()
        if not step:
            continue
        num_tokens = sum(count for _, count in step)
        given = [torch.randn(num_tokens, heads, DIM, generator=draw) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        with torch.inference_mode():
            found, expected = (
                attended(cache, step, traffic.block_size, given) for cache in (keeping, gathering)
            )
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        for row, count in step:
            row.length += count
        traffic.reject(step)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    block_size=st.integers(1, 5),
    num_blocks=st.integers(4, 60),
    reset_at=st.one_of(st.none(), st.integers(1, 39)),
)
def test_whatever_rows_and_blocks_are_used_for_it_is_what_a_gather_gives(
    seed: int, block_size: int, num_blocks: int, reset_at: int | None
) -> None:
    assert_alike(Traffic(seed, block_size, num_blocks), 40, reset_at)


def test_so_it_is_of_many_rows_of_unlike_lengths() -> None:
    """As many as are cut into buckets."""
    for seed in range(6):
        traffic = Traffic(seed, 2, 400)
        for _ in range(12):
            traffic.admit()
        assert_alike(traffic, 30)


class Steps:
    """Decode rows over given blocks in a cache of one layer's worth of numbers, and what was copied."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        config = RunnerConfig(num_blocks=num_blocks, block_size=block_size)
        self.cache = KVCache(MODEL, config, torch.float32, torch.device("cpu"))
        self.block_size = block_size

    def rows(self, tables: list[list[int]], length: int) -> KeptRows:
        """A step in which every row has that many positions, the last of them new."""
        kept = self.cache.kept
        assert kept is not None
        offset = (length - 1) % self.block_size
        slots = [table[-1] * self.block_size + offset for table in tables]
        kept.begin_step(torch.tensor(slots))
        self.cache.write(
            0, *[torch.full((len(slots), KV_HEADS, DIM), float(length))] * 2, torch.tensor(slots)
        )
        num_rows, width = len(tables), len(tables[0])
        counts, offsets = torch.full((num_rows,), width), torch.full((num_rows,), offset)
        rows = kept.rows(None, 0, DecodeRows(torch.tensor(tables), counts, torch.arange(num_rows), offsets))
        assert rows is not None
        return rows

    def contexts(self, rows: KeptRows) -> tuple[torch.Tensor, torch.Tensor]:
        return rows.contexts(0, self.cache.keys[0], self.cache.values[0])


def test_of_a_row_that_goes_on_nothing_is_copied_but_its_token() -> None:
    steps = Steps(8, 4)
    first = steps.rows([[3, 1], [5, 2]], 5)
    assert first.stale_ids.tolist() == [3, 1, 5, 2]
    steps.contexts(first)
    for length in (6, 7, 8):
        rows = steps.rows([[3, 1], [5, 2]], length)
        assert len(rows.stale_ids) == 0
        keys, values = steps.contexts(rows)
        assert keys[:, :, length - 1].unique().tolist() == [length]
        assert values[:, :, length - 1].unique().tolist() == [length]
    assert steps.rows([[3, 1, 6], [5, 2, 7]], 9).stale_ids.tolist() == [6, 7]


def test_a_row_in_anothers_place_and_a_block_in_anothers_are_copied_anew() -> None:
    steps = Steps(8, 4)
    steps.contexts(steps.rows([[3, 1], [5, 2]], 5))
    assert steps.rows([[5, 2], [3, 1]], 6).stale_ids.tolist() == [5, 2, 3, 1]
    assert steps.rows([[5, 2], [4, 1]], 7).stale_ids.tolist() == [4]


def rows_that_begin_with(*block_ids: int) -> DecodeRows:
    every = torch.ones(len(block_ids), dtype=torch.int64)
    return DecodeRows(torch.tensor(block_ids)[:, None], every, every * 0, every * 0)


@pytest.mark.parametrize(
    ("then", "order"),
    [
        ((1, 2, 3, 4), None),
        ((1, 2, 3, 4, 5), None),
        ((2, 3, 4), [2, 0, 1]),  # the last takes the place of the one that went
        ((4, 3, 2, 1), [3, 2, 1, 0]),
        ((7, 2, 3, 4), None),
        ((2, 3, 7, 4), [2, 0, 1, 3]),
        ((2, 2, 3, 4), [1, 0, 2, 3]),  # two behind one prefix
        ((9,), None),
    ],
)
def test_rows_keep_their_places(then: tuple[int, ...], order: list[int] | None) -> None:
    kept = KeptContexts(10, 4, KV_HEADS)
    assert kept.order(None, 0, rows_that_begin_with(*then)) is None
    kept.begin_step(torch.zeros(1, dtype=torch.int64))
    kept.rows(None, 0, rows_that_begin_with(1, 2, 3, 4))
    found = kept.order(None, 0, rows_that_begin_with(*then))
    assert (None if found is None else found.tolist()) == order
    assert kept.order(None, 1, rows_that_begin_with(*then)) is None


def test_a_reset_leaves_no_copy() -> None:
    steps = Steps(8, 4)
    steps.contexts(steps.rows([[3, 1]], 5))
    steps.cache.poison()
    assert steps.rows([[3, 1]], 6).stale_ids.tolist() == [3, 1]


def room_of(kept: KeptContexts) -> int:
    return sum(math.prod(copy.size) for copy in kept._copies.values())


def rows_of(num_rows: int, width: int) -> DecodeRows:
    """Rows of so many blocks each, all of them one and the same block."""
    counts, zeros = torch.full((num_rows,), width), torch.zeros(num_rows, dtype=torch.int64)
    return DecodeRows(torch.zeros((num_rows, width), dtype=torch.int64), counts, zeros, zeros)


def taken(kept: KeptContexts, *groups: tuple[int, int]) -> list[bool]:
    """A step of so many groups, of that many rows and blocks each: which are kept."""
    kept.begin_step(torch.zeros(1, dtype=torch.int64))
    return [kept.rows(None, number, rows_of(*size)) is not None for number, size in enumerate(groups)]


def test_copies_take_at_most_twice_the_room_of_the_cache() -> None:
    kept = KeptContexts(100, 4, KV_HEADS)
    assert taken(kept, (10, 10)) == [True] and room_of(kept) == 14 * 14
    assert taken(kept, (40, 5)) == [True] and room_of(kept) == 200  # not a block more than is wanted
    assert taken(kept, (5, 40)) == [True] and room_of(kept) == 200  # many short ones, then few long ones
    assert taken(kept, (41, 5)) == [False] and room_of(kept) == 0
    # What is left once one has its room; of groups that were there before none loses it to another.
    assert taken(kept, (10, 10), (10, 10)) == [True, False]
    for _ in range(3):
        assert taken(kept, (10, 12), (2, 1)) == [True, True]
        assert room_of(kept) <= 200
    # A group that is no more makes room for those that are.
    for _ in range(2):
        assert taken(kept, (10, 12)) == [True]
    assert (None, 1) in kept._copies
    assert taken(kept, (40, 5)) == [True] and set(kept._copies) == {(None, 0)}


def test_room_that_is_far_too_much_is_given_back() -> None:
    kept = KeptContexts(4000, 4, KV_HEADS)
    taken(kept, (40, 40))
    assert room_of(kept) == 52 * 52
    taken(kept, (20, 20))
    assert room_of(kept) == 52 * 52
    taken(kept, (5, 20))
    assert room_of(kept) == 8 * 27


def test_rows_that_are_not_kept_are_gathered() -> None:
    keeping, _ = caches(8, 2)
    step = [(Row([0, 1, 2, 3, 4], 9, 20), 1), *[(Row([5], 0, 9), 1)] * 4]
    geometry, limits = geometry_of(step, 2)
    given = [torch.ones(5, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    paged = SdpaAttention().begin(geometry, keeping, limits)
    attend_rows(paged, 0, *given, 0.3, None)
    ((group,),) = paged._groups.values()
    assert group.kept is None


def test_on_a_gpu_nothing_is_kept() -> None:
    config = RunnerConfig(num_blocks=4)
    assert KVCache(MODEL, config, torch.float32, torch.device("meta")).kept is None
