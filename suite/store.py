"""The folder of a run: what is written while it goes on, and reading it back whole or cut short.

Everything is UTF-8 and strict JSON. A file is written under a temporary name and renamed;
runs.jsonl grows by a flushed and synced line a run: a kill loses at most the run in flight.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pydantic import ValidationError

from runner.measure import StepRecord
from runner.spans import Span
from suite.archive_note import NOTE, ArchiveNote, ListedTimes, read_note
from suite.atomic_file import TEMPORARY, replace_file
from suite.checks import Finding
from suite.errors import SuiteError
from suite.record import SCHEMA_VERSION, RequestRecord, RunRecord, Status
from suite.yaml_source import path_errors, show

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
RUNS = "runs.jsonl"
SUMMARY = "summary.json"
SUMMARY_TABLE = "summary.csv"
REPORT = "report.html"
REPORT_SO_FAR = "report-so-far.html"
TRACE = "trace.json"
MICRO = "micro.json"
CEILINGS = "ceilings.json"
COST = "cost.json"
STEPS = "steps"
REQUESTS = "requests"
SPANS = "spans"
TRACES = "traces"
DAMAGED_RUNS = "runs.damaged.jsonl"
CUT_SHORT = "cut short, left out"

_RECORDS = (CONFIG, ENVIRONMENT, RUNS, SUMMARY, SUMMARY_TABLE, CEILINGS, NOTE)
_OF_RUNS = {STEPS: ".parquet", REQUESTS: ".parquet", SPANS: ".parquet", TRACES: ".json"}

OTHER_FOLDER = "another folder with --output-dir (what was written before is kept)"
OTHER_FILE = "another file with --output"

_MAX_NAME = 48
_PIECE_ROWS = 65_536
_PLAIN_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]*[a-z0-9])?")

_STEP_TEXT = ("kind", "ids_route", "embeds_route")
_STEP_BUFFERS = ("copies", "bytes")
_STEP_DERIVED = ("host_ns", "device_ns")
_REQUEST_TEXT = ("request_id", "kind", "finish_reason", "error")
_REQUEST_LISTS = ("token_ns", "output_ids")
_REQUEST_FLOATS = ("logprobs",)  # a list, or nothing
_REQUEST_IDS = ("expected_ids",)  # likewise
_REQUEST_TEXTS = ("expected_texts", "produced_texts")  # likewise
# Columns that came with a feature, and what they are in a table written before it.
_LATER: Mapping[str, int | None] = {
    **dict.fromkeys(("hash_ns", "num_draft_tokens", "num_accepted_tokens", "graph_rows"), 0),
    **dict.fromkeys(("num_cached_tokens", "num_drafted_tokens"), 0),
    **dict.fromkeys(("logprobs", "expected_from", "expected_ids", *_REQUEST_TEXTS)),
}
_REQUEST_NULLABLE = (
    "first_scheduled_ns",
    "finished_ns",
    "num_tokens_right",
    "num_tokens_wrong",
    "num_tokens_tied",
    "first_wrong",
    "expected_from",
)
_LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms", "queue_delay_ms", "send_delay_ms", "max_itl_ms")
_CONSTRUCTION_ERRORS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError)
_UNDEFINED = "undefined"  # "tpot_ms: one output token"; empty where every latency is defined

_SPAN_NULLABLE = ("start_ns", "end_ns", "reason")
_LISTS_OR_NOTHING = (*_REQUEST_FLOATS, *_REQUEST_IDS, *_REQUEST_TEXTS)
_MAY_BE_NULL = (*_REQUEST_NULLABLE, *_LISTS_OR_NOTHING, *_LATENCIES, "error", _UNDEFINED)


def safe_name(text: str) -> str:
    """A file name for any text: itself where plain and short, else a slug and a short hash."""
    if len(text) <= _MAX_NAME and _PLAIN_NAME.fullmatch(text):
        return text
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^a-z0-9]+", "-", ascii_text.lower())[: _MAX_NAME - 9].strip("-")
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{slug}-{digest}" if slug else digest


def to_json(value: object, indent: int | None = None) -> bytes:
    """Strict JSON in UTF-8; ValueError for a float that is not finite."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", "backslashreplace")


