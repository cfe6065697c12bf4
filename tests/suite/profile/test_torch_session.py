"""A real trace of a run on the CPU: every span name, every step, host and device on one clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from real_scenario import profile_scenario
from trace_rules import broken_rules, strictly_parsed

from runner.ranges import STEP_RANGE
from runner.spans import HOST_PHASES, Span
from suite.profile.capture import Capture, CapturedRange
from suite.profile.merged import offset_ns, with_host
from suite.store import load_run


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    return profile_scenario(tmp_path_factory.mktemp("torch"), "--tool", "torch")


@pytest.fixture(scope="module")
def run(document):
    loaded = load_run(Path(document["run"]))
    (record,) = [run for run in loaded.runs if run.instrument == "events"]
    return loaded.step_records(record.run_id), loaded.spans(record.run_id)


@pytest.fixture(scope="module")
def trace(document):
    return strictly_parsed(Path(document["file"]).read_bytes())["traceEvents"]


def slices(trace, **wanted):
    found = [event for event in trace if event.get("ph") == "X"]
    return [event for event in found if all(event.get(key) == value for key, value in wanted.items())]


def test_every_span_name_and_every_step_is_in_the_trace(trace, run):
    steps, spans = run
    names = {event["name"] for event in slices(trace)}
    assert {span.name for span in spans} <= names
    assert set(HOST_PHASES) - {"hash"} <= names
    numbers = {
        event["name"].removeprefix(STEP_RANGE) for event in slices(trace) if STEP_RANGE in event["name"]
    }
    assert numbers == {str(step.step_id) for step in steps}


def test_commands_are_counted_as_we_count_them(document, run):
    comparison = document["comparison"]
    assert comparison["num_steps"] == {"ours": len(run[0]), "capture": len(run[0])}
    assert all(row["ours"]["n"] == row["capture"]["n"] for row in comparison["spans"])
    assert {row["lane"] for row in comparison["spans"]} == {"compute"}
    assert {"upload.is_token_ids", "merge", "forward", "sample"} <= {
        row["name"] for row in comparison["spans"]
    }


def test_host_and_device_lie_on_one_clock(trace, run):
    """A step's device range begins after its launch began and ends before the host had its output."""
    device = {event["name"]: event for event in slices(trace) if STEP_RANGE in event["name"]}
    for step in run[0]:
        ours = device[f"{STEP_RANGE}{step.step_id}"]
        (launch,) = [e for e in slices(trace, name="launch") if e["args"]["step"] == step.step_id]
        (output,) = [e for e in slices(trace, name="wait.output") if e["args"]["step"] == step.step_id]
        assert launch["ts"] <= ours["ts"] + 50  # us: the offset is a median
        assert slices(trace, name="forward") and ours["ts"] < output["ts"] + output["dur"]


def test_the_hosts_part_keeps_the_rules_of_the_format(trace):
    ours = [event for event in trace if event.get("cat") == "stepcost"]
    pids = {event["pid"] for event in ours}
    mine = [event for event in trace if event.get("pid") in pids]
    assert broken_rules({"traceEvents": mine}) == []
    assert not pids & {event.get("pid") for event in trace if event.get("cat") == "user_annotation"}


def test_the_record_says_that_it_was_traced(document):
    text = (Path(document["run"]) / "runs.jsonl").read_text()
    records = [json.loads(line) for line in text.splitlines()]
    traced = [any("torch's profiler" in note for note in record["notes"]) for record in records]
    assert traced == [record["instrument"] == "events" for record in records]


# The clocks


def captured(name, start, step_id=0):
    return CapturedRange(name, "stepcost", 1, 1, start, start + 5, True, step_id)


def make_capture(*ranges):
    return Capture("torch", None, (), ranges, (), ())


def test_the_offset_is_the_median_over_what_both_saw_begin():
    spans = [Span(0, "forward", "compute", at, at + 5) for at in (10, 20, 30)]
    spans.append(Span(0, "merge", "compute", 40, 45))  # seen twice there: which is which is not known
    spans.append(Span(0, "launch", "host", 0, 1))
    ranges = [captured("forward", at) for at in (1010, 1021, 1090)]
    ranges += [captured("merge", 1), captured("merge", 2), captured("launch", 7)]
    assert offset_ns(spans, make_capture(*ranges)) == 1001


def test_without_anything_in_common_there_is_no_common_clock():
    spans = [Span(0, "launch", "host", 0, 1), Span(0, "forward", "compute", None, None, "lost")]
    assert offset_ns(spans, make_capture(captured("merge", 3))) is None
    assert with_host({"traceEvents": []}, make_capture(), "refresh", (), spans) is None
