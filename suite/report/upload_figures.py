"""Figures of what is uploaded: bytes by buffer and arm, and against positions; bandwidth and ceiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from suite.ceilings import CeilingShare
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
    wrap,
)
from suite.report.data import Series
from suite.report.figures import why_no_steps
from suite.report.upload_totals import buffers
from suite.report.wording import count_range, number, plural

MAX_BUFFERS = 6  # with a mark each; the smallest are left to the table
MAX_ARMS = 6  # lines of one chart
MAX_SIZES = 40  # points of a line


def by_buffer(series: Sequence[Series], kind: str) -> Chart:
    """Mean bytes of a step of that kind: a line for each arm, a mark for each buffer it uploads."""
    title = f"Bytes uploaded in a {kind} step"
    totals = {one.arm: one.upload_totals for one in series}
    means = {arm: found for arm, one in totals.items() if (found := _means(one, kind))}
    if not means:
        reasons = dict.fromkeys(why_no_steps(one, f"no {kind} step uploads anything") for one in series)
        return Chart(title, reason="; ".join(reasons) or "no run was started")
    names = _largest(means)
    keys = dict(zip(means, distinct(list(means)), strict=True))
    figure = go.Figure([_points(means, keys, name, index) for index, name in enumerate(names)])
    figure.add_trace(_sums(means, keys))
    values = [value for of_arm in means.values() for value in (*of_arm.values(), sum(of_arm.values()))]
    figure.update_layout(
        height=height_of(list(keys.values()), 28, 120),
        xaxis=log_axis("B a step", "~s", min(values), 1.3 * max(values)),
        yaxis=categories(list(keys.values())),
    )
    told = count_range((int(totals[arm]["num_steps"].to_dict()[kind]) for arm in means), "step")
    left = sorted({name for of_arm in means.values() for name in of_arm} - set(names))
    small = f" Smaller ones are not drawn: {', '.join(left)}." if left else ""
    return Chart(
        title,
        f"Mean bytes (B), host to device, counted at the copies; n\u00a0=\u00a0{told} of each arm, "
        "all measured rounds. The upright stroke is the sum. An arm without a mark uploads nothing of "
        f"it.{small}{series[0].thinning}",
        figure,
    )


def _means(totals: pd.DataFrame, kind: str) -> Mapping[str, float]:
    """Buffer -> mean bytes of a step of that kind, of those that it uploads."""
    if kind not in totals.index:
        return {}
    row = totals.loc[kind].to_dict()
    found = {name: float(row[f"bytes.{name}"]) / float(row["num_steps"]) for name in buffers(totals)}
    return {name: mean for name, mean in found.items() if mean > 0}


def _largest(means: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The flags always, since the page is about them, and the buffers that are largest in any arm."""
    most: dict[str, float] = {}
    for of_arm in means.values():
        for name, value in of_arm.items():
            most[name] = max(most.get(name, 0.0), value)
    ordered = sorted(most, key=lambda name: (-most[name], name))
    flags = [name for name in ordered if name == "is_token_ids"]
    others = [name for name in ordered if name not in flags]
    return sorted([*others[: MAX_BUFFERS - len(flags)], *flags], key=ordered.index)


def _points(
    means: Mapping[str, Mapping[str, float]], keys: Mapping[str, str], name: str, index: int
) -> go.Scatter:
    arms = [arm for arm, of_arm in means.items() if name in of_arm]
    return go.Scatter(
        x=rounded(np.array([means[arm][name] for arm in arms])),
        y=[keys[arm] for arm in arms],
        mode="markers",
        name=name,
        meta=name,
        marker=mark(index),
        hovertemplate="%{y}: %{x:,.0f} B<extra>%{fullData.name}</extra>",
    )


