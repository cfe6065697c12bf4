"""NullDevice: keeps the command lists it is given and computes nothing; every token is the same.

For reading what an arm does (`suite explain`) and for timing the host half alone. No torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.commands import RING_SIZE, Command, Download, Upload, buffer_table, row_bytes
from runner.config import RunnerConfig
from runner.core import DeviceInfo
from runner.device.base import Device, DeviceReport, poison_host
from runner.measure import now_ns
from runner.models import ModelSpec
from runner.slot_state import NO_ID
from runner.spans import Level

_ACCEPTED = "accepted_ids."


class NullDevice(Device):
    """`on_step(step_id, commands)` is told of every step; `token_id` is what every row samples."""

    def __init__(
        self,
        model: ModelSpec,
        config: RunnerConfig,
        on_step: Callable[[int, Sequence[Command]], None],
        token_id: int = 0,
    ) -> None:
        self._buffers = buffer_table(config, model)
        self.host = {name: np.zeros(item.shape, item.host_dtype) for name, item in self._buffers.items()}
        self.info = DeviceInfo("null", "none", 0, "")
        self._on_step = on_step
        self._token_id = token_id
        self._reports: dict[int, DeviceReport] = {}

    def execute(self, step_id: int, commands: Sequence[Command]) -> None:
        start_ns = now_ns()
        self._on_step(step_id, commands)
        for command in commands:
            if isinstance(command, Download):
                self._answer(self.host[command.buffer][: command.count], command.buffer)
        self._reports.pop(step_id - RING_SIZE, None)
        self._reports[step_id] = self._report(commands, start_ns)

    def _answer(self, target: NDArray[Any], buffer: str) -> None:
        target[:] = self._token_id
        if buffer.startswith(_ACCEPTED):
            target[:, 1:] = NO_ID  # a row without drafts can have none accepted

    def wait(self, event: str, step_id: int) -> None:
        """Everything has happened already."""

    def report(self, step_id: int) -> DeviceReport:
        return self._reports[step_id]

    def reset(self, level: Level = "off") -> None:
        poison_host(self.host)

    def close(self) -> None:
        """Nothing outlives the object."""

    def _report(self, commands: Sequence[Command], start_ns: int) -> DeviceReport:
        uploads = [command for command in commands if isinstance(command, Upload)]
        downloads = [command for command in commands if isinstance(command, Download)]
        num_bytes: Counter[str] = Counter()
        for upload in uploads:
            num_bytes[upload.buffer] += upload.count * row_bytes(self._buffers[upload.buffer])
        return DeviceReport(
            start_ns=start_ns,
            end_ns=now_ns(),
            copies=Counter(upload.buffer for upload in uploads),
            bytes=num_bytes,
            download_bytes=sum(item.count * row_bytes(self._buffers[item.buffer]) for item in downloads),
        )
