"""What every trace format shares: rows, located errors, and cells read without guessing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from suite.errors import SuiteError
from suite.yaml_source import show

_WHOLE = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})"
)
_MAX_COUNT = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request as recorded. `time_s` counts from the first row; `num_images` is None without a column."""

    line: int
    time_s: float
    context_tokens: int
    output_tokens: int
    num_images: int | None


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row before its times are rebased: `time_s` is on the file's own clock."""

    time_s: float
    context_tokens: int
    output_tokens: int
    num_images: int | None


@dataclass(frozen=True, slots=True)
class Trace:
    """The rows read from a file. `is_cut` says that the file goes on behind the last row read."""

    path: Path
    format: TraceFormat
    rows: tuple[TraceRow, ...]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Cells:
    """One line of a trace by column name; every reader refuses with file, line, column, value and rule."""

    path: Path
    line: int
    values: Mapping[str, str]

    def count(self, column: str, smallest: int) -> int:
        """A whole number of at least `smallest`."""
        text = self.values[column]
        if not _WHOLE.fullmatch(text):
            raise self.error(column, "it must be a whole number such as 128")
        if len(text) > 10 or int(text) > _MAX_COUNT:
            raise self.error(column, f"it must be at most {_MAX_COUNT:,}")
        if int(text) < smallest:
            raise self.error(column, f"it must be at least {smallest}; correct or remove the row")
        return int(text)

    def seconds(self, column: str) -> float:
        """A finite number of seconds, not negative."""
        text = self.values[column]
        if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            raise self.error(column, "it must be a finite number of seconds such as 7.297")
        if float(text) < 0:
            raise self.error(column, "it must not be negative; times count from the trace's start")
        return float(text)

    def timestamp(self, column: str) -> datetime:
        """An ISO-8601 time with its zone."""
        text = self.values[column]
        rule = "it must be an ISO-8601 time with a zone such as 2024-10-15T12:00:00.269Z"
        if not _TIMESTAMP.fullmatch(text):
            raise self.error(column, rule)
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            raise self.error(column, rule) from None

    def error(self, column: str, rule: str) -> SuiteError:
        value = show(self.values[column]) if self.values[column] else "empty"
        return SuiteError(f"{self.path}:{self.line}: {column} is {value}; {rule}")


class TraceFormat(Protocol):
    """One file format. `columns` is its header; `has_images` says whether a column counts images."""

    @property
    def name(self) -> str: ...

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def has_images(self) -> bool: ...

    @property
    def origins(self) -> str:
        """Which columns give times and lengths, for the notes of a run."""
        ...

    def parse(self, cells: Cells) -> RawRow:
        """One line's values; SuiteError where the line breaks the format's rules."""
        ...
