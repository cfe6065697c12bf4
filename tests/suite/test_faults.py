"""Kills and interrupts of real processes: nothing hangs, nothing is left over, finished runs are readable."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from suite.publish import publish
from suite.record import Status
from suite.store import RUNS, load_run

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120

SCENARIO = """\
name: faults
model: tiny-qwen3
runner: {max_model_len: 64, num_blocks: 64}
traffic: {num_requests: 4, prompt_tokens: 8, output_tokens: 8}
rounds: 500
warmup_rounds: 0
"""

FAKE_SUITE = """
import sys
from pathlib import Path
from suite.experiment import Experiment, Stop
from suite.plan import Options, make_plan
from suite.progress import make_console, make_progress
from suite.store import RunFolder
file, results, fake, actions = sys.argv[1:]
plan = make_plan([Path(file)], Options(device="inline"))
folder = RunFolder.create(Path(results), "faults")
folder.write_config(plan.document())
stop = Stop()
with stop.on_interrupt(), make_progress(make_console(sys.stderr), plan) as progress:
    Experiment(plan, folder.path, progress, stop, folder.append_run, lambda device: None,
               worker_command=(sys.executable, "-P", fake, actions)).run()
"""


def wait_until(condition, process, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, f"the suite ended before {what}: {process.stderr.read()}"
        assert time.monotonic() < deadline, f"no {what} in {PATIENCE_S} s"
        time.sleep(0.02)


def family(process):
    """The living descendants, deepest generations included."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def assert_gone(processes):
    def living():
        return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):
            if not living():
                return
        time.sleep(0.05)
    raise AssertionError(f"left over: {[(p.pid, p.cmdline()) for p in living()]}")


def is_device(process):
    """A device is forked by the fork server, so its parent is one, and so reads its own command line."""
    with contextlib.suppress(psutil.Error):
        parent = process.parent()
        return parent is not None and any("forkserver" in word for word in parent.cmdline())
    return False


@pytest.fixture
def start(tmp_path):
    """Start a suite in tmp_path; whatever happens, none of it outlives the test."""
    file = tmp_path / "faults.yaml"
    file.write_text(SCENARIO)
    started = []

    def start_suite(*command):
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_suite
    for process in started:
        left = family(process)
        for item in (process, *left):
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                item.kill()
        process.communicate()


def run_command(*options):
    return ("-m", "suite", "run", "faults.yaml", "-o", "results", *options)


def folder_of(tmp_path):
    folders = list((tmp_path / "results").glob("*"))
    return folders[0] if folders else None


def num_lines(tmp_path):
    folder = folder_of(tmp_path)
    path = folder / RUNS if folder else None
    return path.read_bytes().count(b"\n") if path and path.exists() else 0


def assert_readable(folder, at_least):
    """Finished runs are whole, their tables too, and a report of them can be made."""
    loaded = load_run(folder)
    assert len(loaded.runs) >= at_least and loaded.is_interrupted
    for run in loaded.runs:
        if run.status is Status.COMPLETED:
            assert run.tokens.is_right
            assert len(loaded.request_records(run.run_id)) == run.num_requests
            assert len(loaded.step_records(run.run_id)) == run.num_steps
    assert publish(folder).is_interrupted
    assert (folder / "report.html").stat().st_size > 0


@pytest.mark.parametrize("delay_s", [0.4, 3.0], ids=["while starting", "while the device opens"])
def test_sigkill_of_the_suite_before_its_first_run_leaves_no_process(start, tmp_path, delay_s):
    suite = start(*run_command())
    wait_until(lambda: folder_of(tmp_path) is not None and family(suite), suite, "worker")
    time.sleep(delay_s)
    left = family(suite)
    suite.kill()
    suite.wait()
    assert_gone(left)


def test_sigkill_of_the_suite_in_a_run_leaves_no_process_and_all_finished_runs(start, tmp_path):
    suite = start(*run_command())
    wait_until(lambda: num_lines(tmp_path) >= 2, suite, "two finished runs")
    left = family(suite)
    assert any(is_device(process) for process in left)
    suite.kill()
    suite.wait()
    assert_gone(left)
    assert_readable(folder_of(tmp_path), at_least=2)


def test_sigkill_of_the_device_is_a_typed_failure_and_the_other_runs_go_on_until_sigint(start, tmp_path):
    suite = start(*run_command("--json"))
    wait_until(lambda: num_lines(tmp_path) >= 1, suite, "a finished run")
    (device,) = filter(is_device, family(suite))
    device.kill()
    wait_until(lambda: "failed" in statuses(tmp_path), suite, "the failed run")
    wait_until(lambda: statuses(tmp_path)[-1] == "completed", suite, "a run of the fresh worker")
    left = family(suite)
    suite.send_signal(signal.SIGINT)
    output, errors = suite.communicate(timeout=PATIENCE_S)
    assert suite.returncode == 130, errors
    assert '"status": "interrupted"' in output
    assert_gone(left)
    folder = folder_of(tmp_path)
    failed = [run for run in load_run(folder).runs if run.status is Status.FAILED]
    assert [run.failure.kind for run in failed] == ["device"]
    # Completed where the signal came between two runs: what is interrupted then is the experiment.
    assert load_run(folder).runs[-1].status in (Status.INTERRUPTED, Status.COMPLETED)
    assert_readable(folder, at_least=3)


def statuses(tmp_path):
    return [run.status.value for run in load_run(folder_of(tmp_path)).runs]


def fake_suite(tmp_path, actions="{}"):
    fake = Path(__file__).parent / "fake_worker.py"
    return ("-c", FAKE_SUITE, tmp_path / "faults.yaml", tmp_path / "results", fake, actions)


@pytest.mark.parametrize("seed", range(4))
def test_sigkill_at_any_moment_of_many_short_runs_keeps_every_finished_one(start, tmp_path, seed):
    suite = start(*fake_suite(tmp_path))
    wait_until(lambda: num_lines(tmp_path) >= 1, suite, "a finished run")
    time.sleep(random.Random(seed).uniform(0, 0.3))
    left = family(suite)
    seen = num_lines(tmp_path)
    suite.kill()
    suite.wait()
    assert_gone(left)
    loaded = load_run(folder_of(tmp_path))
    assert len(loaded.runs) >= seen
    assert len({run.run_id for run in loaded.runs}) == len(loaded.runs)


def test_the_second_sigint_stops_at_once(start, tmp_path):
    stop = "import time\nfrom suite.experiment import Stop\nstop = Stop('it is kept')\n"
    stop += "with stop.on_interrupt():\n"
    suite = start("-c", stop + "    print('ready', flush=True)\n    time.sleep(600)\n    time.sleep(600)")
    assert suite.stdout.readline() == "ready\n"
    suite.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert suite.poll() is None
    suite.send_signal(signal.SIGINT)
    assert suite.wait(timeout=10) == 130
    assert suite.stderr.read() == "it is kept\n"


def test_sigint_in_a_run_that_hangs_ends_it_and_marks_it(start, tmp_path):
    suite = start(*fake_suite(tmp_path, '{"r2": "hang"}'))
    wait_until(lambda: num_lines(tmp_path) == 2, suite, "two finished runs")
    time.sleep(0.2)
    left = family(suite)
    suite.send_signal(signal.SIGINT)
    assert suite.wait(timeout=30) == 0, suite.stderr.read()
    assert_gone(left)
    assert statuses(tmp_path) == ["completed", "completed", "interrupted"]
