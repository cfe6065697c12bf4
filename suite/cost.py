"""The runs of `suite cost`: one arm's steps again and again, each span repeated as often as shows its cost.

Decides what is run next from what was measured; runs nothing itself, and prints nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.measure import StepRecord
from runner.spans import Span
from suite.amplification import KINDS, CommandTimes, command_times, largest_k
from suite.arms import named_arm, why_not
from suite.bill import arm_bills, documents, text_lines
from suite.checks import check_runs
from suite.cost_time import MAX_ROUNDS
from suite.errors import SuiteError
from suite.model_source import spec_of
from suite.plan import Options, Plan, PlannedCase, PlannedRun, for_bill, make_plan, timed_device
from suite.ratios import MIN_ROUNDS
from suite.record import RunRecord, Status
from suite.repeatable import MAX_REPEATS, repeatable_spans
from suite.scenario import Scenario, load_scenario
from suite.schema import one_of
from suite.slopes import step_times_us
from suite.store import load_run
from suite.yaml_source import show

DEFAULT_ARM = "refresh"
COST_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class CostLimits:
    """`budget_s`: for each case, opening the device included. `only`: these spans; None for all there are."""

    budget_s: float
    only: tuple[str, ...] | None = None

    @staticmethod
    def of(budget_s: float, only: str | None) -> CostLimits:
        """As the command line has them. SuiteError names the option, the value and the fix."""
        if not (math.isfinite(budget_s) and budget_s > 0):
            raise SuiteError(f"--budget-s {budget_s:g}: it must be a number of seconds above 0")
        if only is None:
            return CostLimits(budget_s)
        names = tuple(dict.fromkeys(name.strip() for name in only.split(",")))
        for name in names:
            if name not in repeatable_spans():
                raise SuiteError(
                    f"--only {only}: {show(name)} is no span whose commands may be repeated; "
                    f"{one_of(name, repeatable_spans())}"
                )
        return CostLimits(budget_s, names)


def cost_plan(path: Path, options: Options) -> Plan:
    """One arm: the one of the options, else `refresh` where it fits, else the scenario's first right one.

    SuiteError as for a run, and where the options name more than one or a device that is never for timing.
    """
    if options.arms is not None and len(options.arms) != 1:
        raise SuiteError(
            f"--arm {','.join(options.arms)}: the bill is of one arm at a time; name one, such as "
            f"--arm {options.arms[0] if options.arms else DEFAULT_ARM}"
        )
    scenario = load_scenario(path, options.overrides, options.seed)
    arms = options.arms or (_default_arm(scenario),)
    rounds = MAX_ROUNDS if options.rounds is None else options.rounds
    device = timed_device(options.device)
    options = replace(options, device=device, arms=arms, rounds=rounds, instrument="off", arms_option="--arm")
    return for_bill(make_plan([path], options))


def _default_arm(scenario: Scenario) -> str:
    if why_not(named_arm(DEFAULT_ARM), spec_of(scenario.model), scenario.traffic) is None:
        return DEFAULT_ARM
    return next((name for name in scenario.arms if named_arm(name).is_right), scenario.arms[0])


class CostSchedule:
    """The runs of each case, one at a time: those before are in the run folder when the next is asked for.

    A first run is recorded and its tokens are checked; its replay with device spans tells what commands there
    are and how long they take, and so how often each must be repeated; then rounds until the budget ends.
    `notes` say what was cut.
    """

    def __init__(self, limits: CostLimits, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.notes: list[str] = []
        self._limits = limits
        self._folder = folder
        self._last: RunRecord | None = None
        self._clock = clock

    def runs(self, planned: PlannedCase) -> Iterator[PlannedRun]:
        deadline_s = self._clock() + self._limits.budget_s
        (arm,) = planned.arms
        for run in planned.first_amplified(arm, self._limits.only or repeatable_spans()):
            yield run
            if not self._has_completed(run):
                return
        repeats = self._repeats(run)
        if repeats:
            yield from self._rounds(planned, arm, repeats, deadline_s)

    def _rounds(
        self, planned: PlannedCase, arm: str, repeats: Mapping[str, int], deadline_s: float
    ) -> Iterator[PlannedRun]:
        amplify = {span: (1, k) for span, k in repeats.items()}
        longest_s = 0.0
        for number in range(planned.rounds):
            begin_s = self._clock()
            if number and begin_s + longest_s > deadline_s:
                return self._cut(planned, number)
            for run in planned.amplified_round(number, (arm,), amplify):
                if self._clock() > deadline_s:
                    return self._cut(planned, number)
                yield run
                if not self._has_completed(run):
                    return None
            longest_s = max(longest_s, self._clock() - begin_s)
        return None

    def _cut(self, planned: PlannedCase, num_rounds: int) -> None:
        fix = "" if num_rounds >= MIN_ROUNDS else "; raise --budget-s, or name fewer spans by --only"
        self.notes.append(
            f"{planned.title}: the budget of {self._limits.budget_s:g} s ended after {num_rounds} of "
            f"{planned.rounds} rounds{fix}"
        )

    def keep(self, record: RunRecord) -> None:
        """To be told of every run: the next one depends on it."""
        self._last = record

    def _has_completed(self, run: PlannedRun) -> bool:
        last = self._last
        return last is not None and last.run_id == run.run_id and last.status is Status.COMPLETED

    def _repeats(self, run: PlannedRun) -> Mapping[str, int]:
        """Span -> k, for those of which the instrumented run has commands."""
        loaded = load_run(self._folder)
        steps, spans = loaded.step_records(run.run_id), loaded.spans(run.run_id)
        record = next(one for one in loaded.runs if one.run_id == run.run_id)
        found = {name: repeats_of(steps, spans, name, record.is_lead_in) for name in run.repeats}
        return {name: k for name, k in found.items() if k is not None}


def repeats_of(
    steps: Sequence[StepRecord],
    spans: Sequence[Span],
    name: str,
    is_left_out: Callable[[int], bool] = lambda _: False,
) -> int | None:
    """How often to run a span's commands: a tenth of the step, of the kind where they weigh most.

    None where no step but the first has any. `is_left_out` of a step id: a lead-in step is not looked at.
    """
    found, times_us = [], step_times_us(steps)
    counted = [step for step in steps[1:] if not is_left_out(step.step_id)]
    for kind in KINDS:
        times = command_times(counted, spans, name, kind)
        walls = [times_us[step.step_id] for step in counted if step.kind == kind]
        if walls and times.per_step > 0:
            step_us = sorted(walls)[len(walls) // 2]
            found.append(largest_k(_command_us(times), times.per_step, step_us, MAX_REPEATS))
    return min(found, default=None)


def _command_us(times: CommandTimes) -> float:
    """Of the device and of the host that queues it, whichever takes longer."""
    return max(times.device_us or 0.0, times.enqueue_us or 0.0)


@dataclass(frozen=True, slots=True)
class CostResult:
    """The bills of all cases, for people and for JSON. `has_costs`: whether any command's cost is in them."""

    lines: tuple[str, ...]
    document: Mapping[str, object]
    has_costs: bool


