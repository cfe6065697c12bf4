"""Which panels a scenario has: the list to which every panel's function is attached."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from suite.report import bill_tables, comparisons, figures, span_figures, span_tables, tables
from suite.report.chart import Chart
from suite.report.data import ScenarioData, Series
from suite.report.panels import TITLES, Detail, Panel, in_order
from suite.report.tables import Table
from suite.report.wording import undefined

_NO_ARM = "no run was started"


def of_scenario(scenario: ScenarioData, max_points: int) -> tuple[Panel, ...]:
    """Every panel of a scenario in the page's order; curves have at most `max_points` points."""
    return in_order(
        (
            bill(scenario),
            spans(scenario),
            timeline(scenario, max_points),
            uploads(scenario),
            pays(scenario),
            requests(scenario, max_points),
            tokens(scenario),
            believe(scenario),
        )
    )


def bill(scenario: ScenarioData) -> Panel:
    details = tuple(Detail(one.label, (), (bill_tables.bill(one),)) for one in scenario.series if one.bill)
    return _panel(
        "panel-bill",
        "What each command of a step costs in place: the slope of the step's time on how often it is run.",
        details=details,
        reason="no command was repeated (`python -m suite cost SCENARIO` does it)",
    )


def spans(scenario: ScenarioData) -> Panel:
    return _panel(
        "panel-spans",
        "Where host and device spend a step, from one run of every arm with instruments.",
        details=_of_arms(
            scenario,
            lambda one: (span_figures.spans(one), figures.step_times(one)),
            lambda one: (
                *(span_tables.spans(one), span_tables.idle(one), span_tables.ceiling_shares(one)),
                *(tables.step_times(one), tables.routes(one)),
            ),
        ),
        reason=_NO_ARM,
    )


def timeline(scenario: ScenarioData, max_points: int) -> Panel:
    return _panel(
        "panel-timeline",
        "What every step held, over one round of every arm.",
        details=_of_arms(scenario, lambda one: (figures.batch_over_time(one, max_points),), lambda one: ()),
        reason=_NO_ARM,
    )


def uploads(scenario: ScenarioData) -> Panel:
    return _panel(
        "panel-uploads",
        "Bytes and copies from host to device, counted at the copy itself.",
        details=_of_arms(scenario, lambda one: (figures.uploads(one),), lambda one: (tables.uploads(one),)),
        reason=_NO_ARM,
    )


def pays(scenario: ScenarioData) -> Panel:
    return _panel(
        "panel-pays",
        "Where in a sweep of the traffic async scheduling is faster than sync.",
        reason="no scenario swept the traffic under both ways of scheduling",
    )


def requests(scenario: ScenarioData, max_points: int) -> Panel:
    judged = [one for one in scenario.series if not tables.why_no_speed(one)]
    left_out = [f"{one.label} ({tables.why_no_speed(one)})" for one in scenario.series if one not in judged]
    groups = figures.latency_charts(judged, max_points)
    told = f" Not drawn here: {'; '.join(left_out)}." if left_out else ""
    return _panel(
        "panel-requests",
        f"How long requests waited, and how much came out each second.{told}",
        charts=(figures.throughput(judged),),
        tables=(tables.more_verdicts(scenario),),
        num_columns=3,
        details=(
            *(Detail(heading or "Latencies", tuple(charts), is_open=True) for heading, charts in groups),
            Detail("Every metric", tables=(tables.all_metrics(scenario),)),
        ),
    )


def tokens(scenario: ScenarioData) -> Panel:
    return _panel(
        "panel-tokens",
        "Every output token, held against an independent reference.",
        tables=(tables.request_tokens(scenario),),
    )


def believe(scenario: ScenarioData) -> Panel:
    config = json.dumps(scenario.config or {}, indent=2, ensure_ascii=False, default=str)
    is_known = bool(scenario.config)
    return _panel(
        "panel-believe",
        "The noise of this machine, what could have been told apart, what the instruments cost, and what was "
        "done to the workload.",
        tables=(
            comparisons.table(scenario),
            span_tables.instruments(scenario),
            tables.workload_notes(scenario),
        ),
        details=(
            Detail(
                "Resolved scenario",
                text=config if is_known else undefined("the run folder holds no configuration of it"),
            ),
        ),
    )


def _panel(name: str, lead: str, reason: str = "", **parts: Any) -> Panel:
    """With its title, and with its reason only where it has no part."""
    panel = Panel(name, TITLES[name], lead, **parts)
    return replace(panel, reason=reason) if panel.is_empty else panel


def _of_arms(
    scenario: ScenarioData,
    charts: Callable[[Series], tuple[Chart, ...]],
    more: Callable[[Series], tuple[Table, ...]],
) -> tuple[Detail, ...]:
    """One for each arm of each case, the first unfolded."""
    return tuple(
        Detail(one.label, charts(one), more(one), is_open=index == 0)
        for index, one in enumerate(scenario.series)
    )
