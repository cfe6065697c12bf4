"""Runs a plan: a worker for each case, its arms in rounds, every run a record whatever becomes of it.

Knows no engine and no figures: the worker measures, suite/publish.py makes the summary and the page.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Protocol, TextIO

from runner.compilers import COMPILE_TIMEOUT_S
from suite.arms import named_arm
from suite.budget import BudgetPace
from suite.checks import Finding, check_run
from suite.environment import DeviceFacts, utc_text
from suite.errors import SuiteError
from suite.metrics import empty_metrics
from suite.pace import Pace
from suite.plan import Plan, PlannedCase, PlannedRun, Purpose
from suite.precision import MIN_ROUNDS, share_s
from suite.protocol import (
    Finished,
    OpenCase,
    Opened,
    Progress,
    Refused,
    RunArm,
    StorageFailed,
    pack_case,
)
from suite.record import Failure, RunRecord, Status
from suite.store import stored_records
from suite.worker_process import WORKER_COMMAND, Deadline, Interrupted, WorkerGone, WorkerProcess

OPEN_TIMEOUT_S = 300.0
"""Importing torch and building a small model, on a slow disk."""

OPEN_S_PER_GB = 20.0
"""Of weights in float32, which are drawn or read several times."""

CHECK_TIMEOUT_S = 600.0
"""The oracle's own forwards; they are no part of a run's time, nor of its timeout."""

CHECK_OPERATIONS_PER_S = 1e10
"""A slow core's, for a model or traffic that is large."""

COLD = "a round was made by a fresh worker, in the place of one that had failed: no run had warmed it up"

EXIT_FINE = 0
EXIT_WRONG = 1
EXIT_INTERRUPTED = 130

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SHOW_CURSOR = b"\x1b[?25h"
"""A live display hides the cursor; ending at once must not leave it so."""


class Observer(Protocol):
    """Is told how an experiment goes on."""

    def case_started(self, planned: PlannedCase) -> None: ...
    def run_started(self, planned: PlannedCase, run: PlannedRun) -> None: ...
    def run_progressed(self, run: PlannedRun, progress: Progress) -> None: ...
    def run_finished(self, planned: PlannedCase, record: RunRecord) -> None: ...


class Stop:
    """Whether the user asked to stop. The first signal asks; a second ends the process at once.

    `last_words`: the line it ends with, which says what is kept.
    """

    def __init__(self, last_words: str = "") -> None:
        self.is_requested = False
        self._last_words = last_words

    def request(self) -> None:
        self.is_requested = True

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """SIGTERM and SIGHUP ask as well; a SIGHUP that is ignored (nohup) stays so."""
        before = {number: signal.getsignal(number) for number in STOPPING}
        for number in STOPPING:
            if number != signal.SIGHUP or before[number] is not signal.SIG_IGN:
                signal.signal(number, self._interrupt)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        # A terminal that is closed may send SIGHUP twice, and nobody asked twice then.
        if self.is_requested and number != signal.SIGHUP:
            with suppress(OSError, ValueError):  # nobody reads it, or it is closed
                self._say_last_words(sys.stderr)
            os._exit(EXIT_INTERRUPTED)  # a worker sees the end of its input and goes as well
        self.request()

    def _say_last_words(self, stream: TextIO) -> None:
        """Past the stream's own buffer, in which the signal may have come."""
        is_terminal = stream.isatty()
        words = self._last_words.encode(stream.encoding or "utf-8", "backslashreplace")
        line = words + b"\n" if words else b""
        os.write(stream.fileno(), SHOW_CURSOR + b"\n" + line if is_terminal else line)


