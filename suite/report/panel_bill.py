"""Panel: the bill of a step."""

from __future__ import annotations

from suite.report import attribution_tables, bill_figures, bill_tables
from suite.report.cases import Case, charts_and_details, drawn_cases, in_order, titled
from suite.report.chart import Chart
from suite.report.data import ScenarioData
from suite.report.panels import TITLES, Detail, Panel

KINDS = ("decode", "mixed")


def panel(scenario: ScenarioData) -> Panel:
    """From the gated arm to the ceiling, and what commands cost in place, decode and mixed steps apart."""
    cases, told = drawn_cases(scenario)
    never = f"no command was repeated (`python -m suite cost {scenario.file}` does it)"
    no_bill = scenario.thinned_bill or never

    def draw(case: Case) -> list[Chart]:
        lines = [line for line in scenario.attribution if line.case_id == case.case_id]
        bills = [one.bill for one in case.series if one.bill is not None]
        return [
            *(bill_figures.waterfall(lines, kind) for kind in KINDS),
            *(bill_figures.amplified(bills, kind, no_bill) for kind in KINDS),
        ]

    charts, details = charts_and_details(cases, draw)
    bills = tuple(titled(bill_tables.bill(one), one) for one in in_order(scenario) if one.bill)
    lines = attribution_tables.table(scenario)
    tables = (
        *((Detail("Every line of the attribution, with its interval", (), (lines,)),) if lines.rows else ()),
        *((Detail("Every bill: figures", (), bills),) if bills else ()),
    )
    return Panel(
        id="panel-bill",
        title=TITLES["panel-bill"],
        lead="What each choice of the runner costs on the same steps, and what single commands cost in "
        "place: the slope of the step's time on how often a command is run, beside the device's own "
        f"clock.{told}",
        charts=charts,
        num_columns=2,
        details=(*details, *tables),
        reason="no run was started",
    )
