"""argv in, exit code and words out: in this process for most, as a real command for a few."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bad_inputs import BAD_INPUTS, GOOD, BadInput
from records import failed_request, make_request, make_run, make_step
from typer.testing import CliRunner

from runner.core import RunnerError
from runner.inputs.arms import ARMS
from runner.models import ALL_MODELS
from suite import commands
from suite.cli import app
from suite.environment import DeviceFacts
from suite.metrics import DEFINITIONS
from suite.record import Failure, Status
from suite.store import RunFolder, load_run

ROOT = Path(__file__).resolve().parents[2]


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def scenario(tmp_path):
    file = tmp_path / "scenario.yaml"
    file.write_text(GOOD)
    return file


def assert_refused(result, *words):
    """Exit code 2 and one message on standard error, nothing on standard output, no traceback."""
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)
    for word in words:
        assert word in result.stderr


# Mistakes


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=lambda bad: bad.name)
def test_bad_input_ends_a_command_with_code_two_and_nothing_done(bad: BadInput, tmp_path):
    file = bad.write(tmp_path)
    options = [part for text in bad.overrides for part in ("--set", text)]
    result = invoke("run", file, "-o", tmp_path / "results", *options)
    assert_refused(result, "error: ", *bad.expect)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "Missing argument"),
        (["run", "scenario.yaml", "--no-such-option"], "No such option"),
        (["rnu"], "No such command"),
        (["run", "scenario.yaml", "--rounds", "0"], "--rounds 0: it must be a whole number from 1 to 10000"),
        (
            ["run", "scenario.yaml", "--rounds", "two"],
            "Invalid value for '--rounds': 'two' is no whole number",
        ),
        (["run", "scenario.yaml", "--seed", str(2**63)], "below 9,223,372,036,854,775,808"),
        (["run", "scenario.yaml", "--device", "shuffle:\u0661"], "did you mean shuffle:SEED"),
        (["run", "scenario.yaml", "-o", ""], "--output-dir '': it is empty"),
        (["run", "scenario.yaml", "--set", "\udcff=1"], "not UTF-8"),
        (["run", "scenario.yaml", "--set", "rounds=!!bool x"], "does not fit its YAML tag"),
        (["run", "scenario.yaml", "--arms", "sync-ids,sync-ids"], "an arm stands twice"),
        (["validate", "loop"], "a loop of symbolic links"),
        (["validate", "x" * 300], "File name too long"),
        (["report", "x" * 300], "File name too long"),
        (["run", "scenario.yaml", "--seed", "-1"], "--seed -1"),
        (["run", "scenario.yaml", "--device", "cuda"], "no CUDA device can be used here"),
        (
            ["run", "scenario.yaml", "--device", "gpu"],
            "it must be one of: auto, process, inline, lazy, shuffle:SEED, cuda",
        ),
        (["run", "scenario.yaml", "--arms", "snyc-ids"], "did you mean sync-ids"),
        (["run", "scenario.yaml", "--arms", ""], "is no arm"),
        (["run", "scenario.yaml", "--set", "rounds"], "no key=value"),
        (["run", "missing.yaml"], "no such file"),
        (["run", "empty"], "no *.yaml file in this directory"),
        (["check", "missing.yaml"], "no such file"),
        (["validate", "missing.yaml"], "no such file"),
        (["expand", "missing.yaml"], "no such file"),
        (["report", "empty"], "is not the folder of a run"),
        (["report", "missing"], "is not the folder of a run"),
        (["list", "model"], "'model' is not one of"),
        (
            ["run", "scenario.yaml", "--instrument", "evnts"],
            "Invalid value for '--instrument': 'evnts' is not one of 'off', 'nvtx', 'host', 'events'",
        ),
        (["cost", "missing.yaml"], "no such file"),
        (["cost", "empty"], "this is a directory; name a scenario file in it"),
        (["cost", "scenario.yaml", "--arm", "snyc-ids"], "did you mean sync-ids"),
        (["cost", "scenario.yaml", "--rounds", "0"], "--rounds 0: it must be a whole number from 1"),
        (
            ["cost", "scenario.yaml", "--budget-s", "0"],
            "--budget-s 0: it must be a number of seconds above 0",
        ),
        (["cost", "scenario.yaml", "--budget-s", "nan"], "--budget-s nan: it must be a number of seconds"),
        (
            ["cost", "scenario.yaml", "--only", "mrege"],
            "--only mrege: 'mrege' is no span",
        ),
        (["cost", "scenario.yaml", "--only", "merge,lokup"], "did you mean lookup"),
        (["cost", "scenario.yaml", "-o", ""], "--output-dir '': it is empty"),
    ],
)
def test_wrong_usage_ends_with_code_two_and_one_message(arguments, words, scenario, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    assert_refused(invoke(*arguments), words)


@pytest.mark.parametrize("arguments", ["list models", "--help"])
@pytest.mark.parametrize(("stream", "code"), [(">&-", 0), (">/dev/full", 2)])
def test_output_that_nobody_takes_gives_no_traceback(arguments, stream, code):
    command = f"{sys.executable} -m suite {arguments} {stream}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == code and "Traceback" not in done.stderr
    assert ("No space left" in done.stderr) == (code == 2) and len(done.stderr.splitlines()) <= 1


def test_one_bad_file_among_good_ones_leaves_nothing_half_done(scenario, tmp_path):
    (tmp_path / "bad.yaml").write_text(GOOD.replace("rounds: 2", "rounds: 0").replace("fine", "bad"))
    assert_refused(invoke("run", tmp_path, "-o", tmp_path / "results"), "bad.yaml", "rounds")
    assert not (tmp_path / "results").exists()


def test_an_output_folder_that_cannot_be_made_is_a_users_mistake(scenario, tmp_path):
    (tmp_path / "file").write_text("")
    assert_refused(invoke("run", scenario, "-o", tmp_path / "file"), "cannot write", "--output-dir")


def test_a_refusal_of_the_runner_is_told_like_any_other(scenario, monkeypatch):
    def refuse(*_):
        raise RunnerError("runner.num_blocks is 1; raise it")

    monkeypatch.setattr(commands, "make_plan", refuse)
    assert_refused(invoke("run", scenario), "error: runner.num_blocks is 1; raise it")


def test_ctrl_c_before_anything_ran_exits_with_130(scenario, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "make_plan", stop)
    result = invoke("run", scenario)
    assert result.exit_code == 130 and "Traceback" not in result.stderr


def test_validate_tells_the_mistakes_of_every_file(tmp_path):
    for name in ("a", "b", "c"):
        rounds = "rounds: 2" if name == "b" else "rounds: 0"
        (tmp_path / f"{name}.yaml").write_text(GOOD.replace("fine", name).replace("rounds: 2", rounds))
    result = invoke("validate", tmp_path)
    assert result.exit_code == 2
    assert "a.yaml:13" in result.stderr and "c.yaml:13" in result.stderr and "b.yaml" not in result.stderr
    assert "b.yaml: fine" in result.stdout


# What needs no engine


def test_validate_and_dry_run_say_what_would_be_run_and_write_nothing(scenario, tmp_path):
    assert "scenario.yaml: fine (fine: 1 cases, 4 requests)" in invoke("validate", scenario).stdout
    result = invoke("run", scenario, "--dry-run", "-o", tmp_path / "results", "--rounds", "5")
    assert result.exit_code == 0 and "1 warm-up and 5 measured rounds" in result.stdout
    assert "1 cases, 7 runs on device process; nothing was run" in result.stdout
    assert not (tmp_path / "results").exists()


def test_json_of_a_dry_run_is_the_resolved_configuration(scenario):
    result = invoke("run", scenario, "--dry-run", "--json", "--set", "seed=9")
    assert json.loads(result.stdout)["scenarios"][0]["seed"] == 9


def test_expand_shows_each_case_of_a_sweep(scenario):
    result = invoke("expand", scenario, "--set", "sweep.traffic.multimodal_ratio=[0, 0.5, 1]", "--json")
    cases = json.loads(result.stdout)
    assert [case["label"] for case in cases] == [
        "multimodal_ratio=0",
        "multimodal_ratio=0.5",
        "multimodal_ratio=1",
    ]
    assert len({case["case_id"] for case in cases}) == 3
    lines = invoke("expand", scenario).stdout.splitlines()
    assert len(lines) == 1 and "fine: 4 requests, arms sync-ids, 2 rounds" in lines[0]


def test_list_names_what_options_and_scenarios_may_use(monkeypatch):
    monkeypatch.chdir(ROOT)
    everything = json.loads(invoke("list", "--json").stdout)
    assert set(everything) == {"scenarios", "models", "arms", "devices", "metrics", "rules"}
    assert everything["rules"]["foreign-load"].startswith("[timing] other processes use at most")
    assert everything["rules"]["littles-law"].startswith("[correctness] mean number")
    assert set(everything["arms"]) == set(ARMS) and set(everything["models"]) == set(ALL_MODELS)
    assert set(everything["metrics"]) == set(DEFINITIONS)
    assert "scenarios/smoke.yaml" in everything["scenarios"]
    text = invoke("list", "arms").stdout
    assert text.startswith("arms:\n  ids ") and "tiny-gemma3-vl" not in text


def test_list_shows_a_broken_scenario_and_why(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios" / "deep").mkdir(parents=True)
    (tmp_path / "scenarios" / "deep" / "bad.yaml").write_text(GOOD + "rouns: 3\n")
    result = invoke("list", "scenarios")
    assert result.exit_code == 0 and "cannot be loaded" in result.stdout and "rouns" in result.stdout


# Runs, over an experiment that only hands out records


class FakeExperiment:
    """Keeps the records of `outcome` instead of running anything."""

    outcome: tuple = ()
    stops = False

    def __init__(self, plan, folder, observer, stop, keep, on_device, is_timed=True, done=()):
        self.folder, self.stop, self.keep, self.on_device = folder, stop, keep, on_device
        self.stopped = []

    def run(self):
        self.on_device(DeviceFacts(kind="inline", name="fake", num_threads=1, torch_version="0"))
        for record, requests, steps in self.outcome:
            if self.folder is not None:
                RunFolder(self.folder).write_requests(record.run_id, requests)
                RunFolder(self.folder).write_steps(record.run_id, steps)
            self.keep(record)
        if self.stops:
            self.stop.request()
        return [record for record, _, _ in self.outcome]


def outcomes(num_wrong=0, **changes):
    requests = [make_request("a"), failed_request("c", "prompt <b> too long")]
    steps = [make_step(0, 0, 10, "prefill", num_tokens=8), make_step(1, 10, 30, num_tokens=2)]
    return [
        (make_run(requests, steps, run_id=f"r{i}", round=i, num_wrong=num_wrong, **changes), requests, steps)
        for i in range(2)
    ]


@pytest.fixture
def run(scenario, tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "Experiment", FakeExperiment)

    def run_with(outcome, *arguments, stops=False, command="run"):
        monkeypatch.setattr(FakeExperiment, "outcome", outcome)
        monkeypatch.setattr(FakeExperiment, "stops", stops)
        where = ["-o", tmp_path / "results"] if command == "run" else []
        return invoke(command, scenario, *where, *arguments)

    return run_with


def only_folder(tmp_path):
    (folder,) = (tmp_path / "results").iterdir()
    return folder


def test_a_run_writes_every_file_and_ends_with_the_reports_path(run, tmp_path):
    result = run(outcomes())
    assert result.exit_code == 0, result.output
    folder = only_folder(tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.yaml",
        "environment.json",
        "runs.jsonl",
        "steps",
        "requests",
        "spans",
        "ceilings.json",
        "summary.json",
        "summary.csv",
        "report.html",
    }
    assert result.stdout.rstrip().endswith(f"report: {folder / 'report.html'}")
    assert "\x1b" not in result.output
    loaded = load_run(folder)
    assert loaded.environment["device"]["kind"] == "inline" and not loaded.is_interrupted
    assert [finding.rule for finding in loaded.validity] == ["requests-failed"] * 2
    assert loaded.config[0]["name"] == "fine" and loaded.summary["status"] == "completed"


@pytest.mark.parametrize(("value", "wanted"), [("on", True), ("off", False)])
def test_cuda_graphs_is_the_scenarios_key_by_another_name(run, tmp_path, value, wanted):
    assert run(outcomes(), "--cuda-graphs", value).exit_code == 0
    assert load_run(only_folder(tmp_path)).config[0]["runner"]["cuda_graphs"] is wanted


def test_json_puts_one_strict_document_on_standard_output(run):
    def refuse(name):
        raise AssertionError(f"{name} in strict JSON")

    result = run(outcomes(), "--json")
    document = json.loads(result.stdout, parse_constant=refuse)
    assert document["status"] == "completed" and document["arms"][0]["num_rounds"] == 2
    assert Path(document["report"]).is_file()


@pytest.mark.parametrize(
    ("outcome", "stops", "code"),
    [
        (outcomes(), False, 0),
        (outcomes(num_wrong=1), False, 1),
        (outcomes(status=Status.FAILED, failure=Failure(kind="worker died", message="by SIGKILL")), False, 1),
        (outcomes(), True, 130),
        ([], False, 0),
    ],
    ids=["fine", "wrong tokens", "worker died", "interrupted", "nothing"],
)
def test_the_exit_code_tells_how_it_ended_and_a_report_is_always_written(run, tmp_path, outcome, stops, code):
    assert run(outcome, stops=stops).exit_code == code
    folder = only_folder(tmp_path)
    assert (folder / "report.html").stat().st_size > 0
    assert load_run(folder).is_interrupted == stops


def lonely(**changes):
    """One round of one request: too few to be VALID for timing, and right in all else."""
    requests = [make_request("a")]
    rows = {"num_rows": 1}
    steps = [
        make_step(0, 0, 10, "prefill", num_tokens=8, **rows),
        *(make_step(number, 10 * number, 10 * number + 10, num_tokens=1, **rows) for number in (1, 2)),
    ]
    return [(make_run(requests, steps, run_id="r0", **changes), requests, steps)]


def test_invalid_for_timing_is_marked_and_fails_the_command_only_with_strict(run):
    for arguments, code in (((), 0), (("--strict",), 1)):
        result = run(lonely(), *arguments)
        assert result.exit_code == code and "INVALID (too-few-rounds)" in result.stdout
    two = [lonely()[0], *lonely()]
    two[1] = (two[1][0].model_copy(update={"run_id": "r1", "round": 1}), *two[1][1:])
    result = run(two, "--strict")
    assert result.exit_code == 0 and "INVALID" not in result.stdout


def test_wrong_accounts_fail_the_command_with_or_without_strict(run):
    """A run whose record counts one request fewer than there are."""
    for arguments in ((), ("--strict",)):
        result = run(lonely(num_requests=0), *arguments)
        assert result.exit_code == 1 and "INVALID (requests-conserved)" in result.stdout


def strict_json(text):
    def refuse(name):
        raise AssertionError(f"{name} in strict JSON")

    return json.loads(text, parse_constant=refuse)


def test_where_none_of_twenty_requests_completes_all_is_written_and_means_are_null_with_the_cause(
    run, tmp_path
):
    requests = [failed_request(f"r{index}", "the server does not answer") for index in range(20)]
    failure = Failure(kind="requests", message="no request completed: the server does not answer")
    lost = make_run(requests, run_id="r0", status=Status.FAILED, failure=failure, tokens=None)
    result = run([(lost, requests, [])], "--json")
    assert result.exit_code == 1
    document = strict_json(result.stdout)
    (arm,) = document["arms"]
    assert (arm["num_rounds"], arm["num_failed"], arm["is_valid"]) == (0, 1, False)
    assert document["findings"][0]["message"] == "no request completed: the server does not answer"
    page = (only_folder(tmp_path) / "report.html").read_text(encoding="utf-8")
    assert "the server does not answer" in page


def test_requests_that_fail_in_a_run_that_completes_have_null_times_and_are_counted(run):
    """19 of 20 fail: a mean of the one would be no figure of the traffic."""
    requests = [make_request("a"), *(failed_request(f"r{index}", "too long") for index in range(19))]
    steps = lonely()[0][2]
    runs = [(make_run(requests, steps, run_id=f"r{i}", round=i), requests, steps) for i in range(2)]
    metrics = strict_json(run(runs, "--json").stdout)["arms"][0]["metrics"]
    assert metrics["mean_ttft_ms"]["median"] is None
    assert metrics["mean_ttft_ms"]["reason"] == "every round is INVALID: requests-failed"
    assert (metrics["failed_requests"]["median"], metrics["completed_requests"]["median"]) == (19, 1)


def test_a_run_of_one_token_a_request_has_a_whole_report(run, tmp_path):
    requests = [make_request(f"r{index}", token_ms=(10.0,)) for index in range(3)]
    steps = [make_step(0, 0, 10, "prefill", num_rows=3, num_tokens=24)]
    runs = [(make_run(requests, steps, run_id=f"r{i}", round=i), requests, steps) for i in range(2)]
    result = run(runs, "--json")
    assert result.exit_code == 0, result.output
    (arm,) = strict_json(result.stdout)["arms"]
    metrics = arm["metrics"]
    assert arm["is_valid"] and metrics["completed_requests"]["median"] == 3
    for name in ("mean_tpot_ms", "max_itl_ms"):
        assert (metrics[name]["median"], metrics[name]["reason"]) == (None, "one output token")
    assert metrics["median_ttft_ms"]["median"] == metrics["median_e2e_ms"]["median"] == pytest.approx(10)
    assert metrics["prompt_tokens"]["median"] == 24
    assert "one output token" in (only_folder(tmp_path) / "report.html").read_text(encoding="utf-8")


def test_an_interrupted_run_ends_with_130_however_strict(run):
    assert run(lonely(num_requests=2), "--strict", stops=True).exit_code == 130


def test_a_report_made_anew_of_a_killed_run_is_marked_and_of_a_finished_one_is_the_same(run, tmp_path):
    run(outcomes())
    folder = only_folder(tmp_path)
    before = (folder / "summary.json").read_bytes()
    assert invoke("report", folder).exit_code == 0
    assert (folder / "summary.json").read_bytes() == before
    for name in ("summary.json", "summary.csv", "report.html"):
        (folder / name).unlink()
    result = invoke("report", folder)
    assert result.exit_code == 0 and "interrupted: these are partial results" in result.stdout
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    assert invoke("report", folder, "--json").exit_code == 0


def test_check_prints_right_wrong_and_ties_and_fails_on_a_wrong_one(run):
    result = run(outcomes()[:1], command="check")
    assert result.exit_code == 0 and "smoke, sync-ids: 3 right, 0 wrong, 0 ties of 3 tokens" in result.stdout
    result = run(outcomes(num_wrong=1)[:1], "--json", command="check")
    assert result.exit_code == 1 and json.loads(result.stdout)[0]["tokens"]["num_wrong"] == 1


def test_the_label_is_in_the_folders_name_whatever_it_holds(run, tmp_path):
    run(outcomes(), "--label", "../über $HOME")
    assert only_folder(tmp_path).name.partition("-")[2].startswith("uber-home-")


# As a real command


def command(*arguments, cwd=ROOT, **env):
    return subprocess.run(
        [sys.executable, "-m", "suite", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        timeout=120,
    )


def test_a_mistake_at_the_real_command_line_is_one_message_in_any_locale(tmp_path):
    file = tmp_path / "测试.yaml"
    file.write_text(GOOD.replace("rounds: 2", "rouns: 2"))
    done = command("run", file, LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 2 and done.stdout == b"" and b"Traceback" not in done.stderr
    assert b"did you mean rounds" in done.stderr


def test_help_and_validate_never_load_what_is_slow(tmp_path):
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from suite.cli import app\n"
        "for argv in (['--help'], ['validate', 'scenarios/smoke.yaml'], ['list', 'metrics']):\n"
        "    assert CliRunner().invoke(app, argv).exit_code == 0, argv\n"
        "slow = {'torch', 'transformers', 'pandas', 'plotly', 'pyarrow', 'scipy'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