def _sums(means: Mapping[str, Mapping[str, float]], keys: Mapping[str, str]) -> go.Scatter:
    sums = np.array([sum(of_arm.values()) for of_arm in means.values()])
    return go.Scatter(
        x=rounded(sums),
        y=[keys[arm] for arm in means],
        mode="markers",
        name="sum",
        meta="sum",
        marker={"symbol": "line-ns-open", "size": 18, "line": {"width": 3}, "color": LIGHT[-1]},
        hovertemplate="%{y}: %{x:,.0f} B<extra>sum</extra>",
    )


# Against the positions of a step


def against_positions(labelled: Sequence[tuple[int, Series]], which: str = "") -> Chart:
    """Bytes of a step over its positions, a line for each arm; at most MAX_ARMS, with their places."""
    title = f"Bytes of a step against its positions{which}"
    lines = [(index, one, found) for index, one in labelled if len(found := _by_positions(one))]
    if not lines:
        reasons = dict.fromkeys(
            why_no_steps(one, "the result files count no bytes by buffer") for _, one in labelled
        )
        return Chart(title, reason="; ".join(reasons) or "no run was started")
    figure = go.Figure([_line(index, one, found) for index, one, found in lines])
    sizes = [size for _, _, found in lines for size in found.index]
    values = [value for _, _, found in lines for value in found["bytes"]]
    figure.update_layout(
        height=340,
        xaxis=log_axis("positions in the step", "~s", min(sizes), max(sizes)),
        yaxis=log_axis("B a step", "~s", min(values), max(values)),
    )
    counts = sum(int(found["steps"].sum()) for _, _, found in lines)
    return Chart(
        title,
        "Mean bytes (B) uploaded in a step, all buffers together, over how many positions (prompt and "
        f"output tokens, image rows) it computes; n\u00a0=\u00a0{counts:,} steps of "
        f"{plural(len(lines), 'arm')}, decode and mixed steps alike. A line has at most {MAX_SIZES} points, "
        f"each the mean of the steps near it.{lines[0][1].thinning}",
        figure,
    )


def _by_positions(one: Series) -> pd.DataFrame:
    """Mean positions -> mean bytes and how many steps; grouped where there are more than MAX_SIZES sizes."""
    frames = [run.steps for run in one.runs if "num_tokens" in run.steps]
    columns = [[name for name in frame if str(name).startswith("bytes.")] for frame in frames]
    pieces = [
        pd.DataFrame({"positions": frame["num_tokens"], "bytes": frame[names].sum(axis=1)})
        for frame, names in zip(frames, columns, strict=True)
        if names and len(frame)
    ]
    if not pieces:
        return pd.DataFrame()
    steps = pd.concat(pieces, ignore_index=True)
    steps = steps[(steps["positions"] > 0) & (steps["bytes"] > 0)]
    sizes = steps["positions"].unique()
    group = steps["positions"]
    if len(sizes) > MAX_SIZES:
        edges = np.geomspace(sizes.min(), sizes.max() * 1.0001, MAX_SIZES + 1)
        group = pd.Series(np.digitize(steps["positions"], edges), index=steps.index)
    found = steps.groupby(group).agg(
        positions=("positions", "mean"), bytes=("bytes", "mean"), steps=("bytes", "size")
    )
    return found.set_index("positions").sort_index()


def _line(index: int, one: Series, found: pd.DataFrame) -> go.Scatter:
    colour = LIGHT[index % len(LIGHT)]
    return go.Scatter(
        x=rounded(found.index.to_numpy(dtype=np.float64)),
        y=rounded(found["bytes"].to_numpy(dtype=np.float64)),
        customdata=[int(count) for count in found["steps"]],
        mode="lines+markers",
        name=wrap(one.arm),
        meta=one.arm,
        line={"dash": DASHES[index % len(DASHES)], "color": colour, "width": 2},
        marker={"symbol": SYMBOLS[index % len(SYMBOLS)], "color": colour, "size": 7},
        hovertemplate="%{x} positions: %{y:,.0f} B (n = %{customdata})<extra>%{fullData.name}</extra>",
    )


