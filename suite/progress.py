"""What the terminal shows: progress while an experiment runs, its results at the end.

Lines without escape codes where the output is no terminal; nothing here decides anything.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self, TextIO, cast

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from suite.bill import text_lines
from suite.case_label import case_title
from suite.checks import Finding, broken_rules
from suite.metrics import CACHING_OFF, NO_GATES, SPECULATION_OFF
from suite.plan import Plan, PlannedCase, PlannedRun
from suite.protocol import Progress
from suite.publish import Published
from suite.record import LogprobVerdict, RunRecord, Status, TokenVerdict
from suite.report.attribution_text import break_even_lines
from suite.report.attribution_text import lines as attribution_lines
from suite.report.wording import number, rounds_used
from suite.summary import ArmSummary

# The live display redraws this often: each redraw takes time from the runner's cores.
_REDRAWS_PER_SECOND = 2

_UNBOUNDED = 10_000

WRONG_ARM, WRONG_TOKENS = "wrong arm", "wrong tokens"
"""Stand for the speed of a negative control and of an arm with wrong tokens: it is never judged."""

_THIN = "*"
"""Marks a percentile of too few samples."""

_OPTIONAL = (
    ("good req/s", "request_goodput"),
    ("cache hits %", "prefix_cache_hit_rate"),
    ("drafts accepted %", "acceptance_rate"),
)
"""Columns of what a scenario may switch on."""
_LATENCIES = (("TTFT", "ttft_ms"), ("ITL", "itl_ms"), ("E2E", "e2e_ms"))


def make_console(stream: TextIO) -> Console:
    """A console that prints names as they are, whatever brackets are in them.

    A file or a pipe has no width of its own: lines are as long as they must be, or as COLUMNS says.
    """
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _UNBOUNDED
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # an OSError like any other: rich itself would end the program


class _LastingStream(io.TextIOBase):
    """A stream that goes on in silence once nobody reads it: progress never ends an experiment."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_dead = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, act: Callable[[], object]) -> None:
        if self._is_dead:
            return
        try:
            act()
        except (OSError, ValueError):  # ValueError: it was closed
            self._is_dead = True


def make_progress_console(stream: TextIO) -> Console:
    """A console for progress: what its stream refuses is dropped."""
    return make_console(cast(TextIO, _LastingStream(stream)))


class LineProgress:
    """A line for each finished run. `num_runs` is None where it is not known yet; `num_done` were before."""

    def __init__(self, console: Console, num_runs: int | None, num_done: int = 0) -> None:
        self._console = console
        self._total = "" if num_runs is None else f"/{num_runs}"
        self._num_finished = num_done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def case_started(self, planned: PlannedCase) -> None:
        arms = ", ".join(planned.arms)
        self._console.print(
            f"{planned.title}: {planned.num_requests} requests, arms {arms}, {planned.runs_text}"
        )

    def run_started(self, planned: PlannedCase, run: PlannedRun) -> None:
        return None

    def run_progressed(self, run: PlannedRun, progress: Progress) -> None:
        return None

    def run_finished(self, planned: PlannedCase, record: RunRecord) -> None:
        self._num_finished += 1
        self._console.print(
            f"  [{self._num_finished}{self._total}] {_run_name(record.arm, record)}: {outcome(record)}"
        )


class LiveProgress:
    """One bar over all runs with the state of the run in flight; failures stay above it."""

    def __init__(self, console: Console, num_runs: int | None, num_done: int = 0) -> None:
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=_REDRAWS_PER_SECOND,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=num_runs, completed=num_done)
        self._title = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def case_started(self, planned: PlannedCase) -> None:
        self._title = planned.title
        self._describe("opening the device")

    def run_started(self, planned: PlannedCase, run: PlannedRun) -> None:
        self._describe(_run_name(run.arm, run))

    def run_progressed(self, run: PlannedRun, progress: Progress) -> None:
        if progress.phase == "check":
            self._describe(f"{_run_name(run.arm, run)}: checking tokens")
        else:
            self._describe(
                f"{_run_name(run.arm, run)}: {progress.num_steps} steps, "
                f"{progress.num_sent}/{progress.num_requests} requests sent"
            )

    def run_finished(self, planned: PlannedCase, record: RunRecord) -> None:
        self._bar.advance(self._task)
        if record.status is not Status.COMPLETED or _has_wrong_tokens(record):
            self._bar.console.print(f"{planned.title}, {_run_name(record.arm, record)}: {outcome(record)}")

    def _describe(self, text: str) -> None:
        self._bar.update(self._task, description=f"{self._title}: {text}")


