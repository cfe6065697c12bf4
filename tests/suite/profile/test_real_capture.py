"""A real capture by the nsys of this machine: both processes seen, every name, every step, the same times.

Under CI=true a missing nsys fails; elsewhere these are skipped.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from real_scenario import profile_scenario

from runner.spans import HOST_PHASES
from suite.profile.nsys import find_nsys, losing_versions
from suite.profile.nsys_sqlite import read_sqlite
from suite.steady import steady_window
from suite.store import load_run

pytestmark = pytest.mark.alone


# A machine that is busy for a moment stretches what lies between two clock readings, ours and the profiler's:
# each span's total must agree in one of so many captures.
MAX_CAPTURES = 4


@pytest.fixture(scope="module")
def nsys():
    if shutil.which("nsys") is None:
        text = "nsys is not installed (Debian: nsight-systems, section non-free)"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    found = find_nsys()
    assert losing_versions(found) is None
    return found


@pytest.fixture(scope="module")
def documents(nsys, tmp_path_factory):
    """A capture, and further ones as long as a host span has agreed in none."""
    folder = tmp_path_factory.mktemp("captures")
    documents = []
    while not documents or (differing(documents) and len(documents) < MAX_CAPTURES):
        documents.append(profile_scenario(folder / str(len(documents))))
    return documents


@pytest.fixture(scope="module")
def document(documents):
    return documents[0]


def differing(documents):
    """Host spans whose total agreed in none of the captures, with their differences (ns a range)."""
    differences = {}
    for row in (row for document in documents for row in host_rows(document)):
        differences.setdefault(row["name"], []).append((row["verdict"], row["difference_ns_a_range"]))
    return {
        name: [difference for _, difference in found]
        for name, found in differences.items()
        if all(verdict != "equal" for verdict, _ in found)
    }


def host_rows(document):
    return [row for row in document["comparison"]["spans"] if row["lane"] == "host"]


def test_both_processes_and_every_step_are_captured(document):
    capture = read_sqlite(Path(document["file"]))
    assert len({item.pid for item in capture.own}) == 2
    steps = document["comparison"]["num_steps"]
    assert steps["ours"] == steps["capture"] > 10
    (run,) = [run for run in load_run(Path(document["run"])).runs if run.instrument == "events"]
    assert steps["ours"] == run.num_steps == len({item.step_id for item in capture.steps})
    assert document["num_open_ranges"] == 0


def test_every_span_name_is_captured_as_often_as_it_was_recorded(document):
    rows = document["comparison"]["spans"]
    assert {row["name"] for row in rows if row["ours"]["n"] != row["capture"]["n"]} == set()
    names = {row["name"] for row in rows}
    assert set(HOST_PHASES) - {"hash"} <= names  # prefix caching is off
    assert {"upload.is_token_ids", "upload.inputs_embeds", "merge", "forward", "sample", "download"} <= names


def test_host_totals_are_those_of_our_records(documents):
    """Within 5 % or 2 us a range, whichever is more."""
    assert differing(documents) == {}
    assert len(host_rows(documents[0])) > 8


def test_a_step_contains_its_own_ranges(document):
    """Steps, host phases and commands of one step id belong together in time."""
    capture = read_sqlite(Path(document["file"]))
    steps = {item.step_id: item for item in capture.steps}
    inside = [item for item in capture.own if item.name in ("launch", "forward", "download")]
    assert len(inside) > 30
    for item in inside:
        step = steps[item.step_id]
        assert step.start_ns <= item.start_ns and item.end_ns <= step.end_ns


# Only the window


@pytest.fixture(scope="module")
def of_window(nsys, tmp_path_factory):
    folder = tmp_path_factory.mktemp("window")
    return profile_scenario(folder, "--window", "--set", "traffic.output_tokens=40")


def test_a_window_is_captured_while_the_batch_is_steady_and_the_run_goes_on_to_its_end(of_window):
    loaded = load_run(Path(of_window["run"]))
    (run,) = [run for run in loaded.runs if run.instrument == "events"]
    assert run.status == "completed" and run.tokens.num_wrong == 0
    window = steady_window(loaded.step_records(run.run_id))
    captured = {item.step_id for item in read_sqlite(Path(of_window["file"])).steps}
    inside = set(range(window.first_step_id, window.last_step_id + 1))
    assert len(inside) > 10
    # Async: what ends the settling, or the window, is retired when the step after it has been launched.
    after = {window.last_step_id + 1, window.last_step_id + 2}
    assert inside - {window.first_step_id} <= captured <= inside | after


def test_of_a_window_whole_steps_are_compared(of_window):
    comparison = of_window["comparison"]
    assert comparison["num_steps"]["ours"] == comparison["num_steps"]["capture"] > 8
    rows = comparison["spans"]
    assert {row["name"] for row in rows if row["ours"]["n"] != row["capture"]["n"]} == set()
    assert {"stage", "launch", "forward", "merge"} <= {row["name"] for row in rows}
