"""Drafts are hardly ever accepted beside embeddings: draft slots are not marked as ids (vLLM #57356).

Minimal: a row whose last owner was a longer prompt of embeddings, then a request with drafts in it. A draft
that is embedded wrongly changes no token, so acceptance is what must be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL
from arm_probes import edited
from arm_sampling import REPEATING, faults, serve_sampled
from arm_workloads import Case, Recipe
from hazard_traffic import CONFIG, fitting

from runner.commands import Command, RouteDrafts
from runner.device.base import open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.inputs.batch import InputBatch

ONE_ROW = replace(CONFIG, max_num_seqs=1, num_speculative_tokens=3)
OWNERS = Case(
    MICRO_GEMMA3_VL,
    ONE_ROW,
    (Recipe("pure", 40, max_tokens=1, seed=1), Recipe("spliced", 5, max_tokens=24, seed=2)),
)


def accepted(engine: Engine) -> int:
    return sum(step.num_accepted_tokens for step in engine.recorder.steps)


@pytest.mark.parametrize("kind", ["inline", "lazy", "process"])
def test_every_arm_accepts_as_many_drafts_as_its_twin_without_embeddings_before(
    kind: str, devices: Any
) -> None:
    device = devices(kind, MICRO_GEMMA3_VL, ONE_ROW)
    alone = replace(OWNERS, recipes=OWNERS.recipes[1:])
    for arm in fitting(MICRO_GEMMA3_VL):
        engine = serve_sampled(OWNERS, device, arm, {**REPEATING, "seed": 0})
        undisturbed = serve_sampled(alone, device, arm, {**REPEATING, "seed": 0})
        assert faults(engine, MICRO_GEMMA3_VL) == {}, arm.name
        assert accepted(engine) == accepted(undisturbed) > 3, arm.name


def test_flags_left_by_the_last_owner_cost_acceptance(devices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: behind its prompt, the row keeps the flags of the prompt that was there before."""
    device = devices("inline", MICRO_GEMMA3_VL, ONE_ROW)
    right = accepted(serve_sampled(OWNERS, device, ARMS["refresh"], REPEATING))
    write = InputBatch._write_prompt

    def keeps_flags(batch: InputBatch, row: int, state: Any) -> None:
        before = batch.is_token_ids[row].copy()
        write(batch, row, state)
        batch.is_token_ids[row, state.num_prompt :] = before[state.num_prompt :]

    monkeypatch.setattr(InputBatch, "_write_prompt", keeps_flags)
    engine = serve_sampled(OWNERS, device, ARMS["refresh"], REPEATING)
    assert accepted(engine) < right or faults(engine, MICRO_GEMMA3_VL)


def test_drafts_that_are_not_routed_cost_acceptance(models_built_once: None) -> None:
    """Negative control: ids of an earlier step stand in the slots."""
    case = replace(OWNERS, recipes=OWNERS.recipes[1:])

    def without_routes(_step_id: int, commands: Sequence[Command]) -> Sequence[Command]:
        return [command for command in commands if not isinstance(command, RouteDrafts)]

    with open_device("inline", MICRO_GEMMA3_VL, ONE_ROW) as device:
        right = accepted(serve_sampled(case, device, ARMS["async-rows"], REPEATING))
        with edited(device, without_routes):
            assert accepted(serve_sampled(case, device, ARMS["async-rows"], REPEATING)) < right
