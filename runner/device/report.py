"""The int64 array in which a device reports its recent steps, so that reporting costs it a few stores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from runner.commands import RING_SIZE
from runner.device.base import DeviceReport

_STEP, _START, _END, _DOWNLOAD = range(4)
_FIXED = 4


class ReportRing:
    """One row a step in flight: step id, start, end, download bytes, then copies and bytes by buffer."""

    def __init__(self, buffer_names: Sequence[str], array: NDArray[np.int64]) -> None:
        self._names = tuple(buffer_names)
        self._array = array

    @staticmethod
    def shape(num_buffers: int) -> tuple[int, int]:
        return (RING_SIZE, _FIXED + 2 * num_buffers)

    def write(self, step_id: int, report: DeviceReport) -> None:
        row = self._array[step_id % RING_SIZE]
        row[_START], row[_END] = report.start_ns, report.end_ns
        row[_DOWNLOAD] = report.download_bytes
        middle = _FIXED + len(self._names)
        row[_FIXED:middle] = [report.copies.get(name, 0) for name in self._names]
        row[middle:] = [report.bytes.get(name, 0) for name in self._names]
        row[_STEP] = step_id

    def read(self, step_id: int) -> DeviceReport:
        row = self._array[step_id % RING_SIZE]
        assert row[_STEP] == step_id, f"the report of step {step_id} is not there"
        middle = _FIXED + len(self._names)
        return DeviceReport(
            start_ns=int(row[_START]),
            end_ns=int(row[_END]),
            copies=self._by_name(row[_FIXED:middle]),
            bytes=self._by_name(row[middle:]),
            download_bytes=int(row[_DOWNLOAD]),
        )

    def _by_name(self, values: NDArray[np.int64]) -> dict[str, int]:
        return {name: int(value) for name, value in zip(self._names, values, strict=True) if value}
