"""Two experiments over one plan that take turns: each run of one beside the same run of the other."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from suite.experiment import Experiment, Stop
from suite.plan import PlannedCase, PlannedRun

SideName = Literal["head", "baseline"]
SIDES: tuple[SideName, SideName] = ("baseline", "head")

_POLL_S = 0.2


def turns(planned: PlannedCase) -> list[tuple[SideName, PlannedRun]]:
    """The runs of a case in the order of its plan, each on both sides, one right after the other.

    Which side is first is drawn for every arm anew, and in every other round the other way round: what comes
    second runs on a warmer machine, and that must not be one side's.
    """
    draw = random.Random(f"{planned.seed}:{planned.case.case_id}:sides")
    first: dict[tuple[str, bool, int], bool] = {}
    order: list[tuple[SideName, PlannedRun]] = []
    for run in planned.runs():
        key = (run.arm, run.is_aa, run.round // 2)
        is_swapped = first.setdefault(key, draw.random() < 0.5) != bool(run.round % 2)
        order += [(side, run) for side in (SIDES[::-1] if is_swapped else SIDES)]
    return order


class Turns:
    """Hands out the runs of both sides of all cases, one at a time: the next when the last one's record is
    there.

    A side asks from a thread of its own, and waits there until it is its turn or the experiment is stopped.
    """

    def __init__(self, cases: Sequence[PlannedCase], stop: Stop) -> None:
        self._stop = stop
        self._changed = threading.Condition()
        self._now = 0
        self._first: dict[str, int] = {}
        number = 0
        for planned in cases:
            self._first[planned.case.case_id] = number
            number += len(turns(planned))

    def of(self, side: SideName) -> Callable[[PlannedCase], Iterator[PlannedRun]]:
        """The runs of one side, as Experiment takes them."""

        def schedule(planned: PlannedCase) -> Iterator[PlannedRun]:
            first = self._first[planned.case.case_id]
            for number, (whose, run) in enumerate(turns(planned), first):
                if whose == side:
                    if not self._wait_for(number):
                        return
                    yield run
                    self._pass_on()

        return schedule

    def _wait_for(self, number: int) -> bool:
        """Whether it became the turn's time; False where the experiment is stopped."""
        with self._changed:
            while self._now != number:
                if self._stop.is_requested:
                    return False
                self._changed.wait(_POLL_S)
        return True

    def _pass_on(self) -> None:
        with self._changed:
            self._now += 1
            self._changed.notify_all()


def run_together(experiments: Sequence[Experiment], stop: Stop) -> None:
    """Each in a thread. The first error ends the others, and is raised."""

    def run(experiment: Experiment) -> None:
        try:
            experiment.run()
        except BaseException:
            stop.request()
            raise

    with ThreadPoolExecutor(len(experiments)) as pool:
        ends = [pool.submit(run, experiment) for experiment in experiments]
        for end in ends:
            end.result()
