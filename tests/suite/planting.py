"""A cost of known size put into a device, and what amplification makes of it.

In the child of a `process` device: a busy wait in every upload of one buffer, on or off for a whole run. On
the host: one for every such command that is queued. The slope of a command holds its own cost as well, so
what is planted is the slope with it less the slope without, measured in the same rounds.

What a step loses by a wait is not the wait alone: what runs after it has lost some of its caches meanwhile,
the more the longer it was; an upload after 20 us of waiting takes up to twice as long as one after another.
So two more measures are taken in the same rounds, neither by the slope of steps on repeats. The child reads
its clock around every such upload and its wait: what the waits add there. And all waits of an amplified step
are made as one, in every second step, even or odd ones, against the same step of the other: what that loses
beyond the wait is what the rest of the step loses by it.
"""

from __future__ import annotations

import gc
import mmap
import random
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from statistics import median

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
from suite.slopes import AmplifiedRun, step_times_us
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


class Wait(IntEnum):
    """What every upload of the buffer waits for; the next reset goes to the next of them."""

    NONE = 0
    ONE = 1
    ALL_EVEN = 2  # as long as all repeats of an amplified step together, in steps of even number
    ALL_ODD = 3


# What the child tells at every upload of the buffer: ns in them and their waits so far, and their number.
_CLOCKED = struct.Struct("qq")


def serve_planted(cost_ns: int, all_ns: int, clock: str, *arguments: object) -> None:
    """Entry of the child. Each reset goes on to the next kind of wait."""
    from runner.device import process_child

    with Path(clock).open("r+b") as file:
        told = mmap.mmap(file.fileno(), _CLOCKED.size)

    class Planted(process_child.Program):
        wait = Wait.NONE
        num_uploads = 0
        clocked_ns = num_clocked = 0

        def reset(self):
            self.wait = Wait((self.wait + 1) % len(Wait))
            self.num_uploads = 0
            super().reset()

        def execute(self, command, copies):
            if command[0] != "upload" or command[1] != BUFFER:
                super().execute(command, copies)
                return
            begin_ns = time.perf_counter_ns()
            super().execute(command, copies)
            busy_wait(self.wait_ns())
            self.clocked_ns += time.perf_counter_ns() - begin_ns
            self.num_clocked += 1
            _CLOCKED.pack_into(told, 0, self.clocked_ns, self.num_clocked)

        def wait_ns(self):
            if self.wait is Wait.ONE:
                return cost_ns
            if self.wait is Wait.NONE:
                return 0
            is_odd = self.num_uploads % 2 == 1
            self.num_uploads += 1
            return all_ns if is_odd == (self.wait is Wait.ALL_ODD) else 0

    process_child.Program = Planted
    process_child.serve(*arguments)


class PlantedDevice(ProcessDevice):
    """`plant` decides for what runs after the next reset."""

    def __init__(self, model: ModelSpec, config: RunnerConfig, cost_us: float, k: int) -> None:
        self.plant = Wait.NONE
        self._of_child = Wait.NONE
        self.cost_us = cost_us
        cost_ns = round(cost_us * 1000)
        # Open until `close`.
        self._clock = tempfile.NamedTemporaryFile(prefix="stepcost-clock-")  # noqa: SIM115
        self._clock.write(bytes(_CLOCKED.size))
        self._clock.flush()
        entry = partial(serve_planted, cost_ns, cost_ns * (k - 1), self._clock.name)
        super().__init__(model, config, entry)

    def clocked(self) -> tuple[int, int]:
        """ns that the child spent in uploads of the buffer and their waits so far, and how many they were."""
        self._clock.seek(0)
        total_ns, count = _CLOCKED.unpack(self._clock.read(_CLOCKED.size))
        return total_ns, count

    def close(self) -> None:
        super().close()
        self._clock.close()

    def reset(self, level="off"):
        is_reset = False
        while not is_reset or self._of_child is not self.plant:
            super().reset(level)
            self._of_child = Wait((self._of_child + 1) % len(Wait))
            is_reset = True


class SlowHostDevice(ProcessDevice):
    """The host's part of one upload takes longer: each time it is queued, where `plant` is ONE."""

    def __init__(self, model: ModelSpec, config: RunnerConfig, cost_us: float) -> None:
        self.plant = Wait.NONE
        self.cost_us = cost_us
        self._cost_ns = round(cost_us * 1000)
        super().__init__(model, config)

    def clocked(self) -> tuple[int, int]:
        """The host's wait is not timed by any."""
        return 0, 0

    def execute(self, step_id, commands):
        if self.plant is Wait.ONE:
            busy_wait(self._cost_ns * sum(command.span == SPAN for command in commands))
        super().execute(step_id, commands)


