"""What each command does, in the order it does it. Returns the exit code; prints through a Screen."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from runner.core import FloatType, RunnerError
from runner.device.base import DEVICE_KINDS
from runner.models import ALL_MODELS, get_model
from suite.arms import arm_lines, named_arm
from suite.case_label import case_title
from suite.checks import RULES, has_wrong_accounts
from suite.cost import CostLimits, CostSchedule, cost_document, cost_plan
from suite.environment import DeviceFacts, capture
from suite.errors import SuiteError
from suite.experiment import EXIT_FINE, EXIT_INTERRUPTED, EXIT_WRONG, Experiment, Stop, exit_code
from suite.folder_lock import claiming, writing
from suite.kept_ceilings import of_cases, to_document
from suite.metrics import DEFINITIONS
from suite.plan import (
    Options,
    Plan,
    checked_threads,
    find_files,
    for_check,
    load_scenarios,
    make_plan,
    timed_device,
)
from suite.progress import (
    logprobs_text,
    make_console,
    make_progress,
    make_progress_console,
    print_results,
    tokens_text,
)
from suite.publish import Published, publish, publish_so_far
from suite.record import RunRecord
from suite.resume import Given, begin_again, reopen
from suite.scenario import expand as expand_cases
from suite.scenario import load_scenario
from suite.standard_output import takes_all
from suite.store import RunFolder, check_is_run, write_file
from suite.summary import ArmSummary, summarise

EXIT_USAGE = 2
KINDS = ("scenarios", "models", "arms", "devices", "metrics", "rules")


@dataclass(frozen=True, slots=True)
class Screen:
    """Results go to standard output, as text or as one JSON document; progress to standard error."""

    is_json: bool

    def show(self, lines: Iterable[str], document: object) -> None:
        if self.is_json:
            self.document(document)
            return
        console = make_console(sys.stdout)
        for line in lines:
            console.print(line)

    def document(self, document: object) -> None:
        text = json.dumps(document, ensure_ascii=not takes_all(sys.stdout), allow_nan=False, indent=2)
        print(text, file=sys.stdout, flush=True)


def run(
    paths: Sequence[Path],
    options: Options,
    output_dir: Path,
    label: str | None,
    is_dry_run: bool,
    screen: Screen,
    is_strict: bool = False,
) -> int:
    """Plan, run every case, write the summary and the page, print the table.

    `is_strict`: a run that is INVALID for timing fails the command; wrong accounts always do.
    """
    plan = make_plan(paths, options)
    if is_dry_run:
        screen.show(_plan_lines(plan), plan.document())
        return EXIT_FINE
    folder, keep_device = _open_folder(plan, output_dir, label or plan.label)
    with writing(folder.path):
        return _run_plan(plan, folder, keep_device, (), screen, is_strict)


def resume(run_dir: Path, given: Given, screen: Screen, is_strict: bool = False) -> int:
    """Finish an experiment that was interrupted or killed, in its own folder."""
    check_is_run(run_dir)
    with writing(run_dir):
        resumed = reopen(run_dir, given, capture(sys.argv[1:]))
        console = make_progress_console(sys.stderr)
        for note in resumed.notes:
            console.print(f"warning: {note}")
        if resumed.is_finished:
            console.print(f"{run_dir} is finished: all of its {len(resumed.kept)} runs were made")
            published = publish(run_dir)
            _show_results(published, screen)
            return _code(resumed.kept, published, is_strict)
        begin_again(resumed)
        console.print(f"resuming {run_dir}: {len(resumed.kept)} runs are kept")
        kept = resumed.kept
        return _run_plan(resumed.plan, resumed.folder, resumed.check_device, kept, screen, is_strict)


def _run_plan(
    plan: Plan,
    folder: RunFolder,
    take_device: Callable[[DeviceFacts], None],
    done: Sequence[RunRecord],
    screen: Screen,
    is_strict: bool = False,
) -> int:
    """Make the runs of a plan that are not done yet, write the summary and the page, print the table."""
    names: list[str] = []

    def on_device(device: DeviceFacts) -> None:
        names.append(device.name)
        take_device(device)

    command = f"python -m suite run --resume {quote(str(folder.path))}"
    stop = Stop(kept_words(folder.path, f"finish it with: {command}"))
    with stop.on_interrupt():
        with make_progress(make_progress_console(sys.stderr), plan, len(done)) as progress:
            experiment = Experiment(
                plan, folder.path, progress, stop, folder.append_run, on_device, done=done
            )
            records = experiment.run()
        name = names[0] if names else None
        folder.write_ceilings(to_document(of_cases(plan.cases, plan.device, name)))
        for text in experiment.stopped:
            make_progress_console(sys.stderr).print(text)
        published = publish(folder.path, stop.is_requested)
    try:
        _show_results(published, screen)
    except OSError as error:  # what was measured lies in the folder, whoever reads the table
        warning = f"standard output cannot be written: {error.strerror}; see {published.report}"
        make_progress_console(sys.stderr).print(warning)
    return _code(records, published, is_strict)


def kept_words(folder: Path, next_step: str) -> str:
    """What a second interrupt ends with."""
    return f"stopped at once: what was measured is kept in {folder}; {next_step}"


def _code(records: Sequence[RunRecord], published: Published, is_strict: bool) -> int:
    code = exit_code(records, published.is_interrupted)
    return EXIT_WRONG if code == EXIT_FINE and is_doubted(published, is_strict) else code


def is_doubted(published: Published, is_strict: bool) -> bool:
    """Whether validity fails the command: a figure is not what it says, or asked for, a time is in doubt."""
    is_in_doubt = is_strict and any(finding.is_timing for finding in published.findings)
    return is_in_doubt or has_wrong_accounts(published.findings)


def _open_folder(plan: Plan, output_dir: Path, label: str) -> tuple[RunFolder, Callable[[DeviceFacts], None]]:
    """A new folder with the plan and the environment in it, and what adds the device once it is known."""
    folder = RunFolder.create(output_dir, label)
    folder.write_config(plan.document())
    environment = capture(sys.argv[1:])
    folder.write_environment(environment.model_dump(mode="json"))

    def keep_device(device: DeviceFacts) -> None:
        known = environment.model_copy(update={"device": device})
        folder.write_environment(known.model_dump(mode="json"))

    return folder, keep_device


def cost(
    path: Path,
    options: Options,
    limits: CostLimits,
    output_dir: Path,
    screen: Screen,
) -> int:
    """Repeat the commands of an arm's steps, one span after the other, and print the bill of a step.

    The folder gets a summary and a page as that of a run does.
    """
    plan = cost_plan(path, options)
    folder, keep_device = _open_folder(plan, output_dir, f"{plan.label}-cost")
    with writing(folder.path):
        return _run_bill(plan, limits, folder, keep_device, screen)


def _run_bill(
    plan: Plan,
    limits: CostLimits,
    folder: RunFolder,
    keep_device: Callable[[DeviceFacts], None],
    screen: Screen,
) -> int:
    stop = Stop(kept_words(folder.path, "a bill cannot be resumed: start suite cost again"))
    schedule = CostSchedule(limits, folder.path)

    def keep(record: RunRecord) -> None:
        folder.append_run(record)
        schedule.keep(record)

    with stop.on_interrupt():
        with make_progress(make_progress_console(sys.stderr), None) as progress:
            experiment = Experiment(
                plan, folder.path, progress, stop, keep, keep_device, schedule=schedule.runs
            )
            records = experiment.run()
        found = cost_document(folder.path, schedule.notes, plan.skipped, stop.is_requested)
        kept = folder.write_cost(found.document)
        published = publish(folder.path, stop.is_requested)
    screen.show(
        [*found.lines, f"kept: {kept}", f"report: {published.report}"],
        {"folder": str(folder.path), "report": str(published.report), **found.document},
    )
    code = exit_code(records, stop.is_requested)
    if code == EXIT_FINE and not found.has_costs:
        make_progress_console(sys.stderr).print("error: nothing was measured: the notes above say why")
        return EXIT_WRONG
    return code


def check(paths: Sequence[Path], options: Options, screen: Screen) -> int:
    """Every arm of every case on its token case, in every rotation, each on a fresh engine and untimed."""
    plan = for_check(make_plan(paths, options))
    records: list[RunRecord] = []
    stop = Stop("stopped at once: a check keeps nothing")
    with stop.on_interrupt(), make_progress(make_progress_console(sys.stderr), plan) as progress:
        experiment = Experiment(plan, None, progress, stop, records.append, lambda _: None, is_timed=False)
        experiment.run()
    arms = summarise(records, ())
    screen.show(
        [*(_check_line(arm, records) for arm in arms), *_skipped_lines(plan.skipped)],
        [_check_document(record) for record in records],
    )
    return exit_code(records, stop.is_requested)


def validate(paths: Sequence[Path], options: Options, screen: Screen) -> int:
    """Load, expand and build every scenario; all mistakes are told, one for each file at most."""
    lines: list[str] = []
    documents: list[dict[str, object]] = []
    errors: list[str] = []
    for file in find_files(paths):
        try:
            plan = make_plan([file], options)
        except (SuiteError, RunnerError) as error:
            errors.append(str(error))
            continue
        name = plan.scenarios[0].name
        requests = sum(case.num_requests for case in plan.cases)
        lines.append(f"{file}: fine ({name}: {len(plan.cases)} cases, {requests} requests)")
        lines += _skipped_lines(plan.skipped)
        documents.append(
            {
                "file": str(file),
                "scenario": name,
                "num_cases": len(plan.cases),
                "num_requests": requests,
                "skipped": dict(plan.skipped).get(name),
            }
        )
    if not errors:
        load_scenarios(paths, options)  # what only all of them together can break
    screen.show(lines, documents)
    if errors:
        raise SuiteError("\n".join(errors))
    return EXIT_FINE


def expand(paths: Sequence[Path], options: Options, screen: Screen) -> int:
    """Every case of every scenario, with what is swept."""
    plan = make_plan(paths, options)
    lines = [
        f"{case.case.case_id}  {case.title}: {case.num_requests} requests, arms "
        f"{', '.join(case.arms)}, {case.rounds_text} rounds"
        for case in plan.cases
    ]
    screen.show([*lines, *_skipped_lines(plan.skipped)], plan.document()["cases"])
    return EXIT_FINE


def report(path: Path, form: str, output: Path | None, screen: Screen) -> int:
    """The summary and the page of a run folder, made anew; shown, or written to `output`, as `form` says.

    Of a run that still goes on a page of its own, from what is there, whose summary nobody else writes.
    """
    if output is not None and not output.parent.is_dir():
        raise SuiteError(f"--output {output}: {output.parent} is no directory; make it first")
    check_is_run(path)
    with claiming(path) as is_ours:
        published = publish(path) if is_ours else publish_so_far(path)
    if output is not None:
        kept = write_file(output, _formed(published, form).encode("utf-8", "backslashreplace"))
        make_progress_console(sys.stderr).print(f"kept in {kept}")
    elif form == "html":
        print_results(make_console(sys.stdout), published)
    elif form == "json":
        screen.document(published.document())
    else:
        print(_formed(published, form), end="", file=sys.stdout, flush=True)
    return EXIT_FINE


def _formed(published: Published, form: str) -> str:
    if form == "html":
        return published.report.read_text(encoding="utf-8")
    if form == "json":
        return json.dumps(published.document(), ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    from suite.report import markdown

    assert published.data is not None
    return markdown.render(published.data)


def _show_results(published: Published, screen: Screen) -> None:
    if screen.is_json:
        screen.document(published.document())
    else:
        print_results(make_console(sys.stdout), published)


def explain(paths: Sequence[Path], arm_name: str, options: Options, screen: Screen) -> int:
    """What a decode step and a mixed step of an arm do, for every case."""
    # The one command that plays a runner in this process: only it loads the engine.
    from suite.explain import document, render
    from suite.explain import explain as explain_case

    arm = named_arm(arm_name)
    found = [
        explain_case(case, arm)
        for scenario in load_scenarios(paths, options)
        for case in expand_cases(scenario)
    ]
    screen.show([render(explanation) for explanation in found], [document(item) for item in found])
    return EXIT_FINE


def micro(
    device: str,
    model: str,
    num_threads: int,
    dtype: FloatType,
    only: str | None,
    is_fresh: bool,
    output: Path | None,
    screen: Screen,
) -> int:
    """Measure ceilings and micro-benchmarks in a process of their own; keep them where asked to."""
    from suite.micro.catalogue import choose
    from suite.micro.protocol import Order
    from suite.micro.session import measure
    from suite.micro.table import document, lines

    order = Order(
        device=timed_device(device),
        model=get_model(model).name,
        num_threads=checked_threads(num_threads),
        dtype=dtype,
        chosen=choose(only),
        is_fresh=is_fresh,
    )
    console = make_progress_console(sys.stderr)
    folder = None if output is None else RunFolder.reuse(output)
    findings = measure(order, lambda text: console.print(f"measuring {text}"))
    screen.show(lines(findings), document(findings))
    if folder is not None:
        console.print(f"kept in {folder.write_micro(document(findings))}")
    if findings.is_interrupted:
        console.print("interrupted: what was measured before is above")
        return EXIT_INTERRUPTED
    if findings.failure is not None:
        console.print(f"error: not everything was measured: {findings.failure}")
        return EXIT_WRONG
    return EXIT_FINE


def list_known(kinds: Sequence[str], screen: Screen) -> int:
    """What names a scenario or an option may use."""
    document = {kind: _known(kind) for kind in kinds}
    lines: list[str] = []
    for kind, items in document.items():
        width = max((len(name) for name in items), default=0)
        lines += [f"{kind}:", *(f"  {name:{width}}  {text}" for name, text in items.items())]
    screen.show(lines, document)
    return EXIT_FINE


def _known(kind: str) -> dict[str, str]:
    if kind == "scenarios":
        return dict(_scenario_lines())
    if kind == "models":
        return {
            name: f"{spec.family}, {'text and images' if spec.is_multimodal else 'text'}, "
            f"{spec.num_layers} layers of {spec.hidden_size}"
            for name, spec in ALL_MODELS.items()
        }
    if kind == "arms":
        return dict(arm_lines())
    if kind == "devices":
        texts = {
            "process": "the CPU, in a process of its own (the default)",
            "inline": "the CPU, in the runner's process, every command at once: nothing overlaps",
            "lazy": "the same, but nothing runs until the host waits: finds host writes that come too early",
            "shuffle:SEED": "the same, any ready command next, drawn from a seed: finds other races",
            "cuda": "a GPU, on real streams (the default where there is one)",
        }
        return {name: texts.get(name, "") for name in DEVICE_KINDS}
    if kind == "rules":
        return {
            name: f"[{'timing' if rule.is_timing else 'correctness'}] {rule.text}"
            for name, rule in RULES.items()
        }
    return {
        name: f"[{definition.unit}, {definition.better}] {definition.text}"
        for name, definition in DEFINITIONS.items()
    }


def _scenario_lines() -> Iterable[tuple[str, str]]:
    """Every scenario under ./scenarios, or under the program's own where there is none."""
    own = Path(__file__).resolve().parent.parent / "scenarios"
    folder = Path("scenarios") if Path("scenarios").is_dir() else own
    for file in sorted(folder.rglob("*.yaml")):
        try:
            scenario = load_scenario(file)
            yield str(file), f"{scenario.name}: {scenario.description}".strip().rstrip(":")
        except (SuiteError, RunnerError) as error:
            yield str(file), f"cannot be loaded: {error}"


