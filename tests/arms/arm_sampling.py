"""Runs with sampling parameters: the requests of a case, each with what is asked of its sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from arm_models import MICRO
from arm_workloads import Arrivals, Case, Recipe

from runner.config import RunnerConfig
from runner.core import Request
from runner.device.base import Device
from runner.engine import Engine
from runner.inputs.arms import Arm
from runner.models import ModelSpec
from suite.oracle import Oracle
from suite.reported_logprobs import first_fault

# Tokens seen before become likely ones, so that a model with random weights repeats itself and drafts are
# right now and then.
REPEATING = {"repetition_penalty": 0.3, "frequency_penalty": -2.0}
# Neighbours differ, so that one accepted token cannot stand for the other.
CYCLING = {"repetition_penalty": 0.1, "frequency_penalty": 1.5}


CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=24,
    max_model_len=64,
    block_size=4,
    num_blocks=64,
    num_encoder_slots=4,
    num_resident_rows=256,
)


def mixed_case(
    model: ModelSpec, config: RunnerConfig, count: int, lengths: Sequence[int], max_tokens: Sequence[int]
) -> Case:
    """Requests of every kind, some with an image, taking turns at `lengths` and `max_tokens`."""
    recipes = tuple(
        Recipe(
            kind=("ids", "pure", "spliced")[index % 3],
            length=lengths[index % len(lengths)],
            num_images=int(model.vision is not None and index % 3 != 1 and index % 2),
            max_tokens=max_tokens[index % len(max_tokens)],
            seed=index,
        )
        for index in range(count)
    )
    return Case(model, config, recipes, gap=2)


def sampled_requests(case: Case, arm: Arm, *params: dict[str, Any]) -> list[Request]:
    """The case's requests, taking turns at `params`; seeds differ unless given."""
    return [
        replace(
            request,
            sampling=replace(request.sampling, **{"seed": index, **params[index % len(params)]}),
        )
        for index, request in enumerate(case.requests(arm.prompt_embeds))
    ]


def serve_sampled(case: Case, device: Device, arm: Arm, *params: dict[str, Any]) -> Engine:
    """One run on a fresh engine."""
    engine = Engine(case.model, case.config, device, arm)
    requests = sampled_requests(case, arm, *params)
    engine.run(Arrivals((index * case.gap, request) for index, request in enumerate(requests)))
    return engine


@cache
def oracle_of(name: str) -> Oracle:
    (spec,) = [spec for spec in MICRO if spec.name == name]
    return Oracle(spec, num_threads=1)


def faults(engine: Engine, model: ModelSpec) -> dict[str, object]:
    """Requests of which a token or a log-probability is wrong, and what."""
    oracle, found = oracle_of(model.name), {}
    for name, state in engine.requests.items():
        check = oracle.check(state.request, state.output_ids)
        if check.num_wrong or check.num_ties > 1:
            found[name] = check
        width = state.request.sampling.logprobs
        if width is not None:
            log_probs = oracle.logprobs(state.request, state.output_ids)
            fault = first_fault(log_probs, state.output_ids, state.logprobs, width)
            if fault is not None:
                found[name] = fault
        elif state.logprobs:
            found[name] = "log-probabilities nobody asked for"
    return found
