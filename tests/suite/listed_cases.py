"""Scenarios whose traffic is a list of steps, and one arm's run of them that computes nothing.

Holds no assertion.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from built_cases import built_case

from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import Arm
from runner.measure import StepRecord
from suite.replay import StepArrivals
from suite.scenario import Case
from suite.workload import Workload, build_workload, materialise

MIX = "[{decode: 4, repeat: 3}, {decode: 4, prefill: [40, 9], supplied: 1/2, images: 1}]"
LISTED = """\
name: listed
model: {model}
runner: {{max_num_seqs: 24, max_num_batched_tokens: 128, max_model_len: 64, num_blocks: 128{runner}}}
traffic:
  steps:
    repeat: 2
    context: {{tokens: 8}}
    mix: {mix}
arms: [refresh]
rounds: 2
seed: 7
"""


def listed_case(
    folder: Path, mix: str = MIX, *overrides: str, model: str = "tiny-gemma3-vl", runner: str = ""
) -> Case:
    return built_case(folder, *overrides, text=LISTED.format(model=model, mix=mix, runner=runner))


def null_run(case: Case, arm: Arm, workload: Workload | None = None) -> list[StepRecord]:
    """The steps that the runner's host half takes under an arm."""
    workload = workload or build_workload(case, case.scenario.seed)

    def embed(ids: object) -> np.ndarray:
        return np.zeros((len(ids), case.model_spec.hidden_size), np.float32)  # type: ignore[arg-type]

    given = materialise(workload, embed) if arm.prompt_embeds else workload.requests
    device = NullDevice(case.model_spec, case.runner_config, lambda _, __: None, token_id=5)
    engine = Engine(case.model_spec, case.runner_config, device, arm)
    engine.run(StepArrivals(given))
    return engine.recorder.steps
