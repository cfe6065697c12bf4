"""Seeds of their own for each purpose and index, derived from a scenario's one: the same in every process."""

from __future__ import annotations

import hashlib

import numpy as np


def seeded(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """A generator of its own for each purpose and index, the same in every process."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(_digest(seed, purpose, index)[:16], "little")))


def derived_seed(seed: int, purpose: str, index: int = 0) -> int:
    """A seed of its own for each purpose and index, from 0 to 2**63 - 1, the same in every process."""
    return int.from_bytes(_digest(seed, purpose, index)[:8], "little") >> 1


def _digest(seed: int, purpose: str, index: int) -> bytes:
    return hashlib.sha256(f"stepcost:{seed}:{purpose}:{index}".encode()).digest()
