"""From paths and options to what will be run: every scenario checked and built before anything starts."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

from runner.compilers import missing_compiler
from runner.core import usable_cores
from runner.device.base import CUDA as CUDA
from runner.device.base import DEVICE_KINDS, cuda_is_usable
from runner.models import ImageAttention
from runner.repeats import NO_REPEATS, Turn
from runner.spans import Level
from runner.sync_check import SyncCheck
from suite.arms import named_arm, twice, why_not
from suite.arrival_kinds import process_of
from suite.case_design import primary_metrics
from suite.case_label import case_title
from suite.cost_time import num_plain_turns
from suite.errors import SuiteError
from suite.model_source import weight_bytes
from suite.precision import MAX_ROUNDS as MAX_ADAPTIVE_ROUNDS
from suite.precision import MIN_ROUNDS as MIN_ADAPTIVE_ROUNDS
from suite.precision import Precision
from suite.ratios import MIN_ROUNDS
from suite.scenario import Case, Scenario, expand, load_scenario, missing_requirements
from suite.schema import one_of
from suite.store import safe_name
from suite.token_case import MAX_REQUESTS
from suite.turns import shuffled_turns
from suite.workload import WorkloadRequest, build_workload
from suite.yaml_source import is_folder, path_errors

AUTO = "auto"
DEVICE_CHOICES = (AUTO, *DEVICE_KINDS)
SHUFFLE = re.compile(r"shuffle:[0-9]+")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
PATTERN = "*.yaml"
MAX_ROUNDS = 10_000
ORDERS_OF_A_BUDGET = 2
"""In how many orders a case's tokens are checked where there is little time; `suite check` tries all."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says over every scenario; None leaves it to the scenario.

    `arms_option` gave the arms, and is named where they are wrong.

    `until`: rounds go on until the intervals are narrow; with it `rounds` is the most there may be.

    `budget_s`: the time that all of it may take, in order of purpose (suite/budget.py); not with `until`,
    which has its own.

    `instrument`: of one more run of every arm, whose times enter no verdict; with "off" there is none.
    `sync_check`: likewise of yet another, which looks for silent waits.
    `is_traced`: torch's profiler records that run as well. `has_window`: a range is open while its batch is
    steady.
    """

    device: str = AUTO
    arms: tuple[str, ...] | None = None
    rounds: int | None = None
    overrides: tuple[str, ...] = ()
    seed: int | None = None
    instrument: Level = "off"
    sync_check: SyncCheck = "off"
    is_traced: bool = False
    has_window: bool = False
    until: Precision | None = None
    budget_s: float | None = None
    arms_option: str = "--arms"

    def document(self, device: str) -> dict[str, object]:
        """For config.yaml; `device` is the kind that was chosen."""
        return {
            "device": device,
            "arms": list(self.arms) if self.arms else None,
            "rounds": self.rounds,
            "seed": self.seed,
            "instrument": self.instrument,
            "sync_check": self.sync_check,
            "torch_trace": self.is_traced,
            "window": self.has_window,
            "until_precision_percent": self.until.percent if self.until else None,
            "budget_s": self.until.budget_s if self.until else self.budget_s,
            "set": list(self.overrides),
        }


class Purpose(StrEnum):
    """What the runs of a case are for, in the order in which a budget is spent."""

    TOKENS = "tokens"
    ATTRIBUTION = "attribution"
    WORKLOAD = "workload"


@dataclass(frozen=True, slots=True)
class PlannedRun:
    run_id: str
    arm: str
    round: int
    is_warmup: bool
    rotation: int | None = None
    instrument: Level = "off"
    sync_check: SyncCheck = "off"
    is_traced: bool = False
    has_window: bool = False
    repeats: Mapping[str, int] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    is_aa: bool = False

    @property
    def is_of_round(self) -> bool:
        """Whether it belongs to a measured round, A/A runs included."""
        is_plain = self.instrument == "off" and self.sync_check == "off" and not self.repeats
        return is_plain and not self.is_warmup and self.rotation is None


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case whose workload was built once and found runnable.

    With `num_rotations` it is a token check: every arm runs once in each rotation of the token case.
    `amplify`: span -> how often its commands are run, in rounds of their own after all others.
    `reference` is the arm that others are compared with; with `has_aa` it runs twice in each measured round.
    With `until` there may be fewer than `rounds` (suite/pace.py).
    `is_billed`: all rounds are of repeats, and its budget may end them before `rounds` (suite/cost.py).
    `is_budgeted`: the time for all cases may end before its rounds do (suite/budget.py).
    `num_positions`: that its requests may come to, prompts and outputs.
    `weight_bytes`: of its model, in float32.
    """

    case: Case
    arms: tuple[str, ...]
    rounds: int
    warmup_rounds: int
    workload_hash: str
    num_requests: int
    notes: tuple[str, ...]
    num_rotations: int = 0
    instrument: Level = "off"
    sync_check: SyncCheck = "off"
    is_traced: bool = False
    has_window: bool = False
    amplify: Mapping[str, Sequence[int]] = field(default_factory=dict)
    reference: str | None = None
    has_aa: bool = False
    until: Precision | None = None
    is_billed: bool = False
    is_budgeted: bool = False
    num_positions: int = 0
    weight_bytes: int = 0
    image_attention: ImageAttention | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.case.scenario.name, self.case.case_id

    @property
    def purpose(self) -> Purpose:
        if self.num_rotations:
            return Purpose.TOKENS
        return Purpose.WORKLOAD if self.case.scenario.traffic.steps is None else Purpose.ATTRIBUTION

    @property
    def is_open_ended(self) -> bool:
        """Whether there may be fewer runs of it than are planned."""
        return self.until is not None or self.is_budgeted

    @property
    def rounds_text(self) -> str:
        return f"up to {self.rounds}" if self.is_open_ended else str(self.rounds)

    @property
    def runs_text(self) -> str:
        """What is run of each arm: "1 warm-up and 5 measured rounds"."""
        if self.num_rotations:
            orders = "1 order" if self.num_rotations == 1 else f"{self.num_rotations} orders"
            return f"{min(MAX_REQUESTS, self.num_requests)} of the requests in {orders}"
        if self.is_billed:
            return f"rounds of repeats until the budget ends, {self.rounds} at most"
        return f"{self.warmup_rounds} warm-up and {self.rounds_text} measured rounds"

    @property
    def is_isolated(self) -> bool:
        """Whether every run gets a worker of its own."""
        return self.case.scenario.isolation == "process"

    @property
    def seed(self) -> int:
        return self.case.scenario.seed

    @property
    def timeout_s(self) -> float:
        return self.case.scenario.timeout_s

    @property
    def primary_metrics(self) -> tuple[str, ...]:
        """What decides between two arms: of the process that stands for a trace's times, where it has one."""
        return primary_metrics(process_of(self.case.scenario.traffic.arrivals).kind)

    @property
    def title(self) -> str:
        return case_title(self.case.scenario.name, self.case.label)

    def runs(self) -> list[PlannedRun]:
        """Warm-up rounds, those that count, one with instruments, one that looks for silent waits.

        Each runs every arm, in a seeded order. Then those with repeats.

        Of a token check: the rotations of one arm after the other.
        """
        if self.num_rotations:
            return [self._rotation(arm, by) for arm in self.arms for by in range(self.num_rotations)]
        warmups = [self._round("w", number) for number in range(self.warmup_rounds)]
        rounds = [self._round("r", number) for number in range(self.rounds)]
        instrumented = [] if self.instrument == "off" else [self._round("i", 0)]
        checked = [] if self.sync_check == "off" else [self._round("s", 0)]
        plain = [run for one_round in (*warmups, *rounds, *instrumented, *checked) for run in one_round]
        return [*plain, *self._amplified()] if self.amplify else plain

    def _amplified(self) -> list[PlannedRun]:
        """Of each arm a run to be replayed and one with instruments; then rounds, each of them shuffled."""
        first = [run for arm in self.arms for run in self.first_amplified(arm, tuple(self.amplify))]
        num_rounds = max(self.rounds if self.until is None else 0, MIN_ROUNDS)
        rounds = [self.amplified_round(number, self.arms, self.amplify) for number in range(num_rounds)]
        return [*first, *(run for one_round in rounds for run in one_round)]

    def first_amplified(self, arm: str, spans: Sequence[str]) -> list[PlannedRun]:
        """The run that those with repeats replay, and its replay with device spans; all is run once yet."""
        once = dict.fromkeys(spans, 1)
        name = f"{self._stem}-{safe_name(arm)}"
        return [
            PlannedRun(f"{name}-aw0", arm, 0, is_warmup=True, repeats=once),
            PlannedRun(f"{name}-ai0", arm, 0, is_warmup=False, instrument="events", repeats=once),
        ]

    def amplified_round(
        self, number: int, arms: Sequence[str], amplify: Mapping[str, Sequence[int]]
    ) -> list[PlannedRun]:
        """Of each arm as many runs as there are turns: in each step every turn comes up (suite/turns.py).

        The runs of all arms are shuffled.
        """
        more = [(span, k) for span, ks in amplify.items() for k in ks if k > 1]
        turns = [*[NO_REPEATS] * num_plain_turns(len(more)), *more]  # all are compared with those
        repeats = {span: max(ks) for span, ks in amplify.items()}
        draw = random.Random(f"{self.seed}:{self.case.case_id}:a{number}")
        runs = [
            PlannedRun(
                f"{self._stem}-{safe_name(arm)}-a{number}-{index}",
                arm,
                number,
                is_warmup=False,
                repeats=repeats,
                turns=of_run,
            )
            for arm in arms
            for index, of_run in enumerate(shuffled_turns(turns, draw))
        ]
        draw.shuffle(runs)
        return runs

    def _round(self, letter: Literal["w", "r", "i", "s"], number: int) -> list[PlannedRun]:
        instrument: Level = self.instrument if letter == "i" else "off"
        sync_check: SyncCheck = self.sync_check if letter == "s" else "off"
        order = [(arm, False) for arm in self.arms]
        if self.has_aa and self.reference is not None and letter == "r":
            order.append((self.reference, True))
        random.Random(f"{self.seed}:{self.case.case_id}:{letter}{number}").shuffle(order)
        return [
            PlannedRun(
                f"{self._stem}-{safe_name(arm)}-{'aa' if is_aa else letter}{number}",
                arm,
                number,
                is_warmup=letter == "w",
                instrument=instrument,
                sync_check=sync_check,
                is_traced=self.is_traced and instrument != "off",
                has_window=self.has_window and instrument != "off",
                is_aa=is_aa,
            )
            for arm, is_aa in order
        ]

    def _rotation(self, arm: str, by: int) -> PlannedRun:
        return PlannedRun(f"{self._stem}-{safe_name(arm)}-k{by}", arm, by, False, by)

    @property
    def _stem(self) -> str:
        return f"{safe_name(self.case.scenario.name)}-{self.case.case_id[:8]}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`skipped` names scenarios this machine cannot run, and why."""

    options: Options
    device: str
    scenarios: tuple[Scenario, ...]
    cases: tuple[PlannedCase, ...]
    skipped: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """A name for the run's folder: the scenario's, where there is one only."""
        return self.scenarios[0].name if len(self.scenarios) == 1 else "run"

    @property
    def num_runs(self) -> int:
        return sum(len(case.runs()) for case in self.cases)

    @property
    def num_cases(self) -> int:
        return len({case.key for case in self.cases})

    def document(self) -> dict[str, object]:
        """What config.yaml holds: the scenarios with every default and option put in."""
        is_open = any(case.until is not None or case.is_billed for case in self.cases)
        return {
            "schema_version": 1,
            "num_runs": None if is_open else self.num_runs,
            "invocation": {
                "command": "cost" if any(case.is_billed for case in self.cases) else "run",
                **self.options.document(self.device),
            },
            "scenarios": [resolved(scenario, self.options) for scenario in self.scenarios],
            "cases": [
                {
                    "scenario": planned.case.scenario.name,
                    "case_id": planned.case.case_id,
                    "label": planned.case.label,
                    "values": dict(planned.case.values),
                    "arms": list(planned.arms),
                    "reference": planned.reference,
                    "primary_metrics": list(planned.primary_metrics),
                    "has_aa": planned.has_aa,
                    "rounds": planned.rounds,
                    "warmup_rounds": planned.warmup_rounds,
                    "workload_hash": planned.workload_hash,
                    "num_requests": planned.num_requests,
                    "notes": list(planned.notes),
                }
                for planned in self.cases
                if planned.purpose is not Purpose.TOKENS
            ],
            "skipped": [{"scenario": name, "reason": reason} for name, reason in self.skipped],
        }


