"""Open a trace file, find its format by the header, and read its rows in order of time."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

from suite.errors import SuiteError
from suite.traces.azure_lmm import AzureLmm
from suite.traces.azure_lmm_rebased import AzureLmmRebased
from suite.traces.base import Cells, RawRow, Trace, TraceFormat, TraceRow
from suite.yaml_source import show

AUTO = "auto"
_GZIP_MAGIC = b"\x1f\x8b"
_KNOWN: tuple[TraceFormat, ...] = (AzureLmm(), AzureLmmRebased())
FORMATS: Mapping[str, TraceFormat] = MappingProxyType({known.name: known for known in _KNOWN})


def read_trace(path: Path, format_name: str = AUTO, limit: int | None = None) -> Trace:
    """The first `limit` rows (all without one), times counted from the first; SuiteError names the line.

    Lines behind the limit are not read, so a fault there goes unnoticed. A byte-order mark, CRLF, blank
    lines and a missing last line end are accepted; a file of gzip is read as one, whatever its name.
    """
    with _opened(path) as stream:
        lines = _lines(path, stream)
        trace_format, columns = _find_format(path, next(lines, None), format_name)
        rows: list[TraceRow] = []
        start_s = 0.0
        for cells in _rows(path, itertools.islice(lines, limit), columns):
            raw = trace_format.parse(cells)
            start_s = raw.time_s if not rows else start_s
            rows.append(_rebased(raw, start_s, cells, rows[-1] if rows else None))
        is_cut = len(rows) == limit and bool(stream.read(1024).strip())
    if not rows:
        raise SuiteError(f"{path}:1: the trace has a header and no rows; add at least one row")
    return Trace(path, trace_format, tuple(rows), is_cut)


def _rebased(raw: RawRow, start_s: float, cells: Cells, before: TraceRow | None) -> TraceRow:
    time_s = round(raw.time_s - start_s, 6)  # microseconds: what a float of epoch seconds still holds
    if before is not None and time_s < before.time_s:
        column = next(iter(cells.values))
        raise cells.error(column, f"it lies before line {before.line}: sort the rows by time")
    return TraceRow(cells.line, time_s, raw.context_tokens, raw.output_tokens, raw.num_images)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """The file as text. Bytes that are not UTF-8 stay visible as escapes, so that their cell is refused."""
    try:
        with (
            gzip.open(path, "rb") if _is_gzip(path) else path.open("rb") as raw,
            io.TextIOWrapper(raw, "utf-8-sig", errors="backslashreplace", newline="") as text,
        ):
            yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SuiteError(f"{path}: not a whole gzip file ({error}); fetch it again") from None
    except OSError as error:
        raise SuiteError(f"{path}: cannot be read: {error.strerror or error}") from None


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC or path.suffix == ".gz"


def _lines(path: Path, stream: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and stripped cells of the lines that hold anything."""
    reader = csv.reader(stream, strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise SuiteError(f"{path}:{reader.line_num}: not CSV: {error}; check the quotes") from None


def _find_format(
    path: Path, header: tuple[int, list[str]] | None, format_name: str
) -> tuple[TraceFormat, list[str]]:
    """The format whose columns the header holds, in any order, and the header itself."""
    if header is None:
        raise SuiteError(f"{path}: the trace is empty; it needs a header and rows: {_headers()}")
    line, names = header
    wanted = list(FORMATS.values()) if format_name == AUTO else [FORMATS[format_name]]
    for trace_format in wanted:
        if sorted(names) == sorted(trace_format.columns):
            return trace_format, names
    found = show(",".join(names))
    if format_name == AUTO:
        raise SuiteError(f"{path}:{line}: the header is {found}, of no known format: {_headers()}")
    raise SuiteError(
        f"{path}:{line}: the header is {found}, but traffic.arrivals.format is {format_name} "
        f"({','.join(FORMATS[format_name].columns)}); use format: {AUTO}, or another file"
    )


def _headers() -> str:
    return "; ".join(f"{known.name} has {','.join(known.columns)}" for known in FORMATS.values())


def _rows(path: Path, lines: Iterator[tuple[int, list[str]]], columns: list[str]) -> Iterator[Cells]:
    for line, cells in lines:
        if len(cells) != len(columns):
            raise SuiteError(
                f"{path}:{line}: {len(cells)} columns ({show(','.join(cells))}), but the header has "
                f"{len(columns)}: {','.join(columns)}; correct or remove the row"
            )
        yield Cells(path, line, dict(zip(columns, cells, strict=True)))
