"""Who writes a run folder: one process at a time, by a lock that ends with the process, however it ends.

The lock is the operating system's, on the folder itself: no file of it is ever left over.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from suite.errors import SuiteError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """The right to write a run folder, for as long as the context lasts. SuiteError where another has it.

    Readers need none: what is in the folder is whole at any time.
    """
    with claiming(path) as is_ours:
        if not is_ours:
            raise SuiteError(
                f"{path} is being written by another process; wait until that has ended, or stop it first"
            )
        yield


@contextmanager
def claiming(path: Path) -> Iterator[bool]:
    """As `writing`; False instead of an error where another process has the right."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise SuiteError(f"cannot write {path}: {error.strerror or error}") from None
    try:
        yield _lock(folder)
    finally:
        os.close(folder)  # and with it the lock; a child has no copy, for descriptors are not inherited


def _lock(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: a run is still better than none
    return True