class Experiment:
    """One execution of a plan. `keep` gets every record as soon as there is one.

    `done`: records of runs that were made before; those runs count as made, and are not made again.
    `schedule` gives the runs of a case, those that were planned where it is not given; each is asked for once
    the record of the one before is there.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path | None,
        observer: Observer,
        stop: Stop,
        keep: Callable[[RunRecord], None],
        on_device: Callable[[DeviceFacts], None],
        is_timed: bool = True,
        worker_command: Sequence[str] = WORKER_COMMAND,
        schedule: Callable[[PlannedCase], Iterable[PlannedRun]] = PlannedCase.runs,
        done: Sequence[RunRecord] = (),
    ) -> None:
        self.records: list[RunRecord] = []
        self.stopped: list[str] = []  # cases with fewer rounds than there might have been, and why
        self._plan = plan
        self._folder = folder
        self._observer = observer
        self._stop = stop
        self._keep = keep
        self._on_device = on_device
        self._is_timed = is_timed
        self._worker_command = worker_command
        self._schedule = schedule
        self._done = {record.run_id: record for record in done}
        self._opening_s: dict[tuple[str, str], float] = {}  # by case: what opening it took, the last time

    def run(self) -> list[RunRecord]:
        """Every run of every case, or those up to the interruption. SuiteError where the disk refuses."""
        begin = time.monotonic()
        for index, planned in enumerate(self._plan.cases):
            if self._stop.is_requested:
                break
            spent_s = time.monotonic() - begin
            if planned.is_budgeted:
                affordable = self._within_budget(planned, index, spent_s)
                run = next(affordable, None)
                if run is not None:
                    self._observer.case_started(planned)
                    self._run_case(planned, chain([run], affordable))
                continue
            self._observer.case_started(planned)
            budget_s = planned.until.budget_s if planned.until else 0.0
            share = share_s(budget_s - spent_s, len(self._plan.cases) - index)
            pace = Pace(planned, share, findings_of=self._findings_of)
            first = len(self.records)
            needed = pace.needed(self._schedule(planned), partial(self._records_from, first))
            if self._run_case(planned, self._undone(needed)) and pace.stopped is not None:
                self.stopped.append(f"{planned.title}: {pace.stopped}")
        return self.records

    def _records_from(self, first: int) -> Sequence[RunRecord]:
        return self.records[first:]

    def _within_budget(self, planned: PlannedCase, index: int, spent_s: float) -> Iterator[PlannedRun]:
        """The runs of a case that there is time for; the cases that are left share what is left."""
        left_s = (self._plan.options.budget_s or 0.0) - spent_s
        share = share_s(left_s, len(self._plan.cases) - index)
        pace = BudgetPace(share, left_s, lambda: self._opening_s.get(planned.key, 0.0))
        return pace.affordable(self._undone(self._schedule(planned)))

    def _run_case(self, planned: PlannedCase, pending: Iterator[PlannedRun]) -> bool:
        """A worker for all runs; a fresh one after a failure, or after each run where they are isolated.

        False where it cannot be opened, and so all of them failed.
        """
        run, is_cold = next(pending, None), False
        while run is not None and not self._stop.is_requested:
            with WorkerProcess(self._worker_command, lambda: self._stop.is_requested) as worker:
                failure = self._open(worker, planned)
                if failure is not None:
                    self._fail_all(planned, chain([run], pending), failure)
                    return False
                can_go_on = True
                while run is not None and can_go_on and not self._stop.is_requested:
                    can_go_on = self._run_arm(worker, planned, run, is_cold) and not _is_alone(planned, run)
                    run, is_cold = next(pending, None), False
            is_cold = not planned.is_isolated
        return True

    def _undone(self, runs: Iterable[PlannedRun]) -> Iterator[PlannedRun]:
        """The runs less those that were made before, whose records take their place among ours."""
        for run in runs:
            record = self._done.get(run.run_id)
            if record is None:
                yield run
            else:
                self.records.append(record)

    def _findings_of(self, record: RunRecord) -> Sequence[Finding]:
        """What a run that was stored breaks by itself."""
        if self._folder is None:
            return ()
        try:
            requests, steps = stored_records(self._folder, record.run_id)
        except SuiteError:
            return ()  # who reads the folder is told of it
        return check_run(record, requests, steps)

    def _open(self, worker: WorkerProcess, planned: PlannedCase) -> Failure | None:
        """Open the case; what is wrong with it would be wrong in every worker."""
        opening = OpenCase(
            case=pack_case(planned.case),
            seed=planned.seed,
            device=self._plan.device,
            workload_hash=planned.workload_hash,
            folder=str(self._folder) if self._folder else None,
            is_timed=self._is_timed and planned.purpose is not Purpose.TOKENS,
        )
        begin = time.monotonic()
        try:
            worker.send(opening)
            reply = worker.receive(Deadline(_open_timeout_s(planned), "opening the device"))
        except WorkerGone as gone:
            return gone.failure
        except Interrupted:
            worker.kill()
            return None
        if isinstance(reply, Refused):
            return reply.failure
        assert isinstance(reply, Opened), f"asked to open, the worker said {reply!r}"
        self._opening_s[planned.key] = time.monotonic() - begin
        self._on_device(reply.device)
        return None

    def _run_arm(self, worker: WorkerProcess, planned: PlannedCase, run: PlannedRun, is_cold: bool) -> bool:
        """One run and its record; False where its worker can take no other.

        `is_cold`: nothing has warmed this worker up, where others were.
        """
        self._observer.run_started(planned, run)
        command = RunArm(
            run_id=run.run_id,
            arm=run.arm,
            round=run.round,
            is_warmup=run.is_warmup,
            rotation=run.rotation,
            instrument=run.instrument,
            sync_check=run.sync_check,
            is_traced=run.is_traced,
            has_window=run.has_window,
            repeats=dict(run.repeats),
            turns=run.turns,
            is_aa=run.is_aa,
        )
        begin = time.monotonic()
        try:
            worker.send(command)
            reply = self._await_finish(worker, planned, run)
        except (WorkerGone, Interrupted) as gone:
            worker.kill()
            self._add(planned, self._lost(planned, run, time.monotonic() - begin, gone))
            return False
        record = reply.record
        if is_cold and run.is_of_round:
            record = record.model_copy(update={"warnings": (*record.warnings, COLD)})
        self._add(planned, record)
        return not reply.is_leaving

    def _await_finish(self, worker: WorkerProcess, planned: PlannedCase, run: PlannedRun) -> Finished:
        deadline = Deadline(planned.timeout_s, "the run")
        while True:
            reply = worker.receive(deadline)
            if isinstance(reply, StorageFailed):
                raise SuiteError(reply.message)
            if isinstance(reply, Finished):
                return reply
            assert isinstance(reply, Progress), f"in a run, the worker said {reply!r}"
            if reply.phase == "check":
                deadline = Deadline(_check_timeout_s(planned), "checking the tokens")
            self._observer.run_progressed(run, reply)

    def _fail_all(self, planned: PlannedCase, pending: Iterable[PlannedRun], failure: Failure) -> None:
        for run in pending:
            if planned.until is not None and run.is_of_round and run.round >= MIN_ROUNDS:
                continue  # which of those there would have been nobody knows
            self._add(planned, self._lost(planned, run, 0.0, WorkerGone(failure)))

    def _lost(
        self,
        planned: PlannedCase,
        run: PlannedRun,
        duration_s: float,
        cause: WorkerGone | Interrupted,
    ) -> RunRecord:
        """The record of a run of which nothing came back."""
        case, failure = planned.case, _failure(cause)
        return RunRecord(
            run_id=run.run_id,
            arm=run.arm,
            round=run.round,
            is_warmup=run.is_warmup,
            scenario=case.scenario.name,
            case_id=case.case_id,
            case_label=case.label,
            case_values=dict(case.values),
            status=Status.INTERRUPTED if isinstance(cause, Interrupted) else Status.FAILED,
            device=self._plan.device,
            dtype=case.runner_config.dtype,
            image_attention=planned.image_attention,
            seed=planned.seed,
            workload_hash=planned.workload_hash,
            started_utc=utc_text(datetime.now(UTC) - timedelta(seconds=duration_s)),
            duration_s=duration_s,
            metrics=empty_metrics(failure.message),
            failure=failure,
            notes=planned.notes,
            num_requests=planned.num_requests,
            is_control=not named_arm(run.arm).is_right,
            rotation=run.rotation,
            instrument=run.instrument,
            sync_check=run.sync_check,
            repeats=run.repeats,
            turns=run.turns,
            is_aa=run.is_aa,
        )

    def _add(self, planned: PlannedCase, record: RunRecord) -> None:
        self._keep(record)
        self.records.append(record)
        self._observer.run_finished(planned, record)


def _open_timeout_s(planned: PlannedCase) -> float:
    compiling_s = COMPILE_TIMEOUT_S if planned.case.runner_config.torch_compile else 0.0
    return OPEN_TIMEOUT_S + compiling_s + OPEN_S_PER_GB * planned.weight_bytes / 1e9


def _check_timeout_s(planned: PlannedCase) -> float:
    """A multiplication and an addition for each weight, of 4 bytes, and position."""
    operations = planned.num_positions * planned.weight_bytes / 2
    return CHECK_TIMEOUT_S + operations / CHECK_OPERATIONS_PER_S


def _is_alone(planned: PlannedCase, run: PlannedRun) -> bool:
    """Whether a run shares its worker with no other: runs with repeats replay the first of them, there."""
    return planned.is_isolated and not run.repeats


def _failure(cause: WorkerGone | Interrupted) -> Failure:
    if isinstance(cause, WorkerGone):
        return cause.failure
    return Failure(kind="interrupted", message="the user stopped the experiment")


def exit_code(records: Sequence[RunRecord], is_interrupted: bool) -> int:
    """The command's exit code: 1 where a run failed or a right arm has wrong tokens or log-probabilities."""
    if is_interrupted:
        return EXIT_INTERRUPTED
    return EXIT_WRONG if any(map(_is_bad, records)) else EXIT_FINE


def _is_bad(record: RunRecord) -> bool:
    if record.status is Status.FAILED:
        return True
    has_wrong_tokens = record.tokens is not None and record.tokens.num_wrong > 0
    has_wrong_logprobs = record.logprobs is not None and record.logprobs.num_wrong > 0
    return (has_wrong_tokens or has_wrong_logprobs) and not record.is_control
