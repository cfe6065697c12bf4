"""What `suite profile` and `suite export` do, in the order they do it. Returns the exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runner.spans import Span
from suite.archive import SUFFIX, megabytes, pack
from suite.case_label import case_title
from suite.compare_folders import findings_of
from suite.errors import SuiteError
from suite.plan import Options
from suite.profile.capture import Capture, Tool
from suite.profile.comparison import beside_vllm, compare, span_totals
from suite.profile.files import read_capture
from suite.profile.nsys import find_nsys, losing_versions
from suite.profile.perfetto import TracedRun, trace_document
from suite.profile.session import Profiled, plan_profile, run_under_nsys, run_under_torch
from suite.profile.wording import (
    beside_document,
    beside_lines,
    capture_document,
    capture_lines,
    comparison_document,
    comparison_lines,
    range_lines,
)
from suite.progress import make_progress_console
from suite.pytest_benchmark import storage_document
from suite.record import RunRecord
from suite.store import TRACE, LoadedRun, check_is_run, load_run, to_json, write_file

if TYPE_CHECKING:
    from suite.commands import Screen

EXIT_FINE = 0
EXIT_UNMATCHED = 1
ROUNDS = "pytest-benchmark.json"


def profile(
    scenario: Path, tool: Tool, arm: str | None, options: Options, output_dir: Path, screen: Screen
) -> int:
    """Run one arm under a profiler and compare what it captured with our own records of the same run."""
    tell = make_progress_console(sys.stderr).print
    plan, arm = plan_profile(scenario, arm, options)
    if tool == "torch":
        tell(f"{plan.cases[0].title}, arm {arm}: with torch's profiler in its device")
        profiled = run_under_torch(scenario, plan, arm, output_dir)
    else:
        warning = losing_versions(find_nsys())
        if warning:
            tell(f"warning: {warning}")
        tell(f"{plan.cases[0].title}, arm {arm}: under nsys")
        profiled = run_under_nsys(scenario, plan, arm, output_dir)
    return _show(profiled.capture, load_run(profiled.run_dir), screen, profiled)


def import_capture(file: Path, run_dir: Path | None, screen: Screen) -> int:
    """Show what a capture holds; beside the spans of a run where one is given: 1 where none of them match."""
    loaded = None if run_dir is None else load_run(run_dir)
    if loaded is not None:
        _recorded(loaded)  # before the file is read, which may take long
    return _show(read_capture(file), loaded, screen)


def export(run_dir: Path, output: Path | None, screen: Screen) -> int:
    """Write a run's steps and spans as a trace for Perfetto. A damaged file costs its own run only."""
    loaded = load_run(run_dir)
    runs, left_out = _traced_runs(loaded)
    document = trace_document(runs)
    path = write_file(output or run_dir / TRACE, to_json(document) + b"\n")
    facts = {
        "file": str(path),
        "runs": [run.title for run in runs],
        "num_steps": sum(len(run.steps) for run in runs),
        "num_spans": sum(len(run.spans) for run in runs),
        "left_out": left_out,
    }
    lines = [f"  {run.title}: {len(run.steps)} steps, {len(run.spans)} spans" for run in runs]
    lines += [f"warning: {text}" for text in left_out]
    screen.show([*lines, f"trace: {path} (open it at ui.perfetto.dev, or in chrome://tracing)"], facts)
    return EXIT_FINE


def export_rounds(run_dir: Path, output: Path | None, screen: Screen) -> int:
    """Write the rounds of a run as pytest-benchmark's storage. SuiteError where none has a value."""
    loaded = load_run(run_dir)
    document, left_out = storage_document(loaded.runs, findings_of(loaded), loaded.environment)
    rows = document["benchmarks"]
    assert isinstance(rows, list)
    if not rows:
        why = "".join(f"; {text}" for text in left_out)
        raise SuiteError(f"{run_dir}: no round of it has any figure; there is nothing to export{why}")
    path = write_file(output or run_dir / ROUNDS, to_json(document, indent=1) + b"\n")
    lines = [f"left out: {text}" for text in left_out]
    told = f"{len(rows)} rows: {path} (pytest-benchmark compare {path})"
    screen.show([*lines, told], {"file": str(path), "num_rows": len(rows), "left_out": left_out})
    return EXIT_FINE


