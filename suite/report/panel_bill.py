"""Panel: the bill of a step."""

from __future__ import annotations

from suite.report import attribution_tables, bill_figures, bill_tables
from suite.report.cases import Case, drawn_cases, in_order, titled, with_cases
from suite.report.cost_hint import cost_time
from suite.report.data import ScenarioData
from suite.report.panels import TITLES, Detail, Panel

KINDS = ("decode", "mixed")


def panel(scenario: ScenarioData) -> Panel:
    """From the gated arm to the ceiling, and what commands cost in place, decode and mixed steps apart."""
    cases, told = drawn_cases(scenario)
    time = cost_time(scenario)
    takes = f" in {time}" if time else ""
    never = f"no command was repeated (`python -m suite cost {scenario.file}` does it{takes})"
    no_bill = scenario.thinned_bill or never

    def draw(case: Case) -> Detail:
        lines = [line for line in scenario.attribution if line.case_id == case.case_id]
        bills = [one.bill for one in case.series if one.bill is not None]
        charts = (
            *(bill_figures.waterfall(lines, kind) for kind in KINDS),
            *(bill_figures.amplified(bills, kind, no_bill) for kind in KINDS),
        )
        return Detail(case.label, charts)

    bills = tuple(titled(bill_tables.bill(one), one) for one in in_order(scenario) if one.bill)
    lines = attribution_tables.table(scenario)
    tables = (
        *((Detail("Every line of the attribution, with its interval", (), (lines,)),) if lines.rows else ()),
        *((Detail("Every bill: figures", (), bills),) if bills else ()),
    )
    panel = Panel(
        id="panel-bill",
        title=TITLES["panel-bill"],
        lead="What each choice of the runner costs on the same steps, and what single commands cost in "
        "place: the slope of the step's time on how often a command is run, beside the device's own "
        f"clock.{told}",
        num_columns=2,
        details=tables,
        reason="no run was started",
    )
    return with_cases(panel, cases, draw)
