"""Executor: turns a plan into a step in flight on a device, and a step in flight into its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from runner.commands import OUTPUT_READY, Command, is_repeatable, repeated, ring
from runner.config import RunnerConfig
from runner.core import RequestState, StepPlan, StepResult, TokenLogprobs
from runner.device.base import Device
from runner.inputs.arms import Arm
from runner.inputs.batch import InputBatch
from runner.inputs.compile import StagedStep, StepCompiler
from runner.inputs.routes import EmbedsRoute, IdsRoute, StepKind
from runner.measure import Instrument, StepClock, StepRecord, now_ns
from runner.models import ModelSpec
from runner.repeats import Turn, repeats_in
from runner.spans import Span, records_device, step_label


class SamplingRow(NamedTuple):
    """A row whose sampled tokens count: its row of the batch, and the first of its sampled positions."""

    request_id: str
    row: int
    first_logit: int
    num_logprobs: int | None


@dataclass(frozen=True, slots=True)
class InFlight:
    """A launched step. Owns the names of its rows: the batch may have moved on when it is read."""

    plan: StepPlan
    clock: StepClock
    launched_ns: int
    kind: StepKind
    sampling_rows: tuple[SamplingRow, ...]
    ids_route: IdsRoute
    embeds_route: EmbedsRoute
    graph_rows: int
    num_supplied: int
    speculates: bool
    tells_drafts: bool
    spans: tuple[str, ...]  # of its commands; empty where the device records none
    device: Device

    def result(self) -> StepResult:
        """Wait for the step's tokens. DeviceError when the device failed."""
        self.wait()
        return self.read()

    def wait(self) -> None:
        """Until the step's tokens are there. DeviceError when the device failed."""
        with self.clock.phase("wait.output"):
            self.device.wait(OUTPUT_READY, self.plan.step_id)

    def read(self) -> StepResult:
        """The step's tokens, which must have been waited for."""
        sampled = self._ids_of("accepted_ids") if self.speculates else self._sampled_ids()
        logprobs = {
            row.request_id: self._logprobs(row, len(sampled[row.request_id]))
            for row in self.sampling_rows
            if row.num_logprobs is not None
        }
        drafts = self._ids_of("draft_ids") if self.tells_drafts else {}
        return StepResult(self.plan.step_id, sampled, logprobs, drafts)

    def _sampled_ids(self) -> dict[str, tuple[int, ...]]:
        ids = self.device.host[ring("sampled_ids", self.plan.step_id)].tolist()
        return {row.request_id: (ids[row.row],) for row in self.sampling_rows}

    def _ids_of(self, buffer: str) -> dict[str, tuple[int, ...]]:
        """Each row's ids in a ring buffer of several a row, up to the first that is none."""
        ids = self.device.host[ring(buffer, self.plan.step_id)].tolist()
        return {
            row.request_id: tuple(takewhile(lambda token_id: token_id >= 0, ids[row.row]))
            for row in self.sampling_rows
        }

    def _logprobs(self, row: SamplingRow, num_tokens: int) -> tuple[TokenLogprobs, ...]:
        host, step_id = self.device.host, self.plan.step_id
        places = slice(row.first_logit, row.first_logit + num_tokens)
        values = host[ring("logprobs", step_id)][places].tolist()
        ids = host[ring("logprob_ids", step_id)][places].tolist()
        last = 1 + (row.num_logprobs or 0)
        return tuple(
            TokenLogprobs(value[0], rank, tuple(zip(top_ids[: last - 1], value[1:last], strict=True)))
            for value, (rank, *top_ids) in zip(values, ids, strict=True)
        )

    def device_spans(self) -> Sequence[Span]:
        """Those of its commands, where the device records any; to be asked for as early as its record."""
        return self.device.spans(self.plan.step_id, self.spans) if self.spans else ()

    def record(self, result: StepResult, last_device_end_ns: int) -> StepRecord:
        """What the step cost, once its result is retired; the device was busy until `last_device_end_ns`."""
        plan, phases = self.plan, self.clock.phase_ns
        report = self.device.report(plan.step_id)
        decodes = sum(row.is_decode for row in plan.rows)
        drafts = sum(row.num_drafts for row in plan.rows)
        return StepRecord(
            step_id=plan.step_id,
            kind=self.kind,
            ids_route=self.ids_route,
            embeds_route=self.embeds_route,
            num_rows=len(plan.rows),
            num_tokens=plan.num_tokens,
            num_decode_rows=decodes,
            num_prefill_tokens=plan.num_tokens - decodes - drafts,
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
            num_draft_tokens=drafts,
            num_accepted_tokens=sum(len(tokens) - 1 for tokens in result.sampled.values()),
            hash_ns=phases.get("hash", 0),
            graph_rows=self.graph_rows,
        )


