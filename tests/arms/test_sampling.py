"""Sampled tokens end to end: right by the oracle, and the same whatever the batch, the order, the arm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arm_models import MICRO, MICRO_GEMMA3_VL, MICRO_QWEN3, MICRO_QWEN25_VL
from arm_probes import edited, probed
from arm_sampling import CONFIG, faults, mixed_case, oracle_of, sampled_requests, serve_sampled
from arm_workloads import Arrivals, Case, Recipe, check_finished, outputs
from scipy.stats import chisquare

from runner.commands import Upload
from runner.config import RunnerConfig
from runner.core import FinishReason, Prompt, Request, SamplingParams
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm
from runner.models import ModelSpec

Open = Callable[[str, ModelSpec, RunnerConfig], Device]

TIGHT = replace(CONFIG, num_blocks=11)
RIGHT = [arm for arm in ARMS.values() if arm.is_right]

PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8, "top_p": 0.9, "logprobs": 3},
    {"temperature": 1.0, "top_k": 50, "repetition_penalty": 1.3, "bad_words": ((7,), (100, 200))},
    {},
    {"temperature": 0.6, "min_p": 0.05, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"repetition_penalty": 0.4, "frequency_penalty": -1.5, "min_tokens": 4, "logprobs": 0},
)


def case_of(model: ModelSpec, config: RunnerConfig = CONFIG, count: int = 10) -> Case:
    return mixed_case(model, config, count, range(5, 11), range(6, 10))


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize(
    ("model", "arm"),
    [(model, arm) for model in MICRO for arm in RIGHT if arm.fits(model.is_multimodal)],
    ids=lambda value: value.name,
)
def test_every_right_arm_samples_the_oracles_tokens_and_reports_its_log_probabilities(
    devices: Open, model: ModelSpec, arm: Arm, drafts: int
) -> None:
    config = replace(TIGHT, num_speculative_tokens=drafts)
    engine = serve_sampled(case_of(model, config), devices("inline", model, config), arm, *PARAMS)
    check_finished(engine)
    assert faults(engine, model) == {}


def test_tokens_do_not_depend_on_scheduling_device_batch_or_preemption(devices: Open) -> None:
    model = MICRO_GEMMA3_VL
    device = devices("inline", model, CONFIG)
    expected = outputs(serve_sampled(case_of(model), device, ARMS["sync-rows"], *PARAMS))
    assert len({tuple(tokens) for tokens in expected.values()}) == len(expected)
    for config in (CONFIG, TIGHT, replace(CONFIG, max_num_seqs=1), replace(CONFIG, max_num_batched_tokens=5)):
        for kind in ("inline", "lazy", "shuffle:4"):
            other = devices(kind, model, config)
            engine = serve_sampled(case_of(model, config), other, ARMS["async-rows"], *PARAMS)
            assert outputs(engine) == expected
    engine = serve_sampled(case_of(model, TIGHT), devices("process", model, TIGHT), ARMS["fused"], *PARAMS)
    assert outputs(engine) == expected
    assert sum(state.num_preemptions for state in engine.requests.values()) > 0


def test_the_order_of_requests_changes_nothing(devices: Open) -> None:
    case = case_of(MICRO_QWEN25_VL)
    device = devices("inline", case.model, CONFIG)
    requests = sampled_requests(case, ARMS["refresh"], *PARAMS)
    found = []
    for order in (requests, requests[::-1], requests[5:] + requests[:5]):
        engine = Engine(case.model, CONFIG, device, ARMS["refresh"])
        engine.run(Arrivals((index, request) for index, request in enumerate(order)))
        found.append(outputs(engine))
    assert found[0] == found[1] == found[2]


def test_another_seed_is_another_sample_and_greedy_has_none(devices: Open) -> None:
    case = case_of(MICRO_QWEN3, count=4)
    device = devices("inline", case.model, CONFIG)
    runs = [
        outputs(serve_sampled(case, device, ARMS["fused"], {"temperature": temperature, "seed": seed}))
        for temperature, seed in ((1.0, 1), (1.0, 2), (1.0, 1), (0.0, 1), (0.0, 2))
    ]
    assert runs[0] == runs[2] != runs[1]
    assert runs[3] == runs[4] != runs[0]


# ---- distributions


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0, "top_k": 12},
        {"temperature": 2.0, "top_p": 0.3},
        {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.5},
    ],
    ids=["top-k", "top-p", "min-p"],
)
def test_tokens_are_drawn_from_the_oracles_distribution(devices: Open, params: dict[str, Any]) -> None:
    """Many requests with one prompt and a seed each: chi-square at the first output position."""
    config = replace(CONFIG, max_num_seqs=32, max_num_batched_tokens=256)
    prompt = Prompt((50, 60, 70, 80))
    requests = [
        Request(f"r{seed}", prompt, SamplingParams(1, True, seed=seed, **params)) for seed in range(800)
    ]
    engine = Engine(MICRO_QWEN3, config, devices("inline", MICRO_QWEN3, config), ARMS["ids"])
    engine.run(Arrivals((0, request) for request in requests))
    drawn = np.array([engine.requests[request.request_id].output_ids[0] for request in requests])
    probabilities = oracle_of(MICRO_QWEN3.name).probabilities(requests[0], (0,))[0]
    assert chi_square(drawn, probabilities) > 1e-3
    assert chi_square(drawn, np.roll(probabilities, 1)) < 1e-6, "the test sees another distribution"


def chi_square(drawn: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any]) -> float:
    """p of the drawn ids; those expected less than five times are taken together."""
    expected = probabilities * len(drawn)
    often = np.flatnonzero(expected >= 5)
    observed = np.array([*((drawn == token).sum() for token in often), 0])
    observed[-1] = len(drawn) - observed.sum()
    wanted = np.array([*expected[often], max(len(drawn) - expected[often].sum(), 1e-9)])
    if wanted[-1] < 1 and observed[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    return float(chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue)


# ---- ends


@pytest.mark.parametrize("name", ["sync-rows", "async-rows"])
def test_a_stop_token_ends_a_request_but_not_before_its_least_length(devices: Open, name: str) -> None:
    case = case_of(MICRO_GEMMA3_VL, count=4)
    device = devices("inline", case.model, CONFIG)
    whole = outputs(serve_sampled(case, device, ARMS[name], {}))
    stops = tuple(sorted({tokens[2] for tokens in whole.values()}))
    stopped = serve_sampled(case, device, ARMS[name], {"stop_token_ids": stops})
    for request, state in stopped.requests.items():
        first = next(i for i, token in enumerate(whole[request]) if token in stops)
        assert state.output_ids == whole[request][: first + 1]
        assert state.finish_reason is FinishReason.STOP
    later = serve_sampled(case, device, ARMS[name], {"stop_token_ids": stops, "min_tokens": 5})
    for state in later.requests.values():
        assert len(state.output_ids) > 5 or state.finish_reason is FinishReason.MAX_TOKENS
        assert not set(state.output_ids[:5]) & set(stops)
    assert faults(later, case.model) == {}


# ---- what a slot keeps belongs to one request


def test_a_plain_request_is_not_touched_by_who_had_its_slot_before(devices: Open) -> None:
    """Nothing is uploaded for it; a neighbour that is sampled makes every row pass the sampler."""
    config = replace(CONFIG, max_num_seqs=2)
    recipes = tuple(Recipe("ids", 6, max_tokens=6, seed=index) for index in range(6))
    case = Case(MICRO_QWEN3, config, recipes, gap=3)
    device = devices("inline", case.model, config)
    plain = outputs(serve_sampled(case, device, ARMS["fused"], {}))
    heavy = {"temperature": 1.5, "repetition_penalty": 0.2, "bad_words": ((5,),), "min_tokens": 2}
    mixed = outputs(serve_sampled(case, device, ARMS["fused"], heavy, {}, {}))
    assert all(mixed[f"r{index}"] == plain[f"r{index}"] for index in range(6) if index % 3)
    assert all(mixed[f"r{index}"] != plain[f"r{index}"] for index in range(0, 6, 3))


def test_a_batch_without_parameters_uploads_none(devices: Open) -> None:
    case = case_of(MICRO_GEMMA3_VL, count=4)
    device = devices("inline", case.model, CONFIG)
    engine = Engine(case.model, CONFIG, device, ARMS["refresh"])
    with probed(engine, device) as probe:
        engine.run(case.arrivals())
    buffers = {
        command.buffer for step in probe.steps for command in step.commands if hasattr(command, "buffer")
    }
    assert not buffers & {"sampling_reals", "sampling_wholes", "token_history"}


@pytest.mark.parametrize("buffer", ["sampling_reals", "sampling_wholes", "token_history"])
def test_an_upload_of_a_slot_that_is_left_out_is_noticed(models_built_once: None, buffer: str) -> None:
    case = case_of(MICRO_GEMMA3_VL)
    with (
        open_device("inline", case.model, CONFIG) as device,
        edited(
            device,
            lambda _step_id, commands: [
                command
                for command in commands
                if not (isinstance(command, Upload) and command.buffer == buffer)
            ],
        ),
    ):
        engine = serve_sampled(case, device, ARMS["async-rows"], *PARAMS)
    assert faults(engine, case.model) != {}
