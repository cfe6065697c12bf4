"""`suite run SCENARIO --baseline GITREF`: the same runs of two checkouts in turns, and what differs."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from suite.baseline import Baseline, checked_out, find_commit, own_root, used_keys
from suite.baseline_turns import SIDES, SideName, Turns, run_together
from suite.commands import is_doubted, kept_words
from suite.compare_folders import EXIT_BROKEN, CompareOptions, compare_folders
from suite.compare_result import RunComparison
from suite.compare_table import print_comparison
from suite.environment import Checkout, DeviceFacts, Environment, capture, source_digest
from suite.errors import SuiteError
from suite.experiment import EXIT_FINE, EXIT_WRONG, Experiment, Stop, exit_code
from suite.folder_lock import writing
from suite.kept_ceilings import of_cases, to_document
from suite.plan import Options, Plan, PlannedCase, PlannedRun, make_plan
from suite.progress import Shown, make_console, make_progress, make_progress_console, print_results
from suite.protocol import Progress
from suite.publish import Published, publish
from suite.record import RunRecord, Status
from suite.store import RunFolder, write_file
from suite.worker_process import WORKER_COMMAND

if TYPE_CHECKING:
    from suite.commands import Screen

PAGE = "comparison.html"


@dataclass(frozen=True, slots=True)
class _Side:
    """One side: where its runs are kept, and the worker that makes them."""

    name: SideName
    folder: RunFolder
    environment: Environment
    worker_command: Sequence[str]
    device_names: list[str] = field(default_factory=list)

    def keep(self, record: RunRecord) -> None:
        self.folder.append_run(record.model_copy(update={"side": self.name}))

    def keep_device(self, device: DeviceFacts) -> None:
        self.device_names.append(device.name)
        known = self.environment.model_copy(update={"device": device})
        self.folder.write_environment(known.model_dump(mode="json"))


class _SideShown:
    """Progress of one side; a case is announced once."""

    def __init__(self, shown: Shown, side: SideName) -> None:
        self._shown = shown
        self._side = side

    def case_started(self, planned: PlannedCase) -> None:
        if self._side == SIDES[0]:
            self._shown.case_started(planned)

    def run_started(self, planned: PlannedCase, run: PlannedRun) -> None:
        self._shown.run_started(planned, run)

    def run_progressed(self, run: PlannedRun, progress: Progress) -> None:
        self._shown.run_progressed(run, progress)

    def run_finished(self, planned: PlannedCase, record: RunRecord) -> None:
        self._shown.run_finished(planned, record.model_copy(update={"arm": f"{self._side}: {record.arm}"}))


def run_against(
    paths: Sequence[Path],
    options: Options,
    ref: str,
    compare: CompareOptions,
    output_dir: Path,
    label: str | None,
    is_dry_run: bool,
    screen: Screen,
    is_strict: bool = False,
) -> int:
    """Plan, run both sides, publish both folders, compare; 1 where a limit is broken or a run failed."""
    if options.until is not None:
        raise SuiteError("--until-precision does not go with --baseline: give the rounds with --rounds")
    if options.budget_s is not None:
        raise SuiteError("--budget does not go with --baseline: give the rounds with --rounds")
    plan = make_plan(paths, options)
    if is_dry_run:
        commit, own = find_commit(ref, own_root())
        screen.show(_dry_lines(plan, ref, commit, own), {**plan.document(), "baseline": commit})
        return EXIT_FINE
    with checked_out(ref, used_keys(plan.scenarios)) as baseline:
        if baseline.own.is_dirty:
            tell = make_progress_console(sys.stderr).print
            tell("note: files of this checkout are changed; what runs as head are the files as they are")
        return _run(plan, baseline, compare, output_dir, label, screen, is_strict)


def _run(
    plan: Plan,
    baseline: Baseline,
    compare: CompareOptions,
    output_dir: Path,
    label: str | None,
    screen: Screen,
    is_strict: bool,
) -> int:
    sides = _open_sides(plan, baseline, output_dir, label or plan.label)
    with ExitStack() as held:
        for side in sides:
            held.enter_context(writing(side.folder.path))
        return _run_sides(plan, sides, compare, screen, is_strict)


def _run_sides(
    plan: Plan, sides: tuple[_Side, _Side], compare: CompareOptions, screen: Screen, is_strict: bool
) -> int:
    stop = Stop(kept_words(sides[1].folder.path, "two sides in turns cannot be resumed: start them again"))
    with stop.on_interrupt():
        with make_progress(make_progress_console(sys.stderr), None) as shown:
            experiments = _experiments(plan, sides, shown, stop)
            run_together(list(experiments.values()), stop)
        _write_ceilings(plan, sides)
        published = {side.name: publish(side.folder.path, stop.is_requested) for side in sides}
    result = compare_folders([side.folder.path for side in sides], compare, is_one_machine=True)
    page = _write_page(result, sides[1].folder.path)
    _show(published["head"], published["baseline"], result, page, screen)
    code = _exit_code(experiments, result, stop)
    return EXIT_WRONG if code == EXIT_FINE and is_doubted(published["head"], is_strict) else code


def _experiments(
    plan: Plan, sides: Sequence[_Side], shown: Shown, stop: Stop
) -> Mapping[SideName, Experiment]:
    order = Turns(plan.cases, stop)
    return {
        side.name: Experiment(
            plan,
            side.folder.path,
            _SideShown(shown, side.name),
            stop,
            side.keep,
            side.keep_device,
            worker_command=side.worker_command,
            schedule=order.of(side.name),
        )
        for side in sides
    }


def _open_sides(plan: Plan, baseline: Baseline, output_dir: Path, label: str) -> tuple[_Side, _Side]:
    """The head's folder, and the baseline's inside it; each is a run folder of its own."""
    own = capture(sys.argv[1:])
    other = _of_baseline(own, baseline)
    head_folder = RunFolder.create(output_dir, label)
    folder = RunFolder.create(head_folder.path, "baseline")
    sides = (
        _Side("baseline", folder, other, baseline.worker_command),
        _Side("head", head_folder, own, WORKER_COMMAND),
    )
    together = uuid.uuid4().hex
    for side in sides:
        side.folder.write_config(_config(plan, baseline, side.name, together))
        side.folder.write_environment(side.environment.model_dump(mode="json"))
    return sides


def _of_baseline(own: Environment, baseline: Baseline) -> Environment:
    """The environment of the baseline's runs: ours, with its code."""
    code = {
        "checkout": Checkout(commit=baseline.commit, is_dirty=False),
        "source_digest": source_digest(baseline.root),
    }
    return own.model_copy(update=code)


