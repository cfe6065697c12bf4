"""CommandRunner: executes single commands of steps, keeps each step's account, and types its errors."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from runner.commands import OUTPUT_READY
from runner.core import DeviceError
from runner.device.base import DeviceReport
from runner.device.report import ReportRing, SpanRing
from runner.kernels.program import CopyCounter, Program, Wire
from runner.ranges import NoRanges, Ranges, nvtx_ranges
from runner.spans import Level, records_device, span_name
from runner.sync_check import SyncCheck, SyncFinding


@dataclass(slots=True)
class _Account:
    start_ns: int
    copies: CopyCounter = field(default_factory=CopyCounter)


class CommandRunner:
    """`publish(event, step_id)` is called at each Record. When a command may run, the caller knows.

    A step's account ends with its output; what it still computes then (drafts) is in no account.
    """

    def __init__(
        self,
        program: Program,
        reports: ReportRing,
        spans: SpanRing,
        publish: Callable[[str, int], None],
        make_ranges: Callable[[], Ranges] = nvtx_ranges,
    ) -> None:
        self._program = program
        self._reports = reports
        self._spans = spans
        self._publish = publish
        self._make_ranges = make_ranges
        self._ranges: Ranges = NoRanges()
        self._level: Level = "off"
        self._accounts: dict[int, _Account] = {}
        self._last_reported = -1

    def run(self, step_id: int, command: Wire) -> None:
        """Run one command of a step. DeviceError names the step and the command that failed."""
        account = self._account_of(step_id)
        if command[0] == "record":
            self._record(step_id, str(command[1]), account)
        elif command[0] == "wait":
            return
        elif self._level == "off":
            self._execute(step_id, command, account)
        else:
            self._execute_in_span(step_id, command, account)

    @property
    def sync_findings(self) -> tuple[SyncFinding, ...]:
        return self._program.watch.findings

    @property
    def num_recompiled(self) -> int:
        return self._program.num_recompiled

    def reset(self, level: Level = "off", sync_check: SyncCheck = "off") -> None:
        self._accounts.clear()
        self._program.watch.mode = sync_check
        self._program.watch.clear()
        self._last_reported = -1
        self._program.reset()
        self._level = level
        self._ranges = NoRanges() if level == "off" else self._make_ranges()

    def _account_of(self, step_id: int) -> _Account:
        account = self._accounts.get(step_id)
        if account is None:
            account = _Account(time.perf_counter_ns())
            if step_id > self._last_reported:  # outputs come in order
                self._accounts[step_id] = account
                if records_device(self._level):
                    self._spans.start(step_id)
        return account

    def _execute_in_span(self, step_id: int, command: Wire, account: _Account) -> None:
        name = span_name(command)
        assert name is not None
        self._ranges.push(name, step_id)
        start_ns = time.perf_counter_ns()
        try:
            self._execute(step_id, command, account)
        finally:
            end_ns = time.perf_counter_ns()
            self._ranges.pop()
        if records_device(self._level) and step_id in self._accounts:
            self._spans.add(step_id, name, start_ns, end_ns)

    def _execute(self, step_id: int, command: Wire, account: _Account) -> None:
        self._program.watch.step_id = step_id
        try:
            self._program.execute(command, account.copies)
        except Exception as error:
            raise DeviceError(
                f"step {step_id}: {command} failed on the device: {type(error).__name__}: {error}",
                step_id,
                str(command),
                traceback.format_exc(),
            ) from error

    def _record(self, step_id: int, event: str, account: _Account) -> None:
        if event == OUTPUT_READY:  # the host may read the report as soon as it sees this event
            self._accounts.pop(step_id, None)
            self._last_reported = step_id
            self._reports.write(step_id, _report(account))
        self._publish(event, step_id)


def _report(account: _Account) -> DeviceReport:
    return DeviceReport(
        start_ns=account.start_ns,
        end_ns=time.perf_counter_ns(),
        copies=account.copies.copies_by_buffer,
        bytes=account.copies.bytes_by_buffer,
        download_bytes=account.copies.download_bytes,
    )
