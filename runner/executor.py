"""Executor: turns a plan into a step in flight on a device, and a step in flight into its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner.commands import OUTPUT_READY, UPLOADS_DONE, ring
from runner.config import RunnerConfig
from runner.core import RequestState, StepPlan, StepResult
from runner.device.base import Device
from runner.inputs.arms import Arm
from runner.inputs.batch import InputBatch
from runner.inputs.compile import StagedStep, StepCompiler
from runner.inputs.routes import EmbedsRoute, IdsRoute, step_kind
from runner.measure import StepClock, StepRecord, now_ns
from runner.models import ModelSpec


@dataclass(frozen=True, slots=True)
class InFlight:
    """A launched step. Owns the names of its rows: the batch may have moved on when it is read."""

    plan: StepPlan
    clock: StepClock
    launched_ns: int
    sampling_rows: tuple[tuple[str, int], ...]  # request id, row in the sampled ids
    ids_route: IdsRoute
    embeds_route: EmbedsRoute
    num_supplied: int
    device: Device

    def result(self) -> StepResult:
        """Wait for the step's tokens. DeviceError when the device failed."""
        with self.clock.phase("wait.output"):
            self.device.wait(OUTPUT_READY, self.plan.step_id)
        tokens = self.device.host[ring("sampled_ids", self.plan.step_id)].tolist()
        sampled = {request_id: (tokens[row],) for request_id, row in self.sampling_rows}
        return StepResult(self.plan.step_id, sampled)

    def record(self, last_device_end_ns: int) -> StepRecord:
        """What the step cost, once its result is retired; the device was busy until `last_device_end_ns`."""
        plan, phases = self.plan, self.clock.phase_ns
        report = self.device.report(plan.step_id)
        decodes = sum(row.is_decode for row in plan.rows)
        return StepRecord(
            step_id=plan.step_id,
            kind=step_kind(plan),
            ids_route=self.ids_route,
            embeds_route=self.embeds_route,
            num_rows=len(plan.rows),
            num_tokens=plan.num_tokens,
            num_decode_rows=decodes,
            num_prefill_tokens=plan.num_tokens - decodes,
            num_image_rows=sum(splice.num_rows for splice in plan.splices),
            num_supplied_rows=self.num_supplied,
            num_images_encoded=len(plan.encodes),
            num_waiting=plan.num_waiting,
            num_free_blocks=plan.num_free_blocks,
            num_preempted=plan.num_preempted,
            start_ns=self.clock.start_ns,
            end_ns=now_ns(),
            schedule_ns=phases["schedule"],
            update_batch_ns=phases["update_batch"],
            compile_ns=phases["stage"] + phases["compile"],
            launch_ns=phases["launch"],
            wait_fence_ns=phases["wait.fence"],
            host_work_ns=phases.get("host_work", 0),
            wait_output_ns=phases["wait.output"],
            retire_ns=phases["retire"],
            handoff_ns=max(0, report.start_ns - max(self.launched_ns, last_device_end_ns)),
            device_start_ns=report.start_ns,
            device_end_ns=report.end_ns,
            copies=report.copies,
            bytes=report.bytes,
            download_bytes=report.download_bytes,
            hash_ns=phases.get("hash", 0),
        )


class Executor:
    def __init__(self, model: ModelSpec, config: RunnerConfig, arm: Arm, device: Device) -> None:
        device.reset()
        self._device = device
        self._batch = InputBatch(model, config, clears_supplied_ids=arm.keeps_rows_resident)
        self._compiler = StepCompiler(model, config, arm, device.host)
        self._last: InFlight | None = None

    @property
    def row_of(self) -> Mapping[str, int]:
        """The batch row of each request of the last step launched."""
        return self._batch.row_of

    def launch(self, plan: StepPlan, requests: Mapping[str, RequestState], clock: StepClock) -> InFlight:
        """Queue a step on the device."""
        with clock.phase("update_batch"):
            self._batch.update(plan, requests)
        with clock.phase("stage"):
            last_rows = dict(self._last.sampling_rows) if self._last else {}
            step = self._compiler.stage(plan, self._batch, requests, last_rows)
        with clock.phase("wait.fence"):
            self._wait_for_fence()
        with clock.phase("compile"):
            commands = self._compiler.compile(step, requests)
        launched_ns = now_ns()
        with clock.phase("launch"):
            self._device.execute(plan.step_id, commands)
        self._last = self._in_flight(step, clock, launched_ns)
        return self._last

    def _in_flight(self, step: StagedStep, clock: StepClock, launched_ns: int) -> InFlight:
        row_of = self._batch.row_of
        return InFlight(
            plan=step.plan,
            clock=clock,
            launched_ns=launched_ns,
            sampling_rows=tuple(
                (row.request_id, row_of[row.request_id]) for row in step.plan.rows if row.samples
            ),
            ids_route=step.ids.route,
            embeds_route=step.embeds,
            num_supplied=step.num_supplied,
            device=self._device,
        )

    def _wait_for_fence(self) -> None:
        """Host buffers may not be written while the last step's uploads still read them."""
        if self._last is not None:
            self._device.wait(UPLOADS_DONE, self._last.plan.step_id)
