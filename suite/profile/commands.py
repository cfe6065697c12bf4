"""What `suite profile` and `suite export` do, in the order they do it. Returns the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.spans import Span
from suite.errors import SuiteError
from suite.plan import Options
from suite.profile.capture import Capture
from suite.profile.comparison import beside_vllm, compare, span_totals
from suite.profile.files import read_capture
from suite.profile.nsys import find_nsys, losing_versions
from suite.profile.session import Profiled, plan_profile, run_under_nsys
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
from suite.store import LoadedRun, load_run

if TYPE_CHECKING:
    from suite.commands import Screen

EXIT_FINE = 0


def profile(scenario: Path, arm: str | None, options: Options, output_dir: Path, screen: Screen) -> int:
    """Run one arm under nsys and compare what it captured with our own records of the same run."""
    warn = make_progress_console(sys.stderr).print
    plan, arm = plan_profile(scenario, arm, options)
    warning = losing_versions(find_nsys())
    if warning:
        warn(f"warning: {warning}")
    warn(f"{plan.cases[0].title}, arm {arm}: under nsys")
    profiled = run_under_nsys(scenario, plan, arm, output_dir)
    _show(profiled.capture, _recorded(load_run(profiled.run_dir)), screen, profiled)
    return EXIT_FINE


def import_capture(file: Path, run_dir: Path | None, screen: Screen) -> int:
    """Show what a capture holds; beside the spans of a run where one is given."""
    spans = None if run_dir is None else _recorded(load_run(run_dir))
    capture = read_capture(file)
    _show(capture, spans, screen)
    return EXIT_FINE


def _recorded(loaded: LoadedRun) -> list[Span]:
    """The spans of every run that has any. SuiteError where none has."""
    spans = [span for run in loaded.runs for span in loaded.spans(run.run_id)]
    if not spans:
        raise SuiteError(
            f"{loaded.path}: its runs recorded no spans; run with --instrument host or --instrument events"
        )
    return spans


def _show(
    capture: Capture, spans: Sequence[Span] | None, screen: Screen, profiled: Profiled | None = None
) -> None:
    lines = capture_lines(capture)
    document = capture_document(capture)
    if profiled is not None:
        document |= {"run": str(profiled.run_dir), "file": str(profiled.file)}
    own = None
    if spans is not None:
        comparison = compare(spans, capture)
        own = span_totals(spans)
        lines += ["", *comparison_lines(comparison)]
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
