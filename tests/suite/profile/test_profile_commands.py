"""`suite profile --import` and `suite export`: exit codes, what is printed, what is written."""

from __future__ import annotations

import json

import pytest
from nsys_fixture import START_END, Fixture
from records import make_run, make_step
from trace_rules import broken_rules, strictly_parsed
from typer.testing import CliRunner

from runner.spans import Span
from suite.cli import app
from suite.store import RunFolder


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result, *words):
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def spans_of_steps(number):
    spans = []
    for step_id in range(number):
        start = 1_000_000 * step_id
        spans += [
            Span(step_id, "launch", "host", start, start + 50_000),
            Span(step_id, "forward", "compute", start + 60_000, start + 700_000),
            Span(step_id, "step decode slice/merge", "steps", start, start + 800_000),
        ]
    return spans


@pytest.fixture
def run_dir(tmp_path):
    """The folder of a run of two steps with spans, and of one that is not instrumented."""
    folder = RunFolder.create(tmp_path, "a run")
    folder.write_config({"scenarios": [], "cases": [], "skipped": []})
    steps = [
        make_step(0, 0, 0.8),
        make_step(1, 1, 1.8),
    ]
    for run_id, instrument in (("plain", "off"), ("seen", "events")):
        folder.append_run(make_run(run_id=run_id, steps=steps, instrument=instrument))
        folder.write_steps(run_id, steps)
        folder.write_requests(run_id, [])
    folder.write_spans("seen", spans_of_steps(2))
    return folder.path


@pytest.fixture
def capture(tmp_path):
    """The same two steps as nsys saw them, a little longer."""
    fixture = Fixture()
    for pid in (100, 200):
        fixture.domain(pid, 1, "stepcost")
    fixture.processes({100: "worker", 200: "device"})
    for span in spans_of_steps(2):
        fixture.range(
            span.name,
            span.start_ns + 5_000_000_000,
            span.end_ns + 5_000_001_000,
            pid=200 if span.lane == "compute" else 100,
            event_type=START_END if span.lane == "steps" else 59,
            int64Value=span.step_id,
        )
    return fixture.write(tmp_path / "capture.sqlite")


# profile --import


def test_a_capture_is_shown_range_by_range(capture):
    result = invoke("profile", "--import", capture)
    assert result.exit_code == 0
    assert "6 ranges, 6 of them ours" in result.stdout
    assert "process 100: worker" in result.stdout and "process 200: device" in result.stdout
    assert any(line.split() == ["forward", "2", "1.282"] for line in result.stdout.splitlines())


