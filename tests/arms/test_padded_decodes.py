"""Decode steps filled up to the sizes of captured graphs: padding changes no token, of no arm, in no order.

What a GPU replays is here computed as any other step, over the same tensors that never move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from arm_models import MICRO, MICRO_GEMMA3_VL, MICRO_QWEN3, MICRO_QWEN25_VL
from arm_sampling import CONFIG, mixed_case, sampled_requests
from arm_workloads import Arrivals, check_finished, outputs
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from runner.commands import BufferSpec, Forward, buffer_table
from runner.device.base import Device
from runner.device.host import HostDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.kernels.program import Body, Program
from runner.models import ModelSpec

SAMPLED = {"temperature": 0.8, "top_k": 5, "seed": 3}


def serve(model: ModelSpec, device: Device, arm: str, drafts: int = 0) -> Engine:
    config = replace(CONFIG, num_speculative_tokens=drafts)
    case = mixed_case(model, config, count=6, lengths=(5, 17, 9), max_tokens=(4, 7, 11))
    engine = Engine(model, config, device, ARMS[arm])
    requests = sampled_requests(case, ARMS[arm], {}, SAMPLED)
    engine.run(Arrivals((index // 4 * 9, request) for index, request in enumerate(requests)))
    check_finished(engine)
    return engine


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Forward]]:
    """Those of devices with graphs."""
    seen: list[Forward] = []
    execute = HostDevice.execute

    def watched(self: HostDevice, step_id: int, commands: Sequence[Any]) -> None:
        if self.info.graph_sizes:
            seen.extend(command for command in commands if isinstance(command, Forward))
        execute(self, step_id, commands)

    monkeypatch.setattr(HostDevice, "execute", watched)
    yield seen


@pytest.mark.parametrize(
    ("order", "model", "arms"),
    [
        ("inline", MICRO_GEMMA3_VL, ("ids", "gated", "refresh", "async-fill", "resident", "fused")),
        ("lazy", MICRO_GEMMA3_VL, ("refresh", "fused")),
        ("inline", MICRO_QWEN25_VL, ("ids", "skip")),
        ("inline", MICRO_QWEN3, ("ids", "sync-ids", "text", "fused")),
    ],
)
def test_no_arm_has_other_tokens_for_padding(
    order: Any, model: ModelSpec, arms: Sequence[str], devices: Any, forwards: list[Forward]
) -> None:
    padded = HostDevice(model, CONFIG, order, graph_sizes=(3, 4))
    plain = devices("inline", model, CONFIG)
    for name in arms:
        assert outputs(serve(model, padded, name)) == outputs(serve(model, plain, name)), name
    used = {(forward.count, forward.graph) for forward in forwards}
    assert {(1, 3), (2, 3), (3, 3), (4, 4)} <= used
    assert {forward.graph for forward in forwards if forward.max_query > 1} == {0}


def test_steps_with_drafts_and_what_follows_them_are_not_disturbed(
    devices: Any, forwards: list[Forward]
) -> None:
    config = replace(CONFIG, num_speculative_tokens=2)
    padded = HostDevice(MICRO_QWEN3, config, "inline", graph_sizes=(2, 4))
    tokens = outputs(serve(MICRO_QWEN3, padded, "ids", drafts=2))
    assert tokens == outputs(serve(MICRO_QWEN3, devices("inline", MICRO_QWEN3, config), "ids", drafts=2))
    assert {forward.graph for forward in forwards} >= {0, 2}


def test_a_step_larger_than_every_graph_is_computed_without(forwards: list[Forward]) -> None:
    serve(MICRO_QWEN3, HostDevice(MICRO_QWEN3, CONFIG, "inline", graph_sizes=(2,)), "ids")
    assert {forward.graph for forward in forwards if forward.count > 2} == {0}


def test_padding_writes_to_the_scratch_block_only(models_built_once: None) -> None:
    """Rows of no request get a position each, in a block that is none of the pool's."""
    device = HostDevice(MICRO_QWEN3, CONFIG, "inline", graph_sizes=(4,))
    serve(MICRO_QWEN3, device, "ids")
    cache = device._runner._program._cache
    assert cache.scratch_block == CONFIG.num_blocks
    device.reset()
    decode = device._runner._program._decode_inputs
    assert decode is not None
    decode.pad(0, torch.zeros(4, dtype=torch.int32))
    with torch.inference_mode():
        device._runner._program._buffers["input_ids"].zero_()
        device._runner._program._graphs[4, "input_ids"]()
    for tensor in (*cache.keys, *cache.values):
        assert len(tensor[:-1].unique()) == 1, "a block of a request was written"
        assert len(tensor[-1].unique()) > 1


