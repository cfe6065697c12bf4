"""Images that attend in both directions: what a step computes is what unmodified transformers computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from arm_models import MICRO_BOTH_WAYS, MICRO_GEMMA3_VL, vision_of
from arm_workloads import (
    Arrivals,
    Case,
    Recipe,
    check_finished,
    image_of,
    outputs,
    serve,
    text_ids,
    wrong_requests,
)
from transformers import Gemma3ImageProcessor

from runner.commands import ring
from runner.config import RunnerConfig
from runner.core import Prompt, Request, RequestState, SamplingParams, StepPlan
from runner.device.base import open_device
from runner.device.host import HostDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.inputs.batch import InputBatch
from runner.inputs.compile import StagedStep, StepCompiler
from runner.kernels.model import DeviceModel
from runner.measure import StepRecord
from runner.models import ModelSpec
from runner.weights import build_model

CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=64,
    block_size=4,
    num_blocks=64,
    num_encoder_slots=2,
    max_images_per_step=2,
    num_resident_rows=160,
)
TIGHT = replace(CONFIG, max_num_batched_tokens=7, num_blocks=10)
RIGHT = [arm for arm in ARMS.values() if arm.is_right and arm.fits(True)]
ROWS = vision_of(MICRO_BOTH_WAYS).rows_per_image


def with_window(model: ModelSpec, window: int) -> ModelSpec:
    """The model, its sliding layer seeing so many positions back."""
    text: Any = model.hf_config["text_config"]
    changed = {**model.hf_config, "text_config": {**text, "sliding_window": window}}
    return replace(model, name=f"{model.name}-{window}", sliding_window=window, hf_config=changed)


# Narrower than an image: its first rows are out of its last one's sight, and its last in its first one's.
NARROW = with_window(MICRO_BOTH_WAYS, 3)
MODELS = [MICRO_BOTH_WAYS, NARROW]


# ---- against the whole model, which makes its own masks


def two_images(model: ModelSpec) -> Prompt:
    vision = vision_of(model)
    first, second, third = (text_ids(model, count, seed) for seed, count in enumerate((3, 5, 4)))
    ids = (*first, *vision.placeholder_ids(), *second, *vision.placeholder_ids(), *third)
    return Prompt(ids, tuple(image_of(MICRO_GEMMA3_VL.name, seed) for seed in (1, 2)))


@contextmanager
def hidden_states() -> Iterator[list[torch.Tensor]]:
    """What the model gave, step by step."""
    seen: list[torch.Tensor] = []
    forward = DeviceModel.forward

    def watched(self: DeviceModel, *arguments: Any, **named: Any) -> torch.Tensor:
        seen.append(forward(self, *arguments, **named))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceModel, "forward", watched)
        yield seen


def runners_logits(
    model: ModelSpec, config: RunnerConfig, prompt: Prompt
) -> tuple[torch.Tensor, list[int], Sequence[StepRecord]]:
    """Logits at every position, the tokens, and the steps."""
    with hidden_states() as seen, open_device("inline", model, config) as device:
        engine = Engine(model, config, device, ARMS["sync-ids"])
        engine.run(Arrivals([(0, Request("r", prompt, SamplingParams(4, ignore_eos=True)))]))
    states: Any = build_model(model).lm_head(torch.cat([one.clone() for one in seen]))
    return states, list(engine.requests["r"].output_ids), engine.recorder.steps


@torch.inference_mode()
def transformers_logits(
    model: ModelSpec, prompt: Prompt, output: Sequence[int], types: bool = True
) -> torch.Tensor:
    """Of Gemma3ForConditionalGeneration as it is: ids, pixels and token types in, logits out."""
    vision = vision_of(model)
    ids = torch.tensor([[*prompt.token_ids, *output[:-1]]])
    size = {"height": vision.image_height, "width": vision.image_width}
    pixels = [np.frombuffer(one.data, np.uint8).reshape(one.shape) for one in prompt.images]
    given = Gemma3ImageProcessor(size=size, do_pan_and_scan=False)(pixels, return_tensors="pt")
    extra = {"token_type_ids": (ids == vision.image_token_id).long()} if types else {}
    logits: torch.Tensor = build_model(model)(
        input_ids=ids, pixel_values=given["pixel_values"], use_cache=False, **extra
    ).logits[0]
    return logits


def furthest(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, in standard deviations of the logits."""
    return float((found - expected).abs().max() / expected.std())


