"""Paged attention in our own Triton kernels: decodes split over the context, and packed prefill chunks.

Every kernel loads, computes in float32, and stores in the element type of its output. Nothing but the block
table says where keys and values lie, so a block may have any size. A row's own numbers are read on the
device; the host gives only what a launch is sized by (StepLimits).
Split decode: T. Dao et al., Flash-Decoding, 2023; the online softmax: FlashAttention, T. Dao et al., 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from runner.core import AttentionName
from runner.kernels.geometry import StepGeometry, StepLimits
from runner.kernels.kvcache import KVCache

_MIN_GROUP = 16  # rows the smallest matrix product has
_MIN_HEAD_DIM = 16
_DECODE_TILES = {4: 16, 2: 32}  # positions in a tile of keys, by the bytes of an element
_MIN_POSITIONS_A_SPLIT = 128
_MAX_SPLITS = 32
# Tiles are held against 3.6 and 3.9; what is in between takes those of the older.
_IS_OLDER = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
# Programs that fill a large GPU about four times over: more splits than that only add work to combine.
_WANTED_PROGRAMS = 512


# What changes from step to step: each alignment of it would be a compilation of its own.
@triton.jit(do_not_specialize=["table_width", "num_splits"])  # type: ignore[untyped-decorator]
def decode_kernel(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    output,
    partial,
    lse,
    starts,
    ends,
    block_table,
    table_width,
    scaling,
    num_splits,
    window,
    query_stride,
    heads_stride,
    BLOCK_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One row, one KV head with the heads that share it, one part of the context.

    Rows of more than one token are left alone. Where the context is split, `partial` [rows, heads, splits,
    head_dim] gets each part's own attention and `lse` [rows, heads, splits] the logarithm of its weight.
    """
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = tl.load(starts + row).to(tl.int64)
    if tl.load(starts + row + 1) - token != 1:
        return
    end = tl.load(ends + row).to(tl.int32)
    oldest = 0
    if HAS_WINDOW:
        oldest = tl.maximum(end - window, 0)
    first_tile = oldest // TILE
    tiles_a_split = tl.cdiv(tl.cdiv(end, TILE) - first_tile, num_splits)
    begin = (first_tile + split * tiles_a_split) * TILE
    stop = tl.minimum(begin + tiles_a_split * TILE, end)

    heads = tl.arange(0, PADDED_GROUP)
    dims = tl.arange(0, PADDED_DIM)
    within = tl.arange(0, TILE)
    head = kv_head * GROUP + heads
    own = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q_place = token * query_stride + head[:, None] * heads_stride + dims[None, :]
    q = tl.load(query + q_place, mask=own, other=0.0).to(tl.float32)

    best = tl.full([PADDED_GROUP], float("-inf"), tl.float32)
    weight = tl.zeros([PADDED_GROUP], tl.float32)
    summed = tl.zeros([PADDED_GROUP, PADDED_DIM], tl.float32)
    for tile in range(begin, stop, TILE):
        position = tile + within
        is_seen = position < stop
        if HAS_WINDOW:
            is_seen = is_seen & (position >= oldest)
        block = tl.load(block_table + row * table_width + position // BLOCK_SIZE, mask=is_seen, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        place = (slot * NUM_KV_HEADS + kv_head)[:, None] * HEAD_DIM + dims[None, :]
        mask = is_seen[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(keys + place, mask=mask, other=0.0).to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scaling
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        # A tile without a visible position leaves the maximum at -inf; a difference with that is no number.
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        old = tl.exp(best - shift)
        p = tl.exp(scores - shift[:, None])
        v = tl.load(values + place, mask=mask, other=0.0).to(tl.float32)
        weight = weight * old + tl.sum(p, 1)
        summed = summed * old[:, None] + tl.dot(p, v, input_precision=PRECISION)
        best = new_best

    safe = tl.where(weight > 0, weight, 1.0)
    result = summed / safe[:, None]
    if IS_SPLIT:
        num_heads = NUM_KV_HEADS * GROUP
        part = (row.to(tl.int64) * num_heads + head) * num_splits + split
        tl.store(partial + part[:, None] * HEAD_DIM + dims[None, :], result, mask=own)
        total = tl.where(weight > 0, best + tl.log(safe), float("-inf"))
        tl.store(lse + part, total, mask=heads < GROUP)
    else:
        out_place = (token * NUM_KV_HEADS * GROUP + head)[:, None] * HEAD_DIM + dims[None, :]
        tl.store(output + out_place, result.to(output.dtype.element_ty), mask=own)


@triton.jit(do_not_specialize=["num_splits"])  # type: ignore[untyped-decorator]
def combine_kernel(  # type: ignore[no-untyped-def]
    partial,
    lse,
    output,
    starts,
    num_splits,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """The parts of one row and head, weighted by what they attended to."""
    row, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(starts + row).to(tl.int64)
    if tl.load(starts + row + 1) - token != 1:
        return
    splits = tl.arange(0, MAX_SPLITS)
    dims = tl.arange(0, PADDED_DIM)
    is_there = splits < num_splits
    part = (row.to(tl.int64) * NUM_HEADS + head) * num_splits + splits
    logs = tl.load(lse + part, mask=is_there, other=float("-inf"))
    weights = tl.exp(logs - tl.max(logs, 0))
    mask = is_there[:, None] & (dims < HEAD_DIM)[None, :]
    parts = tl.load(partial + part[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
    result = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    place = (token * NUM_HEADS + head) * HEAD_DIM + dims
    tl.store(output + place, result.to(output.dtype.element_ty), mask=dims < HEAD_DIM)


@triton.jit(do_not_specialize=["table_width"])  # type: ignore[untyped-decorator]
def prefill_kernel(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    output,
    starts,
    first,
    key_ends,
    block_table,
    table_width,
    scaling,
    window,
    query_stride,
    heads_stride,
    BLOCK_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_KEY_ENDS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of one row's new tokens, one head. Rows of one token are left to the decode kernel.

    `key_ends` [tokens] is read where a token may see later ones of its row than itself.
    """
    row, head, tile_of_row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(starts + row).to(tl.int64)
    count = (tl.load(starts + row + 1) - start).to(tl.int32)
    if (count <= 1) | (tile_of_row * QUERIES >= count):
        return
    number = tile_of_row * QUERIES + tl.arange(0, QUERIES)
    is_query = number < count
    offset = tl.load(first + row).to(tl.int32)
    q_position = offset + number
    dims = tl.arange(0, PADDED_DIM)
    is_dim = dims < HEAD_DIM
    own = is_query[:, None] & is_dim[None, :]
    token = start + number
    q_place = token[:, None] * query_stride + head * heads_stride + dims[None, :]
    q = tl.load(query + q_place, mask=own, other=0.0).to(tl.float32)

    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(offset + tile_of_row * QUERIES - window + 1, 0) // TILE * TILE
    stop = offset + tl.minimum((tile_of_row + 1) * QUERIES, count)
    q_end = q_position + 1
    if HAS_KEY_ENDS:
        q_end = tl.load(key_ends + token, mask=is_query, other=0).to(tl.int32)
        stop = tl.max(q_end, 0)
    kv_head = head // GROUP
    best = tl.full([QUERIES], float("-inf"), tl.float32)
    weight = tl.zeros([QUERIES], tl.float32)
    summed = tl.zeros([QUERIES, PADDED_DIM], tl.float32)
    for tile in range(begin, stop, TILE):
        position = tile + tl.arange(0, TILE)
        is_key = position < stop
        block = tl.load(block_table + row * table_width + position // BLOCK_SIZE, mask=is_key, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        place = (slot * NUM_KV_HEADS + kv_head)[:, None] * HEAD_DIM + dims[None, :]
        mask = is_key[:, None] & is_dim[None, :]
        k = tl.load(keys + place, mask=mask, other=0.0).to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scaling
        is_seen = position[None, :] < q_end[:, None]
        if HAS_WINDOW:
            is_seen = is_seen & (position[None, :] > q_position[:, None] - window)
        scores = tl.where(is_seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        old = tl.exp(best - shift)
        p = tl.exp(scores - shift[:, None])
        v = tl.load(values + place, mask=mask, other=0.0).to(tl.float32)
        weight = weight * old + tl.sum(p, 1)
        summed = summed * old[:, None] + tl.dot(p, v, input_precision=PRECISION)
        best = new_best

    result = summed / tl.where(weight > 0, weight, 1.0)[:, None]
    out_place = (token * NUM_KV_HEADS * GROUP + head)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(output + out_place, result.to(output.dtype.element_ty), mask=own)


@dataclass(frozen=True, slots=True)
class _TritonStep:
    geometry: StepGeometry
    cache: KVCache
    limits: StepLimits

    def attend(self, layer: int, query: torch.Tensor, scaling: float, window: int | None) -> torch.Tensor:
        tokens, num_heads, head_dim = query.shape
        query = query if query.stride(2) == 1 else query.contiguous()
        output = torch.empty((tokens, num_heads, head_dim), dtype=query.dtype, device=query.device)
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        call = _Call(query, keys, values, output, scaling, window)
        if self.limits.num_decodes:
            self._decode(call)
        if self.limits.max_query > 1:
            self._prefill(call)
        return output

    def _decode(self, call: _Call) -> None:
        geometry, query = self.geometry, call.query
        rows, kv_heads, num_heads = len(geometry.ends), call.num_kv_heads, query.shape[1]
        splits = num_splits(self.limits.max_context, rows * kv_heads, call.window)
        group = num_heads // kv_heads
        partial, lse = call.output, call.output  # never read where the context is not split
        if splits > 1:
            shape = (rows, num_heads, splits)
            partial = torch.empty((*shape, call.head_dim), dtype=torch.float32, device=query.device)
            lse = torch.empty(shape, dtype=torch.float32, device=query.device)
        decode_kernel[(rows, kv_heads, splits)](
            query,
            call.keys,
            call.values,
            call.output,
            partial,
            lse,
            geometry.starts,
            geometry.ends,
            geometry.block_table,
            geometry.block_table.stride(0),
            call.scaling,
            splits,
            call.window or 0,
            query.stride(0),
            query.stride(1),
            GROUP=group,
            PADDED_GROUP=max(_MIN_GROUP, triton.next_power_of_2(group)),
            TILE=_DECODE_TILES[query.dtype.itemsize],
            IS_SPLIT=splits > 1,
            **call.constants,
        )
        if splits > 1:
            combine_kernel[(rows, num_heads)](
                partial,
                lse,
                call.output,
                geometry.starts,
                splits,
                NUM_HEADS=num_heads,
                HEAD_DIM=call.head_dim,
                PADDED_DIM=call.constants["PADDED_DIM"],
                MAX_SPLITS=triton.next_power_of_2(splits),
            )

    def _prefill(self, call: _Call) -> None:
        geometry, query = self.geometry, call.query
        rows, num_heads = len(geometry.ends), query.shape[1]
        tile = prefill_tile(query.dtype, call.head_dim)
        prefill_kernel[(rows, num_heads, triton.cdiv(self.limits.max_query, tile.queries))](
            query,
            call.keys,
            call.values,
            call.output,
            geometry.starts,
            geometry.first,
            geometry.starts if geometry.key_ends is None else geometry.key_ends,  # not read without
            geometry.block_table,
            geometry.block_table.stride(0),
            call.scaling,
            call.window or 0,
            query.stride(0),
            query.stride(1),
            GROUP=num_heads // call.num_kv_heads,
            QUERIES=tile.queries,
            TILE=tile.keys,
            HAS_KEY_ENDS=geometry.key_ends is not None,
            num_warps=tile.num_warps,
            **call.constants,
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """One layer's attention: query and output [tokens, heads, head_dim], keys and values as in the cache."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    output: torch.Tensor
    scaling: float
    window: int | None

    @property
    def num_kv_heads(self) -> int:
        return self.keys.shape[2]

    @property
    def head_dim(self) -> int:
        return self.keys.shape[3]

    @property
    def constants(self) -> dict[str, Any]:
        """What a kernel is compiled for."""
        return {
            "BLOCK_SIZE": self.keys.shape[1],
            "NUM_KV_HEADS": self.num_kv_heads,
            "HEAD_DIM": self.head_dim,
            "PADDED_DIM": max(_MIN_HEAD_DIM, triton.next_power_of_2(self.head_dim)),
            "HAS_WINDOW": self.window is not None,
            "PRECISION": precision_of(self.query.dtype),
        }


class TritonAttention:
    name: AttentionName = "triton"
    description = f"triton {triton.__version__}"
    can_be_captured = True

    def begin(self, geometry: StepGeometry, cache: KVCache, limits: StepLimits) -> _TritonStep:
        return _TritonStep(geometry, cache, limits)


def precision_of(dtype: torch.dtype) -> str:
    """Of a matrix product: a 16-bit number is a TF32 number exactly, a float32 is not."""
    return "ieee" if dtype == torch.float32 else "tf32"


class PrefillTile(NamedTuple):
    """Queries and keys of a tile, and the warps that share it."""

    queries: int
    keys: int
    num_warps: int


def prefill_tile(dtype: torch.dtype, head_dim: int, is_older: bool = _IS_OLDER) -> PrefillTile:
    """The largest that spill no registers (tests/runner/kernels/test_triton_compile.py).

    An older Triton's ptxas spills a register of two of them, which are others there.
    """
    is_small = head_dim <= 128
    if dtype == torch.float32:
        return PrefillTile(32, 32, 8) if is_older and is_small else PrefillTile(32, 16, 8)
    if is_small:
        return PrefillTile(64, 32, 8)
    return PrefillTile(32, 32, 8) if is_older else PrefillTile(32, 32, 4)


def num_splits(max_context: int, programs: int, window: int | None) -> int:
    """Parts a context is cut into, so that few rows fill the device as well as many do."""
    reach = max_context if window is None else min(max_context, window)
    most = max(1, min(_MAX_SPLITS, reach // _MIN_POSITIONS_A_SPLIT))
    return min(most, max(1, _WANTED_PROGRAMS // programs))
