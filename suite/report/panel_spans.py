"""Panel: where the step goes."""

from __future__ import annotations

from collections.abc import Sequence

from suite.report import figures, span_figures, span_tables, tables
from suite.report.cases import Case, arms_of, charts_and_details, drawn_cases
from suite.report.chart import Chart
from suite.report.data import ScenarioData, Series
from suite.report.panels import TITLES, Detail, Panel

ORDER = ("decode", "mixed", "prefill")


def panel(scenario: ScenarioData) -> Panel:
    """What makes a step long, its spans, and how they scatter; decode, mixed and prefill steps apart."""
    cases, told = drawn_cases(scenario)
    charts, details = charts_and_details(cases, lambda case: _of_case(case, ("decode", "mixed")))
    prefills = (
        Detail(f"Prefill steps{_which(case, len(cases))}", tuple(_of_case(case, ("prefill",))))
        for case in cases
        if "prefill" in span_figures.kinds_of(case.series)
    )
    return Panel(
        id="panel-spans",
        title=TITLES["panel-spans"],
        lead="What host and device spend a step on: what lengthens it (serial, idle-causing), and what lies "
        f"hidden under device work (overlapped).{told}",
        charts=charts,
        num_columns=2,
        details=(*details, *prefills, *map(_of_arm, arms_of(cases))),
        reason="no run was started",
    )


def _which(case: Case, num_cases: int) -> str:
    return f": {case.label}" if num_cases > 1 else ""


def _of_case(case: Case, wanted: Sequence[str]) -> list[Chart]:
    present = span_figures.kinds_of(case.series)
    kinds = [kind for kind in wanted if kind in present] or list(wanted[:1])
    return [
        chart
        for kind in kinds
        for chart in (
            span_figures.wall_times(case.series, kind),
            span_figures.lengthening(case.series, kind),
            span_figures.by_arm(case.series, kind, "compute"),
            span_figures.by_arm(case.series, kind, "host"),
        )
    ]


def _of_arm(one: Series) -> Detail:
    present = span_figures.kinds_of([one])
    kinds = [kind for kind in ORDER if kind in present] or ["decode"]
    return Detail(
        f"Spans of {one.label}",
        (*(span_figures.durations(one, kind) for kind in kinds), figures.step_times(one)),
        (
            *(span_tables.spans(one), span_tables.idle(one), span_tables.ceiling_shares(one)),
            *(tables.step_times(one), tables.routes(one)),
        ),
    )
