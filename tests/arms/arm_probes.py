"""Looks into a run: what every step was told, what its uploads read, and what the model was given.

The probes only read; an inline device runs a step inside `execute`, so the host buffers seen there are those
the uploads read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.commands import Command, Forward, Upload
from runner.device.base import Device
from runner.engine import Engine
from runner.executor import Executor
from runner.kernels.program import CopyCounter, Program, Wire

Edit = Callable[[int, Sequence[Command]], Sequence[Command]]


@dataclass(frozen=True, slots=True)
class SeenRow:
    """A batch row of one step: positions [first, first + count) of a request, at packed `offset`."""

    request_id: str
    first: int
    count: int
    offset: int


@dataclass(slots=True)
class SeenStep:
    """One step. `uploaded`: by buffer, what its uploads read; `given`: what the model was given."""

    step_id: int
    commands: list[Command]
    rows: list[SeenRow]
    uploaded: dict[str, NDArray[Any]]
    given: NDArray[np.float32] | None = None

    @property
    def num_tokens(self) -> int:
        return sum(row.count for row in self.rows)

    def has(self, command_type: type[Command], **fields: object) -> bool:
        return any(
            isinstance(command, command_type) and all(getattr(command, k) == v for k, v in fields.items())
            for command in self.commands
        )


@dataclass(slots=True)
class Probe:
    steps: list[SeenStep] = field(default_factory=list)


@contextmanager
def probed(engine: Engine, device: Device) -> Any:
    """Watch an engine on an inline device."""
    probe = Probe()
    executor: Executor = engine._executor
    batch = executor._batch
    execute, run = device.execute, Program.execute

    def watch(step_id: int, commands: Sequence[Command]) -> None:
        probe.steps.append(_seen(step_id, commands, batch, device))
        execute(step_id, commands)

    def watch_program(program: Program, command: Wire, copies: CopyCounter) -> None:
        if command[0] == Forward.operation and command[2] == "inputs_embeds":
            count = int(command[1])
            given = program._buffers["inputs_embeds"][:count]
            probe.steps[-1].given = given.clone().numpy()
        run(program, command, copies)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "execute", watch)
        patch.setattr(Program, "execute", watch_program)
        yield probe


def _seen(step_id: int, commands: Sequence[Command], batch: Any, device: Device) -> SeenStep:
    starts = np.concatenate([[0], np.cumsum(batch.count[: batch.num_rows])])
    rows = [
        SeenRow(name, int(batch.first[row]), int(batch.count[row]), int(starts[row]))
        for row, name in enumerate(batch.request_ids)
    ]
    uploaded = {
        command.buffer: device.host[command.buffer][
            command.host_first : command.host_first + command.count
        ].copy()
        for command in commands
        if isinstance(command, Upload)
    }
    return SeenStep(step_id, list(commands), rows, uploaded)


@contextmanager
def edited(device: Device, edit: Edit) -> Any:
    """Let `edit` change every step's commands before the device sees them."""
    execute = device.execute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "execute", lambda step_id, commands: execute(step_id, edit(step_id, commands)))
        yield
