"""Figures of the bill of a step: from the gated arm to the ceiling, and what single commands cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from suite.amplification import AmplifiedCost
from suite.attribution import Line
from suite.bill import ArmBill
from suite.ratios import CONFIDENCE
from suite.report.chart import (
    LIGHT,
    Chart,
    categories,
    distinct,
    escape,
    filled,
    height_of,
    log_axis,
    mark,
    rounded,
)
from suite.report.comparison_text import ratio_rounds
from suite.report.wording import count_range, number
from suite.verdict import Word

ORDER = (
    *("gated", "sync-rows", "refresh", "async-rows", "async-fill", "skip"),
    *("resident-where", "resident", "fused", "ids"),
)
"""The arms from the gated one to the ceiling, as each saves what the one before still pays."""

SAVES, COSTS = "saves", "costs"
EQUAL, UNDECIDED = "equal within the noise floor", "cannot tell"
CHANGES = {SAVES: 2, COSTS: 1, EQUAL: 3, UNDECIDED: 4}
"""What a choice does, and the place of its colour and pattern."""

MOST_PERCENT = 300
"""What reaches beyond is cut at the edge."""

_SAME = "same commands"


@dataclass(frozen=True, slots=True)
class Move:
    """From one arm to the next: the log of the ratio of their times a token, `to` / `source`."""

    line: Line
    source: str
    to: str

    @property
    def log(self) -> float:
        ratio = self.line.ratio
        if ratio is None or ratio.mean_log is None:
            return 0.0
        return ratio.mean_log if self.line.over == self.to else -ratio.mean_log

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of `log`."""
        found = self.line.interval
        if found is None:
            return None
        return (found.low, found.high) if self.line.over == self.to else (-found.high, -found.low)

    @property
    def meaning(self) -> str:
        """A key of CHANGES, for a move that has a length."""
        if self.line.verdict in (Word.FASTER, Word.SLOWER):
            return SAVES if self.log < 0 else COSTS
        return EQUAL if self.line.verdict is Word.EQUAL else UNDECIDED

    @property
    def is_same(self) -> bool:
        return self.line.ratio is None


def moves(lines: Sequence[Line], kind: str) -> list[Move]:
    """The longest way from the gated arm along ORDER that these lines of one case know, to `ids` if they do.

    A line whose arms run the same commands is a way of no length. Where `gated` has no line, the way begins
    at the first arm with one. A factor has no verdict: it counts only where no line has its two arms.
    """
    whole = [line for line in lines if line.kind == kind]
    judged = {frozenset((line.over, line.under)) for line in whole}
    factors = [one for line in whole for one in _all(line.factors)]
    factors = [one for one in factors if frozenset((one.over, one.under)) not in judged]
    known = {(line.over, line.under): line for line in (*whole, *factors) if _has_way(line)}
    starts = [arm for arm in ORDER if any(arm in pair for pair in known)]
    return _longest(starts[0], known) if starts else []


def _all(lines: Sequence[Line]) -> Iterator[Line]:
    for line in lines:
        yield line
        yield from _all(line.factors)


def _has_way(line: Line) -> bool:
    if line.over not in ORDER or line.under not in ORDER:
        return False
    return line.value is not None or (line.ratio is None and _SAME in line.reason)


def _longest(source: str, known: Mapping[tuple[str, str], Line]) -> list[Move]:
    best: list[Move] = []
    for to in ORDER[ORDER.index(source) + 1 :]:
        line = known.get((source, to)) or known.get((to, source))
        if line is not None:
            way = [Move(line, source, to), *_longest(to, known)]
            if _rank(way) > _rank(best):
                best = way
    return best


def _rank(way: Sequence[Move]) -> tuple[bool, int]:
    return (bool(way) and way[-1].to == "ids", len(way))


