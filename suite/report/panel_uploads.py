"""Panel: what is uploaded."""

from __future__ import annotations

from suite.report import tables, upload_figures
from suite.report.cases import Case, drawn_cases, titled, with_cases
from suite.report.data import ScenarioData
from suite.report.panels import TITLES, Detail, Panel


def panel(scenario: ScenarioData) -> Panel:
    """Bytes by buffer and arm, against the positions of a step, and the bandwidth that copies reach."""
    cases, told = drawn_cases(scenario)
    panel = Panel(
        id="panel-uploads",
        title=TITLES["panel-uploads"],
        lead=f"Bytes and copies from host to device, counted at the copies, and how fast they went.{told}",
        num_columns=2,
        reason="no run was started",
    )
    return with_cases(panel, cases, _of_case)


def _of_case(case: Case) -> Detail:
    kinds = upload_figures.chosen_kinds(case.series) or ["decode"]
    charts = (
        *(upload_figures.by_buffer(case.series, kind) for kind in kinds),
        *upload_figures.in_groups(case.series),
        upload_figures.bandwidth(case.series),
    )
    found = tuple(titled(tables.uploads(one), one) for one in case.series)
    return Detail(case.label, charts, details=(Detail("Every arm: bytes and copies by buffer", (), found),))
