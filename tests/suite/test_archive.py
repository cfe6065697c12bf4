"""A run folder in one file: whole where it fits, thinned evenly where not, and no figure that hides it."""

from __future__ import annotations

import json
import random
import shutil
import tarfile
from collections import Counter
from functools import partial
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from records import MS, START_NS, make_request, make_run, make_step
from typer.testing import CliRunner

from runner.spans import NO_STEP, Span
from suite.archive import LIMIT_BYTES, pack
from suite.archive_note import NOTE, ArchiveNote, ListedTimes, read_note
from suite.checks import check_runs
from suite.cli import app
from suite.errors import KeyedError, SuiteError
from suite.folder_lock import writing
from suite.profile import commands as profile_commands
from suite.publish import publish, sum_up
from suite.record import StepListRecord
from suite.report.markdown import render as render_markdown
from suite.resume import Given, reopen
from suite.step_list_recorded import read_recorded
from suite.store import RunFolder, load_run, to_json
from suite.thinning import kept_rows, num_kept

ARMS = ("async-rows", "async-fill", "skip")
NUM_ROUNDS, NUM_STEPS, PERIOD = 6, 900, 9
ALL_STEPS = (len(ARMS) * NUM_ROUNDS + 2) * NUM_STEPS
TOKENS = {"prefill": 32, "decode": 16, "mixed": 96}


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def steps_of(draw, ms_of_a_decode):
    """A lead-in step, then eight decodes and a mixed step, again and again; no two take the same time."""
    steps, end_ms = [], 0.0
    for number in range(NUM_STEPS):
        kind = "prefill" if number == 0 else "mixed" if number % PERIOD == 0 else "decode"
        took = ms_of_a_decode * (3 if kind == "mixed" else 1) * draw.uniform(0.9, 1.1)
        steps.append(
            make_step(
                number,
                end_ms,
                end_ms + took,
                kind,
                num_rows=1,
                num_tokens=TOKENS[kind],
                num_supplied_rows=8 if kind == "prefill" else 0,
                device_start_ns=START_NS + round(end_ms * MS),
                device_end_ns=START_NS + round((end_ms + took) * MS) - 1000,
                schedule_ns=draw.randrange(10_000, 90_000),
                copies={"is_token_ids": 1, "staging": 1},
                bytes={"is_token_ids": TOKENS[kind], "staging": draw.randrange(100, 4000)},
            )
        )
        end_ms += took
    return steps


def spans_of(steps):
    waits_ns = [START_NS - 1000 + 10 * number for number in range(20)]
    spans = [Span(NO_STEP, "wait.arrivals", "host", at_ns, at_ns + 5) for at_ns in waits_ns]
    for step in steps:
        spans += [
            Span(step.step_id, "launch", "host", step.start_ns, step.start_ns + 50_000),
            Span(step.step_id, "forward", "compute", step.device_start_ns, step.device_end_ns),
            Span(step.step_id, f"step {step.kind} host/lookup", "steps", step.start_ns, step.end_ns),
        ]
    return spans


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return made(tmp_path_factory.mktemp("template"))


@pytest.fixture
def run_dir(template, tmp_path):
    """Rounds of a list of steps in three arms, an instrumented run of one, and one with repeats."""
    return Path(shutil.copytree(template, tmp_path / template.name))


def made(parent):
    draw = random.Random(3)
    folder = RunFolder.create(parent, "listed")
    case = {"scenario": "smoke", "case_id": make_run().case_id, "reference": ARMS[0], "primary_metrics": []}
    config = {"scenarios": [{"name": "smoke", "arms": list(ARMS)}], "cases": [case], "skipped": []}
    folder.write_config(config)
    folder.write_environment({"cpu_model": "a processor"})
    for number in range(NUM_ROUNDS):
        for place, arm in enumerate(ARMS):
            add(folder, draw, f"{arm}-r{number}", arm, 10.0 - place, round=number)
    add(folder, draw, "skip-i0", "skip", 8.0, instrument="events")
    add(folder, draw, "skip-a0-0", "skip", 8.0, repeats={"merge": 9}, step_list=None)
    return folder.path


