"""Panel: where the step goes."""

from __future__ import annotations

from collections.abc import Sequence

from suite.report import figures, span_figures, span_tables, tables
from suite.report.cases import Case, drawn_cases, with_cases
from suite.report.chart import Chart
from suite.report.data import ScenarioData, Series
from suite.report.panels import TITLES, Detail, Panel

ORDER = ("decode", "mixed", "prefill")


def panel(scenario: ScenarioData) -> Panel:
    """What makes a step long, its spans, and how they scatter; decode, mixed and prefill steps apart."""
    cases, told = drawn_cases(scenario)
    panel = Panel(
        id="panel-spans",
        title=TITLES["panel-spans"],
        lead="What host and device spend a step on: what lengthens it (serial, idle-causing), and what lies "
        f"hidden under device work (overlapped).{told}",
        num_columns=2,
        reason="no run was started",
    )
    return with_cases(panel, cases, _of_case)


def _of_case(case: Case) -> Detail:
    details = [*map(_of_arm, case.series)]
    if "prefill" in span_figures.kinds_of(case.series):
        details.insert(0, Detail("Prefill steps", _of_kinds(case, ("prefill",))))
    return Detail(case.label, _of_kinds(case, ("decode", "mixed")), details=tuple(details))


def _of_kinds(case: Case, wanted: Sequence[str]) -> tuple[Chart, ...]:
    present = span_figures.kinds_of(case.series)
    kinds = [kind for kind in wanted if kind in present] or list(wanted[:1])
    return tuple(
        chart
        for kind in kinds
        for chart in (
            span_figures.wall_times(case.series, kind),
            span_figures.lengthening(case.series, kind),
            span_figures.by_arm(case.series, kind, "compute"),
            span_figures.by_arm(case.series, kind, "host"),
        )
    )


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
