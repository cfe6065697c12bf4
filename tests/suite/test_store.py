"""A run folder survives what happens to files: kills, full disks, odd names, two starts in one second."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import START_NS, failed_request, make_request, make_run, make_step

from runner.spans import Span
from suite.checks import check_runs
from suite.errors import SuiteError
from suite.publish import publish
from suite.record import Metric
from suite.store import RUNS, RunFolder, load_run, read_config, safe_name, to_json, write_file

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.create(tmp_path / "results", "smoke", NOON)
    folder.write_config({"scenarios": [{"name": "smoke"}], "skipped": []})
    return folder


def test_a_folder_is_named_by_utc_time_and_label(folder):
    assert folder.path.name == "20260301T120000Z-smoke"
    assert (folder.path / "steps").is_dir() and (folder.path / "requests").is_dir()


def test_runs_started_in_the_same_second_never_share_a_folder(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: RunFolder.create(tmp_path, "smoke", NOON).path, range(16)))
    assert len(set(made)) == 16


def test_steps_come_back_as_they_were_whatever_buffers_each_used(folder):
    steps = [
        make_step(
            0, 0, 10, "prefill", copies={"staging": 1, "pixels": 2}, bytes={"staging": 64, "pixels": 9}
        ),
        make_step(1, 10, 20, copies={"staging": 1}, bytes={"staging": 2**53 + 1}),
        make_step(2, 20, 30, hash_ns=7, num_draft_tokens=6, num_accepted_tokens=1, graph_rows=8),
    ]
    folder.write_steps("r", steps)
    loaded = load_run(folder.path)
    assert loaded.step_records("r") == steps
    frame = loaded.steps("r")
    assert frame["copies.pixels"].tolist() == [2, 0, 0]
    assert frame["bytes.staging"].tolist() == [64, 2**53 + 1, 0]
    assert {str(frame[name].dtype) for name in frame if "." in name or name.endswith("_ns")} == {"int64"}


def test_requests_come_back_as_they_were_nulls_and_big_numbers_included(folder):
    requests = [
        make_request("a", num_tokens_right=3, num_tokens_wrong=0, num_tokens_tied=0),
        make_request("b", token_ms=(10,)),
        failed_request("c", error="prompt </script> 太长 🧨\u2028"),
        make_request("d", num_cached_tokens=4, num_drafted_tokens=5, num_accepted_tokens=2),
        make_request("e", logprobs=(-0.1, -(2.0**-40), -1e-9)),
        failed_request("f"),
        make_request("g", token_ms=(), logprobs=()),
        make_request("h", first_wrong=1, expected_from=0, expected_ids=(7, 2**40)),
        make_request("i", first_wrong=0, expected_texts=(" Łódź", "", "\u2028"), produced_texts=("🧨",)),
    ]
    folder.write_requests("r", requests)
    loaded = load_run(folder.path)
    assert loaded.request_records("r") == requests
    frame = loaded.requests("r")
    assert frame["first_scheduled_ns"].iloc[0] == START_NS + 5_000_000
    assert frame["tpot_ms"].isna().tolist()[:3] == [False, True, True]
    assert frame["undefined"].iloc[1] == "itl_ms: one output token; tpot_ms: one output token"


def test_tables_of_no_rows_and_of_runs_that_wrote_none_have_their_columns(folder):
    folder.write_steps("empty", [])
    folder.write_requests("empty", [])
    loaded = load_run(folder.path)
    for run_id in ("empty", "never-written"):
        assert loaded.step_records(run_id) == [] and loaded.request_records(run_id) == []
        assert "start_ns" in loaded.steps(run_id) and "token_ns" in loaded.requests(run_id)


def test_records_are_readable_after_every_single_append(folder):
    for number in range(3):
        folder.append_run(make_run([make_request()], run_id=f"r{number}", round=number))
        assert [run.round for run in load_run(folder.path).runs] == list(range(number + 1))


def test_a_last_line_that_a_kill_cut_off_is_left_out_with_a_warning(folder):
    folder.append_run(make_run([make_request()]))
    with (folder.path / RUNS).open("ab") as file:
        file.write(to_json(make_run([make_request()]).model_dump(mode="json"))[:200])
    loaded = load_run(folder.path)
    assert len(loaded.runs) == 1
    assert any("line 2: cut short" in text for text in loaded.warnings)
    assert loaded.is_interrupted


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (lambda line: b'{"schema_version": 1, "run_id":', "not the record of a run"),
        (lambda line: b" ", "the line is blank"),
        (lambda line: b"[" * 100_000, "not the record of a run"),
        (lambda line: line.replace(b'"duration_s": ', b'"duration_s": NaN, "x": '), "NaN is no number"),
        (lambda line: line.replace(b'"seed"', b'"sead"'), "seed: Field required"),
        (lambda line: line[:-1] + b', "more": 1}', "more: Extra inputs"),
    ],
)
def test_a_damaged_line_is_left_out_with_a_warning(folder, changes, words):
    folder.append_run(make_run([make_request()]))
    path = folder.path / RUNS
    path.write_bytes(changes(path.read_bytes().strip()) + b"\n" + path.read_bytes())
    loaded = load_run(folder.path)
    assert len(loaded.runs) == 1
    (warning,) = (text for text in loaded.warnings if "line 1" in text)
    assert words in warning and "left out" in warning and "pydantic" not in warning


def kept_run(folder, run_id):
    """A run with its tables, as a worker leaves it."""
    requests = [make_request("a"), make_request("b")]
    steps = [make_step(0, 0, 10, "prefill", num_tokens=16), make_step(1, 10, 30, num_tokens=4)]
    folder.write_steps(run_id, steps)
    folder.write_requests(run_id, requests)
    folder.append_run(make_run(requests, steps, run_id=run_id))


def without_rows(table, count):
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(table).slice(0, count), table)


DAMAGES = {
    "missing": (lambda table: table.unlink(), "is missing"),
    "empty": (lambda table: table.write_bytes(b""), "cannot read"),
    "cut short": (lambda table: table.write_bytes(table.read_bytes()[:400]), "cannot read"),
    "without rows": (lambda table: without_rows(table, 0), "holds 0 of the 2 "),
    "short of a row": (lambda table: without_rows(table, 1), "holds 1 of the 2 "),
}


@pytest.mark.parametrize("kind", ["steps", "requests"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_whose_table_is_gone_is_shown_with_one_finding_about_that_file(folder, kind, damage):
    for run_id in ("first", "second"):
        kept_run(folder, run_id)
    table = folder.path / kind / "first.parquet"
    spoil, words = DAMAGES[damage]
    spoil(table)
    loaded = load_run(folder.path)
    assert [run.run_id for run in loaded.runs] == ["first", "second"]
    assert [run.run_id for run in loaded.whole_runs] == ["second"]
    findings = check_runs(loaded.runs, loaded.request_records, loaded.step_records)
    (finding,) = [one for one in findings if one.run_id == "first"]
    assert finding.rule == "tables-damaged" and str(table) in finding.message and words in finding.message
    assert "--resume" in finding.remedy and not finding.is_timing
    assert loaded.steps("first").empty == (kind == "steps")
    assert loaded.requests("first").empty == (kind == "requests")


def test_a_damaged_table_of_a_warm_up_is_a_warning_for_nobody_judges_it(folder):
    kept_run(folder, "fine")
    requests, steps = [make_request()], [make_step(0, 0, 10, "prefill", num_tokens=10)]
    folder.append_run(make_run(requests, steps, run_id="cold", is_warmup=True))
    found = publish(folder.path)
    assert [text for text in found.warnings if "cold.parquet is missing" in text]
    assert not [finding for finding in found.findings if finding.run_id == "cold"]


def test_tables_of_before_caching_drafts_and_logprobs_are_read_as_having_had_none(folder):
    import pyarrow.parquet as pq

    folder.append_run(make_run([make_request()], [make_step(0, 0, 1)], run_id="r"))
    folder.write_requests("r", [make_request()])
    folder.write_steps("r", [make_step(0, 0, 1)])
    later = {"steps": ["hash_ns", "num_draft_tokens", "num_accepted_tokens", "graph_rows"]}
    later["requests"] = ["num_cached_tokens", "num_drafted_tokens", "num_accepted_tokens", "logprobs"]
    later["requests"] += ["expected_from", "expected_ids", "expected_texts", "produced_texts"]
    for kind, names in later.items():
        path = folder.path / kind / "r.parquet"
        pq.write_table(pq.read_table(path).drop_columns(names), path)
    loaded = load_run(folder.path)
    assert [run.run_id for run in loaded.runs] == ["r"]
    assert loaded.request_records("r") == [make_request()]
    assert loaded.step_records("r") == [make_step(0, 0, 1)]


def test_a_column_without_its_values_is_told_with_its_name(folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.append_run(make_run([make_request()], run_id="r"))
    folder.write_requests("r", [make_request()])
    path = folder.path / "requests" / "r.parquet"
    table = pq.read_table(path)
    index = table.column_names.index("sent_ns")
    pq.write_table(table.set_column(index, "sent_ns", pa.nulls(len(table), pa.int64())), path)
    loaded = load_run(folder.path)
    assert not loaded.whole_runs and "the column sent_ns has no value" in loaded.damage("r")
    with pytest.raises(SuiteError, match="the column sent_ns has no value"):
        loaded.request_records("r")


@pytest.mark.parametrize("findings", ["null", "3", '"text"', '[{"odd": 1}]', "[3]"])
def test_damaged_findings_of_a_summary_are_left_out(folder, findings):
    (folder.path / "summary.json").write_text(f'{{"findings": {findings}}}')
    loaded = load_run(folder.path)
    assert loaded.validity == () and any("findings are damaged" in text for text in loaded.warnings)


def test_a_summary_nested_too_deeply_is_left_out(folder):
    (folder.path / "summary.json").write_text("[" * 100_000)
    assert any("nested too deeply" in text for text in load_run(folder.path).warnings)


@pytest.mark.parametrize(
    "config",
    [
        "scenarios: 3",
        "cases: 3",
        "skipped: 3",
        "skipped: [{a: 1}]",
        "invocation: 3",
        "scenarios: !!bool x",
        "3",
        "scenarios: " + "[" * 5_000,
    ],
)
def test_a_damaged_configuration_is_told_with_its_file_and_hides_no_run(folder, config):
    (folder.path / "config.yaml").write_text(config)
    with pytest.raises(SuiteError, match=r"config\.yaml"):  # without a run it is the folder of none
        load_run(folder.path)
    kept_run(folder, "r")
    loaded = load_run(folder.path)
    assert [run.run_id for run in loaded.runs] == ["r"]
    assert [text for text in loaded.warnings if "config.yaml" in text and "not shown" in text]
    with pytest.raises(SuiteError, match=r"config\.yaml"):
        read_config(folder.path)


def test_a_loop_of_links_or_a_long_name_is_no_run_folder(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("loop", "x" * 300):
        with pytest.raises(SuiteError):
            load_run(tmp_path / name)


@pytest.mark.parametrize("name", ["file", "file/below", "\udcff"])
def test_a_folder_that_cannot_be_is_refused_before_it_is_made(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(SuiteError, match=r"not a directory|not UTF-8"):
        RunFolder.create(tmp_path / name, "smoke", NOON)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_records_of_another_schema_version_are_left_out_by_name(folder):
    run = make_run([make_request()]).model_dump(mode="json") | {"schema_version": 99}
    (folder.path / RUNS).write_bytes(to_json(run) + b"\n")
    loaded = load_run(folder.path)
    assert not loaded.runs
    assert any("schema version 99, this program reads 1" in text for text in loaded.warnings)


def test_a_metric_that_an_older_file_lacks_is_simply_absent(folder):
    run = make_run([make_request()])
    fewer = {name: metric for name, metric in run.metrics.items() if name != "p99_itl_ms"}
    folder.append_run(run.model_copy(update={"metrics": fewer}))
    assert "p99_itl_ms" not in load_run(folder.path).runs[0].metrics


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(SuiteError, match=r"is not the folder of a run: it has no config\.yaml"):
        load_run(tmp_path)


def test_a_folder_that_cannot_be_made_is_told_with_its_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SuiteError, match=r"cannot write .*file.*--output-dir"):
        RunFolder.create(tmp_path / "file" / "results", "smoke")


def test_a_disk_that_fills_up_is_told_and_leaves_earlier_runs_intact(folder, monkeypatch):
    folder.append_run(make_run([make_request()]))

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SuiteError, match=r"cannot write .*runs\.jsonl: No space left on device"):
        folder.append_run(make_run([make_request()], run_id="second"))
    with pytest.raises(SuiteError, match=r"cannot write .*r\.parquet: No space left"):
        folder.write_steps("r", [make_step(0, 0, 1)])
    monkeypatch.undo()
    loaded = load_run(folder.path)
    assert len(loaded.runs) == 1 and not any("cut short" in text for text in loaded.warnings)
    assert not list((folder.path / "steps").iterdir())


LIMITED = """
import resource, signal, sys
from pathlib import Path
from records import make_request, make_run
from suite.errors import SuiteError
from suite.store import RunFolder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
folder = RunFolder(Path(sys.argv[1]))
try:
    for number in range(50):
        folder.append_run(make_run([make_request()], run_id=f"r{number}"))
