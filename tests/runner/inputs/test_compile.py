"""StepCompiler: golden command lists, and arrays equal to a naive construction token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fabrication import SMALL_VL, image, prompt_of, request, text_request
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from simulation import Simulation

from runner.commands import (
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
    Wait,
    buffer_table,
)
from runner.config import RunnerConfig
from runner.core import RequestState, ScheduledRow, StepPlan
from runner.inputs.arms import ARMS
from runner.inputs.batch import InputBatch
from runner.inputs.compile import StepCompiler
from runner.models import TINY_QWEN3, ModelSpec

CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=16,
    max_model_len=64,
    block_size=4,
    num_blocks=24,
    num_encoder_slots=2,
    max_images_per_step=2,
)


class Compiling:
    """A scheduler played through (simulation.py) whose every plan is compiled as well."""

    def __init__(self, model: ModelSpec, config: RunnerConfig = CONFIG) -> None:
        self.host: dict[str, NDArray[Any]] = {
            name: np.full(item.shape, 111, item.dtype) for name, item in buffer_table(config, model).items()
        }
        self.simulation = Simulation(config, model)
        self.batch = InputBatch(model, config)
        self._compiler = StepCompiler(model, config, ARMS["sync-ids"], self.host)

    def step(self) -> tuple[StepPlan, list[Any]] | None:
        """The next plan and its commands; its tokens are then answered."""
        plan = self.simulation.plan()
        if plan is None:
            return None
        requests = self.simulation.scheduler.requests
        self.batch.update(plan, requests)
        staged = self._compiler.stage(plan, self.batch, requests, {})
        commands = self._compiler.compile(staged, requests)
        self.check_arrays(plan, commands)
        self.simulation.retire(plan)
        return plan, list(commands)

    def commands(self) -> list[Any]:
        compiled = self.step()
        assert compiled is not None
        return compiled[1]

    def check_arrays(self, plan: StepPlan, commands: list[Any]) -> None:
        """What lies in the host buffers, rebuilt naively from the plan and the requests."""
        states = self.simulation.scheduler.requests
        rows = {row.request_id: row for row in plan.rows}
        ordered = [rows[name] for name in self.batch.request_ids]
        ids = [
            token_at(states[row.request_id], row.first + i) for row in ordered for i in range(row.num_tokens)
        ]
        assert self.host["input_ids"][: plan.num_tokens].tolist() == ids
        positions = next(command for command in commands if isinstance(command, Positions))
        assert (positions.count, positions.num_rows) == (plan.num_tokens, len(plan.rows))
        layout = MetadataLayout(positions.num_rows, positions.table_width)
        metadata = self.host[positions.buffer][: layout.size].tolist()
        starts = [0]
        for row in ordered:
            starts.append(starts[-1] + row.num_tokens)
        assert metadata[: layout.num_computed] == starts
        assert metadata[layout.num_computed : layout.slots] == [row.first for row in ordered]
        assert metadata[layout.slots : layout.block_table] == [row.slot for row in ordered]
        for index, row in enumerate(ordered):
            begin = layout.block_table + index * positions.table_width
            blocks = states[row.request_id].block_ids
            assert len(blocks) <= positions.table_width, "a block of a row is cut off"
            assert metadata[begin : begin + len(blocks)] == blocks
        encodes = [(command.item, command.slot) for command in commands if isinstance(command, Encode)]
        assert encodes == [(item, encode.slot) for item, encode in enumerate(plan.encodes)]
        for item, encode in enumerate(plan.encodes):
            wanted = states[encode.request_id].request.prompt.images[encode.image]
            assert self.host["pixels"][item].tobytes() == wanted.data
        self._check_splices(commands, ordered, starts)

    def _check_splices(self, commands: list[Any], ordered: list[ScheduledRow], starts: list[int]) -> None:
        """Every packed placeholder gets its own row of its own image, and nothing else is overwritten."""
        got = {
            command.row_first + i: (self.simulation.content[command.slot], command.item_first + i)
            for command in commands
            if isinstance(command, Splice)
            for i in range(command.count)
        }
        wanted = {
            start + position - row.first: (span.key, position - span.first)
            for row, start in zip(ordered, starts, strict=False)
            for span in self.simulation.state(row.request_id).spans
            for position in range(span.first, span.end)
            if row.first <= position < row.first + row.num_tokens
        }
        assert got == wanted


def token_at(state: RequestState, position: int) -> int:
    return [*state.request.prompt.token_ids, *state.output_ids][position]


def metadata_size(rows: int, width: int) -> int:
    return MetadataLayout(rows, width).size


def test_a_text_prefill() -> None:
    compiling = Compiling(TINY_QWEN3)
    compiling.simulation.submit(text_request(TINY_QWEN3, "a", 10))
    assert compiling.commands() == [
        Upload("input_ids", 0, 0, 10),
        Upload("step_metadata.0", 0, 0, metadata_size(1, 3)),
        Record("uploads"),
        Positions("step_metadata.0", 10, 1, 3, 0, 0, False),
        Forward(10, "input_ids", max_query=10, max_context=10, num_decodes=0),
        Sample("sampled_ids.0", 1, 1),
        Record("sampled"),
        Wait("sampled", "output"),
        Download("sampled_ids.0", 1),
        Record("output", "output"),
    ]


def test_a_text_decode_of_two_rows_uses_the_other_buffers_of_the_ring() -> None:
    compiling = Compiling(TINY_QWEN3)
    compiling.simulation.submit(text_request(TINY_QWEN3, "a", 4), text_request(TINY_QWEN3, "b", 9))
    compiling.step()
    assert compiling.commands() == [
        Upload("input_ids", 0, 0, 2),
        Upload("step_metadata.1", 0, 0, metadata_size(2, 3)),
        Record("uploads"),
        Positions("step_metadata.1", 2, 2, 3, 0, 0, False),
        Forward(2, "input_ids", max_query=1, max_context=10, num_decodes=2),
        Sample("sampled_ids.1", 2, 2),
        Record("sampled"),
        Wait("sampled", "output"),
        Download("sampled_ids.1", 2),
        Record("output", "output"),
    ]


def test_a_mixed_step_on_a_multimodal_model_looks_up_and_merges_everything() -> None:
    compiling = Compiling(SMALL_VL)
    compiling.simulation.submit(text_request(SMALL_VL, "a", 4))
    compiling.step()
    compiling.simulation.submit(text_request(SMALL_VL, "b", 20))
    assert compiling.commands() == [
        Upload("input_ids", 0, 0, 16),
        Upload("step_metadata.1", 0, 0, metadata_size(2, 4)),
        Record("uploads"),
        Positions("step_metadata.1", 16, 2, 4, 0, 0, False),
        Lookup("ids", 16),
        Merge("copy", 16),
        Forward(16, "inputs_embeds", max_query=15, max_context=15, num_decodes=1),
        Sample("sampled_ids.1", 2, 2),
        Record("sampled"),
        Wait("sampled", "output"),
        Download("sampled_ids.1", 2),
        Record("output", "output"),
    ]


def test_an_image_step_encodes_before_it_splices_and_splices_before_it_merges() -> None:
    compiling = Compiling(SMALL_VL)
    compiling.simulation.submit(text_request(SMALL_VL, "a", 4))
    compiling.step()
    # Placeholders of image 7 at prompt positions 3-5, of image 8 at 8-10: the budget cuts after the first.
    prompt = prompt_of(SMALL_VL, [2, ("image", 7), ("image", 8), 6], 1)
    compiling.simulation.submit(request("b", prompt))
    plan, commands = compiling.step() or (None, [])
    assert plan is not None
    first_slot, second_slot = (encode.slot for encode in plan.encodes)
    assert first_slot != second_slot
    assert commands == [
        Upload("input_ids", 0, 0, 16),
        Upload("step_metadata.1", 0, 0, metadata_size(2, 4)),
        Upload("pixels", 0, 0, 2),
        Record("uploads"),
        Positions("step_metadata.1", 16, 2, 4, 0, 0, False),
        Encode(0, first_slot),
        Encode(1, second_slot),
        Lookup("ids", 16),
        Splice("looked_up", first_slot, 0, 4, 3),  # behind the one decode token of the other row
        Splice("looked_up", second_slot, 0, 9, 3),
        Merge("copy", 16),
        Forward(16, "inputs_embeds", max_query=15, max_context=15, num_decodes=1),
        Sample("sampled_ids.1", 2, 2),
        Record("sampled"),
        Wait("sampled", "output"),
        Download("sampled_ids.1", 2),
        Record("output", "output"),
    ]
    for item, seed in enumerate((7, 8)):
        assert compiling.host["pixels"][item].tobytes() == image(seed, (2, 2, 3)).data


def test_a_fence_behind_the_embeddings_is_recorded_once_just_before_the_forward() -> None:
    compiling = Compiling(SMALL_VL, replace(CONFIG, fence="embeddings"))
    compiling.simulation.submit(request("a", prompt_of(SMALL_VL, [2, ("image", 7), 6], 1)))
    commands = compiling.commands()
    names = [command.event if isinstance(command, Record) else command.operation for command in commands]
    assert names == [
        *("upload", "upload", "upload", "positions", "encode", "lookup", "splice", "merge", "embeddings"),
        *("forward", "sample", "sampled", "wait", "download", "output"),
    ]


def test_an_image_cut_by_the_budget_goes_on_at_its_next_row_without_encoding_again() -> None:
    compiling = Compiling(SMALL_VL)
    # Placeholders at positions 14-16: two in the first chunk of 16, the last in the second.
    compiling.simulation.submit(request("a", prompt_of(SMALL_VL, [13, ("image", 7), 2], 1)))
    first, second = compiling.commands(), compiling.commands()
    slot = next(command.slot for command in first if isinstance(command, Encode))
    spliced = [[command for command in step if isinstance(command, Splice)] for step in (first, second)]
    assert spliced == [[Splice("looked_up", slot, 0, 14, 2)], [Splice("looked_up", slot, 2, 0, 1)]]
    assert not [command for command in second if isinstance(command, Encode)]


def test_a_buffer_is_written_only_where_the_step_needs_it() -> None:
    compiling = Compiling(TINY_QWEN3)
    compiling.simulation.submit(text_request(TINY_QWEN3, "a", 3))
    compiling.step()
    assert set(compiling.host["input_ids"][3:].tolist()) == {111}
    assert set(compiling.host["step_metadata.1"].tolist()) == {111}


def test_uploads_stay_inside_their_buffers_at_the_largest_step() -> None:
    compiling = Compiling(SMALL_VL)
    for name in "abcd":
        compiling.simulation.submit(text_request(SMALL_VL, name, 4, max_tokens=9))
    while (compiled := compiling.step()) is not None:
        for command in compiled[1]:
            if isinstance(command, Upload):
                assert command.host_first + command.count <= len(compiling.host[command.buffer])


PIECES = st.lists(
    st.one_of(st.integers(1, 9), st.tuples(st.just("image"), st.integers(0, 2))), min_size=1, max_size=3
)


@settings(max_examples=60)
@given(st.data())
def test_the_arrays_of_any_workload_equal_the_naive_ones(data: st.DataObject) -> None:
    compiling = Compiling(SMALL_VL)
    for index in range(data.draw(st.integers(1, 8), label="requests")):
        prompt = prompt_of(SMALL_VL, data.draw(PIECES), index)
        made = request(f"r{index}", prompt, data.draw(st.integers(1, 12), label="max_tokens"))
        compiling.simulation.submit(made)
        for _ in range(data.draw(st.integers(0, 3), label="steps")):
            compiling.step()
    while compiling.step() is not None:
        pass
    compiling.simulation.check_finished()


@pytest.mark.parametrize("model", [TINY_QWEN3, SMALL_VL], ids=lambda model: model.name)
def test_every_command_list_ends_with_the_output_and_fences_its_uploads(model: ModelSpec) -> None:
    compiling = Compiling(model)
    for name in "abc":
        compiling.simulation.submit(text_request(model, name, 20, max_tokens=4))
    while (compiled := compiling.step()) is not None:
        commands = compiled[1]
        fence = commands.index(Record("uploads"))
        uploads = [index for index, command in enumerate(commands) if isinstance(command, Upload)]
        assert fence == uploads[-1] + 1
        assert commands[-1] == Record("output", "output")
