"""CaptureWindow: tells a profiler when the batch is steady, by a range that it captures by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.measure import StepRecord
from runner.ranges import Ranges
from suite.profile.capture import WINDOW
from suite.steady import SteadyWindow


class CaptureWindow:
    """Polled between steps. The range opens when the batch has settled and closes when its window has ended.

    Under async scheduling the window's first step is in flight already when it opens, and the step after its
    last one when it closes: of those a profiler sees a part. `on_open` and `on_close` are called with it, as
    a GPU's own profiler needs.
    """

    def __init__(
        self,
        ranges: Ranges,
        steady: SteadyWindow,
        on_open: Callable[[], None] = lambda: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._ranges = ranges
        self._steady = steady
        self._on_open = on_open
        self._on_close = on_close
        self._num_seen = 0
        self._handle: object = None
        self._is_open = False

    def poll(self, steps: Sequence[StepRecord]) -> None:
        """`steps`: all that were retired so far."""
        for step in steps[self._num_seen :]:
            self._steady.update(step)
        self._num_seen = len(steps)
        if self._steady.is_open != self._is_open:
            self._open() if self._steady.is_open else self.close()

    def close(self) -> None:
        """End the range where it is open. Harmless when called twice."""
        if self._is_open:
            self._is_open = False
            self._on_close()
            self._ranges.end(self._handle)

    def _open(self) -> None:
        self._is_open = True
        self._on_open()
        self._handle = self._ranges.start(WINDOW, self._num_seen)