def _to_yaml(config: Mapping[str, object]) -> bytes:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 1000
    buffer = io.BytesIO()
    yaml.dump(json.loads(to_json(config)), buffer)
    return buffer.getvalue()


def as_stored(config: Mapping[str, object]) -> dict[str, Any]:
    """A configuration as it is read back from config.yaml."""
    from ruamel.yaml import YAML

    stored: dict[str, Any] = YAML(typ="safe", pure=True).load(_to_yaml(config).decode())
    return stored


# Writing


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The write side. Every method raises SuiteError naming the path where the disk refuses."""

    path: Path

    @classmethod
    def create(cls, parent: Path, label: str, now: datetime | None = None) -> RunFolder:
        """A new folder `<UTC time>-<label>` in `parent`; never one that exists."""
        stamp = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        name = f"{stamp}-{safe_name(label)}"
        _check_parent(parent)
        with _refusals(parent):
            parent.mkdir(parents=True, exist_ok=True)
            path = _make_new(parent, name)
            (path / STEPS).mkdir()
            (path / REQUESTS).mkdir()
            (path / SPANS).mkdir()
        return cls(path)

    @classmethod
    def reuse(cls, path: Path) -> RunFolder:
        """A folder that may be there already, for what is added to a run."""
        _check_parent(path)
        with _refusals(path):
            path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    def write_config(self, config: Mapping[str, object]) -> None:
        _replace(self.path / CONFIG, _to_yaml(config))

    def write_environment(self, environment: Mapping[str, object]) -> None:
        _replace(self.path / ENVIRONMENT, to_json(environment, indent=2) + b"\n")

    def append_run(self, record: RunRecord) -> None:
        """Add a run; where that fails, the file is cut back to the runs it had."""
        path = self.path / RUNS
        line = to_json(record.model_dump(mode="json")) + b"\n"
        with _refusals(path), path.open("ab") as file:
            size = file.tell()
            try:
                _write_synced(file, line)
            except OSError:
                os.truncate(path, size)
                raise

    def rewrite_runs(self, records: Iterable[RunRecord]) -> None:
        """These runs and no others."""
        lines = b"".join(to_json(record.model_dump(mode="json")) + b"\n" for record in records)
        _replace(self.path / RUNS, lines)

    def keep_damaged_runs(self) -> Path:
        """Copy runs.jsonl as it is, onto no earlier copy."""
        number, target = 1, self.path / DAMAGED_RUNS
        while target.exists():
            number += 1
            target = self.path / f"{DAMAGED_RUNS}.{number}"
        with _refusals(target):
            content = (self.path / RUNS).read_bytes()
        return write_file(target, content, OTHER_FOLDER)

    def clear_leftovers(self, run_ids: Collection[str]) -> None:
        """Remove what a kill left: files half written, and tables of runs other than these."""
        with _refusals(self.path):
            for folder in (self.path, *(self.path / kind for kind in _OF_RUNS)):
                for file in folder.glob(TEMPORARY):
                    file.unlink(missing_ok=True)
            for kind, suffix in _OF_RUNS.items():
                for file in (self.path / kind).glob(f"*{suffix}"):
                    if file.name.removesuffix(suffix) not in run_ids:
                        file.unlink(missing_ok=True)
                if kind != TRACES:
                    (self.path / kind).mkdir(exist_ok=True)

    def remove(self, name: str) -> None:
        """A file that is no longer true."""
        with _refusals(self.path / name):
            (self.path / name).unlink(missing_ok=True)

    def write_steps(self, run_id: str, steps: Sequence[StepRecord]) -> None:
        _replace_table(self.path / _table_name(STEPS, run_id), _step_table(steps))

    def write_requests(self, run_id: str, requests: Sequence[RequestRecord]) -> None:
        _replace_table(self.path / _table_name(REQUESTS, run_id), _request_table(requests))

    def write_spans(self, run_id: str, spans: Sequence[Span]) -> None:
        _replace_table(self.path / _table_name(SPANS, run_id), _span_table(spans))

    def trace_file(self, run_id: str) -> Path:
        """Where the trace of torch's profiler of a run goes; its folder is made."""
        folder = self.path / TRACES
        with _refusals(folder):
            folder.mkdir(exist_ok=True)
        return folder / f"{run_id}.json"

    def write_summary(self, summary: Mapping[str, object], table_csv: str) -> None:
        _replace(self.path / SUMMARY, to_json(summary, indent=2) + b"\n")
        _replace(self.path / SUMMARY_TABLE, table_csv.encode("utf-8", "backslashreplace"))

    def write_micro(self, findings: Mapping[str, object]) -> Path:
        """Micro-benchmarks and ceilings."""
        path = self.path / MICRO
        _replace(path, to_json(findings, indent=2) + b"\n")
        return path

    def write_ceilings(self, ceilings: Mapping[str, object]) -> None:
        """What the machine can do at best, by case_id."""
        _replace(self.path / CEILINGS, to_json(ceilings, indent=2) + b"\n")

    def write_cost(self, document: Mapping[str, object]) -> Path:
        path = self.path / COST
        _replace(path, to_json(document, indent=2) + b"\n")
        return path

    def write_report(self, page: str, name: str = REPORT) -> Path:
        path = self.path / name
        _replace(path, page.encode("utf-8", "backslashreplace"))
        return path


