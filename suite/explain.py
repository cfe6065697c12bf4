"""What an arm does in a step of a scenario, read from its command lists: nothing is computed or timed.

The runner's host half serves the scenario's own requests over a device that keeps the commands it is given.
No torch: rows are zeros here, and every sampled token is the same one, which ends no request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from runner.commands import Command, Upload, buffer_table
from runner.core import Request, RequestState
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import Arm
from runner.measure import StepRecord
from suite.arms import choices_text, why_not
from suite.case_label import case_title
from suite.command_costs import CommandCost, step_costs
from suite.errors import SuiteError
from suite.replay import StepArrivals
from suite.sampling import lasting_token
from suite.scenario import Case
from suite.workload import Workload, WorkloadRequest, build_workload, materialise

_COLUMNS = ("command", "copies", "host->device B", "device B", "launches")


@dataclass(frozen=True, slots=True)
class ExplainedCommand:
    """A command in words, and what it costs."""

    text: str
    buffer: str | None  # of an upload
    cost: CommandCost


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """One step: what was scheduled, by which routes, and its commands in order."""

    step_id: int
    kind: str
    arrivals: str
    num_rows: int
    num_tokens: int
    num_supplied: int
    ids_route: str
    embeds_route: str
    commands: tuple[ExplainedCommand, ...]

    @property
    def total(self) -> CommandCost:
        """Sums over the commands; what is the model's own is left out."""
        costs = [command.cost for command in self.commands]
        return CommandCost(
            copies=sum(cost.copies for cost in costs),
            upload_bytes=sum(cost.upload_bytes for cost in costs),
            device_bytes=sum(cost.device_bytes or 0 for cost in costs),
            launches=sum(cost.launches or 0 for cost in costs),
        )

    @property
    def copies_by_buffer(self) -> Mapping[str, int]:
        return Counter(command.buffer for command in self.commands if command.buffer is not None)

    @property
    def bytes_by_buffer(self) -> Mapping[str, int]:
        total: Counter[str] = Counter()
        for command in self.commands:
            if command.buffer is not None:
                total[command.buffer] += command.cost.upload_bytes
        return total


@dataclass(frozen=True, slots=True)
class Explanation:
    """An arm on a case: `decode` is its fullest decode step on the usual route, `mixed` the step with prefill
    beside decodes that supplies most rows. One that never happens is None.
    """

    scenario: str
    case_label: str
    model: str
    arm: str
    choices: str
    scheduling: str
    reason: str
    is_right: bool
    decode: ExplainedStep | None
    mixed: ExplainedStep | None


def explain(case: Case, arm: Arm) -> Explanation:
    """SuiteError where the case cannot run the arm."""
    runs = [_run(case, arm, arrivals) for arrivals in _arrivals_of(case)]
    decision = runs[0][0].decision
    joint, staggered = runs[0][1], runs[-1][1]
    return Explanation(
        scenario=case.scenario.name,
        case_label=case.label,
        model=case.model_spec.name,
        arm=arm.name,
        choices=choices_text(arm),
        scheduling=decision.scheduling,
        reason=decision.reason,
        is_right=arm.is_right,
        decode=_decode_step(joint),
        mixed=_mixed_step([*joint, *staggered]),
    )


def explain_steps(case: Case, arm: Arm) -> tuple[ExplainedStep, ...]:
    """Every step of a run in which all requests are there at the start, or of a list that is the traffic."""
    return _run(case, arm, _arrivals_of(case)[0])[1]


def render(explanation: Explanation) -> str:
    """As text, for people."""
    verdict = "" if explanation.is_right else ", WRONG by design"
    case = case_title(explanation.scenario, explanation.case_label)
    lines = [
        f"{case} on {explanation.model}, arm {explanation.arm}: {explanation.choices}{verdict}",
        f"scheduling {explanation.scheduling}: {explanation.reason}",
    ]
    for kind, step in (("decode", explanation.decode), ("mixed", explanation.mixed)):
        lines += ["", *(_step_lines(step) if step else [f"no {kind} step in this scenario"])]
    return "\n".join(lines) + "\n"


def document(explanation: Explanation) -> dict[str, object]:
    """As plain values for JSON; null stands for what is the model's own."""
    found: dict[str, object] = asdict(explanation)
    for name, step in (("decode", explanation.decode), ("mixed", explanation.mixed)):
        if step is not None:
            found[name] = {**asdict(step), "total": asdict(step.total)}
    return found


class _AllAtOnce:
    text = "all requests at once"

    def __init__(self, requests: Sequence[WorkloadRequest]) -> None:
        self._left = [item.request for item in requests]

    def due(self) -> Sequence[Request]:
        due, self._left = self._left, []
        return due

    def wait(self) -> bool:
        return bool(self._left)


class _OneAStep(_AllAtOnce):
    text = "one request a step"

    def due(self) -> Sequence[Request]:
        return [self._left.pop(0)] if self._left else []


