"""Standard output whose reader may leave, and whose encoding may lack what is printed.

What nobody reads goes nowhere, and the command ends as it would. What the encoding lacks is printed READABLE.
"""

from __future__ import annotations

import codecs
import io
from typing import TextIO

READABLE = "stepcost.readable"
"""An error handler: signs of ours by their like in ASCII, any other character escaped."""

_LIKE = {
    "\u00a0": " ",
    "\u00b1": "+-",
    "\u00b5": "u",
    "\u00b7": "-",
    "\u00bd": "1/2",
    "\u00d7": "x",
    "\u00f7": "/",
    "\u2014": "-",
    "\u201c": '"',
    "\u201d": '"',
    "\u2026": "...",
    "\u2192": "->",
    "\u2248": "~",
    "\u2264": "<=",
    "\u2265": ">=",
    "\u2713": "+",
    "\u2717": "x",
}


def _readable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(map(_like, lacking)), error.end


def _like(character: str) -> str:
    return _LIKE.get(character) or character.encode("ascii", "backslashreplace").decode()


codecs.register_error(READABLE, _readable)


def takes_all(stream: TextIO) -> bool:
    """Whether every character can be printed there."""
    return (stream.encoding or "utf-8").lower().replace("-", "").startswith("utf")


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
