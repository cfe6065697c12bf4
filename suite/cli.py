"""argv -> one command. Parsing only: what a command does is in suite/commands.py, imported when one runs."""

from __future__ import annotations

import errno
import os
import re
import sys
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from runner.core import RunnerError
from suite.cost_time import DEFAULT_BUDGET_S
from suite.errors import SuiteError
from suite.standard_output import READABLE, forgiving

if TYPE_CHECKING:
    from suite.commands import Screen
    from suite.plan import Options
    from suite.resume import Given

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_WHOLE_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,100}\s*")
_REFUSED = (errno.EPIPE, errno.ENOSPC, errno.EBADF, errno.EIO)


class Kind(StrEnum):
    SCENARIOS = "scenarios"
    MODELS = "models"
    ARMS = "arms"
    DEVICES = "devices"
    METRICS = "metrics"
    RULES = "rules"


class Instrument(StrEnum):
    OFF = "off"
    NVTX = "nvtx"
    HOST = "host"
    EVENTS = "events"


class SyncCheck(StrEnum):
    OFF = "off"
    WARN = "warn"
    ERROR = "error"


class DataType(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class OnOff(StrEnum):
    ON = "on"
    OFF = "off"


class Profiler(StrEnum):
    NSYS = "nsys"
    TORCH = "torch"


class Form(StrEnum):
    PERFETTO = "perfetto"
    PYTEST_BENCHMARK = "pytest-benchmark"
    ARCHIVE = "archive"


class CompareForm(StrEnum):
    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"


class ReportForm(StrEnum):
    HTML = "html"
    MARKDOWN = "markdown"
    JSON = "json"


class Commands(typer.core.TyperGroup):
    """A user's mistake ends any command with one message and no traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (SuiteError, RunnerError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(EXIT_USAGE) from None
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # pydantic's, which typer asks
            raise
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None


app = typer.Typer(
    cls=Commands,
    name="suite",
    help="Measure what each step of a multimodal model runner costs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATHS...",
        help="Scenario files, or directories: of one, the *.yaml files directly in it.",
        show_default=False,
    ),
]
Device = Annotated[
    str, typer.Option("--device", help="auto, cuda, process, inline, lazy or shuffle:SEED.", metavar="KIND")
]
Arms = Annotated[
    str | None,
    typer.Option("--arms", help="Arms instead of the scenario's: a,b.", metavar="NAMES"),
]


def _whole_number(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is no whole number")
    return int(text)


Rounds = Annotated[
    int | None,
    typer.Option("--rounds", help="Measured rounds.", metavar="N", parser=_whole_number),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A scenario's key=value, such as runner.num_blocks=64; repeatable.",
        metavar="KEY=VALUE",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Instead of the scenario's.", metavar="N", parser=_whole_number),
]
CudaGraphs = Annotated[
    OnOff | None,
    typer.Option(
        "--cuda-graphs",
        help="Capture decode steps on a GPU and replay them, whatever the scenario says (on by default).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
RunDir = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN_DIR")]
OutputDir = Annotated[
    str,
    typer.Option("--output-dir", "-o", help="Where the run's own folder is made.", metavar="DIRECTORY"),
]


FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on",
        help="Exit code 1 where the whole interval of a change lies beyond: 'output_throughput<-3%' or "
        "'p99_ttft_ms>+5%'; repeatable.",
        metavar="LIMIT",
    ),
]


@app.command()
def run(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATHS...",
            help="Scenario files, or directories: of one, the *.yaml files directly in it.",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    arms: Arms = None,
    rounds: Rounds = None,
    output_dir: OutputDir = "results",
    overrides: Set = None,
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show what would be run.")] = False,
    seed: Seed = None,
    cuda_graphs: CudaGraphs = None,
    is_json: Json = False,
    instrument: Annotated[
        Instrument,
        typer.Option(
            "--instrument", help="Of one more run of every arm, which enters no verdict; off: no such run."
        ),
    ] = Instrument.EVENTS,
    sync_check: Annotated[
        SyncCheck,
        typer.Option(
            "--sync-check",
            help="In one more run of every arm, look for copies and reads that wait for the device in "
            "silence: warn of them, or let the first be an error.",
        ),
    ] = SyncCheck.OFF,
    is_traced: Annotated[
        bool,
        typer.Option(
            "--torch-trace", help="Have torch's profiler record that run too: traces/RUN.json in the folder."
        ),
    ] = False,
    has_window: Annotated[
        bool,
        typer.Option(
            "--window",
            help="Have the NVTX range 'stepcost window' open in that run while its batch is steady.",
        ),
    ] = False,
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            "--goodput",
            help="Gates in ms that a good request meets: 'ttft:200 tpot:20 e2el:900'; repeatable.",
            metavar="NAME:MS",
        ),
    ] = None,
    until_precision: Annotated[
        str | None,
        typer.Option(
            "--until-precision",
            help="Rounds until every 95 % interval of a ratio is at most so wide: 1%; at least 10 rounds.",
            metavar="PERCENT",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            help="With --until-precision, the time it may take, shared by all cases: 10m. Alone, that of the "
            "whole command: the tokens of every case first, in short runs; then scenarios of listed steps "
            "(attribution); then the others. What was left out is told.",
            metavar="TIME",
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="A name in the folder's name.", metavar="TEXT")
    ] = None,
    resumed: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            help="Finish the run in this folder, which was interrupted or killed. PATHS and options need not "
            "be given; those that are must be what it began with.",
            metavar="RUN_DIR",
        ),
    ] = None,
    is_strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit with 1 where a run is INVALID for timing: noise, load, drift, too few rounds.",
        ),
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            help="Run that commit's code as well, in turns with this, and tell what differs.",
            metavar="GITREF",
        ),
    ] = None,
    fail_on: FailOn = None,
) -> None:
    """Run scenarios; write records, summary and report; print the results.

    Exit codes: 0 fine; 1 wrong tokens in a right arm, wrong accounts, or a run failed, --fail-on is broken,
    and with --strict INVALID for timing; 2 usage or configuration; 130 interrupted, partial results kept.
    """
    from suite import commands
    from suite.goodput import goodput_override
    from suite.precision import read_budget, read_precision

    options = replace(
        _options(device, arms, rounds, overrides, seed, cuda_graphs),
        instrument=instrument.value,
        sync_check=sync_check.value,
        is_traced=is_traced,
        has_window=has_window,
        until=read_precision(until_precision, budget),
        budget_s=None if budget is None or until_precision is not None else read_budget(budget),
    )
    if instrument is Instrument.OFF and (is_traced or has_window):
        which = "--torch-trace" if is_traced else "--window"
        raise SuiteError(f"{which} is about the run with instruments, and --instrument is off: leave it out")
    if goodput is not None:
        options = replace(options, overrides=(*options.overrides, goodput_override(goodput)))
    if resumed is not None:
        given = _given(context, tuple(paths or ()), options)
        code = commands.resume(resumed, given, _screen(is_json), is_strict)
    elif not paths:
        raise SuiteError(
            "Missing argument PATHS: name scenario files, or a run to finish by --resume RUN_DIR"
        )
    elif baseline is not None:
        from suite.baseline_run import run_against
        from suite.compare_folders import CompareOptions

        limits, place = CompareOptions.of(None, fail_on, False), _place(output_dir)
        code = run_against(
            paths, options, baseline, limits, place, label, is_dry_run, _screen(is_json), is_strict
        )
    elif fail_on:
        raise SuiteError("--fail-on goes with --baseline GITREF; of two run folders, compare has it")
    else:
        place = _place(output_dir)
        code = commands.run(paths, options, place, label, is_dry_run, _screen(is_json), is_strict)
    if not is_dry_run:
        _finish_output()  # what was measured decides the exit code, whoever reads the table
    _leave(code)


_RESUMABLE = {
    "device": "device",
    "arms": "arms",
    "rounds": "rounds",
    "overrides": "set",
    "cuda_graphs": "set",
    "goodput": "set",
    "seed": "seed",
    "instrument": "instrument",
    "sync_check": "sync_check",
    "is_traced": "torch_trace",
    "has_window": "window",
    "until_precision": "until_precision_percent",
    "budget": "budget_s",
}
"""Parameter of `run` -> the key of config.yaml that says what it was."""

_NEW_ONLY = {
    "baseline": "--baseline",
    "fail_on": "--fail-on",
    "output_dir": "--output-dir",
    "label": "--label",
    "is_dry_run": "--dry-run",
}


def _given(context: typer.Context, paths: tuple[Path, ...], options: Options) -> Given:
    """What was said beside --resume. SuiteError for what only a new run has."""
    from suite.resume import Given

    sources = {name: context.get_parameter_source(name) for name in context.params}
    names = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    for name in names:
        if name in _NEW_ONLY:
            raise SuiteError(
                f"{_NEW_ONLY[name]} does not go with --resume: a run is finished in its own folder"
            )
    keys = dict.fromkeys(_RESUMABLE[name] for name in names if name in _RESUMABLE)
    return Given(paths, options, tuple(keys))


@app.command()
def cost(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO", help="A scenario file.", show_default=False)
    ],
    arm: Annotated[
        str | None,
        typer.Option(
            "--arm", help="A preset, or four choices; refresh, or the scenario's first.", metavar="NAME"
        ),
    ] = None,
    rounds: Rounds = None,
    budget_s: Annotated[
        float, typer.Option("--budget-s", help="Seconds for each case; then it stops.", metavar="S")
    ] = DEFAULT_BUDGET_S,
    only: Annotated[
        str | None, typer.Option("--only", help="These spans: a,b; all where not given.", metavar="SPANS")
    ] = None,
    device: Device = "auto",
    output_dir: OutputDir = "results",
    overrides: Set = None,
    seed: Seed = None,
    cuda_graphs: CudaGraphs = None,
    is_json: Json = False,
) -> None:
    """Print the bill of a step: what each command costs in place, by repeating it in the same steps.

    Exit codes as of run.
    """
    from suite import commands
    from suite.cost import CostLimits

    options = _options(device, arm, rounds, overrides, seed, cuda_graphs)
    place = _place(output_dir)
    limits = CostLimits.of(budget_s, only)
    code = commands.cost(scenario, options, limits, place, _screen(is_json))
    _finish_output()
    _leave(code)


@app.command()
def check(
    paths: Paths,
    device: Device = "auto",
    arms: Arms = None,
    overrides: Set = None,
    seed: Seed = None,
    cuda_graphs: CudaGraphs = None,
    is_json: Json = False,
) -> None:
    """Hold every output token against the oracle, without timing: at most 8 requests, in every rotation.

    Exit code 1 where a token of a right arm is wrong; arms that are wrong by design must come out so.
    """
    from suite import commands

    options = _options(device, arms, None, overrides, seed, cuda_graphs)
    _leave(commands.check(paths, options, _screen(is_json)))


@app.command()
def validate(paths: Paths, overrides: Set = None, seed: Seed = None, is_json: Json = False) -> None:
    """Check scenarios and their traces without running them."""
    from suite import commands

    options = _options("auto", None, None, overrides, seed)
    _leave(commands.validate(paths, options, _screen(is_json)))


@app.command()
def expand(paths: Paths, overrides: Set = None, seed: Seed = None, is_json: Json = False) -> None:
    """Show the cases that the sweeps of scenarios make."""
    from suite import commands

    options = _options("auto", None, None, overrides, seed)
    _leave(commands.expand(paths, options, _screen(is_json)))


@app.command()
def explain(
    paths: Paths,
    arm: Annotated[str, typer.Option("--arm", help="A preset, or four choices.", metavar="NAME")],
    overrides: Set = None,
    seed: Seed = None,
    is_json: Json = False,
) -> None:
    """Show the commands of a decode and a mixed step under an arm: copies, bytes, launches."""
    from suite import commands

    options = _options("auto", None, None, overrides, seed)
    _leave(commands.explain(paths, arm, options, _screen(is_json)))


@app.command(name="list")
def list_known(
    kind: Annotated[Kind | None, typer.Argument(help="Everything where not given.")] = None,
    is_json: Json = False,
) -> None:
    """List the scenarios, models, arms, devices, metrics or rules of validity there are."""
    from suite import commands

    kinds = [kind.value] if kind else [known.value for known in Kind]
    _leave(commands.list_known(kinds, _screen(is_json)))


@app.command()
def report(
    run_dir: RunDir,
    form: Annotated[
        ReportForm | None,
        typer.Option(
            "--format",
            help="html: the page, in the folder; markdown: for a pull request; json: the summary.",
            show_default="html",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write it there instead.", metavar="FILE", show_default=False),
    ] = None,
    is_json: Json = False,
) -> None:
    """Make the summary and the report of a run folder anew.

    Of a run that is still going on: what it has come to so far, in report-so-far.html.
    """
    from suite import commands

    if is_json and form not in (None, ReportForm.JSON):
        raise SuiteError(f"--json and --format {form}: give one of them")
    chosen = ReportForm.JSON if is_json else form or ReportForm.HTML
    _leave(commands.report(run_dir, chosen.value, output, _screen(is_json)))


@app.command()
def compare(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_DIR...", help="Run folders; the first is the base.", show_default=False),
    ],
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", help="Instead of the primary ones; repeatable.", metavar="NAME"),
    ] = None,
    fail_on: FailOn = None,
    is_across_machines: Annotated[
        bool,
        typer.Option("--across-machines", help="Compare runs of different machines or versions, marked so."),
    ] = False,
    form: Annotated[
        CompareForm | None,
        typer.Option("--format", help="table, or what --output ends in.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write it to a file: .md, .json or .html.", metavar="FILE"),
    ] = None,
    is_json: Json = False,
) -> None:
    """Hold run folders against the first of them, case by case: matched by content, in the same arms.

    Exit code 1 where --fail-on is broken, or finds no data.
    """
    from suite.compare_folders import CompareOptions, compare_command

    options = CompareOptions.of(metrics, fail_on, is_across_machines)
    chosen = None if form is None else form.value
    code = compare_command(run_dirs, options, chosen, output, _screen(is_json))
    _finish_output()  # what was compared decides the exit code, whoever reads the table
    _leave(code)


@app.command()
def export(
    run_dir: RunDir,
    form: Annotated[
        Form,
        typer.Option(
            "--format",
            help="perfetto: Chrome trace events of steps and spans; pytest-benchmark: rounds, as it stores; "
            "archive: the folder in one .tar.gz of at most 16 MB.",
        ),
    ] = Form.PERFETTO,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Instead of trace.json, or pytest-benchmark.json, in the run's folder; of an archive, "
            "RUN_DIR.tar.gz beside it.",
            metavar="FILE",
        ),
    ] = None,
    is_json: Json = False,
) -> None:
    """Write a run for another program.

    perfetto: the steps and spans for a viewer, with lanes of host and device, arrows and counters.
    pytest-benchmark: the rounds of every arm, which `pytest-benchmark compare FILE` reads.
    archive: the whole folder in one file; where it is too large, of each kind of step 1 in k, which the file
    and every report of the unpacked folder say.
    """
    from suite.profile import commands

    exports = {
        Form.PERFETTO: commands.export,
        Form.PYTEST_BENCHMARK: commands.export_rounds,
        Form.ARCHIVE: commands.export_archive,
    }
    _leave(exports[form](run_dir, output, _screen(is_json)))


@app.command()
def metrics(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The requests.jsonl of a vLLM run.", show_default=False)
    ],
    is_json: Json = False,
) -> None:
    """Print TTFT, TPOT and E2E latency of requests that vLLM served, by our own definitions.

    A line of the file is a request: request_id, input_toks, output_toks, arrival_time, queued_ts,
    scheduled_ts, first_token_ts and last_token_ts, in seconds.
    """
    from suite.imported_metrics import metrics_command

    _leave(metrics_command(file, _screen(is_json)))


@app.command()
def profile(
    target: Annotated[
        Path | None,
        typer.Argument(
            help="A scenario to run under a profiler; with --import, a run's folder to compare with.",
            metavar="SCENARIO|RUN_DIR",
            show_default=False,
        ),
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(
            "--import",
            help="Show this capture: .sqlite, .nsys-rep or .qdstrm of nsys, .json of torch's profiler.",
            metavar="FILE",
        ),
    ] = None,
    has_window: Annotated[
        bool, typer.Option("--window", help="Only the steps in which the batch is steady.")
    ] = False,
    tool: Annotated[
        Profiler, typer.Option("--tool", help="Nsight Systems, or torch's own profiler in the device.")
    ] = Profiler.NSYS,
    arm: Annotated[
        str | None, typer.Option("--arm", help="Instead of the scenario's first.", metavar="NAME")
    ] = None,
    device: Device = "auto",
    output_dir: OutputDir = "results",
    overrides: Set = None,
    seed: Seed = None,
    is_json: Json = False,
) -> None:
    """Run one arm under a profiler and compare its ranges with our own records, or import a capture.

    A run that you put under nsys yourself can be imported as well: nsys profile -t nvtx -o FILE python -m
    suite run ..., then profile --import FILE RUN_DIR.
    """
    from suite.profile import commands

    if capture is not None:
        _leave(commands.import_capture(capture, target, _screen(is_json)))
    elif target is not None:
        options = replace(_options(device, None, None, overrides, seed), has_window=has_window)
        place = _place(output_dir)
        _leave(commands.profile(target, tool.value, arm, options, place, _screen(is_json)))
    else:
        raise SuiteError("profile: give a scenario to run, or a capture with --import FILE")


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(help="A .gguf file.", metavar="FILE")],
    folder: Annotated[Path, typer.Argument(help="A new folder for the checkpoint.", metavar="FOLDER")],
) -> None:
    """Make a GGUF file a checkpoint folder (float32), for a scenario's model: {path: FOLDER}."""
    from runner.gguf import convert_gguf

    convert_gguf(file, folder)
    typer.echo(f"{folder}: model: {{path: {folder.absolute()}}}")


@app.command()
def micro(
    device: Annotated[
        str, typer.Option("--device", help="auto, cuda, process or inline.", metavar="KIND")
    ] = "auto",
    model: Annotated[
        str, typer.Option("--model", help="Whose linear layers and width are measured.", metavar="NAME")
    ] = "tiny-qwen3",
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", help="Compute threads of a CPU device; 1.", metavar="N", parser=_whole_number
        ),
    ] = None,
    dtype: Annotated[
        DataType, typer.Option("--dtype", help="What the ceilings' products compute in.")
    ] = DataType.FLOAT32,
    only: Annotated[
        str | None,
        typer.Option("--only", help="Groups or names of measurements: a,b.", metavar="NAMES"),
    ] = None,
    is_fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure the ceilings anew, though they are kept.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--output-dir",
            "-o",
            help="A folder, such as a run's, for micro.json.",
            metavar="RUN_DIR",
        ),
    ] = None,
    is_json: Json = False,
) -> None:
    """Measure what the machine can do at best, and the parts of a step by themselves.

    Exit code 1 where not everything could be measured, 130 where it was interrupted; what was measured is
    printed and kept.
    """
    from suite import commands

    _leave(
        commands.micro(
            device,
            model,
            1 if threads is None else threads,
            dtype.value,
            only,
            is_fresh,
            output,
            _screen(is_json),
        )
    )


