"""CpuMeter: what the cores did between two moments, and how much of it was ours."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from suite.record import CpuUse

_BUSY = ("user", "nice", "system", "irq", "softirq")
"""Of psutil's cpu_times; `user` holds guests already, `iowait` is idle."""


@dataclass(frozen=True, slots=True)
class _Counts:
    at_s: float
    busy_s: float
    stolen_s: float | None


class CpuMeter:
    """Counts from when it is made; `use` gives the counts since then.

    Ours are this process, its parent (the suite, which waits and draws) and all children that are there at
    either end. Looked at twice and never in between, so that nothing is added to what is timed.
    """

    def __init__(
        self,
        own: Callable[[], Sequence[psutil.Process]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_own = own or _own_processes
        self._clock = clock
        self._cores = _usable_cores()
        self._own_before = self._own_s()
        self._before = self._counts()

    def use(self) -> CpuUse | None:
        """None where this system does not let itself be counted."""
        before, after = self._before, self._counts()
        if before is None or after is None:
            return None
        own = self._own_s()
        # Of a process that is new its whole time; one that has gone cannot be asked, and counts as foreign.
        own_s = sum(max(0.0, used - self._own_before.get(pid, 0.0)) for pid, used in own.items())
        stolen = (
            None if after.stolen_s is None or before.stolen_s is None else after.stolen_s - before.stolen_s
        )
        return CpuUse(
            wall_s=max(0.0, after.at_s - before.at_s),
            num_cores=max(1, len(self._cores)),
            busy_s=max(0.0, after.busy_s - before.busy_s),
            own_s=own_s,
            stolen_s=None if stolen is None else max(0.0, stolen),
        )

    def _counts(self) -> _Counts | None:
        try:
            cores = psutil.cpu_times(percpu=True)
        except (OSError, RuntimeError, NotImplementedError, psutil.Error):
            return None
        mine = [cores[index] for index in self._cores if index < len(cores)]
        busy_s = sum(getattr(core, name, 0.0) for core in mine for name in _BUSY)
        has_steal = all(hasattr(core, "steal") for core in mine)
        return _Counts(self._clock(), busy_s, sum(core.steal for core in mine) if has_steal else None)

    def _own_s(self) -> dict[int, float]:
        """CPU seconds by pid."""
        found = {}
        for process in self._find_own():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                found[process.pid] = times.user + times.system
        return found


def _usable_cores() -> tuple[int, ...]:
    """The indices of those that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _own_processes() -> list[psutil.Process]:
    me = psutil.Process()
    found = [me]
    with contextlib.suppress(OSError, psutil.Error):
        parent = me.parent()
        found += me.children(recursive=True)
        found += [parent] if parent is not None else []
    return found
