"""Writes SQLite files as `nsys export` does, in the versions and with the oddities that the tests claim."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

HARDWARE = 0x01 << 56  # the bits above the process in a global id
PUSH_POP, START_END, MARK, DOMAIN, DOMAIN_END = 59, 60, 34, 75, 76

NVTX_COLUMNS = {
    "2022.4": "start end eventType rangeId category color text globalTid endGlobalTid textId domainId "
    "uint64Value int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText",
    "2024.1": "start end eventType rangeId category color text globalTid endGlobalTid textId domainId "
    "uint64Value int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText "
    "binaryData schemaId",
    # before strings were registered and payloads exported
    "2020.1": "start end eventType rangeId text globalTid domainId",
}
KERNEL_COLUMNS = "start end deviceId contextId streamId correlationId globalPid demangledName shortName"
COPY_COLUMNS = "start end deviceId contextId streamId correlationId globalPid bytes copyKind"
CALL_COLUMNS = "start end eventClass globalTid correlationId nameId returnValue"


def global_tid(pid: int, tid: int) -> int:
    return HARDWARE | pid << 24 | tid


def global_pid(pid: int) -> int:
    return HARDWARE | pid << 24


@dataclass
class Fixture:
    """Rows by table; what is not added has no table at all, as where nsys exports lazily."""

    version: str = "2022.4"
    tables: dict[str, tuple[str, list[Mapping[str, object]]]] = field(default_factory=dict)
    strings: list[str] = field(default_factory=list)

    def add(self, table: str, columns: str, *rows: Mapping[str, object]) -> None:
        self.tables.setdefault(table, (columns, []))[1].extend(rows)

    def string_id(self, text: str) -> int:
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text) + 1

    def nvtx(self, **row: object) -> None:
        columns = NVTX_COLUMNS[self.version]
        self.add("NVTX_EVENTS", columns, {key: row[key] for key in row if key in columns.split()})

    def domain(self, pid: int, domain_id: int, name: str, is_registered: bool = False) -> None:
        where = {"textId": self.string_id(name)} if is_registered else {"text": name}
        self.nvtx(start=1, eventType=DOMAIN, globalTid=global_tid(pid, pid), domainId=domain_id, **where)

    def range(
        self,
        name: str,
        start: int,
        end: int | None,
        pid: int = 100,
        tid: int | None = None,
        domain_id: int | None = 1,
        event_type: int = PUSH_POP,
        is_registered: bool = True,
        **payload: object,
    ) -> None:
        where = {"textId": self.string_id(name)} if is_registered else {"text": name}
        thread = global_tid(pid, pid if tid is None else tid)
        self.nvtx(
            start=start,
            end=end,
            eventType=event_type,
            globalTid=thread,
            domainId=domain_id,
            **where,
            **payload,
        )

    def call(self, start: int, end: int, correlation: int, pid: int = 100, tid: int | None = None) -> None:
        thread = global_tid(pid, pid if tid is None else tid)
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            CALL_COLUMNS,
            {"start": start, "end": end, "globalTid": thread, "correlationId": correlation},
        )

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        correlation: int | None,
        pid: int | None = 100,
        columns: str = KERNEL_COLUMNS,
    ) -> None:
        row = {
            "start": start,
            "end": end,
            "deviceId": 0,
            "streamId": 7,
            "correlationId": correlation,
            "globalPid": None if pid is None else global_pid(pid),
            "shortName": self.string_id(name),
        }
        known = columns.split()
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", columns, {key: row[key] for key in row if key in known})

    def copy(self, start: int, end: int, correlation: int, num_bytes: int, kind: int, pid: int = 100) -> None:
        row = {
            "start": start,
            "end": end,
            "deviceId": 0,
            "streamId": 9,
            "correlationId": correlation,
            "globalPid": global_pid(pid),
            "bytes": num_bytes,
            "copyKind": kind,
        }
        self.add("CUPTI_ACTIVITY_KIND_MEMCPY", COPY_COLUMNS, row)

    def processes(self, names: Mapping[int, str]) -> None:
        for pid, name in names.items():
            row = {"globalPid": global_pid(pid), "pid": pid, "name": name}
            self.add("PROCESSES", "globalPid pid name", row)

    def product_version(self, text: str, table: str = "EXPORT_META_DATA") -> None:
        self.add(table, "name value", {"name": "EXPORT_PRODUCT_VERSION", "value": text})

    def write(self, path: Path, has_strings: bool = True) -> Path:
        with closing(sqlite3.connect(path)) as connection:
            if has_strings:
                rows = [{"id": number, "value": text} for number, text in enumerate(self.strings, 1)]
                _write(connection, "StringIds", "id value", rows)
            for table, (columns, rows) in self.tables.items():
                _write(connection, table, columns, rows)
            connection.commit()
        return path


def _write(
    connection: sqlite3.Connection, table: str, columns: str, rows: Sequence[Mapping[str, object]]
) -> None:
    names = columns.split()
    quoted = ", ".join(f'"{name}"' for name in names)
    connection.execute(f'CREATE TABLE "{table}" ({quoted})')
    marks = ", ".join("?" * len(names))
    connection.executemany(
        f'INSERT INTO "{table}" VALUES ({marks})', [tuple(row.get(name) for name in names) for row in rows]
    )
