"""What an archive holds of one run folder: its tables, thinned or not, and the note of what was left out.

Only reads the folder. One that is still written gives the runs it had at first, whose tables are there.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from suite.archive_note import NOTE, ArchiveNote, ListedTimes
from suite.attribution import listed_times
from suite.publish import sum_up
from suite.store import (
    REQUESTS,
    RUNS,
    SPANS,
    STEPS,
    SUMMARY,
    SUMMARY_TABLE,
    LoadedRun,
    load_run,
    read_archive_note,
    to_json,
)
from suite.summary import to_csv
from suite.thinning import REQUEST_COLUMNS, num_kept, thin_spans, thin_steps
from suite.yaml_source import path_errors

if TYPE_CHECKING:
    import pyarrow as pa

_TABLE = ".parquet"


class ArchivedFolder:
    """`files`: those of the folder, the ones within its own folders included."""

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self.path = path
        self._steps, self._spans = (
            [file for file in files if file.parent == path / kind and file.suffix == _TABLE]
            for kind in (STEPS, SPANS)
        )
        self._runs = read_file(path / RUNS)
        self._before = read_archive_note(path)

    @property
    def tables(self) -> tuple[Path, ...]:
        """Those that can be thinned."""
        return (*self._steps, *self._spans)

    @cached_property
    def most_of_a_kind(self) -> int:
        """How many steps of one kind a run has at most: thinned by that, one of each kind is left."""
        return max((max(counts.values(), default=0) for counts in self._counts), default=0)

    def thinned(self, one_in: int) -> Iterator[tuple[Path, bytes]]:
        """The tables. One that cannot be read stays as it is: whoever reads it is told."""
        for file in self._steps:
            steps = _read(file)
            if steps is None:
                yield from _as_it_is(file)
            else:
                yield file, _written(thin_steps(steps, self._requests_of(file), one_in))
        for file in self._spans:
            spans, steps = _read(file), _read(self.path / STEPS / file.name)
            if spans is None or steps is None:
                yield from _as_it_is(file)
            else:
                yield file, _written(thin_spans(spans, steps, one_in))

    def instead(self, one_in: int, left_out: Sequence[Path]) -> dict[Path, bytes]:
        """What stands in the archive in the place of a file, or beside the folder's own."""
        found = {} if self._runs is None else {self.path / RUNS: self._runs}
        note = self.note(one_in, left_out)
        if note is not None:
            found[self.path / NOTE] = to_json(note.document(), indent=2) + b"\n"
        return found if one_in == 1 else found | self._summary

    def note(self, one_in: int, left_out: Sequence[Path]) -> ArchiveNote | None:
        """What the folder is to say; None where nothing more is left out than before."""
        mine = (path for path in left_out if path.is_relative_to(self.path))
        names = [path.relative_to(self.path).as_posix() for path in mine]
        if one_in == 1 and not names:
            return None
        num_steps = sum(sum(counts.values()) for counts in self._counts)
        before = self._before or ArchiveNote(1, num_steps, num_steps)
        note = replace(before, left_out=tuple(dict.fromkeys((*before.left_out, *names))))
        if one_in == 1:
            return note
        return replace(
            note,
            one_in=one_in * before.one_in,
            num_kept=sum(num_kept(counts, one_in) for counts in self._counts),
            listed=self._listed if before.one_in == 1 else before.listed,
        )

    @cached_property
    def _counts(self) -> list[Counter[str]]:
        """Of each run how many steps of each kind there are."""
        tables = (_read(file, ("kind",)) for file in self._steps)
        return [Counter(table.column("kind").to_pylist()) for table in tables if table is not None]

    @cached_property
    def _loaded(self) -> LoadedRun:
        return load_run(self.path)

    @cached_property
    def _listed(self) -> dict[str, ListedTimes]:
        runs = [run for run in self._loaded.whole_runs if run.step_list is not None and not run.repeats]
        return {run.run_id: listed_times(run, self._loaded.step_records(run.run_id)) for run in runs}

    @cached_property
    def _summary(self) -> dict[Path, bytes]:
        """A summary of all steps where the folder has none: once they are thinned it cannot be made."""
        loaded = self._loaded
        if loaded.summary is not None or loaded.one_in > 1:
            return {}
        summed = sum_up(loaded, loaded.is_interrupted)
        return {
            self.path / SUMMARY: to_json(summed.document, indent=2) + b"\n",
            self.path / SUMMARY_TABLE: to_csv(summed.arms).encode("utf-8", "backslashreplace"),
        }

    def _requests_of(self, steps: Path) -> pa.Table | None:
        return _read(self.path / REQUESTS / steps.name, REQUEST_COLUMNS)


def read_file(path: Path) -> bytes | None:
    """None for one that is gone, as a summary is once its run is gone on with."""
    with path_errors(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def _as_it_is(file: Path) -> Iterator[tuple[Path, bytes]]:
    content = read_file(file)
    if content is not None:
        yield file, content


def _read(file: Path, columns: Sequence[str] | None = None) -> pa.Table | None:
    """None where it is gone, damaged, or another version wrote it without these columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    needed = columns or (("step_id", "kind") if file.parent.name == STEPS else ("step_id",))
    try:
        with pq.ParquetFile(file) as opened:
            table = opened.read(None if columns is None else list(columns))
    except (OSError, ValueError, pa.ArrowException):
        return None
    return table if set(needed) <= set(table.column_names) else None


def _written(table: pa.Table) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
