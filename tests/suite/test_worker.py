"""What the worker records of a run, over an engine, a device and an oracle that do as they are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import make_step

from runner.config import Decision
from runner.core import (
    DeviceError,
    DeviceInfo,
    FinishReason,
    Prompt,
    RequestState,
    RequestStatus,
    TokenLogprobs,
)
from runner.measure import Recorder, Timeline, now_ns
from runner.spans import Span
from runner.sync_check import SyncFinding
from suite import worker as worker_module
from suite.arrivals import ScheduledArrivals
from suite.checks import check_run
from suite.plan import Options, make_plan
from suite.protocol import (
    Close,
    Finished,
    OpenCase,
    Opened,
    Progress,
    Refused,
    RunArm,
    StorageFailed,
    pack_case,
    read_command,
    read_reply,
)
from suite.record import Status
from suite.store import RunFolder, load_run
from suite.worker import serve
from suite.workload import build_workload

SCENARIO = """\
name: fake
model: tiny-qwen3
traffic: {num_requests: 3, prompt_tokens: 4, output_tokens: 4, arrivals: {kind: constant, rate: 200}}
"""


ENDINGS = {"eos": FinishReason.EOS, "stop": FinishReason.STOP}


class FakeEngine:
    """Gives every request its tokens at once; `script` maps request index to what happens instead."""

    script: Mapping[int, str] = MappingProxyType({})
    fails_in_making = False
    arms_seen: ClassVar[list[str]] = []
    prompts_seen: ClassVar[list[Prompt]] = []
    names_seen: ClassVar[list[str]] = []
    repeats_seen: ClassVar[list[Mapping[str, int]]] = []

    def __init__(self, model, config, device, arm, instrument, repeats, turns):
        FakeEngine.repeats_seen.append(repeats)
        device.sync_check = instrument.sync_check
        if instrument.level != "off":
            instrument.spans.append(Span(0, "schedule", "host", 1, 2))
        if self.fails_in_making:
            raise DeviceError("the device is gone", traceback_text="Traceback: reset")
        FakeEngine.arms_seen.append(arm.name)
        self.decision = Decision("sync", f"asked for by {arm.name}")
        self.recorder = Recorder()
        self.requests = {}

    def run(self, arrivals):
        while True:
            for request in arrivals.due():
                self.serve(request)
            if not arrivals.wait():
                return

    def serve(self, request):
        index = int(request.request_id.rpartition("-")[2])
        FakeEngine.prompts_seen.append(request.prompt)
        FakeEngine.names_seen.append(request.request_id)
        action = self.script.get(index)
        if action == "device":
            raise DeviceError(
                "step 7, Forward: boom", step_id=7, command="Forward", traceback_text="Traceback: x"
            )
        if action == "bug":
            raise IndexError("slot 99")
        state = RequestState(request=request, spans=(), status=RequestStatus.FINISHED)
        timeline = Timeline(sent_ns=now_ns())
        self.requests[request.request_id] = state
        self.recorder.timelines[request.request_id] = timeline
        if action == "refuse":
            state.finish_reason, state.error = FinishReason.ERROR, "17 placeholders, 16 image tokens"
            return
        print("stray text that must not reach the suite")
        state.finish_reason = ENDINGS.get(action, FinishReason.MAX_TOKENS)
        state.output_ids = list(range(request.sampling.max_tokens))
        if request.sampling.logprobs is not None:
            value = -2.0 if action == "odd-logprob" else FakeOracle.LOGPROB
            state.logprobs = [TokenLogprobs(value, 1, ()) for _ in state.output_ids]
        state.num_cached, state.num_drafted, state.num_accepted = 2, 3, 1
        timeline.first_scheduled_ns = now_ns()
        timeline.token_ns = [now_ns() for _ in state.output_ids]
        timeline.finished_ns = now_ns()
        num_tokens = len(request.prompt) + len(state.output_ids) - 1 - 2 + 3 - 1
        self.recorder.steps.append(make_step(index, index, index + 1, num_tokens=num_tokens))


class FakeDevice:
    clock_uncertainty_ns = 7
    info = DeviceInfo(kind="inline", name="fake", num_threads=1, torch_version="0")
    num_closed = 0
    sync_check = "off"

    def sync_findings(self):
        found = SyncFinding("sample", "runner/kernels/program.py:Program._sample", "waits", 3, 2)
        return () if self.sync_check == "off" else (found,)

    def close(self):
        FakeDevice.num_closed += 1


class FakeOracle:
    """Right, but for the request ids in `wrong`."""

    LOGPROB = -2.5

    wrong: tuple[str, ...] = ()
    num_made = 0

    def __init__(self, model, num_threads, dtype, place):
        FakeOracle.num_made += 1

    def logprobs(self, request, output_ids):
        return np.full((len(output_ids), 4096), self.LOGPROB)

    def check(self, request, output_ids):
        from suite.oracle import Check

        num = len(output_ids)
        if request.request_id in self.wrong:
            return Check(num_right=num - 1, num_wrong=1, first_wrong=2, expected=(5, 6), produced=(5, 9))
        return Check(num_right=num)


@pytest.fixture
def case(tmp_path):
    file = tmp_path / "fake.yaml"
    file.write_text(SCENARIO)
    return make_plan([file], Options()).cases[0].case


@pytest.fixture
def embeds_case(tmp_path):
    """Of its three requests two bring embeddings."""
    file = tmp_path / "embeds.yaml"
    file.write_text(SCENARIO)
    options = Options(overrides=("traffic.embeds_ratio=0.67", "traffic.embeds_kind=pure"))
    return make_plan([file], options).cases[0].case


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.create(tmp_path, "fake")
    folder.write_config({"scenarios": []})
    return folder


@pytest.fixture
def run(case, folder, monkeypatch):
    """Run arms with a script of failures; returns the worker's replies."""
    import suite.oracle

    monkeypatch.setattr(worker_module, "Engine", FakeEngine)
    monkeypatch.setattr(worker_module, "open_device", lambda kind, model, config: FakeDevice())
    monkeypatch.setattr(suite.oracle, "Oracle", FakeOracle)
    monkeypatch.setattr(FakeEngine, "arms_seen", [])
    monkeypatch.setattr(FakeEngine, "prompts_seen", [])
    monkeypatch.setattr(FakeEngine, "names_seen", [])
    monkeypatch.setattr(FakeEngine, "repeats_seen", [])
    monkeypatch.setattr(FakeOracle, "wrong", ())
    monkeypatch.setattr(FakeOracle, "num_made", 0)
    monkeypatch.setattr(FakeDevice, "num_closed", 0)

    def run_arms(
        script=None,
        rounds=1,
        workload_hash=None,
        is_timed=True,
        store=folder.path,
        arm="sync-ids",
        of=case,
        rotation=None,
        **asked,
    ):
        monkeypatch.setattr(FakeEngine, "script", script or {})
        commands = iter(
            [
                RunArm(run_id=f"r{i}", arm=arm, round=i, is_warmup=False, rotation=rotation, **asked)
                for i in range(rounds)
            ]
            + [Close()]
        )
        replies = []
        opening = OpenCase(
            case=pack_case(of),
            seed=of.scenario.seed,
            device="inline",
            workload_hash=workload_hash or build_workload(of, of.scenario.seed).hash,
            folder=str(store) if store else None,
            is_timed=is_timed,
        )
        serve(opening, lambda: next(commands), replies.append)
        return replies

    return run_arms


