"""When requests are handed to an engine: by an absolute schedule, or when others have ended."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from runner.core import Request
from runner.measure import now_ns
from suite.arrival_kinds import Arrivals, is_closed_loop, most_at_once
from suite.workload import WorkloadRequest

OnPoll = Callable[[int, int], None]
EndedNs = Callable[[str], int | None]


class WorkloadArrivals(Protocol):
    """What feeds an engine, as runner.engine.Arrivals, and knows when each request should have come."""

    @property
    def start_ns(self) -> int: ...

    def start(self, on_poll: OnPoll | None = None, ended_ns: EndedNs | None = None) -> None:
        """The schedule begins now; `on_poll` gets the time (ns) and the number sent at every ask.

        `ended_ns` says when a request that was handed over ended, on the clock of all records, and None
        while it has not: needed where something limits how many there are at once.
        """
        ...

    def scheduled_ns(self, index: int) -> int:
        """When request `index` should be handed over, on the clock of all records."""
        ...

    def due(self) -> Sequence[Request]: ...

    def wait(self) -> bool: ...


class Places:
    """How many requests may be with an engine at once, and since when each free place is free."""

    def __init__(self, count: int, start_ns: int, ended_ns: EndedNs) -> None:
        self._free_ns = [start_ns] * count  # a heap; equal times are one already
        self._taken: list[str] = []
        self._ended_ns = ended_ns

    def collect(self) -> None:
        """Free the places of the requests that have ended since the last call."""
        still_taken = []
        for request_id in self._taken:
            ended_ns = self._ended_ns(request_id)
            if ended_ns is None:
                still_taken.append(request_id)
            else:
                heapq.heappush(self._free_ns, ended_ns)
        self._taken = still_taken

    @property
    def is_free(self) -> bool:
        return bool(self._free_ns)

    def take(self, request_id: str) -> int:
        """The place that has been free for longest; returns since when (ns)."""
        self._taken.append(request_id)
        return heapq.heappop(self._free_ns)


class ScheduledArrivals:
    """By an absolute schedule; every request is due at once where `is_timed` is false.

    A late request never delays those after it, and gaps slept through do not add up. With `max_concurrency`
    a request may have to wait for a place, which does not move its scheduled time, nor that of any other.
    """

    def __init__(
        self,
        requests: Sequence[WorkloadRequest],
        is_timed: bool,
        clock: Callable[[], int] = now_ns,
        sleep: Callable[[float], None] = time.sleep,
        max_concurrency: int | None = None,
    ) -> None:
        self._requests = requests
        self._offsets_ns = [round(item.arrival_s * 1e9) if is_timed else 0 for item in requests]
        self._clock = clock
        self._sleep = sleep
        self._max_concurrency = max_concurrency
        self._places: Places | None = None
        self._on_poll: OnPoll | None = None
        self._num_sent = 0
        self.start_ns = clock()

    def start(self, on_poll: OnPoll | None = None, ended_ns: EndedNs | None = None) -> None:
        self.start_ns = self._clock()
        self._on_poll = on_poll
        if self._max_concurrency is not None:
            assert ended_ns is not None, "a limit needs to know when requests end"
            self._places = Places(self._max_concurrency, self.start_ns, ended_ns)

    def scheduled_ns(self, index: int) -> int:
        return self.start_ns + self._offsets_ns[index]

    def due(self) -> Sequence[Request]:
        now = self._clock()
        first = self._num_sent
        if self._places is not None:
            self._places.collect()
        while self._num_sent < len(self._requests) and self.scheduled_ns(self._num_sent) <= now:
            if self._places is not None:
                if not self._places.is_free:
                    break
                self._places.take(self._requests[self._num_sent].request.request_id)
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


class ClosedLoopArrivals:
    """The next request is due when one of `concurrency` places becomes free, which is its scheduled time."""

    def __init__(
        self,
        requests: Sequence[WorkloadRequest],
        concurrency: int,
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self._requests = requests
        self._concurrency = concurrency
        self._clock = clock
        self._places: Places | None = None
        self._on_poll: OnPoll | None = None
        self._scheduled_ns: list[int] = []
        self.start_ns = clock()

    def start(self, on_poll: OnPoll | None = None, ended_ns: EndedNs | None = None) -> None:
        assert ended_ns is not None, "a closed loop needs to know when requests end"
        self.start_ns = self._clock()
        self._on_poll = on_poll
        self._places = Places(self._concurrency, self.start_ns, ended_ns)

    def scheduled_ns(self, index: int) -> int:
        """Of a request that was never sent: as the last one that was, since its place never became free."""
        if index < len(self._scheduled_ns):
            return self._scheduled_ns[index]
        return self._scheduled_ns[-1] if self._scheduled_ns else self.start_ns

    def due(self) -> Sequence[Request]:
        now = self._clock()
        first = len(self._scheduled_ns)
        if self._places is not None:
            self._places.collect()
            while self._places.is_free and len(self._scheduled_ns) < len(self._requests):
                request = self._requests[len(self._scheduled_ns)].request
                self._scheduled_ns.append(self._places.take(request.request_id))
        if self._on_poll is not None:
            self._on_poll(now, len(self._scheduled_ns))
        return [item.request for item in self._requests[first : len(self._scheduled_ns)]]

    def wait(self) -> bool:
        """Nothing runs, so every place is free: whoever is left is due at once."""
        return len(self._scheduled_ns) < len(self._requests)


def arrivals_for(arrivals: Arrivals, requests: Sequence[WorkloadRequest], is_timed: bool) -> WorkloadArrivals:
    """What feeds an engine as a scenario's traffic.arrivals say; all at once where nothing is timed."""
    most = most_at_once(arrivals) if is_timed else None
    if most is not None and is_closed_loop(arrivals):
        return ClosedLoopArrivals(requests, most)
    return ScheduledArrivals(requests, is_timed, max_concurrency=most)
