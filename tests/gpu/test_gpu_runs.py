"""Whole runs on a GPU: right tokens of every right arm, graphs on and off, and no step that waits.

The same tests run on a CPU with a few arms, where other tests have every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from arm_models import MICRO_BOTH_WAYS, MICRO_GEMMA3_VL, MICRO_QWEN3, MICRO_QWEN25_VL
from arm_sampling import CONFIG, mixed_case, sampled_requests
from arm_workloads import Arrivals, check_finished, outputs, serve, wrong_requests
from gpu_devices import GRAPHS, KINDS, ON_GPU, opened, program_of
from test_arm_tokens import MULTIMODAL_TABLE, TEXT_TABLE, Row, case_of, name_of

from runner.commands import Command, Upload
from runner.core import DeviceError, StepPlan
from runner.device.base import Device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.measure import Instrument
from runner.models import ModelSpec
from runner.scheduler import Scheduler

RIGHT = [arm for arm in ARMS.values() if arm.is_right]
A_FEW = {"ids", "refresh", "fused"}
ATTENTIONS = ["auto", "sdpa"]


# ---- every arm against transformers alone


def _rows(model: ModelSpec) -> list[Row]:
    return MULTIMODAL_TABLE if model.is_multimodal else TEXT_TABLE


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "model", [MICRO_GEMMA3_VL, MICRO_QWEN25_VL, MICRO_QWEN3, MICRO_BOTH_WAYS], ids=lambda m: m.name
)
def test_every_right_arm_has_only_right_tokens(kind: str, model: ModelSpec, graphs: bool) -> None:
    for row in _rows(model)[: 1 if kind != "cuda" else None]:
        case = case_of(model, row)
        with opened(kind, model, case.config, graphs) as device:
            for arm in RIGHT:
                if not arm.fits(model.is_multimodal) or (kind != "cuda" and arm.name not in A_FEW):
                    continue
                engine = serve(case, device, arm)
                check_finished(engine)
                assert wrong_requests(engine) == {}, (arm.name, name_of(row))


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("kind", [pytest.param("cuda", id="gpu", marks=ON_GPU)])
def test_each_attention_gives_the_same_tokens_as_a_cpu(kind: str, attention: Any) -> None:
    config = replace(CONFIG, attention=attention)
    case = mixed_case(MICRO_GEMMA3_VL, config, count=6, lengths=(5, 30, 9), max_tokens=(4, 7))
    found = []
    for name in (kind, "inline"):
        on = config if name == kind else replace(config, attention="auto")
        with opened(name, case.model, on, graphs=attention != "sdpa") as device:
            found.append(outputs(serve(case, device, ARMS["fused"])))
    assert found[0] == found[1]


# ---- nothing waits


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arm", ["refresh", "resident", "fused", "ids", "gated"])
def test_no_command_of_a_step_waits_for_the_device(kind: str, arm: str, graphs: bool) -> None:
    case = mixed_case(MICRO_GEMMA3_VL, CONFIG, count=6, lengths=(5, 30, 9), max_tokens=(4, 7))
    with opened(kind, case.model, case.config, graphs) as device:
        engine = Engine(case.model, case.config, device, ARMS[arm], Instrument(sync_check="error"))
        requests = sampled_requests(case, ARMS[arm], {})
        engine.run(Arrivals((index * case.gap, request) for index, request in enumerate(requests)))
        assert list(device.sync_findings()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_that_reaches_outside_its_buffer_is_an_error_and_ends_the_device(kind: str) -> None:
    with opened(kind, MICRO_QWEN3, CONFIG, False) as device:
        with pytest.raises(DeviceError, match="rows"):
            device.execute(0, [Upload("input_ids", 0, 0, 10**9)])
        with pytest.raises(DeviceError):
            device.execute(1, [])


# ---- what is freed is read by nobody


@contextmanager
def free_blocks_poisoned(device: Device) -> Iterator[list[int]]:
    """Fills every block that is free, before each step, with numbers that would ruin any token.

    The list counts the blocks filled at each step.
    """
    program, filled = program_of(device), list[int]()
    plan, execute = Scheduler.plan, device.execute
    free: list[int] = []

    def planned(self: Scheduler) -> StepPlan | None:
        made = plan(self)
        free[:] = list(self.blocks._free)
        return made

    def poisoned(step_id: int, commands: Sequence[Command]) -> None:
        # On the stream of the steps: what is in flight still reads what it was given.
        with stream_of(device), torch.inference_mode():
            index = torch.tensor(free, dtype=torch.int64, device=program._device)
            for tensor in (*program._cache.keys, *program._cache.values):
                tensor.index_fill_(0, index, 3e4)
        filled.append(len(free))
        execute(step_id, commands)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "plan", planned)
        patch.setattr(device, "execute", poisoned)
        yield filled


def stream_of(device: Any) -> Any:
    streams: dict[str, Any] | None = getattr(device, "_streams", None)
    stream: Callable[[Any], Any] = torch.cuda.stream
    return stream(streams["compute"] if streams else None)


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arm", ["refresh", "fused"])
def test_no_token_depends_on_a_block_that_was_freed(kind: str, arm: str, graphs: bool) -> None:
    row = next(row for row in MULTIMODAL_TABLE if row["preempts"])
    case = case_of(MICRO_GEMMA3_VL, row)
    with opened(kind, case.model, case.config, graphs) as device:
        wanted = outputs(serve(case, device, ARMS[arm]))
        with free_blocks_poisoned(device) as filled:
            engine = serve(case, device, ARMS[arm])
    assert outputs(engine) == wanted
    assert sum(filled) > 0
    assert wrong_requests(engine) == {}
