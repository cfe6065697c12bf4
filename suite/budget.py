"""Budget: which runs of a case are begun where all that a command does may take so long.

A round is whole or not begun, and decides nothing by what came of it: only how long those before it took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from suite.plan import PlannedRun
from suite.precision import is_spent
from suite.ratios import MIN_ROUNDS


class BudgetPace:
    """For one case, from when it starts. `left_s`: of the budget. `limit_s`: its share of that.

    Up to MIN_ROUNDS rounds it may take all that is left, since fewer are no verdict; beyond them its share,
    which is for what comes after it.
    `opening_s`: how long it took to open the case the last time, which is no round's; 0 where it never was.
    """

    def __init__(
        self,
        limit_s: float,
        left_s: float,
        opening_s: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s = limit_s
        self._left_s = left_s
        self._opening_s = opening_s
        self._clock = clock
        self._start_s = clock()
        self._begun_s: float | None = None  # when the part that is being run began
        self._lengths_s: list[float] = []

    def affordable(self, runs: Iterable[PlannedRun]) -> Iterator[PlannedRun]:
        """The runs less those that there is no time for, a round at a time."""
        part: tuple[object, ...] | None = None
        is_begun = False
        for run in runs:
            if _part(run) != part:
                part, is_begun = _part(run), self._begin(run)
            if is_begun:
                yield run

    def _begin(self, run: PlannedRun) -> bool:
        now_s = self._clock()
        if self._begun_s is not None:
            opening_s = 0.0 if self._lengths_s else self._opening_s()
            self._lengths_s.append(max(0.0, now_s - self._begun_s - opening_s))
        is_beyond = run.is_of_round and run.round >= MIN_ROUNDS
        limit_s = min(self._limit_s, self._left_s) if is_beyond else self._left_s
        first_s = self._opening_s() if not self._lengths_s else 0.0
        has_time = now_s - self._start_s + first_s < limit_s
        has_time = has_time and not is_spent(now_s - self._start_s, self._lengths_s, limit_s)
        self._begun_s = now_s if has_time else None
        return has_time


def _part(run: PlannedRun) -> tuple[object, ...]:
    """What is begun as a whole: a round of all arms; of a token check each run."""
    alone = run.run_id if run.rotation is not None else None
    return alone, run.is_warmup, run.instrument, run.sync_check, bool(run.repeats), run.round