def add(folder, draw, run_id, arm, ms_of_a_decode, **changes):
    steps = steps_of(draw, ms_of_a_decode)
    ends = [(step.end_ns - START_NS) / MS for step in steps]
    count = sum(step.num_tokens for step in steps)
    request = make_request("q0", first_ms=0.0, token_ms=ends, num_prompt_tokens=count - len(ends) + 1)
    listed = StepListRecord(
        hash="list",
        num_steps=NUM_STEPS,
        lead_in=((0, 1),),
        commands={"decode": f"{arm} decode", "mixed": f"{arm} mixed"},
    )
    given = {"run_id": run_id, "arm": arm, "scheduling": "async", "step_list": listed} | changes
    folder.append_run(make_run([request], steps, duration_s=ends[-1] / 1000, **given))
    folder.write_steps(run_id, steps)
    folder.write_requests(run_id, [request])
    if changes.get("instrument"):
        folder.write_spans(run_id, spans_of(steps))


def unpacked(archive, where):
    where.mkdir(exist_ok=True)
    with tarfile.open(fileobj=BytesIO(archive.content)) as tar:
        tar.extractall(where, filter="data")
    (folder,) = where.iterdir()
    return folder


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def thinned(run_dir, tmp_path, share=0.5):
    """Packed into that share of what the whole takes, and unpacked again; without a page, which is large."""
    (run_dir / "report.html").unlink(missing_ok=True)
    archive = pack(run_dir, round(share * len(pack(run_dir).content)))
    return archive, unpacked(archive, tmp_path / f"unpacked-{share}")


# What is in it


def test_a_folder_that_fits_is_packed_whole_and_always_into_the_same_bytes(run_dir, tmp_path):
    (run_dir / ".summary.json.7.8.tmp").write_text("half wri")
    (run_dir / "elsewhere").symlink_to("/etc/hostname")
    (run_dir / "notes").mkdir()
    (run_dir / "notes" / "worker.log").write_text("a log\n")
    archive = pack(run_dir)
    assert archive == pack(run_dir) and archive.one_in == 1 and archive.left_out == ()
    whole = contents(run_dir)
    del whole[".summary.json.7.8.tmp"], whole["elsewhere"]
    folder = unpacked(archive, tmp_path / "unpacked")
    assert folder.name == run_dir.name and contents(folder) == whole
    assert len(archive.content) <= LIMIT_BYTES and archive.num_files == len(whole)
    with tarfile.open(fileobj=BytesIO(archive.content)) as tar:
        assert {(entry.uid, entry.uname, entry.gname) for entry in tar} == {(0, "", "")}