def finished(replies):
    return [reply for reply in replies if isinstance(reply, Finished)]


def test_a_run_is_recorded_stored_and_its_tokens_checked(run, folder):
    replies = run()
    assert [type(reply) for reply in replies] == [Opened, Progress, Finished]
    record = replies[-1].record
    assert record.status is Status.COMPLETED and record.tokens.num_right == 12 and record.num_requests == 3
    assert record.metrics["completed_requests"].value == 3 and record.num_steps == 3
    assert record.metrics["median_ttft_ms"].value >= 0
    loaded = load_run(folder.path)
    assert [r.num_tokens_right for r in loaded.request_records("r0")] == [4, 4, 4]
    assert len(loaded.step_records("r0")) == 3
    assert FakeDevice.num_closed == 1


def test_spans_are_stored_where_an_instrument_recorded_any_and_its_run_is_not_measured(run, folder):
    (plain,) = finished(run())
    assert (plain.record.instrument, plain.record.is_measured) == ("off", True)
    assert plain.record.clock_uncertainty_ns is None
    assert load_run(folder.path).spans("r0") == []
    (reply,) = finished(run(instrument="events"))
    assert (reply.record.instrument, reply.record.is_measured) == ("events", False)
    assert reply.record.clock_uncertainty_ns == 7
    assert load_run(folder.path).spans("r0") == [Span(0, "schedule", "host", 1, 2)]


