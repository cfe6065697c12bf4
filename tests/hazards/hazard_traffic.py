"""Sizes, requests and one way to run them, for the tests of hazards. Holds no assertion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from arm_workloads import Arrivals, Recipe, request_of

from runner.config import RunnerConfig
from runner.core import Request
from runner.device.base import Device
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm
from runner.models import ModelSpec

CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=48,
    max_model_len=48,
    block_size=4,
    num_blocks=48,
    num_encoder_slots=2,
    num_resident_rows=96,
)
EMBEDS_ARMS = [arm for arm in ARMS.values() if arm.is_right and arm.prompt_embeds]


def fitting(model: ModelSpec) -> list[Arm]:
    """The right arms that take embeddings of this model."""
    return [arm for arm in EMBEDS_ARMS if arm.fits(model.is_multimodal)]


def engine_of(
    model: ModelSpec,
    config: RunnerConfig,
    device: Device,
    arm: str,
    recipes: Iterable[tuple[int, Recipe]],
    watch: Callable[[Engine], object] | None = None,
) -> Engine:
    """A fresh engine that served recipes, each at its `due` call; `watch` may look into it before."""
    engine = Engine(model, config, device, ARMS[arm])
    if watch is not None:
        watch(engine)
    engine.run(Arrivals(requests_of(model, recipes)))
    return engine


def requests_of(model: ModelSpec, recipes: Iterable[tuple[int, Recipe]]) -> list[tuple[int, Request]]:
    return [(at, request_of(model, f"r{index}", recipe)) for index, (at, recipe) in enumerate(recipes)]


def batch_of(engine: Engine) -> Any:
    return engine._executor._batch
