"""StepPlan -> list[Command]: writes a step's input buffers, says what the device does with them (numpy)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.commands import (
    OUTPUT_READY,
    UPLOADS_DONE,
    Command,
    Download,
    Encode,
    Forward,
    Lookup,
    Merge,
    MetadataLayout,
    Positions,
    Record,
    Sample,
    Splice,
    Upload,
    ring,
)
from runner.config import RunnerConfig
from runner.core import RequestState, StepPlan
from runner.inputs.batch import InputBatch
from runner.inputs.routes import embeds_route
from runner.models import ModelSpec


class StepCompiler:
    """Compiles plans into commands over `host`, the host sides of the named buffers."""

    def __init__(self, model: ModelSpec, config: RunnerConfig, host: Mapping[str, NDArray[Any]]) -> None:
        self._model = model
        self._host = host
        self._row_starts = np.arange(config.max_num_seqs, dtype=np.int64) * config.max_model_len
        self._query_start_loc = np.zeros(config.max_num_seqs + 1, np.int32)

    def compile(
        self, plan: StepPlan, batch: InputBatch, requests: Mapping[str, RequestState]
    ) -> list[Command]:
        """The commands of a step. Its rows must already be those of `batch`."""
        count = plan.num_tokens
        sampled = ring("sampled_ids", plan.step_id)
        starts = self._write_starts(batch)
        self._write_ids(batch, starts, count)
        metadata, layout = self._write_metadata(plan.step_id, batch, starts)
        return [
            Upload("input_ids", 0, 0, count),
            Upload(metadata, 0, 0, layout.size),
            *self._upload_pixels(plan, requests),
            Record(UPLOADS_DONE),
            Positions(metadata, count, layout.num_rows, layout.table_width),
            *self._embed(plan, batch, starts, count),
            Sample(sampled, batch.num_rows),
            Download(sampled, batch.num_rows),
            Record(OUTPUT_READY),
        ]

    def _write_starts(self, batch: InputBatch) -> NDArray[np.int32]:
        """query_start_loc [rows + 1]: offset of each row's first token among the packed tokens."""
        starts = self._query_start_loc[: batch.num_rows + 1]
        np.cumsum(batch.count[: batch.num_rows], out=starts[1:])
        return starts

    def _write_ids(self, batch: InputBatch, starts: NDArray[np.int32], count: int) -> None:
        """Gather the packed ids: token i of row r lies at r * max_model_len + first[r] + i."""
        rows = batch.num_rows
        offsets = self._row_starts[:rows] + batch.first[:rows] - starts[:-1]
        flat = np.repeat(offsets, batch.count[:rows]) + np.arange(count)
        np.take(batch.token_ids.reshape(-1), flat, out=self._host["input_ids"][:count])

    def _write_metadata(
        self, step_id: int, batch: InputBatch, starts: NDArray[np.int32]
    ) -> tuple[str, MetadataLayout]:
        rows = batch.num_rows
        layout = MetadataLayout(rows, int(batch.num_blocks[:rows].max()))
        name = ring("step_metadata", step_id)
        target = self._host[name]
        target[: rows + 1] = starts
        target[layout.num_computed : layout.slots] = batch.first[:rows]
        target[layout.slots : layout.block_table] = batch.slots[:rows]
        table = target[layout.block_table : layout.size].reshape(rows, layout.table_width)
        table[:] = batch.block_table[:rows, : layout.table_width]
        return name, layout

    def _upload_pixels(self, plan: StepPlan, requests: Mapping[str, RequestState]) -> list[Command]:
        if not plan.encodes:
            return []
        pixels = self._host["pixels"]
        for item, encode in enumerate(plan.encodes):
            image = requests[encode.request_id].request.prompt.images[encode.image]
            pixels[item] = np.frombuffer(image.data, np.uint8).reshape(image.shape)
        return [Upload("pixels", 0, 0, len(plan.encodes))]

    def _embed(
        self, plan: StepPlan, batch: InputBatch, starts: NDArray[np.int32], count: int
    ) -> list[Command]:
        """From ids to the model's output, by the embedding route."""
        if embeds_route(self._model) == "graph":
            return [Forward(count, "input_ids")]
        encodes = [Encode(item, encode.slot) for item, encode in enumerate(plan.encodes)]
        splices = [
            Splice(
                splice.slot,
                splice.item_first,
                int(starts[batch.row_of[splice.request_id]]) + splice.row_first,
                splice.num_rows,
            )
            for splice in plan.splices
        ]
        return [
            *encodes,
            Lookup(count),
            *splices,
            Merge("copy", count),
            Forward(count, "inputs_embeds"),
        ]
