"""SIGINT under every command that takes long: the first keeps what there is, the second ends it at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from nursery import Nursery

ROOT = Path(__file__).resolve().parents[2]

SCENARIO = """\
name: faults
model: tiny-qwen3
traffic: {num_requests: 2, prompt_tokens: 4, output_tokens: 4}
rounds: 3
warmup_rounds: 0
timeout_s: 60
"""
RUN = ("run", "faults.yaml", "-o", "results", "--device", "inline", "--instrument", "off")
COST = ("cost", "faults.yaml", "-o", "results", "--device", "inline")
CHECK = ("check", "faults.yaml", "--device", "inline")


@pytest.fixture
def nursery(tmp_path):
    (tmp_path / "faults.yaml").write_text(SCENARIO)
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.close()


def hanging(nursery, arguments, run):
    """A command whose run of that name hangs, once it does."""
    pid = nursery.start(*arguments, actions={run: "hang"})
    nursery.wait_until(lambda: any(name.endswith(f"-{run}") for _, name in nursery.acks()), "run that hangs")
    time.sleep(0.2)
    return pid


@pytest.mark.parametrize(
    ("arguments", "run"), [(RUN, "r1"), (COST, "aw0"), (CHECK, "k1")], ids=["run", "cost", "check"]
)
def test_the_first_sigint_keeps_what_there_is_and_ends_with_130(nursery, arguments, run):
    pid = hanging(nursery, arguments, run)
    assert nursery.kill(pid, signal.SIGINT) == 130, nursery.said
    assert "Traceback" not in nursery.said
    for folder in (nursery.folder / "results").glob("*"):
        assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
        assert (folder / "report.html").stat().st_size > 0


KEPT = "stopped at once: what was measured is kept in {folder}; "
LAST_WORDS = [
    (RUN, "r1", KEPT + "finish it with: python -m suite run --resume {folder}"),
    (COST, "aw0", KEPT + "a bill cannot be resumed: start suite cost again"),
    (CHECK, "k1", "stopped at once: a check keeps nothing"),
]


@pytest.mark.parametrize(("arguments", "run", "words"), LAST_WORDS, ids=["run", "cost", "check"])
def test_the_second_sigint_ends_it_at_once_and_its_worker_too(nursery, arguments, run, words):
    """Between the two a worker that does not listen to anything is being ended."""
    pid = hanging(nursery, arguments, run)
    children = psutil.Process(pid).children(recursive=True)
    assert children
    os.kill(children[0].pid, signal.SIGSTOP)  # so that the first signal alone would take its time
    os.kill(pid, signal.SIGINT)
    time.sleep(0.05)  # or the two would be one
    os.kill(pid, signal.SIGINT)
    assert nursery.wait(pid) == 130
    with suppress(psutil.NoSuchProcess):
        children[0].resume()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    folder = next((Path("results") / path.name for path in (nursery.folder / "results").glob("*")), None)
    assert nursery.said.splitlines()[-1] == words.format(folder=folder)
    if "--resume" in words:
        assert nursery.run(*nursery.said.split("python -m suite ")[-1].split()) == 0, nursery.said


def test_a_bill_of_nothing_says_so_and_ends_with_code_one(nursery):
    """The fake worker records no spans: there is nothing to repeat."""
    assert nursery.run(*COST) == 1, nursery.said
    assert "nothing was measured" in nursery.said and "Traceback" not in nursery.said
    (folder,) = (nursery.folder / "results").iterdir()
    assert json.loads((folder / "cost.json").read_text())["bills"] == []


@pytest.mark.parametrize("count", [1, 2])
def test_sigint_under_micro_ends_it_with_130_and_leaves_no_process(tmp_path, count):
    process = subprocess.Popen(
        [sys.executable, "-m", "suite", "micro", "--only", "ceilings", "--fresh", "--device", "inline"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children = []
    deadline = time.monotonic() + 120
    while not children and time.monotonic() < deadline:
        time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
    time.sleep(0.3)
    for _ in range(count):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _, errors = process.communicate(timeout=60)
    # A second one that comes when all is done ends Python itself by the signal: 130 to a shell as well.
    assert process.returncode == 130 or (count == 2 and process.returncode == -signal.SIGINT)
    assert "Traceback" not in errors, errors
    _, alive = psutil.wait_procs(children, timeout=30)
    assert children and not alive
