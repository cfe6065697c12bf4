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

from suite.errors import SuiteError
from suite.plan import CUDA, Options, Plan, make_plan
from suite.profile.capture import Capture
from suite.profile.files import read_capture
from suite.profile.merged import with_host
from suite.profile.nsys import (
    find_nsys,
    profile_command,
    profile_environment,
    tail_of,
    to_sqlite,
    written_report,
)
from suite.profile.trace_events import capture_of, read_document
from suite.store import TRACES, load_run, to_json, write_file

# -P: a file of the user's named like one of our packages must not be imported in its place.
_SUITE = (sys.executable, "-P", "-c", "from suite.cli import main; main()")
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
    plan = make_plan([scenario], replace(options, arms=None if arm is None else (arm,)))
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
    """Run, complete and import. SuiteError where the run or nsys failed; a finished run is kept then too."""
    nsys = find_nsys()
    with _making(output_dir) as folder:
        report = folder / _REPORT
        program = run_command(scenario, plan, arm, folder)
        command = profile_command(nsys, report, program, plan.device == CUDA, is_window=False)
        said = _run(command, profile_environment(_environment()))
        run_dir = _run_in(folder, said)
        written = written_report(report)
        if written is None:
            kept = _keep(run_dir, output_dir)
            raise SuiteError(f"nsys wrote no report ({tail_of(said)}); the run itself is kept: {kept}")
        exported = to_sqlite(written, folder)
        finished = written_report(report)  # a stream's report holds all that the stream does
        for file in (finished or written, exported):
            file.rename(run_dir / file.name)
        capture = read_capture(run_dir / exported.name)
        kept = _keep(run_dir, output_dir)
        return Profiled(kept, capture, kept / exported.name)


def run_under_torch(scenario: Path, plan: Plan, arm: str, output_dir: Path) -> Profiled:
    """Run with torch's profiler in the device, and write its trace with the host's phases as profile.json.

    SuiteError where the run failed.
    """
    with _making(output_dir) as folder:
        command = [*run_command(scenario, plan, arm, folder), "--torch-trace"]
        said = _run(command, _environment())
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
    if merged is not None:
        with suppress(ValueError):  # a figure of torch's that strict JSON has not: its own file is kept
            file = write_file(kept / f"{_REPORT}.json", to_json(merged) + b"\n")
    return Profiled(kept, capture, file)


def run_command(scenario: Path, plan: Plan, arm: str, folder: Path) -> list[str]:
    """A round without instruments, which warms up, and then the one with them: all ranges are of that."""
    command = [*_SUITE, "run", str(scenario), "--device", plan.device, "--arms", arm]
    command += ["--rounds", "1", "--instrument", "events", "-o", str(folder)]
    if plan.options.seed is not None:
        command += ["--seed", str(plan.options.seed)]
    for override in (*plan.options.overrides, "warmup_rounds=0"):
        command += ["--set", override]
    return command


def _environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1"}


@contextmanager
def _making(output_dir: Path) -> Iterator[Path]:
    """A folder in the output directory that is gone afterwards, with what was not moved out of it."""
    if not str(output_dir):
        raise SuiteError("--output-dir '': it is empty; name a folder")
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=".profile-", dir=output_dir)
    except OSError as error:
        raise SuiteError(
            f"cannot write {output_dir}: {error.strerror}; choose another folder with --output-dir"
        ) from None
    with temporary as folder:
        yield Path(folder)


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
