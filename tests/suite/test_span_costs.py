"""Where the time of a step went, to the nanosecond: the real engine over a host and a device of known times,
hand-made lines for what it does not do, and a real run for how much is left unattributed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from arm_models import MICRO_QWEN3
from arm_workloads import Arrivals, Recipe, request_of
from hypothesis import given
from hypothesis import strategies as st
from records import make_step
from simulated_steps import DeviceTimes, HostTimes, Simulated, simulate

from runner.config import RunnerConfig
from runner.core import Request
from runner.device.base import open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.measure import Instrument, StepRecord
from runner.spans import Span
from suite.busy_time import BusyTime, Interval
from suite.cost_tables import CostTables, SpanRow, cost_tables
from suite.errors import SuiteError
from suite.idle_causes import HANDOFF
from suite.lane_pieces import UNATTRIBUTED, TimedSpan, pieces_of
from suite.span_costs import SpanCosts, span_costs

HOST = HostTimes()
OUTPUT_NS = 4
COMPUTE = {"upload.step_metadata": 10, "forward": 500, "sample": 20}
LATENCY = 11
DECODES = range(3, 5)  # steps in the middle, where each is like the one before
PHASES = {
    "schedule": HOST.schedule,
    "update_batch": HOST.update_batch,
    "stage": HOST.stage,
    "compile": HOST.compile,
    "launch": HOST.launch,
    "retire": HOST.retiring,
    "record": HOST.record,
    UNATTRIBUTED: HOST.between,
}


def served(
    arm: str, forward_ns: int = 500, output_ns: int = OUTPUT_NS, host_work_us: int = 0, **given: Any
) -> Simulated:
    times = DeviceTimes({**COMPUTE, "forward": forward_ns, "download": output_ns}, **given)
    with pytest.MonkeyPatch.context() as patch:
        return simulate(patch, MICRO_QWEN3, arm, HOST, times, host_work_us, later_after_ns=99)


def costs_of(run: Simulated) -> SpanCosts:
    costs = span_costs(run.engine.recorder.steps, run.spans)
    check_sums(costs, run)
    return costs


def check_sums(costs: SpanCosts, run: Simulated) -> None:
    """What must hold of every run, whatever it did."""
    records = run.engine.recorder.steps
    host = [span for span in run.spans if span.lane == "host"]
    first_ns, last_ns = min(span.start_ns or 0 for span in host), max(span.end_ns or 0 for span in host)
    assert costs.host_ns == last_ns - first_ns
    assert sum(step.host_ns for step in costs.steps) + sum(costs.no_step.values()) == costs.host_ns
    assert sum(span.duration_ns for span in costs.spans if span.lane == "host") == costs.host_ns
    assert [step.device_ns for step in costs.steps] == [record.device_ns for record in records]
    pairs = itertools.pairwise(records)
    gaps = [max(0, later.device_start_ns - earlier.device_end_ns) for earlier, later in pairs]
    assert [step.idle_ns for step in costs.steps] == [0, *gaps]


def by_span(costs: SpanCosts, step_id: int, lane: str) -> Mapping[str, tuple[int, int, int]]:
    """(serial, overlapped, idle-causing) ns by name; of names that come several times, in all."""
    found: dict[str, tuple[int, int, int]] = {}
    for span in costs.spans:
        if (span.step_id, span.lane) == (step_id, lane) and span.duration_ns:
            old = found.get(span.name, (0, 0, 0))
            found[span.name] = (
                old[0] + span.serial_ns,
                old[1] + span.overlapped_ns,
                old[2] + span.idle_causing_ns,
            )
    return found


# ---- the engine's own loops


def test_sync_leaves_the_device_idle_for_all_of_the_host() -> None:
    costs = costs_of(served("sync-ids"))
    device_ns = sum(COMPUTE.values()) + OUTPUT_NS
    for step in (costs.steps[index] for index in DECODES):
        assert step.host == {**PHASES, "wait.output": LATENCY + device_ns}
        assert step.device == {**COMPUTE, UNATTRIBUTED: OUTPUT_NS}
        assert step.output == {"download": OUTPUT_NS}
        assert step.idle == {**PHASES, "admit": HOST.admit, HANDOFF: LATENCY}
        host = by_span(costs, step.step_id, "host")
        assert host.pop("wait.output") == (0, device_ns, LATENCY)
        assert host == {name: (0, 0, duration_ns) for name, duration_ns in PHASES.items()}
        assert by_span(costs, step.step_id, "compute")["forward"] == (500, 0, 0)


def test_async_hides_a_host_that_is_shorter_than_the_device() -> None:
    costs = costs_of(served("ids", forward_ns=5000, output_ns=0))
    device_ns = 5000 + COMPUTE["upload.step_metadata"] + COMPUTE["sample"]
    for step in (costs.steps[index] for index in DECODES):
        waited_ns = device_ns - HOST.total
        assert step.host == {**PHASES, "wait.output": waited_ns}
        assert step.idle == {}
        host = by_span(costs, step.step_id, "host")
        assert host == {name: (0, duration_ns, 0) for name, duration_ns in step.host.items()}


def test_async_leaves_the_device_idle_for_what_the_host_takes_longer() -> None:
    """The host is in its stated work when the device runs dry; all from then on is idle time."""
    work_ns = 2000
    costs = costs_of(served("ids", host_work_us=2, output_ns=0))
    busy_ns = LATENCY + sum(COMPUTE.values())  # since the step had been handed over
    idle_ns = HOST.retiring + work_ns - busy_ns  # of the stated work
    for step in (costs.steps[index] for index in DECODES):
        assert step.host == {**PHASES, "host_work": work_ns}
        late = {name: ns for name, ns in PHASES.items() if name != "retire"}
        assert step.idle == {**late, "host_work": idle_ns, "admit": HOST.admit, HANDOFF: LATENCY}
        assert step.idle_ns == HOST.total + work_ns - sum(COMPUTE.values())
        host = by_span(costs, step.step_id, "host")
        # While a step is handed over the host works on: that part of its time is idle-causing too.
        assert host.pop("retire") == (0, HOST.retiring - LATENCY, LATENCY)
        assert host.pop("host_work") == (0, work_ns - idle_ns, idle_ns)
        assert host == {name: (0, 0, duration_ns) for name, duration_ns in late.items()}


def test_a_copy_on_another_stream_is_overlapped_and_in_no_sum() -> None:
    """The copy of a step's output runs beside the next step's commands."""
    copy_ns = 300
    costs = costs_of(served("ids", forward_ns=5000, output_ns=copy_ns, pause=2, enqueue=1))
    for step in (costs.steps[index] for index in DECODES):
        spans = [span for span in costs.spans if (span.step_id, span.lane) == (step.step_id, "compute")]
        num_commands = sum(span.name != UNATTRIBUTED for span in spans)
        assert step.output == {"download": copy_ns}
        assert by_span(costs, step.step_id, "output") == {"download": (0, copy_ns, 0)}
        assert "download" not in step.device
        assert step.device[UNATTRIBUTED] == 2 * num_commands + copy_ns
        assert step.device["forward"] == 5000
        assert step.idle == {}
        # Commands are queued one after another within the launch: each has its own part of it.
        assert step.host["launch"] == HOST.launch - num_commands - 1
        assert step.host["download"] == 1
        assert by_span(costs, step.step_id, "host")["forward"] == (0, 1, 0)


def test_waits_and_plans_that_came_to_nothing_belong_to_no_step() -> None:
    costs = costs_of(served("sync-ids"))
    num_steps = len(costs.steps)
    rounds = num_steps + 2  # one before the wait, one at the end
    assert costs.no_step == {
        "admit": rounds * HOST.admit,
        "schedule": 2 * HOST.schedule,
        "wait.arrivals": 99,
    }
    first_of_second = next(step for step in costs.steps[1:] if step.kind == "prefill")
    assert first_of_second.host["schedule"] == HOST.schedule
    assert first_of_second.idle["schedule"] == 2 * HOST.schedule
    assert first_of_second.idle["wait.arrivals"] == 99


# ---- what the engine does not do, by hand


def step(step_id: int, planned: int, start: int, end: int, kind: str = "decode") -> StepRecord:
    return make_step(step_id, 0, 0, kind, start_ns=planned, device_start_ns=start, device_end_ns=end)


def test_drafts_after_the_output_keep_the_stream_busy_and_are_beyond_the_device_time() -> None:
    records = [step(0, 0, 10, 50), step(1, 0, 90, 100)]
    spans = [
        Span(0, "forward", "compute", 10, 50),
        Span(0, "draft", "compute", 50, 75),
        Span(1, "schedule", "host", 0, 80),
        Span(1, "launch", "host", 80, 85),
    ]
    first, second = span_costs(records, spans).steps
    assert (first.device, first.beyond) == ({"forward": 40, "draft": 0, UNATTRIBUTED: 0}, {"draft": 25})
    assert second.idle == {"schedule": 5, "launch": 5, HANDOFF: 5}


def test_what_lies_before_the_first_step_and_after_the_last_is_idle_causing() -> None:
    spans = [
        Span(0, "schedule", "host", 0, 20),
        Span(0, "wait.output", "host", 20, 60),
        Span(0, "copy", "output", 40, 45),
        Span(0, "copy", "output", 55, 70),
    ]
    costs = span_costs([step(0, 0, 10, 50)], spans)
    assert by_span(costs, 0, "host") == {"schedule": (0, 10, 10), "wait.output": (0, 30, 10)}
    assert by_span(costs, 0, "output") == {"copy": (0, 5, 15)}
    assert costs.steps[0].output == {"copy": 20}
    assert costs.idle_ns == 0


def test_a_span_around_others_counts_what_is_its_own_only() -> None:
    spans = [
        Span(0, "launch", "host", 0, 30),
        Span(0, "flags", "host", 10, 15),
        Span(0, "merge", "host", 18, 20),
    ]
    costs = span_costs([step(0, 0, 5, 19), step(1, 0, 40, 41)], spans)
    assert costs.steps[0].host == {"launch": 23, "flags": 5, "merge": 2}
    assert by_span(costs, 0, "host") == {"launch": (0, 8, 15), "flags": (0, 5, 0), "merge": (0, 1, 1)}
    assert costs.steps[1].idle == {"merge": 1, "launch": 10, UNATTRIBUTED: 10}


def test_idle_time_without_any_host_span_has_no_known_cause() -> None:
    records = [step(0, 0, 10, 50), step(1, 0, 90, 100)]
    assert span_costs(records, []).steps[1].idle == {UNATTRIBUTED: 40}
    later = [Span(1, "launch", "host", 60, 70)]
    assert span_costs(records, later).steps[1].idle == {UNATTRIBUTED: 10, "launch": 10, HANDOFF: 20}


def test_overlapping_device_times_of_two_steps_are_busy_once() -> None:
    """The output of a step may be copied while the next one computes."""
    records = [step(0, 0, 10, 60), step(1, 0, 40, 90), step(2, 0, 95, 99)]
    costs = span_costs(records, [Span(0, "record", "host", 0, 99)])
    assert by_span(costs, 0, "host") == {"record": (0, 84, 15)}
    assert [found.idle_ns for found in costs.steps] == [0, 0, 5]


def test_a_span_without_times_is_counted_with_its_reason_and_never_summed() -> None:
    reasons = ("it had not run", "it had not run", None)
    spans = [Span(0, "draft", "compute", None, None, reason) for reason in reasons]
    costs = span_costs([step(0, 0, 10, 50)], spans)
    assert costs.steps[0].device == {UNATTRIBUTED: 40}
    rows = cost_tables(costs).missing
    assert [(row.name, row.lane, row.reason, row.count) for row in rows] == [
        ("draft", "compute", "it had not run", 2),
        ("draft", "compute", "no reason is given", 1),
    ]
    assert all(span.name != "draft" for span in costs.spans)


def test_spans_of_a_step_that_was_never_retired_belong_to_no_step() -> None:
    spans = [Span(0, "launch", "host", 0, 5), Span(1, "launch", "host", 5, 9)]
    costs = span_costs([step(0, 0, 10, 50)], spans)
    assert (costs.steps[0].host, costs.no_step) == ({"launch": 5}, {"launch": 4})


def test_no_steps_and_no_spans_are_no_error() -> None:
    costs = span_costs([], [])
    assert (costs.host_ns, costs.steps, cost_tables(costs).kinds) == (0, (), ())
    only = span_costs([step(0, 0, 10, 50)], [])
    assert (only.steps[0].host, only.steps[0].device) == ({}, {UNATTRIBUTED: 40})


def test_spans_that_cannot_be_are_refused_and_named() -> None:
    crossing = [Span(4, "retire", "host", 0, 10), Span(5, "schedule", "host", 9, 12)]
    with pytest.raises(SuiteError, match=r"schedule of step 5 .*overlaps retire of step 4"):
        span_costs([step(4, 0, 1, 2), step(5, 0, 3, 4)], crossing)
    with pytest.raises(SuiteError, match="retire of step 4 in lane host runs from 9 to 3 ns"):
        span_costs([step(4, 0, 1, 2)], [Span(4, "retire", "host", 9, 3)])


def test_device_spans_may_overlap_by_rounding_and_are_counted_once() -> None:
    records = [step(0, 0, 0, 3000), step(1, 0, 3000, 6000)]
    spans = [Span(0, "draft", "compute", 2000, 3400), Span(1, "forward", "compute", 3000, 6000)]
    costs = span_costs(records, spans)
    assert costs.steps[0].device["draft"] == 1000
    assert costs.steps[1].device == {"forward": 3000, UNATTRIBUTED: 0}
    with pytest.raises(SuiteError, match="overlaps draft"):
        span_costs(records, [Span(0, "draft", "compute", 1900, 4100), spans[1]])


# ---- the parts, against a count of every ns


@st.composite
def nested_spans(draw: st.DrawFn) -> list[TimedSpan]:
    """Spans that nest at random, on a line of at most 60 ns, each named after its ends."""
    found: list[TimedSpan] = []

    def fill(start: int, end: int, depth: int) -> None:
        time = start
        while time < end and draw(st.booleans()):
            first = draw(st.integers(time, end))
            last = draw(st.integers(first, end))
            found.append(TimedSpan(0, f"{first} {last}", first, last))
            if depth:
                fill(first, last, depth - 1)
            time = last

    fill(0, 60, 3)
    return draw(st.permutations(found))


def innermost(spans: Iterable[TimedSpan], time_ns: int) -> str:
    holding = [span for span in spans if span.start_ns <= time_ns < span.end_ns]
    inner = min(holding, key=lambda span: span.end_ns - span.start_ns, default=None)
    return inner.name if inner else UNATTRIBUTED


@given(nested_spans())
def test_every_ns_belongs_to_the_innermost_span(spans: list[TimedSpan]) -> None:
    pieces = pieces_of(spans)
    times = range(
        min((span.start_ns for span in spans), default=0), max((span.end_ns for span in spans), default=0)
    )
    cut = [piece.name for piece in pieces for _ in range(piece.start_ns, piece.end_ns)]
    assert cut == [innermost(spans, time_ns) for time_ns in times]
    assert all(piece.duration_ns > 0 for piece in pieces)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10))),
    st.tuples(st.integers(0, 40), st.integers(0, 9)),
)
def test_busy_time_is_the_union(given_intervals: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    intervals = [Interval(start, start + length) for start, length in given_intervals]
    busy = {time for interval in intervals for time in range(*interval)}
    found = BusyTime(intervals)
    start, end = asked[0], asked[0] + asked[1]
    assert found.covered_ns(start, end) == len(busy & set(range(start, end)))
    idle = {time for gap in found.gaps() for time in range(*gap)}
    whole = set(range(min(busy), max(busy))) if busy else set()
    assert idle - {time for interval in intervals for time in range(*interval)} == idle
    assert whole - busy <= idle


# ---- tables


def row_of(tables: CostTables, kind: str, lane: str, name: str) -> SpanRow:
    (row,) = [row for row in tables.spans if (row.kind, row.lane, row.name) == (kind, lane, name)]
    return row


def test_rows_of_a_kind_add_up_to_its_step() -> None:
    tables = cost_tables(costs_of(served("ids", host_work_us=2, pause=2)))
    assert [kind.kind for kind in tables.kinds] == ["prefill", "decode"]
    for kind in tables.kinds:
        rows = [row for row in tables.spans if row.kind == kind.kind]
        host = [row for row in rows if row.lane == "host"]
        compute = [row for row in rows if row.lane == "compute"]
        assert sum(row.mean_us for row in host) == pytest.approx(kind.host_us)
        assert sum(row.mean_us for row in compute) == pytest.approx(kind.device_us)
        assert sum(row.share or 0 for row in host) == pytest.approx(1)
        assert sum(row.share or 0 for row in compute) == pytest.approx(1)
        assert sum(kind.idle_causes_us.values()) == pytest.approx(kind.idle_us)
        for row in rows:
            parts_us = row.serial_us + row.overlapped_us + row.idle_causing_us
            assert parts_us == pytest.approx(row.mean_us + row.beyond_us)


def test_a_row_counts_spans_and_steps_and_means_over_all_steps_of_its_kind() -> None:
    records = [
        *(step(0, 0, 0, 1000), step(1, 0, 1000, 2000)),
        step(2, 0, 2000, 3000, "prefill"),
        *(step(3, 0, 3000, 4000), step(4, 0, 4000, 5000)),
    ]
    spans = [
        Span(0, "upload.input_ids", "compute", 0, 100),
        Span(0, "upload.input_ids", "compute", 100, 400),
        Span(2, "upload.input_ids", "compute", 2000, 2900),
    ]
    costs = span_costs(records, spans)
    row = row_of(cost_tables(costs), "decode", "compute", "upload.input_ids")
    assert (row.num_spans, row.num_steps, row.mean_us, row.median_us) == (2, 1, 0.1, 0.2)
    assert (row.p95_us, row.share, row.serial_us) == (pytest.approx(0.29), 0.1, 0.1)
    unknown = row_of(cost_tables(costs), "decode", "compute", UNATTRIBUTED)
    assert (unknown.num_spans, unknown.num_steps, unknown.mean_us) == (4, 4, 0.9)
    only = cost_tables(costs, lambda step_id: step_id == 2)
    assert [(kind.kind, kind.num_steps) for kind in only.kinds] == [("prefill", 1)]


def test_a_step_without_device_time_has_no_shares_of_it() -> None:
    tables = cost_tables(span_costs([step(0, 0, 5, 5)], [Span(0, "copy", "output", 5, 6)]))
    assert tables.kinds[0].unattributed_device_share is None
    assert row_of(tables, "decode", "output", "copy").share is None
    assert json.loads(json.dumps(tables.document(), allow_nan=False))["spans"][0]["share"] is None


# ---- a real run


LARGE = RunnerConfig(
    max_num_seqs=64,
    max_num_batched_tokens=256,
    max_model_len=64,
    block_size=16,
    num_blocks=512,
    num_resident_rows=2048,
)


def test_little_of_a_real_run_is_unattributed() -> None:
    """At 64 rows, on the host; where this fails, a part of the engine's loop lies in no phase."""
    with open_device("process", MICRO_QWEN3, LARGE) as device:
        for arm in ("sync-ids", "refresh", "fused"):
            instrument = Instrument("events")
            engine = Engine(MICRO_QWEN3, LARGE, device, ARMS[arm], instrument)
            engine.run(Arrivals((index // 8, large_request(index)) for index in range(96)))
            costs = costs_of(Simulated(engine, instrument.spans))
            assert not costs.missing
            unknown_ns = costs.no_step.get(UNATTRIBUTED, 0)
            unknown_ns += sum(step.host.get(UNATTRIBUTED, 0) for step in costs.steps)
            assert unknown_ns <= 0.05 * costs.host_ns, arm
            check_decodes(cost_tables(costs))


def large_request(index: int) -> Request:
    recipe = Recipe("pure" if index % 2 else "ids", 8, max_tokens=24, seed=index % 4)
    return request_of(MICRO_QWEN3, f"r{index}", recipe)


def check_decodes(tables: CostTables) -> None:
    (decode,) = [kind for kind in tables.kinds if kind.kind == "decode"]
    assert decode.unattributed_host_share is not None
    assert decode.unattributed_host_share <= 0.05
    host = {row.name for row in tables.spans if (row.kind, row.lane) == ("decode", "host")}
    assert host >= {*PHASES, "wait.output"}
