"""Engine: requests in, tokens out, over plan / launch / retire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from runner.admission import admit
from runner.config import RunnerConfig, SchedulingFacts, resolve
from runner.core import (
    FinishReason,
    Request,
    RequestError,
    RequestState,
    RequestStatus,
    RunnerError,
    StepResult,
    TokenOutput,
)
from runner.device.base import Device
from runner.executor import Executor, InFlight
from runner.inputs.arms import ARMS, Arm
from runner.inputs.supplied import in_model_type
from runner.measure import Instrument, Recorder, StepClock, StepRecord, Timeline, keep_busy, now_ns
from runner.models import ModelSpec
from runner.repeats import Turn
from runner.scheduler import Scheduler
from runner.spans import ADMISSION, IDLE, NO_STEP


class Arrivals(Protocol):
    """Feeds an engine its requests."""

    def due(self) -> Sequence[Request]:
        """Requests whose time has come, each handed out once; asked before every step."""

    def wait(self) -> bool:
        """Nothing can run: sleep until the next arrival. False when none is left."""


class Engine:
    """One fresh runner on a device, under one arm.

    The device's caches and buffers are poisoned when it is made. `decision` says whether it schedules
    asynchronously, and why. RunnerError when the arm does not fit the model. `repeats` and
    `turns`: see Executor.
    """

    def __init__(
        self,
        model: ModelSpec,
        config: RunnerConfig,
        device: Device,
        arm: Arm = ARMS["sync-ids"],
        instrument: Instrument | None = None,
        repeats: Mapping[str, int] | None = None,
        turns: Sequence[Turn] = (),
    ) -> None:
        if not arm.fits(model.is_multimodal):
            raise RunnerError(f"arm {arm.name} is for {arm.models} models; {model.name} is not one")
        method = "ngram_gpu" if config.num_speculative_tokens else None  # prompt lookup on the device
        facts = SchedulingFacts(model.is_multimodal, arm.prompt_embeds, speculative_method=method)
        self.decision = resolve(arm.scheduling, facts, arm.rules)
        is_async = self.decision.scheduling == "async"
        self.recorder = Recorder()
        self.requests: dict[str, RequestState] = {}
        self.scheduler = Scheduler(config, model.eos_token_id, arm.keeps_rows_resident, is_async)
        self._model = model
        self._config = config
        self._arm = arm
        self._unrecorded_hash_ns = 0
        self._in_flight: list[InFlight] = []
        self._device_end_ns = 0
        self._instrument = instrument or Instrument()
        self._executor = Executor(model, config, arm, device, is_async, self._instrument, repeats, turns)

    def run(self, arrivals: Arrivals) -> None:
        """Serve until all is finished. DeviceError when the device failed; what was recorded stays."""
        try:
            if self.decision.scheduling == "async":
                self._run_async(arrivals)
            else:
                self._run_sync(arrivals)
        finally:
            self._instrument.close()

    def _run_sync(self, arrivals: Arrivals) -> None:
        """Wait for a step's tokens, then plan the next."""
        while True:
            self._admit(arrivals)
            step = self._launch()
            if step is not None:
                self._retire(step)
            elif not self._rest(arrivals):
                return

    def _run_async(self, arrivals: Arrivals) -> None:
        """Launch the next step before the last one's tokens are known: two in flight at most."""
        last: InFlight | None = None
        while True:
            self._admit(arrivals)
            step = self._launch()
            if last is not None:
                self._retire(last)
            elif step is None and not self._rest(arrivals):
                return
            last = step

    def _launch(self) -> InFlight | None:
        clock = self._instrument.clock(self.scheduler.next_step_id)
        self._hash(clock)
        with clock.phase("schedule"):
            plan = self.scheduler.plan()
        if plan is None:
            return None
        self._unrecorded_hash_ns = 0
        step = self._executor.launch(plan, self.requests, clock)
        self._in_flight.append(step)
        return step

    def _hash(self, clock: StepClock) -> None:
        """Hash newcomers' prompts; where no plan comes of it, the next step's record has the time."""
        if self._config.prefix_caching:
            clock.phase_ns["hash"] = self._unrecorded_hash_ns
            with clock.phase("hash"):
                self.scheduler.hash_waiting()
            self._unrecorded_hash_ns = clock.phase_ns["hash"]

    def _rest(self, arrivals: Arrivals) -> bool:
        """Nothing runs: sleep until the next arrival; False when none is left."""
        assert not self.scheduler.has_work, "requests are left, but none can be scheduled"
        with self._instrument.clock(NO_STEP).phase(IDLE):
            return arrivals.wait()

    def _admit(self, arrivals: Arrivals) -> None:
        with self._instrument.clock(NO_STEP).phase(ADMISSION):
            self.submit(arrivals.due())

    def submit(self, requests: Iterable[Request]) -> None:
        """Admit requests; one that cannot be served fails alone, its state says why."""
        for request in requests:
            self.recorder.timelines[request.request_id] = Timeline(sent_ns=now_ns())
            try:
                state = admit(request, self._model, self._config, self._arm.prompt_embeds)
                state.request, state.note = in_model_type(request, self._config.dtype)
                self.scheduler.submit(state)
            except RequestError as error:
                state = _failed(request, error)
            self.requests[request.request_id] = state

    def abort(self, request_id: str) -> None:
        """End a request now; its tokens so far stay. Unknown or finished ids are ignored."""
        state = self.requests.get(request_id)
        if state is not None and not state.is_finished:
            self.scheduler.abort(request_id)
            self.recorder.timelines[request_id].finished_ns = now_ns()

    def forget(self, request_id: str) -> None:
        """Drop all that is known of a finished request: what serves for ever must not remember for ever.

        RequestError for a request that is unknown, not finished, or still in a step in flight. Its id is not
        to be used again.
        """
        state = self.requests.get(request_id)
        if state is None:
            raise RequestError(f"request {request_id} is not known; it was never sent, or is forgotten")
        if not state.is_finished:
            raise RequestError(f"request {request_id} is {state.status.value}; abort it first")
        if any(row.request_id == request_id for step in self._in_flight for row in step.plan.rows):
            raise RequestError(f"request {request_id} is in a step in flight; forget it a step later")
        del self.requests[request_id], self.recorder.timelines[request_id]
        self.scheduler.forget(request_id)

    def drain_steps(self) -> list[StepRecord]:
        """The records of the steps retired since the last call, which are then held here no longer."""
        drained, self.recorder.steps = self.recorder.steps, []
        return drained

    def _retire(self, step: InFlight) -> None:
        step.wait()
        with step.clock.phase("retire"):
            result = step.read()
            outputs = self.scheduler.retire(step.plan, result)
            self._stamp(step, outputs)
        with step.clock.phase("host_work"):
            keep_busy(self._config.host_work_us)
        with step.clock.phase("record"):
            self._record(step, result)
        self._instrument.end_step(step.plan.step_id)

    def _record(self, step: InFlight, result: StepResult) -> None:
        record = step.record(result, self._device_end_ns)
        self._device_end_ns = record.device_end_ns
        self.recorder.steps.append(record)
        self._in_flight.remove(step)
        self._instrument.spans += step.device_spans()

    def _stamp(self, step: InFlight, outputs: Sequence[TokenOutput]) -> None:
        retired_ns = now_ns()
        timelines = self.recorder.timelines
        for row in step.plan.rows:
            timeline = timelines[row.request_id]
            if timeline.first_scheduled_ns is None:
                timeline.first_scheduled_ns = step.launched_ns
        for output in outputs:
            timelines[output.request_id].token_ns.append(retired_ns)
            if output.is_last:
                timelines[output.request_id].finished_ns = retired_ns


def _failed(request: Request, error: RequestError) -> RequestState:
    return RequestState(
        request=request,
        spans=(),
        status=RequestStatus.FINISHED,
        finish_reason=FinishReason.ERROR,
        error=str(error),
    )