@pytest.mark.parametrize("attention", ["sdpa", "triton"])
@pytest.mark.parametrize("budget", [4, 5, 6, 7, 9, 13, 64])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_logit_is_that_of_the_unmodified_model_whatever_the_chunks(
    model: ModelSpec, budget: int, attention: Any, models_built_once: None
) -> None:
    if attention == "triton":
        pytest.importorskip("triton")
    prompt = two_images(model)
    config = replace(CONFIG, max_num_batched_tokens=budget, attention=attention)
    logits, output, steps = runners_logits(model, config, prompt)
    assert len(logits) == len(prompt) + 3
    assert furthest(logits, transformers_logits(model, prompt, output)) < 1e-4
    chunks = [step.num_tokens for step in steps if step.kind == "prefill"]
    assert all(step.num_image_rows % ROWS == 0 for step in steps)
    if budget < 9:
        assert any(count < budget for count in chunks[:-1]), "no chunk ended before an image"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_causal_image_rows_are_another_model_and_differ_from_the_first_of_them(
    model: ModelSpec, models_built_once: None
) -> None:
    prompt = two_images(model)
    causal = replace(model, image_attention="causal")
    logits, output, _ = runners_logits(causal, CONFIG, prompt)
    assert furthest(logits, transformers_logits(model, prompt, output, types=False)) < 1e-4
    both_ways = transformers_logits(model, prompt, output)
    differs = (logits - both_ways).abs().amax(dim=1) > 0.01 * both_ways.std()
    first = prompt.token_ids.index(vision_of(model).image_token_id)
    assert not differs[:first].any()
    assert differs[first : first + ROWS - 1].all(), "each row sees rows behind it"


def test_a_window_narrower_than_an_image_hides_its_first_rows_from_its_last(models_built_once: None) -> None:
    """Or the tests above could not tell where a window ends inside an image."""
    prompt, output = two_images(NARROW), [5, 6, 7]
    narrow, wide = (transformers_logits(with_window(MICRO_BOTH_WAYS, w), prompt, output) for w in (3, 8))
    last = prompt.token_ids.index(vision_of(NARROW).image_token_id) + ROWS - 1
    assert furthest(narrow[last], wide[last]) > 0.01


def test_a_planted_cut_inside_an_image_is_noticed(
    monkeypatch: pytest.MonkeyPatch, models_built_once: None
) -> None:
    prompt = two_images(MICRO_BOTH_WAYS)
    monkeypatch.setattr(RequestState, "whole_end", lambda self, end: end)
    logits, output, steps = runners_logits(MICRO_BOTH_WAYS, replace(CONFIG, max_num_batched_tokens=6), prompt)
    assert any(step.num_image_rows % ROWS for step in steps)
    assert furthest(logits, transformers_logits(MICRO_BOTH_WAYS, prompt, output)) > 0.01


