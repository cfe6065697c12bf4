"""A placeholder outlives its window: a request skipped for a step comes back with drafts of -1 (vLLM #40768,
#46899, #37159, #43434, #32303).

Minimal: async drafts, and so few blocks that requests rest for a step and are scheduled again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL
from arm_probes import probed
from arm_sampling import REPEATING, faults, sampled_requests
from arm_workloads import Arrivals, Case, Recipe, check_finished
from hazard_traffic import CONFIG, fitting

from runner.core import DeviceError
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm
from runner.kernels.program import Program

TIGHT = replace(CONFIG, num_blocks=9, num_speculative_tokens=3)
CASE = Case(
    MICRO_GEMMA3_VL,
    TIGHT,
    tuple(Recipe(("ids", "pure", "spliced")[index % 3], 8, max_tokens=16, seed=index) for index in range(6)),
)


def served(device: Device, arm: Arm, config: Any = TIGHT) -> tuple[Engine, Any]:
    """A run, and what every step of it was told."""
    engine = Engine(CASE.model, config, device, arm)
    requests = sampled_requests(CASE, arm, REPEATING)
    with probed(engine, device) as probe:
        engine.run(Arrivals((0, request) for request in requests))
    return engine, probe


def rests(seen: Sequence[Any]) -> int:
    """How often a request was left out of a step and taken up again later where it was."""
    count, last_step = 0, {}
    for step in seen:
        for row in step.rows:
            if row.first and step.step_id - last_step.get(row.request_id, step.step_id) > 1:
                count += 1
            last_step[row.request_id] = step.step_id
    return count


def test_requests_that_rested_are_right_under_every_arm(devices: Any) -> None:
    device = devices("inline", MICRO_GEMMA3_VL, TIGHT)
    for arm in fitting(MICRO_GEMMA3_VL):
        engine, probe = served(device, arm)
        check_finished(engine)
        assert faults(engine, MICRO_GEMMA3_VL) == {}, arm.name
        assert rests(probe.steps), arm.name


def test_no_placeholder_reaches_a_lookup_though_drafts_are_missing(devices: Any) -> None:
    """Slots are planned for drafts that nobody proposed: -1 stands for them until they are routed."""
    device = devices("inline", MICRO_GEMMA3_VL, TIGHT)
    for name in ("refresh", "async-rows", "skip", "resident", "fused"):
        engine, _ = served(device, ARMS[name])
        states = engine.requests.values()
        assert sum(state.num_drafted for state in states) > sum(state.num_accepted for state in states)


@pytest.mark.parametrize("name", ["async-rows", "fused", "ids"])
def test_drafts_routed_as_they_are_reach_the_lookup(
    name: str, models_built_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: without the clamp an id of -1 is looked up, which is an error and no token."""

    def unclamped(program: Program, source: str, count: int) -> None:
        metadata = program._current_metadata()
        drafts = program._buffers[source].flatten()[metadata.draft_source]
        program._buffers["input_ids"].index_copy_(0, metadata.draft_target, drafts)

    monkeypatch.setattr(Program, "_route_drafts", unclamped)
    with (
        open_device("inline", MICRO_GEMMA3_VL, TIGHT) as device,
        pytest.raises(DeviceError, match=r"lookup|merge"),
    ):
        served(device, ARMS[name])