def cost_document(
    folder: Path,
    notes: Sequence[str],
    skipped: Sequence[tuple[str, str]],
    is_interrupted: bool,
) -> CostResult:
    """What the runs of a folder come to, however many there are."""
    loaded = load_run(folder)
    findings = check_runs(loaded.runs, loaded.request_records, loaded.step_records, loaded.spans)
    bills = arm_bills(loaded.whole_runs, loaded.step_records, loaded.spans, findings)
    failures = [
        f"{run.run_id} {run.status.value}: {run.failure.message}" for run in loaded.runs if run.failure
    ]
    lines = [line for bill in bills for line in (*text_lines(bill), "")]
    lines += [f"note: {note}" for note in notes]
    lines += [f"skipped {name}: {reason}" for name, reason in skipped]
    lines += failures
    if is_interrupted:
        lines.append("interrupted: these are partial results")
    return CostResult(
        tuple(lines),
        {
            "schema_version": COST_SCHEMA_VERSION,
            "status": "interrupted" if is_interrupted else "completed",
            "bills": documents(bills),
            "notes": list(notes),
            "failures": failures,
            "skipped": [{"scenario": name, "reason": reason} for name, reason in skipped],
        },
        has_costs=any(line.cost is not None for bill in bills for line in bill.lines),
    )
