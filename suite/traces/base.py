"""What every trace format shares: rows, located errors, and cells read without guessing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from suite.errors import SuiteError
from suite.yaml_source import show

_WHOLE = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})"
)
_UTC_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|\+00:00)?"
)
_MAX_COUNT = 1_000_000_000


class PrefixBlocks(NamedTuple):
    """A prompt as blocks of `block_tokens` tokens, the last one perhaps shorter; equal ids, equal tokens."""

    ids: tuple[int, ...]
    block_tokens: int


@dataclass(frozen=True, slots=True)
class RawRow:
    """One request as recorded, its time in seconds on the file's own clock.

    `output_tokens` 0 marks a request that failed when it was recorded. `num_images` is None without such a
    column. Where `image_tokens` is not None it counts the tokens of all images, and `context_tokens` is the
    text alone. `blocks` say which beginnings of prompts are alike.
    """

    time_s: float
    context_tokens: int
    output_tokens: int
    num_images: int | None = None
    image_tokens: int | None = None
    blocks: PrefixBlocks | None = None


@dataclass(frozen=True, slots=True)
class TraceRow(RawRow):
    """A request of a trace: `time_s` counts from the first row, and is 0 in a trace without times.

    `file`: the name of its file, where the trace is a folder.
    """

    line: int = field(kw_only=True)
    file: str = field(kw_only=True, default="")

    @property
    def is_failed(self) -> bool:
        return self.output_tokens == 0


@dataclass(frozen=True, slots=True)
class Trace:
    """The rows read from a file. `is_cut` says that the file goes on behind the last row read.

    `notes` say what the format changed or left out.
    """

    path: Path
    format: TraceFormat
    rows: tuple[TraceRow, ...]
    is_cut: bool
    notes: tuple[str, ...] = ()

    def place(self, row: TraceRow) -> str:
        """Where a row stands: the beginning of an error about it."""
        return f"{self.path / row.file}:{row.line}"


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

    def number(self, column: str) -> float:
        """A finite number, not negative."""
        text = self.values[column]
        if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)) or float(text) < 0:
            raise self.error(column, "it must be a finite number such as 0.5, not negative")
        return float(text)

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

    def utc_timestamp(self, column: str) -> datetime:
        """An ISO-8601 time without a zone or in UTC, and so comparable with all others of its file.

        Digits behind the microseconds are cut.
        """
        text = self.values[column]
        rule = "it must be an ISO-8601 time, without a zone or in UTC, such as 2023-11-16 18:17:03.9799600"
        if not _UTC_TIMESTAMP.fullmatch(text):
            raise self.error(column, rule)
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        except ValueError:
            raise self.error(column, rule) from None

    def ids(self, column: str) -> tuple[int, ...]:
        """A JSON list of whole numbers, none negative."""
        rule = "it must be a list of whole numbers such as [0, 1]"
        try:
            found = json.loads(self.values[column])
        except (ValueError, RecursionError):
            raise self.error(column, rule) from None
        if not isinstance(found, list) or not all(type(item) is int and item >= 0 for item in found):
            raise self.error(column, rule)
        return tuple(found)

    def error(self, column: str, rule: str) -> SuiteError:
        value = show(self.values[column]) if self.values[column] else "empty"
        return SuiteError(f"{self.path}:{self.line}: {column} is {value}; {rule}")


class TraceFormat(Protocol):
    """What a file format holds. `has_times`, `has_images`: it says when requests come, and with how many
    images.
    """

    @property
    def name(self) -> str: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Its header, or the keys of each of its rows."""
        ...

    @property
    def has_times(self) -> bool: ...

    @property
    def has_images(self) -> bool: ...

    @property
    def origins(self) -> str:
        """Which columns give times and lengths, for the notes of a run."""
        ...


class RowFormat(TraceFormat, Protocol):
    """A format of one request a row. `is_json`: rows are JSON objects without a header, else CSV with one."""

    @property
    def is_json(self) -> bool: ...

    def parse(self, cells: Cells) -> RawRow:
        """One line's values; SuiteError where the line breaks the format's rules."""
        ...
