"""Prompts of embeddings crash the drafter or get drafts of nothing: they have no ids (vLLM #42302).

Minimal: a prompt of embeddings alone, in a slot whose last owner had ids, and a proposer that needs some.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN3
from arm_sampling import REPEATING, faults, serve_sampled
from arm_workloads import Case, Recipe, check_finished
from hazard_traffic import CONFIG, fitting

from runner.commands import Upload
from runner.device.host import HostDevice
from runner.inputs.arms import ARMS

DRAFTING = replace(CONFIG, max_num_seqs=2, num_speculative_tokens=3)
RECIPES = (
    Recipe("ids", 20, max_tokens=2, seed=1),
    Recipe("pure", 22, max_tokens=14, seed=2),
    Recipe("pure", 9, max_tokens=12, seed=3),
    Recipe("spliced", 15, max_tokens=12, seed=4),
)


@pytest.mark.parametrize("kind", ["inline", "lazy", "process"])
@pytest.mark.parametrize("model", [MICRO_GEMMA3_VL, MICRO_QWEN3], ids=lambda model: model.name)
def test_prompts_of_embeddings_are_served_with_drafts(model: Any, kind: str, devices: Any) -> None:
    case = Case(model, DRAFTING, RECIPES)
    for arm in fitting(model):
        engine = serve_sampled(case, devices(kind, model, DRAFTING), arm, REPEATING, {})
        check_finished(engine)
        assert faults(engine, model) == {}, arm.name


def test_nothing_is_proposed_before_something_was_said_twice(devices: Any) -> None:
    """Sync asks for the drafts there are; the slot's last owner left ids that would give some."""
    recipes = (RECIPES[0], replace(RECIPES[1], max_tokens=8))
    case = Case(MICRO_QWEN3, replace(DRAFTING, max_num_seqs=1), recipes)
    device = devices("inline", case.model, case.config)
    told = serve_sampled(case, device, ARMS["sync-fused"], {}).requests["r1"]
    assert len(set(told.output_ids)) == len(told.output_ids)
    assert told.num_drafted == 0
    guessed = serve_sampled(case, device, ARMS["fused"], {}).requests["r1"]
    assert guessed.num_drafted > guessed.num_accepted == 0


def test_the_history_of_supplied_positions_is_no_id(devices: Any) -> None:
    case = Case(MICRO_GEMMA3_VL, DRAFTING, RECIPES[1:])
    device: HostDevice = devices("inline", case.model, DRAFTING)
    uploaded: list[list[int]] = []
    execute = device.execute

    def watch(step_id: int, commands: Any) -> None:
        for command in commands:
            if isinstance(command, Upload) and command.buffer == "token_history":
                uploaded.append(device.host["token_history"][command.host_first].tolist())
        execute(step_id, commands)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "execute", watch)
        serve_sampled(case, device, ARMS["refresh"], {})
    pure_long, pure_short, spliced = uploaded
    assert pure_long[:22] == [-1] * 22
    assert pure_short[:9] == [-1] * 9
    assert 0 < spliced[:15].count(-1) < 15
