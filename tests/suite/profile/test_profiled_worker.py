"""The worker in a profile: a trace and a window where asked for, and in the run they are asked for alone."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

from runner.core import DeviceError
from suite import worker
from suite.plan import Options, make_plan
from suite.profile.window import CaptureWindow
from suite.protocol import Close, Finished, OpenCase, RunArm, pack_case
from suite.record import Status
from suite.store import RunFolder

SCENARIO = """
name: small
model: tiny-qwen3
runner: {max_num_seqs: 4, max_num_batched_tokens: 32, max_model_len: 64}
traffic: {num_requests: 3, prompt_tokens: 6, output_tokens: 5, arrivals: {kind: all_at_once}}
arms: [ids, sync-ids]
"""


class SeenWindow(CaptureWindow):
    """A window that remembers how many steps it saw last, and that it was closed."""

    made: ClassVar[list[SeenWindow]] = []

    def __init__(self, *parts):
        super().__init__(*parts)
        self.num_steps, self.num_closed = 0, 0
        SeenWindow.made.append(self)

    def poll(self, steps):
        self.num_steps = len(steps)
        super().poll(steps)

    def close(self):
        self.num_closed += 1
        super().close()


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(SeenWindow, "made", [])
    monkeypatch.setattr(worker, "CaptureWindow", SeenWindow)
    return SeenWindow.made


@pytest.fixture
def served(tmp_path):
    """Runs these commands on an inline device; gives the records and the folder of the run."""
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    (planned,) = make_plan([file], Options(device="inline")).cases
    folder = RunFolder.create(tmp_path, "small")
    opening = OpenCase(
        case=pack_case(planned.case),
        seed=planned.seed,
        device="inline",
        workload_hash=planned.workload_hash,
        folder=str(folder.path),
        is_timed=True,
    )

    def serve(**changes):
        commands = iter([RunArm(run_id="one", arm="ids", round=0, is_warmup=False, **changes), Close()])
        replies = []
        worker.serve(opening, lambda: next(commands), replies.append)
        (record,) = [reply.record for reply in replies if isinstance(reply, Finished)]
        return record, folder.path

    return serve


def test_a_traced_run_leaves_a_trace_and_says_that_it_was(served):
    record, path = served(instrument="events", is_traced=True)
    events = json.loads((path / "traces" / "one.json").read_text())["traceEvents"]
    names = {event["name"] for event in events if event.get("cat") == "user_annotation"}
    assert {"forward", "sample", "stepcost step 0"} <= names
    assert record.status is Status.COMPLETED and any("torch's profiler" in note for note in record.notes)
    assert [file.name for file in (path / "traces").iterdir()] == ["one.json"]


def test_a_run_that_asks_for_neither_has_neither(served, windows):
    record, path = served(instrument="events")
    assert not (path / "traces").exists() and windows == []
    assert not any("torch's profiler" in note for note in record.notes)


def test_a_window_is_polled_between_steps_and_closed_at_the_end(served, windows):
    record, _ = served(instrument="host", has_window=True)
    (window,) = windows
    assert record.num_steps - 2 <= window.num_steps <= record.num_steps
    assert window.num_closed == 1


def test_a_run_that_fails_has_its_window_closed_and_its_trace_stopped(served, windows, monkeypatch):
    def fail(*_):
        raise DeviceError("it broke")

    monkeypatch.setattr(worker.Engine, "run", fail)
    record, path = served(instrument="host", has_window=True, is_traced=True)
    assert record.status is Status.FAILED and record.failure.message == "it broke"
    assert windows[0].num_closed == 1
    assert (path / "traces" / "one.json").exists()


# The plan


def test_only_the_instrumented_run_is_traced_and_has_a_window(tmp_path):
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    options = Options(device="inline", instrument="events", is_traced=True, has_window=True)
    plan = make_plan([file], options)
    (planned,) = plan.cases
    runs = planned.runs()
    assert all(run.is_traced == run.has_window == (run.instrument == "events") for run in runs)
    assert sum(run.is_traced for run in runs) == 2
    assert plan.document()["invocation"]["window"] is True