@dataclass(frozen=True)
class Found:
    """`planted`: the slope with the wait, `with_it`, less the slope without, `without_it`; in us.

    `clocked`: what an upload with its wait took longer by the child's own clock, in the same runs. `lost`:
    what a step lost for each wait without amplification. `beyond`: round by round, `planted` less `clocked`
    and less what `lost` is above the wait itself. All None on a device that has no such waits.
    """

    planted: Estimate
    with_it: Estimate
    without_it: Estimate
    clocked: Estimate | None
    lost: Estimate | None
    beyond: Estimate | None
    step_us: float
    k: int

    def __str__(self) -> str:
        lost = ""
        if self.clocked and self.lost and self.beyond:
            lost = (
                f", {_told(self.clocked)} by the device's clock, {_told(self.lost)} without amplification, "
                f"{_told(self.beyond)} unexplained"
            )
        return (
            f"{_told(self.planted)}{lost}: slope {self.with_it.mean_us:.2f} with, "
            f"{self.without_it.mean_us:.2f} without; k {self.k}, step {self.step_us:,.0f} us, "
            f"{self.planted.num_rounds} rounds"
        )


def _told(found: Estimate) -> str:
    return f"{found.mean_us:.2f} us [{found.low_us or 0.0:.2f}, {found.high_us or 0.0:.2f}]"


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
    """What amplification makes of the device's plant in decode steps: rounds of shuffled runs.

    At most so many; from MIN_ROUNDS on they end where `is_enough`.

    Two with the wait and two without; of either the steps of one run have the repeats that those of the
    other have not. On a PlantedDevice two more without repeats: all waits of a step at once, in every second.
    """
    draw = random.Random(seed)
    kinds = [(wait, True) for wait in (Wait.ONE, Wait.NONE)]
    if isinstance(device, PlantedDevice):
        kinds += [(Wait.ALL_EVEN, False), (Wait.ALL_ODD, False)]
    runs: dict[Wait, list[AmplifiedRun]] = {wait: [] for wait in Wait}
    clocks: dict[Wait, list[tuple[int, int, int]]] = {wait: [] for wait in Wait}
    for number in range(num_rounds):
        of_round = [
            (wait, turns)
            for wait, is_amplified in kinds
            for turns in (shuffled_turns([NO_REPEATS, (SPAN, k)], draw) if is_amplified else [()])
        ]
        draw.shuffle(of_round)
        for wait, turns in of_round:
            device.plant = wait
            before_ns, before = device.clocked()
            records, is_async = steps.run(arm, turns)
            total_ns, count = device.clocked()
            runs[wait].append(AmplifiedRun(number, records, turns, is_async))
            clocks[wait].append((number, total_ns - before_ns, count - before))
        if number + 1 >= MIN_ROUNDS and is_enough(_found(runs, clocks, k, device.cost_us)):
            break
    return _found(runs, clocks, k, device.cost_us)


def _found(
    runs: Mapping[Wait, Sequence[AmplifiedRun]],
    clocks: Mapping[Wait, Sequence[tuple[int, int, int]]],
    k: int,
    cost_us: float,
) -> Found:
    pair = (SPAN, "decode")
    with_it, without_it = (slopes_us(runs[wait], [pair])[pair] for wait in (Wait.ONE, Wait.NONE))
    planted = [one - other for one, other in zip(with_it, without_it, strict=True)]
    pairs = zip(runs[Wait.ALL_EVEN], runs[Wait.ALL_ODD], strict=True)
    lost = [_lost_us(even.steps, odd.steps) / (k - 1) for even, odd in pairs]
    took, took_without = (_clocked_us(clocks[wait]) for wait in (Wait.ONE, Wait.NONE))
    clocked = [one - other for one, other in zip(took, took_without, strict=True)]
    beyond = [
        found - by_clock - (of_step - cost_us)
        for found, by_clock, of_step in zip(planted, clocked, lost, strict=False)
    ]
    return Found(
        planted=estimate(planted),
        with_it=estimate(with_it),
        without_it=estimate(without_it),
        clocked=estimate(clocked) if lost else None,
        lost=estimate(lost) if lost else None,
        beyond=estimate(beyond) if lost else None,
        step_us=plain_step_us(runs[Wait.NONE], "decode") or 0.0,
        k=k,
    )


def _clocked_us(clocks: Sequence[tuple[int, int, int]]) -> list[float]:
    """us of an upload and its wait, of each round: (round, ns, uploads) of every run."""
    rounds = sorted({number for number, _, _ in clocks})
    of_rounds = [[clock[1:] for clock in clocks if clock[0] == number] for number in rounds]
    return [
        sum(ns for ns, _ in of_round) / max(1, sum(count for _, count in of_round)) / 1000
        for of_round in of_rounds
    ]


def _lost_us(waits_even: Sequence[StepRecord], waits_odd: Sequence[StepRecord]) -> float:
    """What a decode step takes longer with all waits: the median of even steps and that of odd ones, halved.

    A run that is slower as a whole adds to one of them what it takes from the other.
    """
    even, odd = step_times_us(waits_even), step_times_us(waits_odd)
    differences: tuple[list[float], list[float]] = ([], [])
    for number, step in enumerate(waits_even):
        if step.kind == "decode" and step.step_id in even:
            sign = -1 if number % 2 else 1
            differences[number % 2].append(sign * (even[step.step_id] - odd[step.step_id]))
    return sum(median(of_parity) for of_parity in differences) / 2
