"""A cost of known size put into a device, and what amplification makes of it.

In the child of a `process` device: a busy wait in every upload of one buffer, on or off for a whole run. On
the host: one for every such command that is queued. The slope of a command holds its own cost as well, so
what is planted is the slope with it less the slope without, measured in the same rounds.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from runner.config import RunnerConfig
from runner.device.process import ProcessDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.measure import StepRecord
from runner.models import TINY_GEMMA3_VL, ModelSpec
from runner.repeats import NO_REPEATS, Turn
from suite.amplification import Estimate, estimate, largest_k, plain_step_us, slopes_us
from suite.ratios import MIN_ROUNDS
from suite.repeatable import MAX_REPEATS
from suite.replay import ReplayedArrivals
from suite.scenario import Case, expand, load_scenario
from suite.slopes import AmplifiedRun
from suite.turns import shuffled_turns
from suite.workload import build_workload, materialise

BUFFER = "is_token_ids"
SPAN = f"upload.{BUFFER}"
OWN_US = 8.0
MODEL = TINY_GEMMA3_VL
SCENARIO = """\
name: planted
model: tiny-gemma3-vl
runner: {max_num_seqs: 4, max_num_batched_tokens: 32, max_model_len: 64, num_blocks: 32}
traffic: {num_requests: 4, prompt_tokens: 6, output_tokens: 40, embeds_ratio: 1}
"""


def busy_wait(duration_ns: int) -> None:
    end_ns = time.perf_counter_ns() + duration_ns
    while time.perf_counter_ns() < end_ns:
        pass


def serve_planted(cost_ns: int, *arguments: object) -> None:
    """Entry of the child. Every other reset switches the wait on, every other off."""
    from runner.device import process_child

    class Planted(process_child.Program):
        is_on = False

        def reset(self):
            self.is_on = not self.is_on
            super().reset()

        def execute(self, command, copies):
            super().execute(command, copies)
            if self.is_on and command[0] == "upload" and command[1] == BUFFER:
                busy_wait(cost_ns)

    process_child.Program = Planted
    process_child.serve(*arguments)


class PlantedDevice(ProcessDevice):
    """`is_planted` decides for what runs after the next reset."""

    def __init__(self, model: ModelSpec, config: RunnerConfig, cost_us: float) -> None:
        self.is_planted = False
        self._is_on = False
        super().__init__(model, config, partial(serve_planted, round(cost_us * 1000)))

    def reset(self, level="off"):
        if self._is_on == self.is_planted:  # the reset below will switch it once more
            super().reset(level)
            self._is_on = not self._is_on
        super().reset(level)
        self._is_on = not self._is_on


class SlowHostDevice(ProcessDevice):
    """The host's part of one upload takes longer: each time it is queued, where `is_planted`."""

    def __init__(self, model: ModelSpec, config: RunnerConfig, cost_us: float) -> None:
        self.is_planted = False
        self._cost_ns = round(cost_us * 1000)
        super().__init__(model, config)

    def execute(self, step_id, commands):
        if self.is_planted:
            busy_wait(self._cost_ns * sum(command.span == SPAN for command in commands))
        super().execute(step_id, commands)


@dataclass(frozen=True)
class Found:
    """`planted`: the slope with the wait, `with_it`, less the slope without, `without_it`; in us."""

    planted: Estimate
    with_it: Estimate
    without_it: Estimate
    step_us: float
    k: int

    def __str__(self) -> str:
        low, high = self.planted.low_us or 0.0, self.planted.high_us or 0.0
        return (
            f"{self.planted.mean_us:.2f} us [{low:.2f}, {high:.2f}]: slope {self.with_it.mean_us:.2f} with, "
            f"{self.without_it.mean_us:.2f} without; k {self.k}, step {self.step_us:,.0f} us, "
            f"{self.planted.num_rounds} rounds"
        )


def planted_case(folder: Path) -> Case:
    path = folder / "planted.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    (case,) = expand(load_scenario(path))
    return case


def repeats_for(cost_us: float, step_us: float) -> int:
    """As `suite cost` chooses them: a tenth of the step, the upload itself being OWN_US."""
    return largest_k(OWN_US + cost_us, 1, step_us, MAX_REPEATS)


class Steps:
    """The same recorded steps of one small scenario, on one device."""

    def __init__(self, device: PlantedDevice | SlowHostDevice, case: Case) -> None:
        rows = np.random.default_rng(5).normal(0, 1.6, (MODEL.vocab_size, MODEL.hidden_size))
        table = rows.astype(np.float32)
        self._given = materialise(build_workload(case, 0), lambda ids: table[list(ids)])
        self._device = device
        self._config = case.runner_config
        self._output_ids: list[list[int]] = []

    def run(self, arm: str, turns: Sequence[Turn]) -> tuple[Sequence[StepRecord], bool]:
        """The steps of one run, and whether it was async. Its tokens are those of every other run."""
        gc.collect()
        engine = Engine(MODEL, self._config, self._device, ARMS[arm], turns=turns)
        engine.run(ReplayedArrivals(self._given, [0] * len(self._given)))
        output_ids = [list(state.output_ids) for state in engine.requests.values()]
        assert self._output_ids in ([], output_ids), "repeats changed what was computed"
        self._output_ids = output_ids
        return engine.recorder.steps, engine.decision.scheduling == "async"


def recovered(
    device: PlantedDevice | SlowHostDevice,
    steps: Steps,
    arm: str,
    k: int,
    seed: int,
    num_rounds: int,
    is_enough: Callable[[Found], bool] = lambda _: False,
) -> Found:
    """What amplification makes of the device's plant in decode steps: rounds of four runs, shuffled.

    At most so many; from MIN_ROUNDS on they end where `is_enough`.

    Two with the wait and two without; of either the steps of one run have the repeats that those of the
    other have not.
    """
    draw = random.Random(seed)
    runs: dict[bool, list[AmplifiedRun]] = {True: [], False: []}
    for number in range(num_rounds):
        of_round = [
            (is_planted, turns)
            for is_planted in (True, False)
            for turns in shuffled_turns([NO_REPEATS, (SPAN, k)], draw)
        ]
        draw.shuffle(of_round)
        for is_planted, turns in of_round:
            device.is_planted = is_planted
            records, is_async = steps.run(arm, turns)
            runs[is_planted].append(AmplifiedRun(number, records, turns, is_async))
        if number + 1 >= MIN_ROUNDS and is_enough(_found(runs, k)):
            break
    return _found(runs, k)


def _found(runs: Mapping[bool, Sequence[AmplifiedRun]], k: int) -> Found:
    pair = (SPAN, "decode")
    with_it, without_it = (slopes_us(runs[is_on], [pair])[pair] for is_on in (True, False))
    return Found(
        planted=estimate([one - other for one, other in zip(with_it, without_it, strict=True)]),
        with_it=estimate(with_it),
        without_it=estimate(without_it),
        step_us=plain_step_us(runs[False], "decode") or 0.0,
        k=k,
    )
