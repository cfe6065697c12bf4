"""Figures of a sweep: where async scheduling pays, where it does not, and where one cannot tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from suite.break_even import Cell
from suite.metrics import DEFINITIONS
from suite.report.chart import Chart, Shown, escape, one_colour, wrap
from suite.report.comparison_text import ratio_rounds
from suite.report.wording import count_range
from suite.verdict import Word

# Dark enough for white text, and seen on white as on black paper.
COLOURS = {
    "async is better": "#0071b1",
    "sync is better": "#b04700",
    "equal within the floor": "#00735a",
    "cannot tell": "#767676",
}
_MARKS = {"async is better": "▲", "sync is better": "▼", "equal within the floor": "=", "cannot tell": "?"}


def surfaces(cells: Sequence[Cell]) -> list[Chart]:
    """A chart for each pair of arms, metric and value of the swept keys but the first two."""
    pairs = dict.fromkeys((cell.over, cell.under, cell.metric) for cell in cells)
    return [
        chart
        for pair in pairs
        for chart in _of_pair([cell for cell in cells if (cell.over, cell.under, cell.metric) == pair])
    ]


def _of_pair(cells: Sequence[Cell]) -> list[Chart]:
    keys = swept_keys(cells)
    if not keys:
        return []
    across, upward = keys[0], keys[1] if len(keys) > 1 else None
    further = keys[2:]
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(_shown(cell.values.get(key)) for key in further), []).append(cell)
    return [
        _surface(group, across, upward, dict(zip(further, values, strict=True)))
        for values, group in groups.items()
    ]


def swept_keys(cells: Sequence[Cell]) -> list[str]:
    """Those of which there is more than one value, the ones with most values first."""
    values: dict[str, set[str]] = {}
    for cell in cells:
        for key, value in cell.values.items():
            values.setdefault(key, set()).add(_shown(value))
    order = [key for key, found in values.items() if len(found) > 1]
    return sorted(order, key=lambda key: -len(values[key]))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items())
    return str(value)


def _in_order(cells: Sequence[Cell], key: str | None) -> list[str]:
    """The values of a key as an axis has them: numbers by size, others as they come."""
    if key is None:
        return [""]
    values = [cell.values.get(key) for cell in cells]
    if all(isinstance(value, int | float) for value in values):
        values = sorted(values)  # type: ignore[type-var]
    return list(dict.fromkeys(map(_shown, values)))


def word(cell: Cell) -> str:
    """What a cell says; "cannot tell" wherever the interval crosses 1, whatever else."""
    interval = cell.interval
    if interval is None or cell.verdict in (Word.CANNOT_TELL, Word.NONE):
        return "cannot tell"
    if cell.verdict is Word.EQUAL:
        return "equal within the floor"
    if interval.low <= 0 <= interval.high:
        return "cannot tell"
    return "async is better" if cell.verdict is Word.FASTER else "sync is better"


def _surface(cells: Sequence[Cell], across: str, upward: str | None, further: Mapping[str, str]) -> Chart:
    first = cells[0]
    definition = DEFINITIONS[first.metric]
    where = "".join(f", {key} {value}" for key, value in further.items())
    title = f"{first.over} against {first.under}: {definition.name.replace('_', ' ')}{where}"
    columns, rows = _in_order(cells, across), _in_order(cells, upward)
    found = {
        (_shown(cell.values.get(across)), _shown(cell.values.get(upward)) if upward else ""): cell
        for cell in cells
    }
    figure = go.Figure(
        [
            one_colour(
                f"{_MARKS[name]} {name}", COLOURS[name], columns, rows, _grid(name, found, columns, rows)
            )
            for name in COLOURS
            if any(word(cell) == name for cell in cells)
        ]
    )
    figure.update_layout(
        height=150 + 46 * len(rows),
        xaxis={
            "type": "category",
            "title": {"text": escape(across)},
            "categoryorder": "array",
            "categoryarray": columns,
        },
        yaxis={
            "type": "category",
            "title": {"text": escape(upward or "")},
            "categoryorder": "array",
            "categoryarray": rows,
            "showticklabels": upward is not None,
        },
    )
    return Chart(title, _caption(cells, definition.better), figure)


def _grid(
    name: str, found: Mapping[tuple[str, str], Cell], columns: Sequence[str], rows: Sequence[str]
) -> list[list[Shown | None]]:
    """The cells of that verdict; the others are left open."""
    mine = {place: (_text(cell), _told(cell)) for place, cell in found.items() if word(cell) == name}
    return [[mine.get((column, row)) for column in columns] for row in rows]


def _text(cell: Cell) -> str:
    value = "n/a" if cell.value is None else f"{cell.value:.3g}"
    return f"{_MARKS[word(cell)]} {value}"


def _told(cell: Cell) -> str:
    interval = cell.interval
    ends = (
        "no interval"
        if interval is None
        else (f"[{math.exp(interval.low):.3g}, {math.exp(interval.high):.3g}]")
    )
    value = "n/a" if cell.value is None else f"{cell.value:.4g}"
    return (
        f"{wrap(cell.case_label, 40)}<br>{value} {ends}, {ratio_rounds(cell.ratio)}<br>"
        f"{word(cell)}: {wrap(cell.reason or cell.ratio.reason or '', 48)}"
    )


def _caption(cells: Sequence[Cell], better: str) -> str:
    told = count_range((cell.ratio.num_rounds for cell in cells), "round")
    undecided = sum(word(cell) == "cannot tell" for cell in cells)
    return (
        f"Each cell is the ratio of the two arms; {'above' if better == 'higher' else 'below'} 1 async is "
        "better. Grey “?”: cannot tell, the 95 % interval crosses 1 or reaches across the edge of the "
        f"noise floor ({undecided} of {len(cells)}). n\u00a0=\u00a0{told} a cell."
    )
