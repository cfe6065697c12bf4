"""KeptContexts: dense copies of what decode rows attend to, kept from step to step (torch).

A decode step adds one position to each context, and attention wants all of a row's positions in one piece:
to gather them out of their blocks anew in every layer of every step copies a hundred times what is new.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

_NOTHING = -1
_MOST = 2  # times the blocks of the cache
_TOO_LARGE = 8  # times the blocks that are wanted
_SMALL = 64  # blocks that are not worth giving back


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows of one token each, as long as their contexts are read.

    block_ids [rows, width]: from the block of the oldest position seen on; counts [rows]: how many of them
    are a row's, the last of which takes its token. tokens [rows]: its place among the packed tokens; offsets
    [rows]: its place within that block.
    """

    block_ids: torch.Tensor
    counts: torch.Tensor
    tokens: torch.Tensor
    offsets: torch.Tensor

    def ordered(self, order: torch.Tensor) -> DecodeRows:
        """The same rows in another order, [rows] indices."""
        return DecodeRows(self.block_ids[order], self.counts[order], self.tokens[order], self.offsets[order])


class _Layer:
    """One layer's keys or values of a copy: [rows, kv_heads, capacity, block_size, head_dim].

    A head's positions lie one behind another, as attention reads them.
    """

    def __init__(self, cache: torch.Tensor, num_rows: int, capacity: int) -> None:
        _, block_size, heads, dim = cache.shape
        all_rows = cache.new_zeros((num_rows, heads, capacity, block_size, dim))
        self._by_block = all_rows.transpose(1, 2)
        self._by_position = all_rows.flatten(0, 3)
        self._contexts = all_rows.flatten(2, 3)
        self._size = (0, 0)
        self._seen = self._contexts

    def updated(self, cache: torch.Tensor, rows: KeptRows) -> torch.Tensor:
        """A view [rows, kv_heads, positions, head_dim] of the rows' contexts, as the cache has them now."""
        if len(rows.stale_ids):
            blocks = cache.index_select(0, rows.stale_ids).transpose(1, 2)
            self._by_block.index_put_(rows.stale, blocks)
        newest = cache.flatten(0, 1).index_select(0, rows.slots)
        self._by_position.index_copy_(0, rows.places, newest.flatten(0, 1))
        if self._size != rows.size:
            self._size = (num_rows, width) = rows.size
            self._seen = self._contexts[:num_rows, :, : width * cache.shape[1]]
        return self._seen


@dataclass(slots=True)
class _Copy:
    """Room for [rows, capacity] blocks of every layer; which block each is of, and as of which step."""

    block_ids: torch.Tensor
    as_of: torch.Tensor
    layers: dict[int, tuple[_Layer, _Layer]] = field(default_factory=dict)
    used_in: int = 0  # the last step

    @staticmethod
    def of(num_rows: int, capacity: int) -> _Copy:
        ids = torch.full((num_rows, capacity), _NOTHING)
        return _Copy(ids, torch.zeros_like(ids))

    @property
    def size(self) -> tuple[int, int]:
        num_rows, capacity = self.block_ids.shape
        return num_rows, capacity

    def suits(self, num_rows: int, width: int) -> bool:
        has_room = num_rows <= self.size[0] and width <= self.size[1]
        return has_room and math.prod(self.size) <= _TOO_LARGE * (num_rows * width + _SMALL)


