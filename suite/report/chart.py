"""What all charts share: colours and marks, names as plotly can take them, axes. Knows no record.

Colours are of the Okabe-Ito set, darkened where white paper needs it; dash and symbol say the same again.
Names from a scenario are escaped, since plotly reads a little HTML in its texts.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

Values = npt.NDArray[np.float64]
Shown = tuple[str, str]
"""Text in a cell of a heat map, and what pointing at it tells."""

# For light paper; `page` swaps in the colour of the same place in `DARK` on a dark screen.
LIGHT = ("#0072b2", "#c14f00", "#00805c", "#a8508a", "#8a6a00", "#4d4d4d")
DARK = ("#56b4e9", "#ff8c42", "#2fcf9f", "#e79cc8", "#f0e442", "#d8d8d8")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle-open", "square-open", "diamond-open", "triangle-up-open", "cross-open", "x-open")
PATTERNS = ("", "/", ".", "x", "-", "|")  # of filled areas
MAX_SERIES = len(LIGHT)  # in one chart; more lines than that cannot be told apart


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of the page: a figure, or the reason for its absence. `caption` gives unit and n.

    A trace's `meta` is its entry in the legend, which the page draws; a trace without has none.
    """

    title: str
    caption: str = ""
    figure: go.Figure | None = None
    reason: str = ""


_MAX_DECADES_OF_THREE = 3


def escape(text: str) -> str:
    """A name as plotly shows it literally: plotly reads tags and entities in every text it draws."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def wrap(text: str, width: int = 26, max_lines: int = 3) -> str:
    """A name broken into short lines, at words where it can be, escaped; the rest is an ellipsis."""
    lines = textwrap.wrap(text, width, max_lines=max_lines, placeholder="…") or [""]
    return "<br>".join(escape(line) for line in lines)


def distinct(names: Sequence[str], width: int = 26) -> list[str]:
    """Names as an axis needs them: wrapped, and numbered where two would look the same."""
    keys: list[str] = []
    for name in names:
        key = wrap(name, width)
        keys.append(key if key not in keys else f"{key} ({len(keys) + 1})")
    return keys


def categories(keys: Sequence[str]) -> dict[str, Any]:
    """An axis of names, the first at the top; never taken for numbers or dates."""
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [*reversed(keys)],
        "range": [-0.5, len(keys) - 0.5],
    }


def log_axis(title: str, tickformat: str, low: float, high: float, is_narrow: bool = False) -> dict[str, Any]:
    """Logarithmic, for values from `low` to `high`, both positive; every tick says its whole number.

    Ticks at 1, 2 and 5, or at powers of ten where those would be many: plotly's own choice, all nine digits
    of a power of ten, runs together. `is_narrow`: beside long names, there is room for few.
    """
    axis = {"title": {"text": f"{title}, logarithmic"}, "type": "log", "tickformat": tickformat}
    decades = math.log10(high / low)
    if decades < 1:
        return axis
    most = _MAX_DECADES_OF_THREE / 2 if is_narrow else _MAX_DECADES_OF_THREE
    return axis | {"dtick": "D2" if decades <= most else 1}


def filled(index: int) -> dict[str, Any]:
    """The marker of bars: a colour, and a pattern that says the same again."""
    colour = LIGHT[index % len(LIGHT)]
    shape = PATTERNS[index % len(PATTERNS)]
    return {
        "color": colour,
        "pattern": {"shape": shape, "size": 6, "solidity": 0.4},
        "line": {"color": colour, "width": 1},
    }


def mark(index: int, size: int = 10) -> dict[str, Any]:
    """The marker of points: a colour, and a symbol that says the same again."""
    return {
        "symbol": SYMBOLS[index % len(SYMBOLS)],
        "size": size,
        "color": LIGHT[index % len(LIGHT)],
        "line": {"width": 2},
    }


def one_colour(
    name: str,
    colour: str,
    columns: Sequence[str],
    rows: Sequence[str],
    cells: Sequence[Sequence[Shown | None]],
) -> go.Heatmap:
    """The cells of a heat map that have one verdict, all in one colour; None leaves a cell open."""
    return go.Heatmap(
        x=list(columns),
        y=list(rows),
        z=[[None if cell is None else 1 for cell in row] for row in cells],
        text=[["" if cell is None else cell[0] for cell in row] for row in cells],
        customdata=[["" if cell is None else cell[1] for cell in row] for row in cells],
        texttemplate="%{text}",
        textfont={"color": "#ffffff", "size": 11},
        colorscale=[[0, colour], [1, colour]],
        showscale=False,
        xgap=2,
        ygap=2,
        hoverongaps=False,
        name=name,
        meta=name,
        hovertemplate="%{customdata}<extra></extra>",
    )


def time_unit(largest_us: float) -> tuple[str, float]:
    """Unit and factor in which times of up to so many µs are read most easily."""
    return ("ms", 1e-3) if largest_us >= 1000 else ("µs", 1.0)


def spread_evenly(count: int, most: int) -> list[int]:
    """Indices of `count` items, or of `most` of them, evenly spread with both ends kept."""
    if count <= most:
        return list(range(count))
    return sorted({round(place) for place in np.linspace(0, count - 1, max(1, most))})


def three_digits(value: float) -> str:
    """Three significant digits at least, and never an exponent: 1,234 · 123 · 12.3 · 1.23 · 0.123."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def height_of(keys: Sequence[str], row: int, around: int = 110) -> int:
    """Of a chart with a line for each name: high enough for names that are wrapped."""
    return around + len(keys) * max([row, *(17 * (1 + key.count("<br>")) + 2 for key in keys)])


def rounded(values: Values) -> list[float]:
    """Five significant digits, as plain numbers: finer than any screen, and half the bytes."""
    return [float(f"{value:.5g}") for value in values]
