"""Which panels a scenario has: the list to which every panel's function is attached."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from suite.report import (
    comparisons,
    panel_bill,
    panel_pays,
    panel_requests,
    panel_spans,
    panel_timeline,
    panel_tokens,
    panel_uploads,
    span_tables,
    tables,
)
from suite.report.data import ScenarioData
from suite.report.panels import TITLES, Detail, Panel, in_order
from suite.report.wording import undefined


def of_scenario(scenario: ScenarioData, max_points: int) -> tuple[Panel, ...]:
    """Every panel of a scenario in the page's order; curves have at most `max_points` points."""
    return in_order(
        (
            panel_bill.panel(scenario),
            panel_spans.panel(scenario),
            panel_timeline.panel(scenario, max_points),
            panel_uploads.panel(scenario),
            panel_pays.panel(scenario),
            panel_requests.panel(scenario, max_points),
            panel_tokens.panel(scenario),
            believe(scenario),
        )
    )


def believe(scenario: ScenarioData) -> Panel:
    config = json.dumps(scenario.config or {}, indent=2, ensure_ascii=False, default=str)
    is_known = bool(scenario.config)
    return _panel(
        "panel-believe",
        "The noise of this machine, what could have been told apart, what the instruments cost, how images "
        "attend, and what was done to the workload.",
        tables=(
            comparisons.table(scenario),
            span_tables.instruments(scenario),
            *tables.compilation(scenario),
            tables.image_attention(scenario),
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
