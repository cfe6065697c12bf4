"""The files of another commit, whether their worker can be used, and the two sides for real."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from compared_folders import experiment, write_folder
from test_cli import ROOT, assert_refused, invoke

from suite.baseline import checked_out, find_commit, protocol_faults, used_keys
from suite.child_environment import child_environment
from suite.compare_folders import side_of
from suite.compare_runs import compare_sides
from suite.environment import source_digest
from suite.errors import SuiteError
from suite.gate import Outcome, judge, read_limits
from suite.plan import Options, make_plan
from suite.store import load_run

TINY = """\
name: tiny
model: tiny-qwen3
runner: {max_num_seqs: 2, max_num_batched_tokens: 16, max_model_len: 32, num_blocks: 16}
traffic: {num_requests: 2, prompt_tokens: 4, output_tokens: 6}
arms: [sync-ids]
rounds: 5
warmup_rounds: 1
aa: true
"""
PLAN_STEP = "    def plan(self) -> StepPlan | None:\n"


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """This program's own files, in a repository of their own."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("runner", "suite"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "as it is")
    return folder


def scratch_folders() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("stepcost-baseline-*")}


def test_the_files_of_a_commit_are_there_while_they_are_needed_and_gone_afterwards(checkout):
    commit = git(checkout, "rev-parse", "HEAD")
    (checkout / "runner" / "core.py").write_text("changed since\n")
    before = scratch_folders()
    with checked_out("main", (), checkout) as baseline:
        assert (baseline.commit, baseline.own.commit, baseline.own.is_dirty) == (commit, commit, True)
        text = (baseline.root / "runner" / "core.py").read_text()
        assert text == (ROOT / "runner" / "core.py").read_text()
        assert {path.name for path in baseline.root.iterdir()} == {"runner", "suite"}
        command = [*baseline.worker_command[:-1], baseline.worker_command[-1].rpartition("from")[0]]
        command[-1] += "import suite.worker, runner.core; print(suite.worker.__file__, runner.core.__file__)"
        shown = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=True)
        assert all(path.startswith(str(baseline.root)) for path in shown.stdout.split())
    assert not baseline.root.exists() and scratch_folders() == before


def test_the_folder_is_gone_after_an_error_as_well(checkout):
    before = scratch_folders()
    with pytest.raises(RuntimeError), checked_out("HEAD", (), checkout):
        raise RuntimeError
    assert scratch_folders() == before


@pytest.mark.parametrize("ref", ["nowhere", "", "--help", "HEAD~99", "main:runner"])
def test_a_ref_that_names_no_commit_is_refused(checkout, ref):
    with pytest.raises(SuiteError, match="git knows no such commit"):
        find_commit(ref, checkout)


def test_files_outside_of_any_checkout_are_refused(tmp_path):
    with pytest.raises(SuiteError, match="no git checkout"):
        find_commit("main", tmp_path)


def test_a_commit_whose_worker_cannot_start_or_speaks_another_protocol_is_refused(checkout):
    (checkout / "suite" / "protocol.py").write_text("raise ImportError('of an older time')\n")
    git(checkout, "commit", "-qam", "broken")
    with (
        pytest.raises(SuiteError, match=r"cannot be asked.*of an older time"),
        checked_out("HEAD", (), checkout),
    ):
        pass
    text = (ROOT / "suite" / "protocol.py").read_text()
    (checkout / "suite" / "protocol.py").write_text(text.replace("    is_aa: bool = False\n", ""))
    git(checkout, "commit", "-qam", "older")
    with (
        pytest.raises(SuiteError, match=r"another protocol: it does not know RunArm.is_aa;"),
        checked_out("HEAD", (), checkout),
    ):
        pass


def schema(**messages):
    return {
        "$defs": {
            name: {"properties": dict.fromkeys(keys), "required": [key for key in keys if key.isupper()]}
            for name, keys in messages.items()
        }
    }


def test_a_key_breaks_a_protocol_only_where_one_side_sends_it_and_the_other_does_not_take_it():
    def faults(own_command, other_command, own_reply, other_reply, keys=((), ()), used=()):
        own = (schema(Run=own_command), schema(Done=own_reply), list(keys[0]))
        other = (schema(Run=other_command), schema(Done=other_reply), list(keys[1]))
        return protocol_faults(own, other, used)

    assert faults(["A", "b"], ["A", "b"], ["A"], ["A"]) == []
    assert faults(["A", "b"], ["A"], ["A"], ["A"]) == ["it does not know Run.b"]
    assert faults(["A"], ["A", "b"], ["A"], ["A"]) == []
    assert faults(["A"], ["A", "B"], ["A"], ["A"]) == ["it needs Run.B"]
    assert faults(["A"], ["A"], ["A", "b"], ["A"]) == []
    assert faults(["A"], ["A"], ["A"], ["A", "b"]) == ["it also sends Done.b"]
    assert faults(["A"], ["A"], ["A", "B"], ["A"]) == ["it does not send Done.B"]
    assert faults(["A"], ["A"], ["A"], ["A"], keys=(("x", "y"), ("x",))) == []
    assert faults(["A"], ["A"], ["A"], ["A"], keys=(("x", "y"), ("x",)), used=("y",)) == [
        "its scenarios lack y"
    ]
    assert faults(["A"], ["A"], ["A"], ["A"], keys=(("x",), ("x", "y"))) == ["its scenarios also have y"]


