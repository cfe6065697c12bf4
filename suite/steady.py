"""SteadyWindow: the steps of a run in which the batch is what it will be for long: what a profiler captures.

Decided step by step from StepRecords as they are retired, so that a capture can begin and end by it; the same
rule over a finished run gives the same window. The batch has settled once, over the last 8 steps and not
counting the run's first,

* the number of rows differs by at most a tenth of its median, or by one: requests come and go one at a time;
* none was preempted: a batch that does not fit is not what it will be;
* requests have begun to leave: at some step before, fewer rows decoded than at the step before it, or fewer
  were there, rows and waiting together; or else nothing waits and all of the 8 steps only decode. Without
  this a slow filling, where each prompt takes many steps, would pass for a settled batch: nobody leaves
  there, and either someone waits or prompts are still being computed.

Tokens are not looked at: a decode step has one a row, drafts apart, and how many more a mixed step has is
drawn with the prompts' lengths: that is traffic, not warming up.

The window begins with the step after. It ends after `num_steps`, or before the final drain: the first step
with fewer rows than the settled median less that tolerance, while nothing waits that could fill the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from runner.measure import StepRecord

SETTLING_STEPS = 8
DEFAULT_NUM_STEPS = 64
TOLERANCE = 0.1  # of the median number of rows

End = Literal["num_steps", "drain", "run"]


@dataclass(frozen=True, slots=True)
class Window:
    """`num_rows`: the median over the steps by which it settled. `end`: what ended it, or the run did."""

    first_step_id: int
    last_step_id: int
    num_steps: int
    num_rows: float
    end: End


@dataclass(frozen=True, slots=True)
class NotSettled:
    """There is no such window."""

    reason: str


class SteadyWindow:
    """Give it every retired step in order. `is_open`: the next step will be in the window, unless it drains.

    `num_steps` None: as many as there are. ValueError for one that is not positive.
    """

    def __init__(self, num_steps: int | None = DEFAULT_NUM_STEPS) -> None:
        if num_steps is not None and num_steps < 1:
            raise ValueError(f"a window of {num_steps} steps; at least 1 is needed")
        self.is_open = False
        self._num_steps = num_steps
        self._recent: deque[StepRecord] = deque(maxlen=SETTLING_STEPS)
        self._num_seen = 0
        self._last: StepRecord | None = None
        self._has_any_left = False
        self._why_not = "the run has no steps"
        self._num_rows: float | None = None  # None until settled
        self._inside: list[int] = []
        self._end: End = "run"

    def update(self, record: StepRecord) -> bool:
        """Whether this step is in the window."""
        if self._num_rows is None:
            self._look_for_start(record)
            return False
        if self.is_open and self._drains(record):
            self._close("drain")
        if not self.is_open:
            return False
        self._inside.append(record.step_id)
        if len(self._inside) == self._num_steps:
            self._close("num_steps")
        return True

    @property
    def result(self) -> Window | NotSettled:
        """Of the steps so far."""
        if self._num_rows is None:
            return NotSettled(self._why_not)
        if not self._inside:
            return NotSettled("the batch settled, but no step came before it drained")
        first, last = self._inside[0], self._inside[-1]
        return Window(first, last, len(self._inside), self._num_rows, self._end)

    def _look_for_start(self, record: StepRecord) -> None:
        self._has_any_left |= self._last is not None and _has_left(self._last, record)
        self._last = record
        self._num_seen += 1
        self._recent.append(record)
        reason = self._reason()
        if reason is None:
            self.is_open = True
            self._num_rows = median(step.num_rows for step in self._recent)
        else:
            self._why_not = reason

    def _reason(self) -> str | None:
        """Why the batch has not settled by now."""
        steps = self._recent
        if self._num_seen <= SETTLING_STEPS:
            return f"the run has {self._num_seen} steps; {SETTLING_STEPS + 2} are the least that can do"
        rows = [step.num_rows for step in steps]
        if max(rows) - min(rows) > tolerance(median(rows)):
            return f"the last {len(rows)} steps have from {min(rows)} to {max(rows)} rows"
        if any(step.num_preempted for step in steps):
            return f"requests were preempted in the last {len(rows)} steps"
        if self._has_any_left:
            return None
        if steps[-1].num_waiting:
            return f"{steps[-1].num_waiting} requests wait, and none has left: the batch is being filled"
        if any(step.kind != "decode" for step in steps):
            return f"none has left, and prompts were computed in the last {len(rows)} steps"
        return None

    def _drains(self, record: StepRecord) -> bool:
        assert self._num_rows is not None
        fewest = self._num_rows - tolerance(self._num_rows)
        return not record.num_waiting and record.num_rows < fewest

    def _close(self, end: End) -> None:
        self.is_open = False
        self._end = end


def _has_left(earlier: StepRecord, later: StepRecord) -> bool:
    """Whether a request surely ended between two steps; a preempted one decodes no more either."""
    if later.num_preempted:
        return False
    fewer_decode = later.num_decode_rows < earlier.num_decode_rows
    return fewer_decode or later.num_rows + later.num_waiting < earlier.num_rows + earlier.num_waiting


def tolerance(num_rows: float) -> float:
    """By how many rows the steps of a settled batch may differ."""
    return max(1.0, TOLERANCE * num_rows)


def steady_window(
    records: Iterable[StepRecord], num_steps: int | None = DEFAULT_NUM_STEPS
) -> Window | NotSettled:
    """The window of a finished run, its records in the order of their steps."""
    window = SteadyWindow(num_steps)
    for record in records:
        window.update(record)
    return window.result
