"""Figures of requests: latencies over time, by class of request, and how many were good enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from suite.metrics import GATES, ONE_TOKEN
from suite.report.chart import (
    DASHES,
    LIGHT,
    SYMBOLS,
    Chart,
    categories,
    distinct,
    height_of,
    log_axis,
    mark,
    rounded,
    spread_evenly,
    wrap,
)
from suite.report.data import MeasuredRun, Series
from suite.report.figures import middle_run
from suite.report.wording import count_range, number

NS_PER_S = 1e9
NAMES = {
    "ttft_ms": "time to first token",
    "tpot_ms": "time per output token",
    "e2e_ms": "end-to-end latency",
}
CLASSES = ("text", "image", "pure", "spliced", "image+pure", "image+spliced")  # suite.workload.RequestKind
MAX_BINS = 40
Values = npt.NDArray[np.float64]
Labelled = Sequence[tuple[str, Series]]


def first_tokens_over_time(labelled: Labelled, max_points: int) -> Chart:
    """TTFT of each request over when it was scheduled to arrive, one round of each arm."""
    title = "Time to first token, over arrival"
    found = {label: (middle_run(one), one) for label, one in labelled if one.runs}
    points = {label: _arrivals(run) for label, (run, _) in found.items()}
    drawn = {label: frame for label, frame in points.items() if len(frame)}
    if not drawn:
        return Chart(title, reason="no request has a first token" if found else _why_none(labelled))
    if all(frame["at_s"].nunique() == 1 for frame in drawn.values()):
        return Chart(title, reason="all requests arrive at the same moment")
    figure = go.Figure()
    for index, (label, frame) in enumerate(drawn.items()):
        kept = _thinned(frame, "ttft_ms", max_points)
        figure.add_trace(
            go.Scatter(
                x=rounded(kept["at_s"].to_numpy()),
                y=rounded(kept["ttft_ms"].to_numpy()),
                mode="markers",
                name=wrap(label),
                meta=label,
                marker=mark(index, 6) | {"line": {"width": 1}},
                hovertemplate="arrived at %{x} s: %{y} ms<extra>%{fullData.name}</extra>",
            )
        )
    values = np.concatenate([frame["ttft_ms"].to_numpy() for frame in drawn.values()])
    figure.update_layout(
        height=340,
        xaxis={"title": {"text": "scheduled arrival (s)"}, "rangemode": "tozero"},
        yaxis=_ms_axis(values),
    )
    count = max(len(frame) for frame in drawn.values())
    return Chart(
        title,
        f"Milliseconds, a mark for each request; n\u00a0=\u00a0{sum(map(len, drawn.values())):,} requests, "
        f"one round of each arm (that of median throughput).{_thinning(count, max_points, 'requests')}",
        figure,
    )


def _arrivals(run: MeasuredRun) -> pd.DataFrame:
    frame = run.requests
    if not {"scheduled_ns", "ttft_ms"} <= set(frame.columns):
        return pd.DataFrame(columns=["at_s", "ttft_ms"])
    at_s = (frame["scheduled_ns"] - frame["scheduled_ns"].min()) / NS_PER_S
    found = pd.DataFrame({"at_s": at_s, "ttft_ms": frame["ttft_ms"].astype("float64")})
    return found.dropna().sort_values("at_s", kind="stable").reset_index(drop=True)


def _thinned(frame: pd.DataFrame, value: str, max_points: int) -> pd.DataFrame:
    """Every so-manieth row, and the rows of the largest values, a tenth of the points."""
    if len(frame) <= max_points:
        return frame
    tail = frame[value].nlargest(max(1, max_points // 10)).index
    kept = frame.index[spread_evenly(len(frame), max_points - len(tail))].union(tail)
    return frame.loc[kept]


def _thinning(count: int, max_points: int, what: str) -> str:
    if count <= max_points:
        return ""
    return f" At most {max_points:,} {what} of an arm are drawn, evenly, the slowest among them."


def gaps_over_time(labelled: Labelled) -> Chart:
    """Median and 95th percentile of ITL over the time of one round, a line and a band for each arm."""
    title = "Inter-token latency, over time"
    found = [(label, _gaps(middle_run(one))) for label, one in labelled if one.runs]
    drawn = [(label, at_s, gaps) for label, (at_s, gaps) in found if gaps.size]
    if not drawn:
        return Chart(title, reason="no request has two tokens" if found else _why_none(labelled))
    figure = go.Figure()
    for index, (label, at_s, gaps) in enumerate(drawn):
        figure.add_traces(_binned_lines(label, index, at_s, gaps))
    figure.update_layout(
        height=340,
        xaxis={"title": {"text": "since the first arrival (s)"}, "rangemode": "tozero"},
        yaxis=_ms_axis(np.concatenate([gaps for _, _, gaps in drawn])),
    )
    return Chart(
        title,
        "Milliseconds between two output tokens of a request, by when the second came: the line is the "
        "median, the band reaches to the 95th percentile; "
        f"n\u00a0=\u00a0{sum(gaps.size for *_, gaps in drawn):,} gaps, one round of each arm (that of "
        f"median throughput), in at most {MAX_BINS} stretches of equal length.",
        figure,
    )


def _gaps(run: MeasuredRun) -> tuple[Values, Values]:
    """When each gap ended (s since the first arrival) and its length (ms), of completed requests."""
    frame = run.requests
    if not {"scheduled_ns", "token_ns", "is_completed"} <= set(frame.columns) or not len(frame):
        return np.empty(0), np.empty(0)
    times = [np.asarray(one, dtype=np.float64) for one in frame.loc[frame["is_completed"], "token_ns"]]
    if not times:
        return np.empty(0), np.empty(0)
    ends = np.concatenate([one[1:] for one in times])
    return (ends - float(frame["scheduled_ns"].min())) / NS_PER_S, np.concatenate(
        [np.diff(one) for one in times]
    ) / 1e6


def _binned_lines(label: str, index: int, at_s: Values, gaps: Values) -> list[go.Scatter]:
    edges = np.linspace(0, max(float(at_s.max()), 1e-9) * (1 + 1e-9), MAX_BINS + 1)
    places = np.digitize(at_s, edges)
    used = sorted(set(places.tolist()))
    middles = np.array([(edges[place - 1] + edges[min(place, MAX_BINS)]) / 2 for place in used])
    median = np.array([np.percentile(gaps[places == place], 50) for place in used])
    high = np.array([np.percentile(gaps[places == place], 95) for place in used])
    colour = LIGHT[index % len(LIGHT)]
    band = go.Scatter(
        x=rounded(np.concatenate([middles, middles[::-1]])),
        y=rounded(np.concatenate([high, median[::-1]])),
        mode="lines",
        line={"width": 0, "color": colour},
        fill="toself",
        fillcolor=colour,
        opacity=0.15,
        legendgroup=label,
        hoverinfo="skip",
    )
    line = go.Scatter(
        x=rounded(middles),
        y=rounded(median),
        customdata=[
            [float(f"{p95:.4g}"), int((places == place).sum())] for p95, place in zip(high, used, strict=True)
        ],
        mode="lines+markers",
        name=wrap(label),
        meta=label,
        legendgroup=label,
        line={"dash": DASHES[index % len(DASHES)], "color": colour, "width": 2},
        marker={"symbol": SYMBOLS[index % len(SYMBOLS)], "color": colour, "size": 6},
        hovertemplate="%{x} s: median %{y} ms, p95 %{customdata[0]} ms, n = %{customdata[1]}"
        "<extra>%{fullData.name}</extra>",
    )
    return [band, line]


def _ms_axis(values: Values) -> dict[str, Any]:
    low, high = float(values.min()), float(values.max())
    if low <= 0 or high / low <= 30:
        return {"title": {"text": "ms"}, "rangemode": "tozero"}
    return log_axis("ms", "~r", low, high)


def _why_none(labelled: Labelled) -> str:
    return "; ".join(dict.fromkeys(one.reason("requests") for _, one in labelled)) or "no run was started"


# By class


def by_class(labelled: Labelled, kind: str) -> Chart:
    """The median of a latency by class of request: a line for each arm, a mark for each class."""
    title = f"{NAMES[kind].capitalize()}, by class of request"
    found = [(label, one, _classes(one, kind)) for label, one in labelled]
    drawn = [(label, classes) for label, _, classes in found if classes]
    if not drawn:
        reasons = dict.fromkeys(one.reason(kind) for _, one, _ in found)
        return Chart(title, reason="; ".join(reasons) or "no run was started")
    keys = distinct([label for label, _ in drawn])
    present = [name for name in CLASSES if any(name in classes for _, classes in drawn)]
    present += sorted({name for _, classes in drawn for name in classes} - set(CLASSES))
    figure = go.Figure()
    for index, name in enumerate(present):
        rows = [
            (key, classes[name]) for key, (_, classes) in zip(keys, drawn, strict=True) if name in classes
        ]
        figure.add_trace(_class_points(name, index, rows))
    medians = [float(np.median(values)) for _, classes in drawn for values in classes.values()]
    figure.update_layout(
        height=height_of(keys, 28),
        xaxis=_ms_axis(np.array(medians)),
        yaxis=categories(keys),
    )
    counts = ", ".join(
        f"{name} {max(classes[name].size for _, classes in drawn if name in classes):,}" for name in present
    )
    return Chart(
        title,
        f"Medians, in milliseconds; n\u00a0= completed requests of an arm, all measured rounds: {counts}. "
        "pure: the whole prompt came as embeddings; spliced: parts of it did.",
        figure,
    )


def _classes(one: Series, kind: str) -> Mapping[str, Values]:
    """Class -> the latencies of its completed requests, all valid rounds pooled."""
    runs = [run for run in one.valid_runs if {"kind", kind} <= set(run.requests.columns)]
    frames = [run.requests[["kind", kind]] for run in runs]
    if not frames:
        return {}
    pooled = pd.concat(frames, ignore_index=True)
    pooled[kind] = pooled[kind].astype("float64")
    pooled = pooled.dropna()
    return {
        str(name): np.asarray(group[kind], dtype=np.float64)
        for name, group in pooled.groupby("kind")
        if len(group)
    }


def _class_points(name: str, index: int, rows: Sequence[tuple[str, Values]]) -> go.Scatter:
    return go.Scatter(
        x=rounded(np.array([np.median(values) for _, values in rows])),
        y=[key for key, _ in rows],
        customdata=[[float(f"{np.percentile(values, 95):.4g}"), values.size] for _, values in rows],
        mode="markers",
        name=name,
        meta=name,
        marker=mark(index),
        hovertemplate="%{y}: median %{x} ms, p95 %{customdata[0]} ms, n = %{customdata[1]}"
        "<extra>%{fullData.name}</extra>",
    )


# Goodput


def goodput(labelled: Labelled, gates: Mapping[str, float], command: str) -> Chart:
    """The share of requests that meet each gate, and all of them at once: a line for each arm."""
    title = "Requests that meet the goodput gates"
    if not gates:
        return Chart(title, reason=f"no goodput gates are set: {command}")
    found = [(label, one, _met(one, gates)) for label, one in labelled]
    drawn = [(label, one, met) for label, one, met in found if met is not None]
    if not drawn:
        return Chart(title, reason=_why_none(labelled))
    keys = distinct([label for label, _, _ in drawn])
    limits = {name: f"{name} ≤ {number(limit)} ms" for name, limit in gates.items()}
    figure = go.Figure()
    for index, (name, text) in enumerate([*limits.items(), ("all", "all of them: good")]):
        shares = np.array([100 * float(met[name].mean()) for _, _, met in drawn])
        figure.add_trace(
            go.Scatter(
                x=rounded(shares),
                y=keys,
                mode="markers",
                name=text,
                meta=text,
                marker=mark(index) | ({"symbol": "line-ns-open", "size": 18} if name == "all" else {}),
                hovertemplate="%{y}: %{x} %<extra>%{fullData.name}</extra>",
            )
        )
    figure.update_layout(
        height=height_of(keys, 28),
        xaxis={"title": {"text": "% of requests"}, "range": [-2, 103]},
        yaxis=categories(keys),
    )
    told = count_range((len(met) for _, _, met in drawn), "request")
    rates = ", ".join(
        f"{label} {number(rate)}" for label, one, _ in drawn if (rate := _good_rate(one)) is not None
    )
    return Chart(
        title,
        f"Percent of requests; n\u00a0=\u00a0{told} of each arm, all measured rounds; a request "
        "that failed meets none, and one of a single output token has no time per output token and is held "
        "to the other "
        f"gates.{f' Goodput in requests a second, medians over rounds: {rates}.' if rates else ''}",
        figure,
    )


def _met(one: Series, gates: Mapping[str, float]) -> pd.DataFrame | None:
    """A column of truth for each gate and one for `all`, a row for each request of the valid rounds."""
    fields = {*(GATES[name] for name in gates), "why_undefined"}
    frames = [run.requests for run in one.valid_runs if fields <= set(run.requests.columns)]
    if not frames or not sum(map(len, frames)):
        return None
    pooled = pd.concat([frame[sorted(fields)] for frame in frames], ignore_index=True)
    met = pd.DataFrame({name: _meets(pooled, GATES[name], limit) for name, limit in gates.items()})
    return met.assign(all=met.all(axis=1))


def _meets(requests: pd.DataFrame, field: str, limit_ms: float) -> pd.Series[bool]:
    """As `suite.metrics.goodput` has it."""
    is_excused = pd.Series(
        [why.get(field) == ONE_TOKEN for why in requests["why_undefined"]], index=requests.index
    )
    return (requests[field].astype("float64") <= limit_ms) | is_excused


def _good_rate(one: Series) -> float | None:
    values = one.values("request_goodput")
    return float(np.median(values)) if values else None
