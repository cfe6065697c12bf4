"""The answer as Markdown, as JSON and on a terminal: the same words, names as they are, any width."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import report_fabrication as fabricate
import report_situations as situations
from records import make_request, make_run, make_step
from report_fabrication import HOSTILE
from rich.console import Console
from typer.testing import CliRunner

from suite.answer_table import print_answers
from suite.cli import app
from suite.report import markdown
from suite.report.answer import points
from suite.report.data import from_loaded
from suite.store import RunFolder

NAME = "Łukasz | 日本 `x` <b> & *y* 🙂"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder whose scenario has markup and other scripts in its name."""
    made = RunFolder.create(tmp_path, "formats")
    made.write_config({"scenarios": [{"name": NAME}], "invocation": {}, "cases": [], "skipped": []})
    made.write_environment({"command_line": "python -m suite run"})
    for number in range(2):
        requests, steps = [make_request("a")], [make_step(0, 0.0, 8.0)]
        made.write_steps(f"r{number}", steps)
        made.write_requests(f"r{number}", requests)
        made.append_run(make_run(requests, steps, run_id=f"r{number}", round=number, scenario=NAME))
    return made.path


def invoke(*words: object) -> str:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.stdout


# Markdown


def test_markdown_has_every_point_the_table_and_the_validity() -> None:
    data = situations.arms()
    text = markdown.render(data).replace("\u00a0", " ")
    for point in points(data.scenarios[0]):
        assert f"{point.label}:** {markdown.escape(point.text)}".replace("\u00a0", " ") in text
    lines = text.splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + 6 and len({line.count(" | ") for line in rows}) == 1
    assert "| skip | ✓ right (n = 1,344 tokens" in text and "1.225 faster (1.219 to 1.230" in text
    assert lines[-1] == "VALID: no rule was broken."
    assert len(text) < 4_000


def test_findings_and_interruption_stand_in_markdown_once_each() -> None:
    text = markdown.render(situations.no_valid_run())
    assert text.count("**INVALID: foreign-load**") == 1 and "? INVALID for timing: foreign-load" in text
    assert "> Interrupted" in markdown.render(from_loaded(fabricate.interrupted()))
    assert "no run was started" in markdown.render(situations.SITUATIONS["nothing"]())


def test_markdown_says_how_many_rounds_are_left_and_why() -> None:
    loaded = fabricate.loaded(num_rounds=3)
    loaded.summary = {
        "findings": [{"run_id": loaded.runs[-1].run_id, "rule": "foreign-load", "message": "", "remedy": ""}]
    }
    text = markdown.render(from_loaded(loaded)).replace("\u00a0", " ")
    assert text.count("n = 2 of 3 rounds: 1 INVALID (foreign-load)") >= 4  # the answer, and every time
    assert "**? Beware:** 1 run INVALID (foreign-load)" in text


def test_hostile_names_cannot_break_a_row_or_start_a_tag() -> None:
    text = markdown.render(from_loaded(fabricate.hostile()))
    assert "<" not in text and "\u2028" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    bars = {line.replace("\\|", "").count("|") for line in rows}
    assert len(rows) > 3 and len(bars) == 1
    assert markdown.escape("a|b`c`*d*_e_[f](g)") == r"a\|b\`c\`\*d\*\_e\_\[f\](g)"


def test_a_command_with_backquotes_is_fenced_by_more_of_them() -> None:
    assert markdown._code("a `b` c") == " `` a `b` c ``"
    assert markdown._code("a") == " `a`"


def test_a_long_table_is_cut_and_says_so() -> None:
    cases = [f"ratio={index}" for index in range(markdown.MAX_ROWS + 2)]
    text = markdown.render(
        from_loaded(fabricate.loaded(cases=cases, num_rounds=1, num_requests=2, num_steps=2))
    )
    assert f"{markdown.MAX_ROWS} of {len(cases)} rows are shown" in text


# suite report