def _plan_lines(plan: Plan) -> Iterable[str]:
    for case in plan.cases:
        yield (f"{case.title}: {case.num_requests} requests, arms {', '.join(case.arms)}, {case.runs_text}")
        yield from (f"  {note}" for note in case.notes)
    yield from _skipped_lines(plan.skipped)
    runs = f"{'up to ' if any(case.is_open_ended for case in plan.cases) else ''}{plan.num_runs} runs"
    budget_s = plan.options.budget_s
    within = "" if budget_s is None else f" within {budget_s:g} s"
    yield f"{plan.num_cases} cases, {runs} on device {plan.device}{within}; nothing was run"


def _skipped_lines(skipped: Sequence[tuple[str, str]]) -> list[str]:
    return [f"skipped {name}: {reason}" for name, reason in skipped]


def _check_line(arm: ArmSummary, records: Sequence[RunRecord]) -> str:
    name = case_title(arm.scenario, arm.case_label)
    failed = f", {arm.num_failed} runs FAILED" if arm.num_failed else ""
    tokens = arm.tokens
    if tokens is None:
        return f"{name}, {arm.arm}: {tokens_text(tokens)}{failed}"
    control = f"{arm.control}: " if arm.control else ""
    key = (arm.scenario, arm.case_id, arm.arm)
    num_orders = sum(run.is_completed for run in records if (run.scenario, run.case_id, run.arm) == key)
    orders = f" in {num_orders} orders" if num_orders > 1 else ""
    first = tokens.first_wrong
    where = f"; the first wrong one: request {first[0]}, output token {first[1]}" if first else ""
    return (
        f"{name}, {arm.arm}: {control}{tokens.num_right} right, {tokens.num_wrong} wrong, "
        f"{tokens.num_ties} ties of {tokens.num_checked} tokens{orders}{where}"
        f"{'' if arm.control else logprobs_text(arm.logprobs)}{failed}"
    )


def _check_document(record: RunRecord) -> dict[str, object]:
    keys = {"scenario", "case_id", "case_label", "arm", "rotation", "is_control", "predicts_wrong"}
    keys |= {"scheduling", "scheduling_reason", "status", "tokens", "logprobs", "failure", "notes"}
    return record.model_dump(mode="json", include=keys)
