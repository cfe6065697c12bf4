"""The device process: it may die at any moment, and so may its parent; nobody hangs, nothing is left."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from runner.commands import OUTPUT_READY, UPLOADS_DONE, Download, Record, Upload
from runner.config import RunnerConfig
from runner.core import DeviceError, RunnerError
from runner.device import process
from runner.device.base import Device, open_device
from runner.models import TINY_QWEN3

CONFIG = RunnerConfig(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=16, block_size=4, num_blocks=8)
PATIENCE_S = 30  # far below the device's own timeout, far above what a loaded machine needs


def descendants() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def is_gone(pid: int) -> bool:
    """True also for a zombie: it runs no more, and only its parent can bury it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there after {PATIENCE_S} s"
        time.sleep(0.02)


def open_with_pid() -> tuple[Device, int]:
    """A process device and its child's process id."""
    warm_up()
    before = descendants()
    device = open_device("process", TINY_QWEN3, CONFIG)
    (pid,) = descendants() - before
    return device, pid


def warm_up() -> None:
    """Have the processes that all devices share started, so that a new process is the device's own."""
    open_device("process", TINY_QWEN3, CONFIG).close()


@pytest.fixture
def device_and_pid() -> Iterator[tuple[Device, int]]:
    device, pid = open_with_pid()
    with device:
        yield device, pid


def test_the_device_is_another_process_and_ends_when_closed() -> None:
    device, pid = open_with_pid()
    assert pid != os.getpid()
    assert not is_gone(pid)
    device.close()
    assert is_gone(pid)


def test_the_host_half_of_a_process_device_never_loads_torch() -> None:
    code = (
        "import sys\n"
        "import runner.engine, runner.device.process\n"
        "assert 'numpy' in sys.modules\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S).returncode == 0


def test_a_killed_child_is_noticed_by_the_wait_under_way(device_and_pid: tuple[Device, int]) -> None:
    device, pid = device_and_pid
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            device.wait(OUTPUT_READY, 0)  # nothing was executed: nothing will ever record it
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    time.sleep(0.1)
    assert waiting.is_alive()
    os.kill(pid, signal.SIGKILL)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive(), "the wait hangs although the child is dead"
    assert isinstance(errors[0], DeviceError)
    assert "signal 9" in str(errors[0])


def test_a_child_killed_between_steps_is_noticed_by_the_next_one(
    device_and_pid: tuple[Device, int],
) -> None:
    device, pid = device_and_pid
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    started = time.monotonic()
    with pytest.raises(DeviceError, match="signal 9"):
        device.execute(0, [Record(OUTPUT_READY)])
        device.wait(OUTPUT_READY, 0)
    with pytest.raises(DeviceError, match="signal 9"):
        device.execute(1, [Record(OUTPUT_READY)])
    assert time.monotonic() - started < PATIENCE_S


def test_a_reset_of_a_killed_child_is_a_typed_error(device_and_pid: tuple[Device, int]) -> None:
    device, pid = device_and_pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match="signal 9"):
        device.reset()


def test_a_device_whose_child_was_killed_closes_and_another_can_be_opened(
    device_and_pid: tuple[Device, int],
) -> None:
    device, pid = device_and_pid
    os.kill(pid, signal.SIGKILL)
    device.close()
    assert is_gone(pid)
    with open_device("process", TINY_QWEN3, CONFIG) as another:
        another.execute(0, [Record(OUTPUT_READY)])
        another.wait(OUTPUT_READY, 0)


def test_a_child_that_does_not_answer_is_stopped_by_close(
    device_and_pid: tuple[Device, int],
) -> None:
    device, pid = device_and_pid
    os.kill(pid, signal.SIGSTOP)
    device.close()
    assert is_gone(pid)


