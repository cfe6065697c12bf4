"""Rules about the machine during a run: who else used its cores or its GPU, how fast that ran, and whether
compiling was over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from suite.record import RunRecord
from suite.validity.rule import Finding, broken

MAX_FOREIGN = 0.10
MAX_STOLEN = 0.02
"""Of the cores' time."""

MIN_FOREIGN_S = 0.05
MIN_STOLEN_S = 0.02
"""Less than this cannot be told: the kernel counts in ticks of 10 ms, on every core."""

CLOCK_TOLERANCE = 0.05


def foreign_load(run: RunRecord) -> Iterable[Finding]:
    if run.cpu is None:
        return
    capacity_s, foreign_s = run.cpu.capacity_s, run.cpu.foreign_s
    if foreign_s > max(MAX_FOREIGN * capacity_s, MIN_FOREIGN_S):
        message = (
            f"other processes used {100 * foreign_s / capacity_s:.0f} % of the time of "
            f"{run.cpu.num_cores} cores"
        )
        yield broken("foreign-load", run, message)


def stolen_time(run: RunRecord) -> Iterable[Finding]:
    """Where the kernel tells it."""
    if run.cpu is None or run.cpu.stolen_s is None:
        return
    capacity_s = run.cpu.capacity_s
    if run.cpu.stolen_s > max(MAX_STOLEN * capacity_s, MIN_STOLEN_S):
        share = 100 * run.cpu.stolen_s / capacity_s
        yield broken("stolen-time", run, f"the hypervisor took {share:.0f} % of the cores' time")


def compiled_within(run: RunRecord) -> Iterable[Finding]:
    if run.compiled is not None and run.compiled.num_within:
        count = run.compiled.num_within
        graphs = "a graph of the forward was" if count == 1 else f"{count} graphs of the forward were"
        yield broken("compiled-within", run, f"{graphs} compiled in one of its steps")


def gpu(run: RunRecord) -> Iterable[Finding]:
    if run.gpu is None:
        return
    if run.gpu.throttled_by:
        message = f"{run.gpu.name} was slowed down: {', '.join(run.gpu.throttled_by)}"
        yield broken("gpu-throttled", run, message)
    if run.gpu.num_other_processes:
        count = run.gpu.num_other_processes
        told = "another process computes" if count == 1 else f"{count} other processes compute"
        yield broken("gpu-shared", run, f"{told} on {run.gpu.name}")


def gpu_clocks(runs: Sequence[RunRecord]) -> Iterable[Finding]:
    """Each run against the fastest of its case, whatever their arms: they are to be compared."""
    cases: dict[tuple[str, str], list[tuple[RunRecord, int]]] = defaultdict(list)
    for run in runs:
        if run.gpu is not None and run.gpu.sm_clock_mhz is not None:
            cases[run.scenario, run.case_id].append((run, run.gpu.sm_clock_mhz))
    for clocked in cases.values():
        highest = max(mhz for _, mhz in clocked)
        for run, mhz in clocked:
            if mhz < (1 - CLOCK_TOLERANCE) * highest:
                message = f"the GPU ran at {mhz} MHz; in another run of the case it had {highest} MHz"
                yield broken("gpu-clocks", run, message)
