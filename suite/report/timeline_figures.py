"""The timeline: lanes of host and device over a few steps, two arms above one another on one axis.

All arms are in the figure; `layout.meta["pair"]` tells the page which traces belong to which, and which two
are shown first. Without the page's script those two are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from suite.lanes import LaneGap, LanePiece, Lanes, LaneStep
from suite.report.chart import Chart, categories, escape, filled
from suite.report.data import Series
from suite.report.span_tables import tables_of
from suite.report.wording import number, plural, quantity

TITLE = "Host and device over a few steps"
ROWS = {"host": "host", "compute": "device", "output": "output<br>stream"}
IDLE = "idle"

_GROUPS: tuple[tuple[str, frozenset[str]], ...] = (
    ("model: forward, sample", frozenset(("forward", "sample", "logprobs", "draft", "encode"))),
    ("uploads and downloads", frozenset(("download",))),
    (
        "embeddings: lookup, flags, merge",
        frozenset(("lookup", "merge", "merge.ids", "flags", "place", "splice")),
    ),
    ("routes and positions", frozenset(("route.ids", "route.drafts", "positions"))),
    ("host works", frozenset()),
    ("host waits", frozenset()),
)
_GAP_GROUP = "device idle, and why"
_MOST_PIECES = 6_000  # in one figure: about 1 MB of text
_NS_PER_MS = 1e6


def timeline(series: Sequence[Series], most_pieces: int = _MOST_PIECES) -> Chart:
    """The lanes of every arm that has spans; of so many steps that the figure stays below `most_pieces`."""
    found = [
        (one, one.costs.lanes) for one in series if one.costs is not None and one.costs.lanes is not None
    ]
    drawn = [(one, lanes) for one, lanes in found if lanes.pieces]
    if not drawn:
        reasons = dict.fromkeys(reason for one in series if (reason := tables_of(one)[1]))
        return Chart(TITLE, reason="; ".join(reasons) or "no span was recorded")
    num_steps = _num_steps([lanes for _, lanes in drawn], most_pieces)
    figure, options = go.Figure(), []
    for one, lanes in drawn:
        traces = _traces(_first_steps(lanes, num_steps))
        first = len(figure.data)
        figure.add_traces(traces)
        options.append({"label": one.arm, "traces": list(range(first, first + len(traces)))})
    chosen = _first_pair([one for one, _ in drawn])
    _show_pair(figure, options, chosen)
    _dress(figure, options, chosen)
    absent = [
        f"{one.arm} ({tables_of(one)[1] or 'no span was recorded'})" for one in series if not _has(one, drawn)
    ]
    return Chart(TITLE, _caption(drawn, num_steps, absent), figure)


def _has(one: Series, drawn: Sequence[tuple[Series, Lanes]]) -> bool:
    return any(found is one for found, _ in drawn)


def _num_steps(all_lanes: Sequence[Lanes], most_pieces: int) -> int:
    """As many steps as fit, at least three, and no more than the longest has."""
    longest = max(len(lanes.steps) for lanes in all_lanes)
    a_step = sum((len(lanes.pieces) + len(lanes.gaps)) / len(lanes.steps) for lanes in all_lanes)
    return max(min(3, longest), min(longest, int(most_pieces / max(a_step, 1.0))))


def _first_steps(lanes: Lanes, num_steps: int) -> Lanes:
    """The lanes up to the end of that many steps."""
    if num_steps >= len(lanes.steps):
        return lanes
    steps = lanes.steps[:num_steps]
    end_ns = max(step.end_ns for step in steps)
    return Lanes(
        steps=steps,
        pieces=tuple(
            piece._replace(end_ns=min(piece.end_ns, end_ns))
            for piece in lanes.pieces
            if piece.start_ns < end_ns
        ),
        gaps=tuple(
            gap._replace(end_ns=min(gap.end_ns, end_ns)) for gap in lanes.gaps if gap.start_ns < end_ns
        ),
        window=lanes.window,
        not_steady=lanes.not_steady,
    )


def _first_pair(series: Sequence[Series]) -> tuple[int, int]:
    """The first right arm that scheduled sync and the first that did not; else the first and the last."""
    ways = [None if one.control else _scheduling(one) for one in series]
    if "sync" in ways and "async" in ways:
        return ways.index("sync"), ways.index("async")
    return 0, len(series) - 1


def _scheduling(one: Series) -> str | None:
    return next((record.scheduling for record in one.records if record.scheduling), None)


def _traces(lanes: Lanes) -> list[go.Bar]:
    """One for each group of spans and one for the gaps: as many for every arm, which can be swapped."""
    steps = {step.step_id: step for step in lanes.steps}
    traces = [
        _pieces([piece for piece in lanes.pieces if _group(piece) == name], name, index, steps)
        for index, (name, _) in enumerate(_GROUPS)
    ]
    return [*traces, _gaps(lanes.gaps, steps)]


def _group(piece: LanePiece) -> str:
    if piece.lane == "host":
        return "host waits" if piece.name.startswith("wait.") else "host works"
    if piece.name.startswith("upload."):
        return "uploads and downloads"
    return next((name for name, spans in _GROUPS if piece.name in spans), "routes and positions")


def _pieces(pieces: Sequence[LanePiece], name: str, index: int, steps: Mapping[int, LaneStep]) -> go.Bar:
    return go.Bar(
        y=[ROWS[piece.lane] for piece in pieces],
        x=[_ms(piece.end_ns - piece.start_ns) for piece in pieces],
        base=[_ms(piece.start_ns) for piece in pieces],
        text=[str(piece.step_id) if piece.name == "forward" else "" for piece in pieces],
        hovertext=[
            _hover(piece.name, piece.end_ns - piece.start_ns, piece.step_id, steps) for piece in pieces
        ],
        marker=_fill(index),
        **_common(name),
    )


def _fill(index: int) -> dict[str, Any]:
    """Model and host work are solid, so that what is short is seen; waits are pale."""
    marker = filled(index) | {"line": {"width": 0}}
    if index in (0, 4):
        return marker | {"pattern": {"shape": ""}}
    return marker | ({"pattern": {"shape": ""}, "opacity": 0.3} if index == 5 else {})


def _gaps(gaps: Sequence[LaneGap], steps: Mapping[int, LaneStep]) -> go.Bar:
    return go.Bar(
        y=[IDLE] * len(gaps),
        x=[_ms(gap.end_ns - gap.start_ns) for gap in gaps],
        base=[_ms(gap.start_ns) for gap in gaps],
        text=[escape(max(gap.causes, key=lambda cause: gap.causes[cause], default="")) for gap in gaps],
        hovertext=[
            _hover("device idle", gap.end_ns - gap.start_ns, gap.step_id, steps) + _why(gap) for gap in gaps
        ],
        marker=filled(1) | {"pattern": {"shape": "\\", "size": 5, "solidity": 0.3}},
        **_common(_GAP_GROUP),
    )


def _common(name: str) -> dict[str, object]:
    return {
        "orientation": "h",
        "name": name,
        "meta": name,
        "legendgroup": name,
        "width": 0.8,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def _ms(duration_ns: int) -> float:
    return round(duration_ns / _NS_PER_MS, 4)


def _hover(name: str, duration_ns: int, step_id: int, steps: Mapping[int, LaneStep]) -> str:
    told = f"{escape(name)} {quantity(duration_ns / 1e3, 'µs')}"
    step = steps.get(step_id)
    if step is None:
        return f"{told}<br>step {step_id}" if step_id >= 0 else f"{told}<br>no step"
    return (
        f"{told}<br>step {step_id}, {step.kind}: {plural(step.num_rows, 'row')}, "
        f"{plural(step.num_tokens, 'position')}, {step.num_supplied_rows:,} supplied<br>ids "
        f"{step.ids_route}, embeddings {step.embeds_route}, {number(step.upload_bytes)} B uploaded"
    )


def _why(gap: LaneGap) -> str:
    causes = sorted(gap.causes.items(), key=lambda cause: -cause[1])
    told = ", ".join(f"{escape(name)} {quantity(ns / 1e3, 'µs')}" for name, ns in causes)
    return f"<br>because of {told}" if told else ""


def _show_pair(figure: go.Figure, options: Sequence[Mapping[str, object]], chosen: tuple[int, int]) -> None:
    upper, lower = (options[index]["traces"] for index in chosen)
    assert isinstance(upper, list) and isinstance(lower, list)
    for index, trace in enumerate(figure.data):
        trace.visible = index in upper or index in lower
        trace.yaxis = "y2" if index in lower and index not in upper else "y"


def _dress(figure: go.Figure, options: Sequence[Mapping[str, object]], chosen: tuple[int, int]) -> None:
    rows = _rows(figure)
    figure.update_layout(
        barmode="overlay",
        height=190 + 52 * len(rows),
        uniformtext={"minsize": 9, "mode": "hide"},
        xaxis={"title": {"text": "ms since the first of these steps was planned"}, "anchor": "y2"},
        yaxis=categories(rows) | {"domain": [0.55, 0.97], "fixedrange": True},
        yaxis2=categories(rows) | {"domain": [0, 0.42], "fixedrange": True},
        annotations=[
            _name_of(str(options[index]["label"]), top)
            for index, top in zip(chosen, (0.97, 0.42), strict=True)
        ],
        meta={"pair": {"options": list(options), "chosen": list(chosen)}},
    )


def _rows(figure: go.Figure) -> list[str]:
    """Host above device above its idle time; the output stream where any arm has one."""
    used = {row for trace in figure.data for row in trace.y}
    return [row for row in (*ROWS.values(), IDLE) if row in used or row in ("host", "device", IDLE)]


def _name_of(label: str, top: float) -> dict[str, object]:
    return {
        "text": f"<b>{escape(label)}</b>",
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
    }


def _caption(drawn: Sequence[tuple[Series, Lanes]], num_steps: int, absent: Iterable[str]) -> str:
    told = f"One run of each arm with instruments, {num_steps} steps in a row; n\u00a0=\u00a0"
    told += (
        f"{plural(len(drawn), 'arm')}. The number in a forward pass is its step. Blank: none of our spans. "
    )
    told += _steadiness(drawn, num_steps)
    left_out = "; ".join(absent)
    return told + (f" Not drawn: {left_out}." if left_out else "")


def _steadiness(drawn: Sequence[tuple[Series, Lanes]], num_steps: int) -> str:
    """Where not all of the steps drawn are steady ones, how many are, or why none."""
    told = []
    for one, lanes in drawn:
        if lanes.window is None:
            told.append(f"{one.arm}: none, {lanes.not_steady}")
        elif lanes.window.num_steps < num_steps:
            told.append(f"{one.arm}: {lanes.window.num_steps} of them")
    if not told:
        return "All lie in the steady window."
    if len(told) == len(drawn) and len({text.partition(": ")[2] for text in told}) == 1:
        return f"In the steady window lie {told[0].partition(': ')[2]}."
    return f"In the steady window lie, of {'; of '.join(told)}."