def make_plan(paths: Sequence[Path], options: Options) -> Plan:
    """Load, expand and build all of it. SuiteError or RunnerError at the first mistake of the user's."""
    choose_device(options.device)
    _check_arms(options.arms, options.arms_option)
    _check_rounds(options)
    return plan_scenarios(load_scenarios(paths, options), options)


def plan_scenarios(scenarios: Sequence[Scenario], options: Options) -> Plan:
    """Expand and build scenarios that were loaded with these options."""
    device = choose_device(options.device)
    skipped: list[tuple[str, str]] = []
    cases: list[PlannedCase] = []
    for scenario in scenarios:
        planned = [_plan_case(case, options) for case in expand(scenario)]
        reason = missing_requirements(scenario, device)
        if reason is None:
            _check_attention(planned, device)
            _check_compiler(planned, device)
            cases += planned
        else:
            skipped.append((scenario.name, reason))
    ordered = cases if options.budget_s is None else by_purpose(cases)
    return Plan(options, device, tuple(scenarios), tuple(ordered), tuple(skipped))


def by_purpose(cases: Sequence[PlannedCase]) -> list[PlannedCase]:
    """First a short check of every case's tokens, then the cases that attribute costs, then the workloads."""
    order = list(Purpose)
    ordered = sorted(cases, key=lambda case: order.index(case.purpose))
    planned = [*(_token_check(case, ORDERS_OF_A_BUDGET) for case in ordered), *ordered]
    return [replace(case, is_budgeted=True) for case in planned]


