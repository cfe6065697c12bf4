"""CostTables: SpanCosts by kind of step, name and lane, in us a step, as rows and a document (numpy).

Means divide by all steps of a kind, so that a kind's rows add up to its step; percentiles
are of single spans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from runner.spans import HOST_PHASES
from suite.lane_pieces import UNATTRIBUTED
from suite.metrics import STEP_KINDS
from suite.span_costs import CostLane, SpanCost, SpanCosts, StepCost

NS_PER_US = 1e3
LANES: tuple[CostLane, ...] = ("host", "compute", "output")


@dataclass(frozen=True, slots=True)
class SpanRow:
    """One name in one lane of one kind of step; times exclusive, in us.

    num_spans: how many spans, or stretches that are `unattributed`. num_steps: steps of the kind that have
    any. mean_us: a step's, over all steps of the kind; in lane `compute` what lies in the step's device time,
    and beyond_us what does not. share: of the step's host time, in the other lanes of its device time; None
    where that is 0. serial_us, overlapped_us, idle_causing_us: a step's, as mean_us, and adding up to it
    (in lane `compute`, to mean_us and beyond_us).
    """

    kind: str
    lane: CostLane
    name: str
    num_spans: int
    num_steps: int
    mean_us: float
    beyond_us: float
    p5_us: float
    p25_us: float
    median_us: float
    p75_us: float
    p95_us: float
    share: float | None
    serial_us: float
    overlapped_us: float
    idle_causing_us: float


@dataclass(frozen=True, slots=True)
class KindRow:
    """A step of one kind on the mean, in us.

    host_us: all of the host's line that is its, waits included; host_wait_us: of that, the waits. idle_us:
    the gap of the compute stream before it, and by cause. Shares: of what is `unattributed` in the host time,
    in the host time less its waits, and in the device time; None where that is 0, or was not recorded.
    """

    kind: str
    num_steps: int
    host_us: float
    host_wait_us: float
    device_us: float
    idle_us: float
    idle_causes_us: Mapping[str, float]
    unattributed_host_share: float | None
    unattributed_work_share: float | None
    unattributed_device_share: float | None


@dataclass(frozen=True, slots=True)
class MissingRow:
    """`count` spans that have no times, and why not; they are in no other row."""

    name: str
    lane: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class CostTables:
    """`no_step_us`: the whole run's host time by name that belongs to no step."""

    kinds: tuple[KindRow, ...]
    spans: tuple[SpanRow, ...]
    no_step_us: Mapping[str, float]
    missing: tuple[MissingRow, ...]

    def document(self) -> dict[str, object]:
        """For JSON; an undefined share is None."""
        return {
            "kinds": [asdict(row) for row in self.kinds],
            "spans": [asdict(row) for row in self.spans],
            "no_step_us": dict(self.no_step_us),
            "missing": [asdict(row) for row in self.missing],
        }


def cost_tables(costs: SpanCosts, counts: Callable[[int], bool] = lambda step_id: True) -> CostTables:
    """The tables over the steps whose id counts; a kind without such steps has no row."""
    steps = [step for step in costs.steps if counts(step.step_id)]
    by_kind = {kind: [step for step in steps if step.kind == kind] for kind in STEP_KINDS}
    present = {kind: of_kind for kind, of_kind in by_kind.items() if of_kind}
    spans = costs.spans if _has_device(costs) else [span for span in costs.spans if span.lane == "host"]
    return CostTables(
        kinds=tuple(_kind_row(kind, of_kind, _has_device(costs)) for kind, of_kind in present.items()),
        spans=tuple(row for kind in present for row in _span_rows(kind, present[kind], spans)),
        no_step_us={name: ns / NS_PER_US for name, ns in costs.no_step.items()},
        missing=tuple(MissingRow(*missing, count) for missing, count in sorted(costs.missing.items())),
    )