def waterfall(lines: Sequence[Line], kind: str) -> Chart:
    """Time a token on steps of one kind as percent of the first arm's, choice by choice, in one case."""
    title = f"From the gated arm to the ceiling, {kind} steps"
    way = moves(lines, kind)
    if not way:
        return Chart(title, reason=_why_no_way(lines, kind))
    levels = np.exp(np.cumsum([0.0, *(move.log for move in way)])) * 100
    labels = [f"{way[0].source} (start)", *(f"{move.line.name}: to {move.to}" for move in way)]
    labels.append(f"{way[-1].to} (end)")
    keys = distinct(labels)
    figure = go.Figure(
        [_ends(keys, levels), *_changes(keys[1:-1], way, levels), _change_texts(keys, way, levels)]
    )
    ends = [end for place, move in enumerate(way) for end in _ends_of_interval(move, levels[place])]
    low, high = float(min([*levels, *ends])), float(max([*levels, *ends]))
    margin = max(2.0, 0.2 * (high - low))
    figure.update_layout(
        barmode="overlay",
        height=height_of(keys, 44, 120),
        xaxis={
            "title": {"text": f"% of {escape(way[0].source)}'s time a token"},
            "range": [max(0.0, low - margin), min(high + 2 * margin, MOST_PERCENT)],
            "nticks": 6,
        },
        yaxis=categories(keys),
    )
    return Chart(title, _waterfall_caption(way, kind), figure)


def _why_no_way(lines: Sequence[Line], kind: str) -> str:
    reasons = dict.fromkeys(line.reason for line in _all(lines) if line.kind == kind and line.reason)
    return "; ".join(list(reasons)[:3]) or f"no two arms were compared on {kind} steps"


def _ends(keys: Sequence[str], levels: np.ndarray) -> go.Bar:
    return go.Bar(
        y=[keys[0], keys[-1]],
        x=rounded(levels[[0, -1]]),
        orientation="h",
        width=0.6,
        name="time a token",
        meta="time a token",
        marker=filled(5) | {"pattern": {"shape": ""}},
        hovertemplate="%{y}: %{x} %<extra></extra>",
    )


def _changes(keys: Sequence[str], way: Sequence[Move], levels: np.ndarray) -> list[go.Bar]:
    chosen = {name: [not move.is_same and move.meaning == name for move in way] for name in CHANGES}
    return [
        _change(keys, way, levels, name, CHANGES[name], places)
        for name, places in chosen.items()
        if any(places)
    ]


def _change(
    keys: Sequence[str],
    way: Sequence[Move],
    levels: np.ndarray,
    name: str,
    index: int,
    chosen: Sequence[bool],
) -> go.Bar:
    places = [place for place, is_mine in enumerate(chosen) if is_mine]
    ends = [_ends_of_interval(way[place], levels[place]) for place in places]
    after = levels[1:]
    return go.Bar(
        y=[keys[place] for place in places],
        x=rounded(np.array([after[place] - levels[place] for place in places])),
        base=rounded(np.array([levels[place] for place in places])),
        orientation="h",
        width=0.6,
        name=name,
        meta=name,
        marker=filled(index),
        error_x={
            "type": "data",
            "symmetric": False,
            "array": rounded(
                np.array([high - after[place] for place, (_, high) in zip(places, ends, strict=True)])
            ),
            "arrayminus": rounded(
                np.array([after[place] - low for place, (low, _) in zip(places, ends, strict=True)])
            ),
            "thickness": 1.5,
            "color": LIGHT[5],
        },
        customdata=[_told(way[place]) for place in places],
        hovertemplate="%{y}: %{customdata}<extra>%{fullData.name}</extra>",
    )


def _ends_of_interval(move: Move, level: float) -> tuple[float, float]:
    """Where the interval of this move alone would end, in percent."""
    low, high = move.interval or (move.log, move.log)
    return level * math.exp(low), level * math.exp(high)


def _change_texts(keys: Sequence[str], way: Sequence[Move], levels: np.ndarray) -> go.Scatter:
    edges = [
        max(levels[place], levels[place + 1], _ends_of_interval(move, levels[place])[1])
        for place, move in enumerate(way)
    ]
    places = np.array([levels[0], *edges, levels[-1]])
    texts = ["100 %", *map(_short, way), f"{levels[-1]:.3g} %"]
    return go.Scatter(
        y=list(keys),
        x=rounded(places),
        mode="text",
        text=[f"  {text}" for text in texts],
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
    )