def _check_attention(planned: Sequence[PlannedCase], device: str) -> None:
    """Refuse kernels of a GPU where there is none; whether a GPU can run them it says itself."""
    if device == CUDA or os.environ.get("TRITON_INTERPRET") == "1":
        return
    for one in planned:
        wanted = one.case.runner_config.attention
        if wanted in ("varlen", "triton"):
            raise SuiteError(
                f"{one.case.scenario.path}: runner.attention is {wanted!r}, which runs on a GPU, and this "
                f"run uses the device {device}: use auto or sdpa"
            )


def _check_compiler(planned: Sequence[PlannedCase], device: str) -> None:
    """Refuse torch.compile before anything is measured, where it has no compiler to call."""
    for one in planned:
        if one.case.runner_config.torch_compile and (lack := missing_compiler(device)) is not None:
            raise SuiteError(f"{one.case.scenario.path}: runner.torch_compile is true, but {lack}")


def for_check(plan: Plan) -> Plan:
    """The plan with every arm run once in each rotation of a token case, for some orders hide a bug."""
    return replace(plan, cases=tuple(_token_check(case, MAX_REQUESTS) for case in plan.cases))


def _token_check(case: PlannedCase, num_orders: int) -> PlannedCase:
    return replace(
        case,
        rounds=1,
        warmup_rounds=0,
        num_rotations=min(num_orders, MAX_REQUESTS, case.num_requests),
        instrument="off",
        sync_check="off",
        amplify={},
        has_aa=False,
        until=None,
    )