def test_a_run_with_repeated_commands_says_so_and_is_not_measured(run):
    (reply,) = finished(run(repeats={"merge": 33}))
    assert FakeEngine.repeats_seen == [{"merge": 33}]
    assert (dict(reply.record.repeats), reply.record.is_measured) == ({"merge": 33}, False)


def test_a_run_that_looked_for_silent_waits_warns_of_them_and_is_not_measured(run):
    (plain,) = finished(run())
    assert (plain.record.sync_check, plain.record.warnings) == ("off", ())
    (reply,) = finished(run(sync_check="warn"))
    assert (reply.record.sync_check, reply.record.is_measured) == ("warn", False)
    (warning,) = reply.record.warnings
    assert warning.startswith("sample waits, in runner/kernels/program.py:Program._sample: on a GPU the host")
    assert warning.endswith("(2 times, first in step 3)")
    (failed,) = finished(run({1: "device"}, sync_check="error"))
    assert (failed.record.failure.kind, failed.record.warnings) == ("device", ())


def test_every_run_gets_a_fresh_engine_and_all_share_one_device_and_oracle(run):
    records = [reply.record for reply in finished(run(rounds=3))]
    assert [record.round for record in records] == [0, 1, 2]
    assert [record.metrics["completed_requests"].value for record in records] == [3, 3, 3]
    assert FakeOracle.num_made == 1 and FakeDevice.num_closed == 1


def test_a_request_that_fails_alone_is_recorded_and_the_others_go_on(run, folder):
    (reply,) = finished(run({1: "refuse"}))
    assert reply.record.status is Status.COMPLETED and not reply.is_leaving
    assert reply.record.metrics["failed_requests"].value == 1
    bad = load_run(folder.path).request_records("r0")[1]
    assert bad.error == "17 placeholders, 16 image tokens" and bad.num_tokens_right is None


def test_a_device_error_keeps_completed_requests_and_makes_the_worker_leave(run, folder):
    replies = run({2: "device"}, rounds=3)
    (reply,) = finished(replies)
    record = reply.record
    assert reply.is_leaving and record.status is Status.FAILED
    assert record.failure.kind == "device" and record.failure.message == "step 7, Forward: boom"
    assert record.failure.detail == "Traceback: x"
    assert record.metrics["completed_requests"].value == 2 and record.tokens.num_right == 8
    rows = load_run(folder.path).request_records("r0")
    assert [row.finish_reason for row in rows] == ["max_tokens", "max_tokens", "aborted"]


def test_a_device_that_is_gone_before_the_run_is_a_failed_run_too(run, monkeypatch):
    monkeypatch.setattr(FakeEngine, "fails_in_making", True)
    (reply,) = finished(run())
    assert reply.is_leaving and reply.record.failure.kind == "device"
    assert reply.record.metrics["completed_requests"].value == 0 and reply.record.num_requests == 3


def test_a_fault_of_the_program_is_a_failure_with_its_traceback(run):
    (reply,) = finished(run({1: "bug"}))
    assert reply.record.failure.kind == "error" and reply.record.failure.message == "IndexError: slot 99"
    assert "in serve" in reply.record.failure.detail and reply.is_leaving


