"""Pace: before each measured round of a case, whether it is still needed, from records and a clock.

A run that broke a rule of its own counts for nothing here, as in the verdicts: neither in an interval nor as
a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from suite.case_design import Design
from suite.checks import Finding, invalid_runs
from suite.comparison import compare
from suite.plan import PlannedCase, PlannedRun
from suite.precision import is_spent
from suite.record import RunRecord
from suite.verdict import Word


def _no_findings(_: RunRecord) -> Sequence[Finding]:
    return ()


class Pace:
    """For one case, from when it starts. `limit_s`: its share of the budget. `stopped`: why, once it has.

    `findings_of` a run: asked once for each, as soon as it is looked at.
    """

    def __init__(
        self,
        planned: PlannedCase,
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
        findings_of: Callable[[RunRecord], Sequence[Finding]] = _no_findings,
    ) -> None:
        self.stopped: str | None = None
        self._planned = planned
        self._limit_s = limit_s
        self._clock = clock
        self._findings_of = findings_of
        self._findings: dict[str, Sequence[Finding]] = {}
        self._start_s = clock()
        self._round_starts_s: list[float] = []
        self._round = -1

    def needed(
        self, runs: Iterable[PlannedRun], records: Callable[[], Sequence[RunRecord]]
    ) -> Iterator[PlannedRun]:
        """The runs less the rounds that need not be; `records`: of this case, asked for before each round."""
        for run in runs:
            if run.is_of_round and run.round > self._round and self.stopped is None:
                self._round = run.round
                self._round_starts_s.append(self._clock())
                self.stopped = self._why_stop(self._round_starts_s[-1], records())
            if not run.is_of_round or self.stopped is None:
                yield run

    def _why_stop(self, now_s: float, records: Sequence[RunRecord]) -> str | None:
        until, num_rounds = self._planned.until, len(self._round_starts_s) - 1
        if until is None:
            return None
        key = (self._planned.case.scenario.name, self._planned.case.case_id)
        design = Design(self._planned.reference, self._planned.primary_metrics)
        found = compare(records, {key: design}, self._judged(records)) if num_rounds else ()
        compared = [one.ratio for one in found if one.verdict.word is not Word.NONE]
        told = f"after {num_rounds} round{'' if num_rounds == 1 else 's'}"
        num_valid = min([num_rounds, *(ratio.num_rounds for ratio in compared)])
        num_doubted = len(self._doubted_rounds(records))
        told += f", {num_rounds - num_doubted} of them without an INVALID run," if num_doubted else ""
        if until.is_reached([ratio.interval for ratio in compared], num_valid):
            return f"{told} every interval is at most {until.percent:g} % wide"
        starts = self._round_starts_s
        lengths_s = [after - before for before, after in pairwise(starts)]
        if is_spent(now_s - self._start_s, lengths_s, self._limit_s):
            return f"{told} its share of the budget, {self._limit_s:.0f} s, was spent"
        return None

    def _doubted_rounds(self, records: Sequence[RunRecord]) -> set[int]:
        invalid = invalid_runs(self._judged(records))
        return {record.round for record in records if record.run_id in invalid}

    def _judged(self, records: Sequence[RunRecord]) -> list[Finding]:
        for record in records:
            if record.is_timed_alike and record.run_id not in self._findings:
                self._findings[record.run_id] = self._findings_of(record)
        return [finding for found in self._findings.values() for finding in found]