Shown = LineProgress | LiveProgress


def make_progress(console: Console, plan: Plan | None, num_done: int = 0) -> AbstractContextManager[Shown]:
    """Live where the stream is a terminal that can, lines elsewhere. None: how many runs is not known yet.

    `num_done` of them were made before.
    """
    is_live = console.is_terminal and not console.is_dumb_terminal
    kind = LiveProgress if is_live else LineProgress
    is_known = plan is not None and not any(case.is_open_ended for case in plan.cases)
    return kind(console, plan.num_runs if plan is not None and is_known else None, num_done)


def _run_name(arm: str, run: PlannedRun | RunRecord) -> str:
    if run.rotation is not None:
        return f"{arm}, order {run.rotation + 1}"
    if run.sync_check != "off":
        return f"{arm}, check for silent waits"
    if run.repeats:
        return f"{arm}, {_repeats_text(run)}"
    kind = "warm-up round" if run.is_warmup else "round" if run.instrument == "off" else "instrumented round"
    kind = "repeat in round" if run.is_aa else kind
    return f"{arm}, {kind} {run.round + 1}"


def _repeats_text(run: PlannedRun | RunRecord) -> str:
    """ "upload.is_token_ids repeated, round 2" """
    if run.is_warmup:
        return "the steps to be repeated"
    if run.instrument != "off":
        return "the same steps with device spans"
    spans = list(run.repeats)
    named = spans[0] if len(spans) == 1 else f"{len(spans)} spans in turn"
    return f"{named} repeated, round {run.round + 1}"


def outcome(record: RunRecord) -> str:
    """One run in one line."""
    if record.failure is not None:
        return f"{record.status.value.upper()}: {record.failure.kind}: {record.failure.message}"
    throughput = record.metrics["output_throughput"].value
    speed = f"{number(throughput)} tok/s" if throughput is not None else "no throughput"
    tokens = control_text(record.tokens) if record.is_control else tokens_text(record.tokens)
    logprobs = "" if record.is_control else logprobs_text(record.logprobs)
    return f"{speed}, {record.num_steps} steps, {record.duration_s:.2f} s, {tokens}{logprobs}"


def tokens_text(tokens: TokenVerdict | None) -> str:
    """ "512 right", "3 of 512 WRONG", with ties where there are any."""
    if tokens is None:
        return "tokens not checked"
    ties = f", {tokens.num_ties} ties" if tokens.num_ties else ""
    if tokens.num_wrong:
        return f"{tokens.num_wrong} of {tokens.num_checked} tokens WRONG{ties}"
    return f"{tokens.num_right} tokens right{ties}"


def logprobs_text(found: LogprobVerdict | None) -> str:
    """ ", log-probabilities right to 2e-06" where any were checked."""
    if found is None:
        return ""
    if found.num_wrong:
        return f", log-probabilities of {found.num_wrong} of {found.num_checked} tokens WRONG"
    return f", log-probabilities right to {found.max_error or 0:.1g}"


def control_text(tokens: TokenVerdict | None, verdict: str = "negative control") -> str:
    """ "wrong, as it must be: 12 of 512 tokens wrong"; never in the capitals of a fault."""
    if tokens is None:
        return tokens_text(tokens)
    return f"{verdict}: {tokens.num_wrong} of {tokens.num_checked} tokens wrong"


def _has_wrong_tokens(record: RunRecord) -> bool:
    return record.tokens is not None and record.tokens.num_wrong > 0 and not record.is_control


# Results


def print_results(console: Console, published: Published) -> None:
    """The table of arms, what was skipped and doubted, and where the report is."""
    if published.arms:
        _print_arms(console, published.arms)
    for bill in published.bills:
        for line in ["", *text_lines(bill), ""]:
            console.print(line)
    for text in (*attribution_lines(published.attribution), *break_even_lines(published.break_even)):
        console.print(text)
    if published.data is not None:
        from suite.answer_table import print_answers  # it loads pandas, which is slow

        print_answers(console, published.data.scenarios)
        console.print()
    for name, reason in published.skipped:
        console.print(f"skipped {name}: {reason}")
    for text in published.warnings:
        console.print(f"warning: {text}")
    for text in _findings(published.findings):
        console.print(text)
    for text in _last_lines(published):
        console.print(text)


