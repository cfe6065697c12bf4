"""What the instrument costs a decode step of 64 rows on `process`, by formula, beside what runs show.

Gated: ns per span (micro-benchmark) x spans per step / time of a step, at most 0.5 % at level `nvtx` and 2 %
at level `events`. Not gated: the throughput of runs at that level over that of runs without, interleaved; it
is what one sees, and on a machine that does other things as well it is mostly those.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from statistics import median

import pytest
from full_batch import NUM_ROWS, Served, full_batch_device, serve_full_batch

from runner.config import RunnerConfig
from runner.device.base import Device
from runner.spans import Level
from suite.micro.instrument import span_cost_ns
from suite.micro.span_cost import instrument_share, spans_per_step

LIMITS: dict[Level, float] = {"nvtx": 0.005, "events": 0.02}
LEVELS: tuple[Level, ...] = ("off", *LIMITS)
NUM_ROUNDS = 5
NUM_OUTPUTS = 40


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[Device, RunnerConfig]]:
    with full_batch_device() as device:
        yield device


@pytest.mark.parametrize("arm", ["sync-ids", "ids", "gated", "refresh"])
def test_instrument_cost(
    arm: str, opened: tuple[Device, RunnerConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    device, config = opened
    runs: defaultdict[Level, list[Served]] = defaultdict(list)
    serve_full_batch(device, config, arm, "off", NUM_OUTPUTS)  # a warm-up
    draw = random.Random(1)
    for _ in range(NUM_ROUNDS):
        for level in draw.sample(LEVELS, len(LEVELS)):
            runs[level].append(serve_full_batch(device, config, arm, level, NUM_OUTPUTS))
    step_ns = min(run.step_ns for run in runs["off"])  # the least disturbed: the share is largest there
    counted = spans_per_step(runs["events"][0].spans, runs["events"][0].steps)
    for level, limit in LIMITS.items():
        cost = span_cost_ns(level)
        share = instrument_share(cost, counted, step_ns)
        ratio = median(
            on.throughput / off.throughput for on, off in zip(runs[level], runs["off"], strict=True)
        )
        with capsys.disabled():
            print(
                f"\n{arm}, {level}: {share:.3%} of a step of {step_ns / 1e6:.2f} ms with {NUM_ROWS} rows "
                f"({cost.host.value:.0f} ns x {counted.host:.1f} host spans, {cost.command.value:.0f} + "
                f"{cost.read.value:.0f} ns x {counted.command:.1f} commands); throughput on / off "
                f"{ratio:.3f}, median of {NUM_ROUNDS} pairs"
            )
        assert share <= limit
