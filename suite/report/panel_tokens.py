"""Panel: tokens."""

from __future__ import annotations

from suite.report import tables, token_figures, token_tables
from suite.report.cases import Case, charts_and_details, drawn_cases
from suite.report.chart import Chart
from suite.report.data import ScenarioData
from suite.report.panels import TITLES, Detail, Panel


def panel(scenario: ScenarioData) -> Panel:
    """Right, wrong or tied by arm and request, and the tokens around each first divergence."""
    cases, told = drawn_cases(scenario)

    def draw(case: Case) -> list[Chart]:
        return [token_figures.matrix(case.series)]

    charts, details = charts_and_details(cases, draw)
    every = Detail("Every request: counts", (), (tables.request_tokens(scenario),))
    return Panel(
        id="panel-tokens",
        title=TITLES["panel-tokens"],
        lead=f"Every output token, held against an independent reference.{told}",
        charts=charts,
        tables=(token_tables.divergences(scenario),),
        details=(*details, every),
        reason="no run was started",
    )