def _last_lines(published: Published) -> Iterable[str]:
    """What of the run is missing, and where the report is."""
    if published.is_interrupted:
        yield "interrupted: these are partial results"
    if published.data is not None and published.data.progress:
        yield f"still running: {published.data.progress}; make the report again once it has ended"
    yield f"report: {published.report}"


def _findings(findings: Sequence[Finding]) -> Iterable[str]:
    """A line for each rule that was broken: what the first run of it showed stands for all."""
    rules: dict[str, list[Finding]] = {}
    for finding in findings:
        rules.setdefault(finding.rule, []).append(finding)
    for rule, found in rules.items():
        num_more = len({finding.run_id for finding in found}) - 1
        more = f" (and {num_more} more {'run' if num_more == 1 else 'runs'} like it)" if num_more else ""
        yield f"INVALID ({rule}): {found[0].message}{more}; {found[0].remedy}"


def _print_arms(console: Console, arms: Sequence[ArmSummary]) -> None:
    """A table where it fits, else a block of lines for each arm."""
    header = ["case", "arm", "tokens", "output tok/s"]
    header += [f"{name} ms p50 / p99" for name, _ in _LATENCIES]
    optional = [(word, metric) for word, metric in _OPTIONAL if any(_is_on(arm, metric) for arm in arms)]
    header += [word for word, _ in optional]
    header += ["steps", "valid"]
    rows = [_cells(arm, [metric for _, metric in optional]) for arm in arms]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index < 3 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    if Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table).maximum <= console.width:
        console.print(table, soft_wrap=False)
        console.print("medians over n valid rounds; p50 and p99 are each round's own percentiles")
    else:
        for row in rows:
            for name, cell in zip(header, row, strict=True):
                console.print(f"{name}: {cell}")
            console.print()
    if any(_THIN in cell for row in rows for cell in row[4:]):
        console.print(f"{_THIN} of fewer than 100 samples a round: little else than the maximum")


def _is_on(arm: ArmSummary, metric: str) -> bool:
    """Whether what a metric is about was switched on."""
    found = arm.metrics.get(metric)
    return found is not None and found.reason not in (CACHING_OFF, SPECULATION_OFF, NO_GATES)


def _cells(arm: ArmSummary, optional: Sequence[str]) -> list[str]:
    latencies = [
        f"{_median(arm, f'median_{metric}')} / {_median(arm, f'p99_{metric}')}" for _, metric in _LATENCIES
    ]
    throughput = f"{_median(arm, 'output_throughput')} ({_rounds_used(arm)})"
    tokens = tokens_text(arm.tokens)
    if arm.control is not None:
        tokens = control_text(arm.tokens, arm.control)
    if arm.has_no_speed:
        word = WRONG_TOKENS if arm.control is None else WRONG_ARM
        throughput, latencies = word, [word] * len(latencies)
    return [
        case_title(arm.scenario, arm.case_label),
        arm.arm,
        tokens,
        throughput,
        *latencies,
        *(_optional_cell(arm, metric) for metric in optional),
        _median(arm, "steps"),
        _validity(arm),
    ]


def _rounds_used(arm: ArmSummary) -> str:
    """ "n=6"; what became of the others where some are INVALID."""
    count = arm.num_rounds - arm.num_invalid
    if not arm.num_invalid:
        return f"n={count}"
    rules = dict.fromkeys(rule for broken in broken_rules(arm.findings).values() for rule in broken)
    return rounds_used(count, arm.num_rounds, arm.num_invalid, tuple(rules)).replace("\u00a0", " ")


def _optional_cell(arm: ArmSummary, metric: str) -> str:
    if metric == "request_goodput" and arm.has_no_speed:
        return WRONG_TOKENS if arm.control is None else WRONG_ARM
    return _median(arm, metric) if _is_on(arm, metric) else "off"


def _validity(arm: ArmSummary) -> str:
    """Without any round there are no times to believe or not, and no rule was broken."""
    if not arm.num_rounds and not arm.findings:
        return "n/a"
    return "yes" if arm.is_valid else "NO"


def _median(arm: ArmSummary, metric: str) -> str:
    summary = arm.metrics.get(metric)
    if summary is None or summary.median is None:
        return "n/a"
    return f"{number(summary.median)}{_THIN if summary.caution else ''}"
