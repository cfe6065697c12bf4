"""Runs with sampling parameters: the requests of a case, each with what is asked of its sampler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from arm_workloads import Arrivals, Case

from runner.core import Request
from runner.device.base import Device
from runner.engine import Engine
from runner.inputs.arms import Arm

# Tokens seen before become likely ones, so that a model with random weights repeats itself and drafts are
# right now and then.
REPEATING = {"repetition_penalty": 0.3, "frequency_penalty": -2.0}


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
