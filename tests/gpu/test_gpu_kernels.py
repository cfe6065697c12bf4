"""Our kernels compiled and run on a GPU: each equals its torch expression, in every type of element.

With float32 the same runs in Triton's interpreter, so that the tests themselves are tried.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gpu_devices import ON_GPU

pytest.importorskip("triton")

from runner.config import RunnerConfig
from runner.kernels import merge, triton_inputs
from runner.kernels.attention import AttentionBackend
from runner.kernels.attention_choice import why_not
from runner.kernels.geometry import StepGeometry, StepLimits
from runner.kernels.kvcache import KVCache
from runner.kernels.sdpa_attention import SdpaAttention
from runner.kernels.triton_attention import TritonAttention
from runner.kernels.varlen_attention import VarlenAttention
from runner.models import MODELS, ModelSpec

# Of the largest magnitude met; SDPA itself computes in 16 bits.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# The interpreter's 16-bit arithmetic is not that of a GPU.
PLACES = [
    pytest.param("inline", torch.float32, id="cpu-float32"),
    *(pytest.param("cuda", dtype, id=f"gpu-{dtype}", marks=ON_GPU) for dtype in TOLERANCE),
]
ROWS = {
    "decodes": [(0, 1), (300, 1), (17, 1), (1023, 1), (64, 1)],
    "chunks": [(0, 70), (33, 100), (200, 2)],
    "mixed": [(90, 1), (0, 40), (255, 1), (16, 33)],
}


class Step:
    def __init__(
        self, model: ModelSpec, rows: list[tuple[int, int]], dtype: Any, device: str, size: int
    ) -> None:
        generator = torch.Generator().manual_seed(len(rows))
        counts = torch.tensor([count for _, count in rows])
        first = torch.tensor([row[0] for row in rows])
        ends = first + counts
        widths = (ends + size - 1) // size
        total = int(widths.sum()) + 2
        config = RunnerConfig(num_blocks=total, block_size=size)
        self.cache = KVCache(model, config, dtype, torch.device(device))
        for tensor in (*self.cache.keys[:1], *self.cache.values[:1]):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        blocks = torch.randperm(total, generator=generator)
        table = torch.zeros(len(rows), int(widths.max()), dtype=torch.int64)
        place = 0
        for row, width in enumerate(widths.tolist()):
            table[row, :width] = blocks[place : place + width]
            place += width
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        new = [torch.arange(begin, stop) for begin, stop in zip(first.tolist(), ends.tolist(), strict=True)]
        slots = [own[place // size] * size + place % size for own, place in zip(table, new, strict=True)]
        tensors = [tensor.to(device) for tensor in (starts, first, ends, table, torch.cat(slots))]
        none = torch.empty(0, dtype=torch.int64, device=device)
        self.geometry = StepGeometry(*tensors, none)
        self.limits = StepLimits(int(counts.max()), int(ends.max()), int((counts == 1).sum()))
        query = torch.randn(model.num_heads, int(counts.sum()), model.head_dim, generator=generator)
        self.query = query.to(device, dtype).transpose(0, 1)

    def attend(self, backend: AttentionBackend, window: int | None) -> torch.Tensor:
        step = backend.begin(self.geometry, self.cache, self.limits)
        with torch.inference_mode():
            return step.attend(0, self.query, self.query.shape[2] ** -0.5, window)


def shapes(kind: str) -> list[ModelSpec]:
    names = ["tiny-gemma3-vl", "tiny-qwen3"]
    return [MODELS[name] for name in (names if kind == "inline" else [*names, "gemma-3-4b", "qwen3-0.6b"])]


@pytest.mark.parametrize(("kind", "dtype"), PLACES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("window", [None, 40])
def test_our_attention_is_that_of_sdpa(kind: str, dtype: Any, rows: str, window: int | None) -> None:
    for model in shapes(kind)[: None if kind == "cuda" else 1]:
        step = Step(model, ROWS[rows], dtype, "cuda" if kind == "cuda" else "cpu", size=16)
        ours = step.attend(TritonAttention(), window).float()
        wanted = step.attend(SdpaAttention(), window).float()
        largest = float(wanted.abs().max())
        torch.testing.assert_close(ours, wanted, rtol=0, atol=TOLERANCE[dtype] * largest, msg=model.name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [pytest.param("cuda", id="gpu", marks=ON_GPU)])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("window", [None, 40])
def test_torchs_varlen_attention_is_that_of_sdpa(
    kind: str, dtype: Any, rows: str, window: int | None
) -> None:
    model = MODELS["tiny-qwen3"]
    reason = why_not("varlen", RunnerConfig(block_size=256), model, dtype, torch.device(kind))
    if reason is not None:
        pytest.skip(reason)
    step = Step(model, ROWS[rows], dtype, kind, size=256)
    ours, wanted = (
        step.attend(VarlenAttention(), window).float(),
        step.attend(SdpaAttention(), window).float(),
    )
    torch.testing.assert_close(ours, wanted, rtol=0, atol=TOLERANCE[dtype] * float(wanted.abs().max()))


@pytest.mark.parametrize(("kind", "dtype"), PLACES)
@pytest.mark.parametrize("window", [None, 40])
def test_our_attention_over_images_is_that_of_sdpa(kind: str, dtype: Any, window: int | None) -> None:
    """Rows 5 to 64 of the first chunk, and all but two of the second, attend in both directions."""
    for model in shapes(kind)[: None if kind == "cuda" else 1]:
        step = Step(model, ROWS["chunks"], dtype, "cuda" if kind == "cuda" else "cpu", size=16)
        ends = torch.cat([first + torch.arange(1, count + 1) for first, count in ROWS["chunks"]])
        ends[5:65], ends[71:169] = 65, 33 + 99
        step.geometry = replace(step.geometry, key_ends=ends.to(step.query.device))
        ours = step.attend(TritonAttention(), window).float()
        wanted = step.attend(SdpaAttention(), window).float()
        largest = float(wanted.abs().max())
        torch.testing.assert_close(ours, wanted, rtol=0, atol=TOLERANCE[dtype] * largest, msg=model.name)


@pytest.mark.parametrize(("kind", "dtype"), PLACES)
def test_overlay_is_that_of_torch(kind: str, dtype: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    arena = torch.randn(50, 2560, generator=generator)
    embeds = torch.randn(64, 2560, generator=generator)
    source, target = torch.randint(50, (20,), generator=generator), torch.randperm(64)[:20]
    device = "cuda" if kind == "cuda" else "cpu"
    rows, source, target = arena.to(device, dtype), source.to(device), target.to(device)
    ours, wanted = embeds.to(device, dtype), embeds.to(device, dtype)
    triton_inputs.merge_overlay(rows, source, target, ours)
    merge.merge_overlay(rows, source, target, wanted)
    assert torch.equal(ours, wanted)
