"""Out of memory, as Python, numpy, torch and the system say it, is a failure of its own kind."""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

# Kills and waits are those of the faults in real processes.
from test_faults import folder_of, is_device, num_lines, run_command, start, statuses, wait_until  # noqa: F401

from runner.core import DeviceError
from suite import memory_errors
from suite.memory_errors import OUT_OF_MEMORY, num_killed_for_memory, tells_out_of_memory
from suite.record import Status
from suite.store import load_run
from suite.worker import _failure
from suite.worker_process import Deadline, WorkerGone, WorkerProcess

PETABYTE = 10**15


def of_torch():
    import torch

    torch.empty(PETABYTE)


@pytest.mark.parametrize(
    "allocate",
    [lambda: bytearray(10 * PETABYTE), lambda: np.empty(PETABYTE), of_torch],
    ids=["python", "numpy", "torch"],
)
def test_an_allocation_that_fails_is_told_as_out_of_memory(allocate):
    with pytest.raises(Exception) as caught:
        allocate()
    failure = _failure(caught.value)
    assert failure.kind == OUT_OF_MEMORY and failure.detail
    on_device = DeviceError("step 3: forward failed on the device", 3, "forward", failure.detail)
    assert _failure(on_device).kind == OUT_OF_MEMORY


def test_other_failures_keep_their_kinds():
    assert _failure(RuntimeError("the shapes do not fit")).kind == "error"
    assert _failure(DeviceError("step 3: boom", 3, "forward", "Traceback: boom")).kind == "device"
    killed = _failure(DeviceError("the device process ended unexpectedly (signal 9)"))
    assert killed.kind == "device" and "as the system does where memory runs out" in killed.message
    assert not tells_out_of_memory("the memory of the cache is laid out anew")


def test_the_systems_count_of_killed_processes_is_read(tmp_path, monkeypatch):
    for text, count in (
        ("nr_free 7\noom_kill 3\nx 1\n", 3),
        ("nr_free 7\n", None),
        ("oom_kill many\n", None),
    ):
        (tmp_path / "vmstat").write_text(text)
        monkeypatch.setattr(memory_errors, "_COUNTS", tmp_path / "vmstat")
        assert num_killed_for_memory() == count
    monkeypatch.setattr(memory_errors, "_COUNTS", tmp_path / "none")
    assert num_killed_for_memory() is None


@pytest.mark.parametrize(("counts", "kind"), [((4, 5), OUT_OF_MEMORY), ((4, 4), "worker died")])
def test_a_killed_worker_ran_out_of_memory_where_the_system_counts_one_more(monkeypatch, counts, kind):
    remaining = list(counts)
    monkeypatch.setattr("suite.worker_process.num_killed_for_memory", lambda: remaining.pop(0))
    code = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    command = (sys.executable, "-c", code)
    with WorkerProcess(command, lambda: False) as worker, pytest.raises(WorkerGone) as gone:
        worker.receive(Deadline(30, "the run"))
    assert gone.value.failure.kind == kind and "memory" in gone.value.failure.message


def test_a_device_that_may_take_no_more_memory_fails_its_run_and_the_others_go_on(start, tmp_path):  # noqa: F811
    """For real: the address space of the device's process is closed while it serves."""
    file = tmp_path / "faults.yaml"
    file.write_text(
        "name: faults\nmodel: tiny-qwen3\nrunner: {max_model_len: 1024, num_blocks: 512}\n"
        "traffic: {num_requests: 4, prompt_tokens: 600, output_tokens: 4}\nrounds: 500\nwarmup_rounds: 0\n"
    )
    suite = start(*run_command("--json"))
    wait_until(lambda: num_lines(tmp_path) >= 1, suite, "a finished run")
    (device,) = filter(is_device, psutil.Process(suite.pid).children(recursive=True))
    now = Path(f"/proc/{device.pid}/statm").read_text().split()[0]
    resource.prlimit(device.pid, resource.RLIMIT_AS, (int(now) * resource.getpagesize(),) * 2)
    wait_until(lambda: "failed" in statuses(tmp_path), suite, "the failed run")
    wait_until(lambda: statuses(tmp_path)[-1] == "completed", suite, "a run of the fresh worker")
    suite.send_signal(signal.SIGINT)
    _, errors = suite.communicate(timeout=120)
    assert suite.returncode == 130, errors
    (failed,) = [run for run in load_run(folder_of(tmp_path)).runs if run.status is Status.FAILED]
    assert failed.failure.kind == OUT_OF_MEMORY, failed.failure