@dataclass(frozen=True, slots=True)
class KeptRows:
    """A step's rows in a copy: what of it is out of date, and where the new tokens go.

    size: rows, and blocks of the longest. stale, stale_ids: row and column in the copy, and the blocks they
    are of. slots [rows]: each new token's flat position in the cache; places [rows * kv_heads]: in the copy.
    """

    size: tuple[int, int]
    stale: tuple[torch.Tensor, torch.Tensor]
    stale_ids: torch.Tensor
    slots: torch.Tensor
    places: torch.Tensor
    _copy: _Copy

    def contexts(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Brought up to date from the layer's cache, [blocks, block_size, kv_heads, head_dim] each.

        Views [rows, kv_heads, width * block_size, head_dim], valid until the next step's. What lies behind a
        row's own blocks is of anybody, or zero.
        """
        layers = self._copy.layers
        if layer not in layers:
            layers[layer] = _Layer(keys, *self._copy.size), _Layer(values, *self._copy.size)
        of_keys, of_values = layers[layer]
        return of_keys.updated(keys, self), of_values.updated(values, self)


class KeptContexts:
    """The same values as a gather from the cache would give, whatever rows and blocks are used for.

    Of each block it is known which step wrote to it last, and of each copy of one, as of which step it is.
    Groups of rows have copies of their own, by window (the layers that have it) and number; those of a window
    together take at most _MOST times the room of the cache, and rows beyond that are not kept.
    """

    def __init__(self, num_blocks: int, block_size: int, num_kv_heads: int) -> None:
        self._block_size = block_size
        self._num_heads = num_kv_heads
        self._step = 0
        self._written = torch.zeros(num_blocks, dtype=torch.int64)
        self._copies: dict[tuple[int | None, int], _Copy] = {}
        self._slots = self._before = torch.empty(0, dtype=torch.int64)

    def write_all(self) -> None:
        """Every block was written to: nothing that was copied so far is of any use."""
        self._step += 1
        self._written.fill_(self._step)
        self._copies.clear()

    def begin_step(self, slot_mapping: torch.Tensor) -> None:
        """slot_mapping [tokens]: the flat positions that this step writes to, in every layer."""
        self._step += 1
        self._slots = slot_mapping
        blocks = slot_mapping // self._block_size
        self._before = self._written.index_select(0, blocks)
        self._written.index_fill_(0, blocks, self._step)

    def order(self, window: int | None, number: int, given: DecodeRows) -> torch.Tensor | None:
        """The order of a group's rows in which fewest change places, as indices; None: the given one.

        Where one goes the last takes its place: in another order all behind it would be copied anew. A row is
        known by the block it begins with, which is as good as it need be.
        """
        copy = self._copies.get((window, number))
        if copy is None:
            return None
        first_ids = given.block_ids[:, 0].tolist()
        coming: dict[int, list[int]] = {}
        for index, block_id in enumerate(first_ids):
            coming.setdefault(block_id, []).append(index)
        held = copy.block_ids[: len(first_ids), 0].tolist()
        found = [coming[block_id].pop(0) if coming.get(block_id) else None for block_id in held]
        others = iter(sorted(index for indices in coming.values() for index in indices))
        order = [next(others) if index is None else index for index in found] + [*others]
        return None if order == [*range(len(order))] else torch.tensor(order)

    def rows(self, window: int | None, number: int, given: DecodeRows) -> KeptRows | None:
        """Those rows in the group's copy, whatever it had before; None where there is no room for them."""
        num_rows, width = given.block_ids.shape
        copy = self._room(window, number, num_rows, width)
        if copy is None:
            return None
        copy.used_in = self._step
        ids, as_of = copy.block_ids[:num_rows, :width], copy.as_of[:num_rows, :width]
        last = (given.counts - 1)[:, None]
        is_own = torch.arange(width) <= last
        is_newer = self._written[given.block_ids] > as_of
        # A row's last block was written to by this very step: by its own token, which is copied alone.
        before = self._before.index_select(0, given.tokens)[:, None]
        is_newer.scatter_(1, last, before > as_of.gather(1, last))
        is_stale = is_newer.logical_or_(ids != given.block_ids).logical_and_(is_own)
        rows, columns = is_stale.nonzero(as_tuple=True)
        ids.copy_(given.block_ids.where(is_own, _NOTHING))
        as_of.fill_(self._step)
        # Of a head of a row: there each has room for as many positions.
        room = copy.size[1] * self._block_size
        offsets = last[:, 0] * self._block_size + given.offsets
        firsts = torch.arange(0, num_rows * self._num_heads * room, room).view(num_rows, -1)
        return KeptRows(
            size=(num_rows, width),
            stale=(rows, columns),
            stale_ids=given.block_ids[rows, columns],
            slots=self._slots.index_select(0, given.tokens),
            places=(firsts + offsets[:, None]).flatten(),
            _copy=copy,
        )

    def _room(self, window: int | None, number: int, num_rows: int, width: int) -> _Copy | None:
        """The group's copy; an empty one where that is too small, or far too large."""
        copy = self._copies.pop((window, number), None)
        if copy is None or not copy.suits(num_rows, width):
            left = self._left(window)
            sizes = ((_roomy(num_rows), _roomy(width)), (num_rows, width))
            copy = next((_Copy.of(*size) for size in sizes if math.prod(size) <= left), None)
        if copy is not None:
            self._copies[window, number] = copy
        return copy

    def _left(self, window: int | None) -> int:
        """How many blocks more a window's copies may have; those of groups that are no more make room."""
        own = [name for name in self._copies if name[0] == window]
        for name in own:
            if self._copies[name].used_in < self._step - 1:
                del self._copies[name]
        taken = sum(math.prod(self._copies[name].size) for name in own if name in self._copies)
        return _MOST * len(self._written) - taken


def _roomy(wanted: int) -> int:
    """A quarter more than what is wanted, so that growing by one does not copy everything each time."""
    return wanted + wanted // 4 + 2