def in_groups(series: Sequence[Series]) -> list[Chart]:
    """`against_positions` of all arms, MAX_ARMS to a chart."""
    charts = []
    for first in range(0, len(series), MAX_ARMS):
        group = series[first : first + MAX_ARMS]
        which = "" if len(series) <= MAX_ARMS else f": arms {first + 1} to {first + len(group)}"
        charts.append(against_positions(list(enumerate(group)), which))
    return charts


# Bandwidth


def bandwidth(series: Sequence[Series]) -> Chart:
    """What uploads reach of the measured ceiling: both in GB/s, a line for each arm and buffer."""
    title = "Bandwidth of uploads against the ceiling"
    found = [(one, share) for one in series for share in _upload_shares(one)]
    if not found:
        reasons = dict.fromkeys(_why_no_shares(one) for one in series)
        return Chart(title, reason="; ".join(reasons) or "no run was started")
    slowest = _by_span(found)
    keys = [wrap(f"{span} · {group}", width=40) for span, group in slowest]
    figure = go.Figure()
    for index, (name, field) in enumerate((("reached", "value"), ("ceiling", "ceiling"))):
        points = [
            (key, one, getattr(share, field), share)
            for key, shares in zip(keys, slowest.values(), strict=True)
            for one, share in shares
        ]
        figure.add_trace(
            go.Scatter(
                x=rounded(np.array([value for _, _, value, _ in points])),
                y=[key for key, *_ in points],
                customdata=[
                    f"{one.arm}, {number(100 * (share.share or 0.0))} % of it" for _, one, _, share in points
                ],
                mode="markers",
                name=name,
                meta=name,
                marker=mark(index) | ({"symbol": "line-ns-open", "size": 16} if index else {}),
                hovertemplate="%{x} GB/s: %{customdata}<extra>%{fullData.name}</extra>",
            )
        )
    values = [value for _, share in found for value in (share.value, share.ceiling) if value]
    figure.update_layout(
        height=height_of(keys, 26, 120),
        xaxis=log_axis("GB/s", "~r", min(values), max(values)),
        yaxis=categories(keys),
    )
    told_steps = count_range((share.n for _, share in found), "step")
    caveats = dict.fromkeys(one.costs.caveat for one in series if one.costs and one.costs.caveat)
    told = "".join(f" {text[:1].upper()}{text[1:]}." for text in caveats)
    return Chart(
        title,
        "Gigabytes a second (GB/s), a mark for each arm; the ceiling is as many pinned copies of the same "
        f"size alone (`suite micro`). n\u00a0=\u00a0{told_steps} for each mark, "
        "one run with instruments. Small copies cannot come near: what they cost is the copy, not its "
        f"bytes.{told}",
        figure,
    )


def _upload_shares(one: Series) -> list[CeilingShare]:
    shares = one.costs.shares if one.costs is not None else ()
    return [share for share in shares if share.span.startswith("upload.") and share.share is not None]


def _why_no_shares(one: Series) -> str:
    if one.costs is None:
        return "no run with instruments (--instrument events makes one of every arm)"
    return one.costs.no_shares or "no upload has a time"


def _by_span(
    found: Sequence[tuple[Series, CeilingShare]],
) -> Mapping[tuple[str, str], list[tuple[Series, CeilingShare]]]:
    """(span, steps) -> the arms' shares; the fastest first."""
    grouped: dict[tuple[str, str], list[tuple[Series, CeilingShare]]] = {}
    for one, share in found:
        steps = "decode" if share.group == "decode" else "with prefill"
        grouped.setdefault((share.span, steps), []).append((one, share))

    def fastest(key: tuple[str, str]) -> float:
        return max(share.value or 0.0 for _, share in grouped[key])

    return {key: grouped[key] for key in sorted(grouped, key=lambda key: (-fastest(key), key))}


def chosen_kinds(series: Sequence[Series]) -> list[str]:
    """Kinds of step that any arm took in a measured round, decode first."""
    present = {str(kind) for one in series for kind in one.upload_totals.index}
    return [kind for kind in ("decode", "mixed", "prefill") if kind in present]
