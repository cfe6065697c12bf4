"""The order of runs, and what becomes of them when the worker misbehaves. Real processes, a fake worker."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from records import make_request, make_run

from runner.models import ALL_MODELS
from suite import experiment as experiment_module
from suite.errors import SuiteError
from suite.experiment import Experiment, Stop, exit_code
from suite.model_source import weight_bytes
from suite.plan import Options, make_plan
from suite.precision import Precision
from suite.record import Failure, LogprobVerdict, Status

FAKE = Path(__file__).parent / "fake_worker.py"
SCENARIO = """\
name: fake
model: tiny-qwen3
traffic: {num_requests: 2, prompt_tokens: 4, output_tokens: 4}
rounds: 3
warmup_rounds: 1
timeout_s: 20
"""


class Diary:
    """An observer that writes down what it is told, and may do something then."""

    def __init__(self, on_progress=lambda: None):
        self.started = []
        self.phases = []
        self.on_progress = on_progress

    def case_started(self, planned):
        self.started.append(planned.title)

    def run_started(self, planned, run):
        self.started.append(run.run_id.rpartition("-")[2])

    def run_progressed(self, run, progress):
        self.phases.append(progress.phase)
        self.on_progress()

    def run_finished(self, planned, record):
        self.started.append(record.status.value)


@pytest.fixture
def make(tmp_path):
    def make_experiment(
        actions=None,
        text=SCENARIO,
        diary=None,
        stop=None,
        keep=lambda record: None,
        arms=None,
        options=Options(device="inline"),  # noqa: B008
        done=(),
    ):
        file = tmp_path / "fake.yaml"
        file.write_text(text)
        plan = make_plan([file], options)
        if arms:
            plan = replace(plan, cases=tuple(replace(case, arms=arms) for case in plan.cases))
        return Experiment(
            plan,
            None,
            diary or Diary(),
            stop or Stop(),
            keep,
            lambda device: None,
            worker_command=(sys.executable, "-P", str(FAKE), json.dumps(actions or {})),
            done=done,
        )

    return make_experiment


def ends(records):
    return [record.run_id.rpartition("-")[2] for record in records]


def workers(records):
    return [note for record in records for note in record.notes if note.startswith("worker ")]


def test_warm_ups_come_first_are_marked_and_all_runs_share_one_worker(make):
    diary = Diary()
    records = make(diary=diary).run()
    assert ends(records) == ["w0", "r0", "r1", "r2"]
    assert [record.is_warmup for record in records] == [True, False, False, False]
    assert len(set(workers(records))) == 1
    assert diary.started[:3] == ["fake", "w0", "completed"]


def test_a_round_runs_every_arm_once_in_an_order_drawn_from_the_seed(make):
    arms = ("one", "two", "three", "four")
    records = make(arms=arms).run()
    rounds = [[r.arm for r in records[i : i + 4]] for i in range(0, 16, 4)]
    assert all(sorted(order) == sorted(arms) for order in rounds)
    assert len({tuple(order) for order in rounds}) > 1
    again = make(arms=arms).run()
    assert [r.arm for r in again] == [r.arm for r in records]
    other = make(arms=arms, text=SCENARIO + "seed: 1\n").run()
    assert [r.arm for r in other] != [r.arm for r in records]


def test_every_record_is_kept_before_the_next_run_starts(make):
    kept = []
    diary = Diary()
    experiment = make(diary=diary, keep=lambda record: kept.append((record.run_id, list(diary.started))))
    experiment.run()
    assert [len(started) for _, started in kept] == [2, 4, 6, 8]


def test_a_worker_that_dies_fails_its_run_with_its_last_words_and_the_others_go_on(make):
    records = make({"r1": "die"}).run()
    assert [record.status for record in records] == [
        Status.COMPLETED,
        Status.COMPLETED,
        Status.FAILED,
        Status.COMPLETED,
    ]
    failure = records[2].failure
    assert failure.kind == "worker died" and "SIGKILL" in failure.message
    assert "a last word on standard error" in failure.detail
    assert records[2].metrics["output_throughput"].reason == failure.message
    first, _, last = workers(records)
    assert first != last
    assert [record.warnings for record in records] == [(), (), (), (experiment_module.COLD,)]


def test_an_exit_code_is_told(make):
    records = make({"r0": "exit"}).run()
    assert records[1].failure.message == "the worker ended with exit code 7"


def test_a_worker_that_closes_its_output_is_a_failure_not_a_hang(make):
    records = make({"r0": "end-of-output"}).run()
    assert records[1].failure.kind == "worker died" and records[2].status is Status.COMPLETED


def test_a_run_that_hangs_is_ended_by_the_scenarios_timeout(make):
    records = make({"r0": "hang"}, text=SCENARIO.replace("timeout_s: 20", "timeout_s: 2.5")).run()
    assert records[1].failure.kind == "timeout"
    assert records[1].failure.message == "the run took longer than 2.5 s"
    assert [record.status for record in records[2:]] == [Status.COMPLETED] * 2


def test_checking_tokens_has_a_limit_of_its_own(make, monkeypatch):
    monkeypatch.setattr(experiment_module, "CHECK_TIMEOUT_S", 1.0)
    monkeypatch.setattr(experiment_module, "CHECK_OPERATIONS_PER_S", 1e15)
    records = make({"r0": "hang-in-check"}).run()
    assert records[1].failure.message == "checking the tokens took longer than 1 s"


def test_a_large_model_has_longer_to_open_and_long_traffic_longer_to_be_checked(make):
    def limits(text=SCENARIO, model="tiny-qwen3"):
        (planned,) = make(text=text)._plan.cases
        planned = replace(planned, weight_bytes=weight_bytes(ALL_MODELS[model], "float32"))
        return experiment_module._open_timeout_s(planned), experiment_module._check_timeout_s(planned)

    assert limits() == pytest.approx((300, 600), rel=0.01)
    many = "{num_requests: 1000, prompt_tokens: 4, output_tokens: 400}"
    long = SCENARIO.replace("{num_requests: 2, prompt_tokens: 4, output_tokens: 4}", many)
    opening_s, checking_s = limits(long)
    assert opening_s == limits()[0] and checking_s > 900
    opening_s, checking_s = limits(long, "gemma-3-12b")
    assert opening_s > 1_200 and checking_s > 600_000 / 2


def test_a_failure_in_a_run_keeps_what_the_worker_recorded_and_gets_a_fresh_worker(make):
    records = make({"r0": "fail"}).run()
    assert records[1].failure.kind == "device" and records[1].tokens.num_right == 8
    assert len(set(workers(records))) == 2


@pytest.mark.parametrize(("action", "kind"), [("refuse", "refused"), ("die", "worker died")])
def test_a_case_that_cannot_be_opened_fails_all_its_runs_after_one_try(make, action, kind):
    diary = Diary()
    records = make({"open": action}, diary=diary).run()
    assert len(records) == 4 and {record.failure.kind for record in records} == {kind}
    assert exit_code(records, False) == 1


def test_a_full_disk_in_the_worker_ends_the_experiment(make):
    kept = []
    with pytest.raises(SuiteError, match="No space left on device"):
        make({"r1": "storage"}, keep=kept.append).run()
    assert ends(kept) == ["w0", "r0"]


def test_no_child_of_a_dead_worker_is_left(make, monkeypatch):
    monkeypatch.setattr("suite.worker_process._GROUP_GRACE_S", 0.3)
    records = make({"r0": "leave-a-child"}).run()
    (child,) = re.findall(r"child (\d+)", records[1].failure.detail)
    assert not psutil.pid_exists(int(child)) or psutil.Process(int(child)).status() == psutil.STATUS_ZOMBIE


def test_stopping_marks_the_run_in_flight_and_starts_no_other(make):
    stop = Stop()
    records = make({"r1": "hang"}, diary=Diary(on_progress=stop.request), stop=stop).run()
    assert ends(records) == ["w0", "r0", "r1"]
    assert records[-1].status is Status.INTERRUPTED and records[-1].failure.kind == "interrupted"
    assert exit_code(records, stop.is_requested) == 130


def test_stopping_while_the_device_is_opened_does_not_wait_for_it(make):
    stop = Stop()
    timer = threading.Timer(1.0, stop.request)
    timer.start()
    assert make({"open": "say-nothing"}, stop=stop).run() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_and_leaves_the_handler_as_it_was(number):
    before = signal.signal(number, lambda *_: None)
    handler = signal.getsignal(number)
    stop = Stop()
    try:
        with stop.on_interrupt():
            os.kill(os.getpid(), number)
            assert stop.is_requested
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def test_a_hangup_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = Stop()
    try:
        with stop.on_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_exit_code_is_one_for_wrong_tokens_or_a_failed_run():
    fine = make_run([make_request()])
    wrong = make_run([make_request()], num_wrong=1)
    failed = make_run([], status=Status.FAILED, failure=Failure(kind="timeout", message="too long"))
    assert exit_code([], False) == 0 and exit_code([fine], False) == 0
    assert exit_code([fine, wrong], False) == 1
    control = make_run([make_request()], num_wrong=1, arm="stale", is_control=True)
    assert exit_code([fine, control], False) == 0
    assert exit_code([fine, failed], False) == 1
    assert exit_code([fine, failed], True) == 130
    odd = LogprobVerdict(num_checked=3, num_wrong=1, max_error=0.1)
    assert exit_code([fine.model_copy(update={"logprobs": odd})], False) == 1
    assert exit_code([control.model_copy(update={"logprobs": odd})], False) == 0


def test_every_case_of_a_sweep_gets_a_worker_and_run_ids_of_its_own(make):
    text = SCENARIO + "sweep: {runner.max_num_seqs: [2, 4]}\n"
    records = make(text=text).run()
    assert len(set(workers(records))) == 2
    assert len({record.run_id for record in records}) == len(records) == 8
    assert [record.case_label for record in records][::4] == ["max_num_seqs=2", "max_num_seqs=4"]


ADAPTIVE = Options(device="inline", arms=("sync-ids", "ids"), instrument="host", until=Precision(1.0, 0.001))


def test_a_spent_budget_ends_every_case_after_a_round_and_says_so(make):
    experiment = make(text=SCENARIO + "sweep: {runner.max_num_seqs: [2, 4]}\n", options=ADAPTIVE)
    records = experiment.run()
    assert sorted(ends(records)) == sorted(["w0", "w0", "r0", "r0", "aa0", "i0", "i0"] * 2)
    assert [record.arm for record in records if record.is_aa] == ["sync-ids"] * 2
    assert [text.partition(": after 1 round its share")[0] for text in experiment.stopped] == [
        "fake [max_num_seqs=2]",
        "fake [max_num_seqs=4]",
    ]


def test_a_case_that_cannot_be_opened_fails_no_more_rounds_than_there_must_have_been(make):
    records = make({"open": "refuse"}, options=replace(ADAPTIVE, until=Precision(1.0))).run()
    assert len([record for record in records if record.is_measured]) == 2 * 10


def test_runs_made_before_count_and_are_not_made_again_nor_kept_a_second_time(make):
    before = make().run()
    kept, diary = [], Diary()
    records = make(diary=diary, keep=kept.append, done=before[:3]).run()
    assert ends(records) == ["w0", "r0", "r1", "r2"] and ends(kept) == ["r2"]
    assert records[:3] == before[:3] and diary.started == ["fake", "r2", "completed"]


def test_a_case_of_which_nothing_is_left_opens_no_worker(make):
    before = make().run()
    assert make({"open": "refuse"}, done=before).run() == before


def test_isolated_runs_get_a_worker_each_but_those_that_replay_each_other_share_one(make):
    text = SCENARIO.replace("rounds: 3", "rounds: 1") + "isolation: process\n"
    records = make(text=text + "amplify: {upload.input_ids: [1, 9]}\n").run()
    repeated = [record for record in records if re.search(r"-a[wi]?[0-9]", record.run_id)]
    plain = [record for record in records if record not in repeated]
    assert len(set(workers(plain))) == len(plain) == 2
    assert len(set(workers(repeated))) == 1 and len(repeated) > 2


def test_a_run_of_which_nothing_came_back_says_what_it_was_to_compute_in(make):
    text = SCENARIO.replace("model: tiny-qwen3", "model: tiny-gemma3-vl\nimage_attention: bidirectional")
    for action in ("die", "hang"):
        records = make({"r0": action}, text=f"{text.replace('20', '2.5')}runner: {{dtype: bfloat16}}\n").run()
        lost = [record for record in records if record.failure]
        assert [record.dtype for record in lost] == ["bfloat16"]
        assert [record.image_attention for record in lost] == ["bidirectional"]
