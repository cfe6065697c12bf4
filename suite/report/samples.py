"""Samples behind the figures: derived columns of a run's steps and requests, pooled over rounds.

The formulas are those of `suite.metrics`, so that a curve and the number beside it cannot disagree. What
an older result file lacks becomes a reason, never a zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from runner.measure import StepRecord
from suite import metrics
from suite.record import RequestRecord

Values = npt.NDArray[np.float64]

NO_SAMPLES = "no samples"
CLOCKS = {"device_ms": "device", "host_ms": "host", "wall_ms": "wall"}
HASH = "hash_ms"  # a part of a step that is shown where there is any of it


@dataclass(frozen=True, slots=True)
class Samples:
    """Values of one quantity; when there are none, `reason` says why."""

    values: Values
    reason: str = ""

    @property
    def num(self) -> int:
        return int(self.values.size)


def with_latencies(requests: pd.DataFrame) -> pd.DataFrame:
    """The requests with `is_completed`, `ttft_ms`, `tpot_ms`, `e2e_ms`, `itl_ms` (an array), `why_undefined`.

    Unchanged where the file lacks a column that these need.
    """
    if not {"scheduled_ns", "sent_ns", "token_ns", "finish_reason"} <= set(requests.columns):
        return requests
    records = _records(requests)
    measured = [metrics.latencies(record) for record in records]
    return requests.assign(
        is_completed=[metrics.is_completed(record) for record in records],
        ttft_ms=pd.Series([one.ttft_ms for one in measured], index=requests.index, dtype="float64"),
        tpot_ms=pd.Series([one.tpot_ms for one in measured], index=requests.index, dtype="float64"),
        e2e_ms=pd.Series([one.e2e_ms for one in measured], index=requests.index, dtype="float64"),
        itl_ms=pd.Series([one.itl_ms for one in measured], index=requests.index, dtype=object),
        why_undefined=pd.Series([one.undefined for one in measured], index=requests.index, dtype=object),
    )


def with_step_times(steps: pd.DataFrame, requests: pd.DataFrame) -> pd.DataFrame:
    """The steps with `device_ms`, `host_ms`, `hash_ms`, `wall_ms`, `at_s` (since the run's first step).

    Steps that were thinned bring their wall times along: what came before each is no longer here.
    """
    times: dict[str, Any] = {}
    for column in ("device", "host", "hash"):
        if f"{column}_ns" in steps:
            times[f"{column}_ms"] = steps[f"{column}_ns"].astype("float64") / metrics.NS_PER_MS
    if {"start_ns", "end_ns"} <= set(steps.columns) and len(steps):
        times["at_s"] = (steps["start_ns"] - steps["start_ns"].iloc[0]) / 1e9
        if metrics.WALL_MS not in steps and {"sent_ns", "finished_ns"} <= set(requests.columns):
            ends = _step_records(steps[["start_ns", "end_ns"]])  # all that the wall time is made of
            times[metrics.WALL_MS] = metrics.step_wall_ms(_records(requests), ends)
    return steps.assign(**times)


def latency_samples(requests: Sequence[pd.DataFrame], kind: str) -> Samples:
    """All samples of `ttft_ms`, `itl_ms` or `e2e_ms` over some rounds, pooled and sorted."""
    frames = [frame for frame in requests if kind in frame and "why_undefined" in frame]
    if not frames:
        return Samples(np.empty(0), "the result files lack the columns it is made of")
    values = np.sort(np.concatenate([_latencies(frame[kind]) for frame in frames]))
    return Samples(values, "" if values.size else _why_none(frames, kind))


def pooled_steps(steps: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Kind and times of the steps of some rounds, one below the other; without columns that none has."""
    frames = [frame[[name for name in ("kind", *CLOCKS, HASH) if name in frame]] for frame in steps]
    filled = [frame for frame in frames if len(frame)] or frames[:1]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()


def step_samples(steps: pd.DataFrame, column: str, kind: str) -> Samples:
    """All samples of a column of `pooled_steps` for one kind of step, sorted."""
    if column not in steps or "kind" not in steps:
        return Samples(np.empty(0), f"the result files have no {column}")
    values = np.sort(_floats(steps.loc[steps["kind"] == kind, column]))
    return Samples(values, "" if values.size else f"no {kind} step")


def _latencies(column: pd.Series[Any]) -> Values:
    """A column of numbers, or of one array of numbers a request, as one array."""
    if column.dtype == object:
        return np.concatenate([*column, np.empty(0)])
    return _floats(column)


def _floats(column: pd.Series[Any]) -> Values:
    values: Values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return values[~np.isnan(values)]


def _why_none(frames: Sequence[pd.DataFrame], kind: str) -> str:
    """The most frequent reason why the requests lack this sample."""
    if not any(frame["is_completed"].any() for frame in frames):
        return metrics.NONE_COMPLETED
    reasons = [why[kind] for frame in frames for why in frame["why_undefined"] if kind in why]
    return max(reasons, key=reasons.count) if reasons else NO_SAMPLES


def _records(requests: pd.DataFrame) -> list[RequestRecord]:
    """Rows as records; a column the file lacks gets the neutral value of its type."""
    return [RequestRecord(**row) for row in _rows(requests, RequestRecord)]


def _step_records(steps: pd.DataFrame) -> list[StepRecord]:
    return [StepRecord(**row) for row in _rows(steps, StepRecord)]


_NEUTRAL: dict[str, Any] = {"int": 0, "str": "", "tuple[int, ...]": (), "Mapping[str, int]": {}}


def _rows(frame: pd.DataFrame, record: type) -> list[dict[str, Any]]:
    columns: dict[str, Sequence[Any]] = {}
    for item in fields(record):
        if item.name in frame:
            columns[item.name] = [_plain(value) for value in frame[item.name].tolist()]
        elif item.default is MISSING:
            columns[item.name] = [_NEUTRAL.get(str(item.type))] * len(frame)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    """A cell as a record holds it: missing is None, a list is a tuple, numpy is Python."""
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(value)
    if value is None or pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value
