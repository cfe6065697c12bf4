"""What is kept, counted: kills at any moment, a full disk, workers that crash, hang or run out of memory.

Real processes and the real command line; the worker is the fake one, so that a run takes milliseconds.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from contextlib import suppress

import pytest
from nursery import Nursery

from suite.publish import sum_up
from suite.store import RUNS, load_run

SCENARIO = """\
name: faults
model: tiny-qwen3
traffic: {num_requests: 2, prompt_tokens: 4, output_tokens: 4}
rounds: 5
warmup_rounds: 1
timeout_s: 60
"""
RUN = ("run", "faults.yaml", "--device", "inline", "--instrument", "off")
NUM_KILLS = 50


@pytest.fixture
def nursery(tmp_path):
    (tmp_path / "faults.yaml").write_text(SCENARIO)
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.close()


def only_folder(nursery):
    found = [path for path in (nursery.folder / "results").glob("*") if (path / "config.yaml").exists()]
    return found[0] if found else None


def ends(folder):
    return [run.run_id.rpartition("-")[2] for run in load_run(folder).runs]


def names(acks, word):
    return [name for said, name in acks if said == word]


def test_fifty_kills_at_any_moment_lose_at_most_the_run_in_flight_each_and_it_is_finished(nursery):
    (nursery.folder / "faults.yaml").write_text(SCENARIO.replace("rounds: 5", "rounds: 400"))
    draw, acknowledged, slow = random.Random(6), set(), {"run_s": 0.02}
    for number in range(NUM_KILLS):
        folder, acks = only_folder(nursery), f"acks{number}"
        arguments = (*RUN, "-o", "results") if folder is None else ("run", "--resume", folder)
        pid = nursery.start(*arguments, actions=slow, acks=acks)
        begin, after = time.monotonic(), draw.uniform(0.0, 1.5)
        if draw.random() < 0.7:  # among the runs, however long this machine takes to get there
            nursery.wait_until(lambda acks=acks: nursery.acks(acks), "run")
            begin, after = time.monotonic(), draw.uniform(0.0, 0.25)
        time.sleep(max(0.0, begin + after - time.monotonic()))
        assert nursery.kill(pid) == -signal.SIGKILL, nursery.said
        folder = only_folder(nursery)
        if folder is None:
            continue
        acks = nursery.acks(acks)
        started, kept = names(acks, "started"), names(acks, "kept")
        assert len(started) - len(kept) <= 1
        loaded = load_run(folder)
        found = {run.run_id for run in loaded.runs}
        again = {name for name in acknowledged if name.endswith("-w0")}  # warm-ups are made anew
        assert set(kept) | (acknowledged - again) <= found
        assert len(found) == len(loaded.runs) and not loaded.damaged
        assert len(found - set(kept) - acknowledged) <= 1  # kept just before the kill, and not yet told
        acknowledged = found
        if number % 10 == 9:
            assert sum_up(loaded, True).document["status"] == "interrupted"
    assert nursery.run("report", folder) == 0 and "interrupted" in nursery.said
    assert nursery.run("run", "--resume", folder) == 0, nursery.said
    loaded = load_run(folder)
    assert len(loaded.runs) == 401 and not loaded.is_interrupted and not loaded.warnings
    assert acknowledged <= {run.run_id for run in loaded.runs}
    assert not list(folder.rglob("*.tmp"))


def test_starts_in_the_same_second_get_folders_of_their_own(nursery):
    pids = [nursery.start(*RUN, "-o", "results", acks=f"acks{number}") for number in range(4)]
    assert [nursery.wait(pid) for pid in pids] == [0] * 4, nursery.said
    folders = list((nursery.folder / "results").iterdir())
    assert len(folders) == 4 and all(len(load_run(folder).runs) == 6 for folder in folders)


def test_two_that_resume_at_once_never_write_the_same_folder(nursery):
    pid = nursery.start(*RUN, "-o", "results", actions={"run_s": 0.1})
    nursery.wait_until(lambda: names(nursery.acks(), "kept"), "kept run")
    nursery.kill(pid)
    folder = only_folder(nursery)
    pids = [
        nursery.start("run", "--resume", folder, actions={"run_s": 0.1}, acks=f"acks{number}")
        for number in range(2)
    ]
    assert sorted(nursery.wait(pid) for pid in pids) == [0, 2]
    assert sorted(ends(folder)) == ["r0", "r1", "r2", "r3", "r4", "w0"]


def test_the_first_sigint_keeps_and_marks_the_second_stops_at_once(nursery):
    pid = nursery.start(*RUN, "-o", "results", actions={"r2": "hang"})
    nursery.wait_until(lambda: len(names(nursery.acks(), "started")) == 4, "run that hangs")
    time.sleep(0.2)
    assert nursery.kill(pid, signal.SIGINT) == 130, nursery.said
    folder = only_folder(nursery)
    runs = load_run(folder).runs
    assert [run.status.value for run in runs] == ["completed"] * 3 + ["interrupted"]
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    assert (folder / "report.html").stat().st_size > 0 and "interrupted" in nursery.said
    assert nursery.run("run", "--resume", folder) == 0, nursery.said
    assert sorted(ends(folder)) == ["r0", "r1", "r2", "r3", "r4", "w0"]


@pytest.fixture
def small_disk(nursery):
    """A disk of 600 kB, where one may be mounted; elsewhere no file may grow beyond 60 kB.

    The options that `start` needs, and what gives it room.
    """
    disk = nursery.folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    with suppress(OSError):
        if subprocess.run(mount, capture_output=True).returncode == 0:
            enlarge = ["mount", "-o", "remount,size=50m", str(disk)]
            yield {}, lambda: subprocess.run(enlarge, check=True)
            subprocess.run(["umount", "-l", str(disk)], check=True)
            return
    yield {"file_limit": 60_000}, lambda: None


def check_full_disk(nursery, options, give_room, words):
    (nursery.folder / "faults.yaml").write_text(SCENARIO.replace("rounds: 5", "rounds: 60"))
    assert nursery.run(*RUN, "-o", "disk", **options) == 2, nursery.said
    assert "error: cannot write" in nursery.said and "Traceback" not in nursery.said
    assert any(word in nursery.said for word in words) and "what was written before is kept" in nursery.said
    (folder,) = (nursery.folder / "disk").iterdir()
    kept = names(nursery.acks(), "kept")
    loaded = load_run(folder)
    assert kept and [run.run_id for run in loaded.whole_runs] == kept
    assert not any("cut short" in text for text in loaded.warnings)
    give_room()
    assert nursery.run("report", folder) == 0, nursery.said
    assert nursery.run("run", "--resume", folder) == 0, nursery.said
    assert len(load_run(folder).whole_runs) == 61


def test_a_disk_that_fills_up_is_told_keeps_every_run_and_can_be_gone_on_with(nursery, small_disk):
    check_full_disk(nursery, *small_disk, words=("No space left on device", "File too large"))


def test_a_file_that_may_not_grow_is_told_like_a_full_disk(nursery):
    (nursery.folder / "disk").mkdir()
    check_full_disk(nursery, {"file_limit": 60_000}, lambda: None, words=("File too large",))


WORKER_FAULTS = {
    "segfault": ("worker died", "the worker was ended by SIGSEGV", "about to read where nothing is"),
    "die": ("worker died", "SIGKILL (as the system does where memory runs out)", "a last word"),
    "exit": ("worker died", "the worker ended with exit code 7", ""),
    "run-out-of-memory": ("out of memory", "it ran out of memory", "MemoryError"),
    "hang": ("timeout", "the run took longer than 8 s", ""),
}


def test_workers_that_crash_hang_or_run_out_of_memory_are_typed_failures_and_the_others_go_on(nursery):
    """All in one experiment: each costs its own run, and a fresh worker makes the next."""
    actions = dict(zip(("r0", "r1", "r2", "r3", "r4"), WORKER_FAULTS, strict=True))
    text = SCENARIO.replace("rounds: 5", "rounds: 7").replace("timeout_s: 60", "timeout_s: 8")
    (nursery.folder / "faults.yaml").write_text(text)
    assert nursery.run(*RUN, "-o", "results", actions=actions) == 1, nursery.said
    runs = load_run(only_folder(nursery)).runs
    assert [run.status.value for run in runs] == ["completed"] + ["failed"] * 5 + ["completed"] * 2
    for run, (kind, message, tail) in zip(runs[1:6], WORKER_FAULTS.values(), strict=True):
        assert run.failure.kind == kind and message in run.failure.message and tail in run.failure.detail
    page = (only_folder(nursery) / "report.html").read_text(encoding="utf-8")
    assert "about to read where nothing is" in page and "out of memory" in page


def test_with_isolation_every_run_has_a_worker_of_its_own_and_the_notes_say_so(nursery):
    (nursery.folder / "faults.yaml").write_text(SCENARIO + "isolation: process\n")
    assert nursery.run(*RUN, "-o", "results") == 0, nursery.said
    folder = only_folder(nursery)
    runs = load_run(folder).runs
    workers = [note for run in runs for note in run.notes if note.startswith("worker ")]
    assert len(set(workers)) == len(runs) == 6
    assert "isolation: process" in (folder / "config.yaml").read_text()
    config = load_run(folder)
    assert any("fresh process" in note for case in config.cases for note in case["notes"])


# ---- files that a kill, a disk or a person cut short

DAMAGE = {
    "runs.jsonl": "runs.jsonl, line 6: cut short, left out",
    "config.yaml": "config.yaml",
    "environment.json": "environment.json cannot be read",
    "summary.json": "summary.json cannot be read",
    "steps/*-r2.parquet": "steps/",
    "requests/*-r2.parquet": "requests/",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run to be damaged."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "faults.yaml").write_text(SCENARIO)
    nursery = Nursery(folder)
    assert nursery.run(*RUN, "-o", "results") == 0, nursery.said
    yield nursery
    nursery.close()


@pytest.mark.parametrize("share", [0.0, 0.45, 0.98])
@pytest.mark.parametrize("pattern", DAMAGE)
def test_a_file_cut_short_is_told_by_name_and_all_the_rest_is_shown(finished, pattern, share):
    (folder,) = (finished.folder / "results").glob("*")
    (file,) = folder.glob(pattern)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    try:
        loaded = load_run(folder)
        told = [*loaded.warnings, *loaded.damaged.values()]
        if pattern == "runs.jsonl":
            lines = content[: int(len(content) * share)].count(b"\n")
            assert len(loaded.runs) == lines
            assert share == 0 or any(f"line {lines + 1}: cut short, left out" in text for text in told)
        else:
            assert len(loaded.runs) == 6
        if pattern not in ("runs.jsonl", "config.yaml"):
            assert [text for text in told if DAMAGE[pattern] in text], told
        assert finished.run("report", folder) == 0, finished.said
        assert "Traceback" not in finished.said and (folder / "report.html").stat().st_size > 10_000
        findings = json.loads((folder / "summary.json").read_text())["findings"]
        about_tables = [finding for finding in findings if finding["rule"] == "tables-damaged"]
        assert len(about_tables) == (pattern.startswith(("steps", "requests"))), findings
    finally:
        file.write_bytes(content)


def test_damaged_spans_cost_the_figures_made_of_them_alone(finished):
    (folder,) = (finished.folder / "results").glob("*")
    lines = (folder / RUNS).read_bytes().splitlines()
    record = json.loads(lines[3]) | {"run_id": "spanned", "instrument": "events"}
    before = (folder / RUNS).read_bytes()
    (folder / RUNS).write_bytes(before + json.dumps(record).encode() + b"\n")
    for kind in ("steps", "requests"):
        (source,) = (folder / kind).glob("*-r2.parquet")
        (folder / kind / "spanned.parquet").write_bytes(source.read_bytes())
    (folder / "spans" / "spanned.parquet").write_bytes(b"PAR1 and no more")
    try:
        assert finished.run("report", folder) == 0, finished.said
        (arm,) = json.loads((folder / "summary.json").read_text())["arms"]
        assert "spans/spanned.parquet" in arm["step_costs"]["reason"] and arm["num_rounds"] == 5
    finally:
        (folder / RUNS).write_bytes(before)