def _short(move: Move) -> str:
    if move.is_same:
        return _SAME
    return {EQUAL: "≈ ", UNDECIDED: "? "}.get(move.meaning, "") + _percent(move.log)


def _told(move: Move) -> str:
    """The change, its interval and what it means."""
    if move.is_same:
        return _SAME
    interval = move.interval
    told = "no interval" if interval is None else f"[{_percent(interval[0])}, {_percent(interval[1])}]"
    rounds = ratio_rounds(move.line.ratio)
    meaning = f"{escape(move.line.verdict.value)}: {escape(move.line.reason)}"
    return f"{_percent(move.log)} {told}, {rounds}; {meaning}"


def _percent(log: float) -> str:
    return f"{100 * math.expm1(log):+.2g} %".replace("-", "\N{MINUS SIGN}")


def _waterfall_caption(way: Sequence[Move], kind: str) -> str:
    told = count_range((move.line.ratio.num_rounds for move in way if move.line.ratio is not None), "round")
    text = (
        f"Time a token on the {kind} steps of one recorded list, in percent of {way[0].source}'s; each bar "
        "goes on from where the one before ended. Whiskers: 95 % interval of that one choice, "
        f"n\u00a0=\u00a0{told}. Below 100 % is faster. ? marks what the rounds cannot decide, ≈ what lies "
        "within the noise floor. The axis need not start at zero."
    )
    if way[-1].to != "ids":
        text += " The ceiling (ids) was not compared on these steps."
    return text


# What commands cost in place


def amplified(bills: Sequence[ArmBill], kind: str, reason: str) -> Chart:
    """What the commands of each span cost in a step, in place and on the device's clock, a line for each."""
    title = f"What commands cost in a {kind} step"
    lines = [(bill.arm, line) for bill in bills for line in bill.lines if line.kind == kind]
    drawn = [(arm, line) for arm, line in lines if line.cost is not None]
    if not drawn:
        return Chart(title, reason=reason if not bills else f"no whole round has {kind} steps")
    drawn.sort(key=lambda item: (item[1].span, _in_order(bills, item[0])))
    has_one_arm = len({arm for arm, _ in drawn}) == 1
    keys = distinct([line.span if has_one_arm else f"{line.span} · {arm}" for arm, line in drawn])
    costs = [line for _, line in drawn]
    least, most = _range(costs)
    figure = go.Figure([*_in_place(keys, costs, least), _on_clock(keys, costs)])
    figure.update_layout(
        height=height_of(keys, 26, 120),
        xaxis=log_axis("µs a step", "~s", least, most, is_narrow=True)
        | {"range": [math.log10(least), math.log10(most)], "autorange": False},
        yaxis=categories(keys),
    )
    return Chart(title, _amplified_caption(bills, drawn, has_one_arm), figure)


def _in_order(bills: Sequence[ArmBill], arm: str) -> int:
    return [bill.arm for bill in bills].index(arm)


def _range(costs: Sequence[AmplifiedCost]) -> tuple[float, float]:
    """Of a logarithmic axis: what lies below begins at its edge."""
    values: list[float] = []
    for line in costs:
        assert line.cost is not None
        values += [line.cost.mean_us] if _is_positive(line) else []
        values += [end for end in (line.upper_us, _event_us(line)) if end is not None and end > 0]
    values = values or [1.0]
    return min(values) / 3, max(values) * 2


def _is_positive(line: AmplifiedCost) -> bool:
    return (
        line.cost is not None
        and line.cost.is_decided
        and line.cost.low_us is not None
        and line.cost.low_us > 0
    )


def _event_us(line: AmplifiedCost) -> float | None:
    """By the device's clock, all commands of the span in a step."""
    if line.times.device_us is None:
        return None
    return line.times.device_us * line.times.per_step


