"""The forward under torch.compile: the same tokens, compiled before the first step and in no step.

The compiler behind it is a short one here: what is captured, guarded and counted is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN3, MICRO_QWEN25_VL
from arm_workloads import Case, Recipe, check_finished, outputs, serve, wrong_requests
from fake_cuda import FakeCuda, program_maker
from short_compiler import SHORT, serve_with_short_compiler

from runner.config import RunnerConfig
from runner.core import RunnerError
from runner.device.base import Device, open_device
from runner.device.cuda import CudaDevice
from runner.device.process import ProcessDevice
from runner.inputs.arms import ARMS
from runner.kernels import compiled_forward
from runner.kernels.compiled_forward import CompiledForward
from runner.models import ModelSpec

CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=24,
    max_model_len=48,
    block_size=4,
    num_blocks=48,
    num_encoder_slots=2,
    num_resident_rows=96,
    cuda_graphs=False,
)
COMPILED = replace(CONFIG, torch_compile=True)
PROMPTS = (
    Recipe("pure", 29, max_tokens=5, seed=1),  # in two chunks
    Recipe("spliced", 6, max_tokens=9, seed=2),
    Recipe("ids", 8, max_tokens=3, seed=3),
)
WITH_IMAGES = (*PROMPTS, Recipe("ids", 5, num_images=1, max_tokens=4, seed=4))


def case_of(model: ModelSpec) -> Case:
    return Case(model, COMPILED, WITH_IMAGES if model.is_multimodal else PROMPTS, gap=2)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """In the place of inductor, which needs a minute."""
    monkeypatch.setattr(compiled_forward, "BACKEND", SHORT)
    torch._dynamo.reset()  # what other tests compiled counts against a limit
    yield SHORT
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("model", "num_graphs"),
    [(MICRO_GEMMA3_VL, 2), (MICRO_QWEN25_VL, 2), (MICRO_QWEN3, 4)],
    ids=lambda one: getattr(one, "name", None),
)
def test_every_right_arm_gives_the_right_tokens_and_compiles_nothing_in_a_step(
    model: ModelSpec, num_graphs: int, backend: str, models_built_once: None
) -> None:
    """Prompts in chunks, several rows and one alone, images among them: every number of tokens is another."""
    with open_device("inline", model, COMPILED) as device:
        assert device.info.compiled is not None
        assert device.info.compiled.num_graphs == num_graphs, "one token, several; ids, and embeddings"
        assert device.info.compiled.duration_s > 0
        for arm in ARMS.values():
            if arm.is_right and arm.fits(model.is_multimodal):
                engine = serve(case_of(model), device, arm)
                check_finished(engine)
                assert wrong_requests(engine) == {}, arm.name
                assert device.num_recompiled() == 0, arm.name
                counts = {step.num_tokens for step in engine.recorder.steps}
                assert 1 in counts and 24 in counts and len(counts) > 5


@pytest.mark.parametrize("kind", ["lazy", "shuffle:5"])
def test_any_order_of_the_device_gives_the_same_tokens(
    kind: str, backend: str, devices: Any, models_built_once: None
) -> None:
    case = case_of(MICRO_GEMMA3_VL)
    plain = serve(replace(case, config=CONFIG), devices("inline", MICRO_GEMMA3_VL, CONFIG), ARMS["refresh"])
    with open_device(kind, MICRO_GEMMA3_VL, COMPILED) as device:
        assert outputs(serve(case, device, ARMS["refresh"])) == outputs(plain)
        assert device.num_recompiled() == 0


def test_the_devices_process_compiles_before_it_is_ready_and_tells_how_often(
    backend: str, models_built_once: None
) -> None:
    with ProcessDevice(MICRO_QWEN3, COMPILED, serve_with_short_compiler) as device:
        assert device.info.compiled is not None and device.info.compiled.num_graphs == 4
        engine = serve(case_of(MICRO_QWEN3), device, ARMS["text"])
        assert wrong_requests(engine) == {}
        assert device.num_recompiled() == 0
        device.reset()
        assert device.num_recompiled() == 0


def test_a_graph_compiled_in_a_step_is_counted_until_the_next_reset(
    backend: str, models_built_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a warm-up that knows one number of tokens and no other."""

    def warm_up_once(forward: CompiledForward, *inputs: torch.Tensor | None) -> None:
        if forward.num_graphs == 0:
            forward._compiled(*inputs)

    monkeypatch.setattr(CompiledForward, "warm_up", warm_up_once)
    with open_device("inline", MICRO_GEMMA3_VL, COMPILED) as device:
        assert device.info.compiled is not None and device.info.compiled.num_graphs == 1
        engine = serve(case_of(MICRO_GEMMA3_VL), device, ARMS["refresh"])
        assert wrong_requests(engine) == {}
        assert device.num_recompiled() > 0
        device.reset()
        assert device.num_recompiled() == 0


def test_without_it_nothing_is_compiled_and_nothing_said(devices: Any) -> None:
    device: Device = devices("inline", MICRO_GEMMA3_VL, CONFIG)
    assert (device.info.compiled, device.num_recompiled()) == (None, 0)


def test_captured_graphs_replay_what_was_compiled(
    backend: str, devices: Any, models_built_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU: compiled first, then captured, at every size without compiling again."""
    plain = serve(
        replace(case_of(MICRO_GEMMA3_VL), config=CONFIG),
        devices("inline", MICRO_GEMMA3_VL, CONFIG),
        ARMS["refresh"],
    )
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    monkeypatch.setattr("runner.device.cuda.is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # torch's compiler would ask it for more
    with CudaDevice(MICRO_GEMMA3_VL, replace(COMPILED, cuda_graphs=True), program_maker(cuda)) as device:
        assert device.info.graph_sizes == (1, 2, 4) and len(cuda.graphs) == 3
        assert device.info.compiled is not None and device.info.compiled.num_graphs == 2
        engine = serve(case_of(MICRO_GEMMA3_VL), device, ARMS["refresh"])
        assert outputs(engine) == outputs(plain)
        assert any(step.graph_rows for step in engine.recorder.steps)
        assert device.num_recompiled() == 0


@pytest.mark.parametrize("kind", ["inline", "process"])
@pytest.mark.parametrize("named", ["nothing", "a compiler that is not there"])
def test_without_a_compiler_one_line_says_so_before_a_model_is_built(
    named: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named == "nothing":
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", "")
    else:
        monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        RunnerError, match=r"runner.torch_compile is true, but there is no C\+\+ compiler"
    ) as caught:
        open_device(kind, MICRO_GEMMA3_VL, COMPILED)
    assert "\n" not in str(caught.value) and "set it to false" in str(caught.value)


def test_what_cannot_be_compiled_is_one_line_with_the_compilers_own_first_one(
    backend: str, models_built_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: CompiledForward, _graph: object, _inputs: object) -> None:
        raise RuntimeError("g++ found no header\nIn file included from a.cpp")

    monkeypatch.setattr(CompiledForward, "_compile_graph", broken)
    with pytest.raises(RunnerError) as caught:
        open_device("inline", MICRO_GEMMA3_VL, COMPILED)
    assert str(caught.value) == (
        "runner.torch_compile is true, but torch.compile cannot compile micro-gemma3-vl here: "
        "g++ found no header; set it to false"
    )