def _config(plan: Plan, baseline: Baseline, side: SideName, together: str) -> Mapping[str, object]:
    """The plan, with what says that two folders took turns: both have the same id."""
    document = plan.document()
    invocation = document["invocation"]
    assert isinstance(invocation, dict)
    turns = {"id": together, "side": side, "ref": baseline.ref, "commit": baseline.commit}
    return {**document, "invocation": {**invocation, "interleaved": turns}}


def _write_ceilings(plan: Plan, sides: Sequence[_Side]) -> None:
    for side in sides:
        ceilings = of_cases(plan.cases, plan.device, next(iter(side.device_names), None))
        side.folder.write_ceilings(to_document(ceilings))


def _write_page(result: RunComparison, folder: Path) -> Path:
    from suite.report.compare_page import render

    return write_file(folder / PAGE, render(result).encode("utf-8", "backslashreplace"))


def _show(head: Published, baseline: Published, result: RunComparison, page: Path, screen: Screen) -> None:
    if screen.is_json:
        screen.document({**head.document(), "baseline": str(baseline.path), "comparison": result.document()})
        return
    console = make_console(sys.stdout)
    print_results(console, head)
    console.print()
    print_comparison(console, result)
    console.print(f"comparison: {page}")


def _exit_code(experiments: Mapping[SideName, Experiment], result: RunComparison, stop: Stop) -> int:
    """That of the head's runs; 1 as well where a run of the baseline failed, or a limit is broken."""
    code = exit_code(experiments["head"].records, stop.is_requested)
    if code != EXIT_FINE:
        return code
    if result.is_broken:
        return EXIT_BROKEN
    failed = any(record.status is Status.FAILED for record in experiments["baseline"].records)
    return EXIT_WRONG if failed else EXIT_FINE


def _dry_lines(plan: Plan, ref: str, commit: str, own: Checkout) -> list[str]:
    changed = ", with changed files" if own.is_dirty else ""
    lines = [
        f"{case.title}: arms {', '.join(case.arms)}, {case.runs_text}, each twice" for case in plan.cases
    ]
    lines.append(f"head: commit {str(own.commit)[:12]}{changed}; baseline: {ref}, commit {commit[:12]}")
    return [*lines, f"{len(plan.cases)} cases, {2 * plan.num_runs} runs on {plan.device}; nothing was run"]
