"""ServeGen clients: for each the rates of its time windows and the lengths it asks for, and their sum.

No request is recorded, so all are drawn from the seed: this file says how. A client is a
`NAME-trace.csv` without a header and a `NAME-dataset.json` beside it; a folder is all clients in it.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from suite.errors import SuiteError
from suite.seeding import seeded
from suite.traces.base import Cells, Trace, TraceRow
from suite.traces.lines import csv_cells, csv_lines
from suite.traces.opening import opened
from suite.traces.servegen_dataset import Dataset, read_dataset
from suite.yaml_source import show

TRACE_END = "-trace.csv"
DATASET_END = "-dataset.json"
_COLUMNS = ("timestamp", "rate", "cv", "pattern", "arg1", "arg2")
_PATTERNS = ("Gamma", "Weibull", "")
_FIRST_LINE = re.compile(r"\s*[0-9][0-9.]*\s*(,[^,]*){5}$")
_MAX_REQUESTS = 1_000_000


@dataclass(frozen=True, slots=True)
class ServeGen:
    """`timestamp,rate,cv,pattern,arg1,arg2`, a window a line, without a header.

    A window with a rate has rate x width requests, to the nearest whole number. The gaps between them are
    drawn from its pattern with its shape, arg1, and then stretched so that they fill the window (what the
    pattern gives under the condition that the window's number is met, so that arg2 is not needed). An empty
    pattern is an idle window.
    """

    has_images: bool
    name: str = "servegen"
    columns: tuple[str, ...] = _COLUMNS
    has_times: bool = True

    @property
    def origins(self) -> str:
        lengths = "text_tokens, image_count, image_tokens" if self.has_images else "input_tokens"
        return (
            "times drawn from the rate, pattern and arg1 of each window and stretched to its rate, lengths "
            f"drawn from the histograms of {lengths} and output_tokens"
        )


@dataclass(frozen=True, slots=True)
class _Window:
    line: int
    start_s: float
    width_s: float
    rate: float
    pattern: str
    shape: float

    @property
    def num_requests(self) -> int:
        return round(self.rate * self.width_s)

    def times(self, generator: np.random.Generator) -> npt.NDArray[np.float64]:
        """When each request comes, in order."""
        size = self.num_requests + 1  # the last gap ends with the window
        if self.pattern == "Gamma":
            gaps = generator.standard_gamma(self.shape, size)
        else:
            gaps = generator.weibull(self.shape, size)
        ends = np.cumsum(gaps)
        return self.start_s + self.width_s * ends[:-1] / (ends[-1] or 1.0)


@dataclass(frozen=True, slots=True)
class _Client:
    name: str
    file: str
    windows: tuple[_Window, ...]
    dataset: Dataset

    def rows(self, seed: int) -> Iterator[TraceRow]:
        """All its requests in order of time on the windows' clock, made as they are asked for."""
        for window in self.windows:
            if not window.num_requests:
                continue
            number = round(window.start_s)
            times = window.times(seeded(seed, f"servegen times {self.name}", number))
            generator = seeded(seed, f"servegen lengths {self.name}", number)
            drawn = self.dataset.draw(window.start_s, window.num_requests, generator)
            for time_s, lengths in zip(times.tolist(), drawn, strict=True):
                yield TraceRow(
                    time_s,
                    lengths.text_tokens,
                    lengths.output_tokens,
                    lengths.num_images,
                    lengths.image_tokens,
                    line=window.line,
                    file=self.file,
                )


def is_servegen(path: Path) -> bool:
    """Whether a path is a client, known by a first line of numbers, or a folder of clients."""
    if path.is_dir():
        return any(path.glob(f"*{TRACE_END}"))
    with opened(path) as stream:
        return _FIRST_LINE.match(stream.readline(1000)) is not None


def client_files(path: Path) -> list[Path]:
    """Every file that `path` stands for, in the order of their names; SuiteError where one is missing."""
    traces = sorted(path.glob(f"*{TRACE_END}")) if path.is_dir() else [path]
    files = []
    for trace in traces:
        if not trace.name.endswith(TRACE_END):
            raise SuiteError(f"{trace}: a client's file is called NAME{TRACE_END}: rename it")
        dataset = trace.with_name(trace.name.removesuffix(TRACE_END) + DATASET_END)
        if not dataset.is_file():
            raise SuiteError(f"{trace}: there is no {dataset.name} beside it: add it, or remove the client")
        files += [trace, dataset]
    return files


def read_clients(path: Path, limit: int | None, seed: int) -> Trace:
    """The first `limit` requests of all clients together, drawn from the seed.

    SuiteError names the line of what cannot be used; without a limit there may be a million requests.
    """
    files = client_files(path)
    is_folder = path.is_dir()
    clients = [
        _client(trace, dataset, is_folder) for trace, dataset in zip(files[::2], files[1::2], strict=True)
    ]
    has_images = {client.dataset.has_images for client in clients}
    if len(has_images) > 1:
        raise SuiteError(f"{path}: some clients bring images and some have no such column: put them apart")
    merged = heapq.merge(*(_keyed(client, number, seed) for number, client in enumerate(clients)))
    rows = [row for _, _, _, row in itertools.islice(merged, limit or _MAX_REQUESTS)]
    if not rows:
        raise SuiteError(f"{path}: no client sends anything: every rate is 0")
    is_cut = next(merged, None) is not None
    if is_cut and limit is None:
        raise SuiteError(
            f"{path}: the clients send more than {_MAX_REQUESTS:,} requests: set traffic.arrivals.limit"
        )
    return Trace(path, ServeGen(has_images.pop()), _finished(rows), is_cut, tuple(_notes(clients, rows)))


def _keyed(client: _Client, number: int, seed: int) -> Iterator[tuple[float, int, int, TraceRow]]:
    """Its requests with what orders them among all: time, then client, then place."""
    for place, row in enumerate(client.rows(seed)):
        yield row.time_s, number, place, row


def _finished(rows: Sequence[TraceRow]) -> tuple[TraceRow, ...]:
    """Times from the first request, and at least one token of output: 0 would be a failed request."""
    start_s = rows[0].time_s
    return tuple(
        replace(row, time_s=round(row.time_s - start_s, 6), output_tokens=max(1, row.output_tokens))
        for row in rows
    )


def _notes(clients: Sequence[_Client], rows: Sequence[TraceRow]) -> Iterator[str]:
    yield f"{len(clients)} clients together: {', '.join(client.name for client in clients)}"
    if num_without := sum(row.output_tokens == 0 for row in rows):
        yield f"requests drawn with 0 output tokens, 1 asked for: {num_without}"
    left_out = sorted({name for client in clients for name in client.dataset.left_out})
    if left_out:
        yield f"left out, no model takes them: {', '.join(left_out)}"


def _client(trace: Path, dataset: Path, is_in_folder: bool) -> _Client:
    name = trace.name.removesuffix(TRACE_END)
    windows = tuple(_windows(trace))
    return _Client(name, trace.name if is_in_folder else "", windows, read_dataset(dataset))


def _windows(path: Path) -> Iterator[_Window]:
    with opened(path) as stream:
        cells = list(csv_cells(path, csv_lines(path, stream), list(_COLUMNS)))
    starts = [row.seconds("timestamp") for row in cells]
    for index in range(1, len(starts)):
        if starts[index] <= starts[index - 1]:
            raise cells[index].error("timestamp", "windows must lie in order of time: sort the rows")
    widths = [end - start for start, end in itertools.pairwise(starts)]
    if not widths:
        raise SuiteError(f"{path}:1: the trace has {len(starts)} windows, and needs two to know their width")
    for row, start_s, width_s in zip(cells, starts, [*widths, widths[-1]], strict=True):
        yield _window(row, start_s, width_s)


def _window(cells: Cells, start_s: float, width_s: float) -> _Window:
    rate, pattern = cells.number("rate"), cells.values["pattern"]
    if pattern not in _PATTERNS:
        raise cells.error("pattern", "it must be Gamma, Weibull, or empty for an idle window")
    if (rate == 0) != (pattern == ""):
        raise cells.error("rate", f"the pattern is {show(pattern)}: an idle window has neither, others both")
    shape = cells.number("arg1")
    if pattern and not 0.001 <= shape <= 1e6:
        raise cells.error("arg1", "the shape of a distribution must be from 0.001 to 1e6")
    if rate * width_s > _MAX_REQUESTS or not math.isfinite(rate):
        raise cells.error("rate", f"it makes more than {_MAX_REQUESTS:,} requests in one window")
    return _Window(cells.line, start_s, width_s, rate, pattern, shape)
