"""Accounts of steps: what outlives a step's output is in none of them."""

from __future__ import annotations

from runner.commands import RING_SIZE, Draft, Record
from runner.device.command_runner import CommandRunner
from runner.kernels.sync_watch import SyncWatch


class _Program:
    def __init__(self) -> None:
        self.executed: list[object] = []
        self.watch = SyncWatch([])

    def execute(self, command: object, _copies: object) -> None:
        self.executed.append(command)

    def reset(self) -> None:
        self.executed.clear()


class _Reports:
    def __init__(self) -> None:
        self.step_ids: list[int] = []

    def write(self, step_id: int, _report: object) -> None:
        self.step_ids.append(step_id)


def test_drafts_proposed_behind_the_output_leave_no_account_behind() -> None:
    program, reports, published = _Program(), _Reports(), []
    runner = CommandRunner(program, reports, None, lambda *event: published.append(event))  # type: ignore[arg-type]
    for _ in range(2):
        for step_id in range(20):
            runner.run(step_id, Draft("draft_ids.0", 1).to_wire())
            runner.run(step_id, Record("output", "output").to_wire())
            runner.run(step_id, Draft("draft_ids.0", 1).to_wire())
        assert len(runner._accounts) <= RING_SIZE
        assert (len(program.executed), reports.step_ids[-1], published[-1]) == (40, 19, ("output", 19))
        runner.reset()
    assert reports.step_ids == [*range(20)] * 2
