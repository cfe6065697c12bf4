"""Panel: the timeline."""

from __future__ import annotations

from suite.report import figures, timeline_figures
from suite.report.cases import Case, drawn_cases, with_cases
from suite.report.data import ScenarioData
from suite.report.panels import TITLES, Detail, Panel

MOST_PIECES = 6_000


def panel(scenario: ScenarioData, max_points: int) -> Panel:
    """Host and device over a few steps, two arms above one another, and every arm's batches over a round."""
    cases, told = drawn_cases(scenario)

    def draw(case: Case) -> Detail:
        batches = (
            Detail(f"Batches of {one.label}", (figures.batch_over_time(one, max_points),))
            for one in case.series
        )
        chart = timeline_figures.timeline(case.series, MOST_PIECES // len(cases))
        return Detail(case.label, (chart,), details=tuple(batches))

    panel = Panel(
        id="panel-timeline",
        title=TITLES["panel-timeline"],
        lead="What host and device did, moment by moment: choose two arms to lie above one another; drag to "
        f"zoom in, double-click to zoom out, and point at a bar for its step, rows, route and bytes.{told}",
        reason="no run was started",
    )
    return with_cases(panel, cases, draw)
