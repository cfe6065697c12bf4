"""Paged attention by torch's own scaled_dot_product_attention: the CPU's way, and the reference (torch).

Rows of one token are batched, longest with longest; longer rows (prefill chunks) are taken one by one. The
host loops over the rows, so it reads where they lie: on a GPU it waits for the device once a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

from runner.core import AttentionName
from runner.kernels.geometry import StepGeometry, StepLimits
from runner.kernels.kept_contexts import DecodeRows, KeptRows
from runner.kernels.kvcache import KVCache

_NUM_BUCKETS = 4
_MIN_ROWS_TO_BUCKET = 8
_MIN_SPREAD_TO_BUCKET = 1.5  # bucketing loses when all contexts are about as long


@dataclass(frozen=True, slots=True)
class _Rows:
    """A step's rows as the host sees them: the geometry's facts as lists, its block table and key ends."""

    starts: list[int]
    first: list[int]
    ends: list[int]
    block_table: torch.Tensor
    key_ends: torch.Tensor | None

    @staticmethod
    def read(geometry: StepGeometry) -> _Rows:
        """Waits for the device."""
        return _Rows(
            geometry.starts.tolist(),
            geometry.first.tolist(),
            geometry.ends.tolist(),
            geometry.block_table,
            geometry.key_ends,
        )


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows attended in one call: `tokens` indexes the packed queries, None where they are all of them in
    order. `mask` [rows, 1, queries, keys]: what every layer would add to the scores by a boolean one, 0 or
    minus infinity, where it is small; of a prefill, which keys are seen. `decodes`: rows of one token each,
    and `kept`, their contexts where those are kept from step to step.
    """

    tokens: torch.Tensor | None
    num_rows: int
    block_ids: torch.Tensor
    mask: torch.Tensor
    decodes: DecodeRows | None = None
    kept: KeptRows | None = None


@dataclass(slots=True)
class _SdpaStep:
    """Keeps the groups to attend in, per window: they are the same for every layer."""

    geometry: StepGeometry
    cache: KVCache
    limits: StepLimits
    _rows: _Rows | None = None
    _groups: dict[int | None, list[_Group]] = field(default_factory=dict)

    def attend(self, layer: int, query: torch.Tensor, scaling: float, window: int | None) -> torch.Tensor:
        output: torch.Tensor | None = None
        for group in self._groups_of(window):
            if group.tokens is None:
                return self._attend_group(group, layer, query, scaling)
            output = torch.empty_like(query) if output is None else output
            output[group.tokens] = self._attend_group(group, layer, query[group.tokens], scaling)
        assert output is not None
        return output

    def _attend_group(self, group: _Group, layer: int, query: torch.Tensor, scaling: float) -> torch.Tensor:
        if group.kept is not None:
            keys, values = group.kept.contexts(layer, self.cache.keys[layer], self.cache.values[layer])
        else:
            keys, values = self.cache.gather(layer, group.block_ids, group.num_rows)
        attend = _attend_prefill if group.decodes is None else _attend_decodes
        return attend(query, keys, values, group.mask, scaling)

    def _groups_of(self, window: int | None) -> list[_Group]:
        """The groups under a sliding window (None: full attention), built once a step."""
        if window not in self._groups:
            if self._rows is None:
                self._rows = _Rows.read(self.geometry)
                _check_limits(self._rows, self.limits)
            dtype = self.cache.keys[0].dtype
            groups = _build_groups(self._rows, self.cache.block_size, window, dtype)
            self._groups[window] = [self._kept(window, number, group) for number, group in enumerate(groups)]
        return self._groups[window]

    def _kept(self, window: int | None, number: int, group: _Group) -> _Group:
        """The group with its contexts kept, where there is room for them."""
        kept, rows = self.cache.kept, group.decodes
        if kept is None or rows is None:
            return group
        order = None if group.tokens is None else kept.order(window, number, rows)
        if order is not None:
            rows = rows.ordered(order)
            group = replace(
                group, tokens=rows.tokens, block_ids=rows.block_ids.flatten(), mask=group.mask[order]
            )
        return replace(group, decodes=rows, kept=kept.rows(window, number, rows))


