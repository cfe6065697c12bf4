"""Paged attention over packed variable-length rows, as a function transformers' layers call (torch).

Each row of a step is one request: its new tokens' queries attend to its whole context in the paged cache.
Rows of one token are batched, longest with longest; longer rows (prefill chunks) are taken one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention

from runner.kernels.kvcache import KVCache

ATTENTION_NAME = "stepcost_paged"

_NUM_BUCKETS = 4
_MIN_ROWS_TO_BUCKET = 8
_MIN_SPREAD_TO_BUCKET = 1.5  # bucketing loses when all contexts are about as long


@dataclass(frozen=True, slots=True)
class StepGeometry:
    """Where a step's rows lie. Host lists and device tensors of the same facts.

    starts [rows + 1], first [rows] and ends [rows]: offset of each row among the packed tokens, position of
    its first new token, and its context length after the step. block_table [rows, width] int64;
    slot_mapping [tokens] int64; rope_positions [axes, tokens] int64, one axis or three.
    """

    starts: list[int]
    first: list[int]
    ends: list[int]
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    rope_positions: torch.Tensor

    @property
    def num_tokens(self) -> int:
        return self.starts[-1]


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows attended in one call: `tokens` indexes the packed queries, `mask` [rows, 1, queries, keys]."""

    tokens: torch.Tensor
    num_rows: int
    block_ids: torch.Tensor
    mask: torch.Tensor
    is_decode: bool


@dataclass(slots=True)
class PagedStep:
    """One step's view of the cache: the geometry, and per window the groups to attend in."""

    geometry: StepGeometry
    cache: KVCache
    _groups: dict[int | None, list[_Group]] = field(default_factory=dict)

    def groups(self, window: int | None) -> list[_Group]:
        """The groups under a sliding window (None: full attention), built once a step."""
        if window not in self._groups:
            self._groups[window] = list(_build_groups(self.geometry, self.cache.block_size, window))
        return self._groups[window]


def _build_groups(geometry: StepGeometry, block_size: int, window: int | None) -> Iterator[_Group]:
    rows = range(len(geometry.ends))
    counts = [geometry.starts[row + 1] - geometry.starts[row] for row in rows]
    decodes = [row for row in rows if counts[row] == 1]
    for bucket in _buckets(decodes, geometry.ends):
        yield _decode_group(geometry, bucket, block_size, window)
    for row in rows:
        if counts[row] > 1:
            yield _prefill_group(geometry, row, block_size, window)


def _buckets(rows: list[int], ends: list[int]) -> list[list[int]]:
    """Rows cut by context length, so that short contexts are not padded to the longest."""
    if not rows:
        return []
    lengths = [ends[row] for row in rows]
    if len(rows) < _MIN_ROWS_TO_BUCKET or max(lengths) < _MIN_SPREAD_TO_BUCKET * min(lengths):
        return [rows]
    ordered = sorted(rows, key=lambda row: ends[row])
    size = -(-len(ordered) // _NUM_BUCKETS)
    return [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]


def _decode_group(geometry: StepGeometry, rows: list[int], block_size: int, window: int | None) -> _Group:
    device = geometry.block_table.device
    index = torch.tensor(rows, device=device)
    ends = torch.tensor([geometry.ends[row] for row in rows], device=device)
    oldest = torch.zeros_like(ends) if window is None else (ends - window).clamp_(min=0)
    first_block = oldest // block_size
    last_block = (ends - 1) // block_size
    width = int((last_block - first_block).max()) + 1
    # Rows with fewer blocks repeat their last one; the mask hides the repetition.
    columns = torch.minimum(first_block[:, None] + torch.arange(width, device=device), last_block[:, None])
    block_ids = geometry.block_table[index].gather(1, columns)
    key_positions = (first_block * block_size)[:, None] + torch.arange(width * block_size, device=device)
    mask = (key_positions < ends[:, None]) & (key_positions >= oldest[:, None])
    tokens = torch.tensor([geometry.starts[row] for row in rows], device=device)
    return _Group(tokens, len(rows), block_ids.flatten(), mask[:, None, None, :], is_decode=True)


def _prefill_group(geometry: StepGeometry, row: int, block_size: int, window: int | None) -> _Group:
    begin, stop = geometry.starts[row], geometry.starts[row + 1]
    first, end = geometry.first[row], geometry.ends[row]
    oldest = 0 if window is None else max(0, first - window + 1)
    first_block, last_block = oldest // block_size, (end - 1) // block_size
    block_ids = geometry.block_table[row, first_block : last_block + 1]
    device = block_ids.device
    queries = torch.arange(first, end, device=device)[:, None]
    keys = torch.arange(first_block * block_size, (last_block + 1) * block_size, device=device)[None, :]
    mask = keys <= queries
    if window is not None:
        mask &= keys > queries - window
    return _Group(torch.arange(begin, stop, device=device), 1, block_ids, mask[None, None], is_decode=False)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    paged_step: PagedStep,
    sliding_window: int | None = None,
    **_unused: object,  # transformers passes every model's extras to every attention function
) -> tuple[torch.Tensor, None]:
    """Attention of packed queries [1, heads, tokens, head_dim] over the paged cache.

    Writes key and value [1, kv_heads, tokens, head_dim] first. Returns [1, tokens, heads, head_dim].
    """
    layer = module.layer_idx
    assert isinstance(layer, int)
    cache, geometry = paged_step.cache, paged_step.geometry
    cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), geometry.slot_mapping)
    packed = query[0].transpose(0, 1)
    output = torch.empty(packed.shape, dtype=packed.dtype, device=packed.device)
    for group in paged_step.groups(sliding_window):
        keys, values = cache.gather(layer, group.block_ids, group.num_rows)
        attend = _attend_decodes if group.is_decode else _attend_prefill
        output[group.tokens] = attend(packed[group.tokens], keys, values, group.mask, scaling)
    return output[None], None


def _attend_decodes(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """query [rows, heads, head_dim], one token a row; the heads of a KV head are taken as its queries."""
    rows, heads, dim = query.shape
    kv_heads = keys.shape[1]
    folded = query.reshape(rows, kv_heads, heads // kv_heads, dim)
    result = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
    return result.reshape(rows, heads, dim)


def _attend_prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """query [tokens, heads, head_dim], the tokens of one row."""
    result = scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys, values, attn_mask=mask, scale=scaling, enable_gqa=True
    )
    return result[0].transpose(0, 1)
