"""What `suite profile` and `suite export` do, in the order they do it. Returns the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.spans import Span
from suite.errors import SuiteError
from suite.profile.capture import Capture
from suite.profile.comparison import beside_vllm, compare, span_totals
from suite.profile.files import read_capture
from suite.profile.wording import (
    beside_document,
    beside_lines,
    capture_document,
    capture_lines,
    comparison_document,
    comparison_lines,
    range_lines,
)
from suite.store import LoadedRun, load_run

if TYPE_CHECKING:
    from suite.commands import Screen

EXIT_FINE = 0


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


def _show(capture: Capture, spans: Sequence[Span] | None, screen: Screen) -> None:
    lines = capture_lines(capture)
    document = capture_document(capture)
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
    screen.show(lines, document)
