"""The cases of a scenario, and which of them a panel draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from suite.report.chart import Chart, spread_evenly
from suite.report.data import ScenarioData, Series
from suite.report.panels import Detail
from suite.report.tables import Table
from suite.report.wording import plural

MOST = 4


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


def drawn_cases(scenario: ScenarioData, most: int = MOST) -> tuple[list[Case], str]:
    """The first, the last and some between them, and what to say of those left out."""
    found = cases_of(scenario)
    drawn = [found[index] for index in spread_evenly(len(found), most)]
    if len(drawn) == len(found):
        return drawn, ""
    return (
        drawn,
        f" {len(drawn)} of {plural(len(found), 'case')} are drawn, the first and the last among them.",
    )


def arms_of(cases: Sequence[Case]) -> tuple[Series, ...]:
    return tuple(one for case in cases for one in case.series)


def charts_and_details(
    cases: Sequence[Case], draw: Callable[[Case], Sequence[Chart]]
) -> tuple[tuple[Chart, ...], tuple[Detail, ...]]:
    """The charts of a single case, or a fold for each of several, the first one open."""
    if len(cases) == 1:
        return tuple(draw(cases[0])), ()
    return (), tuple(
        Detail(case.label, tuple(draw(case)), is_open=index == 0) for index, case in enumerate(cases)
    )