def test_no_wait_is_for_ever(device_and_pid: tuple[Device, int], monkeypatch: pytest.MonkeyPatch) -> None:
    device, _ = device_and_pid
    monkeypatch.setattr(process, "_WAIT_TIMEOUT_S", 0.3)
    device.execute(0, [Record(UPLOADS_DONE)])
    device.wait(UPLOADS_DONE, 0)
    with pytest.raises(DeviceError, match=r"no 'output' event of step 0"):
        device.wait(OUTPUT_READY, 0)
    with pytest.raises(DeviceError):
        device.execute(1, [Record(OUTPUT_READY)])


def test_a_stopped_child_is_a_timeout_not_a_hang(
    device_and_pid: tuple[Device, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, pid = device_and_pid
    monkeypatch.setattr(process, "_WAIT_TIMEOUT_S", 0.3)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(DeviceError, match="reset"):
            device.reset()
    finally:
        os.kill(pid, signal.SIGCONT)


def test_an_error_at_start_is_typed_and_leaves_nothing() -> None:
    warm_up()
    before, files = descendants(), num_open_files()
    broken = dataclasses.replace(TINY_QWEN3, family="unheard-of")
    for _ in range(2):
        try:
            open_device("process", broken, CONFIG)
        except DeviceError as error:
            assert "unheard-of" in str(error)
            assert "Traceback" in error.traceback_text
        else:
            raise AssertionError("a device without a model was opened")
    for pid in descendants() - before:
        wait_until_gone(pid)
    assert num_open_files() == files


def num_open_files() -> int:
    """Open descriptors, once everything unreachable is collected (a mapping lives as long as its arrays)."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_cannot_be_had_here_is_told_in_its_own_words_and_leaves_nothing() -> None:
    warm_up()
    before = descendants()
    wanted = dataclasses.replace(CONFIG, attention="varlen")
    with pytest.raises(RunnerError) as caught:
        open_device("process", TINY_QWEN3, wanted)
    assert not isinstance(caught.value, DeviceError)
    assert str(caught.value).startswith("runner.attention is 'varlen', but FlashAttention runs on a GPU")
    assert descendants() == before


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_opening_and_closing_leaves_no_file_open() -> None:
    warm_up()
    before = num_open_files()
    for _ in range(5):
        with open_device("process", TINY_QWEN3, CONFIG) as device:
            device.execute(0, [Record(OUTPUT_READY)])
            device.wait(OUTPUT_READY, 0)
    del device
    assert num_open_files() == before


def test_more_events_than_the_wake_pipe_holds_are_harmless(
    device_and_pid: tuple[Device, int],
) -> None:
    """Nobody reads the pipe while events are found by spinning; it may fill up."""
    device, _ = device_and_pid
    for step_id in range(40):
        device.execute(step_id, [Record(OUTPUT_READY)] * 2000)
        device.wait(OUTPUT_READY, step_id)


def test_the_child_reads_a_buffer_when_the_copy_runs(device_and_pid: tuple[Device, int]) -> None:
    """Host buffers are shared, not sent along: what is written before the copy runs is what arrives."""
    device, pid = device_and_pid
    device.host["input_ids"][:] = 1
    os.kill(pid, signal.SIGSTOP)
    device.execute(0, [Upload("input_ids", 0, 0, 8)])
    device.host["input_ids"][:] = 2
    os.kill(pid, signal.SIGCONT)
    device.execute(1, [Download("input_ids", 8), Record(OUTPUT_READY)])
    device.wait(OUTPUT_READY, 1)
    assert device.host["input_ids"].tolist() == [2] * 8


PARENT = """
import sys, time
import psutil
from runner.commands import OUTPUT_READY, Record
from runner.config import RunnerConfig
from runner.device.base import open_device
from runner.models import TINY_QWEN3

if __name__ == "__main__":
    device = open_device("process", TINY_QWEN3, RunnerConfig(num_blocks=8))
    device.execute(0, [Record(OUTPUT_READY)])
    device.wait(OUTPUT_READY, 0)
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL])
def test_no_process_outlives_a_killed_parent(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) >= 2  # the fork server and the device, perhaps a tracker
        assert not any(is_gone(pid) for pid in pids)
        parent.send_signal(number)
        for pid in pids:
            wait_until_gone(pid)
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()
