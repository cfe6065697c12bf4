"""Open a trace file, find its format by its beginning, and read its rows in order of time."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from suite.errors import SuiteError
from suite.traces.azure_llm import AzureLlm
from suite.traces.azure_lmm import AzureLmm
from suite.traces.azure_lmm_rebased import AzureLmmRebased
from suite.traces.base import Cells, RawRow, RowFormat, Trace, TraceRow
from suite.traces.block_lengths import BlockLengths
from suite.traces.burstgpt import WITH_SESSIONS, BurstGpt
from suite.traces.lines import csv_cells, csv_lines, json_cells, unread
from suite.traces.mooncake import Mooncake
from suite.traces.opening import opened
from suite.traces.servegen import DATASET_END, TRACE_END, ServeGen, is_servegen, read_clients
from suite.traces.vidur import Vidur, VidurLengths
from suite.yaml_source import show

AUTO = "auto"
_KNOWN: tuple[RowFormat, ...] = (
    AzureLmm(),
    AzureLmmRebased(),
    AzureLlm(),
    BurstGpt(),
    BurstGpt("burstgpt-sessions", WITH_SESSIONS),
    Vidur(),
    VidurLengths(),
    Mooncake(),
)
FORMATS: Mapping[str, RowFormat] = MappingProxyType({known.name: known for known in _KNOWN})
CLIENTS = ServeGen(has_images=True)
FORMAT_NAMES = (AUTO, *FORMATS, CLIENTS.name)

_DATASET = re.compile(r'\{\s*"[0-9]+"\s*:\s*\{')  # windows by their start in seconds
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_UTF_16 = ("\\xff\\xfe", "\\xfe\\xff")  # its mark, as bytes that are not UTF-8 are shown


def read_trace(path: Path, format_name: str = AUTO, limit: int | None = None, seed: int = 0) -> Trace:
    """The first `limit` rows (all without one), times counted from the first; SuiteError names the line.

    Lines behind the limit are not read, so a fault there goes unnoticed. A byte-order mark, CRLF, blank
    lines and a missing last line end are accepted; a file of gzip is read as one, whatever its name.
    `seed` matters where a format holds no requests, but says how to draw them.
    """
    if format_name == CLIENTS.name or (format_name == AUTO and is_servegen(path)):
        return _clients(path, limit, seed)
    with opened(path) as stream:
        first, lines = unread(stream)
        trace_format, cells = _find_rows(path, first, lines, format_name)
        rows = tuple(_rows(trace_format, itertools.islice(cells, limit)))
        is_cut = len(rows) == limit and bool(stream.read(1024).strip())
    if not rows:
        raise SuiteError(f"{path}:1: the trace has a header and no rows; add at least one row")
    return Trace(path, trace_format, rows, is_cut)


def _clients(path: Path, limit: int | None, seed: int) -> Trace:
    if not is_servegen(path):
        raise SuiteError(
            f"{path}: traffic.arrivals.format is {CLIENTS.name}, and a client's file ends in {TRACE_END}: "
            f"name one, or the folder of all, or use format: {AUTO}"
        )
    return read_clients(path, limit, seed)


def _rows(trace_format: RowFormat, lines: Iterable[Cells]) -> Iterator[TraceRow]:
    """Each line as a request, held against the lines before it."""
    lengths = BlockLengths(trace_format.columns[-1])
    before: TraceRow | None = None
    start_s = 0.0
    for cells in lines:
        raw = trace_format.parse(cells)
        lengths.check(raw, cells)
        start_s = raw.time_s if before is None else start_s
        before = _rebased(raw, start_s, cells, before)
        yield before


def _rebased(raw: RawRow, start_s: float, cells: Cells, before: TraceRow | None) -> TraceRow:
    time_s = round(raw.time_s - start_s, 6)  # microseconds: what a float of epoch seconds still holds
    if before is not None and time_s < before.time_s:
        column = next(iter(cells.values))
        raise cells.error(column, f"it lies before line {before.line}: sort the rows by time")
    return TraceRow(
        time_s,
        raw.context_tokens,
        raw.output_tokens,
        raw.num_images,
        raw.image_tokens,
        raw.blocks,
        line=cells.line,
    )


def _find_rows(
    path: Path, first: str, lines: Iterable[str], format_name: str
) -> tuple[RowFormat, Iterator[Cells]]:
    """The format that the file's beginning tells, and its rows."""
    if first.lstrip().startswith(("{", "[")):
        _check_is_json_lines(path, first.strip())
        return _json_rows(path, lines, format_name)
    numbered = csv_lines(path, lines)
    trace_format, columns = _find_format(path, next(numbered, None), format_name)
    return trace_format, csv_cells(path, numbered, columns)


def _check_is_json_lines(path: Path, first: str) -> None:
    """What begins like JSON and cannot be one object a line."""
    if path.name.endswith(DATASET_END) or _DATASET.match(first):
        raise SuiteError(
            f"{path}:1: these are the histograms of a ServeGen client: name the file of its rates beside it, "
            f"NAME{TRACE_END}, or the folder of all clients"
        )
    if first == "{" or first.startswith("["):
        known = next(known for known in _KNOWN if known.is_json)
        raise SuiteError(
            f"{path}:1: this is one JSON value over several lines, or a list; a trace has one object a line, "
            f"as {known.name} ({', '.join(known.columns)}): write each on its own line, nothing around or "
            f"between them; a ServeGen client is named by its NAME{TRACE_END}"
        )


def _json_rows(path: Path, lines: Iterable[str], format_name: str) -> tuple[RowFormat, Iterator[Cells]]:
    known = next(known for known in _KNOWN if known.is_json)
    if format_name not in (AUTO, known.name):
        raise SuiteError(
            f"{path}:1: the file holds JSON lines, but traffic.arrivals.format is {format_name} "
            f"({','.join(FORMATS[format_name].columns)}); use format: {AUTO}, or another file"
        )
    return known, json_cells(path, lines, known.columns)


def _find_format(
    path: Path, header: tuple[int, list[str]] | None, format_name: str
) -> tuple[RowFormat, list[str]]:
    """The format whose columns the header holds, in any order, and the header itself."""
    if header is None:
        raise SuiteError(f"{path}: the trace is empty; it needs a header and rows: {_headers()}")
    line, names = header
    wanted = list(FORMATS.values()) if format_name == AUTO else [FORMATS[format_name]]
    for trace_format in wanted:
        if not trace_format.is_json and sorted(names) == sorted(trace_format.columns):
            return trace_format, names
    found = show(",".join(names))
    mend = _mend(names)
    if mend:
        raise SuiteError(f"{path}:{line}: the header is {found}; {mend}")
    if format_name == AUTO:
        raise SuiteError(f"{path}:{line}: the header is {found}, of no known format: {_headers()}")
    raise SuiteError(
        f"{path}:{line}: the header is {found}, but traffic.arrivals.format is {format_name} "
        f"({','.join(FORMATS[format_name].columns)}); use format: {AUTO}, or another file"
    )


def _mend(names: list[str]) -> str | None:
    """What is wrong with a header as a whole."""
    first = names[0] if names else ""
    if first.startswith(_UTF_16):
        return "it is in UTF-16: save the file as UTF-8"
    for separator, name in _SEPARATORS.items():
        if len(names) == 1 and separator in first:
            return f"its cells are separated by {name}: use commas"
    return None


def _headers() -> str:
    return "; ".join(f"{known.name} has {','.join(known.columns)}" for known in FORMATS.values())
