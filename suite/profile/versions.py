"""Which versions of nvtx and nsys lose every range between them, without an error. Stdlib only."""

from __future__ import annotations

import re

# From this nvtx on, payloads are of a kind that these and earlier nsys drop, with the range.
_FIRST_LOSING_NVTX = (0, 2, 12)
_LAST_LOSING_NSYS = (2023, 4)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def may_lose_ranges(nsys: str | None) -> bool:
    """Whether it loses those of a later nvtx; False for a version that is not known."""
    known = numbers(nsys or "")
    return bool(known) and known[:2] <= _LAST_LOSING_NSYS


def lost_with(nvtx: str, nsys: str) -> str | None:
    """Why every range of this nvtx is lost under that nsys, and the remedy; None where they are kept."""
    if numbers(nvtx) < _FIRST_LOSING_NVTX or not may_lose_ranges(nsys):
        return None
    return (
        f"nvtx {nvtx} under nsys {nsys} loses every range, without an error; pip install nvtx==0.2.11, or "
        "use nsys 2024.1 or newer"
    )
