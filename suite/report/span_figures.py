"""The chart of where a step's time goes: every span a line, every kind of step a mark."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from suite.cost_tables import SpanRow
from suite.metrics import STEP_KINDS
from suite.report.chart import LIGHT, SYMBOLS, Chart, categories, log_axis, rounded, wrap
from suite.report.data import Series
from suite.report.span_tables import LANE_NAMES, tables_of
from suite.report.wording import plural

TITLE = "Where the time of a step goes"


def spans(one: Series) -> Chart:
    """Mean µs a step by lane and span, on a logarithmic axis; the host's above the device's."""
    tables, reason = tables_of(one)
    if tables is None:
        return Chart(TITLE, reason=reason)
    drawn = [row for row in tables.spans if row.mean_us > 0]
    if not drawn:
        return Chart(TITLE, reason="no step was recorded")
    figure = go.Figure()
    for kind in dict.fromkeys(row.kind for row in drawn):
        figure.add_trace(_points(kind, [row for row in drawn if row.kind == kind]))
    lines = list(dict.fromkeys(_name(row) for row in drawn))
    means = [row.mean_us for row in drawn]
    figure.update_layout(
        height=110 + 24 * len(lines),
        xaxis=log_axis("µs a step", "~s", min(means), max(means)),
        yaxis=categories([wrap(name, width=40) for name in lines]),
    )
    counts = ", ".join(f"{row.kind} {plural(row.num_steps, 'step')}" for row in tables.kinds)
    return Chart(
        TITLE,
        f"Mean microseconds (µs) a step, without what lies in a span within it; one run with instruments, "
        f"n = {counts}. The host's and the device's lines each add up to a step; under async they lie beside "
        "one another. The table below has the figures, and what is serial, overlapped or idle-causing.",
        figure,
    )


def _name(row: SpanRow) -> str:
    return f"{LANE_NAMES[row.lane]} · {row.name}"


def _points(kind: str, rows: Sequence[SpanRow]) -> go.Scatter:
    index = STEP_KINDS.index(kind)
    return go.Scatter(
        x=rounded(np.asarray([row.mean_us for row in rows], dtype=np.float64)),
        y=[wrap(_name(row), width=40) for row in rows],
        mode="markers",
        name=kind,
        meta=kind,
        marker={"symbol": SYMBOLS[index], "size": 10, "color": LIGHT[index], "line": {"width": 2}},
        hovertemplate="%{y}: %{x} µs a step<extra>%{fullData.name}</extra>",
    )
