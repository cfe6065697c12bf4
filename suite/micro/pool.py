"""A step's device half with nothing but its buffers: real programs, one or as many as exceed the cache.

A set of programs shares one small model; each has buffers of its own, so that running a command on one after
another rotates the memory it touches (torch).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from runner.commands import MetadataLayout, buffer_table, ring
from runner.config import RunnerConfig
from runner.kernels.model import DeviceModel
from runner.kernels.program import CopyCounter, Program, Wire
from runner.models import TINY_QWEN3, ModelSpec
from suite.micro.machine import Machine
from suite.micro.timing import Call

METADATA = ring("step_metadata", 0)

_DTYPES = {"int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8, "float32": torch.float32}
_MAX_ROWS = 64
_VOCAB = 128
_HELD = 6  # arrays of tokens x hidden that a program holds, its host sides among them
_MAX_PROGRAMS = 512
_ITEM_BYTES = 4


class Sizes(NamedTuple):
    """Of a step: tokens, the width of a row, and the least that a pass over its rows touches."""

    tokens: int
    hidden: int
    least_touched: int


class Mix(NamedTuple):
    """Which positions of a step are supplied: the first ones of each row, `supplied` in all."""

    tokens: int
    rows: int
    supplied: int

    @property
    def per_row(self) -> int:
        return self.tokens // self.rows

    @property
    def lengths(self) -> list[int]:
        """Supplied positions of each row; rows differ by one at most, and are spread evenly."""
        return [
            (row + 1) * self.supplied // self.rows - row * self.supplied // self.rows
            for row in range(self.rows)
        ]

    @property
    def places(self) -> list[int]:
        return [
            row * self.per_row + offset for row, length in enumerate(self.lengths) for offset in range(length)
        ]


def mix(tokens: int, share: float) -> Mix:
    """At most 64 rows, all of one length."""
    rows = min(_MAX_ROWS, tokens)
    assert tokens % rows == 0
    return Mix(tokens, rows, round(tokens * share))


def small_model(hidden: int) -> ModelSpec:
    """One layer of that width and nothing to compute: only its table of 128 rows is looked up in."""
    sizes = {
        "vocab_size": _VOCAB,
        "hidden_size": hidden,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    return replace(
        TINY_QWEN3,
        name=f"micro-{hidden}",
        hidden_size=hidden,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=16,
        vocab_size=_VOCAB,
        hf_config={**TINY_QWEN3.hf_config, **sizes},
    )


class Pool:
    """Programs for steps of one size. `is_cold`: together they exceed the cache for every pass."""

    def __init__(self, machine: Machine, sizes: Sizes, rows: int | None = None) -> None:
        tokens, hidden = sizes.tokens, sizes.hidden
        rows = rows or min(_MAX_ROWS, tokens)
        held = _HELD * tokens * hidden * _ITEM_BYTES + _VOCAB * hidden * _ITEM_BYTES
        slots, self.is_cold = machine.rotation(sizes.least_touched, held, _MAX_PROGRAMS)
        self.sizes = sizes
        self.spec = small_model(hidden)
        self.config = RunnerConfig(
            max_num_seqs=rows,
            max_num_batched_tokens=tokens,
            max_model_len=max(1, tokens // rows),
            num_blocks=1,
            num_encoder_slots=1,
            max_images_per_step=1,
            num_resident_rows=tokens,
            num_threads=machine.num_threads,
        )
        buffers = buffer_table(self.config, self.spec)
        model = DeviceModel(self.spec, torch.float32, machine.device)
        self._hosts: list[Mapping[str, torch.Tensor]] = []
        self._programs: list[Program] = []
        for _ in range(slots):
            host = {
                name: torch.ones(item.shape, dtype=_DTYPES[item.dtype], pin_memory=machine.is_cuda)
                for name, item in buffers.items()
            }
            self._hosts.append(host)
            program = Program(self.spec, self.config, buffers, host, machine.device, model)
            program.reset()  # writes every buffer: memory nobody wrote is not there yet
            self._programs.append(program)
        self._write("input_ids", torch.randint(_VOCAB, (tokens,), generator=_seeded()))
        for name, count in (("input_ids", tokens), ("inputs_embeds", tokens), ("resident_rows", tokens)):
            self.run(("upload", name, 0, 0, count))
        self.run(("upload", ring("sampled_ids", 1), 0, 0, rows))
        self.run(("upload", "supplied_rows", 0, 0, tokens))

    def run(self, *wires: Wire) -> None:
        """Run commands on every program, so that what is timed next finds what it needs."""
        for call in self.calls(*wires):
            call()

    def calls(self, *wires: Wire) -> list[Call]:
        """Commands one after another on one program, program by program."""
        return [_call(program, wires) for program in self._programs]

    def set_flags(self, mix: Mix) -> None:
        flags = torch.ones(mix.tokens, dtype=torch.uint8)
        flags[mix.places] = 0
        self._write("is_token_ids", flags)
        self._write("token_index", flags.nonzero()[:, 0])
        self.run(("upload", "is_token_ids", 0, 0, mix.tokens))
        self.run(("upload", "token_index", 0, 0, mix.tokens - mix.supplied))

    def set_step(
        self,
        mix: Mix,
        routes: Sequence[tuple[int, int]] = (),
        places: Sequence[tuple[int, int]] = (),
        derives: bool = False,
    ) -> MetadataLayout:
        """Give every program the step: (target, source) of routed ids and of placed rows."""
        width = -(-mix.per_row // self.config.block_size)
        layout = MetadataLayout(mix.rows, width, len(routes), len(places), derives)
        packed = torch.zeros(layout.size, dtype=torch.int32)
        starts = range(0, mix.tokens + 1, mix.per_row)
        packed[: mix.rows + 1] = torch.tensor(starts)
        packed[layout.slots : layout.block_table] = torch.arange(mix.rows)
        _put(packed, layout.route_target, layout.route_source, routes)
        _put(packed, layout.place_target, layout.place_source, places)
        if derives:
            packed[layout.supplied_length : layout.resident_first] = torch.tensor(mix.lengths)
            packed[layout.resident_first : layout.has_mask] = torch.tensor(starts[:-1])
        self._write(METADATA, packed)
        self.run(("upload", METADATA, 0, 0, layout.size), ("positions", METADATA, mix.tokens, *layout))
        return layout

    def _write(self, buffer: str, values: torch.Tensor) -> None:
        for host in self._hosts:
            host[buffer][: len(values)] = values


def _put(packed: torch.Tensor, target: int, source: int, pairs: Sequence[tuple[int, int]]) -> None:
    if pairs:
        packed[target : target + len(pairs)] = torch.tensor([pair[0] for pair in pairs])
        packed[source : source + len(pairs)] = torch.tensor([pair[1] for pair in pairs])


def _call(program: Program, wires: Sequence[Wire]) -> Call:
    counter = CopyCounter()
    calls = [partial(program.execute, wire, counter) for wire in wires]
    if len(calls) == 1:
        return calls[0]

    def all_of_them() -> None:
        for call in calls:
            call()

    return all_of_them


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)
