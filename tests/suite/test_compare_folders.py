"""`suite compare` on run folders: what it refuses, prints and writes, and its exit code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from compared_folders import ENVIRONMENT, experiment, write_folder
from records import make_step
from test_cli import ROOT, assert_refused, invoke

from suite.child_environment import child_environment
from suite.store import RunFolder

SLOWER = ("--fail-on", "output_throughput<-3%")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("runs") / "base", experiment(1, ids=1.1))


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("runs") / "slow", experiment(2, sync_ids=0.9, ids=1.1))


def test_a_slower_run_is_told_and_fails_only_a_limit(base, slow):
    result = invoke("compare", base, slow)
    assert result.exit_code == 0, result.output
    assert "1 slower, 1 equal within the floor" in result.stdout
    assert "unpaired" in result.stdout and "\x1b" not in result.stdout
    result = invoke("compare", base, slow, *SLOWER)
    assert result.exit_code == 1
    assert "FAILED: output_throughput<-3%: smoke, sync-ids: -9." in result.stdout
    assert "gate: 1 of 2 failed" in result.stdout
    assert invoke("compare", slow, base, *SLOWER).exit_code == 0


def test_a_metric_without_data_fails_the_gate_and_an_unknown_one_is_a_mistake(base, slow):
    result = invoke("compare", base, slow, "--fail-on", "request_goodput<-3%")
    assert result.exit_code == 1 and "FAILED, no data" in result.stdout
    assert_refused(invoke("compare", base, slow, "--fail-on", "goodput<-3%"), "goodput is no metric")
    assert_refused(invoke("compare", base, slow, "--metric", "output_troughput"), "output_throughput")


def test_what_cannot_be_told_does_not_fail_and_is_said_loudly(base, tmp_path):
    few = write_folder(tmp_path / "few", experiment(2, num_rounds=3, sync_ids=0.5, ids=1.1))
    result = invoke("compare", base, few, *SLOWER)
    assert result.exit_code == 0
    assert "CANNOT TELL: output_throughput<-3%" in result.stdout
    assert "2 CANNOT TELL and so do not fail" in result.stdout


def test_an_arm_that_the_head_lacks_fails_the_gate(base, tmp_path):
    partial = write_folder(tmp_path / "partial", experiment(2))
    result = invoke("compare", base, partial, "--fail-on", "output_throughput<-50%")
    assert result.exit_code == 1 and "arm ids of" in result.stdout and "is missing in" in result.stdout
    assert "gate: 1 of 2 failed" in result.stdout
    assert invoke("compare", base, partial).exit_code == 0
    assert invoke("compare", partial, base, *SLOWER).exit_code == 0


def test_another_machine_is_refused_by_name_and_marked_where_it_is_asked_for(base, tmp_path):
    other = ENVIRONMENT.model_copy(update={"cpu_model": "Slow CPU", "python": "CPython 3.12.1"})
    far = write_folder(tmp_path / "far", experiment(2, ids=1.1), other)
    result = invoke("compare", base, far)
    assert_refused(result, "CPU model: Fast CPU in the base, Slow CPU there", "Python", "--across-machines")
    result = invoke("compare", base, far, "--across-machines")
    assert result.exit_code == 0
    assert "ACROSS MACHINES" in result.stdout
    assert result.stdout.count("equal within the floor (across machines)") == 2
    document = json.loads(invoke("compare", base, far, "--across-machines", "--json").stdout)
    assert all(one["across_machines"] for one in document["differences"])
    page = tmp_path / "page.html"
    invoke("compare", base, far, "--across-machines", "-o", page)
    assert page.read_text().count("(across machines)") == 2
    text = invoke("compare", base, far, "--across-machines", "--format", "markdown").stdout
    assert text.count("(across machines)") == 2 and "ACROSS MACHINES" in text


def test_a_folder_without_an_environment_is_not_known_to_be_of_the_same_machine(base, tmp_path):
    unknown = write_folder(tmp_path / "unknown", experiment(2), None)
    assert_refused(invoke("compare", base, unknown), "CPU model: Fast CPU in the base, not recorded there")


def test_one_folder_alone_twice_or_none_is_a_mistake(base, tmp_path):
    assert_refused(invoke("compare", base), "name two run folders")
    assert_refused(invoke("compare", base, base / "." / "steps" / ".."), "are one folder")
    assert_refused(invoke("compare", base, tmp_path / "nowhere"), "is not the folder of a run")


def test_a_copy_of_a_run_is_told_and_no_gate_opens_on_it(base, slow, tmp_path):
    copy = shutil.copytree(base, tmp_path / "copy")
    words = (f"{copy} is a copy of {base}: all 30 runs are the same in both", "never its own base")
    assert_refused(invoke("compare", base, copy, *SLOWER), *words)
    assert_refused(invoke("compare", base, slow, copy), *words)
    runs = copy / "runs.jsonl"
    runs.write_text("".join(runs.read_text().splitlines(keepends=True)[:-1]))  # no longer the same
    assert invoke("compare", base, copy).exit_code == 0


@pytest.mark.parametrize("suffix", [".md", ".json", ".html"])
def test_a_file_is_written_in_the_form_its_name_ends_in(base, slow, tmp_path, suffix):
    file = tmp_path / f"found{suffix}"
    result = invoke("compare", base, slow, *SLOWER, "--output", file)
    assert result.exit_code == 1 and f"written: {file}" in result.stdout
    text = file.read_text(encoding="utf-8")
    assert "slower" in text and "sync-ids" in text and "NaN" not in text
    if suffix == ".json":
        document = json.loads(text)
        assert document["is_broken"] and document["differences"][0]["verdict"] == "slower"
        assert document["differences"][0]["interval_kind"] == "unpaired"
        assert document["gate"][0]["outcome"] == "broken"


def test_a_file_of_no_known_form_and_an_unwritable_one_are_mistakes(base, slow, tmp_path):
    assert_refused(invoke("compare", base, slow, "-o", tmp_path / "found.txt"), "--format")
    assert_refused(invoke("compare", base, slow, "-o", tmp_path / "f.md", "--format", "table"), "markdown")
    assert_refused(invoke("compare", base, slow, "--json", "--format", "html"), "--json")
    assert_refused(invoke("compare", base, slow, "-o", tmp_path / "no" / "f.md"), "cannot write")


def test_three_runs_are_compared_each_with_the_first(base, slow, tmp_path):
    third = write_folder(tmp_path / "third", experiment(3, ids=1.3))
    document = json.loads(invoke("compare", base, slow, third, "--json").stdout)
    found = {(one["head"].rpartition("-")[2], one["arm"]): one["verdict"] for one in document["differences"]}
    assert found == {
        ("slow", "sync-ids"): "slower",
        ("slow", "ids"): "equal within the floor",
        ("third", "sync-ids"): "equal within the floor",
        ("third", "ids"): "faster",
    }


def test_a_run_of_an_older_version_lacks_a_metric_and_one_of_another_schema_is_left_out(base, tmp_path):
    runs = [
        run.model_copy(update={"metrics": {k: v for k, v in run.metrics.items() if k != "p99_ttft_ms"}})
        for run in experiment(2)
    ]
    old = write_folder(tmp_path / "old", runs)
    result = invoke("compare", old, base, "--metric", "p99_ttft_ms", "--metric", "output_throughput")
    assert result.exit_code == 0, result.output
    (row,) = [
        line for line in result.stdout.splitlines() if line.strip().startswith("smoke") and "p99" in line
    ]
    assert row.count("n/a") == 4 and "cannot tell" in row
    text = (old / "runs.jsonl").read_text().replace('"schema_version": 1', '"schema_version": 99')
    (old / "runs.jsonl").write_text(text)
    result = invoke("compare", old, base)
    assert result.exit_code == 0 and "schema version 99" in result.stdout
    assert "nothing was compared" in result.stdout and "has no partner in" in result.stdout
    assert invoke("compare", old, base, *SLOWER).exit_code == 1


def test_runs_that_broke_a_rule_by_the_summary_or_by_what_was_recorded_do_not_enter(base, tmp_path):
    slow = write_folder(tmp_path / "slow", experiment(2, sync_ids=0.9, ids=1.1))

    def num_rounds():
        document = json.loads(invoke("compare", base, slow, "--json").stdout)
        return {one["arm"]: one["num_head_rounds"] for one in document["differences"]}

    assert num_rounds() == {"sync-ids": 10, "ids": 10}
    finding = {"run_id": "ids-r3", "rule": "noise", "message": "a", "remedy": "b", "is_timing": True}
    (slow / "summary.json").write_text(json.dumps({"status": "completed", "findings": [finding]}))
    assert num_rounds() == {"sync-ids": 10, "ids": 9}
    RunFolder(slow).write_steps("sync-ids-r2", [make_step(0, 0, 30, num_tokens=3)])
    assert num_rounds() == {"sync-ids": 10, "ids": 9}
    for text in ('{"status": "completed"}', '{"status": "completed", "findings": 3}'):
        (slow / "summary.json").write_text(text)
        assert num_rounds() == {"sync-ids": 9, "ids": 10}
    (slow / "summary.json").unlink()
    assert num_rounds() == {"sync-ids": 9, "ids": 10}


def test_names_cannot_break_a_markdown_table_or_the_page(base, slow, tmp_path):
    name = "a|b <script>x</script> `c` *d*"
    runs = [
        [run.model_copy(update={"scenario": name, "case_label": name}) for run in experiment(seed)]
        for seed in (1, 2)
    ]
    folders = [write_folder(tmp_path / f"odd{number}", of) for number, of in enumerate(runs)]
    text = invoke("compare", *folders, "--format", "markdown").stdout
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 3
    assert {row.replace("\\|", "").count("|") for row in rows} == {rows[0].count("|")}
    assert "<script" not in text.replace("\\<script", "")
    page = invoke("compare", *folders, "--format", "html").stdout
    assert "<script" not in page and "&lt;script" in page


def test_the_page_is_whole_works_offline_and_has_what_differs_first(base, slow):
    page = invoke("compare", base, slow, *SLOWER, "--format", "html").stdout
    assert page.startswith("<!DOCTYPE html>") and "http://" not in page and "https://" not in page
    assert "default-src 'none'" in page
    assert page.index("What differs") < page.index("What is equal, or cannot be told")
    assert page.index("The gate failed") < page.index("What differs")
    parser = _Balance()
    parser.feed(page)
    assert parser.open == []


def test_the_page_names_both_runs_and_gives_each_reason_once(base, slow, tmp_path):
    few = write_folder(tmp_path / "few", experiment(3, num_rounds=3, ids=1.1))
    page = invoke("compare", base, few, "--fail-on", "output_throughput<-3%", "--format", "html").stdout
    for reason in ("10 and 3 rounds", "3 and 10 rounds", "A/A: cannot tell"):
        assert page.count(reason) <= 1
    assert page.count("at least 5 of each are needed") == 1
    title = page[page.index("<title>") : page.index("</title>")]
    assert f"B {few.name} (commit aaaaaaaaaaaa) against A {base.name} (commit aaaaaaaaaaaa)" in title
    assert f"<li>A, the base: {base.name} (commit aaaaaaaaaaaa)</li>" in page and "A (base)" in page
    numbers = set(re.findall(r"\[(\d+)\]", page))
    why = page[page.index("Why: the numbers in brackets") :]
    assert numbers and all(f'<span class="line">[{number}]</span>' in why for number in numbers)


def test_a_baseline_is_called_by_the_ref_it_was_asked_for(tmp_path):
    folders = [
        write_folder(
            tmp_path / side,
            experiment(seed, ids=1.1),
            invocation={"interleaved": {"id": "1", "side": side, "ref": "v1.2", "commit": "a" * 40}},
        )
        for seed, side in ((1, "baseline"), (2, "head"))
    ]
    page = invoke("compare", *folders, "--format", "html").stdout
    assert "<li>A, the base: v1.2 (commit aaaaaaaaaaaa)</li>" in page
    assert f"<li>B: {folders[1].name} (commit aaaaaaaaaaaa)</li>" in page


def test_a_compared_side_says_how_many_of_its_rounds_are_invalid(base, tmp_path):
    slow = write_folder(tmp_path / "slow", experiment(2, sync_ids=0.9, ids=1.1))
    finding = {"run_id": "ids-r3", "rule": "noise", "message": "a", "remedy": "b", "is_timing": True}
    (slow / "summary.json").write_text(json.dumps({"status": "completed", "findings": [finding]}))
    told = "n = 9 of 10 rounds: 1 INVALID (noise)"
    assert invoke("compare", base, slow).stdout.count(told) == 1
    assert invoke("compare", base, slow, "--format", "html").stdout.replace("\u00a0", " ").count(told) == 1


class _Balance(HTMLParser):
    """Open elements, void ones left out."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("columns", ["40", "400"])
def test_a_narrow_terminal_gets_lines_in_place_of_a_table(base, slow, columns):
    environment = {**child_environment(), "COLUMNS": columns, "NO_COLOR": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "suite", "compare", str(base), str(slow)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert ("verdict: slower" in process.stdout) == (columns == "40")
    assert "\x1b[3" not in process.stdout
