"""The device passes of every merge, counted by torch itself: operations, and temporaries as wide as the rows.

`where` must be vLLM's V1 runner pass by pass: an `out=` would make it cheaper than it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN3
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from runner.commands import (
    Command,
    Flags,
    Lookup,
    Merge,
    MetadataLayout,
    Place,
    Positions,
    SafeIds,
    Upload,
    buffer_table,
)
from runner.config import RunnerConfig
from runner.kernels.program import CopyCounter, Program
from runner.models import ModelSpec

CONFIG = RunnerConfig(
    max_num_seqs=2,
    max_num_batched_tokens=16,
    max_model_len=32,
    block_size=8,
    num_blocks=8,
    num_encoder_slots=1,
    num_resident_rows=16,
)
COUNT, HIDDEN = 10, 64
VIEWS = (
    "slice",
    "view",
    "unsqueeze",
    "select",
    "detach",
    "alias",
    "expand",
    "t",
    "transpose",
    "_unsafe_view",
)
CHECKS = ("min", "max", "item", "_local_scalar_dense", "numel")


@dataclass(frozen=True, slots=True)
class Pass:
    """One operation that computes: how many elements it writes, and whether to new memory."""

    name: str
    size: int
    is_temporary: bool

    def __repr__(self) -> str:
        return f"{self.name} {self.size}{' new' if self.is_temporary else ''}"


@dataclass
class Counting(TorchDispatchMode):
    passes: list[Pass] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if isinstance(output, torch.Tensor) and name not in VIEWS + CHECKS:
            given = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, torch.Tensor)]
            old = {item.untyped_storage().data_ptr() for item in given}
            is_new = output.untyped_storage().data_ptr() not in old
            if is_new or name != "to":  # a conversion to the type it has already does nothing
                self.passes.append(Pass(name, output.numel(), is_new))
        return output


class Bench:
    """A program of one step of ten positions: rows 0 to 3 supplied, the rest token ids."""

    def __init__(self, model: ModelSpec, derives_flags: bool = False) -> None:
        table = buffer_table(CONFIG, model)
        dtypes = {"int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8, "float32": torch.float32}
        self.host = {name: torch.zeros(item.shape, dtype=dtypes[item.dtype]) for name, item in table.items()}
        self.program = Program(model, CONFIG, table, self.host, torch.device("cpu"))
        self._load(derives_flags)

    def _load(self, derives_flags: bool) -> None:
        self.host["input_ids"][:COUNT] = torch.arange(20, 20 + COUNT)
        self.host["is_token_ids"][4:COUNT] = 1
        self.host["supplied_rows"][:4] = 2.5
        self.host["resident_rows"][:8] = 3.5
        self.host["token_index"][:6] = torch.arange(4, 10)
        num_placed = 0 if derives_flags else 4
        layout = MetadataLayout(1, 2, 0, num_placed, derives_flags)
        values = [0, COUNT, 0, 0, 1, 2]
        values += [4, 0, 0] if derives_flags else [0, 1, 2, 3, 0, 1, 2, 3]
        assert len(values) == layout.size
        self.host["step_metadata.0"][: layout.size] = torch.tensor(values)
        self.run(
            Upload("input_ids", 0, 0, COUNT),
            Upload("is_token_ids", 0, 0, COUNT),
            Upload("supplied_rows", 0, 0, 4),
            Upload("resident_rows", 0, 0, 16),
            Upload("token_index", 0, 0, 6),
            Upload("step_metadata.0", 0, 0, layout.size),
            Positions("step_metadata.0", COUNT, *layout),
        )
        self.program._buffers["inputs_embeds"].fill_(1.5)

    def run(self, *commands: Command) -> list[Pass]:
        with Counting() as counting:
            for command in commands:
                self.program.execute(command.to_wire(), CopyCounter())
        return counting.passes

    @property
    def rows(self) -> torch.Tensor:
        return self.program._buffers["inputs_embeds"][:COUNT]

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            return self.program._model.lookup(torch.tensor(ids))


def wide(passes: list[Pass]) -> list[str]:
    """Passes over whole rows."""
    return [repr(item) for item in passes if item.size >= HIDDEN]


def small(passes: list[Pass]) -> list[str]:
    return [repr(item) for item in passes if item.size < HIDDEN]


TEN_ROWS, SIX_ROWS, FOUR_ROWS = COUNT * HIDDEN, 6 * HIDDEN, 4 * HIDDEN
TEXT_LOOKUP = [f"embedding {TEN_ROWS} new"]
# Gemma 3 scales what it looks up, here as in vLLM.
SCALED_LOOKUP = [f"embedding {TEN_ROWS} new", f"mul {TEN_ROWS} new"]
MODELS = [(MICRO_QWEN3, TEXT_LOOKUP), (MICRO_GEMMA3_VL, SCALED_LOOKUP)]


@pytest.mark.parametrize(("model", "lookup"), MODELS, ids=["text", "multimodal"])
def test_where_is_four_passes_as_in_vllm(
    model: ModelSpec, lookup: list[str], models_built_once: None
) -> None:
    """where on ids; lookup to a temporary; a where over all rows to a temporary; copy."""
    bench = Bench(model)
    bench.run(Place("scatter", 4))
    assert [repr(item) for item in bench.run(SafeIds("where", COUNT))] == [f"where {COUNT} new"]
    assert wide(bench.run(Lookup("safe", COUNT))) == lookup
    merged = bench.run(Merge("where", COUNT))
    assert [repr(item) for item in merged] == [f"where {TEN_ROWS} new", f"copy_ {TEN_ROWS}"]
    torch.testing.assert_close(bench.rows[:4], torch.full((4, HIDDEN), 2.5))
    torch.testing.assert_close(bench.rows[4:], bench.embed(range(24, 30)))


@pytest.mark.parametrize(("model", "lookup"), MODELS, ids=["text", "multimodal"])
def test_without_supplied_rows_it_is_a_lookup_to_a_temporary_and_a_copy(
    model: ModelSpec, lookup: list[str], models_built_once: None
) -> None:
    bench = Bench(model)
    passes = bench.run(Lookup("ids", COUNT), Merge("copy", COUNT))
    assert wide(passes) == [*lookup, f"copy_ {TEN_ROWS}"]
    assert small(passes) == []
    torch.testing.assert_close(bench.rows, bench.embed(range(20, 30)))


def test_overwrite_clamps_ids_to_a_temporary_and_looks_all_up(models_built_once: None) -> None:
    bench = Bench(MICRO_GEMMA3_VL)
    bench.host["input_ids"][1] = -1
    bench.run(Upload("input_ids", 0, 0, COUNT))
    passes = bench.run(SafeIds("clamp", COUNT), Lookup("safe", COUNT), Merge("copy", COUNT))
    assert small(passes) == [f"clamp {COUNT} new"]
    assert wide(passes) == [*SCALED_LOOKUP, f"copy_ {TEN_ROWS}"]
    torch.testing.assert_close(bench.rows, bench.embed([20, 0, *range(22, 30)]))


def test_index_gathers_ids_looks_those_up_and_puts_them(models_built_once: None) -> None:
    bench = Bench(MICRO_QWEN3)
    passes = bench.run(Lookup("indexed", 6), Merge("index", 6))
    assert small(passes) == ["index 6 new"]
    assert wide(passes) == [
        f"embedding {SIX_ROWS} new",
        f"index_put_ {CONFIG.max_num_batched_tokens * HIDDEN}",
    ]
    torch.testing.assert_close(bench.rows[:4], torch.full((4, HIDDEN), 1.5))
    torch.testing.assert_close(bench.rows[4:], bench.embed(range(24, 30)))


def test_overlay_writes_supplied_rows_only(models_built_once: None) -> None:
    bench = Bench(MICRO_QWEN3)
    bench.run(Lookup("ids", COUNT), Merge("copy", COUNT))
    passes = wide(bench.run(Merge("overlay", 4)))
    assert passes == [
        f"index_select {FOUR_ROWS} new",
        f"index_copy_ {CONFIG.max_num_batched_tokens * HIDDEN}",
    ]
    torch.testing.assert_close(bench.rows[:4], torch.full((4, HIDDEN), 3.5))
    torch.testing.assert_close(bench.rows[4:], bench.embed(range(24, 30)))


@pytest.mark.parametrize("model", [MICRO_QWEN3, MICRO_GEMMA3_VL], ids=["text", "multimodal"])
def test_fused_is_one_gather_and_no_wide_temporary(model: ModelSpec, models_built_once: None) -> None:
    bench = Bench(model, derives_flags=True)
    passes = bench.run(Merge("fused", COUNT))
    assert wide(passes) == [f"index_select {TEN_ROWS}"]
    torch.testing.assert_close(bench.rows[:4], torch.full((4, HIDDEN), 3.5))
    assert torch.equal(bench.rows[4:], bench.embed(range(24, 30))), "bit by bit what the lookup gives"


def test_fused_without_supplied_rows_takes_the_ids_as_they_are(models_built_once: None) -> None:
    bench = Bench(MICRO_QWEN3)
    passes = bench.run(Merge("fused", COUNT))
    assert [repr(item) for item in passes] == [f"index_select {TEN_ROWS}"]
    assert torch.equal(bench.rows, bench.embed(range(20, 30)))


def test_flags_are_filled_in_one_pass_and_derived_without_touching_rows(models_built_once: None) -> None:
    bench = Bench(MICRO_QWEN3)
    assert [repr(item) for item in bench.run(Flags("fill", COUNT))] == [f"fill_ {COUNT}"]
    derived = Bench(MICRO_QWEN3, derives_flags=True)
    passes = derived.run(Flags("derived", COUNT))
    assert wide(passes) == []
    assert derived.program._buffers["is_token_ids"][:COUNT].tolist() == [0] * 4 + [1] * 6


def test_placing_rows_is_one_scatter_and_from_the_arena_one_gather_more(models_built_once: None) -> None:
    bench = Bench(MICRO_QWEN3)
    whole = CONFIG.max_num_batched_tokens * HIDDEN
    assert wide(bench.run(Place("scatter", 4))) == [f"index_copy_ {whole}"]
    assert wide(bench.run(Place("gather", 4))) == [f"index_select {FOUR_ROWS} new", f"index_copy_ {whole}"]
