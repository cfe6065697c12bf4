"""The report of a run that goes on: from what there is, marked so, and nothing of its writer's is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nursery import Nursery
from records import make_request, make_run, make_step
from typer.testing import CliRunner

from suite.cli import app
from suite.folder_lock import writing
from suite.store import REPORT, REPORT_SO_FAR, RUNS, SUMMARY, RunFolder

SCENARIO = """\
name: faults
model: tiny-qwen3
traffic: {num_requests: 2, prompt_tokens: 4, output_tokens: 4}
rounds: 6
warmup_rounds: 1
timeout_s: 60
"""
RUN = ("run", "faults.yaml", "-o", "results", "--device", "inline", "--instrument", "off")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs of twelve, and a third whose line is being written."""
    made = RunFolder.create(tmp_path, "live")
    config = {"scenarios": [{"name": "s"}], "invocation": {}, "cases": [], "skipped": []}
    made.write_config({"num_runs": 12, **config})
    made.write_environment({"command_line": "python -m suite run"})
    for number in range(2):
        requests, steps = [make_request("a")], [make_step(0, 0.0, 8.0)]
        made.write_steps(f"r{number}", steps)
        made.write_requests(f"r{number}", requests)
        made.append_run(make_run(requests, steps, run_id=f"r{number}", round=number))
    with (made.path / RUNS).open("ab") as file:
        file.write(b'{"run_id": "r2", ')
    return made.path


def report(*words: object) -> str:
    result = CliRunner().invoke(app, ["report", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_there_is_so_far_is_told_and_nothing_of_the_writers_is_touched(folder: Path) -> None:
    before = content(folder)
    with writing(folder):
        said = report(folder)
    assert "still running: 2 of 12 runs so far, at 20" in said and "interrupted" not in said
    assert f"report: {folder / REPORT_SO_FAR}" in said and "cut short" not in said
    after = content(folder)
    page = after.pop(REPORT_SO_FAR).decode()
    assert after == before
    assert "Still running:" in page and "2 of 12 runs so far" in page and "Interrupted." not in page


def test_every_form_says_that_it_goes_on(folder: Path, tmp_path: Path) -> None:
    with writing(folder):
        told = json.loads(report(folder, "--json"))
        text = report(folder, "--format", "markdown")
        report(folder, "--output", tmp_path / "page.html")
    assert (told["status"], told["num_runs"], told["num_planned_runs"]) == ("running", 2, 12)
    assert "> Still running: 2 of 12 runs so far" in text
    assert "Still running:" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not (folder / SUMMARY).exists() and not (folder / REPORT).exists()


def test_once_nobody_writes_it_any_more_it_is_made_as_ever(folder: Path) -> None:
    with writing(folder):
        report(folder)
    said = report(folder)
    assert "still running" not in said and "interrupted: these are partial results" in said
    assert "cut short" in said
    assert not (folder / REPORT_SO_FAR).exists()
    assert "Still running:" not in (folder / REPORT).read_text(encoding="utf-8")


def test_how_many_there_will_be_is_told_only_where_it_is_known(folder: Path) -> None:
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("num_runs: 12", "num_runs:"))
    with writing(folder):
        assert "still running: 2 runs so far, at " in report(folder)
    config.write_text(config.read_text().replace("num_runs:", "num_runs: many"))
    with writing(folder):
        assert "num_runs is 'many'; it must be a whole number" in report(folder)


def test_a_real_run_is_looked_at_while_it_goes_on_and_ends_as_if_nobody_had(tmp_path: Path) -> None:
    (tmp_path / "faults.yaml").write_text(SCENARIO)
    nursery = Nursery(tmp_path)
    try:
        live = nursery.start(*RUN, actions={"run_s": 0.3}, acks="live")
        nursery.wait_until(lambda: sum(word == "kept" for word, _ in nursery.acks("live")) >= 2, "kept run")
        (folder,) = (tmp_path / "results").iterdir()
        assert nursery.run("report", folder) == 0, nursery.said
        assert " of 7 runs so far" in nursery.said and not (folder / SUMMARY).exists()
        assert nursery.wait(live) == 0, nursery.said
    finally:
        nursery.close()
    assert len((folder / RUNS).read_text().splitlines()) == 7
    assert json.loads((folder / SUMMARY).read_text())["status"] == "completed"
    assert not (folder / REPORT_SO_FAR).exists()
