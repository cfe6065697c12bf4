"""The table of first divergences: where an output first went wrong, and the token ids around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from suite.report.cases import in_order
from suite.report.data import MeasuredRun, ScenarioData, Series, round_label
from suite.report.tables import Cell, Line, Table, text
from suite.report.wording import undefined

MAX_ROWS = 40
_CAPTION = "First divergence: the tokens around it"
_COLUMNS = ("Case", "Arm", "Request", "Round", "Output token", "Expected ids", "Ids that came", "Text")
NO_TEXT = "only ids are recorded"  # of a model without a tokenizer, and in older result files


def divergences(scenario: ScenarioData) -> Table:
    """A row for each arm and request that has a wrong token: of the first measured round that has one."""
    series = in_order(scenario)
    first = 1 if len({one.case_id for one in series}) == 1 else 0  # the one case needs no column
    rows = [row[first:] for one in series for row in _rows(one)]
    note = (
        "From two tokens before the first wrong one to two after it, which is in brackets. Expected: what "
        "the reference gives after the run's own tokens before it, so that later ids need not be wrong "
        "because an earlier one is. Text: by the tokenizer in the checkpoint's folder; the presets have none."
    )
    if len(rows) > MAX_ROWS:
        note += f" {MAX_ROWS} of {len(rows):,} rows are shown; requests/*.parquet have all."
    has_any = any(run.requests.size for one in scenario.series for run in one.runs)
    reason = (
        "None: no token is wrong in a measured round" if has_any else undefined("no request was recorded")
    )
    return Table(_CAPTION, _COLUMNS[first:], tuple(rows[:MAX_ROWS]), reason, note if rows else "")


def _rows(one: Series) -> Iterable[tuple[Cell, ...]]:
    seen: set[str] = set()
    for run in one.runs:
        for request_id, row in _wrong(run):
            if request_id not in seen:
                seen.add(request_id)
                yield _row(one, run, request_id, row)


def _wrong(run: MeasuredRun) -> Iterable[tuple[str, pd.Series[Any]]]:
    requests = run.requests
    if not {"request_id", "first_wrong", "output_ids"} <= set(requests.columns):
        return
    for _, row in requests[requests["first_wrong"].notna()].iterrows():
        yield str(row["request_id"]), row


def _row(one: Series, run: MeasuredRun, request_id: str, row: pd.Series[Any]) -> tuple[Cell, ...]:
    index = int(row["first_wrong"])
    expected, came = _around(row, index)
    return (
        text(one.case_label),
        text(one.arm),
        text(request_id),
        text(round_label(run.record)),
        Cell((Line(f"{index:,}", index),), is_number=True),
        text(expected),
        text(came),
        _texts(row, index),
    )


def _texts(row: pd.Series[Any], index: int) -> Cell:
    """Expected above what came, the token at an index in brackets; reasons where there is no text."""
    sides: list[Any] = [row.get("expected_texts"), row.get("produced_texts")]
    if any(pieces is None or isinstance(pieces, float) for pieces in sides):
        return text(undefined(NO_TEXT))
    place = index - int(row["expected_from"])
    expected, came = (_in_brackets(pieces, place) for pieces in sides)
    return Cell((Line(f"expected: {expected}"), Line(f"came: {came}")))


def _in_brackets(pieces: Sequence[str], place: int) -> str:
    """ "“ is[ Paris],”": spaces belong to the pieces, and are seen."""
    shown = (f"[{piece}]" if here == place else piece for here, piece in enumerate(pieces))
    return f"“{''.join(shown)}”"


def _around(row: pd.Series[Any], index: int) -> tuple[str, str]:
    """Expected and produced ids around an index, the one there in brackets."""
    ids = row.get("expected_ids")
    if ids is None or row.get("expected_from") is None or pd.isna(row["expected_from"]):
        came = _bracketed(row["output_ids"], 0, index, range(max(0, index - 2), index + 3))
        return undefined("not in these result files"), came
    first = int(row["expected_from"])
    shown = range(first, first + len(ids))
    return _bracketed(ids, first, index, shown), _bracketed(row["output_ids"], 0, index, shown)


def _bracketed(ids: Sequence[int], first: int, index: int, shown: range) -> str:
    """The ids at the indices `shown`, where `ids` begins at index `first`."""
    found = [(place, int(ids[place - first])) for place in shown if 0 <= place - first < len(ids)]
    return " ".join(f"[{token}]" if place == index else str(token) for place, token in found)