class _AsListed(StepArrivals):
    text = "as traffic.steps lists them"


_Arrivals = type[_AllAtOnce] | type[_AsListed]


def _arrivals_of(case: Case) -> tuple[_Arrivals, ...]:
    return (_AllAtOnce, _OneAStep) if case.scenario.traffic.steps is None else (_AsListed,)


def _run(case: Case, arm: Arm, arrivals: _Arrivals) -> tuple[Engine, tuple[ExplainedStep, ...]]:
    reason = why_not(arm, case.model_spec, case.scenario.traffic)
    if reason is not None:
        raise SuiteError(f"{case.scenario.path}: {reason}")
    config = replace(case.runner_config, host_work_us=0)
    kept: dict[int, tuple[Command, ...]] = {}
    device = NullDevice(
        case.model_spec,
        config,
        lambda step_id, commands: kept.update({step_id: tuple(commands)}),
        token_id=lasting_token(case.scenario.traffic.sampling, case.model_spec),
    )
    engine = Engine(case.model_spec, config, device, arm)
    workload = build_workload(case, case.scenario.seed)
    engine.run(arrivals(_requests(case, arm, workload)))
    _check_served(case, engine.requests)
    left_out = {index for index, step in enumerate(workload.steps) if step.is_lead_in}
    records = (record for record in engine.recorder.steps if record.step_id not in left_out)
    steps = (_explained(case, record, kept[record.step_id], arrivals) for record in records)
    return engine, tuple(steps)


def _requests(case: Case, arm: Arm, workload: Workload) -> Sequence[WorkloadRequest]:
    hidden = case.model_spec.hidden_size

    def embed(token_ids: Sequence[int]) -> NDArray[np.float32]:
        return np.zeros((len(token_ids), hidden), np.float32)

    return materialise(workload, embed) if arm.prompt_embeds else workload.requests


def _check_served(case: Case, states: Mapping[str, RequestState]) -> None:
    error = next((state.error for state in states.values() if state.error), None)
    if error is not None:
        raise SuiteError(f"{case.scenario.path}: {error}")


def _explained(
    case: Case, record: StepRecord, commands: Sequence[Command], arrivals: _Arrivals
) -> ExplainedStep:
    buffers = buffer_table(case.runner_config, case.model_spec)
    costs = step_costs(commands, case.model_spec, buffers)
    return ExplainedStep(
        step_id=record.step_id,
        kind=record.kind,
        arrivals=arrivals.text,
        num_rows=record.num_rows,
        num_tokens=record.num_tokens,
        num_supplied=record.num_supplied_rows,
        ids_route=record.ids_route,
        embeds_route=record.embeds_route,
        commands=tuple(
            ExplainedCommand(_text(command), command.buffer if isinstance(command, Upload) else None, cost)
            for command, cost in zip(commands, costs, strict=True)
        ),
    )


def _text(command: Command) -> str:
    """Its operation, its names, and how many positions, rows or elements it is about."""
    values = {item.name: getattr(command, item.name) for item in fields(command)}
    names = [value for value in values.values() if isinstance(value, str) and value]
    return " ".join([command.operation, *names, *([str(values["count"])] if "count" in values else [])])


def _decode_step(steps: Sequence[ExplainedStep]) -> ExplainedStep | None:
    decodes = [step for step in steps if step.kind == "decode"]
    if not decodes:
        return None
    (usual, _), *_ = Counter(step.ids_route for step in decodes).most_common(1)
    return max(
        decodes,
        key=lambda step: (step.ids_route == usual, step.embeds_route == "merge", step.num_rows),
    )


def _mixed_step(steps: Sequence[ExplainedStep]) -> ExplainedStep | None:
    mixed = [step for step in steps if step.kind == "mixed"]
    return max(mixed, key=lambda step: (step.num_supplied, step.num_rows), default=None)


def _step_lines(step: ExplainedStep) -> list[str]:
    head = (
        f"{step.kind} step {step.step_id} ({step.arrivals}): {step.num_rows} rows, {step.num_tokens} tokens, "
        f"{step.num_supplied} supplied; ids {step.ids_route}, embeddings {step.embeds_route}"
    )
    rows = [_COLUMNS, *(_cells(command.text, command.cost) for command in step.commands)]
    rows.append(_cells("total beside the model", step.total))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return [head, *(_aligned(row, widths) for row in rows)]


def _cells(text: str, cost: CommandCost) -> tuple[str, ...]:
    device = "model" if cost.device_bytes is None else f"{cost.device_bytes:,}"
    launches = "model" if cost.launches is None else str(cost.launches)
    return (text, str(cost.copies), f"{cost.upload_bytes:,}", device, launches)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    numbers = (f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
    return f"  {cells[0]:<{widths[0]}}  {'  '.join(numbers)}"
