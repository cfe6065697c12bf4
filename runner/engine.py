"""Engine: requests in, tokens out, over plan / launch / retire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from runner.admission import admit
from runner.config import RunnerConfig
from runner.core import (
    FinishReason,
    Request,
    RequestError,
    RequestState,
    RequestStatus,
    TokenOutput,
)
from runner.device.base import Device
from runner.executor import Executor, InFlight
from runner.measure import Recorder, StepClock, Timeline, now_ns
from runner.models import ModelSpec
from runner.scheduler import Scheduler


class Arrivals(Protocol):
    """Feeds an engine its requests."""

    def due(self) -> Sequence[Request]:
        """Requests whose time has come, each handed out once; asked before every step."""

    def wait(self) -> bool:
        """Nothing can run: sleep until the next arrival. False when none is left."""


class Engine:
    """One fresh runner on a device; the device's caches and buffers are poisoned when it is made."""

    def __init__(self, model: ModelSpec, config: RunnerConfig, device: Device) -> None:
        self.recorder = Recorder()
        self.requests: dict[str, RequestState] = {}
        self.scheduler = Scheduler(config, model.eos_token_id)
        self._model = model
        self._config = config
        self._executor = Executor(model, config, device)

    def run(self, arrivals: Arrivals) -> None:
        """Serve until all is finished. DeviceError when the device failed; what was recorded stays."""
        while True:
            self.submit(arrivals.due())
            clock = StepClock()
            with clock.phase("schedule"):
                plan = self.scheduler.plan()
            if plan is not None:
                self._retire(self._executor.launch(plan, self.requests, clock))
                continue
            assert not self.scheduler.has_work, "requests are left, but none can be scheduled"
            if not arrivals.wait():
                return

    def submit(self, requests: Iterable[Request]) -> None:
        """Admit requests; one that cannot be served fails alone, its state says why."""
        for request in requests:
            self.recorder.timelines[request.request_id] = Timeline(sent_ns=now_ns())
            try:
                state = admit(request, self._model, self._config)
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

    def _retire(self, step: InFlight) -> None:
        result = step.result()
        with step.clock.phase("retire"):
            outputs = self.scheduler.retire(step.plan, result)
        self._stamp(step, outputs)
        self.recorder.steps.append(step.record())

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
