"""Pace: before each measured round of a case, whether it is still needed, from records and a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from suite.comparison import Design, compare
from suite.plan import PlannedCase, PlannedRun
from suite.precision import is_spent
from suite.record import RunRecord
from suite.verdict import Word


class Pace:
    """For one case, from when it starts. `limit_s`: its share of the budget. `stopped`: why, once it has."""

    def __init__(
        self, planned: PlannedCase, limit_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stopped: str | None = None
        self._planned = planned
        self._limit_s = limit_s
        self._clock = clock
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
        found = compare(records, {key: design}) if num_rounds else ()
        intervals = [one.ratio.interval for one in found if one.verdict.word is not Word.NONE]
        told = f"after {num_rounds} round{'' if num_rounds == 1 else 's'}"
        if until.is_reached(intervals, num_rounds):
            return f"{told} every interval is at most {until.percent:g} % wide"
        starts = self._round_starts_s
        lengths_s = [after - before for before, after in pairwise(starts)]
        if is_spent(now_s - self._start_s, lengths_s, self._limit_s):
            return f"{told} its share of the budget, {self._limit_s:.0f} s, was spent"
        return None
