"""SpanCosts: where the time of a run's steps went, on the host's clock line and on the device's.

From StepRecords and Spans to typed values, in integer ns; every sum is exact. Knows no files, no clocks and
no torch.

The host is one thread. Its line, from the first span's start to the last one's end, is cut so that every ns
belongs to one step and one name, each span counting what lies in it and in no span nested in it. The time
between two spans is `unattributed`, of the earlier one's step. To no step belong waits for arrivals, spans
of a step that was never retired, and those that ended before their step's planning began: an earlier plan of
the same id came to nothing then.

A step's device time runs from its record's device start to its device end; what its commands do not fill of
it is `unattributed`. The compute stream is busy within the device time of any step, and within any command
of its own; else, between the first device start and the last device end, it is idle.

A span of the compute lane is serial. One of the host or of another stream is overlapped where the compute
stream is busy and idle-causing elsewhere; that includes the time before the first device start and after the
last device end, when the stream has nothing to run either.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from runner.measure import StepRecord
from runner.spans import NO_STEP, Span
from suite.busy_time import BusyTime, Interval
from suite.idle_causes import HostLine, causes_of
from suite.lane_pieces import UNATTRIBUTED, Piece, TimedSpan, pieces_of, timed

CostLane = Literal["host", "compute", "output"]

DEVICE_SLACK_NS = 1_000
"""Device spans may overlap by this: times chained from pairs of events, each a float32, drift apart."""


class SpanCost(NamedTuple):
    """One span's exclusive time, or one stretch that is `unattributed`; its parts add up to it."""

    step_id: int
    name: str
    lane: CostLane
    serial_ns: int
    overlapped_ns: int
    idle_causing_ns: int

    @property
    def duration_ns(self) -> int:
        return self.serial_ns + self.overlapped_ns + self.idle_causing_ns


class Missing(NamedTuple):
    """A span without times; it is in no sum."""

    name: str
    lane: str
    reason: str


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step's ns by name.

    host: of the host's line, all of it that is this step's. device: adds up to the record's `device_ns`.
    beyond: of its commands on the compute stream, outside its device time. output: of its commands on the
    other stream, beside all that. idle: of the gap of the compute stream that this step ended, by cause.
    """

    step_id: int
    kind: str
    host: Mapping[str, int]
    device: Mapping[str, int]
    beyond: Mapping[str, int]
    output: Mapping[str, int]
    idle: Mapping[str, int]

    @property
    def host_ns(self) -> int:
        return sum(self.host.values())

    @property
    def device_ns(self) -> int:
        return sum(self.device.values())

    @property
    def idle_ns(self) -> int:
        return sum(self.idle.values())


@dataclass(frozen=True, slots=True)
class SpanCosts:
    """A run's. `no_step`: the host's ns by name that belong to no step. `host_ns`: the host's whole line."""

    steps: tuple[StepCost, ...]
    spans: tuple[SpanCost, ...]
    no_step: Mapping[str, int]
    missing: Mapping[Missing, int]
    host_ns: int

    @property
    def idle_ns(self) -> int:
        return sum(step.idle_ns for step in self.steps)


def span_costs(records: Sequence[StepRecord], spans: Iterable[Span]) -> SpanCosts:
    """The costs of one run; steps in the order of `records`. SuiteError for spans that cannot be.

    Without spans of a lane, all of its time is `unattributed`; spans of lane `steps` are not looked at.
    """
    lanes, missing = by_lane(spans, {record.step_id: record for record in records})
    host = pieces_of(lanes["host"])
    compute, output = (_of_spans(pieces_of(lanes[lane], DEVICE_SLACK_NS)) for lane in ("compute", "output"))
    busy = BusyTime(busy_intervals(records, lanes["compute"]))
    host_times, output_times = _by_step(host), _by_step(output)
    devices = _device_times(records, compute)
    idle = _idle(idle_gaps(records, busy, host, lanes["host"]))
    steps = tuple(
        StepCost(
            step_id=record.step_id,
            kind=record.kind,
            host=host_times.get(record.step_id, {}),
            device=devices[record.step_id].within,
            beyond=devices[record.step_id].beyond,
            output=output_times.get(record.step_id, {}),
            idle=idle.get(record.step_id, {}),
        )
        for record in records
    )
    found = (
        *_split("host", lanes["host"], host, busy),
        *_split("output", lanes["output"], output, busy),
        *_serial(lanes["compute"], compute, devices),
    )
    return SpanCosts(
        steps=steps,
        spans=found,
        no_step=host_times.get(NO_STEP, {}),
        missing=missing,
        host_ns=sum(piece.duration_ns for piece in host),
    )


def by_lane(
    spans: Iterable[Span], records: Mapping[int, StepRecord]
) -> tuple[Mapping[str, list[TimedSpan]], Mapping[Missing, int]]:
    """The spans of each lane that have times, each of the step it counts for, and those that have none."""
    lanes: dict[str, list[TimedSpan]] = defaultdict(list)
    missing: Counter[Missing] = Counter()
    for span in spans:
        if span.start_ns is None or span.end_ns is None:
            missing[Missing(span.name, span.lane, span.reason or "no reason is given")] += 1
        elif span.lane != "steps":
            lanes[span.lane].append(timed(span, _step_of(span, span.start_ns, records)))
    return lanes, missing


