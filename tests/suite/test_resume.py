"""`suite run --resume`: an experiment that was killed is finished in its own folder, and only as it began."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from nursery import Nursery

from suite.record import Status
from suite.store import RUNS, load_run

SCENARIO = """\
name: faults
model: tiny-qwen3
traffic: {num_requests: 2, prompt_tokens: 4, output_tokens: 4}
rounds: 6
warmup_rounds: 1
timeout_s: 60
"""
RUN = ("run", "faults.yaml", "-o", "results", "--device", "inline", "--instrument", "off")
SLOW = {"run_s": 0.05}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


@pytest.fixture
def killed(nursery):
    """The folder of a run that was killed once four of its seven runs were kept."""
    return killed_run(nursery)


def killed_run(nursery, text=SCENARIO, at_least=4, number=signal.SIGKILL, options=(), actions=SLOW):
    for path in filter(Path.exists, (nursery.folder / "acks", nursery.folder / "results")):
        path.rename(f"{path}-{time.monotonic_ns()}")
    (nursery.folder / "faults.yaml").write_text(text)
    pid = nursery.start(*RUN, *options, actions=actions)
    nursery.wait_until(lambda: num("kept", nursery) >= at_least, "kept run")
    nursery.wait_until(lambda: num("started", nursery) > num("kept", nursery), "run in flight")
    code = nursery.kill(pid, number)
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 130), nursery.said
    (folder,) = (nursery.folder / "results").iterdir()
    return folder


def num(what, nursery):
    return sum(word == what for word, _ in nursery.acks())


def ends(folder):
    return [run.run_id.rpartition("-")[2] for run in load_run(folder).runs]


ALL = ["w0", "r0", "r1", "r2", "r3", "r4", "r5"]


def test_what_a_kill_left_is_finished_and_no_kept_round_is_made_again(nursery, killed):
    kept = {run.run_id: run.started_utc for run in load_run(killed).runs}
    lines = {line for line in (killed / RUNS).read_bytes().splitlines() if b"-r" in line}
    assert nursery.run("run", "--resume", killed) == 0, nursery.said
    loaded = load_run(killed)
    assert sorted(ends(killed)) == sorted(ALL) and not loaded.is_interrupted
    assert loaded.whole_runs == loaded.runs and lines <= set((killed / RUNS).read_bytes().splitlines())
    again = [name for word, name in nursery.acks()[len(kept) * 2 :] if word == "kept"]
    assert not [name for name in again if name in kept and not name.endswith("-w0")]
    assert any(name.endswith("-w0") for name in again), "the fresh worker was not warmed up"
    assert len(loaded.environment["resumed_utc"]) == 1 and "resumed at" in nursery.said


def test_an_interrupted_run_is_finished_too_and_its_run_in_flight_made_again(nursery):
    folder = killed_run(nursery, at_least=2, number=signal.SIGINT, actions={"run_s": 0.5})
    assert load_run(folder).is_interrupted
    assert [run.status for run in load_run(folder).runs].count(Status.INTERRUPTED) == 1
    assert load_run(folder).summary["status"] == "interrupted" and (folder / "report.html").exists()
    assert nursery.run("run", "--resume", folder) == 0, nursery.said
    assert sorted(ends(folder)) == sorted(ALL)
    assert {run.status for run in load_run(folder).runs} == {Status.COMPLETED}
    assert load_run(folder).summary["status"] == "completed"


def test_a_finished_run_says_so_and_nothing_is_run(nursery, killed):
    assert nursery.run("run", "--resume", killed) == 0
    before, acks = (killed / RUNS).read_bytes(), nursery.acks()
    assert nursery.run("run", "--resume", killed) == 0
    assert "is finished: all of its 7 runs were made" in nursery.said
    assert (killed / RUNS).read_bytes() == before and nursery.acks() == acks


def test_a_finished_run_fails_the_command_as_it_did_when_it_ended(nursery, killed):
    assert nursery.run("run", "--resume", killed) == 0
    lines = (killed / RUNS).read_bytes().splitlines()

    def with_last(**changes):
        text = json.dumps(json.loads(lines[-1]) | changes).encode()
        (killed / RUNS).write_bytes(b"\n".join([*lines[:-1], text]) + b"\n")

    with_last(cpu={"wall_s": 1.0, "num_cores": 1, "busy_s": 0.9, "own_s": 0.1})
    assert nursery.run("run", "--resume", killed) == 0, nursery.said
    assert "is finished" in nursery.said
    assert nursery.run("run", "--resume", killed, "--strict") == 1, nursery.said
    with_last(status="failed", failure={"kind": "timeout", "message": "too long", "detail": ""})
    assert nursery.run("run", "--resume", killed) == 1, nursery.said
    assert "is finished" in nursery.said


def test_a_failure_is_an_outcome_and_not_made_again(nursery, killed):
    lines = (killed / RUNS).read_bytes().splitlines()
    record = json.loads(lines[2])
    record |= {"status": "failed", "failure": {"kind": "timeout", "message": "too long", "detail": ""}}
    lines[2] = json.dumps(record).encode()
    (killed / RUNS).write_bytes(b"\n".join(lines) + b"\n")
    assert nursery.run("run", "--resume", killed) == 1, nursery.said
    failed = [run for run in load_run(killed).runs if run.status is Status.FAILED]
    assert [run.failure.message for run in failed] == ["too long"] and sorted(ends(killed)) == sorted(ALL)


def test_a_cut_last_line_is_mended_with_a_warning_and_its_run_made_again(nursery, killed):
    path = killed / RUNS
    path.write_bytes(path.read_bytes()[:-40])
    number = path.read_bytes().count(b"\n") + 1
    assert nursery.run("run", "--resume", killed) == 0
    assert f"warning: runs.jsonl, line {number}: cut short, left out; that run is made again" in nursery.said
    assert sorted(ends(killed)) == sorted(ALL) and not load_run(killed).warnings
    assert not (killed / "runs.damaged.jsonl").exists()


def test_any_other_damaged_line_is_kept_beside_the_file(nursery, killed):
    path = killed / RUNS
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"seed"', b'"sead"')
    path.write_bytes(b"".join(lines))
    assert nursery.run("run", "--resume", killed) == 0
    assert "line 2" in nursery.said and "is kept as runs.damaged.jsonl" in nursery.said
    assert (killed / "runs.damaged.jsonl").read_bytes() == b"".join(lines)
    assert sorted(ends(killed)) == sorted(ALL)


@pytest.mark.parametrize("kind", ["steps", "requests"])
def test_a_record_without_its_tables_is_made_again(nursery, killed, kind):
    victim = next((killed / kind).glob("*-r1.parquet"))
    victim.unlink()
    assert nursery.run("run", "--resume", killed) == 0
    assert f"{victim} is missing; its run is made again" in nursery.said
    assert victim.exists() and sorted(ends(killed)) == sorted(ALL)


def test_leftovers_of_a_kill_are_cleared_away(nursery, killed):
    orphan = killed / "spans" / "faults-r5.parquet"
    temporary = killed / "steps" / ".faults-r5.parquet.77.88.tmp"
    for file in (orphan, temporary):
        file.write_bytes(b"half of it")
    assert nursery.run("run", "--resume", killed) == 0, nursery.said
    assert not orphan.exists() and not temporary.exists()


def refused(nursery, folder, *options, words):
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert nursery.run("run", *options, "--resume", folder) == 2, nursery.said
    assert "Traceback" not in nursery.said
    for word in words:
        assert word in nursery.said
    assert before == {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_changed_scenario_is_refused_with_key_and_both_values(nursery, killed):
    (nursery.folder / "faults.yaml").write_text(SCENARIO.replace("output_tokens: 4", "output_tokens: 5"))
    refused(nursery, killed, words=("faults: traffic.output_tokens.fixed is 5, and was 4",))
    (nursery.folder / "faults.yaml").write_text(SCENARIO.replace("timeout_s: 60", "timeout_s: 70"))
    refused(nursery, killed, words=("timeout_s is 70.0, and was 60.0",))


def test_a_changed_option_is_refused_and_the_same_one_is_not(nursery):
    folder = killed_run(nursery, options=("--rounds", "6", "--seed", "3"))
    refused(nursery, folder, "--rounds", "5", words=("option rounds is 5, and was 6",))
    refused(nursery, folder, "--set", "rounds=5", words=("option set",))
    refused(
        nursery, folder, "--instrument", "events", words=("option instrument is 'events', and was 'off'",)
    )
    refused(nursery, folder, "--label", "x", words=("--label does not go with --resume",))
    arguments = ("run", "faults.yaml", "--rounds", "6", "--seed", "3", "--instrument", "off")
    assert nursery.run(*arguments, "--resume", folder) == 0, nursery.said


def test_an_option_that_says_what_the_scenario_said_is_no_change(nursery, killed):
    refused(nursery, killed, "--rounds", "7", words=("option rounds is 7, and was 6",))
    refused(nursery, killed, "--seed", "1", words=("option seed is 1, and was 0",))
    refused(nursery, killed, "--arms", "ids", words=("option arms[0] is 'ids', and was 'sync-ids'",))
    refused(nursery, killed, "--cuda-graphs", "on", words=("option set is ",))
    given = ("--rounds", "6", "--seed", "0", "--arms", ",".join(load_run(killed).config[0]["arms"]))
    assert nursery.run("run", "--resume", killed, *given) == 0, nursery.said
    assert sorted(ends(killed)) == sorted(ALL)


def test_a_scenario_whose_file_is_gone_is_taken_from_the_folder(nursery, killed):
    (nursery.folder / "faults.yaml").unlink()
    assert nursery.run("run", "--resume", killed) == 0, nursery.said
    assert sorted(ends(killed)) == sorted(ALL)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("source_digest", "0123", "source_digest is "),
        ("cpu_model", "another", "and was 'another'"),
        ("num_usable_cores", 999, "num_usable_cores"),
        ("packages", {"torch": "1.0"}, "packages.torch"),
        ("variables", {"OMP_NUM_THREADS": "64"}, "variables.OMP_NUM_THREADS is '1', and was '64'"),
    ],
)
def test_another_machine_or_code_is_refused_with_what_differs(nursery, killed, key, value, words):
    path = killed / "environment.json"
    environment = json.loads(path.read_text())
    path.write_text(json.dumps({**environment, key: value}))
    refused(nursery, killed, words=(words,))


def test_another_device_is_refused_once_it_is_open(nursery, killed):
    path = killed / "environment.json"
    environment = json.loads(path.read_text())
    assert environment["device"]["torch_version"] == "0"
    path.write_text(json.dumps({**environment, "device": {**environment["device"], "torch_version": "2.0"}}))
    assert nursery.run("run", "--resume", killed) == 2
    assert "device.torch_version is '0', and was '2.0'" in nursery.said


def test_without_its_environment_nothing_is_added_to_measured_runs(nursery, killed):
    (killed / "environment.json").unlink()
    refused(nursery, killed, words=("environment.json is missing or damaged",))


def test_a_run_that_another_process_writes_is_refused(nursery):
    (nursery.folder / "faults.yaml").write_text(SCENARIO)
    first = nursery.start(*RUN, "--label", "live", actions={"run_s": 0.3}, acks="live")
    nursery.wait_until(lambda: len(nursery.acks("live")) >= 3, "run in flight")
    (folder,) = (nursery.folder / "results").glob("*-live")
    assert nursery.run("run", "--resume", folder) == 2
    assert "is being written by another process" in nursery.said
    nursery.kill(first)
    assert nursery.run("run", "--resume", folder) == 0, nursery.said


def test_the_folder_of_a_bill_is_not_finished_by_a_run(nursery, killed):
    config = killed / "config.yaml"
    config.write_text(config.read_text().replace("command: run", "command: cost"))
    refused(nursery, killed, words=("it is the folder of a bill",))


def test_a_sweep_goes_on_in_the_case_it_was_killed_in(nursery):
    text = SCENARIO + "sweep: {runner.max_num_seqs: [2, 4]}\n"
    folder = killed_run(nursery, text, at_least=9)
    assert nursery.run("run", "--resume", folder) == 0, nursery.said
    runs = load_run(folder).runs
    assert len(runs) == len({run.run_id for run in runs}) == 14
    first = [run for run in runs if run.case_label == "max_num_seqs=2"]
    assert len({note for run in first for note in run.notes if note.startswith("worker")}) == 1
