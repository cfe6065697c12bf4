"""Later requests degenerate and the first is fine: flags uploaded on mixed steps only (vLLM #45673, #37170).

Minimal: one decode and k prompts of embeddings in one step, then steps of decodes alone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL
from arm_workloads import Recipe, check_finished, wrong_requests
from hazard_traffic import CONFIG, engine_of, fitting

from runner.engine import Engine

TRAFFIC = (
    (0, Recipe("ids", 5, max_tokens=14, seed=1)),
    *((1, Recipe("pure", 6, max_tokens=9, seed=seed)) for seed in (2, 3, 4)),
)


def meets_the_condition(engine: Engine) -> bool:
    """A step of one decode and three prompts of embeddings, the next one of decodes whose ids stay there."""
    return any(
        (mixed.num_decode_rows, mixed.num_rows, mixed.num_supplied_rows) == (1, 4, 18)
        and decode.ids_route in ("slice", "scatter")
        for mixed, decode in pairwise(engine.recorder.steps)
    )


@pytest.mark.parametrize("kind", ["inline", "lazy", "process", "shuffle:7"])
def test_every_request_of_the_batch_is_right_after_a_mixed_step(kind: str, devices: Any) -> None:
    device = devices(kind, MICRO_GEMMA3_VL, CONFIG)
    for arm in fitting(MICRO_GEMMA3_VL):
        engine = engine_of(MICRO_GEMMA3_VL, CONFIG, device, arm.name, TRAFFIC)
        check_finished(engine)
        assert meets_the_condition(engine) == (engine.decision.scheduling == "async")
        assert wrong_requests(engine) == {}, arm.name


@pytest.mark.parametrize("kind", ["inline", "lazy"])
def test_a_first_decode_beside_a_prompt_of_embeddings_is_looked_up(kind: str, devices: Any) -> None:
    """The position right behind one prompt's rows, in a step in which another prompt brings some."""
    staggered = tuple((at, Recipe("pure", 5 + at, max_tokens=6, seed=at)) for at in range(4))
    device = devices(kind, MICRO_GEMMA3_VL, CONFIG)
    for arm in fitting(MICRO_GEMMA3_VL):
        engine = engine_of(MICRO_GEMMA3_VL, CONFIG, device, arm.name, staggered)
        assert sum(step.num_decode_rows > 0 < step.num_supplied_rows for step in engine.recorder.steps) == 3
        assert wrong_requests(engine) == {}, arm.name


def test_flags_of_a_rows_last_owner_are_not_those_of_the_next(devices: Any) -> None:
    device = devices("inline", MICRO_GEMMA3_VL, CONFIG)
    for arm in fitting(MICRO_GEMMA3_VL):
        owners = ((0, Recipe("pure", 9, max_tokens=3, seed=1)), (20, Recipe("ids", 12, max_tokens=6, seed=2)))
        engine = engine_of(MICRO_GEMMA3_VL, CONFIG, device, arm.name, owners)
        assert wrong_requests(engine) == {}, arm.name
        assert engine.recorder.steps[-1].num_supplied_rows == 0


def test_without_the_refresh_all_but_the_first_are_wrong(devices: Any) -> None:
    device = devices("inline", MICRO_GEMMA3_VL, CONFIG)
    engine = engine_of(MICRO_GEMMA3_VL, CONFIG, device, "stale", TRAFFIC)
    assert meets_the_condition(engine)
    assert set(wrong_requests(engine)) == {"r1", "r2", "r3"}