def test_too_large_a_folder_keeps_every_run_and_of_each_kind_of_step_one_in_k(run_dir, tmp_path):
    publish(run_dir)
    (run_dir / "comparison.html").write_text("a page of all steps")
    archive, folder = thinned(run_dir, tmp_path)
    k = archive.one_in
    assert k > 1 and archive == pack(run_dir, round(0.5 * len(pack(run_dir).content)))
    before, after = contents(run_dir), contents(folder)
    tables = {name for name in before if name.startswith(("steps/", "spans/"))}
    assert {name: after[name] for name in before.keys() - tables} == {
        name: content for name, content in before.items() if name not in tables
    }
    assert after.keys() == before.keys() | {NOTE}
    total = 0
    for run in load_run(run_dir).runs:
        whole = load_run(run_dir).step_records(run.run_id)
        kept = load_run(folder).kept_step_records(run.run_id)
        wanted = [step for kind in TOKENS for step in [one for one in whole if one.kind == kind][::k]]
        assert kept == sorted(wanted, key=lambda step: step.step_id) and kept[0] == whole[0]
        total += len(kept)
    assert (archive.num_kept, archive.num_steps) == (total, ALL_STEPS)
    ids = {step.step_id for step in load_run(folder).kept_step_records("skip-i0")}
    spans = load_run(folder).spans("skip-i0")
    assert {span.step_id for span in spans if span.step_id >= 0} == ids
    assert len(spans) == 3 * len(ids) + -(-20 // k)


def test_a_pattern_of_steps_is_never_hit_by_its_own_length():
    """One in nine of eight decodes and a mixed step would be mixed steps, or decodes, alone."""
    decodes, mixed = NUM_STEPS - NUM_STEPS // PERIOD, NUM_STEPS // PERIOD - 1
    for one_in in (2, 3, 8, PERIOD, 2 * PERIOD):
        kinds = ["prefill", *(["decode"] * 8 + ["mixed"]) * (NUM_STEPS // PERIOD)][:NUM_STEPS]
        kept = [kind for kind, is_kept in zip(kinds, kept_rows(kinds, one_in), strict=True) if is_kept]
        assert (kept.count("decode"), kept.count("mixed")) == (-(-decodes // one_in), -(-mixed // one_in))
        assert num_kept(Counter(kinds), one_in) == len(kept)


def test_more_room_keeps_more_steps(run_dir):
    whole = len(pack(run_dir).content)
    kept = [pack(run_dir, whole * percent // 100) for percent in (90, 70, 50)]
    assert [
        len(one.content) <= whole * percent // 100 for one, percent in zip(kept, (90, 70, 50), strict=True)
    ]
    assert kept[0].num_kept > kept[1].num_kept > kept[2].num_kept
    assert pack(run_dir, whole).one_in == 1 and len(pack(run_dir, whole - 1).content) < whole
    assert whole * 0.6 < len(kept[0].content)  # no more is left out than must be


def test_traces_go_before_any_step_does(run_dir, tmp_path):
    whole = len(pack(run_dir).content)
    (run_dir / "traces").mkdir()
    (run_dir / "traces" / "skip-i0.json").write_bytes(random.Random(1).randbytes(300_000))
    (run_dir / "trace.json").write_bytes(random.Random(2).randbytes(300_000))
    archive = pack(run_dir, whole + 500_000)
    assert (archive.one_in, archive.left_out) == (1, ("trace.json", "traces/skip-i0.json"))
    loaded = load_run(unpacked(archive, tmp_path / "unpacked"))
    assert f"{NOTE}: the archive left out trace.json, traces/skip-i0.json" in loaded.warnings
    assert loaded.one_in == 1 and loaded.step_records("skip-r0") == load_run(run_dir).step_records("skip-r0")


def test_what_cannot_fit_says_what_is_largest(run_dir):
    (run_dir / "notes.bin").write_bytes(random.Random(1).randbytes(2_500_000))
    with pytest.raises(SuiteError) as error:
        pack(run_dir, 2_000_000)
    told = str(error.value)
    assert f"{run_dir}: it does not fit into 2 MB, even with one step of each kind of every run" in told
    assert "the largest files, packed: notes.bin 2.5 MB, " in told and "\n" not in told


def test_an_archive_of_what_came_out_of_one_says_how_much_is_left_of_the_first(run_dir, tmp_path):
    publish(run_dir)
    archive, folder = thinned(run_dir, tmp_path, 0.7)
    again, second = thinned(folder, tmp_path, 0.8)
    note = load_run(second).note
    assert again.one_in > 1 and note.one_in == archive.one_in * again.one_in
    assert note.num_steps == ALL_STEPS and note.num_kept == again.num_kept < archive.num_kept
    assert note.listed == load_run(folder).listed and len(note.listed) == 19


def test_runs_within_a_run_folder_are_thinned_and_noted_too(run_dir, tmp_path):
    inner = made(run_dir)
    archive, folder = thinned(run_dir, tmp_path)
    nested = folder / inner.name
    assert archive.num_steps == 2 * ALL_STEPS
    notes = [load_run(path).note for path in (folder, nested)]
    assert [(note.one_in, note.num_steps) for note in notes] == [(archive.one_in, ALL_STEPS)] * 2
    assert len(load_run(nested).kept_step_records("skip-r0")) < NUM_STEPS


# What the unpacked folder says


def test_the_page_and_the_summary_of_the_unpacked_folder(run_dir, tmp_path):
    before = publish(run_dir)
    page_before = before.report.read_text(encoding="utf-8")
    archive, folder = thinned(run_dir, tmp_path)
    summary = (folder / "summary.json").read_bytes()
    after = publish(folder)
    assert (folder / "summary.json").read_bytes() == summary
    assert after.summary == json.loads(to_json(before.summary))
    assert after.findings == before.findings == ()
    assert after.attribution == before.attribution and before.attribution[0].ratio.num_rounds == NUM_ROUNDS
    assert after.comparisons == before.comparisons and after.arms == before.arms
    page = after.report.read_text(encoding="utf-8")
    k, told = archive.one_in, f"of each kind of step 1 in {archive.one_in}"
    assert f"{told} ({archive.num_kept:,} of {ALL_STEPS:,} steps)" in page
    assert any(told in text for text in after.warnings) and told in render_markdown(after.data).replace(
        "\\", ""
    )
    costs = next(one.costs for one in after.data.series if one.arm == "skip")
    assert costs.tables is None and f"kept of each kind 1 in {k}" in costs.reason
    marked = page.count(f"Of each kind of step 1 in {k} is here")
    assert marked > 10 and "Of each kind of step 1 in" not in page_before
    assert after.data.scenarios[0].thinned_bill and not before.data.scenarios[0].thinned_bill


def test_a_step_that_was_kept_took_as_long_as_before(run_dir, tmp_path):
    whole = {step: wall for step, wall in walls(publish(run_dir))}
    kept = walls(publish(thinned(run_dir, tmp_path)[1]))
    assert 0 < len(kept) < len(whole) and all(whole[step] == wall for step, wall in kept)


def walls(published):
    runs = [run for series in published.data.series for run in series.runs]
    return [
        ((run.record.run_id, step), wall)
        for run in runs
        for step, wall in zip(run.steps["step_id"], run.steps["wall_ms"], strict=True)
    ]


def test_without_its_note_a_thinned_folder_is_found_out(run_dir, tmp_path):
    """The negative control of the one before: the rules are not merely quiet."""
    publish(run_dir)
    _, folder = thinned(run_dir, tmp_path)
    (folder / NOTE).unlink()
    loaded = load_run(folder)
    findings = check_runs(loaded.runs, loaded.request_records, loaded.step_records, loaded.spans)
    assert {finding.rule for finding in findings} == {"tables-damaged"}
    assert publish(folder).attribution != publish(run_dir).attribution


def test_what_needs_every_step_refuses_and_says_why(run_dir, tmp_path):
    _, folder = thinned(run_dir, tmp_path)
    with pytest.raises(SuiteError, match="resume the folder the archive was made of"):
        reopen(folder, Given(), None)
    with pytest.raises(SuiteError, match="it needs every step, and the archive"):
        load_run(folder).step_records("skip-r0")
    with pytest.raises(KeyedError, match="it needs every step"):
        read_recorded(folder, "skip-r0")
    with pytest.raises(SuiteError, match="cannot be held against a capture: it needs every step"):
        profile_commands._recorded(load_run(folder))


def test_the_unpacked_folder_is_reported_compared_and_exported(run_dir, tmp_path):
    publish(run_dir)
    archive, folder = thinned(run_dir, tmp_path)
    reported = invoke("report", folder)
    assert reported.exit_code == 0 and f"warning: {NOTE}: the archive kept" in reported.stdout
    copied = invoke("compare", run_dir, folder, "--metric", "output_throughput", "--across-machines")
    assert copied.exit_code == 2 and "is a copy of" in copied.output
    runs = run_dir / "runs.jsonl"
    lines = [json.loads(line) | {"duration_s": 60.5} for line in runs.read_text("utf-8").splitlines()]
    runs.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    compared = invoke("compare", run_dir, folder, "--metric", "output_throughput", "--across-machines")
    assert compared.exit_code == 0, compared.output
    exported = invoke("export", folder, "--format", "perfetto")
    assert (
        exported.exit_code == 0 and f"skip (of each kind of step 1 in {archive.one_in:,})" in exported.stdout
    )
    rounds = invoke("export", folder, "--format", "pytest-benchmark")
    assert rounds.exit_code == 0 and json.loads((folder / "pytest-benchmark.json").read_text())["benchmarks"]


def test_a_folder_without_a_summary_gets_one_of_all_steps(run_dir, tmp_path):
    assert not (run_dir / "summary.json").exists()
    wanted = sum_up(load_run(run_dir), True).document
    _, folder = thinned(run_dir, tmp_path)
    assert json.loads((folder / "summary.json").read_text()) == json.loads(json.dumps(wanted))
    assert wanted["status"] == "interrupted" and publish(folder).is_interrupted
    assert not (run_dir / "summary.json").exists()  # the folder itself was only read


# The note


def test_a_note_is_read_back_as_it_was_written():
    note = ArchiveNote(8, 900, 120, ("trace.json",), {"r": ListedTimes({"decode": 1 / 3}, True)})
    assert read_note(json.loads(json.dumps(note.document()))) == note


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 2}, "schema version 2, this program reads 1"),
        ({"one_in": 0}, "it is damaged: unpack the archive again"),
        ({"one_in": "8"}, "damaged"),
        ({"num_kept": True}, "damaged"),
        ({"listed": {"r": {}}}, "damaged"),
    ],
)
def test_a_note_that_is_none_is_never_taken_for_no_note(run_dir, change, words):
    (run_dir / NOTE).write_text(json.dumps(ArchiveNote(8, 900, 120).document() | change))
    with pytest.raises(SuiteError, match=words) as error:
        load_run(run_dir)
    assert str(error.value).startswith(str(run_dir / NOTE))
    (run_dir / NOTE).write_text("{")
    with pytest.raises(SuiteError, match="cannot be read"):
        load_run(run_dir)


# The command


@pytest.fixture
def small_limit(monkeypatch, run_dir):
    limit = len(pack(run_dir).content) // 2
    monkeypatch.setattr(profile_commands, "pack", partial(pack, limit_bytes=limit))
    return limit


def test_the_command_writes_one_file_beside_the_folder(run_dir):
    result = invoke("export", run_dir, "--format", "archive")
    file = run_dir.parent / f"{run_dir.name}.tar.gz"
    assert result.exit_code == 0 and file.read_bytes() == pack(run_dir).content
    assert result.stdout.strip().startswith(f"archive: {file} (") and "thinned" not in result.stdout
    assert "in the place of" not in result.stdout
    assert "in the place of the one that was there" in invoke("export", run_dir, "--format", "archive").stdout


def test_the_command_says_how_much_is_left(run_dir, tmp_path, small_limit):
    result = invoke("export", run_dir, "--format", "archive", "-o", tmp_path / "a.tar.gz", "--json")
    found = json.loads(result.stdout)
    assert found["num_bytes"] == (tmp_path / "a.tar.gz").stat().st_size <= small_limit
    assert found["one_in"] > 1 and found["num_kept"] < found["num_steps"] == ALL_STEPS
    told = invoke("export", run_dir, "--format", "archive", "-o", tmp_path / "a.tar.gz").stdout
    amount = f"1 in {found['one_in']} is in it, {found['num_kept']:,} of {ALL_STEPS:,} steps"
    assert f"thinned: of each kind of step {amount}; all else is whole\n" in told


def test_an_archive_within_the_folder_is_not_packed_into_itself(run_dir):
    file = run_dir / "mine.tar.gz"
    for _ in range(2):
        assert invoke("export", run_dir, "--format", "archive", "-o", file).exit_code == 0
        with tarfile.open(file) as tar:
            assert f"{run_dir.name}/mine.tar.gz" not in tar.getnames()


def test_a_folder_that_is_written_damaged_or_of_another_version_is_packed_as_it_is(
    run_dir, tmp_path, small_limit
):
    with (run_dir / "runs.jsonl").open("ab") as file:
        file.write(b'{"schema_version": 99, "run_id": "later"}\n{"run_id": "cut sh')
    (run_dir / "steps" / "skip-r1.parquet").write_bytes(b"no table")
    output = tmp_path / "a.tar.gz"
    with writing(run_dir):
        result = invoke("export", run_dir, "--format", "archive", "-o", output)
    assert result.exit_code == 0 and "thinned: " in result.stdout, result.output
    with tarfile.open(output) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    folder = tmp_path / "unpacked" / run_dir.name
    assert (folder / "runs.jsonl").read_bytes() == (run_dir / "runs.jsonl").read_bytes()
    assert (folder / "steps" / "skip-r1.parquet").read_bytes() == b"no table"
    texts = load_run(folder).warnings
    assert any("schema version 99" in text for text in texts) and any("cut short" in text for text in texts)
    assert "cannot read" in load_run(folder).damage("skip-r1")
    assert len(pq.read_table(folder / "steps" / "skip-r2.parquet")) < NUM_STEPS


def test_a_mistake_ends_with_one_line_and_writes_nothing(run_dir, tmp_path):
    before = contents(run_dir)
    for arguments, words in (
        ((tmp_path / "none",), "is not the folder of a run"),
        ((run_dir, "-o", run_dir / "runs.jsonl"), "a run's own records lie there"),
        ((run_dir, "-o", run_dir / "steps" / "skip-r0.parquet"), "a run's own records lie there"),
        ((run_dir, "-o", tmp_path), "it is a directory; name a file in it"),
        ((run_dir, "-o", tmp_path / "no" / "a.tar.gz"), "cannot write"),
    ):
        result = invoke("export", *arguments, "--format", "archive")
        assert result.exit_code == 2 and words in result.stderr and result.stdout == "", result.output
        assert len(result.stderr.strip().splitlines()) == 1
    assert contents(run_dir) == before and list(tmp_path.iterdir()) == [run_dir]