except SuiteError as error:
    print(number, error)
"""


def test_a_limit_that_the_system_itself_sets_cuts_no_line_in_half(folder):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(folder.path)], env=env, capture_output=True, text=True, timeout=60
    )
    assert "cannot write" in done.stdout and "File too large" in done.stdout, done.stderr
    number = int(done.stdout.split()[0])
    loaded = load_run(folder.path)
    assert number > 0 and len(loaded.runs) == number
    assert not any("cut short" in text for text in loaded.warnings)


def test_json_is_strict():
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"x": float("nan")})
    with pytest.raises(ValueError, match="finite"):
        Metric(name="x", value=float("inf"), unit="s", num_samples=1, better="lower")
    text = to_json({"name": "</script> \u2028 太 🧨 \udc80"})
    assert json.loads(text.decode("utf-8"))["name"].startswith("</script> \u2028 太 🧨")


def test_odd_names_survive_in_the_c_locale(tmp_path):
    name = "Łukasz 测试 🧨 \u2028 </script>"
    code = (
        "import sys; from pathlib import Path; from suite.store import RunFolder, load_run\n"
        f"name = {name!a}\n"
        "folder = RunFolder.create(Path(sys.argv[1]), name)\n"
        "folder.write_config({'scenarios': [{'name': name}]})\n"
        "folder.write_environment({'name': name})\n"
        "loaded = load_run(folder.path)\n"
        "assert loaded.config[0]['name'] == name and loaded.environment['name'] == name, loaded\n"
        "print(folder.path.name.isascii())"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "True", done.stderr


def test_plain_names_stay_and_others_become_slugs_with_a_hash():
    assert safe_name("azure-lmm_2025") == "azure-lmm_2025"
    assert safe_name("Smoke test!").startswith("smoke-test-")
    assert safe_name("Smoke test!") != safe_name("smoke test?")
    assert len(safe_name("x" * 500)) <= 48


@given(st.text(min_size=1, max_size=80), st.text(min_size=1, max_size=80))
def test_any_two_names_give_two_safe_file_names(one, other):
    for name in (safe_name(one), safe_name(other)):
        assert name and Path(name).name == name and name.isascii() and len(name) <= 48
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_")
    if one != other:
        assert safe_name(one) != safe_name(other)


def test_spans_come_back_as_they_were_with_and_without_times(tmp_path):
    folder = RunFolder.create(tmp_path, "spans")
    folder.write_config({"scenarios": []})
    spans = [
        Span(0, "forward", "compute", 2**60, 2**60 + 1),
        Span(1, "draft", "output", None, None, "it was not done"),
        Span(-1, "wait.arrivals", "host", 5, 9),
    ]
    folder.write_spans("r", spans)
    loaded = load_run(folder.path)
    assert loaded.spans("r") == spans
    assert loaded.spans("a run without instruments") == []


def test_an_output_goes_into_what_is_no_file_and_through_a_link(tmp_path):
    fifo, link, target = tmp_path / "fifo", tmp_path / "link", tmp_path / "target"
    target.write_text("old")
    link.symlink_to(target)
    write_file(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
    os.mkfifo(fifo)
    read = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    write_file(fifo, b"all of it")
    reader.join(timeout=20)
    assert read == [b"all of it"] and fifo.is_fifo()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("runs.jsonl", "a run's own records lie there"),
        ("config.yaml", "a run's own records lie there"),
        ("summary.json", "a run's own records lie there"),
        ("steps/r.parquet", "a run's own records lie there"),
        (".", "it is a directory; name a file in it"),
        ("steps", "it is a directory; name a file in it"),
    ],
)
def test_an_output_never_takes_the_place_of_a_record_or_a_folder(tmp_path, name, told):
    folder = RunFolder.create(tmp_path, "t")
    folder.write_config({})
    (folder.path / "steps").mkdir(exist_ok=True)
    (folder.path / "runs.jsonl").write_text("kept")
    with pytest.raises(SuiteError, match=told):
        write_file(folder.path / name, b"x")
    assert (folder.path / "runs.jsonl").read_text() == "kept"


def test_an_empty_output_is_one_line():
    with pytest.raises(SuiteError, match=r"^--output : it is empty; name a file$"):
        write_file(Path(), b"x")
