"""Panel: one numbered question of a scenario's part of the page, and the charts and tables that answer it.

A panel is made by a pure function from a ScenarioData; the template draws any sequence of them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suite.report.chart import Chart
from suite.report.tables import Table

TITLES = {
    "panel-bill": "The bill of a step",
    "panel-spans": "Where the step goes",
    "panel-timeline": "Timeline",
    "panel-uploads": "What is uploaded",
    "panel-pays": "Does async pay?",
    "panel-requests": "Requests",
    "panel-tokens": "Tokens",
    "panel-believe": "Can I believe it?",
}
"""Of every scenario, in the order of the page."""


@dataclass(frozen=True, slots=True)
class Detail:
    """What is folded away under a line: of one arm of one case, say. `text` is shown as it is written."""

    label: str
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    is_open: bool = False
    text: str = ""
    details: tuple[Detail, ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """`id` is a key of TITLES; `lead` one sentence on what is seen.

    A panel with neither charts nor tables nor details has a `reason`, which stands in for them. A chart and
    a table without data have their own. Charts stand in `num_columns` columns where the screen is wide. Of
    several `cases` the page shows one at a time, which its reader chooses. `lacks`: the reason in two words.
    """

    id: str
    title: str
    lead: str
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    reason: str = ""
    num_columns: int = 1
    details: tuple[Detail, ...] = ()
    cases: tuple[Detail, ...] = ()
    lacks: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.charts or self.tables or self.details or self.cases)


def in_order(panels: Sequence[Panel]) -> tuple[Panel, ...]:
    """As the page numbers them; ValueError for an id that is unknown or stands twice."""
    ids = [panel.id for panel in panels]
    wrong = [name for name in ids if name not in TITLES or ids.count(name) > 1]
    if wrong:
        raise ValueError(f"panel {wrong[0]!r} is unknown or stands twice")
    order = list(TITLES)
    return tuple(sorted(panels, key=lambda panel: order.index(panel.id)))
