"""Records as Chrome trace events: every rule of the format, and everything that was recorded."""

from __future__ import annotations

import copy

import pytest
from records import MS, START_NS, make_step
from trace_rules import broken_rules, nanoseconds, strictly_parsed

from runner.spans import NO_STEP, Span
from suite.profile.perfetto import TracedRun, trace_document
from suite.store import to_json


def span(step_id, name, lane, start_ms, end_ms):
    return Span(step_id, name, lane, START_NS + round(start_ms * MS), START_NS + round(end_ms * MS))


def step(step_id, start_ms, end_ms, device_start_ms, device_end_ms, **changes):
    return make_step(
        step_id,
        start_ms,
        end_ms,
        device_start_ns=START_NS + round(device_start_ms * MS),
        device_end_ns=START_NS + round(device_end_ms * MS),
        **changes,
    )


@pytest.fixture
def run():
    """Three steps of async scheduling: each is launched while the last one runs."""
    steps = [
        step(0, 0, 12, 2, 10, num_rows=4, num_free_blocks=60, bytes={"flags": 256, "input_ids": 1024}),
        step(1, 3, 20, 10, 18, num_rows=3, num_free_blocks=58),
        step(2, 12.5, 30, 18, 28, num_rows=2, num_free_blocks=61),
    ]
    spans = [span(NO_STEP, "wait.arrivals", "host", 0, 0.2)]
    for number, (launch, device, end) in enumerate([(1, 2, 10), (4, 10, 18), (13, 18, 28)]):
        spans += [
            span(number, "forward", "host", launch, launch + 0.3),  # its enqueue, within the launch
            span(number, "launch", "host", launch, launch + 0.5),
            span(number, "upload.flags", "compute", device, device + 0.1),
            span(number, "forward", "compute", device + 0.1, end - 0.2),
            span(number, "download", "output", end - 0.2, end),
            span(number, "step decode host/lookup", "steps", launch, end + 1),
        ]
    return TracedRun("refresh", steps, spans)


def drawn(*runs):
    """The document as a file's reader gets it."""
    return strictly_parsed(to_json(trace_document(runs)))


def events(document, phase, **wanted):
    found = [event for event in document["traceEvents"] if event["ph"] == phase]
    return [event for event in found if all(event[key] == value for key, value in wanted.items())]


def lane_name(document, event):
    (process,) = events(document, "M", name="process_name", pid=event["pid"])
    (thread,) = events(document, "M", name="thread_name", pid=event["pid"], tid=event["tid"])
    return process["args"]["name"], thread["args"]["name"]


def test_every_rule_of_the_format_is_kept(run):
    assert broken_rules(drawn(run)) == []


def test_every_span_is_there_with_its_nanoseconds(run):
    document = drawn(run)
    slices = {
        (event["name"], event["args"]["step"], lane_name(document, event)[1]): event
        for event in events(document, "X")
    }
    lanes = {"host": "host thread", "compute": "compute", "output": "output"}
    for item in run.spans:
        if item.lane in lanes:
            event = slices[item.name, item.step_id, lanes[item.lane]]
            assert nanoseconds(event["ts"]) == item.start_ns - START_NS
            assert nanoseconds(event["dur"]) == item.duration_ns


def test_steps_in_flight_together_lie_in_rows_of_their_own(run):
    document = drawn(run)
    steps = [event for event in events(document, "X") if "rows" in event["args"]]
    assert [lane_name(document, event)[1] for event in sorted(steps, key=lambda event: event["ts"])] == [
        "in flight 1",
        "in flight 2",
        "in flight 1",
    ]
    assert {event["name"] for event in steps} == {"step decode host/lookup"}


