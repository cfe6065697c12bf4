"""The cases of a scenario, and which of them a panel draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from suite.report.chart import spread_evenly
from suite.report.data import ScenarioData, Series
from suite.report.panels import Detail, Panel
from suite.report.tables import Table
from suite.report.wording import plural

MIN_CASES = 4
MAX_ARMS = 64
"""Arms of cases in one panel: 25 cases of two arms, say."""
MAX_NAMES = 12  # of cases that are left out


@dataclass(frozen=True, slots=True)
class Case:
    """`series`: its arms, as the scenario names them."""

    case_id: str
    label: str
    series: tuple[Series, ...]


def in_order(scenario: ScenarioData) -> tuple[Series, ...]:
    """The series of a scenario, the arms of each case as the scenario names them; a round shuffles them."""
    arms = (scenario.config or {}).get("arms")
    places = {str(arm): place for place, arm in enumerate(arms)} if isinstance(arms, list | tuple) else {}
    cases = {one.case_id: place for place, one in reversed(list(enumerate(scenario.series)))}
    return tuple(
        sorted(scenario.series, key=lambda one: (cases[one.case_id], places.get(one.arm, len(places))))
    )


def cases_of(scenario: ScenarioData) -> list[Case]:
    found: dict[str, list[Series]] = {}
    for one in in_order(scenario):
        found.setdefault(one.case_id, []).append(one)
    return [Case(case_id, group[0].case_label, tuple(group)) for case_id, group in found.items()]


def titled(table: Table, one: Series) -> Table:
    """The table with the arm it is of in its caption."""
    return replace(table, caption=f"{table.caption}: {one.label}")


def drawn_cases(scenario: ScenarioData) -> tuple[list[Case], str]:
    """All, or of a large sweep the first, the last and some between them; and which are left out."""
    found = cases_of(scenario)
    most_arms = max((len(case.series) for case in found), default=1)
    kept = spread_evenly(len(found), max(MIN_CASES, MAX_ARMS // most_arms))
    left_out = [case.label for place, case in enumerate(found) if place not in kept]
    if not left_out:
        return found, ""
    told = "; ".join(left_out[:MAX_NAMES])
    more = f"; and {len(left_out) - MAX_NAMES:,} more" if len(left_out) > MAX_NAMES else ""
    drawn = f" {len(kept):,} of {plural(len(found), 'case')} are drawn, so that the page stays small."
    return [found[place] for place in kept], f"{drawn} Left out: {told}{more}."


def with_cases(panel: Panel, cases: Sequence[Case], draw: Callable[[Case], Detail]) -> Panel:
    """The panel with what is drawn of a single case, or a fold for each of several."""
    drawn = [draw(case) for case in cases]
    if len(drawn) == 1:
        return replace(panel, charts=drawn[0].charts, details=(*drawn[0].details, *panel.details))
    return replace(panel, cases=tuple(replace(one, is_open=not place) for place, one in enumerate(drawn)))
