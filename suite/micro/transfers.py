"""Uploads of flags and embeddings, merges, and routes of ids: the runner's own commands, timed (torch)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from runner.commands import ring
from runner.kernels.program import Wire
from suite.command_costs import PASSES
from suite.micro.case import Case, Prepared
from suite.micro.machine import Machine, Source, slots_of
from suite.micro.pool import METADATA, Mix, Pool, Sizes, mix
from suite.micro.timing import Call

FLAG_BYTES = (64, 256, 1024, 4096, 16384, 65536)
TOKENS = (64, 512, 4096)
SHARES = (0.25, 0.5, 0.75)
WIDE = 2560
ROUTED = (64, 256, 1024)

_ROW_BYTES = 64  # of a row of flags, where they are copied row by row
_ITEM_BYTES = 4
_METADATA_ITEM_BYTES = 4
_LEAST_ROW_PASSES = 2  # the least a pass does with a row: read it, write it


# ---- flags


def flag_uploads(machine: Machine) -> Iterator[Case]:
    """Contiguous and strided sources, in one copy and row by row; then the runner's own command."""
    sources: tuple[Source, ...] = ("pinned", "pageable")
    for size in FLAG_BYTES:
        for source in sources:
            for is_strided in (False, True):
                for is_by_row in (False, True)[: size // _ROW_BYTES]:  # one row is one copy
                    yield _flag_copy(machine, size, source, is_strided, is_by_row)
        wire: Wire = ("upload", "is_token_ids", 0, 0, size)
        prepare = partial(_flag_command, machine, size, wire)
        yield Case("flag-upload", "flags.command", f"{size} B, pinned, contiguous, 1 copy", size, prepare)


def _flag_copy(machine: Machine, size: int, source: Source, is_strided: bool, is_by_row: bool) -> Case:
    rows = size // _ROW_BYTES
    layout = "strided" if is_strided else "contiguous"
    copies = f"{rows} copies" if is_by_row else "1 copy"
    prepare = partial(_prepare_flags, machine, size, source, is_strided, is_by_row)
    return Case("flag-upload", "flags.copy", f"{size} B, {source}, {layout}, {copies}", size, prepare)


def _prepare_flags(
    machine: Machine, size: int, source: Source, is_strided: bool, is_by_row: bool
) -> Prepared:
    if not is_strided and not is_by_row:
        calls, rotation = machine.upload_calls(size, source)
        return Prepared(calls, rotation.is_cold)
    rows, width = size // _ROW_BYTES, _ROW_BYTES * (1 + is_strided)
    rotation = machine.rotation(2 * size, (rows * width) + size, 1024 // rows if is_by_row else 1024)
    host = slots_of(machine.host_bytes(rotation.slots * rows * width, source), rows * width, rows * width)
    device = slots_of(machine.device_bytes(rotation.slots * size), size, size)
    pairs = [
        (target.view(rows, _ROW_BYTES), given.view(rows, width)[:, :_ROW_BYTES])
        for target, given in zip(device, host, strict=True)
    ]
    make = _by_row if is_by_row else _at_once
    return Prepared([make(target, given) for target, given in pairs], rotation.is_cold)


def _at_once(target: torch.Tensor, source: torch.Tensor) -> Call:
    return partial(target.copy_, source, non_blocking=True)


def _by_row(target: torch.Tensor, source: torch.Tensor) -> Call:
    pairs = list(zip(target.unbind(), source.unbind(), strict=True))

    def copy_rows() -> None:
        for into, row in pairs:
            into.copy_(row, non_blocking=True)

    return copy_rows


def _flag_command(machine: Machine, size: int, wire: Wire) -> Prepared:
    pool = Pool(machine, Sizes(size, 16, 2 * size))
    return Prepared(pool.calls(wire), pool.is_cold)


# ---- rows


def row_cases(machine: Machine, hidden: Sequence[int]) -> Iterator[Case]:
    """Uploads and merges of rows over tokens x hidden x supplied share."""
    pools = _Pools(machine)
    for width in hidden:
        for tokens in TOKENS:
            least = round(tokens * min(SHARES) * width * _ITEM_BYTES * _LEAST_ROW_PASSES)
            yield from _Rows(pools, Sizes(tokens, width, least)).cases()


class _Pools:
    """Programs of one size at a time: those of the last size go when another is asked for."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._pool: Pool | None = None

    def of(self, sizes: Sizes) -> Pool:
        if self._pool is None or self._pool.sizes != sizes:
            self._pool = None  # before the next one takes its memory
            self._pool = Pool(self._machine, sizes)
        return self._pool


class _Rows:
    """The cases of one size."""

    def __init__(self, pools: _Pools, sizes: Sizes) -> None:
        self._pools = pools
        self._sizes = sizes

    def cases(self) -> Iterator[Case]:
        tokens = self._sizes.tokens
        everything = mix(tokens, 0.0)
        row = self._sizes.hidden * _ITEM_BYTES
        upload: Wire = ("upload", "inputs_embeds", 0, 0, tokens)
        yield self._case("embedding-upload", "embeds.all", tokens * row, everything, "any", (upload,))
        for name, wire, before in (
            ("merge.lookup", ("lookup", "ids", tokens), ()),
            ("merge.copy", ("merge", "copy", tokens), (("lookup", "ids", tokens),)),
            ("flags.fill", ("flags", "fill", tokens), ()),
        ):
            yield self._pass(name, wire, everything, "any", before)
        for share in SHARES:
            yield from self._shared(mix(tokens, share), f"{share:.0%}")

    def _shared(self, step: Mix, share: str) -> Iterator[Case]:
        tokens, supplied = step.tokens, step.supplied
        token_rows = tokens - supplied
        packed = [(place, index) for index, place in enumerate(step.places)]
        arena = [(place, place) for place in step.places]
        lookup: Wire = ("lookup", "ids", tokens)
        safe: Wire = ("merge.ids", "where", tokens)
        indexed: Wire = ("lookup", "indexed", token_rows)
        yield from self._packed(step, share, packed)
        yield self._pass("embeds.gather", ("place", "gather", supplied), step, share, (), arena)
        yield self._pass("merge.ids", safe, step, share)
        where: Wire = ("merge", "where", tokens)
        yield self._pass("merge.where", where, step, share, (safe, ("lookup", "safe", tokens)))
        yield self._pass("merge.lookup.indexed", indexed, step, share)
        yield self._pass("merge.index", ("merge", "index", token_rows), step, share, (indexed,))
        yield self._pass("merge.overlay", ("merge", "overlay", supplied), step, share, (lookup,), arena)
        yield self._pass("merge.fused", ("merge", "fused", tokens), step, share, derives=True)
        yield self._pass("flags.derived", ("flags", "derived", tokens), step, share, derives=True)

    def _packed(self, step: Mix, share: str, places: Sequence[tuple[int, int]]) -> Iterator[Case]:
        """Packed rows, their index in the step's metadata, and the scatter: together, then apart."""
        supplied, row = step.supplied, self._sizes.hidden * _ITEM_BYTES
        copy: Wire = ("upload", "supplied_rows", 0, 0, supplied)
        index: Wire = ("upload", METADATA, 0, 0, 2 * supplied)
        scatter: Wire = ("place", "scatter", supplied)
        moved = supplied * (row + 2 * _METADATA_ITEM_BYTES) + _moved(self._sizes, scatter)
        group = "embedding-upload"
        together = (copy, index, scatter)
        yield self._case(group, "embeds.rows", moved, step, share, together, places=places)
        yield self._case(group, "embeds.packed", supplied * row, step, share, (copy,), places=places)
        yield self._pass("embeds.scatter", scatter, step, share, (), places)

    def _pass(
        self,
        name: str,
        wire: Wire,
        step: Mix,
        share: str,
        before: Sequence[Wire] = (),
        places: Sequence[tuple[int, int]] = (),
        derives: bool = False,
    ) -> Case:
        group = "embedding-upload" if name.startswith("embeds.") else "merge"
        moved = _moved(self._sizes, wire, derives)
        return self._case(group, name, moved, step, share, (wire,), before, places, derives)

    def _case(
        self,
        group: str,
        name: str,
        moved: int,
        step: Mix,
        share: str,
        wires: Sequence[Wire],
        before: Sequence[Wire] = (),
        places: Sequence[tuple[int, int]] = (),
        derives: bool = False,
    ) -> Case:
        def prepare() -> Prepared:
            pool = self._pools.of(self._sizes)
            pool.set_flags(step)
            pool.set_step(step, places=places, derives=derives)
            pool.run(*before)
            return Prepared(pool.calls(*wires), pool.is_cold)

        size = f"{step.tokens} x {self._sizes.hidden}, supplied {share}"
        return Case(group, name, size, moved, prepare)


def _moved(sizes: Sizes, wire: Wire, derives: bool = False) -> int:
    """Bytes a pass reads and writes, by suite/command_costs.py."""
    operation, kind, count = str(wire[0]), str(wire[1]), int(wire[-1])
    key = (operation, "fused, derived" if derives and kind == "fused" else kind)
    cost = PASSES[key]
    return count * (cost.small_bytes + cost.row_passes * sizes.hidden * _ITEM_BYTES)


# ---- routes of ids


def routes(machine: Machine) -> Iterator[Case]:
    """Sampled ids of the last step into input_ids: in place, and turned round."""
    source = ring("sampled_ids", 1)
    for count in ROUTED:
        turned = [(row, count - 1 - row) for row in range(count)]
        same = [(row, row) for row in range(count)]
        for kind, pairs in (("slice", same), ("scatter", turned)):
            wire: Wire = ("route.ids", kind, source, count)
            moved = count * PASSES["route.ids", kind].small_bytes
            yield Case("route", f"route.{kind}", f"{count} ids", moved, _routed(machine, count, pairs, wire))


def _routed(
    machine: Machine, count: int, pairs: Sequence[tuple[int, int]], wire: Wire
) -> Callable[[], Prepared]:
    def prepare() -> Prepared:
        pool = Pool(machine, Sizes(count, 16, 2 * count * _ITEM_BYTES), rows=count)
        pool.set_step(Mix(count, count, 0), routes=pairs)
        return Prepared(pool.calls(wire), pool.is_cold)

    return prepare
