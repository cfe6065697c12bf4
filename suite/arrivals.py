"""When requests are handed to an engine: by an absolute schedule, whatever became of those before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from runner.core import Request
from runner.measure import now_ns
from suite.workload import WorkloadRequest


class ScheduledArrivals:
    """Satisfies runner.engine.Arrivals. Every request is due at once where `is_timed` is false.

    The schedule is absolute: a late request never delays those after it, and gaps slept through do
    not add up.
    """

    def __init__(
        self,
        requests: Sequence[WorkloadRequest],
        is_timed: bool,
        clock: Callable[[], int] = now_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._requests = requests
        self._offsets_ns = [round(item.arrival_s * 1e9) if is_timed else 0 for item in requests]
        self._clock = clock
        self._sleep = sleep
        self._on_poll: Callable[[int, int], None] | None = None
        self._num_sent = 0
        self.start_ns = clock()

    def start(self, on_poll: Callable[[int, int], None] | None = None) -> None:
        """The schedule begins now; `on_poll` gets the time (ns) and the number sent at every ask."""
        self.start_ns = self._clock()
        self._on_poll = on_poll

    def scheduled_ns(self, index: int) -> int:
        """When request `index` should be handed over, on the clock of all records."""
        return self.start_ns + self._offsets_ns[index]

    def due(self) -> Sequence[Request]:
        now = self._clock()
        first = self._num_sent
        while self._num_sent < len(self._requests) and self.scheduled_ns(self._num_sent) <= now:
            self._num_sent += 1
        if self._on_poll is not None:
            self._on_poll(now, self._num_sent)
        return [item.request for item in self._requests[first : self._num_sent]]

    def wait(self) -> bool:
        if self._num_sent == len(self._requests):
            return False
        remaining_ns = self.scheduled_ns(self._num_sent) - self._clock()
        if remaining_ns > 0:
            self._sleep(remaining_ns / 1e9)
        return True
