"""Executes a step's commands one after another on the calling thread: what a CPU device is made of."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence

from runner.commands import OUTPUT_READY
from runner.core import DeviceError
from runner.device.base import DeviceReport
from runner.device.report import ReportRing
from runner.kernels.program import Program, Wire


def execute_serially(
    program: Program,
    step_id: int,
    commands: Sequence[Wire],
    reports: ReportRing,
    publish: Callable[[str, int], None],
) -> None:
    """Run the commands; `publish(event, step_id)` at each Record. DeviceError names what failed."""
    start_ns = time.perf_counter_ns()
    for command in commands:
        try:
            if command[0] != "record":
                program.execute(command)
                continue
        except Exception as error:
            raise DeviceError(
                f"step {step_id}: {command} failed on the device: {type(error).__name__}: {error}",
                step_id,
                str(command),
                traceback.format_exc(),
            ) from error
        event = str(command[1])
        if event == OUTPUT_READY:  # the host may read the report as soon as it sees this event
            reports.write(step_id, _report(program, start_ns))
        publish(event, step_id)


def _report(program: Program, start_ns: int) -> DeviceReport:
    counted = program.take_copies()
    return DeviceReport(
        start_ns=start_ns,
        end_ns=time.perf_counter_ns(),
        copies={name: copies for name, (copies, _) in counted.uploads.items()},
        bytes={name: num_bytes for name, (_, num_bytes) in counted.uploads.items()},
        download_bytes=counted.download_bytes,
    )