def write_file(path: Path, content: bytes, other: str = OTHER_FILE) -> Path:
    """Write a file whole or not at all. SuiteError naming the path where the disk refuses.

    What a link names is written, not the link; what is no file but takes bytes, such as a pipe, is written
    into. The records of a run are nobody's output. `other`: what the user may choose instead, and how.
    """
    _check_output(path)
    with _refusals(path, other):
        target = path.resolve() if path.is_symlink() else path
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return path
    _replace_by(target, lambda file: file.write(content), other)
    return path


def _check_output(path: Path) -> None:
    """Refuse a folder, and what a run folder's own records are called."""
    if not path.name or path.is_dir():
        what = "it is a directory; name a file in it" if str(path) != "." else "it is empty; name a file"
        raise SuiteError(f"--output {'' if str(path) == '.' else path}: {what}")
    parents = (path.parent, path.parent.parent)
    is_table = path.parent.name in _OF_RUNS and (parents[1] / CONFIG).is_file()
    if is_table or (path.name in _RECORDS and (parents[0] / CONFIG).is_file()):
        raise SuiteError(f"--output {path}: a run's own records lie there; choose another file")


def _check_parent(parent: Path) -> None:
    try:
        str(parent).encode()
    except UnicodeEncodeError:
        shown = str(parent).encode(errors="backslashreplace").decode()
        raise SuiteError(f"--output-dir {shown}: the name is not UTF-8; choose another folder") from None
    with path_errors(parent):
        for folder in (parent, *parent.parents):
            if folder.exists() and not folder.is_dir():
                raise SuiteError(
                    f"cannot write {parent}: {folder} is not a directory; choose another folder with "
                    "--output-dir"
                )