def test_a_capture_is_compared_with_the_spans_of_a_run(capture, run_dir):
    result = invoke("profile", run_dir, "--import", capture, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert document["comparison"]["is_equal"] is True
    assert document["comparison"]["num_steps"] == {"ours": 2, "capture": 2}
    rows = {row["name"]: row for row in document["comparison"]["spans"]}
    assert rows["launch"]["difference_ns_a_range"] == 1000
    assert rows["launch"]["lane"] == "host" and rows["forward"]["lane"] == "compute"
    text = invoke("profile", run_dir, "--import", capture).stdout
    assert "steps: 2 recorded, 2 captured" in text and "differs" not in text


def test_a_capture_without_our_ranges_says_so_and_is_no_error(tmp_path):
    fixture = Fixture()
    fixture.range("gpu_model_runner: forward", 0, 5000, domain_id=0)
    result = invoke("profile", "--import", fixture.write(tmp_path / "vllm.sqlite"))
    assert result.exit_code == 0
    assert "no stepcost ranges in this capture" in result.stdout
    assert "gpu_model_runner: forward" in result.stdout


def test_a_capture_of_vllm_is_laid_beside_a_run(tmp_path, run_dir):
    fixture = Fixture()
    fixture.range("gpu_model_runner: forward", 0, 5000, domain_id=0)
    path = fixture.write(tmp_path / "vllm.sqlite")
    (row,) = json.loads(invoke("profile", run_dir, "--import", path, "--json").stdout)["beside_vllm"]
    assert row["scope"] == "gpu_model_runner: forward" and row["our_spans"] == ["forward"]
    assert row["vllm"]["total_ns"] == 5000 and row["ours"] == {"n": 2, "num_open": 0, "total_ns": 1_280_000}


def test_mistakes_end_with_code_two(tmp_path, capture, run_dir):
    refused(invoke("profile"), "give a scenario to run, or a capture with --import FILE")
    refused(invoke("profile", "--import", tmp_path / "no.sqlite"), "no file there")
    refused(invoke("profile", tmp_path, "--import", capture), "is not the folder of a run")
    refused(invoke("profile", tmp_path / "no.yaml"), "no.yaml")
    for file in (run_dir / "spans").iterdir():
        file.unlink()
    refused(invoke("profile", run_dir, "--import", capture), "recorded no spans", "--instrument events")


# export


def test_a_run_is_exported_into_its_folder(run_dir):
    result = invoke("export", run_dir, "--format", "perfetto")
    assert result.exit_code == 0 and "2 steps, 6 spans" in result.stdout
    document = strictly_parsed((run_dir / "trace.json").read_bytes())
    assert broken_rules(document) == []
    names = {event["name"] for event in document["traceEvents"] if event["ph"] == "X"}
    assert {"launch", "forward"} <= names


def test_a_run_without_spans_is_exported_by_its_steps(run_dir, tmp_path):
    for file in (run_dir / "spans").iterdir():
        file.unlink()
    output = tmp_path / "ein Pfad" / "Łukasz.json"
    output.parent.mkdir()
    result = invoke("export", run_dir, "-o", output, "--json")
    assert json.loads(result.stdout)["num_spans"] == 0
    assert broken_rules(strictly_parsed(output.read_bytes())) == []
    assert not (run_dir / "trace.json").exists()


def test_what_cannot_be_exported_is_told(tmp_path, run_dir):
    refused(invoke("export", tmp_path), "is not the folder of a run")
    refused(invoke("export", run_dir, "-o", tmp_path / "no" / "x.json"), "cannot write")
    refused(invoke("export", run_dir, "--format", "svg"), "perfetto")
    (run_dir / "runs.jsonl").write_text("")
    refused(invoke("export", run_dir), "nothing to export")


def damage(run_dir, kind, run_id):
    (run_dir / kind / f"{run_id}.parquet").write_bytes(b"no table")


def test_one_damaged_file_costs_its_own_run_and_is_told(run_dir):
    folder = RunFolder(run_dir)
    steps = [make_step(0, 0, 0.8), make_step(1, 1, 1.8)]
    folder.append_run(make_run(run_id="again", steps=steps, instrument="events"))
    folder.write_steps("again", steps)
    folder.write_requests("again", [])
    folder.write_spans("again", spans_of_steps(2))
    damage(run_dir, "spans", "again")
    result = invoke("export", run_dir)
    assert result.exit_code == 0, result.output
    assert "warning: the spans of again are left out: cannot read" in result.stdout
    assert "2 steps, 6 spans" in result.stdout
    assert broken_rules(strictly_parsed((run_dir / "trace.json").read_bytes())) == []
    damage(run_dir, "spans", "seen")
    document = json.loads(invoke("export", run_dir, "--json").stdout)
    assert document["num_spans"] == 0 and document["num_steps"] == 2 and len(document["left_out"]) == 2


def test_a_damaged_file_of_spans_is_told_where_a_capture_is_compared(capture, run_dir):
    damage(run_dir, "spans", "plain")
    result = invoke("profile", run_dir, "--import", capture)
    assert result.exit_code == 0 and "warning: the spans of plain are left out" in result.stdout


def test_a_file_that_cannot_be_written_names_the_option_it_was_given_by(tmp_path, run_dir):
    result = invoke("export", run_dir, "-o", tmp_path / "no" / "x.json")
    refused(result, "another file with --output")
    assert "--output-dir" not in result.stderr


def test_an_unknown_arm_names_the_option_it_was_given_by(tmp_path):
    scenario = tmp_path / "a.yaml"
    scenario.write_text(
        "name: a\nmodel: tiny-qwen3\ntraffic: {num_requests: 1, prompt_tokens: 4, output_tokens: 2}\n"
    )
    for command in ("profile", "cost"):
        result = invoke(command, scenario, "--arm", "nope", "-o", tmp_path / "results")
        refused(result, "--arm nope:")
        assert "--arms" not in result.stderr


# captures that are damaged, or of something else


def shifted(capture, tmp_path, change):
    """The capture with `change` made to its rows."""
    import shutil
    import sqlite3

    copy = tmp_path / "changed.sqlite"
    shutil.copy(capture, copy)
    with sqlite3.connect(copy) as connection:
        connection.execute(change)
    return copy


def test_a_capture_of_nothing_of_the_run_ends_with_code_one(run_dir, tmp_path):
    fixture = Fixture()
    fixture.domain(100, 1, "stepcost")
    fixture.range("of another program", 0, 5000, pid=100)
    result = invoke("profile", run_dir, "--import", fixture.write(tmp_path / "other.sqlite"))
    assert result.exit_code == 1
    assert "nothing of the capture is in the records of this run" in result.stdout


def test_a_capture_of_another_run_of_the_same_work_is_warned_about(capture, run_dir, tmp_path):
    folder = RunFolder(run_dir)
    folder.write_spans("seen", spans_of_steps(8))
    assert "another run" in invoke("profile", run_dir, "--import", capture).stdout
    folder.write_spans("seen", spans_of_steps(2))
    slower = 'UPDATE NVTX_EVENTS SET "end" = "end" + ("end" - start) / 2 WHERE "end" - start > 100000'
    result = invoke("profile", run_dir, "--import", shifted(capture, tmp_path, slower), "--json")
    (warning,) = json.loads(result.stdout)["comparison"]["warnings"]
    assert "4 of 4 spans of one name and step differ by more than a quarter" in warning
    assert (
        json.loads(invoke("profile", run_dir, "--import", capture, "--json").stdout)["comparison"]["warnings"]
        == []
    )


def test_open_ranges_are_not_counted_as_taking_no_time(capture, run_dir, tmp_path):
    one_open = 'UPDATE NVTX_EVENTS SET "end" = NULL WHERE start = (SELECT MAX(start) FROM NVTX_EVENTS)'
    file = shifted(capture, tmp_path, one_open)
    document = json.loads(invoke("profile", run_dir, "--import", file, "--json").stdout)
    (row,) = [row for row in document["comparison"]["spans"] if row["capture"]["num_open"]]
    assert (row["name"], row["verdict"], row["difference_ns_a_range"]) == ("forward", "open ranges", None)
    text = invoke("profile", run_dir, "--import", file).stdout
    assert "2 (1 open)" in text and "open ranges" in text
    all_open = shifted(capture, tmp_path, 'UPDATE NVTX_EVENTS SET "end" = NULL')
    document = json.loads(invoke("profile", "--import", all_open, "--json").stdout)
    assert {row["total_ns"] for row in document["ranges"]} == {None}
    rows = [line.split() for line in invoke("profile", "--import", all_open).stdout.splitlines()]
    assert ["forward", "2", "(2", "open)", "-"] in rows


def test_ranges_that_end_before_they_begin_are_left_out_and_told(capture, run_dir, tmp_path):
    reversed_one = (
        'UPDATE NVTX_EVENTS SET "end" = start - 5 WHERE start = (SELECT MAX(start) FROM NVTX_EVENTS)'
    )
    result = invoke("profile", run_dir, "--import", shifted(capture, tmp_path, reversed_one), "--json")
    document = json.loads(result.stdout)
    assert "1 ranges end before they begin, and are left out: the capture is damaged" in document["absent"]
    assert document["num_ranges"] == 5
    assert all((row["capture"]["total_ns"] or 0) >= 0 for row in document["comparison"]["spans"])


def test_a_trace_with_negative_durations_tells_them(tmp_path):
    common = {"pid": 1, "tid": 1, "cat": "user_annotation"}
    events = [
        {"ph": "X", "name": "step 0", "ts": 10, "dur": -5, **common},
        {"ph": "B", "name": "forward", "ts": 20, **common},
        {"ph": "E", "name": "forward", "ts": 15, **common},
        {"ph": "X", "name": "fine", "ts": 30, "dur": 5, **common},
        {"ph": "X", "name": "k", "ts": 30, "dur": -1, "cat": "kernel", "args": {"device": 0}},
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    document = json.loads(invoke("profile", "--import", file, "--json").stdout)
    assert [row["name"] for row in document["ranges"]] == ["fine"]
    assert document["absent"][:2] == [
        "2 ranges end before they begin, and are left out: the capture is damaged",
        "1 pieces of GPU work end before they begin, and are left out: the capture is damaged",
    ]
