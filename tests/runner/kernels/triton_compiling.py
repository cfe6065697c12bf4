"""Compiles for a GPU that is not there: what our own launches would compile, for the shapes given to them.

A program of its own (`python triton_compiling.py 80`), since a process has one Triton, interpreted or not. It
prints one JSON object a kernel compiled: its name, registers, local memory and shared memory in bytes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from runner.commands import MetadataLayout
from runner.config import RunnerConfig
from runner.kernels.decode_inputs import DecodeInputs
from runner.kernels.geometry import StepGeometry, StepLimits
from runner.kernels.kvcache import KVCache
from runner.kernels.triton_attention import TritonAttention
from runner.kernels.triton_inputs import GivenRows, fill_decode_inputs, merge_overlay
from runner.models import TINY_QWEN3

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True, slots=True)
class Shape:
    """Of attention: gemma-3-4b and 12b, qwen3-0.6b, qwen2.5-vl-7b, the tiny presets."""

    heads: int
    kv_heads: int
    head_dim: int


GEMMA3_4B, GEMMA3_12B = Shape(8, 4, 256), Shape(16, 8, 256)
QWEN3, QWEN25_VL, TINY = Shape(16, 8, 128), Shape(28, 4, 128), Shape(4, 2, 64)
WITH_WINDOW = (GEMMA3_4B, GEMMA3_12B, TINY)


class _NoGpu:
    """Stands in for the driver: names a target, and has no device."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compiled_by(capability: int, launch: Callable[[], object]) -> Iterator[tuple[str, dict[str, int]]]:
    """(name, resources) of each kernel `launch` would run."""
    made: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made.append(run(self, *args, grid=grid, warmup=True, **options))
        return made[-1]

    JITFunction.run = compile_only
    try:
        launch()
    finally:
        JITFunction.run = run
    for kernel in made:
        yield kernel.metadata.name, resources(kernel.asm["cubin"])


def resources(cubin: bytes) -> dict[str, int]:
    """What `cuobjdump -res-usage` says: REG, STACK, SHARED, LOCAL; the last is what registers spill to."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", told)}


def attention(
    shape: Shape, dtype: torch.dtype, window: int | None, max_context: int, has_key_ends: bool
) -> None:
    """Both attention kernels, and the one that combines, over a step of two decodes and a chunk."""
    model = replace(
        TINY_QWEN3,
        num_layers=1,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
    )
    cache = KVCache(model, RunnerConfig(num_blocks=8), dtype, torch.device("cpu"))
    counts = torch.tensor([1, 1, 40])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    table = torch.zeros(3, 4, dtype=torch.int64)
    slots = torch.zeros(42, dtype=torch.int64)
    key_ends = slots if has_key_ends else None
    geometry = StepGeometry(starts, counts, counts, table, slots, slots[None], key_ends)
    query = torch.zeros(shape.heads, 42, shape.head_dim, dtype=dtype).transpose(0, 1)
    TritonAttention().begin(geometry, cache, StepLimits(40, max_context, 2)).attend(0, query, 0.1, window)


def decode_inputs(by_slot: bool, num_axes: int) -> None:
    """Positions, slots, block tables and routed ids of three decodes."""
    layout = MetadataLayout(3, 4, 3, 0, False, by_slot, 0)
    packed, ids = torch.zeros(layout.size, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    inputs = DecodeInputs(8, 8, num_axes, 16, 99, torch.device("cpu"))
    rope = torch.zeros(8, 3, dtype=torch.int64) if num_axes == 3 else None
    given = GivenRows(packed, layout, torch.zeros(8, dtype=torch.int64), rope, ids)
    fill_decode_inputs(inputs, given, ids, 16)


def overlay(dtype: torch.dtype) -> None:
    rows, places = torch.zeros(8, 2560, dtype=dtype), torch.arange(4)
    merge_overlay(rows, places, places, rows.clone())


def launches() -> Iterator[tuple[str, Callable[[], object]]]:
    for shape, dtype in product(
        (GEMMA3_4B, GEMMA3_12B, QWEN3, QWEN25_VL, TINY), (torch.float32, torch.bfloat16)
    ):
        for window in (None, 1024) if shape in WITH_WINDOW else (None,):
            yield _attention(shape, dtype, window, 4096)
    for by_slot, axes in product((False, True), (1, 3)):
        label = f"decode inputs by slot {by_slot} axes {axes}"
        yield label, lambda b=by_slot, a=axes: decode_inputs(b, a)  # type: ignore[misc]
    for dtype in (torch.float32, torch.bfloat16):
        yield f"overlay {dtype}", lambda d=dtype: overlay(d)  # type: ignore[misc]
    yield _attention(QWEN3, torch.float16, None, 4096)
    yield _attention(GEMMA3_4B, torch.float32, 1024, 128)  # not split
    for shape, dtype, window in product(
        WITH_WINDOW, (torch.float32, torch.bfloat16, torch.float16), (None, 1024)
    ):
        yield _attention(shape, dtype, window, 4096, has_key_ends=True)


def _attention(
    shape: Shape, dtype: torch.dtype, window: int | None, max_context: int, has_key_ends: bool = False
) -> tuple[str, Callable[[], object]]:
    label = f"{shape} {dtype} window {window} context {max_context} key ends {has_key_ends}"
    return label, lambda: attention(shape, dtype, window, max_context, has_key_ends)


def main() -> None:
    capability = int(sys.argv[1])
    driver.set_active(_NoGpu(capability))
    for label, launch in launches():
        for name, used in compiled_by(capability, launch):
            print(json.dumps({"kernel": name, "label": label, **used}), flush=True)


if __name__ == "__main__":
    main()
