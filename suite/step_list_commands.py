"""What an arm's commands are on each kind of step of a list, as a digest: equal where the lists are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from runner.commands import Command
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import Arm
from runner.models import ModelSpec
from suite.need import ListedStep
from suite.replay import StepArrivals
from suite.scenario import Case
from suite.step_list_check import first_other_step
from suite.workload import WorkloadRequest


def command_digests(
    case: Case, arm: Arm, given: Sequence[WorkloadRequest], listed: Sequence[ListedStep]
) -> Mapping[str, str]:
    """For each kind of step outside the lead-in a digest of its compiled commands, in order.

    Read from the runner's host half over a device that computes nothing, as `explain` does. None where a
    request of a recorded list ended by a token: without the model nobody knows when.
    """
    digests = {step.kind: hashlib.sha256() for step in listed if not step.is_lead_in}

    def keep(step_id: int, commands: Sequence[Command]) -> None:
        if step_id < len(listed) and not listed[step_id].is_lead_in:
            digests[listed[step_id].kind].update(repr((step_id, list(commands))).encode())

    device = NullDevice(
        case.model_spec,
        case.runner_config,
        keep,
        token_id=_lasting_token(case.model_spec, given),
    )
    engine = Engine(case.model_spec, case.runner_config, device, arm)
    engine.run(StepArrivals(given))
    if first_other_step(listed, engine.recorder.steps, has_rows=arm.prompt_embeds) is not None:
        return {}
    return {kind: digest.hexdigest() for kind, digest in digests.items()}


def _lasting_token(model: ModelSpec, given: Sequence[WorkloadRequest]) -> int:
    """An id that ends none of the requests."""
    ending = {model.eos_token_id}.union(*(item.request.sampling.stop_token_ids for item in given))
    return next(token_id for token_id in range(model.vocab_size) if token_id not in ending)