def _has_device(costs: SpanCosts) -> bool:
    """Whether any span of a command was recorded: without, its device time is not unattributed but unseen."""
    is_seen = any(span.lane != "host" and span.name != UNATTRIBUTED for span in costs.spans)
    return is_seen or any(missing.lane != "host" for missing in costs.missing)


def _kind_row(kind: str, steps: Sequence[StepCost], has_device: bool) -> KindRow:
    host, device = _added(step.host for step in steps), _added(step.device for step in steps)
    idle = _added(step.idle for step in steps)
    waits_ns = sum(ns for name, ns in host.items() if name.startswith("wait."))
    host_ns, device_ns = sum(host.values()), sum(device.values())
    unknown_ns = host.get(UNATTRIBUTED, 0)

    def mean_us(total_ns: int) -> float:
        return total_ns / len(steps) / NS_PER_US

    return KindRow(
        kind=kind,
        num_steps=len(steps),
        host_us=mean_us(host_ns),
        host_wait_us=mean_us(waits_ns),
        device_us=mean_us(device_ns),
        idle_us=mean_us(sum(idle.values())),
        idle_causes_us={name: mean_us(ns) for name, ns in idle.items()},
        unattributed_host_share=_share(unknown_ns, host_ns),
        unattributed_work_share=_share(unknown_ns, host_ns - waits_ns),
        unattributed_device_share=_share(device.get(UNATTRIBUTED, 0), device_ns) if has_device else None,
    )


def _span_rows(kind: str, steps: Sequence[StepCost], spans: Iterable[SpanCost]) -> list[SpanRow]:
    ids = {step.step_id for step in steps}
    grouped: dict[tuple[CostLane, str], list[SpanCost]] = {}
    for span in spans:
        if span.step_id in ids and (span.duration_ns or span.name != UNATTRIBUTED):
            grouped.setdefault((span.lane, span.name), []).append(span)
    return [
        _span_row(kind, lane, name, steps, grouped[lane, name])
        for lane in LANES
        for name in sorted((name for found, name in grouped if found == lane), key=_place)
    ]


def _place(name: str) -> tuple[int, str]:
    """The host's phases in their order, then commands by name, then what nobody accounts for."""
    if name in HOST_PHASES:
        return HOST_PHASES.index(name), name
    return len(HOST_PHASES) + (name == UNATTRIBUTED), name


def _span_row(
    kind: str, lane: CostLane, name: str, steps: Sequence[StepCost], spans: Sequence[SpanCost]
) -> SpanRow:
    durations_us = np.array([span.duration_ns for span in spans]) / NS_PER_US
    whole_ns = sum(step.host_ns if lane == "host" else step.device_ns for step in steps)
    within_ns = sum(_names(step, lane).get(name, 0) for step in steps)
    p5, p25, p50, p75, p95 = np.percentile(durations_us, (5, 25, 50, 75, 95)).tolist()

    def mean_us(total_ns: int) -> float:
        return total_ns / len(steps) / NS_PER_US

    return SpanRow(
        kind=kind,
        lane=lane,
        name=name,
        num_spans=len(spans),
        num_steps=len({span.step_id for span in spans}),
        mean_us=mean_us(within_ns),
        beyond_us=mean_us(sum(step.beyond.get(name, 0) for step in steps) if lane == "compute" else 0),
        p5_us=p5,
        p25_us=p25,
        median_us=p50,
        p75_us=p75,
        p95_us=p95,
        share=_share(within_ns, whole_ns),
        serial_us=mean_us(sum(span.serial_ns for span in spans)),
        overlapped_us=mean_us(sum(span.overlapped_ns for span in spans)),
        idle_causing_us=mean_us(sum(span.idle_causing_ns for span in spans)),
    )


def _names(step: StepCost, lane: CostLane) -> Mapping[str, int]:
    if lane == "host":
        return step.host
    return step.device if lane == "compute" else step.output


def _added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, ns in part.items():
            total[name] = total.get(name, 0) + ns
    return total


def _share(part_ns: int, whole_ns: int) -> float | None:
    return part_ns / whole_ns if whole_ns else None