@contextmanager
def _refusals(path: Path, other: str = OTHER_FOLDER) -> Iterator[None]:
    """Turns the operating system's refusals into a SuiteError with the path."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise SuiteError(
            f"cannot write {where}: {error.strerror or error}; free some space or choose {other}"
        ) from error


def _make_new(parent: Path, name: str) -> Path:
    """Create `name`, or the first of `name-2`, `name-3`... that mkdir finds free."""
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _write_synced(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _replace(path: Path, content: bytes) -> None:
    _replace_by(path, lambda file: file.write(content))


def _replace_table(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    _replace_by(path, lambda file: pq.write_table(table, file, compression="zstd"))


def _replace_by(path: Path, write: Callable[[BinaryIO], object], other: str = OTHER_FOLDER) -> None:
    with _refusals(path, other):
        replace_file(path, write)


# Tables: one schema whatever the rows hold, so that whole numbers stay whole


def _step_schema(buffers: Iterable[str]) -> pa.Schema:
    import pyarrow as pa

    names = [item.name for item in fields(StepRecord) if item.name not in _STEP_BUFFERS]
    names += _STEP_DERIVED
    names += [f"{counter}.{buffer}" for counter in _STEP_BUFFERS for buffer in buffers]
    return pa.schema([(name, pa.string() if name in _STEP_TEXT else pa.int64()) for name in names])


def _step_table(steps: Sequence[StepRecord]) -> pa.Table:
    """A row a step; a buffer the step did not copy has 0 copies and 0 bytes."""
    import pyarrow as pa

    buffers = sorted({name for step in steps for name in (*step.copies, *step.bytes)})
    schema = _step_schema(buffers)
    columns: dict[str, list[object]] = {name: [] for name in schema.names}
    for step in steps:
        for name, values in columns.items():
            counter, _, buffer = name.partition(".")
            values.append(getattr(step, counter).get(buffer, 0) if buffer else getattr(step, name))
    return pa.table(columns, schema=schema)


def _span_schema() -> pa.Schema:
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    types = {"step_id": number, "start_ns": number, "end_ns": number}
    return pa.schema([(name, types.get(name, text)) for name in Span._fields])


def _span_table(spans: Sequence[Span]) -> pa.Table:
    import pyarrow as pa

    columns = {name: [getattr(span, name) for span in spans] for name in Span._fields}
    return pa.table(columns, schema=_span_schema())


def _request_schema() -> pa.Schema:
    import pyarrow as pa

    types = {
        **dict.fromkeys(_REQUEST_TEXT, pa.string()),
        **dict.fromkeys((*_REQUEST_LISTS, *_REQUEST_IDS), pa.list_(pa.int64())),
        **dict.fromkeys(_REQUEST_FLOATS, pa.list_(pa.float64())),
        **dict.fromkeys(_REQUEST_TEXTS, pa.list_(pa.string())),
        **dict.fromkeys(_LATENCIES, pa.float64()),
        _UNDEFINED: pa.string(),
    }
    names = [item.name for item in fields(RequestRecord)]
    return pa.schema([(name, types.get(name, pa.int64())) for name in (*names, *_LATENCIES, _UNDEFINED)])


def _request_table(requests: Sequence[RequestRecord]) -> pa.Table:
    import pyarrow as pa

    schema = _request_schema()
    names = [item.name for item in fields(RequestRecord)]
    rows = [
        {name: getattr(request, name) for name in names} | _latency_columns(request) for request in requests
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def _latency_columns(request: RequestRecord) -> dict[str, object]:
    from suite.metrics import latencies

    one = latencies(request)
    return {
        "ttft_ms": one.ttft_ms,
        "tpot_ms": one.tpot_ms,
        "e2e_ms": one.e2e_ms,
        "queue_delay_ms": one.queue_delay_ms,
        "send_delay_ms": one.send_delay_ms,
        "max_itl_ms": float(one.itl_ms.max()) if one.itl_ms.size else None,
        _UNDEFINED: "; ".join(f"{name}: {reason}" for name, reason in one.undefined.items()),
    }


# Reading


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """The read side: a run folder as found. `warnings` says what was missing or cut short.

    `damaged`: the file of steps or requests that is missing or cannot be read -> what is wrong with it.
    `note`: of a folder unpacked from an archive that left something out (suite/archive.py).
    """

    path: Path
    config: tuple[Mapping[str, Any], ...]  # the resolved scenarios
    invocation: Mapping[str, Any]
    cases: tuple[Mapping[str, Any], ...]
    skipped: tuple[tuple[str, str], ...]  # scenario, reason
    num_planned: int | None  # runs; None where that is open, or was not written down
    environment: Mapping[str, Any]
    runs: tuple[RunRecord, ...]
    summary: Mapping[str, Any] | None
    warnings: tuple[str, ...] = ()
    validity: tuple[Finding, ...] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)
    note: ArchiveNote | None = None

    @property
    def one_in(self) -> int:
        """1 where all steps are here; above it an archive kept of each kind of step 1 in so many."""
        return 1 if self.note is None else self.note.one_in

    @property
    def why_thinned(self) -> str | None:
        """Why what needs every step cannot be made; None where all are here."""
        return None if self.note is None or self.one_in == 1 else self.note.reason

    @property
    def listed(self) -> Mapping[str, ListedTimes]:
        """By run_id, what was made of all steps before they were thinned."""
        return {} if self.note is None else self.note.listed

    @property
    def is_interrupted(self) -> bool:
        """Whether the experiment ended early: by a signal, or without having written a summary."""
        if any(run.status is Status.INTERRUPTED for run in self.runs):
            return True
        return self.summary is None or self.summary.get("status") == "interrupted"

    @property
    def whole_runs(self) -> tuple[RunRecord, ...]:
        """Those with all the steps and requests they recorded."""
        return tuple(run for run in self.runs if self.damage(run.run_id) is None)

    def damage(self, run_id: str) -> str | None:
        """What is wrong with the tables of a run."""
        faults = (self.damaged.get(_table_name(kind, run_id)) for kind in (STEPS, REQUESTS))
        return next(filter(None, faults), None)

    def steps(self, run_id: str) -> pd.DataFrame:
        """A row a step, by column of StepRecord; none where the run wrote none, or none can be read."""
        return _frame(self._readable(STEPS, run_id))

    def requests(self, run_id: str) -> pd.DataFrame:
        """A row a request, by column of RequestRecord and its latencies; no rows as for steps."""
        return _frame(self._readable(REQUESTS, run_id))

    def micro(self) -> Mapping[str, Any]:
        """The document of write_micro; empty where there is none. SuiteError for one that is damaged."""
        path, faults = self.path / MICRO, list[str]()
        found = _read_json(path, faults) if path.is_file() else {}
        if faults:
            raise SuiteError(faults[0])
        return found or {}

    def ceilings(self) -> Mapping[str, Any]:
        """The document of write_ceilings; empty where there is none. SuiteError for one that is damaged."""
        path, faults = self.path / CEILINGS, list[str]()
        found = _read_json(path, faults) if path.is_file() else {}
        if faults:
            raise SuiteError(faults[0])
        return found or {}

    def spans(self, run_id: str) -> list[Span]:
        """The spans of a run, in no order; none where no instrument recorded any. SuiteError for damage."""
        return [span for piece in _pieces(self.path, SPANS, run_id) for span in _spans(piece)]

    def step_records(self, run_id: str) -> list[StepRecord]:
        """The steps as they were recorded. SuiteError where their file is missing, damaged or thinned."""
        if self.why_thinned is not None:
            raise SuiteError(self.why_thinned)
        return self.kept_step_records(run_id)

    def kept_step_records(self, run_id: str) -> list[StepRecord]:
        """The steps that are here, 1 in `one_in`. SuiteError where their file is missing or damaged."""
        return [step for piece in self._whole(STEPS, run_id) for step in _step_records(piece)]

    def request_records(self, run_id: str) -> list[RequestRecord]:
        """The requests as they were recorded. SuiteError where their file is missing or damaged."""
        return [request for piece in self._whole(REQUESTS, run_id) for request in _request_records(piece)]

    def _whole(self, kind: str, run_id: str) -> Iterator[pa.Table]:
        fault = self.damaged.get(_table_name(kind, run_id))
        if fault is not None:
            raise SuiteError(fault)
        return _pieces(self.path, kind, run_id)

    def _readable(self, kind: str, run_id: str) -> pa.Table:
        is_damaged = _table_name(kind, run_id) in self.damaged
        return _schema(kind).empty_table() if is_damaged else _table(self.path, kind, run_id)


def stored_records(path: Path, run_id: str) -> tuple[list[RequestRecord], list[StepRecord]]:
    """The requests and the steps of one run of a folder that is still being written."""
    requests = [record for piece in _pieces(path, REQUESTS, run_id) for record in _request_records(piece)]
    return requests, [record for piece in _pieces(path, STEPS, run_id) for record in _step_records(piece)]


def load_run(path: Path) -> LoadedRun:
    """Open a run folder, complete or not. SuiteError where it is none or was written otherwise."""
    check_is_run(path)
    warnings: list[str] = []
    config = _config_or_warning(path, warnings)
    summary = _read_json(path / SUMMARY, warnings)
    findings = _findings(summary)
    if summary is not None and findings is None:
        warnings.append(f"{SUMMARY}: its findings are damaged, left out")
        summary = {**summary, "findings": []}
    runs = tuple(_read_runs(path / RUNS, warnings))
    note = read_archive_note(path)
    if note is not None:
        warnings.append(note.text)
    one_in = 1 if note is None else note.one_in
    damaged = {name: fault for run in runs for name, fault in _table_faults(path, run, one_in)}
    return LoadedRun(
        path=path,
        config=config.scenarios,
        invocation=config.invocation,
        cases=config.cases,
        skipped=config.skipped,
        num_planned=config.num_runs,
        environment=_read_json(path / ENVIRONMENT, warnings) or {},
        runs=runs,
        summary=summary,
        warnings=tuple(warnings),
        validity=findings or (),
        damaged=damaged,
        note=note,
    )


def read_archive_note(folder: Path) -> ArchiveNote | None:
    """What an archive left out of a run folder; None for nothing. SuiteError where that cannot be told."""
    path, faults = folder / NOTE, list[str]()
    if not path.is_file():
        return None
    document = _read_json(path, faults)
    try:
        return read_note(document or {})
    except SuiteError as error:
        raise SuiteError(f"{path}: {faults[0] if faults else error}") from None


def check_is_run(path: Path) -> None:
    """SuiteError where a path is not the folder of a run."""
    with path_errors(path):
        if not (path / CONFIG).is_file() and not (path / RUNS).is_file():
            raise SuiteError(f"{path} is not the folder of a run: it has no {CONFIG}")


def _table_faults(folder: Path, run: RunRecord, one_in: int) -> Iterator[tuple[str, str]]:
    """Of a run's tables those that are missing, cut, or cannot be read whole: name, and what is wrong.

    `one_in`: of each kind of step the first and every `one_in`-th after it were kept (archive_note.py).
    """
    has_requests = run.status is Status.COMPLETED or run.num_steps > 0
    expected = {STEPS: -(-run.num_steps // one_in), REQUESTS: run.num_requests if has_requests else 0}
    for kind, num_expected in expected.items():
        fault = _table_fault(folder, kind, run.run_id, num_expected)
        if fault is not None:
            yield _table_name(kind, run.run_id), fault


def _table_fault(folder: Path, kind: str, run_id: str, num_expected: int) -> str | None:
    path = folder / _table_name(kind, run_id)
    if num_expected > 0 and not path.is_file():
        return f"{path} is missing"
    try:
        num_rows = sum(map(len, _pieces(folder, kind, run_id)))
    except SuiteError as error:
        return str(error)
    if num_rows < num_expected:
        return f"{path} holds {num_rows} of the {num_expected:,} {kind} that the run recorded"
    return None


@dataclass(frozen=True, slots=True)
class Config:
    """What config.yaml holds, as plain values."""

    scenarios: tuple[Mapping[str, Any], ...] = ()
    invocation: Mapping[str, Any] = field(default_factory=dict)
    cases: tuple[Mapping[str, Any], ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    num_runs: int | None = None


def read_config(folder: Path) -> Config:
    """The configuration of a run. SuiteError where it is missing or damaged."""
    path = folder / CONFIG
    config = _read_yaml(path)
    return Config(
        scenarios=_mappings(path, config, "scenarios"),
        invocation=_mapping(path, config, "invocation"),
        cases=_mappings(path, config, "cases"),
        skipped=_skipped(path, config),
        num_runs=_num_runs(path, config),
    )


def _config_or_warning(folder: Path, warnings: list[str]) -> Config:
    """Damage to the configuration does not hide what was measured; a folder without runs has nothing else."""
    try:
        return read_config(folder)
    except SuiteError as error:
        if not (folder / RUNS).is_file():
            raise
        warnings.append(f"{error}; what the runs were asked to do is not shown")
        return Config()


def _findings(summary: Mapping[str, Any] | None) -> tuple[Finding, ...] | None:
    """The findings of a summary; None where they are none."""
    found = (summary or {}).get("findings", [])
    names = {item.name for item in fields(Finding)}
    if not isinstance(found, list):
        return None
    if not all(isinstance(item, dict) and set(item) == names for item in found):
        return None
    if not all(isinstance(value, (str, bool)) for item in found for value in item.values()):
        return None
    return tuple(Finding(**item) for item in found)


def _mapping(path: Path, config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise SuiteError(f"{path}: {key} is {show(value)}; it must be a mapping, as the run wrote it")
    return value or {}


def _mappings(path: Path, config: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], ...]:
    value = config.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SuiteError(
            f"{path}: {key} is {show(value)}; it must be a list of mappings, as the run wrote it"
        )
    return tuple(value)


def _skipped(path: Path, config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    items = _mappings(path, config, "skipped")
    for item in items:
        if not {"scenario", "reason"} <= set(item):
            raise SuiteError(f"{path}: skipped holds {show(item)}; each item has a scenario and a reason")
    return tuple((str(item["scenario"]), str(item["reason"])) for item in items)


def _num_runs(path: Path, config: Mapping[str, Any]) -> int | None:
    value = config.get("num_runs")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise SuiteError(f"{path}: num_runs is {show(value)}; it must be a whole number, as the run wrote it")
    return value


def _read_yaml(path: Path) -> Mapping[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        config = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise SuiteError(f"cannot read {path}: it is nested too deeply") from None
    except (OSError, YAMLError, *_CONSTRUCTION_ERRORS) as error:
        raise SuiteError(
            f"cannot read {path}: {' '.join(str(error).split()) or 'a damaged value'}"
        ) from error
    if not isinstance(config, dict):
        raise SuiteError(f"{path} does not hold the configuration of a run")
    return config


def _read_json(path: Path, warnings: list[str]) -> Mapping[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        warnings.append(f"{path.name} is missing: the run ended before it was written")
        return None
    except (OSError, ValueError) as error:
        warnings.append(f"{path.name} cannot be read: {error}")
        return None
    except RecursionError:
        warnings.append(f"{path.name} cannot be read: it is nested too deeply")
        return None
    return value if isinstance(value, dict) else None


def _read_runs(path: Path, warnings: list[str]) -> Iterable[RunRecord]:
    """The records of runs.jsonl; a damaged line is left out. One without its end was cut off by a kill."""
    if not path.is_file():
        warnings.append(f"{path.name} is missing: no run was finished")
        return
    with path_errors(path):
        *lines, rest = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            yield _run_record(line)
        except SuiteError as error:
            warnings.append(f"{path.name}, line {number}: {_run_named(line)}left out: {error}")
    if rest:
        warnings.append(f"{path.name}, line {len(lines) + 1}: {CUT_SHORT}")


def _run_record(line: bytes) -> RunRecord:
    if not line.strip():
        raise SuiteError("the line is blank")
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
        if not isinstance(value, dict):
            raise SuiteError("not the record of a run")
        version = value.get("schema_version")
        if version != SCHEMA_VERSION:
            raise SuiteError(
                f"schema version {show(version)}, this program reads {SCHEMA_VERSION}; read it with the "
                "version that wrote it"
            )
        return RunRecord.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SuiteError(f"not the record of a run: {where}: {first['msg']}") from None
    except ValueError as error:
        raise SuiteError(f"not the record of a run: {error}") from None
    except RecursionError:
        raise SuiteError("not the record of a run: it is nested too deeply") from None


def _run_named(line: bytes) -> str:
    """ "the run NAME is ", where a damaged line still has its name."""
    found = re.search(rb'"run_id": ?"([^"\\]*)"', line)
    return f"the run {found.group(1).decode(errors='replace')} is " if found else ""


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _table_name(kind: str, run_id: str) -> str:
    return f"{kind}/{run_id}.parquet"


def _schema(kind: str) -> pa.Schema:
    if kind == STEPS:
        return _step_schema(())
    return _request_schema() if kind == REQUESTS else _span_schema()


def _pieces(folder: Path, kind: str, run_id: str) -> Iterator[pa.Table]:
    """A table of a run some rows at a time, checked; none where there is no file. SuiteError for damage."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, schema = folder / _table_name(kind, run_id), _schema(kind)
    if not path.is_file():
        return
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_PIECE_ROWS):
                yield _checked(path, pa.Table.from_batches([batch]), schema, kind)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SuiteError(f"cannot read {path}: {error}") from error


