"""StepPlan -> list[Command]: what the device does for a step, under one arm (numpy).

Compiling has two halves: `stage` touches only the step's own copy of a ring buffer and may run while the
last step's uploads are still reading; `compile` writes the shared input buffers and comes after the fence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runner.commands import (
    EMBEDDINGS_DONE,
    OUTPUT_READY,
    SAMPLED,
    UPLOADS_DONE,
    Command,
    Download,
    Draft,
    Encode,
    Flags,
    Forward,
    Logprobs,
    Lookup,
    Merge,
    MetadataLayout,
    Place,
    Positions,
    Record,
    RouteDrafts,
    RouteIds,
    SafeIds,
    Sample,
    Splice,
    Upload,
    Wait,
    ring,
)
from runner.config import Fence, RunnerConfig
from runner.core import RequestState, StepPlan
from runner.inputs import staging
from runner.inputs.arms import Arm
from runner.inputs.batch import InputBatch
from runner.inputs.routes import EmbedsRoute, SampledRoute, StepKind, embeds_route, sampled_route, step_kind
from runner.inputs.staging import HostBuffers, PackedStep
from runner.models import ModelSpec

_NO_ROWS = np.empty(0, np.int32)
_NO_IMAGES = np.empty((2, 0), np.int32)


@dataclass(frozen=True, slots=True)
class StagedStep:
    """A step whose metadata is written: all that the rest of compiling needs to know."""

    plan: StepPlan
    kind: StepKind
    packed: PackedStep
    ids: SampledRoute
    embeds: EmbedsRoute
    layout: MetadataLayout
    graph: int  # rows of the captured step that runs it; 0: none does

    @property
    def count(self) -> int:
        return self.packed.num_tokens

    @property
    def num_supplied(self) -> int:
        return len(self.packed.supplied)


class StepCompiler:
    """Compiles plans into commands over `host`, the host sides of the named buffers.

    `downloads_drafts`: the host is told what the device proposes for the next step, as sync needs it.
    `graph_sizes`: the numbers of rows of which the device has captured a decode step; `fuses_routes`: in
    these, positions and routed ids are one launch.
    """

    def __init__(
        self,
        model: ModelSpec,
        config: RunnerConfig,
        arm: Arm,
        host: HostBuffers,
        downloads_drafts: bool = False,
        graph_sizes: Sequence[int] = (),
        fuses_routes: bool = False,
    ) -> None:
        self._model = model
        self._config = config
        self._arm = arm
        self._host = host
        self._speculates = config.num_speculative_tokens > 0
        self._downloads_drafts = downloads_drafts
        self._graph_sizes = sorted(graph_sizes)
        self._fuses_routes = fuses_routes

    def stage(
        self,
        plan: StepPlan,
        batch: InputBatch,
        requests: Mapping[str, RequestState],
        last_rows: Mapping[str, int],
    ) -> StagedStep:
        """Decide the routes and pack the metadata. The plan's rows must already be those of `batch`."""
        packed = PackedStep(batch, self._config)
        ids = sampled_route(batch, packed.starts, last_rows, self._config.num_speculative_tokens)
        embeds = embeds_route(self._model, self._arm, batch, not len(packed.supplied))
        firsts = _resident_firsts(batch, requests) if self._arm.keeps_rows_resident else _NO_ROWS
        sources = self._place_sources(packed, firsts)
        images = self._whole_images(plan, packed)
        layout = MetadataLayout(
            num_rows=batch.num_rows,
            table_width=int(batch.num_blocks[: batch.num_rows].max()),
            num_routed=len(ids.target),
            num_placed=len(sources),
            derives_flags=self._derives_flags(embeds),
            by_slot=self._speculates or not batch.is_plain[: batch.num_rows].all(),
            num_drafted=len(ids.draft_target),
            num_images=images.shape[1],
        )
        target = self._host[ring("step_metadata", plan.step_id)]
        staging.write_metadata(target, layout, packed, ids, sources, firsts, images)
        graph = self._graph_of(packed.num_tokens, batch.num_rows)
        return StagedStep(plan, step_kind(plan), packed, ids, embeds, layout, graph)

    def compile(self, step: StagedStep, requests: Mapping[str, RequestState]) -> list[Command]:
        """Write the input buffers and give the step's commands."""
        plan = step.plan
        metadata = ring("step_metadata", plan.step_id)
        merging = self._merge(step)
        return [
            *self._upload_ids(step),
            Upload(metadata, 0, 0, step.layout.size),
            *self._upload_rope(step),
            *self._upload_slots(plan, requests),
            *self._upload_residents(plan, requests),
            *self._upload_flags(step),
            *self._upload_supplied(step),
            *self._upload_pixels(plan, requests),
            *(command for command in merging if isinstance(command, Upload)),
            *self._fence(UPLOADS_DONE),
            Positions(metadata, step.count, *step.layout, routed=self._routed(step)),
            *self._route_ids(step),
            *self._route_drafts(step),
            *self._set_flags(step),
            *self._place(step),
            *(Encode(item, encode.slot) for item, encode in enumerate(plan.encodes)),
            *(command for command in merging if not isinstance(command, Upload)),
            *self._fence(EMBEDDINGS_DONE),
            self._forward(step),
            *self._sample(step, requests),
        ]

    def _fence(self, event: Fence) -> list[Command]:
        """What the host waits for before it writes the next step's buffers, in the place chosen for it."""
        return [Record(event)] if event == self._config.fence else []

    def _forward(self, step: StagedStep) -> Forward:
        batch, rows = step.packed.batch, step.layout.num_rows
        counts = batch.count[:rows]
        return Forward(
            step.count,
            "input_ids" if step.embeds == "graph" else "inputs_embeds",
            max_query=int(counts.max()),
            max_context=int((batch.first[:rows] + counts).max()),
            num_decodes=int(np.count_nonzero(counts == 1)),
            graph=step.graph,
        )

    def _routed(self, step: StagedStep) -> str:
        """Where the positions of a captured step take the sampled ids from, if the device can do so."""
        is_fused = self._fuses_routes and step.graph
        return ring("sampled_ids", step.plan.step_id - 1) if is_fused and len(step.ids.target) else ""

    def _graph_of(self, count: int, rows: int) -> int:
        """The smallest captured step that holds one of one token a row; 0 for any other."""
        if count != rows:
            return 0
        return next((size for size in self._graph_sizes if size >= rows), 0)

    # ---- ids and positions

    def _upload_ids(self, step: StagedStep) -> list[Command]:
        if not step.ids.needs_host_ids:
            return []
        staging.write_ids(self._host, step.packed)
        return [Upload("input_ids", 0, 0, step.count)]

    def _route_ids(self, step: StagedStep) -> list[Command]:
        count = len(step.ids.target)
        if not count or self._routed(step):
            return []
        source = ring("sampled_ids", step.plan.step_id - 1)
        return [RouteIds("slice" if step.ids.is_slice else "scatter", source, count)]

    def _upload_rope(self, step: StagedStep) -> list[Command]:
        if self._model.rope != "mrope":
            return []
        staging.write_rope(self._host, step.packed)
        return [Upload("rope_positions", 0, 0, step.count)]

    def _route_drafts(self, step: StagedStep) -> list[Command]:
        count = len(step.ids.draft_target)
        return [RouteDrafts(ring("draft_ids", step.plan.step_id - 1), count)] if count else []

    # ---- sampling

    def _upload_slots(self, plan: StepPlan, requests: Mapping[str, RequestState]) -> list[Command]:
        """A newcomer's parameters, unless it has none, and its ids, which prompt lookup reads as well."""
        commands: list[Command] = []
        for name, slot in plan.admitted:
            state = requests[name]
            if not state.request.sampling.is_plain:
                staging.write_params(self._host, slot, state, self._model.eos_token_id)
                commands += [
                    Upload("sampling_reals", slot, slot, 1),
                    Upload("sampling_wholes", slot, slot, 1),
                ]
            if self._speculates or not state.request.sampling.is_plain:
                staging.write_history(self._host, slot, state)
                commands.append(Upload("token_history", slot, slot, 1))
        return commands

    def _sample(self, step: StagedStep, requests: Mapping[str, RequestState]) -> list[Command]:
        """From hidden states to tokens on the host and, with speculation, drafts for the next step."""
        step_id, batch, rows = step.plan.step_id, step.packed.batch, step.layout.num_rows
        sampled = ring("sampled_ids", step_id)
        accepted = ring("accepted_ids", step_id) if self._speculates else ""
        num_logits = rows + int(batch.num_drafts[:rows].sum())
        needs = int(np.bitwise_or.reduce(batch.needs[:rows]))
        proposed, told = self._drafts(step)
        computed, downloaded = self._logprobs(step, requests, num_logits)
        return [
            Sample(sampled, rows, num_logits, needs, accepted),
            *computed,
            *(proposed if told else ()),
            Record(SAMPLED),
            *(() if told else proposed),  # the output does not wait for what stays on the device
            Wait(SAMPLED, "output"),
            Download(accepted or sampled, rows),
            *downloaded,
            *told,
            Record(OUTPUT_READY, "output"),
        ]

    def _drafts(self, step: StagedStep) -> tuple[list[Command], list[Command]]:
        """The proposal, and how the host is told of it."""
        if not self._speculates:
            return [], []
        drafts, rows = ring("draft_ids", step.plan.step_id), step.layout.num_rows
        return [Draft(drafts, rows)], [Download(drafts, rows)] if self._downloads_drafts else []

    def _logprobs(
        self, step: StagedStep, requests: Mapping[str, RequestState], num_logits: int
    ) -> tuple[list[Command], list[Command]]:
        """Those of all positions, where some request of the step asks for them, and their download."""
        if not step.layout.by_slot:  # nobody asks for anything
            return [], []
        asked = (requests[row.request_id].request.sampling.logprobs for row in step.plan.rows)
        if all(number is None for number in asked):
            return [], []
        values, ids = (ring(name, step.plan.step_id) for name in ("logprobs", "logprob_ids"))
        return (
            [Logprobs(values, ids, num_logits)],
            [Download(values, num_logits), Download(ids, num_logits)],
        )

    # ---- flags

    def _upload_flags(self, step: StagedStep) -> list[Command]:
        choices = self._arm.choices
        if choices is None:
            return []
        wanted = {
            "always": True,
            "with-ids": step.ids.needs_host_ids,
            "fill": step.num_supplied > 0,
            "skip": step.num_supplied > 0,
            "derived": False,
        }
        if not wanted[choices.flags]:
            return []
        staging.write_flags(self._host, step.packed)
        return [Upload("is_token_ids", 0, 0, step.count)]

    def _set_flags(self, step: StagedStep) -> list[Command]:
        choices = self._arm.choices
        if choices is None:
            return []
        if choices.flags == "fill" and not step.num_supplied:
            return [Flags("fill", step.count)]
        if choices.merge == "where" and step.layout.derives_flags:
            return [Flags("derived", step.count)]
        return []

    def _derives_flags(self, embeds: EmbedsRoute) -> bool:
        choices = self._arm.choices
        if choices is None or choices.flags != "derived" or embeds != "merge":
            return False
        return choices.merge in ("where", "fused")

    # ---- supplied rows

    def _upload_supplied(self, step: StagedStep) -> list[Command]:
        choices = self._arm.choices
        if choices is None:
            return []
        if choices.embeds == "all" and step.ids.needs_host_ids:
            staging.write_embeds(self._host, step.packed)
            return [Upload("inputs_embeds", 0, 0, step.count)]
        if choices.embeds == "rows" and step.num_supplied:
            staging.write_packed_rows(self._host, step.packed)
            return [Upload("supplied_rows", 0, 0, step.num_supplied)]
        return []

    def _upload_residents(self, plan: StepPlan, requests: Mapping[str, RequestState]) -> list[Command]:
        staging.write_residents(self._host, plan, requests)
        commands: list[Command] = []
        for item in plan.residents:
            embeds = requests[item.request_id].request.prompt.embeds
            assert embeds is not None
            commands.append(Upload("resident_rows", item.first, item.first, item.num_rows))
            if embeds.mask is not None:
                commands.append(Upload("resident_mask", item.first, item.first, item.num_rows))
        return commands

    def _place(self, step: StagedStep) -> list[Command]:
        choices = self._arm.choices
        if choices is None or not step.layout.num_placed or choices.merge == "overlay":
            return []
        return [Place("scatter" if choices.embeds == "rows" else "gather", step.num_supplied)]

    def _place_sources(self, packed: PackedStep, resident_firsts: NDArray[np.int32]) -> NDArray[np.int32]:
        """Where each supplied row comes from: its place among the packed rows, or in the arena."""
        choices = self._arm.choices
        count = len(packed.supplied)
        if choices is None or choices.embeds == "all" or choices.merge == "fused" or not count:
            return _NO_ROWS
        if choices.embeds == "rows":
            return np.arange(count, dtype=np.int32)
        rows = np.searchsorted(packed.starts, packed.supplied, side="right") - 1
        positions = packed.supplied - packed.starts[rows] + packed.batch.first[rows]
        return (resident_firsts[rows] + positions).astype(np.int32)

    # ---- images

    def _upload_pixels(self, plan: StepPlan, requests: Mapping[str, RequestState]) -> list[Command]:
        if not plan.encodes:
            return []
        staging.write_pixels(self._host, plan, requests)
        return [Upload("pixels", 0, 0, len(plan.encodes))]

    def _whole_images(self, plan: StepPlan, packed: PackedStep) -> NDArray[np.int32]:
        """[2, images] packed rows [first, end) of each image that attends in both directions, in order."""
        if not self._model.attends_both_ways or not plan.splices:
            return _NO_IMAGES
        rows = [packed.batch.row_of[splice.request_id] for splice in plan.splices]
        firsts = packed.starts[rows] + np.array([splice.row_first for splice in plan.splices], np.int32)
        ends = firsts + np.array([splice.num_rows for splice in plan.splices], np.int32)
        return np.sort([firsts, ends])

    def _splices(self, step: StagedStep, fused: bool) -> list[Command]:
        """Image rows go over the looked-up rows, or, where those have no temporary, into the input."""
        batch, starts = step.packed.batch, step.packed.starts
        return [
            Splice(
                "inputs_embeds" if fused else "looked_up",
                splice.slot,
                splice.item_first,
                int(starts[batch.row_of[splice.request_id]]) + splice.row_first,
                splice.num_rows,
            )
            for splice in step.plan.splices
        ]

    # ---- merge

    def _merge(self, step: StagedStep) -> list[Command]:
        """From ids and supplied rows to inputs_embeds."""
        count, choices = step.count, self._arm.choices
        if step.embeds == "graph":
            return []
        if choices is not None and choices.merge == "none":
            return [SafeIds("clamp", count), *self._copy(step, "safe")]
        if choices is not None and choices.merge == "fused":
            return [Merge("fused", count), *self._splices(step, fused=True)]
        if choices is None or step.embeds == "lookup":
            return self._copy(step, "ids")
        if choices.merge == "where":
            return [
                SafeIds("where", count),
                Lookup("safe", count),
                *self._splices(step, fused=False),
                Merge("where", count),
            ]
        if choices.merge == "index":
            tokens = staging.write_token_index(self._host, step.packed)
            if not tokens:  # every position is supplied: vLLM neither looks up nor writes
                return []
            return [
                Upload("token_index", 0, 0, tokens),
                Lookup("indexed", tokens),
                Merge("index", tokens),
            ]
        return [*self._copy(step, "ids"), Merge("overlay", step.num_supplied)]

    def _copy(self, step: StagedStep, kind: str) -> list[Command]:
        """Every row looked up, then copied: vLLM's branch for a batch without embeddings."""
        return [
            Lookup("safe" if kind == "safe" else "ids", step.count),
            *self._splices(step, fused=False),
            Merge("copy", step.count),
        ]


def _resident_firsts(batch: InputBatch, requests: Mapping[str, RequestState]) -> NDArray[np.int32]:
    """[rows] each row's first arena row, -1 without one."""
    firsts = [requests[name].resident_first for name in batch.request_ids]
    return np.array([-1 if first is None else first for first in firsts], np.int32)
