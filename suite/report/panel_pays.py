"""Panel: does async pay?"""

from __future__ import annotations

from suite.report import attribution_tables, break_even_figures
from suite.report.data import ScenarioData
from suite.report.panels import TITLES, Detail, Panel

MOST = 12  # charts
_SWEEP = "sweep: {traffic.multimodal_ratio: [0, 0.5, 1], traffic.embeds_ratio: [0, 0.5, 1]}"


def panel(scenario: ScenarioData) -> Panel:
    """The surface of ratios over a sweep, or why there is none and the command that makes one."""
    charts = break_even_figures.surfaces(scenario.break_even)
    told = (
        f" {MOST} of {len(charts)} charts are drawn; the cells below are all." if len(charts) > MOST else ""
    )
    cells = attribution_tables.break_even(scenario)
    return Panel(
        id="panel-pays",
        title=TITLES["panel-pays"],
        lead=f"Where in a sweep of the traffic async scheduling is better than sync, all else alike.{told}",
        charts=tuple(charts[:MOST]),
        details=(Detail("Every cell, with its interval", (), (cells,)),) if cells.rows else (),
        num_columns=2,
        reason=_why_none(scenario),
        lacks="no sweep",
    )


def _why_none(scenario: ScenarioData) -> str:
    if scenario.break_even:
        return f"nothing was swept: {_command(scenario)}"
    return (
        "no sweep of this scenario ran two arms that differ in nothing but scheduling, such as async-rows "
        f"and sync-rows: {_command(scenario)}"
    )


def _command(scenario: ScenarioData) -> str:
    return f"give {scenario.file} a sweep, such as `{_SWEEP}`, and run it with `--arms sync-rows,async-rows`"
