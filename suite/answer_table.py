"""The answer of each scenario as the terminal shows it: what the first screen of the page says."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from suite.report.answer import points
from suite.report.data import ScenarioData
from suite.report.point import Point

_STYLES = {"right": "green", "wrong": "bold red", "doubt": "yellow", "": ""}
_SIGNS = {"right": "✓", "wrong": "✗", "doubt": "?", "": " "}
_NARROW = 72


def print_answers(console: Console, scenarios: Sequence[ScenarioData]) -> None:
    """Two columns where the terminal is wide enough, else a line under each label."""
    for scenario in scenarios:
        console.print()
        console.print(Text(scenario.name, style="bold"))
        found = points(scenario)
        if console.width < _NARROW:
            _print_lines(console, found)
        else:
            console.print(_table(found), soft_wrap=False)


def _table(found: Sequence[Point]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for point in found:
        table.add_row(_sign(point), Text(point.label), Text(point.plain))
    return table


def _print_lines(console: Console, found: Sequence[Point]) -> None:
    for point in found:
        console.print(Text.assemble(_sign(point), f" {point.label}:"))
        console.print(Padding(Text(point.plain), (0, 0, 0, 2)), soft_wrap=False)


def _sign(point: Point) -> Text:
    return Text(_SIGNS[point.mark], style=_STYLES[point.mark])
