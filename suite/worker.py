"""The process that runs one case's arms: the only file of the suite that reaches the engine.

Started by suite/experiment.py, it obeys commands from its standard input and answers on
its standard output. It dies with the suite: the end of its input ends it at once, whatever it is doing.
"""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from runner.config import Decision
from runner.core import (
    DeviceError,
    FinishReason,
    FloatType,
    Request,
    RequestState,
    RunnerError,
    usable_cores,
)
from runner.device.base import CUDA, Device, cuda_holds, open_device
from runner.engine import Engine
from runner.inputs.arms import Arm
from runner.measure import Instrument, Recorder, StepRecord, Timeline, now_ns
from runner.spans import Span, records_device
from suite.arms import named_arm
from suite.arrival_kinds import is_closed_loop, most_at_once, settles
from suite.arrivals import WorkloadArrivals, arrivals_for
from suite.cpu_use import CpuMeter
from suite.environment import DeviceFacts, utc_text
from suite.errors import SuiteError
from suite.gpu_use import GpuWatch, watch_for
from suite.logprob_check import check_logprobs
from suite.memory_errors import OUT_OF_MEMORY, tells_out_of_memory
from suite.metrics import NONE_COMPLETED, is_completed, run_metrics
from suite.model_source import weight_bytes
from suite.prediction import predicts_wrong
from suite.profile.window import CaptureWindow
from suite.protocol import (
    Close,
    Finished,
    OpenCase,
    Opened,
    Progress,
    Refused,
    RunArm,
    StorageFailed,
    read_command,
    unpack_case,
)
from suite.record import (
    CompileUse,
    CpuUse,
    Failure,
    GpuUse,
    LogprobVerdict,
    RequestRecord,
    RunRecord,
    Settles,
    Status,
    StepListRecord,
    TokenVerdict,
)
from suite.replay import RecordedArrivals, RecordedSteps, ReplayedArrivals, StepArrivals, first_difference
from suite.steady import SteadyWindow
from suite.step_list_check import first_other_step, lead_in_ranges, list_hash
from suite.step_list_commands import command_digests
from suite.store import RunFolder
from suite.supplied import embedding_lookup
from suite.token_case import choose, rotated
from suite.token_text import TokenTexts
from suite.tolerance import TOLERANCES
from suite.workload import Workload, WorkloadRequest, build_workload, materialise

if TYPE_CHECKING:
    from suite.oracle import Check, Oracle
    from suite.scenario import Case

PROGRESS_PERIOD_NS = 500_000_000
MAX_DETAIL = 4000
TRACED = "recorded by torch's profiler, which makes every operation longer"
MAX_SHOWN_REQUESTS = 3
_ROOM = 2  # times the weights in float32: those, and all that a runner keeps in 16 bits
_EARLY = (FinishReason.EOS.value, FinishReason.STOP.value)

Poll = Callable[[int, int], None]
Send = Callable[[Opened | Refused | Progress | Finished | StorageFailed], None]


def main() -> None:
    """Serve commands until told to close; exits with 0 then, with 1 where the input just ends."""
    replies = _take_stdout()
    commands = _listen(_take_stdin())

    def send(reply: Opened | Refused | Progress | Finished | StorageFailed) -> None:
        replies.write(reply.line())
        replies.flush()

    opening = commands.get()
    if isinstance(opening, OpenCase):
        serve(opening, commands.get, send)


def _take_stdout() -> BinaryIO:
    """Standard output for us alone: whatever prints to it later reaches standard error instead."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _take_stdin() -> BinaryIO:
    """Standard input for us alone: no child may read our commands."""
    commands = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return commands


def _listen(source: BinaryIO) -> queue.SimpleQueue[OpenCase | RunArm | Close]:
    """Reads commands on a thread, so that the suite's death is seen in the middle of a step too."""
    commands: queue.SimpleQueue[OpenCase | RunArm | Close] = queue.SimpleQueue()

    def listen() -> None:
        for line in source:
            command = read_command(line)
            commands.put(command)
            if isinstance(command, Close):
                return
        os._exit(1)

    threading.Thread(target=listen, name="commands", daemon=True).start()
    return commands


