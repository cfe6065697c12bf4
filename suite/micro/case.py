"""A case to measure: its name, its size in words, and how to get the calls ready (torch behind them)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from suite.micro.catalogue import Row
from suite.micro.timing import Call, SampleTimer, Timing


class Prepared(NamedTuple):
    calls: Sequence[Call]
    is_cold: bool


@dataclass(frozen=True, slots=True)
class Case:
    """`work`: bytes moved by a call (unit GB/s) or None. `prepare` takes the memory, only when it is run.

    `timer`: instead of the machine's, for what never runs on its device.
    """

    group: str
    name: str
    size: str
    work: int | None
    prepare: Callable[[], Prepared]
    timer: SampleTimer | None = None


def row_of(
    name: str,
    size: str,
    timing: Timing,
    memory: Literal["cold", "warm"],
    work: float | None = None,
    unit: str = "GB/s",
) -> Row:
    """`work` per call, in bytes or operations: one of them a ns is a GB/s or a GFLOP/s."""
    found = timing.per_call
    has_rate = work is not None and found.value > 0
    return Row(
        name=name,
        size=size,
        best_ns=found.least,
        median_ns=found.value,
        low_ns=found.low,
        high_ns=found.high,
        interval_reason=found.reason,
        n=found.n,
        calls=timing.calls,
        enqueue_ns=timing.enqueue.value if timing.enqueue else None,
        launch_bound=timing.is_launch_bound,
        memory=memory,
        rate=work / found.value if has_rate and work is not None else None,
        unit=unit if has_rate else None,
    )
