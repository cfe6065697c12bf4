"""Open a trace file as text, packed or not; knows nothing of what is in it."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from suite.errors import SuiteError

_GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """The file as text. Bytes that are not UTF-8 stay visible as escapes, so that their cell is refused."""
    try:
        with (
            gzip.open(path, "rb") if _is_gzip(path) else path.open("rb") as raw,
            io.TextIOWrapper(raw, "utf-8-sig", errors="backslashreplace", newline="") as text,
        ):
            yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SuiteError(f"{path}: not a whole gzip file ({error}); fetch it again") from None
    except OSError as error:
        raise SuiteError(f"{path}: cannot be read: {error.strerror or error}") from None


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC or path.suffix == ".gz"