def serve(opening: OpenCase, next_command: Callable[[], OpenCase | RunArm | Close], send: Send) -> None:
    """Open the case, run arms until Close, or until a run left the device in an unknown state."""
    try:
        case = unpack_case(opening.case)
        workload = build_workload(case, opening.seed)
        _check_hash(workload, opening)
        device, oracle = _open(opening.device, case)
    except Exception as error:
        send(Refused(failure=_failure(error)))
        return
    gc.collect()
    gc.freeze()  # what is loaded now stays: a collection before each run need not look at it
    try:
        send(Opened(device=DeviceFacts(**asdict(device.info))))
        case_runner = CaseRunner(case, workload, opening, device, oracle, send)
        while isinstance(command := next_command(), RunArm):
            try:
                finished = case_runner.run(command)
            except SuiteError as error:
                send(StorageFailed(message=str(error)))
                return
            send(finished)
            if finished.is_leaving:
                return
    finally:
        device.close()


def _open(kind: str, case: Case) -> tuple[Device, Oracle]:
    """The device and the oracle. Each loads a model for seconds: at once, where in two processes."""
    if kind != "process":  # one process must not import torch on two threads
        oracle = _make_oracle(kind, case)
        return open_device(kind, case.model_spec, case.runner_config), oracle
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(_make_oracle, kind, case)
        device = open_device(kind, case.model_spec, case.runner_config)
        try:
            return device, making.result()
        except BaseException:
            device.close()
            raise


def _make_oracle(kind: str, case: Case) -> Oracle:
    """Where the device computes, which is idle when the oracle works, and with as many threads.

    On a GPU that has no room for it, in float32, beside the runner: on all cores, which may take hours.
    """
    from suite.oracle import Oracle

    model, config = case.model_spec, case.runner_config
    if kind != CUDA:
        return Oracle(model, config.num_threads, config.dtype, "cpu")
    has_room = cuda_holds(_ROOM * weight_bytes(model, "float32"))
    return Oracle(model, usable_cores(), config.dtype, CUDA if has_room else "cpu")


def _check_hash(workload: Workload, opening: OpenCase) -> None:
    if workload.hash != opening.workload_hash:
        raise SuiteError(
            f"the workload has hash {workload.hash}, it had {opening.workload_hash} when the "
            "experiment began: a file it is made of has changed; run again"
        )


def _failure(error: Exception) -> Failure:
    """An exception as a value; a user's mistake needs no traceback."""
    if isinstance(error, DeviceError):
        text = error.traceback_text[-MAX_DETAIL:]
        is_memory = tells_out_of_memory(f"{error}\n{text}")
        hint = " (as the system does where memory runs out)" if "(signal 9)" in str(error) else ""
        return Failure(kind=OUT_OF_MEMORY if is_memory else "device", message=f"{error}{hint}", detail=text)
    if isinstance(error, (SuiteError, RunnerError)):
        return Failure(kind="refused", message=str(error))
    text = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {error}"
    kind = OUT_OF_MEMORY if tells_out_of_memory(message) else "error"
    return Failure(kind=kind, message=message, detail=text[-MAX_DETAIL:])


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One engine's run, as raw values; of an engine that could not be made there are none."""

    started_utc: str
    duration_s: float
    arrivals: WorkloadArrivals
    states: Mapping[str, RequestState]
    timelines: Mapping[str, Timeline]
    steps: Sequence[StepRecord]
    spans: Sequence[Span]
    waits: tuple[str, ...]  # silent ones, where they were looked for
    decision: Decision | None
    failure: Failure | None
    cpu: CpuUse | None
    gpu: GpuUse | None
    compiled: CompileUse | None


