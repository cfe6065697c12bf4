"""Whether a negative control must give wrong tokens, read from the flags that it uploads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runner.commands import Command, Flags, Merge, Upload
from runner.core import Request
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import Arm
from suite.sampling import lasting_token
from suite.scenario import Case


def predicts_wrong(case: Case, arm: Arm, requests: Sequence[Request]) -> bool | None:
    """Whether a control changes a row that the model is given, all requests being there at the start.

    Read from the command lists of the runner's host half and the flags it uploads: nothing is computed.
    Holds where no request ends early, by EOS or a stop token. A merge changes a row where a flag left by an
    earlier step calls it supplied; without a merge every supplied row is lost. None where flags decide and
    drafts are verified: which rows share a step then depends on the drafts that turn out right.
    """
    assert arm.choices is not None and not arm.is_right, f"arm {arm.name} is no negative control"
    if arm.choices.merge != "none" and case.runner_config.num_speculative_tokens:
        return None
    reader = _FlagReader(case.runner_config.max_num_batched_tokens)
    device = NullDevice(
        case.model_spec,
        case.runner_config,
        lambda _, commands: reader.read(device, commands),
        token_id=lasting_token(case.scenario.traffic.sampling, case.model_spec),
    )
    engine = Engine(case.model_spec, case.runner_config, device, arm)
    engine.run(_AllAtOnce(requests))
    if arm.choices.merge == "none":
        return any(step.num_supplied_rows for step in engine.recorder.steps)
    return reader.changes_a_row


class _FlagReader:
    """The device's flags, as the uploads of one step after the other leave them."""

    def __init__(self, num_tokens: int) -> None:
        self.changes_a_row = False
        self._flags = np.ones(num_tokens, np.bool_)

    def read(self, device: NullDevice, commands: Sequence[Command]) -> None:
        is_fresh = False
        for command in commands:
            if isinstance(command, Upload) and command.buffer == "is_token_ids":
                given = device.host["is_token_ids"][command.host_first :][: command.count]
                self._flags[command.device_first :][: command.count] = given
                is_fresh = True
            elif isinstance(command, Flags):
                raise AssertionError("no negative control makes flags on the device")
            elif isinstance(command, Merge) and command.kind == "where" and not is_fresh:
                # Flags are left out only where all ids come from the device: token positions, every one.
                self.changes_a_row |= not self._flags[: command.count].all()


class _AllAtOnce:
    def __init__(self, requests: Sequence[Request]) -> None:
        self._left = list(requests)

    def due(self) -> Sequence[Request]:
        due, self._left = self._left, []
        return due

    def wait(self) -> bool:
        return False
