"""The lines of a trace as cells by column name: CSV with a header, or JSON objects."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from suite.errors import SuiteError
from suite.traces.base import Cells
from suite.yaml_source import show


def unread(stream: TextIO) -> tuple[str, Iterable[str]]:
    """The first line that holds anything, and all lines from the start of the file."""
    head: list[str] = []
    for line in stream:
        head.append(line)
        if line.strip():
            return line, itertools.chain(head, stream)
    return "", head


def csv_lines(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and stripped cells of the lines that hold anything."""
    reader = csv.reader(lines, strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise SuiteError(f"{path}:{reader.line_num}: not CSV: {error}; check the quotes") from None


def csv_cells(path: Path, lines: Iterable[tuple[int, list[str]]], columns: list[str]) -> Iterator[Cells]:
    for line, cells in lines:
        if len(cells) != len(columns):
            count = f"{len(cells)} column{'' if len(cells) == 1 else 's'}"
            raise SuiteError(
                f"{path}:{line}: {count} ({show(','.join(cells))}), but the header has "
                f"{len(columns)}: {','.join(columns)}; correct or remove the row"
            )
        yield Cells(path, line, dict(zip(columns, cells, strict=True)))


def json_cells(path: Path, lines: Iterable[str], columns: tuple[str, ...]) -> Iterator[Cells]:
    """Each line's values by key, as the JSON text they are written in."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _json_object(path, number, line)
        if sorted(row) != sorted(columns):
            raise SuiteError(
                f"{path}:{number}: the keys are {show(','.join(row))}, and must be {','.join(columns)}; "
                "correct or remove the row"
            )
        yield Cells(path, number, {column: json.dumps(row[column]) for column in columns})


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """ValueError for a key that stands twice: which of the values is meant nobody knows."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} stands twice")
    return found


def _json_object(path: Path, number: int, line: str) -> dict[str, object]:
    try:
        row = json.loads(line, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise SuiteError(
            f"{path}:{number}: {show(line.strip())} is not JSON ({error}); correct or remove the row"
        ) from None
    if not isinstance(row, dict):
        raise SuiteError(f"{path}:{number}: {show(line.strip())} is no JSON object; write {{...}}")
    return row
