"""64 rows decoding at once on a small model: runs of them at a level. Holds no assertion."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from arm_workloads import Arrivals

from runner.config import RunnerConfig
from runner.core import Prompt, Request, SamplingParams
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.measure import Instrument, StepRecord
from runner.models import TINY_QWEN3, ModelSpec
from runner.spans import Level, Span

NUM_ROWS = 64


@dataclass(frozen=True, slots=True)
class Served:
    """The decode steps of all rows, their spans, and the tokens a second of the whole run."""

    steps: tuple[StepRecord, ...]
    spans: tuple[Span, ...]
    throughput: float

    @property
    def step_ns(self) -> float:
        """Median time from one retired step to the next."""
        ends = [step.end_ns for step in self.steps]
        return median(later - earlier for earlier, later in pairwise(ends))


@contextmanager
def full_batch_device(model: ModelSpec = TINY_QWEN3) -> Iterator[tuple[Device, RunnerConfig]]:
    config = RunnerConfig(
        max_num_seqs=NUM_ROWS, max_num_batched_tokens=2048, max_model_len=128, num_blocks=NUM_ROWS * 8
    )
    with open_device("process", model, config) as device:
        yield device, config


def serve_full_batch(
    device: Device,
    config: RunnerConfig,
    arm: str,
    level: Level,
    num_outputs: int,
    model: ModelSpec = TINY_QWEN3,
) -> Served:
    """Serve 64 short prompts to `num_outputs` tokens each."""
    sampling = SamplingParams(num_outputs, ignore_eos=True)
    prompts = [Prompt(tuple(range(3, 19 + row % 8))) for row in range(NUM_ROWS)]
    requests = [Request(f"r{row}", prompt, sampling) for row, prompt in enumerate(prompts)]
    instrument = Instrument(level)
    engine = Engine(model, config, device, ARMS[arm], instrument)
    start = time.perf_counter()
    engine.run(Arrivals((0, request) for request in requests))
    elapsed_s = time.perf_counter() - start
    steps = tuple(step for step in engine.recorder.steps if step.num_decode_rows == NUM_ROWS)
    return Served(steps, tuple(instrument.spans), NUM_ROWS * num_outputs / elapsed_s)
