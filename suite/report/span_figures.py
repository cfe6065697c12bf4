"""Figures of where a step's time goes: what makes it long, its spans, and how long single spans take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from suite.cost_tables import CostTables, SpanRow
from suite.metrics import STEP_KINDS
from suite.report.chart import (
    LIGHT,
    Chart,
    categories,
    distinct,
    filled,
    height_of,
    log_axis,
    rounded,
    three_digits,
    time_unit,
    wrap,
)
from suite.report.data import Series
from suite.report.samples import step_samples
from suite.report.span_tables import LANE_NAMES, tables_of
from suite.report.wording import count_range, plural

MAX_SPANS = 5  # of a stacked bar; what is left is "other"
MAX_BOXES = 16  # spans with a box each
OTHER = "other"
HIDDEN = "#f0e442"  # seen on the device's colour, light or dark


@dataclass(frozen=True, slots=True)
class _Kind:
    """The rows of one kind of step of one arm."""

    label: str
    num_steps: int
    rows: tuple[SpanRow, ...]

    def total_us(self, lane: str, part: str, waits: bool | None = None) -> float:
        """The sum of a part over the spans of a lane; waits only, or all but them, where told."""
        return sum(
            float(getattr(row, part))
            for row in self.rows
            if row.lane == lane and (waits is None or row.name.startswith("wait.") == waits)
        )

    def by_name(self, lane: str) -> Mapping[str, float]:
        return {row.name: row.mean_us for row in self.rows if row.lane == lane and row.mean_us > 0}


def kinds_of(series: Sequence[Series]) -> tuple[str, ...]:
    """Of steps that any of these arms has spans of."""
    tables = [found for one in series if (found := tables_of(one)[0]) is not None]
    present = {row.kind for table in tables for row in table.kinds}
    return tuple(kind for kind in STEP_KINDS if kind in present)


def why_none(series: Sequence[Series], kind: str) -> str:
    reasons = dict.fromkeys(reason for one in series if (reason := tables_of(one)[1]))
    return "; ".join(reasons) or f"no {kind} step was recorded"


def _of_kind(series: Sequence[Series], kind: str) -> tuple[list[_Kind], list[str]]:
    """Each arm's rows of that kind, and the arms without any with why."""
    found, absent = [], []
    for one in series:
        tables, reason = tables_of(one)
        rows = _rows(tables, kind)
        if rows is None:
            absent.append(f"{one.arm} ({reason or f'no {kind} step'})")
        else:
            assert tables is not None
            num_steps = next(row.num_steps for row in tables.kinds if row.kind == kind)
            found.append(_Kind(one.arm, num_steps, rows))
    return found, absent


def _rows(tables: CostTables | None, kind: str) -> tuple[SpanRow, ...] | None:
    if tables is None or not any(row.kind == kind for row in tables.kinds):
        return None
    return tuple(row for row in tables.spans if row.kind == kind)


def _absent(names: Sequence[str]) -> str:
    return f" Not drawn: {'; '.join(names)}." if names else ""


def _counts(found: Sequence[_Kind]) -> str:
    """ "n = 20 steps of each arm"; the least and the most where they differ."""
    told = count_range((one.num_steps for one in found), "step")
    return f"n\u00a0=\u00a0{told} of each arm, of one run with instruments"


# What makes a step long


_PARTS = (
    ("device busy (serial)", "compute", "serial_us", None),
    ("device idle, host works (idle-causing)", "host", "idle_causing_us", False),
    ("device idle, host waits", "host", "idle_causing_us", True),
)


