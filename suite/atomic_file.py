"""A file is written whole or not at all: under a temporary name first, then renamed onto its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".*.tmp"
"""What the temporary names look like; a kill leaves one behind at most."""


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """What `write` writes becomes the file's content, whoever else writes it. OSError where the disk refuses.

    It is synced before it gets its name, so that a crash leaves the old content or the new.
    """
    # A name of its own for every writer, threads of one process among them.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