def export_archive(run_dir: Path, output: Path | None, screen: Screen) -> int:
    """Pack a run folder into one file of limited size, and say what of it was left out."""
    check_is_run(run_dir)
    real = run_dir.resolve()
    place = real.parent if run_dir.name in ("", "..") else run_dir.parent
    target = output or place / f"{real.name}{SUFFIX}"
    archive = pack(run_dir, output=target)
    was_there = target.is_file()
    path = write_file(target, archive.content)
    lines = [f"left out: {name} (a trace cannot be thinned)" for name in archive.left_out]
    if archive.num_steps is not None:
        lines.append(
            f"thinned: of each kind of step 1 in {archive.one_in:,} is in it, {archive.num_kept:,} of "
            f"{archive.num_steps:,} steps; all else is whole"
        )
    told = f"archive: {path} ({archive.num_files} files, {megabytes(len(archive.content))}"
    lines.append(f"{told}{'; in the place of the one that was there' if was_there else ''})")
    facts = {
        "file": str(path),
        "num_bytes": len(archive.content),
        "num_files": archive.num_files,
        "one_in": archive.one_in,
        "num_steps": archive.num_steps,
        "num_kept": archive.num_kept,
        "left_out": list(archive.left_out),
    }
    screen.show(lines, facts)
    return EXIT_FINE


def _traced_runs(loaded: LoadedRun) -> tuple[list[TracedRun], list[str]]:
    """Runs with spans; where there are none, the last measured run of each arm and case. SuiteError for none.

    And what of it is damaged and so left out.
    """
    spans, left_out = _readable_spans(loaded)
    found = [run for run in loaded.runs if run.num_steps and spans.get(run.run_id)]
    if not found:
        measured = [run for run in loaded.runs if run.num_steps and run.is_measured]
        found = list({(run.case_id, run.arm): run for run in measured}.values())
    traced = []
    for run in found:
        try:
            steps = loaded.kept_step_records(run.run_id)
        except SuiteError as error:
            left_out.append(f"the run {run.run_id} is left out: {error}")
            continue
        traced.append(TracedRun(_title(run, loaded), steps, spans.get(run.run_id, [])))
    if not traced:
        why = "".join(f"; {text}" for text in left_out)
        raise SuiteError(f"{loaded.path}: no run of it has any steps; there is nothing to export{why}")
    return traced, left_out


def _readable_spans(loaded: LoadedRun) -> tuple[dict[str, list[Span]], list[str]]:
    """The spans of every run, by its id, and what is wrong with those files that cannot be read."""
    spans: dict[str, list[Span]] = {}
    faults = []
    for run in loaded.runs:
        try:
            spans[run.run_id] = loaded.spans(run.run_id)
        except SuiteError as error:
            faults.append(f"the spans of {run.run_id} are left out: {error}")
    return spans, faults


def _title(run: RunRecord, loaded: LoadedRun) -> str:
    is_only_case = len({other.case_id for other in loaded.runs}) == 1
    name = run.arm if is_only_case else f"{case_title(run.scenario, run.case_label)} {run.arm}"
    return name if loaded.one_in == 1 else f"{name} (of each kind of step 1 in {loaded.one_in:,})"


def _recorded(loaded: LoadedRun) -> tuple[list[Span], list[str]]:
    """The spans of every run that has any, and what is damaged. SuiteError where none has, or not all."""
    if loaded.why_thinned is not None:
        raise SuiteError(f"{loaded.path}: its spans cannot be held against a capture: {loaded.why_thinned}")
    found, faults = _readable_spans(loaded)
    spans = [span for of_run in found.values() for span in of_run]
    if not spans:
        why = "".join(f"; {text}" for text in faults)
        raise SuiteError(
            f"{loaded.path}: its runs recorded no spans; run with --instrument host or --instrument "
            f"events{why}"
        )
    return spans, faults


def _show(
    capture: Capture, loaded: LoadedRun | None, screen: Screen, profiled: Profiled | None = None
) -> int:
    """Everything there is to say; EXIT_UNMATCHED where a run was given and the capture is none of it."""
    code = EXIT_FINE
    lines = capture_lines(capture)
    document = capture_document(capture)
    if profiled is not None:
        document |= {"run": str(profiled.run_dir), "file": str(profiled.file)}
    own = None
    if loaded is not None:
        spans, faults = _recorded(loaded)
        lines += [f"warning: {text}" for text in faults]
        is_window = capture.tool == "nsys" and loaded.invocation.get("window") is True
        if is_window:
            lines.append(f"  a window of {len(capture.steps)} steps; of its first and last a part only")
        comparison = compare(spans, capture, is_window)
        own = span_totals(spans)
        lines += ["", *comparison_lines(comparison, capture.tool == "torch")]
        document["comparison"] = comparison_document(comparison)
        code = EXIT_FINE if comparison.is_matched or capture.vllm else EXIT_UNMATCHED
    elif capture.ranges:
        lines += ["", *range_lines(capture)]
    if capture.vllm:
        beside = beside_vllm(capture, own or {})
        lines += ["", *beside_lines(beside)]
        document["beside_vllm"] = beside_document(beside)
    if profiled is not None:
        lines += ["", f"run: {profiled.run_dir}", f"capture: {profiled.file}"]
    screen.show(lines, document)
    return code
