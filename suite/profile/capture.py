"""Capture: what a profiler saw, in one form whatever tool and version wrote it. Stdlib only, no files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from runner.ranges import DOMAIN, STEP_RANGE
from suite.profile.scopes import is_vllm_scope

Tool = Literal["nsys", "torch"]
STEP_PREFIX = "step "
WINDOW = "stepcost window"  # the range around the steps that a profiler is to capture
NO_OWN_RANGES = "no stepcost ranges in this capture"


@dataclass(frozen=True, slots=True)
class CapturedProcess:
    pid: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class CapturedRange:
    """A named stretch of one thread's time (ns, the capture's own clock).

    Without `end_ns` it was open when the capture ended. `is_nested`: pushed and popped on its thread; the
    others (start/end ranges) may overlap each other. `step_id` is its payload, where that is a whole number.
    """

    name: str
    domain: str | None  # None: the default domain
    pid: int
    tid: int
    start_ns: int
    end_ns: int | None
    is_nested: bool = True
    step_id: int | None = None

    @property
    def is_reversed(self) -> bool:
        """Whether it ends before it begins, as in a damaged capture."""
        return self.end_ns is not None and self.end_ns < self.start_ns

    @property
    def duration_ns(self) -> int | None:
        return None if self.end_ns is None else self.end_ns - self.start_ns

    @property
    def is_step(self) -> bool:
        """Whether it is the range of a whole step."""
        return self.name.startswith(STEP_RANGE if self.is_nested else STEP_PREFIX)


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """A kernel, copy or fill on a GPU, and the range whose thread asked for it (None: not known)."""

    kind: Literal["kernel", "copy", "fill"]
    name: str
    start_ns: int
    end_ns: int
    device_id: int
    stream_id: int
    correlation_id: int | None
    num_bytes: int = 0
    range: CapturedRange | None = None

    @property
    def is_reversed(self) -> bool:
        return self.end_ns < self.start_ns

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Capture:
    """All of it. `absent` says what the file does not hold that one of its kind may; it is never an error."""

    tool: Tool
    tool_version: str | None
    processes: tuple[CapturedProcess, ...]
    ranges: tuple[CapturedRange, ...]
    work: tuple[DeviceWork, ...]
    absent: tuple[str, ...]

    @cached_property
    def own(self) -> tuple[CapturedRange, ...]:
        """The ranges of this product."""
        return tuple(item for item in self.ranges if item.domain == DOMAIN)

    @cached_property
    def vllm(self) -> tuple[CapturedRange, ...]:
        """The ranges under vLLM's own scope names, whatever their domain."""
        return tuple(item for item in self.ranges if item.domain != DOMAIN and is_vllm_scope(item.name))

    @cached_property
    def step_ids(self) -> frozenset[int]:
        """The steps of which there is any range of ours."""
        return frozenset(item.step_id for item in self.own if item.step_id is not None and item.step_id >= 0)

    @property
    def steps(self) -> tuple[CapturedRange, ...]:
        """The steps' own ranges, which overlap under async scheduling; of a torch trace, the device's."""
        return tuple(item for item in self.own if item.is_step)

    @property
    def num_open(self) -> int:
        return sum(item.end_ns is None for item in self.ranges)


@dataclass(frozen=True, slots=True)
class Total:
    """Ranges of one name: how many, how many of them without an end, and the time of the others."""

    num_ranges: int
    num_open: int
    total_ns: int

    @property
    def mean_ns(self) -> float | None:
        """Of those with an end; None where there are none."""
        num_closed = self.num_ranges - self.num_open
        return self.total_ns / num_closed if num_closed else None


def totals(ranges: Iterable[CapturedRange]) -> Mapping[str, Total]:
    """By name, in order of first start."""
    grouped: dict[str, list[CapturedRange]] = {}
    for item in sorted(ranges, key=lambda item: item.start_ns):
        grouped.setdefault(item.name, []).append(item)
    return {
        name: Total(
            len(items),
            sum(item.end_ns is None for item in items),
            sum(item.duration_ns or 0 for item in items),
        )
        for name, items in grouped.items()
    }


def device_totals(work: Sequence[DeviceWork]) -> Mapping[str, tuple[int, int]]:
    """Device work by the name of its range: how many, and their time (ns). "" where it has none."""
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for item in work:
        name = item.range.name if item.range else ""
        counts[name] += 1
        times[name] += item.duration_ns
    return {name: (counts[name], times[name]) for name in counts}


def without_reversed(
    ranges: Sequence[CapturedRange], work: Sequence[tuple[DeviceWork, int | None]]
) -> tuple[list[CapturedRange], list[tuple[DeviceWork, int | None]], list[str]]:
    """What does not end before it begins, and in words what does: its times are no times."""
    kept = [item for item in ranges if not item.is_reversed]
    kept_work = [item for item in work if not item[0].is_reversed]
    told = []
    for count, noun in (
        (len(ranges) - len(kept), "ranges"),
        (len(work) - len(kept_work), "pieces of GPU work"),
    ):
        if count:
            told.append(f"{count} {noun} end before they begin, and are left out: the capture is damaged")
    return kept, kept_work, told


def what_is_absent(ranges: Sequence[CapturedRange], work: Sequence[DeviceWork], is_gpu: bool) -> list[str]:
    """In words; `is_gpu`: the file holds GPU work at all."""
    absent = []
    if not ranges:
        absent.append("no ranges at all: nothing was annotated, or nothing ran while it was captured")
    if not any(item.domain == DOMAIN for item in ranges):
        absent.append(NO_OWN_RANGES)
    if not is_gpu:
        absent.append("no GPU work: CUDA was not traced, or there was no GPU")
    elif work and all(item.range is None for item in work):
        absent.append("no GPU work lies within a range: launches were not traced, or made outside of any")
    return absent