def test_a_run_in_which_every_request_failed_is_failed_and_says_why(run):
    (reply,) = finished(run(dict.fromkeys(range(3), "refuse")))
    assert reply.record.status is Status.FAILED
    assert reply.record.failure.message == "no request completed: 17 placeholders, 16 image tokens"
    assert reply.record.tokens is None
    assert not reply.is_leaving


def test_wrong_tokens_are_counted_and_shown_beside_what_was_expected(run, monkeypatch):
    monkeypatch.setattr(FakeOracle, "wrong", ("request-0001",))
    record = finished(run())[0].record
    assert record.tokens.num_wrong == 1 and record.tokens.first_wrong == ("request-0001", 2)
    assert any("request-0001" in note and "[5, 6]" in note and "[5, 9]" in note for note in record.notes)


def test_an_oracle_that_breaks_fails_the_run_but_keeps_its_times(run, monkeypatch):
    monkeypatch.setattr(FakeOracle, "check", lambda *_: 1 / 0)
    record = finished(run())[0].record
    assert record.status is Status.FAILED and "ZeroDivisionError" in record.failure.message
    assert record.metrics["completed_requests"].value == 3


def test_the_arm_gets_its_prompts_as_it_takes_them_and_its_decision_is_recorded(run, embeds_case, folder):
    (reply,) = finished(run(arm="sync-ids", of=embeds_case))
    assert {prompt.kind for prompt in FakeEngine.prompts_seen} == {"ids"}
    assert (reply.record.scheduling, reply.record.scheduling_reason) == ("sync", "asked for by sync-ids")
    assert [r.num_supplied_tokens for r in load_run(folder.path).request_records("r0")] == [0, 0, 0]
    FakeEngine.prompts_seen.clear()
    (reply,) = finished(run(arm="refresh", of=embeds_case))
    assert FakeEngine.arms_seen == ["sync-ids", "refresh"]
    assert sorted(prompt.kind for prompt in FakeEngine.prompts_seen) == ["ids", "pure", "pure"]
    assert sorted(r.num_supplied_tokens for r in load_run(folder.path).request_records("r0")) == [0, 4, 4]
    assert reply.record.metrics["supplied_tokens"].value == 8


def test_the_first_wrong_token_of_every_request_is_kept(run, monkeypatch, folder):
    monkeypatch.setattr(FakeOracle, "wrong", ("request-0000", "request-0002"))
    finished(run())
    records = load_run(folder.path).request_records("r0")
    assert [record.first_wrong for record in records] == [2, None, 2]
    assert [record.expected_ids for record in records] == [(5, 6), None, (5, 6)]
    assert [record.expected_from for record in records] == [0, None, 0]
    assert [record.expected_texts for record in records] == [None, None, None]  # a preset: no tokenizer


@pytest.mark.parametrize("rotation", range(3))
def test_a_rotation_serves_the_token_case_in_its_order(run, rotation):
    (reply,) = finished(run(is_timed=False, store=None, rotation=rotation))
    names = [f"request-{(index + rotation) % 3:04d}" for index in range(3)]
    assert FakeEngine.names_seen == names
    assert reply.record.rotation == rotation and reply.record.num_requests == 3
    assert not reply.record.is_control and reply.record.predicts_wrong is None


def test_a_negative_control_records_what_its_flags_predict(run, embeds_case, monkeypatch):
    records = [
        finished(run(is_timed=False, store=None, rotation=0, arm=arm, of=embeds_case))[0].record
        for arm in ("stale", "async/all/with-ids/none")
    ]
    assert [record.is_control for record in records] == [True, True]
    assert records[1].predicts_wrong is True and records[0].predicts_wrong is not None
    for early in ("eos", "stop"):
        replies = run({0: early}, is_timed=False, store=None, rotation=0, arm="stale", of=embeds_case)
        assert finished(replies)[0].record.predicts_wrong is None  # an early end changes the steps


def made(tmp_path, *overrides):
    file = tmp_path / "made.yaml"
    file.write_text(SCENARIO)
    return make_plan([file], Options(overrides=overrides)).cases[0].case


