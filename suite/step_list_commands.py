"""What an arm's commands are on each kind of step of a list, as a digest: equal where the lists are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from runner.commands import Command
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import Arm
from suite.need import ListedStep
from suite.replay import StepArrivals
from suite.sampling import lasting_token
from suite.scenario import Case
from suite.workload import WorkloadRequest


def command_digests(
    case: Case, arm: Arm, given: Sequence[WorkloadRequest], listed: Sequence[ListedStep]
) -> Mapping[str, str]:
    """For each kind of step outside the lead-in a digest of its compiled commands, in order.

    Read from the runner's host half over a device that computes nothing, as `explain` does.
    """
    digests = {step.kind: hashlib.sha256() for step in listed if not step.is_lead_in}

    def keep(step_id: int, commands: Sequence[Command]) -> None:
        if step_id < len(listed) and not listed[step_id].is_lead_in:
            digests[listed[step_id].kind].update(repr((step_id, list(commands))).encode())

    device = NullDevice(
        case.model_spec,
        case.runner_config,
        keep,
        token_id=lasting_token(case.scenario.traffic.sampling, case.model_spec),
    )
    Engine(case.model_spec, case.runner_config, device, arm).run(StepArrivals(given))
    return {kind: digest.hexdigest() for kind, digest in digests.items()}