def lengthening(series: Sequence[Series], kind: str) -> Chart:
    """For each arm what a step's length is made of, and the host's work that lies hidden under it."""
    title = f"What makes a {kind} step long"
    found, absent = _of_kind(series, kind)
    if not found:
        return Chart(title, reason=why_none(series, kind))
    lengths = [[one.total_us(lane, part, waits) for _, lane, part, waits in _PARTS] for one in found]
    hidden = [one.total_us("host", "overlapped_us", False) for one in found]
    sums = [sum(parts) for parts in lengths]
    unit, scale = time_unit(max(sums))
    keys = distinct([one.label for one in found])
    figure = go.Figure()
    for index, (name, *_) in enumerate(_PARTS):
        before = np.array([sum(parts[:index]) for parts in lengths]) * scale
        values = np.array([parts[index] for parts in lengths]) * scale
        figure.add_trace(_bars(keys, values, before, name, index, unit))
    figure.add_trace(_hidden(keys, np.array(hidden) * scale, unit))
    figure.add_trace(_totals(keys, np.array(sums) * scale))
    figure.update_layout(_layout(keys, 30, unit, scale * max(sums)))
    return Chart(
        title,
        f"Mean time of a step ({unit}): the device's, and the gaps in which it had nothing to run, by what "
        "the host did then. The thin bar within is the host's work that overlapped with the device, and so "
        f"added nothing. {_counts(found)}.{_absent(absent)}",
        figure,
    )


def _layout(keys: Sequence[str], row_height: int, unit: str, longest: float) -> dict[str, object]:
    """Of stacked bars with their totals behind them, which need some room beside the longest."""
    return {
        "barmode": "overlay",
        "height": height_of(keys, row_height),
        "xaxis": {
            "title": {"text": f"{unit} a step (mean)"},
            "range": [0, 1.22 * longest],
            "nticks": 6,
        },
        "yaxis": categories(keys),
    }


def _bars(
    keys: Sequence[str], values: np.ndarray, before: np.ndarray, name: str, index: int, unit: str
) -> go.Bar:
    return go.Bar(
        y=list(keys),
        x=rounded(values),
        base=rounded(before),
        orientation="h",
        width=0.74,
        name=name,
        meta=name,
        marker=filled(index),
        customdata=rounded(values),
        hovertemplate=f"%{{y}}: %{{customdata}} {unit}<extra>%{{fullData.name}}</extra>",
    )


def _hidden(keys: Sequence[str], values: np.ndarray, unit: str) -> go.Bar:
    name = "host works, hidden under the device (overlapped)"
    return go.Bar(
        y=list(keys),
        x=rounded(values),
        orientation="h",
        width=0.26,
        name=name,
        meta=name,
        marker={"color": HIDDEN, "line": {"color": LIGHT[5], "width": 1}},
        hovertemplate=f"%{{y}}: %{{x}} {unit}<extra>%{{fullData.name}}</extra>",
    )


def _totals(keys: Sequence[str], values: np.ndarray) -> go.Scatter:
    return go.Scatter(
        y=list(keys),
        x=rounded(values),
        mode="text",
        text=[f" {three_digits(value)}" for value in values],
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
    )


# Spans by arm


def by_arm(series: Sequence[Series], kind: str, lane: str) -> Chart:
    """For each arm a bar: the lane's time in a step of that kind, cut into its spans, the largest first."""
    title = f"{'Device' if lane == 'compute' else 'Host'} time of a {kind} step, by span"
    found, absent = _of_kind(series, kind)
    names = [one.by_name(lane) for one in found]
    if not any(names):
        return Chart(title, reason=why_none(series, kind) if not found else f"no span of {LANE_NAMES[lane]}")
    sums = [sum(parts.values()) for parts in names]
    unit, scale = time_unit(max(sums))
    keys = distinct([one.label for one in found])
    largest = _largest(names)
    figure = go.Figure()
    before = np.zeros(len(keys))
    for index, name in enumerate([*largest, OTHER]):
        values = np.array([_part(parts, name, largest) for parts in names]) * scale
        if values.any():
            figure.add_trace(_bars(keys, values, before, name, index, unit))
        before = before + values
    figure.add_trace(_totals(keys, np.array(sums) * scale))
    figure.update_layout(_layout(keys, 26, unit, scale * max(sums)))
    left = sorted({name for parts in names for name in parts} - set(largest))
    others = f" {OTHER}: {', '.join(left)}." if left else ""
    return Chart(title, f"Mean {unit} a step. {_counts(found)}.{others}{_absent(absent)}", figure)


def _largest(names: Sequence[Mapping[str, float]]) -> list[str]:
    """The spans that take most in any arm."""
    most: dict[str, float] = {}
    for parts in names:
        for name, us in parts.items():
            most[name] = max(most.get(name, 0), us)
    return sorted(most, key=lambda name: (-most[name], name))[:MAX_SPANS]


