"""From a run folder to its summary and its page, after a run or long afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from suite.arms import named_arm
from suite.attribution import Line, attribution
from suite.bill import ArmBill, arm_bills, documents
from suite.break_even import Cell, break_even
from suite.case_design import CaseKey, Design, complete_designs, designs
from suite.case_label import case_title
from suite.checks import Finding, check_runs, machine_drifts
from suite.comparison import Comparison, compare
from suite.environment import utc_text
from suite.instrumented_runs import costs_by_arm
from suite.left_out import LeftOut, left_out, left_out_document, left_out_texts
from suite.record import RunRecord
from suite.step_costs import ArmKey, StepCosts
from suite.store import CUT_SHORT, REPORT_SO_FAR, RUNS, SUMMARY, LoadedRun, RunFolder, load_run
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
    break_even: tuple[Cell, ...] = ()
    data: ReportData | None = None  # what the page was made of
    summary: Mapping[str, object] = field(default_factory=dict)  # what summary.json holds

    def document(self) -> dict[str, object]:
        """What --json prints: summary.json and where everything lies."""
        return {"folder": str(self.path), "report": str(self.report), **self.summary}


@dataclass(frozen=True, slots=True)
class Summed:
    """What the records of a run come to, and `document`, which summary.json holds."""

    arms: tuple[ArmSummary, ...]
    findings: tuple[Finding, ...]
    costs: Mapping[ArmKey, StepCosts]
    comparisons: tuple[Comparison, ...]
    bills: tuple[ArmBill, ...]
    attribution: tuple[Line, ...]
    break_even: tuple[Cell, ...]
    document: Mapping[str, object]
    left_out: tuple[LeftOut, ...] = ()  # because the budget was spent
    changes: tuple[str, ...] = ()  # of the machine, in all arms alike


def publish(path: Path, is_interrupted: bool | None = None) -> Published:
    """Write summary.json, summary.csv and report.html of a run folder, over any that are there.

    The caller has the right to write it. Without a word on whether it was interrupted, the folder's own files
    decide. A summary that was made of all steps stays where an archive has thinned them. SuiteError where it
    is no run folder or cannot be written.
    """
    from suite.report.page import render

    loaded = load_run(path)
    if is_interrupted is None:
        is_interrupted = loaded.is_interrupted
    summed = sum_up(loaded, is_interrupted)
    folder = RunFolder(path)
    if not _is_of_all_steps(loaded):
        folder.write_summary(summed.document, to_csv(summed.arms))
    loaded = _with_summary(loaded, summed)
    data = _page_data(loaded, summed)
    report = folder.write_report(render(data))
    folder.remove(REPORT_SO_FAR)
    return _published(loaded, summed, data, report, is_interrupted)


def publish_so_far(path: Path, now: datetime | None = None) -> Published:
    """The page of a run that another process still makes, from the runs it has kept; `now`: UTC.

    It is written beside what is that process's to write: report-so-far.html, and no summary.
    """
    from suite.report.page import render

    loaded = _without_the_unfinished(load_run(path))
    summed = sum_up(loaded, is_interrupted=False)
    planned = f" of {loaded.num_planned:,}" if loaded.num_planned is not None else ""
    progress = f"{len(loaded.runs):,}{planned} runs so far, at {utc_text(now or datetime.now(UTC))}"
    running = {"status": "running", "num_runs": len(loaded.runs), "num_planned_runs": loaded.num_planned}
    summed = replace(summed, document={**summed.document, **running})
    loaded = _with_summary(loaded, summed)
    data = replace(_page_data(loaded, summed), progress=progress)
    report = RunFolder(path).write_report(render(data), REPORT_SO_FAR)
    return _published(loaded, summed, data, report, is_interrupted=False)


def _without_the_unfinished(loaded: LoadedRun) -> LoadedRun:
    """Less what is no damage in a folder that is being written: the file of the runs, or its last line."""
    warnings = (text for text in loaded.warnings if not text.startswith(f"{RUNS} is missing"))
    return replace(loaded, warnings=tuple(text for text in warnings if not text.endswith(CUT_SHORT)))


def _page_data(loaded: LoadedRun, summed: Summed) -> ReportData:
    from suite.report.data import from_loaded

    return from_loaded(
        loaded, summed.costs, summed.comparisons, summed.bills, summed.attribution, summed.break_even
    )


def _published(
    loaded: LoadedRun, summed: Summed, data: ReportData, report: Path, is_interrupted: bool
) -> Published:
    return Published(
        path=loaded.path,
        report=report,
        arms=summed.arms,
        findings=summed.findings,
        skipped=loaded.skipped,
        warnings=(*loaded.warnings, *gate_warnings(loaded.runs), *run_warnings(loaded.runs)),
        is_interrupted=is_interrupted,
        bills=summed.bills,
        comparisons=summed.comparisons,
        attribution=summed.attribution,
        break_even=summed.break_even,
        data=data,
        summary=summed.document,
    )


def sum_up(loaded: LoadedRun, is_interrupted: bool) -> Summed:
    """The summary of a run folder; steps and requests are read a run at a time, so that any number fits.

    Of steps that an archive has thinned no rule is judged and no bill made anew: what the folder's summary
    says of all of them stands.
    """
    is_thinned = loaded.one_in > 1
    design_of = complete_designs(loaded.runs, loaded.cases)
    findings = loaded.validity if is_thinned else _checked(loaded, design_of)
    arms = summarise(loaded.runs, findings)
    costs = costs_by_arm(loaded.runs, loaded, findings)
    comparisons = compare(loaded.runs, design_of, findings)
    cells = break_even(loaded.runs, designs(loaded.cases), findings)
    document = to_document(arms, findings, loaded.skipped, is_interrupted, costs, comparisons)
    bills = arm_bills(() if is_thinned else loaded.whole_runs, loaded.step_records, loaded.spans, findings)
    if bills:
        document["amplified"] = documents(bills)
    changes = machine_drifts(loaded.runs, findings, design_of)
    if changes:
        document["machine_changes"] = list(changes)
    lines = attribution(loaded.whole_runs, loaded.step_records, findings, bills, loaded.listed)
    if lines:
        document["attribution"] = [line.document() for line in lines]
    if cells:
        document["break_even"] = [cell.document() for cell in cells]
    missing = () if is_interrupted else left_out(loaded)
    if missing:
        document["left_out"] = left_out_document(missing, loaded)
    if _is_of_all_steps(loaded):
        document = dict(loaded.summary or {})
    return Summed(arms, findings, costs, comparisons, bills, lines, cells, document, missing, changes)


def _checked(loaded: LoadedRun, design_of: Mapping[CaseKey, Design]) -> tuple[Finding, ...]:
    return tuple(
        check_runs(loaded.runs, loaded.request_records, loaded.step_records, loaded.spans, design_of)
    )


def _is_of_all_steps(loaded: LoadedRun) -> bool:
    """Whether the folder's summary was made before an archive thinned its steps."""
    return loaded.one_in > 1 and loaded.summary is not None


def _with_summary(loaded: LoadedRun, summed: Summed) -> LoadedRun:
    """The folder as it is once its summary is written, and what of its tables no finding tells."""
    told = {finding.run_id for finding in summed.findings}
    untold = (loaded.damage(run.run_id) for run in loaded.runs if run.run_id not in told)
    warnings = [text for text in loaded.warnings if not text.startswith(SUMMARY)]
    warnings += [*filter(None, untold), *_resumed_at(loaded.environment)]
    warnings += left_out_texts(summed.left_out, loaded)
    warnings += summed.changes
    return replace(loaded, summary=summed.document, warnings=tuple(warnings))


def _resumed_at(environment: Mapping[str, object]) -> list[str]:
    moments = environment.get("resumed_utc")
    if not isinstance(moments, list) or not moments:
        return []
    return [
        f"the run was interrupted and resumed at {', '.join(map(str, moments))}: "
        "the machine may have changed its pace in between"
    ]


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
        case = case_title(run.scenario, run.case_label)
        for text in () if run.is_warmup else run.warnings:
            kind = re.sub(r"[0-9.,]+", "", text)
            texts.setdefault((run.scenario, run.case_id, run.arm, kind), f"arm {run.arm} of {case}: {text}")
    return list(texts.values())