# ---- nothing a graph could not hold


class HostConstantError(Exception):
    pass


class _DeviceNamed(TorchFunctionMode):
    """Refuses what makes a tensor where nobody said, which is the host's memory."""

    FACTORIES = frozenset({"arange", "full", "zeros", "ones", "empty", "linspace", "eye"})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in self.FACTORIES and "device" not in (kwargs or {}):
            raise HostConstantError(f"{func.__name__} on no device, so on the host")
        return func(*args, **(kwargs or {}))


class _NoHostConstants(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what makes a tensor of a host's value, and what reads one back."""

    FORBIDDEN = frozenset({"lift_fresh", "scalar_tensor", "_local_scalar_dense", "item", "nonzero", "equal"})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in self.FORBIDDEN:
            raise HostConstantError(name)
        return func(*args, **(kwargs or {}))


class _Launch:
    def __getitem__(self, _grid: object) -> Any:
        return lambda *arguments, **options: None


def program_with_triton(model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Its kernels are launched and not run: the interpreter would read their tensors."""
    triton_attention = pytest.importorskip("runner.kernels.triton_attention")
    for name in ("decode_kernel", "combine_kernel", "prefill_kernel"):
        monkeypatch.setattr(triton_attention, name, _Launch())
    config = replace(CONFIG, attention="triton")
    buffers: dict[str, BufferSpec] = dict(buffer_table(config, model))
    return Program(model, config, buffers, {}, torch.device("cpu"))


def under_watch(body: Body) -> Body:
    with _NoHostConstants(), _DeviceNamed():  # type: ignore[no-untyped-call]
        body()
    return body


@pytest.mark.parametrize("model", MICRO, ids=lambda model: model.name)
def test_no_host_constant_becomes_a_tensor_inside_a_decode(
    model: ModelSpec, monkeypatch: pytest.MonkeyPatch, models_built_once: None
) -> None:
    program_with_triton(model, monkeypatch).capture_graphs((1, 4), under_watch)


@pytest.mark.parametrize(
    "plant",
    [
        lambda hidden: hidden * torch.tensor(2.0),
        lambda hidden: hidden * torch.arange(1),
        lambda hidden: hidden * float(hidden.sum()),
        lambda hidden: hidden * bool(torch.equal(hidden, hidden)),
    ],
)
def test_one_that_does_is_found(plant: Any, monkeypatch: pytest.MonkeyPatch, models_built_once: None) -> None:
    program = program_with_triton(MICRO_QWEN3, monkeypatch)
    forward = program._model.forward
    monkeypatch.setattr(program._model, "forward", lambda *given, **more: plant(forward(*given, **more)))
    with pytest.raises(HostConstantError):
        program.capture_graphs((2,), under_watch)


def test_what_a_graph_reads_never_moves(models_built_once: None) -> None:
    """A replay reads addresses: no step and no reset may put another tensor in a tensor's place."""
    device = HostDevice(MICRO_GEMMA3_VL, CONFIG, "inline", graph_sizes=(4,))
    program = device._runner._program

    def addresses() -> list[int]:
        decode = program._decode_inputs
        assert decode is not None
        geometry = decode.geometry(4)
        assert geometry.key_ends is None, "a decode sees no later position"
        names = [name for name in geometry.__dataclass_fields__ if name != "key_ends"]
        tensors = [getattr(geometry, name) for name in names]
        tensors += [program._buffers["input_ids"], program._buffers["inputs_embeds"]]
        tensors += [*program._cache.keys, *program._cache.values]
        return [tensor.data_ptr() for tensor in tensors]

    before = addresses()
    for arm in ("refresh", "fused"):
        serve(MICRO_GEMMA3_VL, device, arm)
    device.reset()
    assert addresses() == before
    assert math.isnan(float(program._buffers["inputs_embeds"][0, 0]))
