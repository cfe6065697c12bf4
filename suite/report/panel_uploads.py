"""Panel: what is uploaded."""

from __future__ import annotations

from suite.report import tables, upload_figures
from suite.report.cases import Case, arms_of, charts_and_details, drawn_cases, titled
from suite.report.chart import Chart
from suite.report.data import ScenarioData
from suite.report.panels import TITLES, Detail, Panel


def panel(scenario: ScenarioData) -> Panel:
    """Bytes by buffer and arm, against the positions of a step, and the bandwidth that copies reach."""
    cases, told = drawn_cases(scenario)
    charts, details = charts_and_details(cases, _of_case)
    found = tuple(titled(tables.uploads(one), one) for one in arms_of(cases))
    every = (Detail("Every arm: bytes and copies by buffer", (), found),) if found else ()
    return Panel(
        id="panel-uploads",
        title=TITLES["panel-uploads"],
        lead=f"Bytes and copies from host to device, counted at the copies, and how fast they went.{told}",
        charts=charts,
        num_columns=2,
        details=(*details, *every),
        reason="no run was started",
    )


def _of_case(case: Case) -> list[Chart]:
    kinds = upload_figures.chosen_kinds(case.series) or ["decode"]
    return [
        *(upload_figures.by_buffer(case.series, kind) for kind in kinds),
        *upload_figures.in_groups(case.series),
        upload_figures.bandwidth(case.series),
    ]