def test_images_of_rows_in_another_order_than_their_plan_are_told_apart(
    devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer takes the row that one before it has left; who runs already is planned first."""
    model, orders, told = MICRO_BOTH_WAYS, list[list[int]](), list[list[int]]()
    stage = StepCompiler.stage

    def watched(self: StepCompiler, plan: StepPlan, batch: InputBatch, *rest: Any) -> StagedStep:
        step = stage(self, plan, batch, *rest)
        orders.append([batch.row_of[splice.request_id] for splice in plan.splices])
        metadata = self._host[ring("step_metadata", plan.step_id)]
        told.append(metadata[step.layout.image_first : step.layout.size].tolist())
        return step

    monkeypatch.setattr(StepCompiler, "stage", watched)
    vision, config = vision_of(model), replace(CONFIG, max_num_batched_tokens=16)
    one = vision.placeholder_ids()
    images = [image_of(MICRO_GEMMA3_VL.name, seed) for seed in (1, 2)]
    prompts = [
        Prompt(text_ids(model, 4, 1)),
        Prompt((*text_ids(model, 13, 2), *one, *text_ids(model, 2, 3)), (images[0],)),
        Prompt((*one, *text_ids(model, 1, 4)), (images[1],)),
    ]
    asked = [
        Request(f"r{index}", prompt, SamplingParams(tokens, ignore_eos=True))
        for index, (prompt, tokens) in enumerate(zip(prompts, (1, 6, 6), strict=True))
    ]
    engine = Engine(model, config, devices("inline", model, config), ARMS["sync-ids"])
    engine.run(Arrivals(zip((0, 0, 1), asked, strict=True)))
    # In its row the newcomer's image is at 1; the other's is at 2, behind the seven tokens of that row.
    assert told[orders.index([1, 0])] == [1, 9, 5, 13]
    assert wrong_requests(engine) == {}


# ---- whole runs: arms, devices, drafts, padded decodes

RECIPES = (
    Recipe("ids", 6, num_images=2, max_tokens=9, seed=1),
    Recipe("spliced", 9, num_images=1, max_tokens=12, seed=2),
    Recipe("pure", 8, max_tokens=6, seed=3),
    Recipe("spliced", 5, num_images=3, max_tokens=9, seed=4),
    Recipe("ids", 3, num_images=1, max_tokens=5, seed=5),
)


def traffic(config: RunnerConfig, model: ModelSpec = MICRO_BOTH_WAYS) -> Case:
    return Case(model, config, RECIPES, gap=2, noise=0.1)


@pytest.mark.parametrize("config", [CONFIG, TIGHT], ids=["whole", "tight"])
@pytest.mark.parametrize("caching", [False, True], ids=["", "cached"])
def test_every_right_arm_is_right_in_tight_steps_and_with_preemptions(
    config: RunnerConfig, caching: bool, devices: Any
) -> None:
    case = traffic(replace(config, prefix_caching=caching))
    device, expected = devices("inline", case.model, case.config), None
    for arm in RIGHT:
        if not arm.prompt_embeds:
            continue
        engine = serve(case, device, arm)
        check_finished(engine)
        assert wrong_requests(engine) == {}, arm.name
        expected = expected or outputs(engine)
        assert outputs(engine) == expected, arm.name
    if config is TIGHT:
        assert sum(state.num_preemptions for state in engine.requests.values()) > 0


@pytest.mark.parametrize("kind", ["process", "lazy", *(f"shuffle:{seed}" for seed in range(4))])
@pytest.mark.parametrize("name", ["refresh", "fused"])
def test_every_order_of_a_devices_work_gives_the_same_tokens(name: str, kind: str, devices: Any) -> None:
    case = traffic(TIGHT)
    expected = outputs(serve(case, devices("inline", case.model, case.config), ARMS[name]))
    engine = serve(case, devices(kind, case.model, case.config), ARMS[name])
    assert outputs(engine) == expected
    assert wrong_requests(engine) == {}


@pytest.mark.parametrize("name", ["skip", "refresh", "fused"])
def test_drafts_ride_with_decodes_and_change_no_token(name: str, devices: Any) -> None:
    case = traffic(replace(TIGHT, num_speculative_tokens=2))
    engine = serve(case, devices("inline", case.model, case.config), ARMS[name])
    assert sum(step.num_draft_tokens for step in engine.recorder.steps) > 0
    assert wrong_requests(engine) == {}


def test_padded_decode_steps_give_the_same_tokens(models_built_once: None) -> None:
    case = traffic(TIGHT)
    engine = serve(case, HostDevice(case.model, case.config, "inline", graph_sizes=(2, 4)), ARMS["refresh"])
    assert any(step.graph_rows for step in engine.recorder.steps)
    assert wrong_requests(engine) == {}


@pytest.mark.parametrize("name", ["sync-ids", "refresh", "fused"])
def test_a_causal_runner_has_wrong_tokens_where_images_attend_in_both_directions(
    name: str, devices: Any
) -> None:
    """The runner computes the causal model, and its tokens are held against the other."""
    case = traffic(CONFIG, MICRO_GEMMA3_VL)
    engine = serve(case, devices("inline", case.model, case.config), ARMS[name])
    assert wrong_requests(engine) == {}
    engine._model = MICRO_BOTH_WAYS
    wrong = set(wrong_requests(engine))
    assert wrong and wrong <= {f"r{index}" for index, recipe in enumerate(RECIPES) if recipe.num_images}


@pytest.mark.parametrize("name", ["sync-ids", "refresh", "fused"])
def test_an_arm_whose_images_are_cut_has_wrong_tokens(
    name: str, devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RequestState, "whole_end", lambda self, end: end)
    case = traffic(replace(CONFIG, max_num_batched_tokens=5))
    engine = serve(case, devices("inline", case.model, case.config), ARMS[name])
    assert wrong_requests(engine) != {}