def _part(parts: Mapping[str, float], name: str, largest: Sequence[str]) -> float:
    if name == OTHER:
        return sum(us for found, us in parts.items() if found not in largest)
    return parts.get(name, 0.0)


# Distributions


def wall_times(series: Sequence[Series], kind: str) -> Chart:
    """How long a step of that kind took under each arm, in the valid rounds: a box for each."""
    title = f"Length of a {kind} step"
    found = [(one, step_samples(one.pooled_steps, "wall_ms", kind)) for one in series]
    drawn = [(one, samples.values) for one, samples in found if samples.num]
    if not drawn:
        reasons = dict.fromkeys(samples.reason for _, samples in found)
        return Chart(title, reason="; ".join(reasons) or "no run completed")
    keys = distinct([one.arm for one, _ in drawn])
    percentiles = np.array([np.percentile(values, (5, 25, 50, 75, 95)) for _, values in drawn])
    figure = go.Figure(_box(keys, percentiles, 0, "wall time"))
    figure.update_layout(
        height=height_of(keys, 26),
        xaxis={"title": {"text": "ms a step"}, "rangemode": "tozero", "nticks": 6},
        yaxis=categories(keys),
    )
    told = count_range((values.size for _, values in drawn), "step")
    absent = [f"{one.arm} ({samples.reason})" for one, samples in found if not samples.num]
    return Chart(
        title,
        f"Milliseconds from the end of the step before; n\u00a0=\u00a0{told} of each arm, all "
        f"measured rounds, without instruments. {_BOX}{_absent(absent)}{drawn[0][0].thinning}",
        figure,
    )


_BOX = "Box: median and quartiles; whiskers: 5th and 95th percentile."


def _box(keys: Sequence[str], percentiles: np.ndarray, index: int, name: str) -> go.Box:
    low, q1, middle, q3, high = np.transpose(percentiles)
    colour = LIGHT[index]
    return go.Box(
        y=list(keys),
        orientation="h",
        name=name,
        lowerfence=rounded(low),
        q1=rounded(q1),
        median=rounded(middle),
        q3=rounded(q3),
        upperfence=rounded(high),
        marker={"color": colour},
        line={"color": colour, "width": 2},
    )


def durations(one: Series, kind: str) -> Chart:
    """How long one span of each name takes: a box for each of the spans that take most of a step."""
    title = f"How long one span takes, {kind} steps"
    found, _ = _of_kind([one], kind)
    rows = [row for row in (found[0].rows if found else ()) if row.num_spans and row.p95_us > 0]
    if not rows:
        return Chart(title, reason=why_none([one], kind))
    rows = sorted(sorted(rows, key=lambda row: -row.mean_us)[:MAX_BOXES], key=lambda row: -row.median_us)
    names = {lane: [row for row in rows if row.lane == lane] for lane in LANE_NAMES}
    figure = go.Figure()
    for index, (lane, of_lane) in enumerate(names.items()):
        if of_lane:
            percentiles = np.array(
                [[row.p5_us, row.p25_us, row.median_us, row.p75_us, row.p95_us] for row in of_lane]
            )
            figure.add_trace(_box([_key(row) for row in of_lane], percentiles, index, LANE_NAMES[lane]))
    lows = [max(row.p5_us, 1e-3) for row in rows]
    figure.update_layout(
        height=110 + 26 * len(rows),
        xaxis=log_axis("µs", "~s", min(lows), max(row.p95_us for row in rows)),
        yaxis=categories([_key(row) for row in rows]),
    )
    told = count_range((row.num_spans for row in rows), "span")
    return Chart(
        title,
        f"Microseconds (µs) of single spans, without what lies within them; n\u00a0=\u00a0{told} of "
        f"each name in {plural(found[0].num_steps, 'step')}. {_BOX} Those that take most of a step are "
        "drawn; the table has all.",
        figure,
    )


def _key(row: SpanRow) -> str:
    return wrap(f"{LANE_NAMES[row.lane]} · {row.name}", width=40)