def test_each_step_has_an_arrow_from_its_launch_to_its_first_device_span(run):
    document = drawn(run)
    starts = {event["id"]: event for event in events(document, "s")}
    ends = {event["id"]: event for event in events(document, "f")}
    assert len(starts) == 3
    arrows = [(nanoseconds(starts[key]["ts"]), nanoseconds(ends[key]["ts"])) for key in sorted(starts)]
    assert arrows == [(1 * MS, 2 * MS), (4 * MS, 10 * MS), (13 * MS, 18 * MS)]
    assert lane_name(document, starts[1]) == ("refresh: host", "host thread")
    assert lane_name(document, ends[1]) == ("refresh: device", "compute")


def test_counters_show_rows_bytes_and_blocks_at_each_step(run):
    document = drawn(run)
    values = {
        name: [event["args"][name] for event in events(document, "C", name=name)]
        for name in ("rows", "bytes uploaded", "free blocks")
    }
    assert values == {"rows": [4, 3, 2], "bytes uploaded": [1280, 0, 0], "free blocks": [60, 58, 61]}


def test_a_run_without_spans_is_drawn_from_its_steps(run):
    document = drawn(TracedRun("off", run.steps, ()))
    assert broken_rules(document) == []
    assert len(events(document, "s")) == 3
    device = [event for event in events(document, "X") if lane_name(document, event)[0] == "off: device"]
    assert [nanoseconds(event["ts"]) for event in device] == [2 * MS, 10 * MS, 18 * MS]


def test_runs_share_no_lane_and_no_id(run):
    document = drawn(run, TracedRun("second", run.steps, run.spans))
    assert broken_rules(document) == []
    assert len({event["id"] for event in events(document, "s")}) == 6
    assert len({event["args"]["name"] for event in events(document, "M", name="process_name")}) == 6


@pytest.mark.parametrize("runs", [(), (TracedRun("empty", (), ()),)])
def test_nothing_recorded_is_an_empty_trace(runs):
    document = drawn(*runs)
    assert document["traceEvents"] == [] and broken_rules(document) == []


def test_a_span_without_times_is_left_out_and_told(run):
    lost = Span(1, "merge", "compute", None, None, "its event was never recorded")
    document = drawn(TracedRun("refresh", run.steps, (*run.spans, lost)))
    assert events(document, "X", name="merge") == []
    assert document["otherData"]["notes"] == ["refresh: 1 spans without a time: its event was never recorded"]


def test_a_device_start_before_its_launch_has_no_arrow_and_is_told(run):
    early = [span(9, "launch", "host", 40, 41), span(9, "forward", "compute", 39.999, 42)]
    document = drawn(TracedRun("refresh", run.steps, (*run.spans, *early)))
    assert broken_rules(document) == []
    assert len(events(document, "s")) == 3
    assert "1 steps have no arrow" in document["otherData"]["notes"][0]


def test_names_in_any_script_are_written_as_they_are(run):
    title = "前処理 </script> \u2028"
    document = drawn(TracedRun(title, run.steps, run.spans))
    names = [event["args"]["name"] for event in events(document, "M", name="process_name")]
    assert f"{title}: host" in names


# The check of the rules finds what it is for


def _overlap(document):
    slices = [event for event in document["traceEvents"] if event["ph"] == "X" and event["name"] == "launch"]
    slices[0]["dur"] = 3200  # into the next launch


def _backwards(document):
    document["traceEvents"].reverse()


def _lost_end(document):
    found = [event for event in document["traceEvents"] if event["ph"] == "f"]
    document["traceEvents"].remove(found[0])


def _same_id(document):
    for event in document["traceEvents"]:
        if event["ph"] in "sf":
            event["id"] = 1


def _unbound(document):
    next(event for event in document["traceEvents"] if event["ph"] == "s")["ts"] = 999_999


def _nameless(document):
    events = document["traceEvents"]
    events.remove(next(event for event in events if event["name"] == "thread_name"))


@pytest.mark.parametrize("fault", [_overlap, _backwards, _lost_end, _same_id, _unbound, _nameless])
def test_the_check_of_the_rules_finds_a_fault(fault, run):
    document = copy.deepcopy(drawn(run))
    fault(document)
    assert broken_rules(document)
