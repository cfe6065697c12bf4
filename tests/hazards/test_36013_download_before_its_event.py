"""Stale values: the host reads a download before its event, or moves rows in between (vLLM #36013, #38556,
#53613).

Minimal: an asynchronous download on a stream of its own, and requests that leave from the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN25_VL
from arm_probes import edited
from arm_sampling import CYCLING, faults, serve_sampled
from arm_workloads import Case, Recipe, check_finished, outputs, wrong_requests
from hazard_traffic import CONFIG, batch_of, engine_of

from runner.commands import Command, Wait
from runner.core import DeviceError
from runner.device.base import open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS

ORDERS = ("lazy", "process", *(f"shuffle:{seed}" for seed in range(6)))
# Rows leave from the front and the middle, so that the last ones move down with their tokens in flight.
LEAVING = (
    (0, Recipe("ids", 4, max_tokens=3, seed=1)),
    (0, Recipe("ids", 5, max_tokens=6, seed=2)),
    (0, Recipe("ids", 3, max_tokens=12, seed=3)),
    (0, Recipe("ids", 6, max_tokens=9, seed=4)),
)


@pytest.mark.parametrize("name", ["ids", "refresh", "fused"])
def test_the_output_waits_for_its_sample_in_every_order(name: str, devices: Any) -> None:
    for kind in ORDERS:
        engine = engine_of(MICRO_GEMMA3_VL, CONFIG, devices(kind, MICRO_GEMMA3_VL, CONFIG), name, LEAVING)
        check_finished(engine)
        assert wrong_requests(engine) == {}, kind


def test_without_the_wait_an_order_downloads_what_is_not_sampled_yet(
    devices: Any, models_built_once: None
) -> None:
    """Negative control."""

    def without_wait(_step_id: int, commands: Sequence[Command]) -> list[Command]:
        return [command for command in commands if not isinstance(command, Wait)]

    right = outputs(
        engine_of(MICRO_GEMMA3_VL, CONFIG, devices("inline", MICRO_GEMMA3_VL, CONFIG), "ids", LEAVING)
    )
    found = []
    for seed in range(6):
        with open_device(f"shuffle:{seed}", MICRO_GEMMA3_VL, CONFIG) as device, edited(device, without_wait):
            try:
                found.append(outputs(engine_of(MICRO_GEMMA3_VL, CONFIG, device, "ids", LEAVING)) != right)
            except DeviceError:
                found.append(True)
    assert any(found)


# ---- counts of accepted drafts, the value that was stale there

DRAFTING = replace(CONFIG, num_speculative_tokens=3)
LEAVING_WITH_DRAFTS = Case(
    MICRO_GEMMA3_VL,
    DRAFTING,
    tuple(replace(recipe, max_tokens=3 * recipe.max_tokens) for _, recipe in LEAVING),
)


@pytest.mark.parametrize("name", ["ids", "refresh", "fused"])
def test_accepted_counts_are_those_of_their_own_step_and_row_in_every_order(name: str, devices: Any) -> None:
    for kind in ("inline", *ORDERS):
        device = devices(kind, MICRO_GEMMA3_VL, DRAFTING)
        engine = serve_sampled(LEAVING_WITH_DRAFTS, device, ARMS[name], CYCLING)
        check_finished(engine)
        assert sum(step.num_accepted_tokens for step in engine.recorder.steps) > 5
        assert faults(engine, MICRO_GEMMA3_VL) == {}, kind


def test_accepted_counts_downloaded_without_their_wait_are_stale(models_built_once: None) -> None:
    """Negative control."""

    def without_wait(_step_id: int, commands: Sequence[Command]) -> list[Command]:
        return [command for command in commands if not isinstance(command, Wait)]

    found = []
    for seed in range(6):
        with (
            open_device(f"shuffle:{seed}", MICRO_GEMMA3_VL, DRAFTING) as device,
            edited(device, without_wait),
        ):
            try:
                engine = serve_sampled(LEAVING_WITH_DRAFTS, device, ARMS["ids"], CYCLING)
                found.append(bool(faults(engine, MICRO_GEMMA3_VL)))
            except (DeviceError, AssertionError):
                found.append(True)
    assert any(found)


@pytest.mark.parametrize("kind", ["inline", "lazy", "process"])
def test_rows_that_moved_get_their_own_sampled_ids(kind: str, devices: Any) -> None:
    device = devices(kind, MICRO_GEMMA3_VL, CONFIG)
    for name in ("ids", "refresh", "fused"):
        engine = engine_of(MICRO_GEMMA3_VL, CONFIG, device, name, LEAVING)
        assert "scatter" in {step.ids_route for step in engine.recorder.steps}
        assert wrong_requests(engine) == {}, name


def test_a_row_moved_in_mid_prompt_brings_its_flags_and_rows(devices: Any) -> None:
    """The last row's prompt of embeddings is still being computed when a hole opens before it."""
    config = CONFIG.__class__(
        max_num_seqs=4,
        max_num_batched_tokens=8,
        max_model_len=48,
        block_size=4,
        num_blocks=48,
        num_encoder_slots=2,
        num_resident_rows=96,
    )
    recipes = (
        (0, Recipe("ids", 3, max_tokens=3, seed=1)),
        (0, Recipe("ids", 3, max_tokens=9, seed=2)),
        (0, Recipe("spliced", 34, max_tokens=4, seed=3)),
    )
    for name in ("refresh", "async-rows", "resident", "fused"):
        moved: list[int] = []

        def watch(engine: Engine, moved: list[int] = moved) -> None:
            batch = batch_of(engine)
            move = batch._move

            def noted(source: int, target: int) -> None:
                move(source, target)
                left = engine.requests[batch.request_ids[target]]
                moved.append(left.num_prompt - left.num_computed)

            batch._move = noted

        engine = engine_of(
            MICRO_GEMMA3_VL, config, devices("inline", MICRO_GEMMA3_VL, config), name, recipes, watch
        )
        assert moved and moved[0] > 0, "no row was moved in mid-prompt"
        assert wrong_requests(engine) == {}, name


def test_a_moved_row_keeps_its_rope_shift(devices: Any) -> None:
    recipes = (
        (0, Recipe("ids", 4, max_tokens=2, seed=1)),
        (0, Recipe("ids", 3, max_tokens=9, seed=2)),
        (0, Recipe("ids", 3, num_images=2, max_tokens=9, seed=3)),
    )
    device = devices("inline", MICRO_QWEN25_VL, CONFIG)
    engine = engine_of(MICRO_QWEN25_VL, CONFIG, device, "refresh", recipes)
    assert wrong_requests(engine) == {}
