"""Reads what `nsys export --type sqlite` wrote, of any version: tables and columns come and go with it.

Ids: a process is bits 24 to 47 of a globalTid or globalPid, a thread its lowest 24 bits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from suite.errors import SuiteError
from suite.profile.attribution import Launch, attribute
from suite.profile.capture import (
    Capture,
    CapturedProcess,
    CapturedRange,
    DeviceWork,
    what_is_absent,
    without_reversed,
)
from suite.yaml_source import path_errors, show

_PUSH_POP = (59, 70)  # 70 and 71: the same, imported from a text file
_START_END = (60, 71)
_DOMAIN_CREATED = 75
_PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")
_VERSION_TABLES = ("EXPORT_META_DATA", "META_DATA_EXPORT")
_KNOWN_TABLES = ("StringIds", "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV", "PROCESSES", *_VERSION_TABLES)
_UNNAMED = "(without a name)"
_MASK = 0xFFFFFF

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_WORK = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
# Where the table that names the directions of copies is missing.
_DIRECTIONS = {1: "host to device", 2: "device to host", 8: "device to device", 10: "peer to peer"}

Row = Mapping[str, Any]


def read_sqlite(path: Path) -> Capture:
    """The capture in an export. SuiteError where the file is none, or is damaged."""
    with path_errors(path):
        if not path.is_file():
            raise SuiteError(f"{path}: there is no such file; give a .sqlite, .nsys-rep, .qdstrm or .json")
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            return _Export(path, connection).capture()
    except sqlite3.Error as error:
        raise SuiteError(
            f"{path} cannot be read as an SQLite export of Nsight Systems: {error}; make one anew with "
            "nsys export --type sqlite REPORT"
        ) from None


class _Export:
    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._path = path
        self._connection = connection
        found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self._tables = {name for (name,) in found}
        if not self._tables.intersection(_KNOWN_TABLES):
            raise SuiteError(
                f"{path} is an SQLite file without any table of Nsight Systems; export a report with "
                "nsys export --type sqlite REPORT"
            )
        self._strings = {row["id"]: row["value"] for row in self._rows("StringIds", ("id", "value"))}

    def capture(self) -> Capture:
        found = sorted(self._ranges(), key=lambda item: item.start_ns)
        kept, kept_work, reversed_ones = without_reversed(found, list(self._work()))
        ranges = tuple(kept)
        work = attribute(kept_work, self._launches(), ranges)
        return Capture(
            tool="nsys",
            tool_version=self._version(),
            processes=self._processes(ranges),
            ranges=ranges,
            work=work,
            absent=(*reversed_ones, *what_is_absent(ranges, work, bool(work))),
        )

    # ---- ranges

    def _ranges(self) -> Iterator[CapturedRange]:
        domains = self._domains()
        columns = ("start", "end", "eventType", "text", "textId", "globalTid", "domainId", *_PAYLOADS)
        for row in self._rows("NVTX_EVENTS", columns):
            if row["eventType"] not in (*_PUSH_POP, *_START_END):
                continue
            thread = self._whole(row, "globalTid", 0)
            pid = _pid(thread)
            domain_id = row["domainId"] or 0
            yield CapturedRange(
                name=self._text(row) or _UNNAMED,
                domain=domains.get((pid, domain_id), None if domain_id == 0 else f"domain {domain_id}"),
                pid=pid,
                tid=thread & _MASK,
                start_ns=self._whole(row, "start"),
                end_ns=None if row["end"] is None else self._whole(row, "end"),
                is_nested=row["eventType"] in _PUSH_POP,
                step_id=_payload(row),
            )

    def _domains(self) -> dict[tuple[int, int], str]:
        """Each process numbers its domains anew."""
        columns = ("eventType", "text", "textId", "globalTid", "domainId")
        return {
            (_pid(self._whole(row, "globalTid", 0)), row["domainId"] or 0): self._text(row) or _UNNAMED
            for row in self._rows("NVTX_EVENTS", columns)
            if row["eventType"] == _DOMAIN_CREATED
        }

    def _text(self, row: Row) -> str | None:
        text = row["text"] if row["text"] is not None else self._strings.get(row["textId"])
        return None if text is None else str(text)

    # ---- the GPU

    def _launches(self) -> dict[tuple[int | None, int], Launch]:
        """By process and correlation id; by correlation id alone for work whose process is not told."""
        launches: dict[tuple[int | None, int], Launch] = {}
        for row in self._rows(_CALLS, ("start", "globalTid", "correlationId")):
            thread, correlation = row["globalTid"], row["correlationId"]
            if thread is None or correlation is None:
                continue
            launch = Launch(_pid(thread), thread & _MASK, self._whole(row, "start"))
            launches[launch.pid, correlation] = launch
            launches.setdefault((None, correlation), launch)
        return launches

    def _work(self) -> Iterator[tuple[DeviceWork, int | None]]:
        names = ("shortName", "demangledName", "mangledName")
        for row in self._rows(_KERNELS, (*_WORK, *names)):
            known = (self._strings.get(row[name]) for name in names)
            yield self._one(row, "kernel", next((name for name in known if name), "kernel"))
        directions = self._directions()
        for row in self._rows(_COPIES, (*_WORK, "bytes", "copyKind")):
            yield self._one(row, "copy", directions.get(row["copyKind"], "copy"))
        for row in self._rows(_FILLS, (*_WORK, "bytes")):
            yield self._one(row, "fill", "fill")

    def _one(
        self, row: Row, kind: Literal["kernel", "copy", "fill"], name: str
    ) -> tuple[DeviceWork, int | None]:
        work = DeviceWork(
            kind=kind,
            name=name,
            start_ns=self._whole(row, "start"),
            end_ns=self._whole(row, "end"),
            device_id=self._whole(row, "deviceId", 0),
            stream_id=self._whole(row, "streamId", 0),
            correlation_id=row["correlationId"],
            num_bytes=self._whole(row, "bytes", 0) if "bytes" in row else 0,
        )
        return work, None if row["globalPid"] is None else _pid(row["globalPid"])

    def _directions(self) -> dict[Any, str]:
        rows = self._rows("ENUM_CUDA_MEMCPY_OPER", ("id", "label"))
        return _DIRECTIONS | {row["id"]: str(row["label"]) for row in rows if row["label"]}

    # ---- the rest

    def _processes(self, ranges: tuple[CapturedRange, ...]) -> tuple[CapturedProcess, ...]:
        """Those with a range or a call; a system-wide list of all others comes with every capture."""
        rows = self._rows("PROCESSES", ("pid", "globalPid", "name"))
        names = {
            row["pid"] if row["globalPid"] is None else _pid(row["globalPid"]): row["name"] for row in rows
        }
        threads = self._rows(_CALLS, ("globalTid",))
        seen = {item.pid for item in ranges} | {
            _pid(row["globalTid"]) for row in threads if row["globalTid"] is not None
        }
        return tuple(CapturedProcess(pid, names.get(pid)) for pid in sorted(seen))

    def _version(self) -> str | None:
        for table in _VERSION_TABLES:
            for row in self._rows(table, ("name", "value")):
                if row["name"] == "EXPORT_PRODUCT_VERSION":
                    return str(row["value"])
        return None

    def _rows(self, table: str, columns: tuple[str, ...]) -> Iterator[Row]:
        """Rows of a table with these columns: no row where there is no table, None where no column."""
        if table not in self._tables:
            return
        known = {row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")')}
        selected = ", ".join(f'"{name}"' if name in known else "NULL" for name in columns)
        for values in self._connection.execute(f'SELECT {selected} FROM "{table}"'):
            yield dict(zip(columns, values, strict=True))

    def _whole(self, row: Row, column: str, default: int | None = None) -> int:
        value = row[column]
        if value is None and default is not None:
            return default
        if not isinstance(value, int):
            raise SuiteError(
                f"{self._path}: a row has {column} {show(value)}, which is no whole number: the file is "
                "damaged; export the report again"
            )
        return value


def _pid(global_id: int) -> int:
    return global_id >> 24 & _MASK


def _payload(row: Row) -> int | None:
    """The payload where it is a whole number; which column it lies in depends on its type."""
    return next((row[name] for name in _PAYLOADS if isinstance(row[name], int)), None)