def test_what_the_cache_and_the_drafts_gave_is_recorded_and_measured_where_they_are_on(run, folder, tmp_path):
    on = made(tmp_path, "runner.prefix_caching=true", "runner.num_speculative_tokens=3")
    record = finished(run(of=on))[0].record
    (first, *_) = load_run(folder.path).request_records("r0")
    assert (first.num_cached_tokens, first.num_drafted_tokens, first.num_accepted_tokens) == (2, 3, 1)
    assert record.metrics["prefix_cache_hit_rate"].value == 50
    assert record.metrics["acceptance_rate"].value == pytest.approx(100 / 3)
    assert finished(run())[0].record.metrics["prefix_cache_hit_rate"].reason == "prefix caching is off"


def test_whether_prompts_were_meant_to_begin_alike_is_recorded_and_hits_without_it_are_invalid(run, tmp_path):
    record = finished(run(of=made(tmp_path, "runner.prefix_caching=true")))[0].record
    (found,) = [one for one in check_run(record, [], []) if one.rule == "cache-hits"]
    assert "the prefix cache gave 50.0 % of prompt positions" in found.message
    shared = "traffic.shared_prefix={groups: 1, tokens: 2}"
    record = finished(run(of=made(tmp_path, "runner.prefix_caching=true", shared)))[0].record
    assert record.begins_alike and not [one for one in check_run(record, [], []) if one.rule == "cache-hits"]
    assert finished(run())[0].record.begins_alike is False


def test_how_the_images_of_a_model_attend_is_recorded(run, tmp_path):
    assert finished(run())[0].record.image_attention is None
    images = made(tmp_path, "model=tiny-gemma3-vl")
    assert finished(run(of=images))[0].record.image_attention == "causal"
    both_ways = made(tmp_path, "model=tiny-gemma3-vl", "image_attention=bidirectional")
    assert finished(run(of=both_ways))[0].record.image_attention == "bidirectional"


def test_what_the_cores_did_meanwhile_is_recorded_and_of_a_gpu_nothing_where_there_is_none(run):
    record = finished(run())[0].record
    assert record.cpu.wall_s > 0 and record.cpu.num_cores >= 1 and record.gpu is None
    assert not any("GPU" in note for note in record.notes)


def test_what_should_settle_is_recorded_of_a_timed_run_only(run, tmp_path):
    long = made(tmp_path, "traffic.num_requests=50", "traffic.arrivals.rate=5000")
    assert finished(run(of=long))[0].record.settles == "queue"
    assert finished(run(of=long, is_timed=False))[0].record.settles is None
    assert finished(run())[0].record.settles is None


def test_log_probabilities_are_kept_and_checked_where_they_were_asked_for(run, folder, tmp_path):
    assert finished(run())[0].record.logprobs is None
    assert load_run(folder.path).request_records("r0")[0].logprobs is None
    asked = made(tmp_path, "traffic.sampling.logprobs=0")
    found = finished(run(of=asked))[0].record.logprobs
    assert (found.num_checked, found.num_wrong, found.max_error) == (12, 0, 0)
    assert load_run(folder.path).request_records("r0")[0].logprobs == (-2.5,) * 4
    found = finished(run({1: "odd-logprob"}, of=asked))[0].record.logprobs
    assert (found.num_wrong, found.max_error, found.first_wrong) == (4, 0.5, ("request-0001", 0))


def test_the_engine_gets_the_sampling_of_the_scenario(run, tmp_path, monkeypatch):
    seen = []
    serve_one = FakeEngine.serve
    monkeypatch.setattr(
        FakeEngine, "serve", lambda self, request: (seen.append(request), serve_one(self, request))
    )
    run(of=made(tmp_path, "traffic.sampling={temperature: 0.7, stop_token_ids: [9]}"))
    assert {(one.sampling.temperature, one.sampling.stop_token_ids) for one in seen} == {(0.7, (9,))}
    assert len({one.sampling.seed for one in seen}) == 3


