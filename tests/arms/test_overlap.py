"""Async scheduling hides the host's time behind the device's: measured on two processes, interleaved."""

from __future__ import annotations

import dataclasses
import os
import statistics
from typing import Any

import pytest
from arm_workloads import Case, Recipe, serve

from runner.config import RunnerConfig
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.models import TINY_QWEN3

NUM_PAIRS = 10
HOST_SHARE = 0.3
CONFIG = RunnerConfig(max_num_seqs=16, max_num_batched_tokens=128, max_model_len=64, num_blocks=80)
CASE = Case(TINY_QWEN3, CONFIG, tuple(Recipe("ids", 8, max_tokens=32, seed=seed) for seed in range(16)))


def decode_ms(engine: Engine) -> tuple[float, float]:
    """Wall and host time of a decode step; the first and the last few are left out."""
    steps = [step for step in engine.recorder.steps if step.kind == "decode"][3:-3]
    wall_ns = (steps[-1].end_ns - steps[0].end_ns) / (len(steps) - 1)
    host_ns = statistics.fmean(step.host_ns for step in steps)
    return wall_ns / 1e6, host_ns / 1e6


def host_work_us(device: Device) -> int:
    """Busy host time that makes the host's share of a sync step what is asked for."""
    runs = [decode_ms(serve(CASE, device, ARMS["sync-ids"])) for _ in range(3)]
    wall_ms, host_ms = (statistics.median(values) for values in zip(*runs, strict=True))
    device_ms = wall_ms - host_ms
    return max(0, round((device_ms * HOST_SHARE / (1 - HOST_SHARE) - host_ms) * 1000))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="host and device need a core each")
def test_async_hides_at_least_80_percent_of_the_hosts_time(record_property: Any) -> None:
    with open_device("process", TINY_QWEN3, CONFIG) as device:
        serve(CASE, device, ARMS["sync-ids"])  # warm
        config = dataclasses.replace(CONFIG, host_work_us=host_work_us(device))
        case = dataclasses.replace(CASE, config=config)
        shares, hidden = [], []
        for pair in range(NUM_PAIRS):
            order = ("sync-ids", "ids") if pair % 2 else ("ids", "sync-ids")
            taken = {name: decode_ms(serve(case, device, ARMS[name])) for name in order}
            sync_ms, host_ms = taken["sync-ids"]
            shares.append(host_ms / sync_ms)
            hidden.append((sync_ms - taken["ids"][0]) / host_ms)
    ordered = sorted(hidden)
    summary = f"hidden: median {statistics.median(hidden):.2f}, from {ordered[0]:.2f} to {ordered[-1]:.2f}"
    record_property("overlap", summary)
    print(summary, f"host share {statistics.median(shares):.2f}")
    assert 0.2 < statistics.median(shares) < 0.4, "the case is not the one asked for"
    assert statistics.median(hidden) >= 0.8, summary
