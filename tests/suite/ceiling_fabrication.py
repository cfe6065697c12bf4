"""Ceilings made up for tests. Holds no assertion."""

from __future__ import annotations

from typing import Any

from runner.models import TINY_QWEN3
from suite.ceilings import Ceilings, Point, linear_parameters


def point(size: int, best_ns: float) -> Point:
    return Point(size=size, memory="cold", best_ns=best_ns, median_ns=best_ns, low_ns=None, high_ns=None, n=1)


def ceilings(**changes: Any) -> Ceilings:
    """Copies at 1 byte a ns beyond 100 ns; moves within the device at 2; a matmul of 1000 ns a token."""
    values: dict[str, Any] = {
        "measured_utc": "2026-01-01T00:00:00Z",
        "device": "process",
        "device_name": "cpu",
        "torch_version": "2",
        "num_threads": 1,
        "model": TINY_QWEN3.name,
        "num_cores": 2,
        "load_average": 0.3,
        "copies": "memcpy",
        "linear_parameters": linear_parameters(TINY_QWEN3),
        "upload_pinned": (point(100, 200), point(1_000_100, 1_000_200)),
        "upload_pageable": (point(100, 400),),
        "device_copy": (point(100, 50), point(10**9, 5 * 10**8)),
        "handoff": point(0, 1),
        "launch": None,
        "event_floor": point(0, 1),
        "matmul": (point(16, 16_000), point(512, 512_000)),
        "shapes": (),
    }
    return Ceilings(**(values | changes))