def test_a_workload_that_changed_since_the_plan_is_refused(run):
    (reply,) = run(workload_hash="another")
    assert isinstance(reply, Refused) and "has changed" in reply.failure.message


def test_a_folder_that_cannot_be_written_is_told_as_such(run, tmp_path):
    replies = run(rounds=2, store=tmp_path / "nowhere")
    assert isinstance(replies[-1], StorageFailed) and "nowhere" in replies[-1].message
    assert FakeDevice.num_closed == 1


def test_a_check_stores_nothing_and_waits_for_no_arrival(run, folder):
    (reply,) = finished(run(is_timed=False, store=None))
    assert reply.record.tokens.num_right == 12
    assert not list((folder.path / "steps").iterdir())


def test_messages_survive_the_pipe(case):
    opening = OpenCase(
        case=pack_case(case), seed=3, device="inline", workload_hash="x", folder=None, is_timed=True
    )
    assert read_command(opening.line()) == opening
    progress = Progress(phase="run", num_steps=3)
    assert read_reply(progress.line()) == progress
    assert opening.line().count(b"\n") == 1


# Arrivals


class Clock:
    """A clock that sleeping moves, late by `late_ns` each time."""

    def __init__(self, late_ns=0):
        self.now = 1_000
        self.late_ns = late_ns

    def read(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += round(seconds * 1e9) + self.late_ns


class Due:
    def __init__(self, arrival_s):
        self.arrival_s = arrival_s
        self.request = arrival_s


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40).map(sorted), st.integers(0, 5_000_000))
def test_every_request_is_handed_out_once_in_order_and_never_early(times, late_ns):
    clock = Clock(late_ns)
    arrivals = ScheduledArrivals([Due(at) for at in times], True, clock.read, clock.sleep)
    arrivals.start()
    got = []
    while True:
        for request in arrivals.due():
            assert clock.now >= arrivals.scheduled_ns(len(got))
            got.append(request)
        if not arrivals.wait():
            break
    assert got == times


def test_late_sleeps_do_not_add_up():
    clock = Clock(late_ns=100_000)
    arrivals = ScheduledArrivals([Due(i / 200) for i in range(2000)], True, clock.read, clock.sleep)
    arrivals.start()
    while arrivals.wait():
        arrivals.due()
    assert clock.now - arrivals.start_ns < 9.995e9 + 200_000


def test_an_untimed_run_gets_everything_at_once():
    arrivals = ScheduledArrivals([Due(0.0), Due(50.0)], False)
    arrivals.start()
    assert len(arrivals.due()) == 2 and not arrivals.wait()


@pytest.mark.parametrize(
    ("arrivals", "limit"),
    [
        ("{kind: closed_loop, concurrency: 1}", None),
        ("{kind: constant, rate: 200, max_concurrency: 1}", 1),
    ],
)
def test_a_run_knows_when_requests_ended(run, tmp_path, arrivals, limit):
    """Otherwise no second one would ever be sent."""
    file = tmp_path / "paced.yaml"
    file.write_text(SCENARIO.replace("{kind: constant, rate: 200}", arrivals))
    _, *_, finished = run(of=make_plan([file], Options()).cases[0].case)
    assert finished.record.status is Status.COMPLETED
    assert finished.record.num_requests == 3 and finished.record.max_concurrency == limit


# The real process


def start_worker(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", "from suite.worker import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd=tmp_path,
    )


def test_the_end_of_its_input_ends_the_worker_whatever_it_is_doing(tmp_path):
    worker = start_worker(tmp_path)
    _, errors = worker.communicate(timeout=60)
    assert worker.returncode == 1, errors


def test_closing_ends_the_worker_with_zero_and_refusals_come_on_its_own_stream(tmp_path, case):
    worker = start_worker(tmp_path)
    opening = OpenCase(
        case=pack_case(case), seed=0, device="no-such", workload_hash="x", folder=None, is_timed=True
    )
    output, errors = worker.communicate(opening.line() + Close().line(), timeout=60)
    assert worker.returncode == 0, errors
    assert json.loads(output)["type"] == "refused"
