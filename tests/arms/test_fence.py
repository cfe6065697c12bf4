"""Where the fence is recorded changes when the host may go on, not what a step does, nor its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN3, MICRO_QWEN25_VL
from arm_probes import edited
from arm_workloads import Case, Recipe, check_finished, outputs, serve, wrong_requests

from runner.commands import Command, Forward, Record, Upload
from runner.config import RunnerConfig
from runner.device.base import Device
from runner.inputs.arms import ARMS, Arm
from runner.models import ModelSpec

CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=24,
    max_model_len=48,
    block_size=4,
    num_blocks=48,
    num_encoder_slots=2,
    num_resident_rows=96,
)
LATE = replace(CONFIG, fence="embeddings")
FENCES = (Record("uploads"), Record("embeddings"))
PROMPTS = (
    Recipe("pure", 9, max_tokens=5, seed=1),
    Recipe("spliced", 6, max_tokens=6, seed=2),
    Recipe(seed=3),
)
WITH_IMAGES = (*PROMPTS, Recipe("ids", 5, num_images=1, max_tokens=4, seed=4))


def case_of(model: ModelSpec, config: RunnerConfig) -> Case:
    return Case(model, config, WITH_IMAGES if model.is_multimodal else PROMPTS, gap=1)


def model_of(arm: Arm) -> ModelSpec:
    return MICRO_QWEN3 if arm.models == "text" else MICRO_GEMMA3_VL


def commands_of(config: RunnerConfig, arm: Arm, device: Device) -> list[list[Command]]:
    """Of every step. What a device is opened with does not depend on the fence."""
    seen: list[list[Command]] = []

    def keep(_step_id: int, commands: Sequence[Command]) -> Sequence[Command]:
        seen.append(list(commands))
        return commands

    with edited(device, keep):
        serve(case_of(model_of(arm), config), device, arm)
    return seen


@pytest.mark.parametrize("arm", ARMS.values(), ids=lambda arm: arm.name)
def test_an_arms_steps_differ_in_the_place_of_the_fence_alone(arm: Arm, devices: Any) -> None:
    device = devices("inline", model_of(arm), CONFIG)
    early, late = (commands_of(config, arm, device) for config in (CONFIG, LATE))
    assert len(early) == len(late)
    for before, after in zip(early, late, strict=True):
        assert [c for c in before if c not in FENCES] == [c for c in after if c not in FENCES]
        assert [c for c in before if c in FENCES] == [FENCES[0]]
        assert [c for c in after if c in FENCES] == [FENCES[1]]
        assert isinstance(before[before.index(FENCES[0]) - 1], Upload)
        assert isinstance(after[after.index(FENCES[1]) + 1], Forward)


@pytest.mark.parametrize("kind", ["inline", "lazy", "shuffle:3", "process"])
@pytest.mark.parametrize("model", [MICRO_GEMMA3_VL, MICRO_QWEN25_VL, MICRO_QWEN3], ids=lambda one: one.name)
def test_the_tokens_of_every_right_arm_are_right_behind_a_late_fence(
    model: ModelSpec, kind: str, devices: Any
) -> None:
    device = devices(kind, model, CONFIG)
    for arm in ARMS.values():
        if arm.is_right and arm.fits(model.is_multimodal):
            engine = serve(case_of(model, LATE), device, arm)
            check_finished(engine)
            assert wrong_requests(engine) == {}, arm.name


def test_a_late_fence_mends_no_arm_that_is_wrong(devices: Any) -> None:
    """The order of the host's writes is not what is wrong with it; and wrong tokens are seen here."""
    device = devices("inline", MICRO_GEMMA3_VL, CONFIG)
    runs = [serve(case_of(MICRO_GEMMA3_VL, one), device, ARMS["overwrite"]) for one in (CONFIG, LATE)]
    assert outputs(runs[0]) == outputs(runs[1])
    assert wrong_requests(runs[1])
