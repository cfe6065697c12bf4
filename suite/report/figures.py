"""Pure functions from records to plotly figures. Every chart is a figure or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from suite.metrics import STEP_KINDS
from suite.report.chart import (
    DASHES,
    LIGHT,
    MAX_SERIES,
    SYMBOLS,
    Chart,
    categories,
    distinct,
    escape,
    log_axis,
    rounded,
    wrap,
)
from suite.report.data import MeasuredRun, Series, round_label
from suite.report.samples import CLOCKS, Samples, latency_samples, step_samples
from suite.report.wording import count_range, median, plural, quantity

WHISKERS = (5, 95)
LATENCIES = {
    "ttft_ms": ("Time to first token", "requests"),
    "itl_ms": ("Inter-token latency", "gaps between tokens"),
    "e2e_ms": ("End-to-end latency", "requests"),
}
BATCH = (
    ("num_decode_rows", "decode"),
    ("num_prefill_tokens", "prefill"),
    ("num_image_rows", "prefill: image rows"),
)
BATCH_DASHES = {"num_prefill_tokens": "dash", "num_image_rows": "dot"}
QUEUES = (("num_waiting", "waiting<br>requests"), ("num_free_blocks", "free<br>blocks"))

Values = npt.NDArray[np.float64]


def short_labels(series: Sequence[Series]) -> list[str]:
    """What tells the series apart: the case, the arm, or both."""
    if len({one.case_label for one in series}) == 1 and len(series) > 1:
        return [one.arm for one in series]
    if len({one.arm for one in series}) == 1 and len(series) > 1:
        return [one.case_label for one in series]
    return [one.label for one in series]


# throughput


def throughput(series: Sequence[Series], name: str = "output_throughput") -> Chart:
    """Every round a point, the median marked: one line of the chart for each arm of each case."""
    title = "Output throughput, every round"
    shown = [one for one in series if one.values(name)]
    if not shown:
        reasons = dict.fromkeys(one.reason(name) for one in series)
        return Chart(title, reason="; ".join(reasons) or "no run completed")
    keys = distinct(short_labels(shown))
    figure = go.Figure()
    arms = list(dict.fromkeys(one.arm for one in shown))
    for index, arm in enumerate(arms):
        chosen = [(key, one) for key, one in zip(keys, shown, strict=True) if one.arm == arm]
        figure.add_trace(_rounds(chosen, name, index, len(arms) <= MAX_SERIES))
    figure.add_trace(
        go.Scatter(
            x=[median(one.values(name)) for one in shown],
            y=keys,
            mode="markers",
            name="median",
            meta="median",
            marker={"symbol": "line-ns-open", "size": 26, "line": {"width": 3}, "color": LIGHT[-1]},
            hovertemplate="median %{x} tok/s<extra></extra>",
        )
    )
    doubted = [(key, run) for key, one in zip(keys, shown, strict=True) for run in one.invalid_runs]
    if doubted:
        figure.add_trace(_invalid_rounds(doubted, name))
    figure.update_layout(
        height=100 + 54 * len(shown),
        xaxis=_rate_axis([value for one in shown for value in one.values(name)]),
        yaxis=categories(keys),
    )
    counts = count_range((len(one.values(name)) for one in shown), "round")
    return Chart(
        title,
        f"Output tokens per second (tok/s); each mark is one measured round, n\u00a0=\u00a0{counts} for each "
        "line; the upright stroke is the median. The axis need not start at zero."
        + (" A cross is a round that is INVALID: it is in no figure." if doubted else ""),
        figure,
    )


def _invalid_rounds(doubted: Sequence[tuple[str, MeasuredRun]], name: str) -> go.Scatter:
    """Shown, and in no median."""
    shown = [
        (run.record.metrics[name].value, key, run.record.round + 1)
        for key, run in doubted
        if name in run.record.metrics
    ]
    return go.Scatter(
        x=[value for value, _, _ in shown],
        y=[key for _, key, _ in shown],
        customdata=[round_number for _, _, round_number in shown],
        mode="markers",
        name="INVALID",
        meta="rounds that are INVALID",
        marker={"symbol": "x-thin-open", "size": 11, "color": LIGHT[-1], "line": {"width": 2}},
        hovertemplate="round %{customdata}, INVALID: %{x} tok/s<extra></extra>",
    )


def _rate_axis(values: Sequence[float]) -> dict[str, Any]:
    """From the lowest to the highest and a little more; a single value gets room as well."""
    low, high = min(values), max(values)
    margin = max(0.06 * (high - low), 0.02 * high)
    return {
        "title": {"text": "tok/s"},
        "range": [low - margin, high + margin],
        "exponentformat": "none",
        "separatethousands": True,
        "nticks": 6,
    }


def _rounds(chosen: Sequence[tuple[str, Series]], name: str, index: int, has_legend: bool) -> go.Scatter:
    points = [
        (run.record.metrics[name].value, key, run.record.round + 1)
        for key, one in chosen
        for run in one.valid_runs
        if name in run.record.metrics and run.record.metrics[name].value is not None
    ]
    return go.Scatter(
        x=[value for value, _, _ in points],
        y=[key for _, key, _ in points],
        customdata=[round_number for _, _, round_number in points],
        mode="markers",
        name=escape(chosen[0][1].arm),
        meta=f"rounds of {chosen[0][1].arm}" if has_legend else None,
        marker={
            "symbol": SYMBOLS[index % len(SYMBOLS)],
            "size": 11,
            "color": LIGHT[index % len(LIGHT)],
            "line": {"width": 2},
        },
        hovertemplate="round %{customdata}: %{x} tok/s<extra></extra>",
    )


# latency


def latency_charts(series: Sequence[Series], max_points: int) -> list[tuple[str, list[Chart]]]:
    """ECDFs of TTFT, ITL and E2E, at most `MAX_SERIES` curves a chart: (which series, three charts)."""
    labelled = list(zip(short_labels(series), series, strict=True))
    charts = []
    for first in range(0, len(series), MAX_SERIES):
        group = labelled[first : first + MAX_SERIES]
        which = f"case and arm {first + 1} to {first + len(group)} of {len(series)}"
        heading = which if len(series) > MAX_SERIES else ""
        charts.append((heading, [latency(group, kind, max_points) for kind in LATENCIES]))
    return charts


def latency(labelled: Sequence[tuple[str, Series]], kind: str, max_points: int) -> Chart:
    """The share of samples at or below a latency, one curve for each series."""
    title, what = LATENCIES[kind]
    found = [(label, one, _pooled_latencies(one, kind)) for label, one in labelled]
    drawn = [(label, one, samples) for label, one, samples in found if samples.num]
    absent = [f"{one.label}: {samples.reason}" for _, one, samples in found if not samples.num]
    if not drawn:
        reasons = dict.fromkeys(samples.reason for _, _, samples in found)
        return Chart(title, reason="; ".join(reasons) or "no run was started")
    figure = go.Figure(
        [_ecdf(label, samples, index, max_points) for index, (label, _, samples) in enumerate(drawn)]
    )
    figure.update_layout(
        height=300,
        xaxis=_ms_axis([samples for _, _, samples in drawn]),
        yaxis={"title": {"text": "share of samples"}, "tickformat": ".0%", "range": [0, 1.02]},
    )
    pooled = [(one, samples) for _, one, samples in drawn]
    return Chart(title, _latency_caption(pooled, what, max_points, absent), figure)


def _pooled_latencies(one: Series, kind: str) -> Samples:
    if not one.valid_runs:
        return Samples(np.empty(0), one.reason(f"median_{kind}"))
    return latency_samples([run.requests for run in one.valid_runs], kind)


def _ecdf(label: str, samples: Samples, index: int, max_points: int) -> go.Scatter:
    ranks = thin_ranks(samples.num, max_points)
    colour = LIGHT[index % len(LIGHT)]
    return go.Scatter(
        x=rounded(samples.values[ranks]),
        y=rounded((ranks + 1) / samples.num),
        mode="lines+markers" if samples.num <= 12 else "lines",
        name=wrap(label),
        meta=f"{label} (n\u00a0=\u00a0{samples.num:,})",
        line={"shape": "hv", "dash": DASHES[index % len(DASHES)], "color": colour, "width": 2},
        marker={"symbol": SYMBOLS[index % len(SYMBOLS)], "color": colour, "size": 7},
        hovertemplate="%{y:.1%} at or below %{x} ms<extra></extra>",
    )


def _latency_caption(
    drawn: Sequence[tuple[Series, Samples]], what: str, max_points: int, absent: Sequence[str]
) -> str:
    total = sum(samples.num for _, samples in drawn)
    rounds = sum(len(one.valid_runs) for one, _ in drawn)
    text = f"Milliseconds; n = {total:,} {what}, {plural(rounds, 'round')} pooled."
    if len(drawn) == 1:
        values = drawn[0][1].values
        text += f" Median {quantity(float(np.percentile(values, 50)), 'ms')}, "
        text += f"99th percentile {quantity(float(np.percentile(values, 99)), 'ms')}."
    largest = max(samples.num for _, samples in drawn)
    if largest > max_points:
        text += f" A curve is drawn through at most {max_points:,} of its samples, evenly by rank, "
        text += "the extremes kept; every figure uses all of them."
    return text + "".join(f" Not drawn: {reason}." for reason in absent)


def thin_ranks(count: int, max_points: int) -> npt.NDArray[np.int64]:
    """Ranks 0..count-1, or `max_points` of them: evenly spread, with the last few and both ends kept."""
    if count <= max_points:
        return np.arange(count, dtype=np.int64)
    tail = max(1, max_points // 5)
    body = np.linspace(0, count - tail - 1, max_points - tail)
    return np.concatenate([body.round().astype(np.int64), np.arange(count - tail, count)])


def _ms_axis(samples: Sequence[Samples]) -> dict[str, Any]:
    """Logarithmic where positive values span more than a factor of thirty."""
    low = min(float(one.values[0]) for one in samples)
    high = max(float(one.values[-1]) for one in samples)
    if low <= 0 or high / low <= 30:
        return {"title": {"text": "ms"}, "rangemode": "tozero"}
    return log_axis("ms", "~r", low, high)


# steps


def step_times(one: Series) -> Chart:
    """Device, host and wall time of a step by its kind: median, quartiles, 5th and 95th percentile."""
    title = "Time of a step, by kind"
    boxes = [
        (kind, CLOCKS[column], step_samples(one.pooled_steps, column, kind))
        for kind in STEP_KINDS
        for column in CLOCKS
    ]
    drawn = [box for box in boxes if box[2].num]
    if not drawn:
        return Chart(title, reason=why_no_steps(one, boxes[0][2].reason))
    counts = {kind: max(box[2].num for box in drawn if box[0] == kind) for kind, _, _ in drawn}
    figure = go.Figure([_boxes(drawn, clock, index) for index, clock in enumerate(CLOCKS.values())])
    figure.update_layout(
        height=100 + 34 * len(drawn),
        xaxis=_ms_axis([box[2] for box in drawn]),
        yaxis=categories([f"{kind} · {clock}" for kind, clock, _ in drawn]),
    )
    steps = ", ".join(f"{kind} {count:,}" for kind, count in counts.items())
    return Chart(
        title,
        f"Milliseconds; n = steps of {plural(len(one.valid_runs), 'round')} pooled: {steps}. Box: quartiles "
        f"and median; whiskers: {WHISKERS[0]}th and {WHISKERS[1]}th percentile. Device: from a step's first "
        "command to the end of its last. Host: its own work, waits left out. Wall: from the end of the "
        f"step before.{one.thinning}",
        figure,
    )


def _boxes(drawn: Sequence[tuple[str, str, Samples]], clock: str, index: int) -> go.Box:
    mine = [(kind, samples.values) for kind, name, samples in drawn if name == clock]
    percentiles = [np.percentile(values, [WHISKERS[0], 25, 50, 75, WHISKERS[1]]) for _, values in mine]
    low, q1, middle, q3, high = np.transpose(percentiles) if mine else np.empty((5, 0))
    return go.Box(
        y=[f"{kind} · {clock}" for kind, _ in mine],
        orientation="h",
        name=clock,
        lowerfence=rounded(low),
        q1=rounded(q1),
        median=rounded(middle),
        q3=rounded(q3),
        upperfence=rounded(high),
        marker={"color": LIGHT[index]},
        line={"color": LIGHT[index], "width": 2},
    )


def why_no_steps(one: Series, reason: str) -> str:
    if not one.runs:
        return one.reason("steps")
    if all(run.steps.empty for run in one.runs):
        return "no step was recorded"
    return reason


def middle_run(one: Series) -> MeasuredRun:
    """The valid round whose output throughput is the (lower) median, of all where none is valid.

    The first where none has a throughput.
    """
    runs = one.valid_runs or one.runs
    rates = [(value, run) for run in runs if (value := _rate(run)) is not None]
    if not rates:
        return runs[0]
    rates.sort(key=lambda pair: pair[0])
    return rates[(len(rates) - 1) // 2][1]


def _rate(run: MeasuredRun) -> float | None:
    metric = run.record.metrics.get("output_throughput")
    return None if metric is None else metric.value


def batch_over_time(one: Series, max_points: int) -> Chart:
    """Tokens of every step by what they are, waiting requests and free blocks, over one round."""
    title = "Batch composition over time"
    if not one.runs:
        return Chart(title, reason=one.reason("steps"))
    run = middle_run(one)
    steps = run.steps
    columns = [name for name, _ in (*BATCH, *QUEUES)]
    if steps.empty:
        return Chart(title, reason="no step was recorded")
    missing = [name for name in ("at_s", *columns) if name not in steps]
    if missing:
        return Chart(title, reason=f"the result files have no {missing[0]}")
    figure = make_subplots(
        rows=3, cols=1, shared_xaxes=True, row_heights=[0.5, 0.25, 0.25], vertical_spacing=0.05
    )
    group = _group_size(len(steps), max_points)
    for index, (column, name) in enumerate(BATCH):
        traces = _line_over_time(steps, column, name, index, group)
        traces[-1].update(meta=name)  # the lower rows have no legend: their axes name them
        figure.add_traces(traces, rows=1, cols=1)
    for row, (column, name) in enumerate(QUEUES, start=2):
        figure.add_traces(_line_over_time(steps, column, name, row + 1, group), rows=row, cols=1)
        figure.update_yaxes(title={"text": name}, rangemode="tozero", row=row, col=1)
    figure.update_yaxes(title={"text": "tokens<br>in a step"}, rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title={"text": "seconds since the first step (s)"}, row=3, col=1)
    figure.update_layout(height=520)
    return Chart(title, _batch_caption(one, run, max_points), figure)


def _batch_caption(one: Series, run: MeasuredRun, max_points: int) -> str:
    count = len(run.steps)
    text = f"n = {plural(count, 'step')} of {round_label(run.record)}"
    if len(one.runs) > 1:
        text += f", the one of median throughput among {len(one.valid_runs or one.runs)}"
    text += f". A decode is one token of a step; image rows are part of the prefill tokens.{one.thinning}"
    group = _group_size(count, max_points)
    if group > 1:
        text += f" Lines are means of {group:,} steps in a row, bands reach from the lowest to the highest."
    return text


def _group_size(count: int, max_points: int) -> int:
    """Steps to one point of a line. A band takes two more, and a line needs its pixels: hence a quarter."""
    return -(-count // max(1, max_points // 4))


def _line_over_time(steps: pd.DataFrame, column: str, name: str, index: int, group: int) -> list[go.Scatter]:
    """One line, and under it the band of what grouping hid."""
    means, low, high = by_group(steps[column].to_numpy(dtype=np.float64), group)
    at = steps["at_s"].to_numpy(dtype=np.float64)[::group]
    line = go.Scatter(
        x=rounded(at),
        y=rounded(means),
        customdata=_step_ids(steps, group),
        mode="lines",
        name=name,
        legendgroup=column,
        line={"shape": "hv", "width": 1.5, "color": LIGHT[index], "dash": BATCH_DASHES.get(column, "solid")},
        hovertemplate="from step %{customdata}, %{x} s: %{y}<extra>%{fullData.name}</extra>",
    )
    return [line] if group == 1 else [_band(at, low, high, column, index), line]


def _band(at: Values, low: Values, high: Values, column: str, index: int) -> go.Scatter:
    return go.Scatter(
        x=rounded(np.concatenate([at, at[::-1]])),
        y=rounded(np.concatenate([high, low[::-1]])),
        mode="lines",
        line={"width": 0, "color": LIGHT[index]},
        fill="toself",
        fillcolor=LIGHT[index],
        opacity=0.2,
        legendgroup=column,
        hoverinfo="skip",
    )


def _step_ids(steps: pd.DataFrame, group: int) -> list[int]:
    ids = steps["step_id"].to_numpy() if "step_id" in steps else np.arange(len(steps))
    return [int(step_id) for step_id in ids[::group]]


def by_group(values: Values, group: int) -> tuple[Values, Values, Values]:
    """Mean, lowest and highest of every `group` values in a row; the last group may be shorter."""
    starts = np.arange(0, len(values), group)
    lengths = np.diff(np.append(starts, len(values)))
    return (
        np.add.reduceat(values, starts) / lengths,
        np.minimum.reduceat(values, starts),
        np.maximum.reduceat(values, starts),
    )
