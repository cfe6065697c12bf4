"""A run under a profiler that does not do as it should: what was measured is kept, and the reason told.

nsys is a script here; the run it is given is a folder made beforehand.
"""

from __future__ import annotations

import json
import os
import shlex
from itertools import pairwise

import pytest
from nsys_fixture import START_END, Fixture
from real_scenario import invoke_profile
from records import make_run, make_step

from runner.spans import Span
from suite.plan import Options, make_plan
from suite.profile.session import plan_profile, run_command
from suite.store import RunFolder


@pytest.fixture
def made_run(tmp_path):
    """The folder of a run of three steps, one of its runs with spans."""
    folder = RunFolder.create(tmp_path / "made", "captured")
    folder.write_config({"scenarios": [], "cases": [], "skipped": [], "invocation": {"window": False}})
    steps = [make_step(n, n, n + 0.8, num_rows=2) for n in range(3)]
    folder.append_run(make_run(run_id="seen", steps=steps, instrument="events"))
    folder.write_steps("seen", steps)
    folder.write_requests("seen", [])
    spans = [Span(n, "launch", "host", n * 1000, n * 1000 + 500) for n in range(3)]
    spans += [Span(n, "step decode host/lookup", "steps", n * 1000, n * 1000 + 900) for n in range(3)]
    folder.write_spans("seen", spans)
    return folder.path


@pytest.fixture
def export(tmp_path):
    """What the made run looks like in nsys's export."""
    fixture = Fixture()
    fixture.domain(100, 1, "stepcost")
    for n in range(3):
        fixture.range("launch", n * 1000, n * 1000 + 510, int64Value=n)
        fixture.range("step decode host/lookup", n * 1000, n * 1000 + 910, event_type=START_END, int64Value=n)
    return fixture.write(tmp_path / "made.sqlite")


@pytest.fixture
def nsys(tmp_path, monkeypatch, made_run):
    """Makes an nsys that does this when it profiles: $report is what -o names, $out where the run goes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), "/usr/bin", "/bin"]))

    def make(profiling: str, exporting: str = "exit 9"):
        script = f"""#!/bin/bash