def _in_place(keys: Sequence[str], costs: Sequence[AmplifiedCost], least: float) -> list[go.Scatter]:
    decided = [(key, line) for key, line in zip(keys, costs, strict=True) if _is_positive(line)]
    others = [
        (key, line)
        for key, line in zip(keys, costs, strict=True)
        if not _is_positive(line) and line.upper_us is not None and line.upper_us > 0
    ]
    return [*([_decided(decided)] if decided else []), *([_at_most(others, least)] if others else [])]


def _decided(rows: Sequence[tuple[str, AmplifiedCost]]) -> go.Scatter:
    found = [line.cost for _, line in rows if line.cost is not None]
    name = "in place, with interval"
    return go.Scatter(
        x=rounded(np.array([cost.mean_us for cost in found])),
        y=[key for key, _ in rows],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": rounded(np.array([(cost.high_us or 0) - cost.mean_us for cost in found])),
            "arrayminus": rounded(np.array([cost.mean_us - (cost.low_us or 0) for cost in found])),
            "thickness": 2,
        },
        mode="markers",
        name=name,
        meta=name,
        marker=mark(0),
        customdata=[_interval(line) for _, line in rows],
        hovertemplate="%{y}: %{x} µs a step %{customdata}<extra>in place</extra>",
    )


def _at_most(rows: Sequence[tuple[str, AmplifiedCost]], least: float) -> go.Scatter:
    """Where the rounds decide nothing: the upper end, and a stroke from the axis's edge to it."""
    upper = np.array([line.upper_us or 0.0 for _, line in rows])
    name = "in place: at most (cannot tell)"
    return go.Scatter(
        x=rounded(upper),
        y=[key for key, _ in rows],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [0] * len(rows),
            "arrayminus": rounded(upper - least),
            "thickness": 2,
            "width": 0,
        },
        mode="markers",
        name=name,
        meta=name,
        marker={"symbol": "triangle-left-open", "size": 11, "color": LIGHT[4], "line": {"width": 2}},
        customdata=[_interval(line) for _, line in rows],
        hovertemplate="%{y}: at most %{x} µs a step %{customdata}<extra>cannot tell</extra>",
    )


def _interval(line: AmplifiedCost) -> str:
    cost = line.cost
    if cost is None or cost.low_us is None or cost.high_us is None:
        return "no interval"
    return f"[{number(cost.low_us)}, {number(cost.high_us)}]"


def _on_clock(keys: Sequence[str], costs: Sequence[AmplifiedCost]) -> go.Scatter:
    rows = [(key, us) for key, line in zip(keys, costs, strict=True) if (us := _event_us(line))]
    name = "device's clock (events)"
    return go.Scatter(
        x=rounded(np.array([us for _, us in rows])),
        y=[key for key, _ in rows],
        mode="markers",
        name=name,
        meta=name,
        marker=mark(1),
        hovertemplate="%{y}: %{x} µs a step<extra>device's clock</extra>",
    )


def _amplified_caption(
    bills: Sequence[ArmBill], drawn: Sequence[tuple[str, AmplifiedCost]], has_one_arm: bool
) -> str:
    told = count_range((line.cost.num_rounds for _, line in drawn if line.cost is not None), "round")
    steps = sorted({(line.num_steps, line.step_us) for _, line in drawn})
    step = (
        f"a step takes {number(steps[0][1])} to {number(steps[-1][1])} µs"
        if len(steps) > 1
        else (f"a step takes {number(steps[0][1])} µs")
    )
    arm = f" Arm {drawn[0][0]}." if has_one_arm else ""
    unknown = [line for _, line in drawn if not _is_positive(line) and not line.upper_us]
    lost = (
        f" Not drawn, without any bound: {', '.join(dict.fromkeys(line.span for line in unknown))}."
        if unknown
        else ""
    )
    return (
        f"Microseconds (µs) a step.{arm} In place: the slope of the step's time on how often the command is "
        f"run, with Student's {CONFIDENCE:.0%} interval, n\u00a0=\u00a0{told}; {step}. Events: the median "
        "of one command by the device's clock, times how many a step has; it misses what launching "
        f"costs.{lost}"
    )
