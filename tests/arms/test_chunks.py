"""Prompts cut into chunks: every chunk goes on where the last one ended, whatever travels with it."""

from __future__ import annotations

from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN25_VL
from arm_workloads import Case, Recipe, check_finished, serve, wrong_requests

from runner.config import RunnerConfig
from runner.inputs.arms import ARMS
from runner.models import ModelSpec

CONFIG = RunnerConfig(
    max_num_seqs=3,
    max_num_batched_tokens=7,
    max_model_len=48,
    block_size=4,
    num_blocks=36,
    num_encoder_slots=3,
    max_images_per_step=3,
    num_resident_rows=80,
)
ROWS = (
    Recipe("pure", 19, max_tokens=4, seed=1),
    Recipe("spliced", 17, max_tokens=4, seed=2),
    Recipe("pure", 3, max_tokens=6, seed=3),
)
IMAGES = (
    Recipe("ids", 3, num_images=2, max_tokens=3, seed=1),
    Recipe("spliced", 5, num_images=3, max_tokens=3, seed=2),
    Recipe("ids", 2, num_images=1, max_tokens=4, seed=3),
)


@pytest.mark.parametrize("name", ["refresh", "async-rows", "resident-where", "resident", "fused"])
def test_rows_cut_into_chunks_come_in_their_order(name: str, devices: Any) -> None:
    case = Case(MICRO_GEMMA3_VL, CONFIG, ROWS, noise=0.1)
    engine = serve(case, devices("inline", MICRO_GEMMA3_VL, CONFIG), ARMS[name])
    check_finished(engine)
    assert sum(step.num_supplied_rows > 0 for step in engine.recorder.steps) >= 4
    assert wrong_requests(engine) == {}


@pytest.mark.parametrize("model", [MICRO_GEMMA3_VL, MICRO_QWEN25_VL], ids=lambda model: model.name)
def test_images_cut_into_chunks_keep_their_slots_and_rows(model: ModelSpec, devices: Any) -> None:
    engine = serve(Case(model, CONFIG, IMAGES), devices("inline", model, CONFIG), ARMS["refresh"])
    check_finished(engine)
    assert sum(step.num_image_rows > 0 for step in engine.recorder.steps) >= 4
    assert wrong_requests(engine) == {}
