"""Out of memory: how Python, torch and the system say it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

OUT_OF_MEMORY = "out of memory"
"""The kind of such a failure."""

_COUNTS = Path("/proc/vmstat")
_SIGNS = (
    "MemoryError",  # Python's own, and numpy's, which is one
    "OutOfMemoryError",  # of a GPU
    "not enough memory: you tried to allocate",  # torch's allocator on a CPU
    "can't allocate memory: you tried to allocate",
    "std::bad_alloc",
    "could not create a primitive",  # oneDNN's, which makes a kernel when a shape first comes
    "Cannot allocate memory",  # the system's ENOMEM, as of a fork or of shared memory
    "CUDA out of memory",
)


def tells_out_of_memory(text: str) -> bool:
    """Whether an error's text, its traceback or a process's last words say that memory ran out."""
    return any(sign in text for sign in _SIGNS)


def num_killed_for_memory() -> int | None:
    """How many processes the system has ended for want of memory since it started; None: it does not say."""
    with suppress(OSError, ValueError):
        for line in _COUNTS.read_text(encoding="ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None
