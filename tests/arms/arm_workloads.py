"""Requests of every kind, their arrivals, and one run of them under an arm. Seeded; holds no assertion."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
from arm_models import vision_of
from arm_reference import reference_of

from runner.config import RunnerConfig
from runner.core import Image, Prompt, Request, RequestState, SamplingParams, SuppliedRows
from runner.device.base import Device
from runner.engine import Engine
from runner.inputs.arms import Arm
from runner.models import ModelSpec

PromptKind = Literal["ids", "pure", "spliced"]


@cache
def image_of(model_name: str, seed: int) -> Image:
    shape = vision_of(reference_of(model_name).spec).image_shape
    return Image(random.Random(seed).randbytes(shape[0] * shape[1] * shape[2]), shape)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One request: `length` text ids, images before them; `seed` draws ids, mask and which images."""

    kind: PromptKind = "ids"
    length: int = 8
    num_images: int = 0
    max_tokens: int = 5
    seed: int = 0
    supplied_from: int = 0  # of a spliced prompt: no row before it is supplied


def text_ids(model: ModelSpec, count: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(3, model.vocab_size - 6), k=count))


def supplied_rows(
    model: ModelSpec, ids: Sequence[int], mask: bytes | None = None, noise: float = 0.0
) -> SuppliedRows:
    """embed(ids), zeros where the mask has an id count; `noise` is relative to the rows' own spread."""
    rows = reference_of(model.name).embed(ids).numpy().copy()
    if noise:
        draw = np.random.default_rng(len(ids))
        rows += (noise * rows.std() * draw.standard_normal(rows.shape)).astype(np.float32)
    if mask is not None:
        rows[np.frombuffer(mask, np.uint8) == 0] = 0
    return SuppliedRows(rows.tobytes(), len(ids), model.hidden_size, mask=mask)


def twin_prompts(model: ModelSpec, recipe: Recipe, noise: float = 0.0) -> tuple[Prompt, Prompt]:
    """The prompt as the recipe has it, and as ids; both mean the same when there is no noise."""
    ids = text_ids(model, recipe.length, recipe.seed)
    images = tuple(image_of(model.name, recipe.seed * 7 + i) for i in range(recipe.num_images))
    if images:
        ids = vision_of(model).placeholder_ids() * len(images) + ids
    plain = Prompt(ids, images)
    if recipe.kind == "ids":
        return plain, plain
    if recipe.kind == "pure":
        assert not images, "embeddings alone hold no images"
        return Prompt((), (), supplied_rows(model, ids, noise=noise)), plain
    mask = _mask(model, ids, recipe)
    # The ids at supplied positions are of no meaning, so they are wrong ones here.
    held = tuple(7 if is_supplied else token for token, is_supplied in zip(ids, mask, strict=True))
    return Prompt(held, images, supplied_rows(model, ids, mask, noise)), plain


def _mask(model: ModelSpec, ids: Sequence[int], recipe: Recipe) -> bytes:
    """About half the text positions; the last one that may be is supplied for certain."""
    draw = random.Random(recipe.seed + 1)
    image_id = model.vision.image_token_id if model.vision is not None else None
    free = [i for i, token in enumerate(ids) if token != image_id and i >= recipe.supplied_from]
    chosen = {i for i in free if draw.random() < 0.5} | set(free[-1:])
    return bytes(i in chosen for i in range(len(ids)))


def request_of(
    model: ModelSpec, name: str, recipe: Recipe, prompt_embeds: bool = True, noise: float = 0.0
) -> Request:
    """`prompt_embeds` false: the same prompt as ids."""
    given, plain = twin_prompts(model, recipe, noise)
    return Request(
        name, given if prompt_embeds else plain, SamplingParams(recipe.max_tokens, ignore_eos=True)
    )


class Arrivals:
    """Every request comes at a number of `due` calls; a wait jumps to the next one."""

    def __init__(self, arrivals: Iterable[tuple[int, Request]]) -> None:
        self._left = sorted(arrivals, key=lambda arrival: arrival[0])
        self._calls = 0

    def due(self) -> list[Request]:
        ready = [request for at, request in self._left if at <= self._calls]
        self._left = [arrival for arrival in self._left if arrival[0] > self._calls]
        self._calls += 1
        return ready

    def wait(self) -> bool:
        if self._left:
            self._calls = max(self._calls, self._left[0][0])
        return bool(self._left)


@dataclass(frozen=True, slots=True)
class Case:
    """Recipes and when they arrive, on one model under one configuration."""

    model: ModelSpec
    config: RunnerConfig
    recipes: tuple[Recipe, ...]
    gap: int = 0  # `due` calls between two arrivals; 0: all at once
    noise: float = 0.0

    def requests(self, prompt_embeds: bool = True) -> list[Request]:
        return [
            request_of(self.model, f"r{index}", recipe, prompt_embeds, self.noise)
            for index, recipe in enumerate(self.recipes)
        ]

    def arrivals(self, prompt_embeds: bool = True) -> Arrivals:
        made = self.requests(prompt_embeds)
        return Arrivals((index * self.gap, request) for index, request in enumerate(made))

    def rotated(self, by: int) -> Case:
        return replace(self, recipes=self.recipes[by:] + self.recipes[:by])


def serve(case: Case, device: Device, arm: Arm) -> Engine:
    """One run on a fresh engine; an arm without prompt_embeds gets the same prompts as ids."""
    engine = Engine(case.model, case.config, device, arm)
    engine.run(case.arrivals(arm.prompt_embeds))
    return engine


def outputs(engine: Engine) -> dict[str, list[int]]:
    return {name: list(state.output_ids) for name, state in engine.requests.items()}


def wrong_requests(engine: Engine) -> dict[str, int]:
    """Requests with a wrong token, and the index of the first one; transformers alone decides."""
    reference = reference_of(engine_model(engine).name)
    found = {}
    for name, state in engine.requests.items():
        first = reference.first_wrong(state.request, state.output_ids)
        if first is not None:
            found[name] = first
    return found


def engine_model(engine: Engine) -> ModelSpec:
    return engine._model


def check_finished(engine: Engine) -> None:
    """Everything was served to its last token and everything was given back."""
    for state in engine.requests.values():
        _check_state(state)
    engine.scheduler.check()
    assert not engine.scheduler.has_work
    assert engine.scheduler.blocks.num_free == engine.scheduler.blocks.num_blocks


def _check_state(state: RequestState) -> None:
    assert state.is_finished
    assert state.error is None, state.error
    assert (state.slot, state.block_ids, state.num_in_flight, state.resident_first) == (None, [], 0, None)
    sampling = state.request.sampling
    if sampling.ignore_eos:
        assert len(state.output_ids) == sampling.max_tokens