def _step_of(span: Span, start_ns: int, records: Mapping[int, StepRecord]) -> int:
    record = records.get(span.step_id)
    if record is None or (span.lane == "host" and start_ns < record.start_ns):
        return NO_STEP
    return span.step_id


def busy_intervals(records: Sequence[StepRecord], compute: Sequence[TimedSpan]) -> Iterator[Interval]:
    """When the compute stream has something to run, up to the last step's device end."""
    last_ns = max((record.device_end_ns for record in records), default=0)
    for record in records:
        yield Interval(record.device_start_ns, record.device_end_ns)
    for span in compute:
        if span.start_ns < last_ns:
            yield Interval(span.start_ns, span.end_ns)


def _by_step(pieces: Iterable[Piece]) -> Mapping[int, Mapping[str, int]]:
    """ns by step and name."""
    found: dict[int, dict[str, int]] = {}
    for piece in pieces:
        names = found.setdefault(piece.step_id, {})
        names[piece.name] = names.get(piece.name, 0) + piece.duration_ns
    return found


def _of_spans(pieces: Iterable[Piece]) -> list[Piece]:
    """Those that are no hole between spans."""
    return [piece for piece in pieces if piece.source is not None]


class _DeviceTime(NamedTuple):
    """ns by name within a step's device time, and of its commands outside of it."""

    within: Mapping[str, int]
    beyond: Mapping[str, int]


def _device_times(records: Sequence[StepRecord], pieces: Iterable[Piece]) -> Mapping[int, _DeviceTime]:
    mine: dict[int, list[Piece]] = defaultdict(list)
    for piece in pieces:
        mine[piece.step_id].append(piece)
    return {record.step_id: _device_time(record, mine[record.step_id]) for record in records}


def _device_time(record: StepRecord, pieces: Iterable[Piece]) -> _DeviceTime:
    within: Counter[str] = Counter()
    beyond: Counter[str] = Counter()
    account = BusyTime([Interval(record.device_start_ns, record.device_end_ns)])
    for piece in pieces:
        inside_ns = account.covered_ns(piece.start_ns, piece.end_ns)
        within[piece.name] += inside_ns
        beyond[piece.name] += piece.duration_ns - inside_ns
    within[UNATTRIBUTED] = record.device_ns - sum(within.values())
    return _DeviceTime(dict(within), {name: ns for name, ns in beyond.items() if ns})


class IdleGap(NamedTuple):
    """A gap of the compute stream: it belongs to the step that starts next. Causes: ns, its length in all."""

    step_id: int
    gap: Interval
    causes: Mapping[str, int]


def idle_gaps(
    records: Sequence[StepRecord], busy: BusyTime, host: Sequence[Piece], spans: Iterable[TimedSpan]
) -> Iterator[IdleGap]:
    """Every gap between two stretches of `busy`; `host` are the pieces, `spans` the spans of lane `host`."""
    line = HostLine(host)
    handed_over_ns = {span.step_id: span.end_ns for span in spans if span.name == "launch"}
    by_start = sorted(records, key=lambda record: record.device_start_ns)
    index = 0
    for gap in busy.gaps():
        while by_start[index].device_start_ns < gap.end_ns:
            index += 1
        step_id = by_start[index].step_id
        yield IdleGap(step_id, gap, causes_of(gap, line, handed_over_ns.get(step_id)))


def _idle(gaps: Iterable[IdleGap]) -> Mapping[int, Mapping[str, int]]:
    """ns by step and cause."""
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for item in gaps:
        found[item.step_id].update(item.causes)
    return found


def _split(
    lane: CostLane, spans: Sequence[TimedSpan], pieces: Sequence[Piece], busy: BusyTime
) -> Iterator[SpanCost]:
    """Every span of a lane, and every stretch without one, by what the compute stream did meanwhile."""
    overlapped_ns, idle_causing_ns = [0] * len(spans), [0] * len(spans)
    for piece in pieces:
        covered_ns = busy.covered_ns(piece.start_ns, piece.end_ns)
        if piece.source is None:
            yield SpanCost(piece.step_id, piece.name, lane, 0, covered_ns, piece.duration_ns - covered_ns)
        else:
            overlapped_ns[piece.source] += covered_ns
            idle_causing_ns[piece.source] += piece.duration_ns - covered_ns
    for span, covered_ns, open_ns in zip(spans, overlapped_ns, idle_causing_ns, strict=True):
        yield SpanCost(span.step_id, span.name, lane, 0, covered_ns, open_ns)


def _serial(
    spans: Sequence[TimedSpan], pieces: Iterable[Piece], devices: Mapping[int, _DeviceTime]
) -> Iterator[SpanCost]:
    exclusive_ns = [0] * len(spans)
    for piece in pieces:
        assert piece.source is not None
        exclusive_ns[piece.source] += piece.duration_ns
    for span, duration_ns in zip(spans, exclusive_ns, strict=True):
        yield SpanCost(span.step_id, span.name, "compute", duration_ns, 0, 0)
    for step_id, device in devices.items():
        yield SpanCost(step_id, UNATTRIBUTED, "compute", device.within[UNATTRIBUTED], 0, 0)