class CaseRunner:
    """Runs arms of one case, each on a fresh engine, over one device and one oracle."""

    def __init__(
        self,
        case: Case,
        workload: Workload,
        opening: OpenCase,
        device: Device,
        oracle: Oracle,
        send: Send,
    ) -> None:
        self._case = case
        self._workload = workload
        self._opening = opening
        self._device = device
        self._dtype = case.runner_config.dtype
        self._oracle = oracle
        self._send = send
        folder = case.model_spec.checkpoint
        self._texts = TokenTexts(None if folder is None else Path(folder))
        self._gpu = watch_for(opening.device)
        self._supplied: tuple[WorkloadRequest, ...] | None = None
        self._recorded: dict[str, tuple[RecordedSteps, Mapping[str, Check]]] = {}
        self._commands: dict[str, Mapping[str, str]] = {}  # of an arm, by kind of step

    def run(self, command: RunArm) -> Finished:
        """One run, its record made and its tables stored. SuiteError where the disk refuses."""
        arm = named_arm(command.arm)
        given = self._given(arm)
        if command.rotation is not None:
            given = rotated(choose(given), command.rotation)
        with self._traced(command):
            outcome = self._measure(arm, given, command)
        self._send(Progress(phase="check"))
        requests = self._requests(outcome, given)
        failure = outcome.failure or _nothing_completed(requests)
        checks: Mapping[str, Check] = {}
        logprobs = None
        try:
            if command.arm in self._recorded and command.repeats:
                checks = self._check_replay(command, outcome, requests)
            else:
                checks = self._check(requests, given)
                logprobs = self._check_logprobs(outcome, requests, given)
                self._keep_steps(command, outcome, requests, checks)
        except Exception as error:
            failure = failure or _failure(error)
        requests = [_with_check(one, checks.get(one.request_id), self._texts) for one in requests]
        self._store(command.run_id, outcome, requests)
        record = self._record(command, outcome, requests, checks, failure)
        record = record.model_copy(update={"logprobs": logprobs})
        if record.is_control and command.rotation is not None:
            record = record.model_copy(update={"predicts_wrong": self._predicts_wrong(arm, given, requests)})
        return Finished(record=record, is_leaving=outcome.failure is not None)

    @contextmanager
    def _traced(self, command: RunArm) -> Iterator[None]:
        """Torch's profiler around a run that asks for it. A device that failed has no trace to give."""
        if not command.is_traced or self._opening.folder is None:
            yield
            return
        path = RunFolder(Path(self._opening.folder)).trace_file(command.run_id).absolute()
        temporary = path.with_name(f".{path.name}.tmp")
        self._device.start_trace()
        yield
        with suppress(DeviceError):
            self._device.write_trace(str(temporary))
            temporary.replace(path)

    @contextmanager
    def _windowed(
        self, command: RunArm, recorder: Recorder, instrument: Instrument, report: Poll
    ) -> Iterator[Poll]:
        """What is to be called between steps: `report`, and the capture window where one is asked for."""
        if not command.has_window:
            yield report
            return
        device = self._device
        window = CaptureWindow(instrument.ranges, SteadyWindow(), device.start_capture, device.stop_capture)

        def poll(time_ns: int, num_sent: int) -> None:
            window.poll(recorder.steps)
            report(time_ns, num_sent)

        try:
            yield poll
        finally:
            window.close()

    def _given(self, arm: Arm) -> tuple[WorkloadRequest, ...]:
        """The requests as this arm gets them: as token ids, or with their rows supplied."""
        if not arm.prompt_embeds:
            return self._workload.requests
        if self._supplied is None:
            self._supplied = materialise(self._workload, embedding_lookup(self._case.model_spec, self._dtype))
        return self._supplied

    def _predicts_wrong(
        self, arm: Arm, given: Sequence[WorkloadRequest], requests: Sequence[RequestRecord]
    ) -> bool | None:
        """Whether the flags predict wrong tokens; unknown where an early end changed the steps."""
        if any(request.finish_reason in _EARLY for request in requests):
            return None
        return predicts_wrong(self._case, arm, [item.request for item in given])

    def _measure(self, arm: Arm, given: Sequence[WorkloadRequest], command: RunArm) -> _Outcome:
        """The timed part: nothing in it but the engine, and a word of progress now and then."""
        recorder, instrument = Recorder(), Instrument(command.instrument, sync_check=command.sync_check)
        states: Mapping[str, RequestState] = {}
        failure, decision = None, None
        gc.collect()
        started_utc = utc_text(datetime.now(UTC))
        arrivals = self._arrivals(given, command)
        self._gpu.start()
        meter = CpuMeter()
        try:
            engine = Engine(
                self._case.model_spec,
                self._case.runner_config,
                self._device,
                arm,
                instrument,
                command.repeats,
                command.turns,
            )
            recorder, states, decision = engine.recorder, engine.requests, engine.decision
            reporter = _Reporter(recorder, len(given), self._send, self._gpu)
            with self._windowed(command, recorder, instrument, reporter.poll) as poll:
                arrivals.start(poll, partial(_ended_ns, engine))
                engine.run(arrivals)
        except Exception as error:
            failure = _failure(error)
        duration_s = (now_ns() - arrivals.start_ns) / 1e9
        cpu, gpu = meter.use(), self._gpu.use()
        return _Outcome(
            started_utc,
            duration_s,
            arrivals,
            states,
            recorder.timelines,
            recorder.steps,
            instrument.spans,
            self._waits(failure),
            decision,
            failure,
            cpu,
            gpu,
            None if failure else self._compiled(),
        )

    def _compiled(self) -> CompileUse | None:
        found = self._device.info.compiled
        if found is None:
            return None
        return CompileUse(**asdict(found), num_within=self._device.num_recompiled())

    def _waits(self, failure: Failure | None) -> tuple[str, ...]:
        """Of the run just made; nothing can be asked of a device that failed."""
        return () if failure else tuple(found.text for found in self._device.sync_findings())

    def _arrivals(self, given: Sequence[WorkloadRequest], command: RunArm) -> WorkloadArrivals:
        """By their schedule; of a run with repeats, as in the first such run of its arm."""
        if command.repeats and command.arm in self._recorded:
            return ReplayedArrivals(given, self._recorded[command.arm][0].handed_at)
        arrivals: WorkloadArrivals
        if self._has_steps(command):
            arrivals = StepArrivals(given)
        else:
            arrivals = arrivals_for(self._case.scenario.traffic.arrivals, given, self._opening.is_timed)
        return RecordedArrivals(arrivals) if command.repeats else arrivals

    def _has_steps(self, command: RunArm) -> bool:
        """Whether a run plays a list of steps; a token check serves a few requests of it, all at once."""
        return bool(self._workload.steps) and command.rotation is None

    def _step_list(self, command: RunArm, steps: Sequence[StepRecord]) -> StepListRecord | None:
        if not self._has_steps(command):
            return None
        arm, listed = named_arm(command.arm), self._workload.steps
        if command.arm not in self._commands:
            self._commands[command.arm] = command_digests(self._case, arm, self._given(arm), listed)
        return StepListRecord(
            hash=list_hash(listed),
            num_steps=len(listed),
            lead_in=lead_in_ranges(listed),
            commands=self._commands[command.arm],
            difference=first_other_step(listed, steps, has_rows=arm.prompt_embeds),
        )

    def _keep_steps(
        self,
        command: RunArm,
        outcome: _Outcome,
        requests: Sequence[RequestRecord],
        checks: Mapping[str, Check],
    ) -> None:
        """A first run with repeats that came to its end is what later ones replay."""
        if outcome.failure is None and isinstance(outcome.arrivals, RecordedArrivals):
            steps = RecordedSteps(
                command.run_id,
                tuple(outcome.arrivals.handed_at),
                tuple(outcome.steps),
                _output_ids(requests),
                command.repeats,
                command.turns,
            )
            self._recorded[command.arm] = (steps, checks)

    def _check_replay(
        self, command: RunArm, outcome: _Outcome, requests: Sequence[RequestRecord]
    ) -> Mapping[str, Check]:
        """The oracle's word on the first run, whose tokens these are; SuiteError for other steps."""
        first, checks = self._recorded[command.arm]
        output_ids = _output_ids(requests)
        difference = first_difference(first, outcome.steps, output_ids, command.repeats, command.turns)
        if outcome.failure is None and difference is not None:
            raise SuiteError(f"the run cannot be held against the others of its arm: {difference}")
        return checks if difference is None else {}

    def _requests(self, outcome: _Outcome, given: Sequence[WorkloadRequest]) -> list[RequestRecord]:
        return [
            request_record(
                item,
                outcome.arrivals.scheduled_ns(index),
                outcome.states.get(item.request.request_id),
                outcome.timelines.get(item.request.request_id),
            )
            for index, item in enumerate(given)
        ]

    def _check(
        self, requests: Sequence[RequestRecord], given: Sequence[WorkloadRequest]
    ) -> Mapping[str, Check]:
        """Every completed request held against the oracle, as the arm got it."""
        asked = {item.request.request_id: item.request for item in given}
        return {
            request.request_id: self._oracle.check(asked[request.request_id], request.output_ids)
            for request in requests
            if is_completed(request)
        }

    def _check_logprobs(
        self, outcome: _Outcome, requests: Sequence[RequestRecord], given: Sequence[WorkloadRequest]
    ) -> LogprobVerdict | None:
        """Those of every completed request that asked for any; None where none did."""
        asked = {item.request.request_id: item.request for item in given}
        completed = [request for request in requests if is_completed(request)]
        return check_logprobs(self._oracle, completed, asked, outcome.states, self._dtype)

    def _max_concurrency(self) -> int | None:
        """How many requests the schedule let in at once; None where a closed loop is the schedule."""
        arrivals = self._case.scenario.traffic.arrivals
        is_limited = self._opening.is_timed and not is_closed_loop(arrivals)
        return most_at_once(arrivals) if is_limited else None

    def _settles(self, num_requests: int) -> Settles | None:
        arrivals = self._case.scenario.traffic.arrivals
        return settles(arrivals, num_requests) if self._opening.is_timed else None

    def _notes(self, command: RunArm, outcome: _Outcome, token_notes: Sequence[str]) -> tuple[str, ...]:
        admitted = dict.fromkeys(state.note for state in outcome.states.values() if state.note)
        traced = [TRACED] if command.is_traced else []
        unwatched = [self._gpu.note] if self._gpu.note else []
        unread = [self._texts.note] if self._texts.note else []
        told = (*traced, *unwatched, *unread)
        return (*self._workload.notes, *self._case.notes, *admitted, *told, *token_notes)

    def _store(self, run_id: str, outcome: _Outcome, requests: Sequence[RequestRecord]) -> None:
        if self._opening.folder is None:
            return
        folder = RunFolder(Path(self._opening.folder))
        folder.write_steps(run_id, outcome.steps)
        if outcome.spans:
            folder.write_spans(run_id, outcome.spans)
        folder.write_requests(run_id, requests)

    def _record(
        self,
        command: RunArm,
        outcome: _Outcome,
        requests: Sequence[RequestRecord],
        checks: Mapping[str, Check],
        failure: Failure | None,
    ) -> RunRecord:
        tokens, token_notes = _verdict(checks, self._dtype)
        goodput = self._case.scenario.goodput
        gates = None if goodput is None else goodput.gates
        metrics = run_metrics(requests, outcome.steps, outcome.duration_s, self._case.runner_config, gates)
        return RunRecord(
            run_id=command.run_id,
            scenario=self._case.scenario.name,
            case_id=self._case.case_id,
            case_label=self._case.label,
            case_values=dict(self._case.values),
            arm=command.arm,
            round=command.round,
            is_warmup=command.is_warmup,
            status=Status.COMPLETED if failure is None else Status.FAILED,
            device=self._opening.device,
            dtype=self._dtype,
            seed=self._opening.seed,
            workload_hash=self._workload.hash,
            max_concurrency=self._max_concurrency(),
            started_utc=outcome.started_utc,
            duration_s=outcome.duration_s,
            metrics=metrics,
            tokens=tokens,
            failure=failure,
            notes=self._notes(command, outcome, token_notes),
            warnings=outcome.waits,
            num_steps=len(outcome.steps),
            num_requests=len(requests),
            is_control=not named_arm(command.arm).is_right,
            rotation=command.rotation,
            instrument=command.instrument,
            sync_check=command.sync_check,
            repeats=command.repeats,
            turns=command.turns,
            is_aa=command.is_aa,
            step_list=self._step_list(command, outcome.steps),
            clock_uncertainty_ns=(
                self._device.clock_uncertainty_ns if records_device(command.instrument) else None
            ),
            settles=self._settles(len(requests)),
            begins_alike=self._workload.begins_alike,
            cpu=outcome.cpu,
            gpu=outcome.gpu,
            compiled=outcome.compiled,
            scheduling=outcome.decision.scheduling if outcome.decision else None,
            scheduling_reason=outcome.decision.reason if outcome.decision else None,
            image_attention=self._case.image_attention,
        )