def _table(folder: Path, kind: str, run_id: str) -> pa.Table:
    """A whole table of a run, empty where there is no file. SuiteError where it is damaged."""
    import pyarrow as pa

    pieces = list(_pieces(folder, kind, run_id))
    return pa.concat_tables(pieces) if pieces else _schema(kind).empty_table()


def _frame(table: pa.Table) -> pd.DataFrame:
    import pandas as pd

    # Without this option a column of whole numbers with a null would come back as floats.
    frame: pd.DataFrame = table.to_pandas(integer_object_nulls=True)
    for name in _REQUEST_NULLABLE:
        if name in frame:
            frame[name] = pd.array(frame[name].tolist(), dtype="Int64")
    return frame


def _checked(path: Path, table: pa.Table, schema: pa.Schema, kind: str) -> pa.Table:
    """The table with every column of the schema in it, and values where there must be some."""
    table = _with_later_columns(table, schema)
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise SuiteError(
            f"{path} has no column {', '.join(missing)}: another version wrote it; read it with that version"
        )
    _check_columns(path, table, schema, _SPAN_NULLABLE if kind == SPANS else _MAY_BE_NULL)
    return table


def _with_later_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table of before there were caching, drafts and log-probabilities: nothing was done of either."""
    import pyarrow as pa

    for name in schema.names:
        if name in _LATER and name not in table.column_names:
            column = pa.array([_LATER[name]] * len(table), schema.field(name).type)
            table = table.append_column(schema.field(name), column)
    return table


def _check_columns(path: Path, table: pa.Table, schema: pa.Schema, may_be_null: Sequence[str]) -> None:
    for name in schema.names:
        column = table.column(name)
        if column.type != schema.field(name).type:
            raise SuiteError(f"{path}: the column {name} holds {column.type}, not {schema.field(name).type}")
        if column.null_count and name not in may_be_null:
            raise SuiteError(f"{path}: the column {name} has no value in {column.null_count} rows")


# From tables to records, column by column: a row at a time would take minutes for a million steps


def _columns(table: pa.Table, names: Iterable[str]) -> list[list[Any]]:
    """The columns of these names as lists of plain values."""
    return [_values(table.column(name)) for name in names]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Plain values of a column, None for null: through numpy, which is ten times faster than one by one."""
    import pyarrow as pa

    whole = column.combine_chunks()
    if pa.types.is_list(whole.type):
        return _lists(whole)
    if not pa.types.is_int64(whole.type):
        return (
            list(whole.to_numpy(zero_copy_only=False).tolist()) if not whole.null_count else whole.to_pylist()
        )
    values: list[Any] = whole.fill_null(0).to_numpy(zero_copy_only=False).tolist()
    if whole.null_count:
        is_null = whole.is_null().to_numpy(zero_copy_only=False).tolist()
        values = [None if null else value for value, null in zip(values, is_null, strict=True)]
    return values


