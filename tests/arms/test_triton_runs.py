"""Whole runs with our Triton kernels: the same tokens, and no wait for the device anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from arm_models import MICRO, MICRO_BOTH_WAYS, MICRO_GEMMA3_VL, MICRO_QWEN3, MICRO_QWEN25_VL
from arm_sampling import CONFIG, mixed_case, sampled_requests
from arm_workloads import Arrivals, outputs

from runner.commands import Command, Forward, Positions
from runner.core import RunnerError
from runner.device.base import Device, open_device
from runner.device.host import HostDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.kernels import attention_choice
from runner.measure import Instrument
from runner.models import ModelSpec

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the kernels are compiled: tests marked gpu"
)

OURS = replace(CONFIG, attention="triton")


def serve(model: ModelSpec, device: Device, arm: str, sync_check: Any = "off", drafts: int = 0) -> Engine:
    config = replace(OURS, num_speculative_tokens=drafts)
    case = mixed_case(model, config, count=5, lengths=(5, 30, 9), max_tokens=(3, 5))
    engine = Engine(model, config, device, ARMS[arm], Instrument(sync_check=sync_check))
    requests = sampled_requests(case, ARMS[arm], {})
    engine.run(Arrivals((index * case.gap, request) for index, request in enumerate(requests)))
    return engine


@pytest.mark.parametrize("model", (*MICRO, MICRO_BOTH_WAYS), ids=lambda model: model.name)
def test_the_tokens_are_those_of_the_reference(model: ModelSpec, devices: Any) -> None:
    """Prompts, chunks and decodes, sliding windows too; both models' one and many KV heads."""
    arm = "fused" if model.is_multimodal else "ids"
    ours, reference = devices("inline", model, OURS), devices("inline", model, CONFIG)
    assert ours.info.attention.startswith("triton ")
    assert reference.info.attention == "sdpa"
    engine = serve(model, ours, arm)
    assert {"prefill", "mixed", "decode"} <= {step.kind for step in engine.recorder.steps}
    assert outputs(engine) == outputs(serve(model, reference, arm))


def test_drafts_and_their_shorter_contexts_give_the_same_tokens(devices: Any) -> None:
    """Where the host guesses, contexts are shorter than it told."""
    drafting = replace(CONFIG, num_speculative_tokens=2)
    ours = devices("inline", MICRO_QWEN3, replace(drafting, attention="triton"))
    tokens = outputs(serve(MICRO_QWEN3, ours, "ids", drafts=2))
    reference = devices("inline", MICRO_QWEN3, drafting)
    assert tokens == outputs(serve(MICRO_QWEN3, reference, "ids", drafts=2))


