"""Standard output whose reader may leave: the rest then goes nowhere, and the command ends as it would."""

from __future__ import annotations

import io
from typing import TextIO


class _Forgiving(io.RawIOBase):
    """A pipe that takes everything, read or not. Any other refusal is told as ever."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def isatty(self) -> bool:
        return self._raw.isatty()

    def write(self, data: object) -> int | None:
        try:
            return self._raw.write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            return memoryview(data).nbytes  # type: ignore[arg-type]


def forgiving(stream: TextIO) -> TextIO:
    """The stream, no longer ended by a reader who left; one that is no file of the system's, as it is."""
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # unbuffered there is no layer between
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(raw, io.FileIO):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Forgiving(raw)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