def _lists(whole: pa.ListArray) -> list[Any]:
    """Tuples, None for null."""
    items = whole.values.to_numpy(zero_copy_only=False).tolist()
    ends = whole.offsets.to_numpy().tolist()
    is_null = whole.is_null().to_numpy(zero_copy_only=False).tolist()
    return [
        None if null else tuple(items[begin:end])
        for null, (begin, end) in zip(is_null, pairwise(ends), strict=True)
    ]


def _step_records(table: pa.Table) -> list[StepRecord]:
    names = [item.name for item in fields(StepRecord)]
    columns: list[Sequence[Any]] = [
        _counts(table, name) if name in _STEP_BUFFERS else _values(table.column(name)) for name in names
    ]
    return list(map(StepRecord, *columns))


def _counts(table: pa.Table, counter: str) -> list[Mapping[str, int]]:
    """Of each step the buffers it copied, and how often or how much; equal ones are one object."""
    prefix = f"{counter}."
    found = [name for name in table.column_names if name.startswith(prefix)]
    if not found:
        return [{}] * len(table)
    buffers = [name.removeprefix(prefix) for name in found]
    known: dict[tuple[int, ...], Mapping[str, int]] = {}
    rows = zip(*_columns(table, found), strict=True)
    return [known.get(row) or known.setdefault(row, _non_zero(buffers, row)) for row in rows]


def _non_zero(buffers: Sequence[str], row: Sequence[int]) -> dict[str, int]:
    return {name: count for name, count in zip(buffers, row, strict=True) if count}


def _request_records(table: pa.Table) -> list[RequestRecord]:
    return list(map(RequestRecord, *_columns(table, (item.name for item in fields(RequestRecord)))))


def _spans(table: pa.Table) -> list[Span]:
    return list(map(Span, *_columns(table, Span._fields)))