class Executor:
    """`is_async`: a step may be launched before the tokens and drafts of the last one are known.

    `repeats`: how often the commands of a span are run, where that is not once (is_repeatable); with `turns`,
    as those say of each step.
    """

    def __init__(
        self,
        model: ModelSpec,
        config: RunnerConfig,
        arm: Arm,
        device: Device,
        is_async: bool = True,
        instrument: Instrument | None = None,
        repeats: Mapping[str, int] | None = None,
        turns: Sequence[Turn] = (),
    ) -> None:
        self._instrument = instrument or Instrument()
        self._repeats = repeats or {}
        self._turns = turns
        named = {*self._repeats, *(span for span, _ in turns if span)}
        assert all(map(is_repeatable, named)), f"not to be repeated: {named}"
        device.sync_check = self._instrument.sync_check
        device.reset(self._instrument.level)
        self._speculates = config.num_speculative_tokens > 0
        self._tells_drafts = self._speculates and not is_async
        self._device = device
        self._fence = config.fence
        self._batch = InputBatch(model, config, clears_supplied_ids=arm.keeps_rows_resident)
        self._compiler = StepCompiler(
            model,
            config,
            arm,
            device.host,
            self._tells_drafts,
            device.info.graph_sizes,
            device.info.fuses_routes,
        )
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
            last_rows = {row.request_id: row.row for row in self._last.sampling_rows} if self._last else {}
            step = self._compiler.stage(plan, self._batch, requests, last_rows)
            label = step_label(step.kind, step.ids.route, step.embeds)
            self._instrument.start_step(plan.step_id, label)
        with clock.phase("wait.fence"):
            self._wait_for_fence()
        with clock.phase("compile"):
            commands = self._compiler.compile(step, requests)
            repeats = repeats_in(plan.step_id, self._repeats, self._turns)
            if repeats:
                commands = repeated(commands, repeats)
        launched_ns = now_ns()
        with clock.phase("launch"):
            self._device.execute(plan.step_id, commands)
            self._last = self._in_flight(step, requests, clock, launched_ns, self._spans_of(commands))
        return self._last

    def _spans_of(self, commands: Sequence[Command]) -> tuple[str, ...]:
        if not records_device(self._instrument.level):
            return ()
        return tuple(name for command in commands if (name := command.span) is not None)

    def _in_flight(
        self,
        step: StagedStep,
        requests: Mapping[str, RequestState],
        clock: StepClock,
        launched_ns: int,
        spans: tuple[str, ...],
    ) -> InFlight:
        return InFlight(
            plan=step.plan,
            clock=clock,
            launched_ns=launched_ns,
            kind=step.kind,
            sampling_rows=self._sampling_rows(step.plan, requests),
            ids_route=step.ids.route,
            embeds_route=step.embeds,
            graph_rows=step.graph,
            num_supplied=step.num_supplied,
            speculates=self._speculates,
            tells_drafts=self._tells_drafts,
            spans=spans,
            device=self._device,
        )

    def _sampling_rows(self, plan: StepPlan, requests: Mapping[str, RequestState]) -> tuple[SamplingRow, ...]:
        """A row with drafts is sampled at each of them too: the positions of later rows begin behind them."""
        num_drafts = self._batch.num_drafts[: len(plan.rows)]
        first_logits = (np.arange(len(plan.rows)) + np.cumsum(num_drafts) - num_drafts).tolist()
        row_of = self._batch.row_of
        return tuple(
            SamplingRow(
                entry.request_id,
                row := row_of[entry.request_id],
                first_logits[row],
                requests[entry.request_id].request.sampling.logprobs,
            )
            for entry in plan.rows
            if entry.samples
        )

    def _wait_for_fence(self) -> None:
        """Host buffers may not be written while the last step's uploads still read them."""
        if self._last is not None:
            self._device.wait(self._fence, self._last.plan.step_id)
