"""Made-up ceilings and machines for the tests of micro-benchmarks. Holds no assertion."""

from __future__ import annotations

from dataclasses import replace

import torch

from runner.models import TINY_QWEN3
from suite.ceilings import Ceilings, Point, Shape, linear_parameters
from suite.micro.machine import Machine
from suite.micro.timing import Effort, HostTimer

QUICK = Effort(min_sample_ns=1, min_samples=2, max_samples=2, budget_ns=1, limit_ns=10**12, max_calls=4)


def point(size: int, best_ns: float = 10.0) -> Point:
    return Point(size=size, memory="cold", best_ns=best_ns, median_ns=best_ns, low_ns=None, high_ns=None, n=3)


def make_ceilings(**changes: object) -> Ceilings:
    made = Ceilings(
        measured_utc="2026-01-01T00:00:00Z",
        device="process",
        device_name="cpu",
        torch_version="2",
        num_threads=1,
        model=TINY_QWEN3.name,
        num_cores=2,
        load_average=0.1,
        copies="memcpy",
        linear_parameters=linear_parameters(TINY_QWEN3),
        upload_pinned=(point(64), point(128)),
        upload_pageable=(point(64), point(128)),
        device_copy=(point(64), point(128)),
        handoff=point(0),
        launch=None,
        event_floor=point(0, 0.0),
        matmul=(point(1), point(16)),
        shapes=(Shape(inner=256, outer=128, points=(point(1), point(16))),),
    )
    return made.model_copy(update=changes)


def make_machine(cache_bytes: int = 1, **changes: object) -> Machine:
    """On this process's CPU, with a cache so small that a few buffers exceed it."""
    made = Machine("inline", "cpu", torch.device("cpu"), HostTimer(), cache_bytes, 1, QUICK)
    return replace(made, **changes)  # type: ignore[arg-type]
