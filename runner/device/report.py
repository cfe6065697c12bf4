"""The int64 arrays in which a device reports its recent steps, so that reporting costs it a few stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from runner.commands import RING_SIZE
from runner.config import RunnerConfig
from runner.device.base import DeviceReport
from runner.spans import Span, command_spans

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


_COUNT = 0
_NAME = 0
_NO_ROOM = "the step has more spans than there is room for"
_NOT_RUN = "it had not run when the step was retired"


class SpanRing:
    """A page a step in flight: step id and number of spans, then name, start and end of each.

    A host that runs its commands one after another has one lane, whatever the stream of a command.
    """

    def __init__(self, buffer_names: Sequence[str], array: NDArray[np.int64]) -> None:
        self._names = command_spans(buffer_names)
        self._index = {name: index for index, name in enumerate(self._names)}
        self._array = array

    @staticmethod
    def shape(config: RunnerConfig) -> tuple[int, int, int]:
        """Room for the commands of the largest step: a newcomer and a splice bring up to three each."""
        num_spans = 48 + 6 * config.max_num_seqs + 4 * config.max_images_per_step
        return (RING_SIZE, 1 + num_spans, 3)

    def start(self, step_id: int) -> None:
        self._array[step_id % RING_SIZE, 0] = (0, step_id, 0)

    def add(self, step_id: int, name: str, start_ns: int, end_ns: int) -> None:
        """One more span of the step; what there is no room for is counted only."""
        page = self._array[step_id % RING_SIZE]
        page[0, _COUNT] += 1
        count = int(page[0, _COUNT])
        if count < len(page):
            page[count] = (self._index[name], start_ns, end_ns)

    def read(self, step_id: int, names: Sequence[str]) -> list[Span]:
        """The spans of a step that should have those of `names`, in any order."""
        page = self._array[step_id % RING_SIZE]
        assert page[0, 1] == step_id, f"the spans of step {step_id} are not there"
        count = int(page[0, _COUNT])
        rows = page[1 : 1 + min(count, len(page) - 1)].tolist()
        found = [Span(step_id, self._names[row[_NAME]], "compute", row[1], row[2]) for row in rows]
        lacking = Counter(names) - Counter(span.name for span in found)
        is_full = count >= len(page)
        why = _NO_ROOM if is_full else _NOT_RUN
        return [*found, *(Span(step_id, name, "compute", None, None, why) for name in lacking.elements())]