def for_bill(plan: Plan) -> Plan:
    """The plan with rounds of repeats alone: what they repeat depends on what is measured (suite/cost.py)."""
    cases = tuple(
        replace(case, warmup_rounds=0, amplify={}, has_aa=False, is_billed=True) for case in plan.cases
    )
    return replace(plan, cases=cases)


def choose_device(name: str) -> str:
    """The kind of device to open; SuiteError where it cannot be had."""
    if name == AUTO:
        return CUDA if _has_cuda() else "process"
    if name not in DEVICE_CHOICES and not SHUFFLE.fullmatch(name):
        raise SuiteError(f"--device {name}: {one_of(name, DEVICE_CHOICES)}")
    if name == "shuffle:SEED":
        raise SuiteError(f"--device {name}: put a number in the place of SEED, such as shuffle:1")
    if name == CUDA and not _has_cuda():
        raise SuiteError(
            f"--device {name}: no CUDA device can be used here (no driver, or a torch without CUDA); "
            "use --device process"
        )
    return name


def timed_device(name: str) -> str:
    """The kind of device to time things on; SuiteError for those that are never for timing."""
    kind = choose_device(name)
    if kind == "lazy" or SHUFFLE.fullmatch(kind):
        raise SuiteError(f"--device {name}: it is never for timing; use auto, process, inline or cuda")
    return kind


def checked_threads(number: int) -> int:
    """SuiteError for a number of compute threads that this machine cannot run."""
    most = usable_cores()
    if not 1 <= number <= most:
        raise SuiteError(f"--threads {number}: it must be from 1 to {most}, the cores this process may use")
    return number


def _has_cuda() -> bool:
    """Whether torch can use a GPU; it is only asked, and imported, where there is a driver."""
    return NVIDIA_DRIVER.exists() and cuda_is_usable()


