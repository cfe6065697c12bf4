"""A trace of torch's profiler becomes a capture, whatever it lacks."""

from __future__ import annotations

import gzip
import json

import pytest

from runner.spans import Span
from suite.errors import SuiteError
from suite.profile.capture import NO_OWN_RANGES
from suite.profile.comparison import compare
from suite.profile.files import read_capture


def event(name, start, duration, cat="user_annotation", pid=1, tid=1, **args):
    when = {"ts": start, "dur": duration}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "args": args, **when}


@pytest.fixture
def read(tmp_path):
    """Reads these events, or this document, from a file."""

    def from_file(content, name="trace.json"):
        path = tmp_path / name
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.write_bytes(raw)
        return read_capture(path)

    return from_file


STEPS = [
    event("stepcost step 7", 1000, 100.5),
    event("forward", 1010.25, 50),
    event("aten::mm", 1011, 5, cat="cpu_op"),
    event("stepcost step 8", 1200, 100),
    event("forward", 1210, 40),
    event("elsewhere", 1210, 40, tid=2),
    event("outside", 1350, 5),
]


def test_ranges_within_a_steps_range_are_ours_and_of_that_step(read):
    capture = read({"traceEvents": STEPS})
    own = [(item.name, item.step_id, item.start_ns, item.end_ns) for item in capture.own]
    assert own == [
        ("stepcost step 7", 7, 1_000_000, 1_100_500),
        ("forward", 7, 1_010_250, 1_060_250),
        ("stepcost step 8", 8, 1_200_000, 1_300_000),
        ("forward", 8, 1_210_000, 1_250_000),
    ]
    assert {item.name for item in capture.ranges} - {item.name for item in capture.own} == {
        "elsewhere",
        "outside",
    }
    assert capture.step_ids == {7, 8} and len(capture.steps) == 2


@pytest.mark.parametrize("form", ["list", "gzip"])
def test_a_bare_list_and_a_compressed_file_are_read(form, read):
    if form == "list":
        capture = read(STEPS)
    else:
        capture = read(gzip.compress(json.dumps({"traceEvents": STEPS}).encode()), "trace.json.gz")
    assert len(capture.own) == 4


def test_begun_and_ended_events_are_joined_and_one_without_an_end_is_open(read):
    common = {"cat": "user_annotation", "pid": 1, "tid": 1}
    capture = read(
        [
            {"ph": "B", "name": "outer", "ts": 1, **common},
            {"ph": "B", "name": "inner", "ts": 2, **common},
            {"ph": "E", "ts": 3, **common},
            {"ph": "E", "ts": 9, **common},
            {"ph": "E", "ts": 10, **common},
            {"ph": "B", "name": "open", "ts": 11, **common},
        ]
    )
    assert {item.name: item.duration_ns for item in capture.ranges} == {
        "outer": 8000,
        "inner": 1000,
        "open": None,
    }
    assert capture.num_open == 1


def test_gpu_work_belongs_to_the_range_of_its_launch(read):
    capture = read(
        [
            *STEPS,
            event("cudaLaunchKernel", 1020, 2, cat="cuda_runtime", correlation=5),
            event("gemm", 1500, 30, cat="kernel", pid=0, tid=7, correlation=5, device=0, stream=7),
            event("Memcpy HtoD", 1600, 1, cat="gpu_memcpy", pid=0, tid=7, correlation=6, bytes=256),
            event("forward", 1500, 30, cat="gpu_user_annotation", pid=0, tid=7),
        ]
    )
    kernel, copied = capture.work
    assert (kernel.range.name, kernel.range.step_id, kernel.stream_id) == ("forward", 7, 7)
    assert (copied.range, copied.num_bytes) == (None, 256)
    assert sum(item.name == "forward" for item in capture.ranges) == 2


def test_scopes_of_vllm_are_recognised(read):
    capture = read([event("gpu_model_runner: forward", 1, 2)])
    assert [item.name for item in capture.vllm] == ["gpu_model_runner: forward"]
    assert NO_OWN_RANGES in capture.absent


@pytest.mark.parametrize("content", [{"traceEvents": []}, []])
def test_an_empty_trace_is_a_capture_of_nothing(content, read):
    capture = read(content)
    assert (capture.ranges, capture.work, capture.processes) == ((), (), ())
    assert [text.split(":")[0] for text in capture.absent] == [
        "no events at all",
        "no ranges at all",
        NO_OWN_RANGES,
        "no GPU work",
        "no rank",
    ]
    assert compare([], capture).rows == ()


def test_a_cpu_only_trace_of_one_rank_says_what_is_absent(read):
    capture = read({"traceEvents": STEPS, "distributedInfo": {"rank": 0}})
    assert [text.split(":")[0] for text in capture.absent] == ["no GPU work"]


def test_events_that_lack_what_they_need_are_left_out(read):
    capture = read(
        {
            "traceEvents": [
                None,
                7,
                {},
                {"ph": "X", "cat": "user_annotation", "name": "no time"},
                {"ph": "X", "cat": "user_annotation", "name": "no number", "ts": "soon"},
                {"ph": "X", "cat": "user_annotation", "name": "infinite", "ts": float("inf")},
                {"ph": "X", "cat": "user_annotation", "name": 3, "ts": 1, "dur": 2},
                {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "args": None},
                {"ph": "X", "cat": "user_annotation", "name": "kept", "ts": 5, "pid": "Spans", "tid": ""},
            ]
        }
    )
    assert [(item.name, item.pid, item.end_ns) for item in capture.ranges] == [("kept", 0, None)]


def test_the_devices_commands_are_compared_and_the_hosts_phases_are_not(read):
    spans = [Span(7, "launch", "host", 0, 10), Span(7, "forward", "compute", 0, 50_000)]
    spans += [Span(8, "forward", "compute", 100_000, 140_000)]
    spans += [Span(step_id, "step decode slice/merge", "steps", 0, 1) for step_id in (7, 8)]
    comparison = compare(spans, read(STEPS))
    assert [(row.name, row.verdict) for row in comparison.rows] == [("forward", "equal")]
    assert comparison.is_equal and comparison.num_steps_captured == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not json", "no JSON"),
        (b"", "no JSON"),
        (b'{"traceEvents": {}}', "no list traceEvents"),
        (b'"words"', "no list traceEvents"),
        (b"\x1f\x8bnot gzip", "no JSON"),
        (b"[" * 100_000, "no"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(content, words, read):
    with pytest.raises(SuiteError, match=words):
        read(content)
