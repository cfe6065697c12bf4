"""From a run folder to its summary and its page, after a run or long afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from suite.arms import named_arm
from suite.attribution import Line, attribution
from suite.bill import ArmBill, arm_bills, documents
from suite.break_even import break_even
from suite.checks import Finding, check_runs
from suite.comparison import Comparison, compare, designs
from suite.instrumented_runs import costs_by_arm
from suite.record import RunRecord
from suite.store import RunFolder, load_run
from suite.summary import ArmSummary, summarise, to_csv, to_document

if TYPE_CHECKING:
    from suite.report.data import ReportData


@dataclass(frozen=True, slots=True)
class Published:
    """What a run came to, for the terminal."""

    path: Path
    report: Path
    arms: tuple[ArmSummary, ...]
    findings: tuple[Finding, ...]
    skipped: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    is_interrupted: bool
    bills: tuple[ArmBill, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    attribution: tuple[Line, ...] = ()
    data: ReportData | None = None  # what the page was made of
    summary: Mapping[str, object] = field(default_factory=dict)  # what summary.json holds

    def document(self) -> dict[str, object]:
        """What --json prints: summary.json and where everything lies."""
        return {"folder": str(self.path), "report": str(self.report), **self.summary}


def publish(path: Path, is_interrupted: bool | None = None) -> Published:
    """Write summary.json, summary.csv and report.html of a run folder, over any that are there.

    Without a word on whether it was interrupted, the folder's own files decide. SuiteError where it is no
    run folder or cannot be written.
    """
    from suite.report.data import from_loaded
    from suite.report.page import render

    loaded = load_run(path)
    if is_interrupted is None:
        is_interrupted = loaded.is_interrupted
    findings = check_runs(loaded.runs, loaded.request_records, loaded.step_records)
    arms = summarise(loaded.runs, findings)
    folder = RunFolder(path)
    costs = costs_by_arm(loaded.runs, loaded)
    comparisons = compare(loaded.runs, designs(loaded.cases), findings)
    cells = break_even(loaded.runs, designs(loaded.cases), findings)
    summary = to_document(arms, findings, loaded.skipped, is_interrupted, costs, comparisons)
    bills = arm_bills(loaded.runs, loaded.step_records, loaded.spans)
    if bills:
        summary["amplified"] = documents(bills)
    lines = attribution(loaded.runs, loaded.step_records, findings, bills)
    if lines:
        summary["attribution"] = [line.document() for line in lines]
    if cells:
        summary["break_even"] = [cell.document() for cell in cells]
    folder.write_summary(summary, to_csv(arms))
    data = from_loaded(load_run(path), costs, comparisons, bills, lines, cells)
    report = folder.write_report(render(data))
    return Published(
        path=path,
        report=report,
        arms=arms,
        findings=tuple(findings),
        skipped=loaded.skipped,
        warnings=(
            *(text for text in loaded.warnings if "summary" not in text),
            *gate_warnings(loaded.runs),
            *run_warnings(loaded.runs),
        ),
        is_interrupted=is_interrupted,
        bills=bills,
        comparisons=comparisons,
        attribution=lines,
        data=data,
        summary=summary,
    )


def gate_warnings(runs: Sequence[RunRecord]) -> list[str]:
    """Arms that would have scheduled asynchronously by themselves and were not let, each once."""
    texts = [
        f"arm {run.arm} of {run.scenario} scheduled sync: {run.scheduling_reason}"
        for run in runs
        if run.scheduling == "sync" and named_arm(run.arm).scheduling == "auto"
    ]
    return list(dict.fromkeys(texts))


def run_warnings(runs: Sequence[RunRecord]) -> list[str]:
    """What the measured runs of an arm warn of, each kind once: the first run's words stand for all.

    The figures in a text change from run to run, so that texts are told apart without them.
    """
    texts: dict[tuple[str, str, str, str], str] = {}
    for run in runs:
        case = "" if run.case_label == run.scenario else f" [{run.case_label}]"
        for text in () if run.is_warmup else run.warnings:
            kind = re.sub(r"[0-9.,]+", "", text)
            texts.setdefault(
                (run.scenario, run.case_id, run.arm, kind), f"arm {run.arm} of {run.scenario}{case}: {text}"
            )
    return list(texts.values())
