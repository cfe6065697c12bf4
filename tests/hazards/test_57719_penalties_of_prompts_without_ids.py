"""A penalty asserts in its scatter: a prompt of embeddings has no ids, its row has stale ones (#57719).

Minimal: penalties on, prompts of two lengths in a batch, the longest one of embeddings, in a slot and a
row that belonged to someone else before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN3
from arm_sampling import faults, serve_sampled
from arm_workloads import Case, Recipe, check_finished, outputs
from hazard_traffic import CONFIG, fitting

from runner import slot_state
from runner.core import RequestState
from runner.inputs.arms import ARMS

PENALTIES = {"repetition_penalty": 0.5, "presence_penalty": -0.5, "frequency_penalty": -0.5}
SMALL = replace(CONFIG, max_num_seqs=2)
RECIPES = (
    Recipe("ids", 20, max_tokens=2, seed=1),
    Recipe("ids", 4, max_tokens=12, seed=2),
    Recipe("pure", 24, max_tokens=9, seed=3),  # takes the slot and the row of the first
    Recipe("spliced", 18, max_tokens=9, seed=4),
)


@pytest.mark.parametrize("model", [MICRO_GEMMA3_VL, MICRO_QWEN3], ids=lambda model: model.name)
@pytest.mark.parametrize("kind", ["inline", "lazy", "process"])
def test_penalties_take_no_ids_from_supplied_rows(model: Any, kind: str, devices: Any) -> None:
    case = Case(model, SMALL, RECIPES)
    device = devices(kind, model, SMALL)
    for arm in fitting(model):
        engine = serve_sampled(case, device, arm, PENALTIES, {**PENALTIES, "temperature": 0.8})
        check_finished(engine)
        assert faults(engine, model) == {}, arm.name


def test_ids_beside_supplied_rows_would_change_tokens(devices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the ids that stand beside the rows are taken for the prompt's."""
    case = Case(MICRO_GEMMA3_VL, SMALL, (Recipe("spliced", 18, max_tokens=9, seed=4),))
    device = devices("inline", MICRO_GEMMA3_VL, SMALL)
    right = outputs(serve_sampled(case, device, ARMS["refresh"], {"repetition_penalty": 0.05}))

    def with_ids_beside_rows(state: RequestState) -> list[int]:
        return [*state.request.prompt.token_ids, *state.output_ids]

    monkeypatch.setattr(slot_state, "history_of", with_ids_beside_rows)
    engine = serve_sampled(case, device, ARMS["refresh"], {"repetition_penalty": 0.05})
    assert outputs(engine) != right
    assert faults(engine, MICRO_GEMMA3_VL) != {}


def test_what_the_last_owner_of_a_slot_left_is_no_history(
    devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a prompt of embeddings writes nothing over what was there."""
    case = Case(MICRO_GEMMA3_VL, replace(CONFIG, max_num_seqs=1), (RECIPES[0], RECIPES[2]))
    device = devices("inline", MICRO_GEMMA3_VL, case.config)
    heavy = {"repetition_penalty": 0.05}
    right = serve_sampled(case, device, ARMS["refresh"], heavy)
    assert faults(right, MICRO_GEMMA3_VL) == {}
    history_of = slot_state.history_of
    before: list[int] = []

    def over_what_was_there(state: RequestState) -> list[int]:
        ids = history_of(state)
        left = [old if new == slot_state.NO_ID else new for new, old in zip(ids, before, strict=False)]
        kept = left + ids[len(left) :]
        before[:] = kept
        return kept

    monkeypatch.setattr(slot_state, "history_of", over_what_was_there)
    engine = serve_sampled(case, device, ARMS["refresh"], heavy)
    assert faults(engine, MICRO_GEMMA3_VL) != {}
