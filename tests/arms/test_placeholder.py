"""A placeholder that really reaches the lookup is a typed failure, never a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN3
from arm_probes import edited
from arm_workloads import Arrivals, Recipe, request_of, wrong_requests

from runner.commands import Command, RouteIds
from runner.config import RunnerConfig
from runner.core import DeviceError
from runner.device.base import open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.models import ModelSpec

CONFIG = RunnerConfig(
    max_num_seqs=3,
    max_num_batched_tokens=16,
    max_model_len=32,
    block_size=8,
    num_blocks=12,
    num_resident_rows=64,
)
# Joins while the first one decodes, so that its step uploads ids with a -1 among them.
LATE = 3


def without_routes(_step_id: int, commands: Sequence[Command]) -> list[Command]:
    return [command for command in commands if not isinstance(command, RouteIds)]


def arrivals(model: ModelSpec, prompt_embeds: bool) -> Arrivals:
    first, second = Recipe("ids", 3, max_tokens=9, seed=1), Recipe("pure", 4, max_tokens=3, seed=2)
    return Arrivals(
        [
            (0, request_of(model, "first", first)),
            (LATE, request_of(model, "second", second, prompt_embeds)),
        ]
    )


@pytest.mark.parametrize("kind", ["inline", "lazy", "process"])
@pytest.mark.parametrize(
    ("arm", "model", "command"),
    [
        ("refresh", MICRO_GEMMA3_VL, "lookup"),
        ("async-rows", MICRO_QWEN3, "lookup"),
        ("resident", MICRO_GEMMA3_VL, "lookup"),
        ("fused", MICRO_GEMMA3_VL, "merge"),
        ("text", MICRO_QWEN3, "lookup"),
        ("ids", MICRO_GEMMA3_VL, "lookup"),
        ("ids", MICRO_QWEN3, "forward"),  # plain text: the lookup is inside the forward
    ],
)
def test_a_placeholder_at_the_lookup_is_an_error_that_names_step_and_command(
    arm: str, model: ModelSpec, command: str, kind: str, models_built_once: None
) -> None:
    with open_device(kind, model, CONFIG) as device:
        engine = Engine(model, CONFIG, device, ARMS[arm])
        with edited(device, without_routes), pytest.raises(DeviceError) as caught:
            engine.run(arrivals(model, ARMS[arm].prompt_embeds))
        assert caught.value.step_id == LATE
        assert command in caught.value.command
        assert f"step {LATE}" in str(caught.value)
        assert "IndexError" in str(caught.value)
        # Whoever asks the device again is told the same.
        with pytest.raises(DeviceError) as again:
            device.wait("output", LATE)
        assert again.value.step_id == LATE
    assert [step.step_id for step in engine.recorder.steps] == list(range(len(engine.recorder.steps)))
    assert len(engine.recorder.steps) <= LATE
    assert len(engine.requests["first"].output_ids) == len(engine.recorder.steps)


@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if arm.scheduling == "async"])
def test_with_its_routes_no_arm_lets_a_placeholder_through(name: str, devices: Any) -> None:
    """The other half: the same traffic runs, `overwrite` with its ids clamped included."""
    arm = ARMS[name]
    for model in (MICRO_GEMMA3_VL, MICRO_QWEN3):
        if arm.fits(model.is_multimodal):
            engine = Engine(model, CONFIG, devices("inline", model, CONFIG), arm)
            engine.run(arrivals(model, arm.prompt_embeds))
            assert [len(state.output_ids) for state in engine.requests.values()] == [9, 3]


@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if arm.is_right and arm.prompt_embeds])
def test_a_placeholder_left_in_a_row_reaches_no_lookup_of_the_next_owner(name: str, devices: Any) -> None:
    """Its embeddings cover the place where the last owner's token was never known in time."""
    arm = ARMS[name]
    model = MICRO_QWEN3 if arm.models == "text" else MICRO_GEMMA3_VL
    engine = Engine(model, CONFIG, devices("inline", model, CONFIG), arm)
    last_owner = request_of(model, "last owner", Recipe("ids", 2, max_tokens=8, seed=1))
    next_owner = request_of(model, "next owner", Recipe("pure", 12, max_tokens=3, seed=2))
    engine.run(Arrivals([(0, last_owner), (14, next_owner)]))
    assert wrong_requests(engine) == {}
    assert [len(state.output_ids) for state in engine.requests.values()] == [8, 3]