def load_scenarios(paths: Sequence[Path], options: Options) -> list[Scenario]:
    """The scenarios of files and of the files directly in directories, each file once, in order."""
    scenarios: dict[str, Scenario] = {}
    for file in find_files(paths):
        scenario = load_scenario(file, options.overrides, options.seed)
        other = scenarios.setdefault(scenario.name, scenario)
        if other is not scenario:
            raise SuiteError(
                f"{file}: name is {scenario.name!r}, as in {other.path}; give each scenario of one "
                "command a name of its own"
            )
    return list(scenarios.values())


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Files as given, and the *.yaml directly in directories: those of subfolders are named alone."""
    files = [file for path in paths for file in (_files_in(path) if is_folder(path) else [path])]
    return list({_resolved_path(file): file for file in files}.values())


def _resolved_path(file: Path) -> Path:
    with path_errors(file):
        return file.resolve()


def _files_in(directory: Path) -> Iterable[Path]:
    with path_errors(directory):
        files = sorted(directory.glob(PATTERN))
    if not files:
        raise SuiteError(
            f"{directory}: no {PATTERN} file in this directory (subfolders are not searched); name "
            "a scenario file or another directory"
        )
    return files


def _check_arms(arms: tuple[str, ...] | None, option: str) -> None:
    if arms is None:
        return
    for name in arms:
        try:
            named_arm(name)
        except SuiteError as error:
            raise SuiteError(f"{option} {','.join(arms)}: {error}") from None
    if (reason := twice(arms)) is not None:
        raise SuiteError(f"{option} {','.join(arms)}: {reason}")


def _check_rounds(options: Options) -> None:
    rounds = options.rounds
    if rounds is not None and options.until is not None and rounds < MIN_ADAPTIVE_ROUNDS:
        raise SuiteError(
            f"--rounds {rounds}: with --until-precision it is the most rounds there may be, at least "
            f"{MIN_ADAPTIVE_ROUNDS}"
        )
    if rounds is not None and not 1 <= rounds <= MAX_ROUNDS:
        raise SuiteError(f"--rounds {rounds}: it must be a whole number from 1 to {MAX_ROUNDS}")


def _plan_case(case: Case, options: Options) -> PlannedCase:
    workload = build_workload(case, case.scenario.seed)
    arms = options.arms or case.scenario.arms
    for name in arms:
        reason = why_not(named_arm(name), case.model_spec, case.scenario.traffic)
        if reason is not None:
            raise SuiteError(f"{case.scenario.path}: arms: {reason}")
    reference = _reference(case.scenario, arms)
    until = options.until if _num_compared(arms, reference) else None
    rounds = options.rounds or (case.scenario.rounds if until is None else MAX_ADAPTIVE_ROUNDS)
    return PlannedCase(
        case=case,
        arms=arms,
        rounds=rounds,
        warmup_rounds=case.scenario.warmup_rounds,
        workload_hash=workload.hash,
        num_requests=len(workload.requests),
        notes=(*workload.notes, *case.notes),
        num_positions=sum(map(_num_positions, workload.requests)),
        weight_bytes=weight_bytes(case.model_spec, "float32"),
        image_attention=case.image_attention,
        instrument=options.instrument,
        sync_check=options.sync_check,
        is_traced=options.is_traced,
        has_window=options.has_window,
        amplify=case.scenario.amplify,
        reference=reference,
        has_aa=_has_aa(case.scenario, arms, reference, rounds),
        until=until,
    )


def _num_positions(item: WorkloadRequest) -> int:
    return len(item.request.prompt) + item.request.sampling.max_tokens


def _reference(scenario: Scenario, arms: Sequence[str]) -> str | None:
    """The scenario's `baseline`; else the first right arm that is sync, else the first right one.

    One that takes embeddings goes before one that is given ids in their place, which is a ceiling. A single
    arm is compared with none, so it need not be the baseline.
    """
    if scenario.baseline is not None and (len(arms) > 1 or scenario.baseline in arms):
        if scenario.baseline not in arms:
            raise SuiteError(
                f"--arms {','.join(arms)}: the scenario's baseline is {scenario.baseline}; name it too, or "
                "put another in its place with --set baseline=ARM"
            )
        return scenario.baseline
    right = [name for name in arms if named_arm(name).is_right]
    sync = [name for name in right if named_arm(name).scheduling == "sync"]
    with_embeds = [name for name in sync if named_arm(name).prompt_embeds]
    return next(iter((*with_embeds, *sync, *right)), None)


def _has_aa(scenario: Scenario, arms: Sequence[str], reference: str | None, rounds: int) -> bool:
    """Whether A/A runs are made: as the scenario says, else wherever a verdict may come of them."""
    if reference is None or scenario.aa is not None:
        return reference is not None and bool(scenario.aa)
    return _num_compared(arms, reference) > 0 and rounds >= MIN_ROUNDS


def _num_compared(arms: Sequence[str], reference: str | None) -> int:
    """How many arms get a verdict."""
    return sum(named_arm(name).is_right for name in arms if name != reference)


def resolved(scenario: Scenario, options: Options) -> dict[str, object]:
    """A scenario as config.yaml holds it: with every default, and what the options say in its place."""
    document = scenario.model_dump(mode="json")
    if options.arms:
        document["arms"] = list(options.arms)
    if options.rounds:
        document["rounds"] = options.rounds
    return document
