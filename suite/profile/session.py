"""One arm of a case run under a profiler: a whole `suite run` of its own, which the profiler follows.

The run's folder appears in the output directory when all is done, with what the profiler wrote in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from suite.child_environment import child_environment
from suite.errors import SuiteError
from suite.plan import CUDA, Options, Plan, make_plan
from suite.profile.capture import Capture
from suite.profile.files import read_capture
from suite.profile.merged import with_host, within
from suite.profile.nsys import (
    STREAM,
    find_nsys,
    profile_command,
    profile_environment,
    tail_of,
    to_sqlite,
    written_report,
)
from suite.profile.trace_events import capture_of, read_document
from suite.steady import NotSettled, Window, steady_window
from suite.store import TRACES, load_run, to_json, write_file

_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130
_REPORT = "profile"


@dataclass(frozen=True, slots=True)
class Profiled:
    """What came of it: the run's folder, and the capture of it with the file it is in."""

    run_dir: Path
    capture: Capture
    file: Path


def plan_profile(scenario: Path, arm: str | None, options: Options) -> tuple[Plan, str]:
    """The plan and the arm: one case, one arm. SuiteError as for a run, and where there are more cases."""
    plan = make_plan([scenario], replace(options, arms=None if arm is None else (arm,), arms_option="--arm"))
    for name, reason in plan.skipped:
        raise SuiteError(f"{scenario}: {name} cannot be run here: {reason}")
    if len(plan.cases) != 1:
        labels = ", ".join(case.case.label for case in plan.cases)
        raise SuiteError(
            f"{scenario}: it has {len(plan.cases)} cases ({labels}), and one is profiled; name one with "
            "--set sweep.KEY=[VALUE]"
        )
    return plan, arm or plan.cases[0].arms[0]


def run_under_nsys(scenario: Path, plan: Plan, arm: str, output_dir: Path) -> Profiled:
    """Run, complete and import. SuiteError where the run or nsys failed; a finished run is kept then too.

    Where the plan has a window, only that is captured.
    """
    nsys = find_nsys()
    with _making(output_dir) as folder:
        report = folder / _REPORT
        program = run_command(scenario, plan, arm, folder)
        command = profile_command(nsys, report, program, plan.device == CUDA, plan.options.has_window)
        said = _run(command, profile_environment(child_environment()))
        run_dir = _run_in(folder, said)
        written = written_report(report)
        if written is not None:
            written.rename(run_dir / written.name)
        kept = _keep(run_dir, output_dir)
    if written is None:
        why = _why_no_window(kept) if plan.options.has_window else tail_of(said)
        raise SuiteError(f"nsys wrote no report: {why}; the run itself is kept: {kept}")
    file = to_sqlite(kept / written.name, kept)
    if written.suffix == STREAM:  # the report made of it holds all that it does
        (kept / written.name).unlink()
    return Profiled(kept, read_capture(file), file)


def run_under_torch(scenario: Path, plan: Plan, arm: str, output_dir: Path) -> Profiled:
    """Run with torch's profiler in the device, and write its trace with the host's phases as profile.json.

    SuiteError where the run failed.
    """
    with _making(output_dir) as folder:
        command = [*run_command(scenario, plan, arm, folder), "--torch-trace"]
        said = _run(command, child_environment())
        kept = _keep(_run_in(folder, said), output_dir)
    loaded = load_run(kept)
    traced = [run for run in loaded.runs if (kept / TRACES / f"{run.run_id}.json").is_file()]
    if not traced:
        raise SuiteError(f"{kept}: its device wrote no trace; see what became of the run there")
    file = kept / TRACES / f"{traced[0].run_id}.json"
    document = read_document(file)
    capture = capture_of(document)
    steps, spans = loaded.step_records(traced[0].run_id), loaded.spans(traced[0].run_id)
    merged = with_host(document, capture, arm, steps, spans)
    window = steady_window(steps) if plan.options.has_window else None
    if merged is not None and isinstance(window, Window):
        merged = _of_window(merged, window, capture)
    if merged is not None:
        with suppress(ValueError):  # a figure of torch's that strict JSON has not: its own file is kept
            file = write_file(kept / f"{_REPORT}.json", to_json(merged) + b"\n")
    return Profiled(kept, capture, file)