def test_report_prints_markdown_or_strict_json_or_writes_either(folder: Path, tmp_path: Path) -> None:
    text = invoke("report", folder, "--format", "markdown")
    assert ("### Łukasz \\| 日本 \\`x\\` &lt;b&gt; &amp; \\*y\\* 🙂\n") in text
    document = json.loads(invoke("report", folder, "--format", "json"), parse_constant=pytest.fail)
    assert document == json.loads(invoke("report", folder, "--json"))
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert {key: document[key] for key in summary} == summary
    for form in ("markdown", "json", "html"):
        file = tmp_path / f"kept.{form}"
        assert invoke("report", folder, "--format", form, "--output", file) == ""
        assert file.stat().st_size > 500
    assert (tmp_path / "kept.markdown").read_text(encoding="utf-8") == text
    assert (tmp_path / "kept.html").read_bytes() == (folder / "report.html").read_bytes()


def test_two_forms_at_once_and_a_file_that_cannot_be_written_are_one_error(folder: Path) -> None:
    for words, told in (
        (("--json", "--format", "markdown"), "--json and --format markdown: give one of them"),
        (("--format", "markdown", "--output", folder / "no" / "x.md"), "is no directory"),
        (("--format", "pdf"), "pdf"),
    ):
        result = CliRunner().invoke(app, ["report", str(folder), *map(str, words)])
        assert result.exit_code == 2 and told in result.output and "Traceback" not in result.output


def test_in_the_c_locale_names_stay_as_they_are_in_every_form(folder: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTHONUTF8", None)
    environment.pop("PYTHONIOENCODING", None)
    for form, wanted in (("markdown", "Łukasz"), ("json", NAME), ("html", NAME)):
        done = subprocess.run(
            [sys.executable, "-m", "suite", "report", str(folder), "--format", form],
            env=environment,
            capture_output=True,
            timeout=120,
            check=True,
        )
        assert wanted in done.stdout.decode("utf-8"), form
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Łukasz | 日本 `x` &lt;b&gt; &amp; *y* 🙂" in page


@pytest.mark.parametrize(
    "form", [(), ("--format", "markdown"), ("--json",)], ids=["table", "markdown", "json"]
)
def test_where_only_ascii_can_be_printed_no_sign_of_ours_is_escaped(
    folder: Path, form: tuple[str, ...]
) -> None:
    config = folder / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace(NAME, "formats"), encoding="utf-8")
    runs = folder / "runs.jsonl"
    runs.write_text(
        runs.read_text(encoding="utf-8").replace(json.dumps(NAME, ensure_ascii=False), '"formats"')
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "suite", "report", str(folder), *form],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=120,
        check=True,
    )
    text = done.stdout.decode("ascii")
    assert not re.search(r"\\x[0-9a-f]{2}", text)
    if "--json" in form:
        assert json.loads(text)["status"] == "interrupted"
    else:
        assert not invoke("report", folder, *form).isascii()


# the terminal


def shown(width: int, **options: object) -> str:
    stream = io.StringIO()
    settings = {"file": stream, "width": width, "markup": False, "highlight": False, "emoji": False}
    print_answers(Console(**(settings | options)), situations.arms().scenarios)  # type: ignore[arg-type]
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_answer_fits_the_terminal_and_loses_no_word(width: int) -> None:
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for point in points(situations.arms().scenarios[0]):
        assert point.label in words or width == 40
        assert " ".join(point.text.split())[:12] in words


def test_colours_are_for_terminals_alone_and_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in shown(100, force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in shown(100, force_terminal=True)
    assert "\x1b" not in shown(100)


def test_names_with_brackets_are_printed_as_they_are() -> None:
    stream = io.StringIO()
    scenarios = from_loaded(fabricate.hostile()).scenarios
    print_answers(Console(file=stream, width=4000, markup=False, highlight=False, emoji=False), scenarios)
    assert HOSTILE.split("\u2028")[0].strip() in stream.getvalue()
