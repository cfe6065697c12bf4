"""Host time of a decode step, planned and compiled without any device, by number of decode rows."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from runner.admission import admit
from runner.commands import Command, Upload, buffer_table
from runner.config import RunnerConfig
from runner.core import Prompt, Request, RequestState, SamplingParams, StepPlan, StepResult
from runner.inputs.arms import ARMS
from runner.inputs.batch import InputBatch
from runner.inputs.compile import StepCompiler
from runner.inputs.routes import step_kind
from runner.measure import StepClock
from runner.models import TINY_QWEN3
from runner.scheduler import Scheduler

NUM_ROUNDS = 64
NUM_WARMUPS = 8
PHASES = ("schedule", "update_batch", "compile", "retire")
MAX_US_OF_256 = 1_000


class HostHalf:
    """The host half of a runner whose device answers at once, with made-up tokens."""

    def __init__(self, num_rows: int) -> None:
        config = RunnerConfig(
            max_num_seqs=num_rows,
            max_num_batched_tokens=max(num_rows, 2048),
            max_model_len=512,
            num_blocks=num_rows * 32,
        )
        self.phase_ns: defaultdict[str, list[int]] = defaultdict(list)
        self.plan: StepPlan | None = None
        self.commands: Sequence[Command] = ()
        self._scheduler = Scheduler(config, TINY_QWEN3.eos_token_id)
        self._requests = {f"r{row}": _request(row, config) for row in range(num_rows)}
        for state in self._requests.values():
            self._scheduler.submit(state)
        self._batch = InputBatch(TINY_QWEN3, config)
        buffers = buffer_table(config, TINY_QWEN3)
        host = {name: np.zeros(item.shape, item.dtype) for name, item in buffers.items()}
        self._compiler = StepCompiler(TINY_QWEN3, config, ARMS["sync-ids"], host)

    def prefill(self) -> None:
        """Step until every request decodes; what that took is forgotten."""
        while self._scheduler.num_waiting or self.plan is None or step_kind(self.plan) != "decode":
            self.retire()
            self.step()
        self.phase_ns.clear()

    def step(self) -> None:
        clock = StepClock()
        with clock.phase("schedule"):
            plan = self._scheduler.plan()
        assert plan is not None
        with clock.phase("update_batch"):
            self._batch.update(plan, self._requests)
        with clock.phase("compile"):
            staged = self._compiler.stage(plan, self._batch, self._requests, {})
            self.commands = self._compiler.compile(staged, self._requests)
        self.plan = plan
        self._note(clock)

    def retire(self) -> None:
        if self.plan is None:
            return
        clock = StepClock()
        sampled = {row.request_id: (7,) for row in self.plan.rows if row.samples}
        with clock.phase("retire"):
            self._scheduler.retire(self.plan, StepResult(self.plan.step_id, sampled))
        self._note(clock)

    def median_us(self, phase: str) -> float:
        return median(self.phase_ns[phase]) / 1000

    @property
    def total_us(self) -> float:
        """Of planning and compiling a step."""
        return sum(self.median_us(phase) for phase in PHASES if phase != "retire")

    def _note(self, clock: StepClock) -> None:
        for phase, elapsed_ns in clock.phase_ns.items():
            self.phase_ns[phase].append(elapsed_ns)


def _request(row: int, config: RunnerConfig) -> RequestState:
    """Prompts of unlike lengths, so that rows outgrow their blocks on different steps."""
    length = 64 + random.Random(row).randrange(128)
    sampling = SamplingParams(max_tokens=config.max_model_len - length, ignore_eos=True)
    return admit(Request(f"r{row}", Prompt((5,) * length), sampling), TINY_QWEN3, config)


@pytest.mark.parametrize("num_rows", [64, 256, 1024])
def test_plan_and_compile_of_decode_rows(
    num_rows: int, benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    half = HostHalf(num_rows)
    half.prefill()
    benchmark.pedantic(half.step, setup=half.retire, rounds=NUM_ROUNDS, warmup_rounds=NUM_WARMUPS)
    assert half.plan is not None
    assert step_kind(half.plan) == "decode"
    assert half.plan.num_tokens == num_rows
    benchmark.extra_info.update({phase: half.median_us(phase) for phase in PHASES})
    with capsys.disabled():
        print(_line(num_rows, half))
    if num_rows == 256:
        assert half.total_us <= MAX_US_OF_256


def _line(num_rows: int, half: HostHalf) -> str:
    phases = {phase: half.median_us(phase) for phase in PHASES}
    total = half.total_us
    uploads = sum(isinstance(command, Upload) for command in half.commands)
    shares = " · ".join(f"{phase} {value:.0f}" for phase, value in phases.items())
    return (
        f"\n{num_rows:5} decode rows: plan + compile {total:.0f} us a step, "
        f"{total / num_rows:.2f} us a row; medians in us: {shares}; "
        f"{len(half.commands)} commands, {uploads} uploads"
    )