def _of_window(document: dict[str, Any], window: Window, capture: Capture) -> dict[str, Any]:
    inside = [
        item
        for item in capture.steps
        if item.step_id is not None and window.first_step_id <= item.step_id <= window.last_step_id
    ]
    ends = [item.end_ns or item.start_ns for item in inside]
    return within(document, min(item.start_ns for item in inside), max(ends)) if inside else document


def _why_no_window(run_dir: Path) -> str:
    loaded = load_run(run_dir)
    for run in loaded.runs:
        window = steady_window(loaded.step_records(run.run_id))
        if run.instrument != "off" and isinstance(window, NotSettled):
            return f"there was no steady window ({window.reason}); leave out --window"
    return "no window of it was seen"


def run_command(scenario: Path, plan: Plan, arm: str, folder: Path) -> list[str]:
    """A round without instruments, which warms up, and then the one with them: all ranges are of that.

    What else the scenario asks for (warm-up rounds, A/A runs, repeats) would be in the capture as well.
    """
    command = [*_suite(), "run", str(scenario), "--device", plan.device, "--arms", arm]
    command += ["--rounds", "1", "--instrument", "events", "-o", str(folder)]
    if plan.options.has_window:
        command.append("--window")
    if plan.options.seed is not None:
        command += ["--seed", str(plan.options.seed)]
    for override in (*plan.options.overrides, "warmup_rounds=0", "aa=false", "amplify={}"):
        command += ["--set", override]
    return command


def _suite() -> list[str]:
    """Our own program. nsys takes the umask away, so that all could write what is made: it is given back."""
    umask = os.umask(0o077)
    os.umask(umask)
    code = f"import os; os.umask({umask}); from suite.cli import main; main()"
    # -P: a file of the user's named like one of our packages must not be imported in its place.
    return [sys.executable, "-P", "-c", code]


@contextmanager
def _making(output_dir: Path) -> Iterator[Path]:
    """A folder in the output directory, gone afterwards; a run left in it is kept, whatever happened."""
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=".profile-", dir=output_dir)
    except OSError as error:
        raise SuiteError(
            f"cannot write {output_dir}: {error.strerror}; choose another folder with --output-dir"
        ) from None
    with temporary as folder:
        try:
            yield Path(folder)
        finally:
            for config in Path(folder).glob("*/config.yaml"):
                _keep(config.parent, output_dir)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """What it printed. Its progress and errors go to our standard error; its results are in its folder."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, env=environment)
        except OSError as error:
            raise SuiteError(f"{command[0]} cannot be started: {error.strerror or error}") from None
        try:
            code = process.wait()
        except KeyboardInterrupt:  # it had it as well, and keeps what it has
            process.wait()
            raise
        output.seek(0)
        said = output.read().decode("utf-8", "replace")
    if code in (_EXIT_USAGE, _EXIT_INTERRUPTED) or code < 0:
        raise SuiteError(f"the run under the profiler ended with exit code {code}: {tail_of(said)}")
    return said


def _run_in(folder: Path, said: str) -> Path:
    """The folder of the run made in there."""
    found = [path.parent for path in folder.glob("*/config.yaml")]
    if len(found) != 1:
        raise SuiteError(f"the run under the profiler left no folder: {tail_of(said)}")
    return found[0]


def _keep(run_dir: Path, output_dir: Path) -> Path:
    """Move a run's folder to where it was asked for, never onto another."""
    number, target = 1, output_dir / run_dir.name
    while target.exists():
        number += 1
        target = output_dir / f"{run_dir.name}-{number}"
    return run_dir.rename(target)
