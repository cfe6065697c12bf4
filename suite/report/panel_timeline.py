"""Panel: the timeline."""

from __future__ import annotations

from suite.report import figures, timeline_figures
from suite.report.cases import Case, arms_of, charts_and_details, drawn_cases
from suite.report.chart import Chart
from suite.report.data import ScenarioData
from suite.report.panels import TITLES, Detail, Panel

MOST_PIECES = 6_000


def panel(scenario: ScenarioData, max_points: int) -> Panel:
    """Host and device over a few steps, two arms above one another, and every arm's batches over a round."""
    cases, told = drawn_cases(scenario)

    def draw(case: Case) -> list[Chart]:
        return [timeline_figures.timeline(case.series, MOST_PIECES // max(1, len(cases)))]

    charts, details = charts_and_details(cases, draw)
    batches = (
        Detail(f"Batches of {one.label}", (figures.batch_over_time(one, max_points),))
        for one in arms_of(cases)
    )
    return Panel(
        id="panel-timeline",
        title=TITLES["panel-timeline"],
        lead="What host and device did, moment by moment: choose two arms to lie above one another; drag to "
        f"zoom in, double-click to zoom out, and point at a bar for its step, rows, route and bytes.{told}",
        charts=charts,
        details=(*details, *batches),
        reason="no run was started",
    )