if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version 2024.1.1"; exit; fi
if [ "$1" = export ]; then {exporting}; exit; fi
echo "$@" >> {shlex.quote(str(tmp_path / "asked"))}
while [ $# -gt 0 ]; do
    if [ "$1" = -o ] && [ -z "$report" ]; then report=$2; elif [ "$1" = -o ]; then out=$2; fi
    shift
done
{profiling}
"""
        path = folder / "nsys"
        path.write_text(script)
        path.chmod(0o755)

    return make


def kept(tmp_path):
    return list((tmp_path / "out").glob("*/runs.jsonl"))


def hidden(tmp_path):
    return list((tmp_path / "out").glob(".*"))


def run_made(made_run):
    return f'cp -r {shlex.quote(str(made_run))} "$out/"'


def test_a_report_is_exported_kept_in_the_runs_folder_and_compared(nsys, made_run, export, tmp_path):
    nsys(f'{run_made(made_run)}; echo report > "$report.nsys-rep"', f'cp {shlex.quote(str(export))} "$7"')
    result = invoke_profile(tmp_path)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["comparison"]["is_equal"] is True
    (runs,) = kept(tmp_path)
    assert document["run"] == str(runs.parent) and document["file"] == str(runs.parent / "profile.sqlite")
    assert (runs.parent / "profile.nsys-rep").read_text() == "report\n"
    assert hidden(tmp_path) == []
    asked = (tmp_path / "asked").read_text()
    assert "profile -t nvtx -s none --cpuctxsw=none" in asked
    assert "--arms refresh --rounds 1 --instrument events" in asked and "--set warmup_rounds=0" in asked


def test_the_capture_has_no_runs_of_amplify_or_a_a_that_the_scenario_asks_for(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(
        "name: a\nmodel: tiny-gemma3-vl\nrounds: 6\naa: true\namplify: {merge: [1, 9]}\n"
        "traffic: {num_requests: 2, prompt_tokens: 4, output_tokens: 4, embeds_ratio: 0.5}\n"
    )
    plan, arm = plan_profile(file, "refresh", Options(device="process"))
    command = run_command(file, plan, arm, tmp_path)
    overrides = tuple(after for word, after in pairwise(command) if word == "--set")
    run = make_plan([file], Options(arms=(arm,), rounds=1, instrument="events", overrides=overrides))
    assert [one.run_id.rpartition("-")[2] for one in run.cases[0].runs()] == ["r0", "i0"]


def test_a_second_run_of_the_same_name_is_not_written_over_the_first(nsys, made_run, export, tmp_path):
    nsys(f'{run_made(made_run)}; echo x > "$report.nsys-rep"', f'cp {shlex.quote(str(export))} "$7"')
    for _ in range(2):
        assert invoke_profile(tmp_path).exit_code == 0
    assert len(kept(tmp_path)) == 2


def test_without_a_report_the_run_is_kept_and_what_nsys_said_is_told(nsys, made_run, tmp_path):
    nsys(f"{run_made(made_run)}; echo the disk is full")
    result = invoke_profile(tmp_path)
    assert result.exit_code == 2
    assert "nsys wrote no report: the disk is full; the run itself is kept" in result.stderr
    assert len(kept(tmp_path)) == 1 and hidden(tmp_path) == []


def test_a_run_that_never_settles_is_kept_and_says_why_there_is_no_window(nsys, made_run, tmp_path):
    nsys(run_made(made_run))
    result = invoke_profile(tmp_path, "--window")
    assert result.exit_code == 2
    assert "there was no steady window (the run has 3 steps" in result.stderr
    assert "leave out --window" in result.stderr and len(kept(tmp_path)) == 1
    assert "-c nvtx -p stepcost window@stepcost" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize("code", [2, 130])
def test_a_run_that_is_refused_or_interrupted_ends_with_its_words(code, nsys, tmp_path):
    nsys(f"echo it could not be; exit {code}")
    result = invoke_profile(tmp_path)
    assert result.exit_code == 2 and hidden(tmp_path) == []
    assert f"ended with exit code {code}: it could not be" in result.stderr


def test_an_interrupted_run_is_kept(nsys, made_run, tmp_path):
    nsys(f"{run_made(made_run)}; exit 130")
    assert invoke_profile(tmp_path).exit_code == 2
    assert len(kept(tmp_path)) == 1 and hidden(tmp_path) == []


def test_a_report_that_cannot_be_exported_is_kept_with_its_run(nsys, made_run, tmp_path):
    nsys(f'{run_made(made_run)}; echo x > "$report.nsys-rep"', "echo it is damaged; exit 9")
    result = invoke_profile(tmp_path)
    (runs,) = kept(tmp_path)
    assert result.exit_code == 2 and "exit code 9: it is damaged" in result.stderr
    assert str(runs.parent / "profile.nsys-rep") in result.stderr
    assert (runs.parent / "profile.nsys-rep").exists()


def test_a_run_without_a_folder_is_told(nsys, tmp_path):
    nsys("echo nothing done")
    assert "left no folder: nothing done" in invoke_profile(tmp_path).stderr


def test_mistakes_are_found_before_anything_runs(nsys, tmp_path):
    nsys("exit 1")
    for options, words in (
        (("--arm", "no-such-arm"), "no-such-arm"),
        (("--set", "sweep.traffic.num_requests=[1, 2]"), "it has 2 cases"),
        (("--device", "warp"), "--device warp"),
        (("--tool", "perf"), "perf"),
    ):
        result = invoke_profile(tmp_path, *options)
        assert result.exit_code == 2 and words in result.stderr, result.output
    assert not (tmp_path / "asked").exists()


def test_versions_that_lose_ranges_are_told_before_the_run(nsys, made_run, export, tmp_path, monkeypatch):
    nsys(f'{run_made(made_run)}; echo x > "$report.nsys-rep"', f'cp {shlex.quote(str(export))} "$7"')
    monkeypatch.setattr("suite.profile.nsys.version", lambda _: "0.2.14")
    monkeypatch.setattr("suite.profile.versions._LAST_LOSING_NSYS", (2024, 9))
    result = invoke_profile(tmp_path)
    assert (
        result.exit_code == 0
        and "warning: nvtx 0.2.14 under nsys 2024.1.1 loses every range" in result.stderr
    )