def test_the_keys_a_scenario_uses_are_those_it_sets_to_something_else(tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    keys = used_keys(make_plan([file], Options(device="inline")).scenarios)
    assert {"runner.max_num_seqs", "traffic.num_requests", "rounds"} <= keys
    assert "runner.prefix_caching" not in keys


def test_what_does_not_go_together_is_refused_before_anything_runs(tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    place = ("-o", tmp_path / "results")
    limit = ("--fail-on", "output_throughput<-3%")
    assert_refused(invoke("run", file, *place, *limit), "--fail-on goes with --baseline")
    assert_refused(invoke("run", file, *place, "--baseline", "HEAD", "--fail-on", "x<-3%"), "x is no metric")
    assert_refused(invoke("run", file, *place, "--baseline", "HEAD", "--until-precision", "1%"), "--rounds")
    assert not (tmp_path / "results").exists()


@pytest.mark.alone
def test_a_change_that_makes_steps_slower_is_found_and_fails_the_gate(checkout, tmp_path):
    """The same program twice, the newer one with 20 ms of sleep a step: five rounds tell."""
    scheduler = checkout / "runner" / "scheduler.py"
    text = scheduler.read_text()
    assert PLAN_STEP in text
    where = text.index('"""\n', text.index('"""', text.index(PLAN_STEP)) + 3) + 4
    scheduler.write_text(f"{text[:where]}        __import__('time').sleep(0.02)\n{text[where:]}")
    (tmp_path / "tiny.yaml").write_text(TINY)
    command = [sys.executable, "-m", "suite", "run", str(tmp_path / "tiny.yaml"), "--device", "inline"]
    command += ["--baseline", "main", "--instrument", "off", "-o", str(tmp_path / "results"), "--json"]
    command += ["--fail-on", "output_throughput<-3%"]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    # Where a neighbour makes so many rounds INVALID that too few are left to tell, the gate stays shut.
    assert done.returncode == 1, done.stderr
    assert "note: files of this checkout are changed" in done.stderr
    document = json.loads(done.stdout)
    (one,) = document["comparison"]["differences"]
    assert one["interval_kind"] == "paired"
    head, baseline = load_run(Path(document["folder"])), load_run(Path(document["baseline"]))
    # A busy machine makes rounds INVALID, and those enter no verdict: the times themselves are looked at.
    sides = [replace(side_of(loaded), findings=()) for loaded in (baseline, head)]
    both = compare_sides(sides[0], sides[1:])
    (found,) = both.differences
    assert (found.pairing, found.head_middle.num_rounds) == ("paired", 5)
    (judged,) = judge(read_limits(["output_throughput<-3%"]), both)
    assert judged.outcome is Outcome.BROKEN
    assert {run.side for run in head.runs} == {"head"}
    assert {run.side for run in baseline.runs} == {"baseline"}
    assert [run.run_id for run in sorted(head.runs, key=lambda run: run.run_id)] == sorted(
        run.run_id for run in baseline.runs
    )
    digests = [side.environment["source_digest"] for side in (baseline, head)]
    assert digests[1] == source_digest(checkout) and digests[0] != digests[1]
    assert baseline.environment["checkout"] == {
        "commit": git(checkout, "rev-parse", "main"),
        "is_dirty": False,
    }
    assert (head.path / "comparison.html").is_file() and (baseline.path / "report.html").is_file()
    again = invoke("compare", baseline.path, head.path, "--json")
    assert json.loads(again.stdout)["differences"][0]["interval_kind"] == "paired"


def test_an_interrupt_keeps_what_both_sides_measured_and_leaves_no_files_behind(checkout, tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY.replace("rounds: 5", "rounds: 500"))
    before = scratch_folders()
    command = [sys.executable, "-m", "suite", "run", str(tmp_path / "tiny.yaml"), "--device", "inline"]
    command += ["--baseline", "main", "--instrument", "off", "-o", str(tmp_path / "results")]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr:
            if "head: sync-ids, round 2" in line:
                break
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted: these are partial results" in rest and "paired" in rest
    assert scratch_folders() == before
    (head,) = (tmp_path / "results").iterdir()
    (baseline,) = head.glob("*-baseline")
    for folder in (head, baseline):
        loaded = load_run(folder)
        assert loaded.is_interrupted and len(loaded.runs) >= 4
        assert (folder / "report.html").is_file()


def test_a_run_that_took_turns_is_not_resumed_alone(tmp_path):
    turns = {"id": "x", "side": "head", "ref": "main", "commit": "a" * 40}
    folder = write_folder(tmp_path / "head", experiment(1), invocation={"interleaved": turns})
    assert_refused(invoke("run", "--resume", folder), "it took turns with another commit")
    assert_refused(invoke("run", "--resume", folder, "--baseline", "main"), "does not go with --resume")
