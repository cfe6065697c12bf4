"""The matrix of tokens: right, wrong or tied, per arm and request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from suite.report.chart import Chart, categories, distinct, escape, height_of, one_colour
from suite.report.data import Series, round_label
from suite.report.wording import plural

# Dark enough for white text, and seen on white as on black paper.
COLOURS = {
    "right": "#00735a",
    "tie": "#896900",
    "wrong": "#b04700",
    "not checked": "#767676",
}
MARKS = {"right": "✓", "tie": "≈", "wrong": "✗", "not checked": "·"}
MAX_REQUESTS = 24
_MAX_ID = 5  # characters of a request's id that fit below its column
_COUNTS = ("num_tokens_right", "num_tokens_wrong", "num_tokens_tied")


@dataclass(slots=True)
class _Tokens:
    """One request's output tokens over the measured rounds; `first_wrong`: in words."""

    right: int = 0
    wrong: int = 0
    tied: int = 0
    is_checked: bool = False
    first_wrong: str = ""

    @property
    def verdict(self) -> str:
        if not self.is_checked:
            return "not checked"
        if self.wrong:
            return "wrong"
        return "tie" if self.tied else "right"


_Requests = Mapping[str, _Tokens]


def matrix(series: Sequence[Series]) -> Chart:
    """A column for each request, a row for each arm; over the measured rounds, whose worst counts."""
    title = "Tokens of each request"
    found = {one.arm: _requests(one) for one in series}
    drawn = {arm: requests for arm, requests in found.items() if requests}
    if not drawn:
        reasons = dict.fromkeys(one.reason("requests") for one in series)
        return Chart(title, reason="; ".join(reasons) or "no run was started")
    chosen = _chosen(list(drawn.values()))
    keys = distinct(list(drawn))
    present = {tokens.verdict for requests in drawn.values() for tokens in requests.values()}
    columns, prefix = _columns(chosen)
    figure = go.Figure([_cells(name, drawn, chosen, keys) for name in COLOURS if name in present])
    figure.update_layout(
        height=height_of(keys, 26, 130),
        xaxis={
            "type": "category",
            "title": {"text": f"request: what follows {escape(prefix)}" if prefix else "request"},
            "categoryorder": "array",
            "categoryarray": columns,
            "range": [-0.5, len(columns) - 0.5],
        },
        yaxis=categories(keys),
    )
    return Chart(title, _caption(drawn, len(chosen)), figure)


def _columns(chosen: Sequence[str]) -> tuple[list[str], str]:
    """Names of the columns and what was cut off before each: the ids where short, else their places."""
    length = 0
    while len(chosen) > 1 and all(
        len(name) > length + 1 and name[length] == chosen[0][length] for name in chosen
    ):
        length += 1
    ends = [name[length:] for name in chosen]
    if max(map(len, ends)) <= _MAX_ID:
        return [escape(end) for end in ends], chosen[0][:length]
    return [str(place + 1) for place in range(len(chosen))], ""


def _requests(one: Series) -> _Requests:
    found: dict[str, _Tokens] = {}
    for run in one.runs:
        if {"request_id", *_COUNTS} <= set(run.requests.columns):
            where = run.requests.get("first_wrong", pd.Series([None] * len(run.requests)))
            rows = zip(
                run.requests["request_id"], *(run.requests[name] for name in _COUNTS), where, strict=True
            )
            for request_id, right, wrong, tied, first in rows:
                tokens = found.setdefault(str(request_id), _Tokens())
                _add(tokens, (right, wrong, tied), first, round_label(run.record))
    return found


def _add(tokens: _Tokens, counts: Sequence[Any], first: Any, round_name: str) -> None:
    if any(pd.isna(count) for count in counts):
        return
    right, wrong, tied = (int(count) for count in counts)
    tokens.right += right
    tokens.wrong += wrong
    tokens.tied += tied
    tokens.is_checked = True
    if not tokens.first_wrong and not pd.isna(first):
        tokens.first_wrong = f"output token {first} of {round_name}"


def _chosen(drawn: Sequence[_Requests]) -> list[str]:
    """All requests in their order, or the MAX_REQUESTS of which most arms are wrong, tied or unchecked."""
    order = list(dict.fromkeys(name for requests in drawn for name in requests))
    if len(order) <= MAX_REQUESTS:
        return order
    weights = {"wrong": 1_000, "tie": 1, "not checked": 1, "right": 0}

    def badness(name: str) -> int:
        return sum(weights[requests[name].verdict] for requests in drawn if name in requests)

    kept = set(sorted(order, key=lambda name: -badness(name))[:MAX_REQUESTS])
    return [name for name in order if name in kept]


def _cells(
    name: str, drawn: Mapping[str, _Requests], chosen: Sequence[str], keys: Sequence[str]
) -> go.Heatmap:
    """Those of one verdict; the others are left open."""
    cells = [
        [
            (MARKS[name], _told(arm, request, tokens))
            if (tokens := requests.get(request)) and tokens.verdict == name
            else None
            for request in chosen
        ]
        for arm, requests in drawn.items()
    ]
    return one_colour(f"{MARKS[name]} {name}", COLOURS[name], _columns(chosen)[0], keys, cells)


def _told(arm: str, request: str, tokens: _Tokens) -> str:
    told = f"{escape(arm)}, request {escape(request)}<br>"
    if not tokens.is_checked:
        return f"{told}not checked"
    told += f"{tokens.right} right, {tokens.wrong} wrong, {tokens.tied} tied"
    return told + (f"<br>first wrong: {tokens.first_wrong}" if tokens.first_wrong else "")


def _caption(drawn: Mapping[str, _Requests], num_drawn: int) -> str:
    total = len({name for requests in drawn.values() for name in requests})
    every = [tokens for requests in drawn.values() for tokens in requests.values()]
    checked = sum(tokens.right + tokens.wrong + tokens.tied for tokens in every)
    text = (
        f"n\u00a0=\u00a0{plural(checked, 'token')} of {plural(total, 'request')}, "
        f"{plural(len(drawn), 'arm')}, all measured rounds: a request is wrong where any round has a wrong "
        "token. ✓ right, ✗ wrong, ≈ no wrong token and at least one tie (two scores closer than rounding "
        "explains), · not checked."
    )
    if total > num_drawn:
        text += f" {num_drawn} requests are drawn, those with wrong tokens first; the table has the others."
    return text
