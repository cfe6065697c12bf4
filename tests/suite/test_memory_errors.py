"""Out of memory, as Python, numpy, torch and the system say it, is a failure of its own kind."""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from runner.config import RunnerConfig
from runner.core import DeviceError, Prompt, Request, SamplingParams
from runner.device.base import open_device
from runner.engine import Engine
from runner.models import TINY_QWEN3
from suite import memory_errors
from suite.memory_errors import OUT_OF_MEMORY, num_killed_for_memory, tells_out_of_memory
from suite.worker import _failure
from suite.worker_process import Deadline, WorkerGone, WorkerProcess

PETABYTE = 10**15


class Together:
    """Arrivals: all at once."""

    def __init__(self, requests):
        self._left = requests

    def due(self):
        due, self._left = self._left, []
        return due

    def wait(self):
        return False


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


def test_a_device_that_may_take_no_more_memory_says_so():
    """For real: the address space of the device's process is closed, and then a long prompt comes."""
    config = RunnerConfig(max_num_batched_tokens=2048, max_model_len=2048, num_blocks=256)
    with open_device("process", TINY_QWEN3, config) as device:
        serve_prompt(device, config, 8)
        pid = device._process.pid
        num_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        resource.prlimit(pid, resource.RLIMIT_AS, (num_pages * resource.getpagesize(),) * 2)
        with pytest.raises(DeviceError) as caught:
            serve_prompt(device, config, 2000)
    assert _failure(caught.value).kind == OUT_OF_MEMORY, caught.value.traceback_text


def serve_prompt(device, config, num_tokens):
    request = Request("a", Prompt((7,) * num_tokens), SamplingParams(2, ignore_eos=True))
    Engine(TINY_QWEN3, config, device).run(Together([request]))