def _options(
    device: str,
    arms: str | None,
    rounds: int | None,
    overrides: list[str] | None,
    seed: int | None,
    cuda_graphs: OnOff | None = None,
) -> Options:
    from suite.plan import Options

    names = tuple(name.strip() for name in arms.split(",")) if arms is not None else None
    given = tuple(overrides or ())
    if cuda_graphs is not None:
        given = (*given, f"runner.cuda_graphs={str(cuda_graphs is OnOff.ON).lower()}")
    return Options(device, names, rounds, given, seed)


def _place(output_dir: str) -> Path:
    if not output_dir:
        raise SuiteError("--output-dir '': it is empty; name a folder")
    return Path(output_dir)


def _screen(is_json: bool) -> Screen:
    from suite.commands import Screen

    return Screen(is_json)


def _leave(code: int) -> None:
    if code:
        raise typer.Exit(code)


def main() -> None:
    """The program. What the terminal's encoding lacks is printed READABLE, never an error.

    Output that nobody takes is no error of the program's: a closed stream is let be, a full disk is told.
    """
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=READABLE)
    given, sys.stdout = sys.stdout, forgiving(sys.stdout)  # `given` stays, or its file would be closed
    code: str | int | None = 0
    is_told = False
    try:
        app(prog_name="suite")
    except SystemExit as leaving:
        code = leaving.code
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except OSError as error:
        if error.filename is not None or error.errno not in _REFUSED:
            raise
        _tell_refusal(error)
        code, is_told = EXIT_USAGE, True
    is_taken = _finish(sys.stdout) is None if is_told else _finish_output()
    _finish(sys.stderr)
    sys.stdout = given
    sys.exit(code if is_taken else code or EXIT_USAGE)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _finish_output() -> bool:
    """Whether standard output took everything, or nobody reads it; if not, that is told."""
    refusal = _finish(sys.stdout)
    if refusal is not None:
        _tell_refusal(refusal)
    return refusal is None or refusal.errno == errno.EPIPE


def _tell_refusal(error: OSError) -> None:
    if error.errno != errno.EPIPE:
        with suppress(OSError):
            text = f"error: standard output cannot be written: {error.strerror}"
            print(text, file=sys.stderr, flush=True)


def _finish(stream: TextIO) -> OSError | None:
    """Write what is left; where that is refused it goes nowhere, so that leaving does not fail on it."""
    try:
        stream.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        with suppress(OSError):
            stream.flush()
        return error
    return None