class SdpaAttention:
    name: AttentionName = "sdpa"
    description = "sdpa"
    can_be_captured = False

    def begin(self, geometry: StepGeometry, cache: KVCache, limits: StepLimits) -> _SdpaStep:
        if cache.kept is not None:
            cache.kept.begin_step(geometry.slot_mapping)
        return _SdpaStep(geometry, cache, limits)


def _check_limits(rows: _Rows, limits: StepLimits) -> None:
    """A launch sized too small would leave tokens out in silence, on a GPU; here it is an error."""
    counts = [stop - begin for begin, stop in pairwise(rows.starts)]
    wrong = max(counts) != limits.max_query or max(rows.ends) > limits.max_context
    if wrong or counts.count(1) != limits.num_decodes:
        raise ValueError(f"rows of {counts} tokens and contexts of {rows.ends} are not within {limits}")


def _build_groups(packed: _Rows, block_size: int, window: int | None, dtype: torch.dtype) -> Iterator[_Group]:
    rows = range(len(packed.ends))
    counts = [packed.starts[row + 1] - packed.starts[row] for row in rows]
    decodes = [row for row in rows if counts[row] == 1]
    for bucket in _buckets(decodes, packed.ends):
        yield _decode_group(packed, bucket, block_size, window, dtype)
    for row in rows:
        if counts[row] > 1:
            yield _prefill_group(packed, row, block_size, window)


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


def _decode_group(
    packed: _Rows, rows: list[int], block_size: int, window: int | None, dtype: torch.dtype
) -> _Group:
    device = packed.block_table.device
    index = torch.tensor(rows, device=device)
    ends = torch.tensor([packed.ends[row] for row in rows], device=device)
    oldest = torch.zeros_like(ends) if window is None else (ends - window).clamp_(min=0)
    first_block = oldest // block_size
    last_block = (ends - 1) // block_size
    counts = last_block - first_block + 1
    width = int(counts.max())
    # Rows with fewer blocks repeat their last one; the mask hides the repetition.
    columns = torch.minimum(first_block[:, None] + torch.arange(width, device=device), last_block[:, None])
    block_ids = packed.block_table[index].gather(1, columns)
    key_positions = (first_block * block_size)[:, None] + torch.arange(width * block_size, device=device)
    is_seen = (key_positions < ends[:, None]) & (key_positions >= oldest[:, None])
    mask = _additive(is_seen, dtype)[:, None, None, :]
    firsts = [packed.starts[row] for row in rows]
    tokens = torch.tensor(firsts, device=device)
    decodes = DecodeRows(block_ids, counts, tokens, (ends - 1) % block_size)
    is_all = firsts == [*range(packed.starts[-1])]
    return _Group(None if is_all else tokens, len(rows), block_ids.flatten(), mask, decodes)


def _prefill_group(packed: _Rows, row: int, block_size: int, window: int | None) -> _Group:
    begin, stop = packed.starts[row], packed.starts[row + 1]
    first, end = packed.first[row], packed.ends[row]
    oldest = 0 if window is None else max(0, first - window + 1)
    first_block, last_block = oldest // block_size, (end - 1) // block_size
    block_ids = packed.block_table[row, first_block : last_block + 1]
    device = block_ids.device
    queries = torch.arange(first, end, device=device)[:, None]
    keys = torch.arange(first_block * block_size, (last_block + 1) * block_size, device=device)[None, :]
    key_ends = queries + 1 if packed.key_ends is None else packed.key_ends[begin:stop, None]
    is_seen = keys < key_ends
    if window is not None:
        is_seen &= keys > queries - window
    is_alone = (begin, stop) == (0, packed.starts[-1])
    tokens = None if is_alone else torch.arange(begin, stop, device=device)
    return _Group(tokens, 1, block_ids, is_seen[None, None])


def _additive(is_seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.zeros(is_seen.shape, dtype=dtype, device=is_seen.device)
    return mask.masked_fill_(is_seen.logical_not(), -torch.inf)


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
