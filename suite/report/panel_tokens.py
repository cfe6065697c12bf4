"""Panel: tokens."""

from __future__ import annotations

from suite.report import tables, token_figures, token_tables
from suite.report.cases import Case, drawn_cases, with_cases
from suite.report.data import ScenarioData
from suite.report.panels import TITLES, Detail, Panel


def panel(scenario: ScenarioData) -> Panel:
    """Right, wrong or tied by arm and request, and the tokens around each first divergence."""
    cases, told = drawn_cases(scenario)

    def draw(case: Case) -> Detail:
        return Detail(case.label, (token_figures.matrix(case.series),))

    every = Detail("Every request: counts", (), (tables.request_tokens(scenario),))
    panel = Panel(
        id="panel-tokens",
        title=TITLES["panel-tokens"],
        lead=f"Every output token, held against an independent reference.{told}",
        tables=(token_tables.divergences(scenario),),
        details=(every,),
        reason="no run was started",
    )
    return with_cases(panel, cases, draw)
