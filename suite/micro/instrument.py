"""Measures what one span costs the program it is in, level by level (torch behind the device's half)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from runner.commands import OUTPUT_READY, Merge, Record, buffer_table
from runner.config import RunnerConfig
from runner.device.command_runner import CommandRunner
from runner.device.report import ReportRing, SpanRing
from runner.kernels.program import Program
from runner.kernels.sync_watch import SyncWatch
from runner.measure import Instrument
from runner.models import TINY_QWEN3
from runner.spans import Level, Span, records_device
from suite.micro.median import Estimate, estimate
from suite.micro.span_cost import SpanCost
from suite.micro.timing import Call, HostTimer

_COMMANDS = 12  # of a step, about as many as one has
_NUM_STEPS = 50  # a sample
_WIRE = Merge("copy", 1).to_wire()
_OUTPUT = Record(OUTPUT_READY, "output").to_wire()


def span_cost_ns(level: Level, num_samples: int = 31) -> SpanCost:
    """Measured now, off and on in turn, so that both meet the same machine."""
    return SpanCost(
        level,
        _difference(_host_phases, level, num_samples, _NUM_STEPS * _COMMANDS),
        _difference(_commands, level, num_samples, _NUM_STEPS * _COMMANDS),
        _reads(level, num_samples),
    )


def _difference(make: Callable[[Level], Call], level: Level, num_samples: int, spans: int) -> Estimate:
    """The median of paired differences a span, each pair one sample off and one on."""
    timer, off, on = HostTimer(), make("off"), make(level)
    for call in (off, on):
        call()
    return estimate(
        [(timer.time([on]).elapsed_ns - timer.time([off]).elapsed_ns) / spans for _ in range(num_samples)]
    )


def _host_phases(level: Level) -> Call:
    """Phases around nothing, a dozen a step."""

    def run() -> None:
        instrument = Instrument(level)
        for step_id in range(_NUM_STEPS):
            clock = instrument.clock(step_id)
            for _ in range(_COMMANDS):
                with clock.phase("retire"):
                    pass

    return run


class _NoProgram:
    """Executes nothing; what would watch it is there, as in a real one."""

    def __init__(self) -> None:
        self.watch = SyncWatch(())

    def execute(self, command: object, copies: object) -> None:
        pass

    def reset(self) -> None:
        pass


def _commands(level: Level) -> Call:
    """Steps of commands that do nothing, by the device's own runner of commands."""
    runner, _ = _runner(level)

    def run() -> None:
        for step_id in range(_NUM_STEPS):
            for _ in range(_COMMANDS):
                runner.run(step_id, _WIRE)
            runner.run(step_id, _OUTPUT)
        runner.reset(level)

    return run


def _reads(level: Level, num_samples: int) -> Estimate:
    if not records_device(level):
        return Estimate(0.0, 0.0, 0.0, num_samples, 0.0)
    runner, ring = _runner(level)
    for _ in range(_COMMANDS):
        runner.run(0, _WIRE)
    names = ("merge",) * _COMMANDS
    kept: list[Span] = []

    def run() -> None:
        kept.clear()
        for _ in range(_NUM_STEPS):
            kept.extend(ring.read(0, names))

    timer, spans = HostTimer(), _NUM_STEPS * _COMMANDS
    return estimate([timer.time([run]).elapsed_ns / spans for _ in range(num_samples)])


def _runner(level: Level) -> tuple[CommandRunner, SpanRing]:
    config = RunnerConfig()
    names: Sequence[str] = tuple(buffer_table(config, TINY_QWEN3))
    reports = ReportRing(names, np.zeros(ReportRing.shape(len(names)), np.int64))
    spans = SpanRing(names, np.zeros(SpanRing.shape(config), np.int64))
    program = cast(Program, cast(Any, _NoProgram()))
    runner = CommandRunner(program, reports, spans, lambda _event, _step_id: None)
    runner.reset(level)
    return runner, spans
