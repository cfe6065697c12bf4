"""A run folder packed into one .tar.gz of limited size: whole where it fits, else with its steps thinned.

What is left out is told in the folder itself (suite/archive_note.py). The same folder gives the same bytes.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.archive_folder import ArchivedFolder, read_file
from suite.atomic_file import TEMPORARY
from suite.errors import SuiteError
from suite.store import CONFIG, TRACE, TRACES, check_is_run
from suite.yaml_source import path_errors

LIMIT_BYTES = 16_000_000
SUFFIX = ".tar.gz"

_LEVEL = 6
_FINER = 1.25  # how much larger the k is that is tried next
_NUM_TOLD = 3  # of the largest files, where nothing helps


@dataclass(frozen=True, slots=True)
class Archive:
    """The file's content. `one_in`: of each kind of step 1 in so many is in it; 1: all.

    `num_kept` of `num_steps` steps are in it; both None where all are. `left_out`: files that are not.
    """

    content: bytes
    num_files: int
    one_in: int = 1
    num_steps: int | None = None
    num_kept: int | None = None
    left_out: tuple[str, ...] = ()


class _Full(Exception):
    """More was written than there is room for."""


class _Bounded(io.BytesIO):
    """Holds at most so many bytes, and raises _Full for more."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self._limit_bytes = limit_bytes

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if self.tell() + len(data) > self._limit_bytes:
            raise _Full
        return super().write(data)


def pack(run_dir: Path, limit_bytes: int = LIMIT_BYTES, output: Path | None = None) -> Archive:
    """All of a run folder, but for temporary files, links and `output`, in at most so many bytes.

    Where that is too little, traces for viewers are left out; then of each kind of step all but one in k, for
    the smallest k of those tried that fits. SuiteError where none does, or it is no run folder.
    """
    check_is_run(run_dir)
    packing = _Packing(run_dir, output, limit_bytes)
    traces = packing.traces
    for left_out in ((), traces) if traces else ((),):
        archive = packing.attempt(1, left_out)
        if archive is not None:
            return archive
    most = max(folder.most_of_a_kind for folder in packing.folders)
    one_in = min(packing.first_guess(), most)
    while one_in > 1:
        archive = packing.attempt(one_in, traces)
        if archive is not None:
            return archive
        one_in = min(most, max(one_in + 1, math.floor(one_in * _FINER))) if one_in < most else 0
    raise SuiteError(packing.refusal(max(most, 1)))


class _Packing:
    """One folder's way into one file; `folders`: the run's, and those of runs within it."""

    def __init__(self, root: Path, output: Path | None, limit_bytes: int) -> None:
        self._root = root
        self._limit_bytes = limit_bytes
        self._files = _files(root, output)
        nested = [file.parent for file in self._files if file.name == CONFIG and file.parent != root]
        self.folders = [ArchivedFolder(path, self._files) for path in (root, *nested)]
        self._tables = frozenset(table for folder in self.folders for table in folder.tables)

    @property
    def traces(self) -> tuple[Path, ...]:
        """For viewers, and not to be thinned: of our own export, which makes it again, and of profilers."""
        own = self._root / TRACE
        return tuple(file for file in self._files if file == own or file.parent.name == TRACES)

    def attempt(self, one_in: int, left_out: Sequence[Path]) -> Archive | None:
        """None where it does not fit."""
        buffer, num_files = _Bounded(self._limit_bytes), 0
        try:
            with (
                gzip.GzipFile("", "wb", _LEVEL, buffer, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                for path, content in self._members(one_in, left_out):
                    tar.addfile(self._entry(path, content), io.BytesIO(content))
                    num_files += 1
        except _Full:
            return None
        notes = [note for folder in self.folders if (note := folder.note(one_in, left_out)) is not None]
        is_thinned = one_in > 1
        return Archive(
            buffer.getvalue(),
            num_files,
            one_in,
            num_steps=sum(note.num_steps for note in notes) if is_thinned else None,
            num_kept=sum(note.num_kept for note in notes) if is_thinned else None,
            left_out=tuple(path.relative_to(self._root).as_posix() for path in left_out),
        )

    def first_guess(self) -> int:
        """By the room that the tables have, were they to shrink as their rows do; at least 2."""
        tables = sum(file.stat().st_size for file in self._tables if file.is_file())
        buffer = io.BytesIO()
        with gzip.GzipFile("", "wb", _LEVEL, buffer, mtime=0) as packed:
            for _, content in self._others(2, self.traces):
                packed.write(content)
        return max(2, math.ceil(tables / max(1, self._limit_bytes - buffer.tell())))

    def refusal(self, one_in: int) -> str:
        """What to say where nothing fits."""
        sizes = sorted(
            (-len(zlib.compress(content, 1)), path.relative_to(self._root).as_posix())
            for path, content in self._members(one_in, self.traces)
        )
        told = ", ".join(f"{name} {megabytes(-size)}" for size, name in sizes[:_NUM_TOLD])
        return (
            f"{self._root}: it does not fit into {megabytes(self._limit_bytes)}, even with one step of each "
            f"kind of every run; the largest files, packed: {told}; move what is not needed out of it, "
            "or pack it as it is with tar"
        )

    def _members(self, one_in: int, left_out: Sequence[Path]) -> Iterator[tuple[Path, bytes]]:
        """In the same order whatever is left out; the tables last."""
        yield from self._others(one_in, left_out)
        if one_in == 1:
            yield from _as_they_are(file for file in self._files if file in self._tables)
        else:
            for folder in self.folders:
                yield from folder.thinned(one_in)

    def _others(self, one_in: int, left_out: Sequence[Path]) -> Iterator[tuple[Path, bytes]]:
        instead: dict[Path, bytes] = {}
        for folder in self.folders:
            instead |= folder.instead(one_in, left_out)
        yield from sorted(instead.items())
        skipped = {*instead, *left_out, *self._tables}
        yield from _as_they_are(file for file in self._files if file not in skipped)

    def _entry(self, path: Path, content: bytes) -> tarfile.TarInfo:
        """With the time of the file, or of the folder's configuration, and nobody's name."""
        entry = tarfile.TarInfo((Path(self._root.resolve().name) / path.relative_to(self._root)).as_posix())
        entry.size, entry.mode = len(content), 0o644
        dated = (file for file in (path, path.parent / CONFIG, self._root / CONFIG) if file.is_file())
        entry.mtime = next((int(file.stat().st_mtime) for file in dated), 0)
        return entry


def megabytes(size: int) -> str:
    """ "1.23 MB", of a million bytes each."""
    return f"{size / 1e6:,.3g} MB"


def _as_they_are(files: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
    for file in files:
        content = read_file(file)
        if content is not None:
            yield file, content


def _files(root: Path, output: Path | None) -> list[Path]:
    """Every file of a folder in order of name, but for those half written, links, and the archive itself."""
    with path_errors(root):
        skipped = None if output is None else output.resolve()
        found = [Path(folder) / name for folder, _, names in os.walk(root, onerror=_refuse) for name in names]
        plain = [path for path in found if path.is_file() and not path.is_symlink()]
        return sorted(
            path for path in plain if not path.match(TEMPORARY) and (not skipped or path.resolve() != skipped)
        )


def _refuse(error: OSError) -> None:
    raise error
