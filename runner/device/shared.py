"""SharedArena: arrays two processes map, in anonymous memory the kernel frees when both are gone (numpy).

The memory has no name, so nothing can be left behind by a kill, and it is not limited by /dev/shm's size.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64


class SharedArena:
    """Named arrays over one file descriptor. Both sides give the same `layout`, in the same order."""

    def __init__(self, layout: Mapping[str, tuple[str, tuple[int, ...]]], fd: int | None = None) -> None:
        offsets, size = _offsets(layout)
        self.fd = _create(size) if fd is None else fd
        self._mapping = mmap.mmap(self.fd, size)
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.frombuffer(
                self._mapping, dtype, count=int(np.prod(shape)), offset=offsets[name]
            ).reshape(shape)
            for name, (dtype, shape) in layout.items()
        }

    def close(self) -> None:
        """Close the descriptor. The mapping lives until the last array over it is dropped."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _offsets(layout: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[dict[str, int], int]:
    offsets, size = {}, 0
    for name, (dtype, shape) in layout.items():
        offsets[name] = size
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        size += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, size


def _create(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("stepcost")
    else:
        with tempfile.TemporaryFile() as file:  # unlinked: the descriptor is all that is left
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