@pytest.mark.parametrize(("model", "arm"), [(MICRO_QWEN3, "ids"), (MICRO_QWEN25_VL, "fused")])
@pytest.mark.parametrize("drafts", [0, 2])
def test_decodes_filled_up_and_routed_in_one_launch_give_the_same_tokens(
    model: ModelSpec, arm: str, drafts: int, devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(OURS, num_speculative_tokens=drafts)
    seen: list[Command] = []
    execute = HostDevice.execute

    def watched(self: HostDevice, step_id: int, commands: Any) -> None:
        seen.extend(commands)
        execute(self, step_id, commands)

    ours = HostDevice(model, config, "inline", graph_sizes=(3, 4))
    assert ours.info.fuses_routes
    with monkeypatch.context() as patch:
        patch.setattr(HostDevice, "execute", watched)
        tokens = outputs(serve(model, ours, arm, drafts=drafts))
    assert any(isinstance(command, Positions) and command.routed for command in seen)
    captured = [command for command in seen if isinstance(command, Forward) and command.graph]
    assert captured, "no step was filled up"
    reference = devices("inline", model, replace(CONFIG, num_speculative_tokens=drafts))
    assert tokens == outputs(serve(model, reference, arm, drafts=drafts))


class _Launch:
    """Stands in for a kernel: launched, and not run. The interpreter would read its tensors."""

    launched = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(isinstance(size, int) and size > 0 for size in grid)
        return self._launch

    def _launch(self, *_arguments: Any, **_options: Any) -> None:
        _Launch.launched += 1


@pytest.fixture
def kernels_not_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from runner.kernels import triton_attention, triton_inputs

    zeros = torch.zeros
    for name in ("decode_kernel", "combine_kernel", "prefill_kernel"):
        monkeypatch.setattr(triton_attention, name, _Launch())
    for name in ("decode_inputs_kernel", "overlay_kernel"):
        monkeypatch.setattr(triton_inputs, name, _Launch())
    monkeypatch.setattr(triton_attention.torch, "empty", zeros)  # what nobody computes is no number
    yield


@pytest.mark.parametrize("arm", ["refresh", "fused", "gated", "ids", "resident"])
def test_no_step_waits_for_the_device_anywhere(
    arm: str, devices: Any, kernels_not_run: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the reference attention is allowed is not needed here."""
    allowed = {"runner/kernels/program.py:_check_range"}
    monkeypatch.setattr(
        "runner.kernels.sync_watch.is_allowed",
        lambda operation, place: place in allowed or operation == "encode",
    )
    device = devices("inline", MICRO_GEMMA3_VL, OURS)
    before = _Launch.launched
    serve(MICRO_GEMMA3_VL, device, arm, "error")
    assert _Launch.launched > before + 10
    assert list(device.sync_findings()) == []


# ---- what the machine cannot do


def refused(attention: Any, **changes: Any) -> str:
    with pytest.raises(RunnerError) as caught:
        open_device("inline", MICRO_QWEN3, replace(CONFIG, attention=attention, **changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_triton_on_a_cpu_is_refused_outside_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    assert refused("triton").startswith(
        "runner.attention is 'triton', but its kernels run on a GPU, and this device is a CPU; use 'auto'"
    )


def test_triton_that_is_not_installed_is_refused_and_is_nobodys_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_choice.importlib.util, "find_spec", lambda _name: None)
    assert "the package triton is not installed (pip install triton)" in refused("triton")
    on_a_gpu = attention_choice.choose_attention(CONFIG, MICRO_QWEN3, torch.float32, torch.device("cuda"))
    assert on_a_gpu.name == "sdpa"


def test_varlen_is_refused_on_a_cpu_and_never_called_there() -> None:
    assert "FlashAttention runs on a GPU, and this device is a CPU" in refused("varlen")


@pytest.mark.parametrize(
    ("dtype", "block_size", "reason"),
    [
        (torch.float32, 256, "computes in 16 bits, and the model is in float32"),
        (torch.bfloat16, 16, "multiples of 256 positions, and runner.block_size is 16"),
        (torch.bfloat16, 256, None),
    ],
)
def test_varlen_on_a_gpu_needs_16_bits_and_large_blocks(
    dtype: torch.dtype, block_size: int, reason: str | None
) -> None:
    config = replace(CONFIG, block_size=block_size)
    told = attention_choice.why_not("varlen", config, MICRO_QWEN3, dtype, torch.device("cuda"))
    assert told is None if reason is None else reason in (told or "")


def test_varlen_has_no_mask_for_images_that_attend_in_both_directions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_choice, "varlen_is_paged", lambda: True)
    gpu, config = torch.device("cuda"), replace(CONFIG, block_size=256)
    told = attention_choice.why_not("varlen", config, MICRO_BOTH_WAYS, torch.bfloat16, gpu)
    assert told is not None and "no mask for images of micro-gemma3-vl-both-ways" in told
    assert "(image_attention)" in told
    assert attention_choice.why_not("varlen", config, MICRO_GEMMA3_VL, torch.bfloat16, gpu) is None
    assert attention_choice.choose_attention(config, MICRO_BOTH_WAYS, torch.bfloat16, gpu).name == "triton"
    monkeypatch.setattr(attention_choice.importlib.util, "find_spec", lambda _name: None)
    assert attention_choice.choose_attention(config, MICRO_BOTH_WAYS, torch.bfloat16, gpu).name == "sdpa"
    with pytest.raises(RunnerError, match=r"runner\.attention is 'varlen', but it has no mask for images"):
        forced = replace(config, attention="varlen")
        attention_choice.choose_attention(forced, MICRO_BOTH_WAYS, torch.bfloat16, gpu)


def test_a_torch_without_a_block_table_has_no_varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.kernels.varlen_attention._varlen_attn", lambda: lambda query, key: None)
    told = attention_choice.why_not("varlen", CONFIG, MICRO_QWEN3, torch.bfloat16, torch.device("cuda"))
    assert told is not None and "no varlen_attn with a block table" in told


def test_on_a_gpu_our_kernels_are_the_default() -> None:
    chosen = attention_choice.choose_attention(CONFIG, MICRO_QWEN3, torch.bfloat16, torch.device("cuda"))
    assert chosen.name == "triton"