def _ended_ns(engine: Engine, request_id: str) -> int | None:
    """When a request handed to an engine ended; None while it runs."""
    state = engine.requests.get(request_id)
    if state is None or not state.is_finished:
        return None
    timeline = engine.recorder.timelines[request_id]
    return timeline.sent_ns if timeline.finished_ns is None else timeline.finished_ns


class _Reporter:
    """Tells the suite how far a run is, at most twice a second: a line of 100 bytes on a pipe."""

    def __init__(self, recorder: Recorder, num_requests: int, send: Send, gpu: GpuWatch) -> None:
        self._recorder = recorder
        self._gpu = gpu
        self._num_requests = num_requests
        self._send = send
        self._next_ns = now_ns() + PROGRESS_PERIOD_NS

    def poll(self, time_ns: int, num_sent: int) -> None:
        if time_ns < self._next_ns:
            return
        self._next_ns = time_ns + PROGRESS_PERIOD_NS
        self._gpu.sample()
        self._send(
            Progress(
                phase="run",
                num_steps=len(self._recorder.steps),
                num_sent=num_sent,
                num_requests=self._num_requests,
            )
        )


def request_record(
    item: WorkloadRequest,
    scheduled_ns: int,
    state: RequestState | None,
    timeline: Timeline | None,
) -> RequestRecord:
    """What became of one request; without a state the run ended before it was handed over."""
    request = item.request
    reason, error = _ending(state)
    return RequestRecord(
        request_id=request.request_id,
        kind=item.kind,
        num_prompt_tokens=len(request.prompt),
        num_image_tokens=item.num_image_tokens,
        num_images=len(request.prompt.images),
        requested_output_tokens=request.sampling.max_tokens,
        num_output_tokens=len(state.output_ids) if state else 0,
        scheduled_ns=scheduled_ns,
        sent_ns=timeline.sent_ns if timeline else scheduled_ns,
        first_scheduled_ns=timeline.first_scheduled_ns if timeline else None,
        token_ns=tuple(timeline.token_ns) if timeline else (),
        finished_ns=timeline.finished_ns if timeline else None,
        finish_reason=reason.value,
        error=error,
        num_preemptions=state.num_preemptions if state else 0,
        num_recomputed_tokens=state.num_recomputed if state else 0,
        num_wasted_tokens=state.num_wasted if state else 0,
        num_supplied_tokens=item.num_supplied if request.prompt.embeds else 0,
        output_ids=tuple(state.output_ids) if state else (),
        num_cached_tokens=state.num_cached if state else 0,
        num_drafted_tokens=state.num_drafted if state else 0,
        num_accepted_tokens=state.num_accepted if state else 0,
        logprobs=_logprobs(request, state),
    )


