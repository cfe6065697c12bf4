"""InlineDevice: commands run at once, in the caller's own process. Deterministic; never for timing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from runner.commands import EVENTS, Command, buffer_table
from runner.config import RunnerConfig
from runner.core import DeviceError, DeviceInfo
from runner.device.base import Device, DeviceReport
from runner.device.report import ReportRing
from runner.device.serial import execute_serially
from runner.kernels.program import Program
from runner.models import ModelSpec


class InlineDevice(Device):
    def __init__(self, model: ModelSpec, config: RunnerConfig) -> None:
        buffers = buffer_table(config, model)
        self.host = {name: np.zeros(item.shape, item.dtype) for name, item in buffers.items()}
        self.info = DeviceInfo("inline", "cpu", config.num_threads, torch.__version__)
        tensors = {name: torch.from_numpy(array) for name, array in self.host.items()}
        torch.set_num_threads(config.num_threads)
        self._program = Program(model, config, buffers, tensors)
        shape = ReportRing.shape(len(buffers))
        self._reports = ReportRing(tuple(buffers), np.full(shape, -1, np.int64))
        self._reached = dict.fromkeys(EVENTS, -1)
        self._failure: DeviceError | None = None

    def execute(self, step_id: int, commands: Sequence[Command]) -> None:
        self._check()
        wires = [command.to_wire() for command in commands]
        try:
            execute_serially(self._program, step_id, wires, self._reports, self._publish)
        except DeviceError as error:
            self._failure = error
            raise

    def wait(self, event: str, step_id: int) -> None:
        self._check()
        assert self._reached[event] >= step_id, f"nothing will ever record {event} of step {step_id}"

    def report(self, step_id: int) -> DeviceReport:
        return self._reports.read(step_id)

    def reset(self) -> None:
        self._check()
        self._program.reset()
        self._reached = dict.fromkeys(EVENTS, -1)
        for array in self.host.values():
            array.fill(np.iinfo(array.dtype).max)

    def close(self) -> None:
        """Nothing outlives the object."""

    def _publish(self, event: str, step_id: int) -> None:
        self._reached[event] = step_id

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
