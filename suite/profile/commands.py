"""What `suite profile` and `suite export` do, in the order they do it. Returns the exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runner.spans import Span
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
from suite.record import RunRecord
from suite.store import TRACE, LoadedRun, load_run, to_json, write_file

if TYPE_CHECKING:
    from suite.commands import Screen

EXIT_FINE = 0


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
    _show(profiled.capture, load_run(profiled.run_dir), screen, profiled)
    return EXIT_FINE


def import_capture(file: Path, run_dir: Path | None, screen: Screen) -> int:
    """Show what a capture holds; beside the spans of a run where one is given."""
    loaded = None if run_dir is None else load_run(run_dir)
    if loaded is not None:
        _recorded(loaded)  # before the file is read, which may take long
    _show(read_capture(file), loaded, screen)
    return EXIT_FINE


def export(run_dir: Path, output: Path | None, screen: Screen) -> int:
    """Write a run's steps and spans as a trace for Perfetto."""
    loaded = load_run(run_dir)
    runs = [
        TracedRun(_title(run, loaded), loaded.step_records(run.run_id), loaded.spans(run.run_id))
        for run in _shown_runs(loaded)
    ]
    document = trace_document(runs)
    path = write_file(output or run_dir / TRACE, to_json(document) + b"\n")
    facts = {
        "file": str(path),
        "runs": [run.title for run in runs],
        "num_steps": sum(len(run.steps) for run in runs),
        "num_spans": sum(len(run.spans) for run in runs),
    }
    lines = [f"  {run.title}: {len(run.steps)} steps, {len(run.spans)} spans" for run in runs]
    screen.show([*lines, f"trace: {path} (open it at ui.perfetto.dev, or in chrome://tracing)"], facts)
    return EXIT_FINE


def _shown_runs(loaded: LoadedRun) -> list[RunRecord]:
    """Those with spans; where there are none, the last measured run of each arm and case."""
    completed = [run for run in loaded.runs if run.num_steps]
    found = [run for run in completed if loaded.spans(run.run_id)]
    if not found:
        found = list({(run.case_id, run.arm): run for run in completed if run.is_measured}.values())
    if not found:
        raise SuiteError(f"{loaded.path}: no run of it has any steps; there is nothing to export")
    return found


def _title(run: RunRecord, loaded: LoadedRun) -> str:
    is_only_case = len({other.case_id for other in loaded.runs}) == 1
    return run.arm if is_only_case else f"{run.scenario} [{run.case_label}] {run.arm}"


def _recorded(loaded: LoadedRun) -> list[Span]:
    """The spans of every run that has any. SuiteError where none has."""
    spans = [span for run in loaded.runs for span in loaded.spans(run.run_id)]
    if not spans:
        raise SuiteError(
            f"{loaded.path}: its runs recorded no spans; run with --instrument host or --instrument events"
        )
    return spans


def _show(
    capture: Capture, loaded: LoadedRun | None, screen: Screen, profiled: Profiled | None = None
) -> None:
    lines = capture_lines(capture)
    document = capture_document(capture)
    if profiled is not None:
        document |= {"run": str(profiled.run_dir), "file": str(profiled.file)}
    own = None
    if loaded is not None:
        spans = _recorded(loaded)
        is_window = capture.tool == "nsys" and loaded.invocation.get("window") is True
        if is_window:
            lines.append(f"  a window of {len(capture.steps)} steps; of its first and last a part only")
        comparison = compare(spans, capture, is_window)
        own = span_totals(spans)
        lines += ["", *comparison_lines(comparison, capture.tool == "torch")]
        document["comparison"] = comparison_document(comparison)
    elif capture.ranges:
        lines += ["", *range_lines(capture)]
    if capture.vllm:
        beside = beside_vllm(capture, own or {})
        lines += ["", *beside_lines(beside)]
        document["beside_vllm"] = beside_document(beside)
    if profiled is not None:
        lines += ["", f"run: {profiled.run_dir}", f"capture: {profiled.file}"]
    screen.show(lines, document)