def _logprobs(request: Request, state: RequestState | None) -> tuple[float, ...] | None:
    """Of each output token, where the request asked for them."""
    if request.sampling.logprobs is None:
        return None
    return tuple(found.logprob for found in state.logprobs) if state else ()


def _ending(state: RequestState | None) -> tuple[FinishReason, str | None]:
    if state is None:
        return FinishReason.ABORTED, "the run ended before this request was handed over"
    if state.finish_reason is None:
        return FinishReason.ABORTED, "the run ended before this request did"
    return state.finish_reason, state.error


def _output_ids(requests: Sequence[RequestRecord]) -> dict[str, tuple[int, ...]]:
    return {request.request_id: request.output_ids for request in requests}


def _with_check(request: RequestRecord, check: Check | None, texts: TokenTexts) -> RequestRecord:
    """With what the oracle says, and the text around the first wrong token where there is a tokenizer."""
    if check is None:
        return request
    told = texts.of(check.expected, check.produced) if check.expected else None
    return replace(
        request,
        num_tokens_right=check.num_right,
        num_tokens_wrong=check.num_wrong,
        num_tokens_tied=check.num_ties,
        first_wrong=check.first_wrong,
        expected_from=check.shown_from if check.expected else None,
        expected_ids=check.expected or None,
        expected_texts=told[0] if told else None,
        produced_texts=told[1] if told else None,
    )


def _nothing_completed(requests: Sequence[RequestRecord]) -> Failure | None:
    if any(is_completed(request) for request in requests):
        return None
    causes = [request.error for request in requests if request.error]
    return Failure(kind="requests", message=f"{NONE_COMPLETED}: {causes[0] if causes else 'there was none'}")


def _verdict(
    checks: Mapping[str, Check], dtype: FloatType = "float32"
) -> tuple[TokenVerdict | None, list[str]]:
    """All requests' checks as one verdict, and in words where the first wrong tokens are."""
    if not checks:
        return None, []
    from suite.oracle import verdict

    tokens, note = verdict(checks, TOLERANCES[dtype])
    wrong = [(name, check) for name, check in checks.items() if check.first_wrong is not None]
    notes = [note] if note else []
    notes += [
        f"request {name}: output token {check.first_wrong} is the first wrong one; from token "
        f"{check.shown_from} on {list(check.expected)} was expected, {list(check.produced)} came"
        for name, check in wrong[:MAX_SHOWN_REQUESTS]
    ]
    return tokens, notes


if __name__ == "__main__":
    sys.exit("started by `python -m suite`; not a command of its own")
