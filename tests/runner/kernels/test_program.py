"""Program: each command by itself, its copies counted at the tensors, its bounds checked."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from fabrication import VISION, image, text

from runner.commands import (
    Command,
    Download,
    Encode,
    Forward,
    Lookup,
    Merge,
    MetadataLayout,
    Positions,
    Sample,
    Splice,
    Upload,
    buffer_table,
)
from runner.config import RunnerConfig
from runner.core import Prompt
from runner.kernels.geometry import StepGeometry
from runner.kernels.kvcache import POISON
from runner.kernels.program import CopyCounter, Program
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3, ModelSpec
from runner.weights import build_model
from suite.oracle import Reference, preprocess

CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=24,
    max_model_len=48,
    block_size=4,
    num_blocks=12,
    num_encoder_slots=3,
    max_images_per_step=2,
)
METADATA = "step_metadata.0"


class Bench:
    """A program and its host buffers; the few private tensors the tests look at are read here only."""

    def __init__(self, model: ModelSpec) -> None:
        buffers = buffer_table(CONFIG, model)
        self.host = {
            name: torch.from_numpy(np.zeros(item.shape, item.dtype)) for name, item in buffers.items()
        }
        self.program = Program(model, CONFIG, buffers, self.host, torch.device("cpu"))
        self.copies = CopyCounter()

    def reset(self) -> None:
        self.program.reset()
        self.take_copies()
        for tensor in self.host.values():
            tensor.zero_()

    def run(self, *commands: Command) -> None:
        for command in commands:
            self.program.execute(command.to_wire(), self.copies)

    def take_copies(self) -> CopyCounter:
        """What was copied since the last call."""
        copies, self.copies = self.copies, CopyCounter()
        return copies

    def device(self, buffer: str) -> list[int]:
        """The device side of a buffer, by way of a download."""
        self.run(Download(buffer, self.host[buffer].shape[0]))
        values: list[int] = self.host[buffer].tolist()
        return values

    def load_ids(self, *ids: int) -> None:
        self.host["input_ids"][: len(ids)] = torch.tensor(ids)
        self.run(Upload("input_ids", 0, 0, len(ids)))

    def load_image(self, item: int, seed: int) -> None:
        pixels = torch.frombuffer(bytearray(image(seed).data), dtype=torch.uint8)
        self.host["pixels"][item] = pixels.view(VISION.image_shape)
        self.run(Upload("pixels", item, item, 1))

    def load_metadata(self, rows: list[tuple[int, int, list[int]]]) -> Positions:
        """Rows of (first, count, block ids); returns the Positions command that reads them."""
        width = max(len(blocks) for _, _, blocks in rows)
        layout = MetadataLayout(len(rows), width)
        starts = [0]
        for _, count, _ in rows:
            starts.append(starts[-1] + count)
        values = [*starts, *(first for first, _, _ in rows), *range(len(rows))]
        for _, _, blocks in rows:
            values += [*blocks, *[0] * (width - len(blocks))]
        self.host[METADATA][: layout.size] = torch.tensor(values)
        self.run(Upload(METADATA, 0, 0, layout.size))
        return Positions(METADATA, starts[-1], *layout)

    @property
    def inputs_embeds(self) -> torch.Tensor:
        return self.program._buffers["inputs_embeds"]

    @property
    def encoder_rows(self) -> torch.Tensor:
        return self.program._encoder_rows

    @property
    def cache_tensors(self) -> list[torch.Tensor]:
        return [*self.program._cache.keys, *self.program._cache.values]

    @property
    def geometry(self) -> StepGeometry:
        assert self.program._geometry is not None
        return self.program._geometry


@cache
def bench_of(name: str) -> Bench:
    return Bench({"vl": TINY_GEMMA3_VL, "text": TINY_QWEN3}[name])


@cache
def reference_of(name: str) -> Reference:
    spec = {"vl": TINY_GEMMA3_VL, "text": TINY_QWEN3}[name]
    return Reference(spec, build_model(spec))


@pytest.fixture
def vl() -> Bench:
    bench = bench_of("vl")
    bench.reset()
    return bench


@pytest.fixture
def textual() -> Bench:
    bench = bench_of("text")
    bench.reset()
    return bench


# ---- copies


def test_an_upload_copies_exactly_its_elements(vl: Bench) -> None:
    vl.host["input_ids"][:5] = torch.tensor([10, 11, 12, 13, 14])
    vl.run(Upload("input_ids", 1, 3, 2))
    assert vl.device("input_ids") == [-1, -1, -1, 11, 12] + [-1] * 19


def test_host_and_device_are_separate_storage(vl: Bench) -> None:
    vl.load_ids(1, 2, 3)
    vl.host["input_ids"][:3] = 99
    assert vl.device("input_ids")[:3] == [1, 2, 3]


def test_a_download_copies_exactly_its_elements(vl: Bench) -> None:
    vl.load_ids(1, 2, 3)
    vl.host["input_ids"].fill_(77)
    vl.run(Download("input_ids", 2))
    assert vl.host["input_ids"].tolist() == [1, 2] + [77] * 22


def test_copies_are_counted_by_buffer_from_the_tensors_copied(vl: Bench) -> None:
    vl.run(
        Upload("input_ids", 0, 0, 5),
        Upload("input_ids", 5, 5, 2),
        Upload("pixels", 0, 0, 2),
        Download("sampled_ids.0", 3),
    )
    counted = vl.take_copies()
    assert counted.uploads == {"input_ids": (2, 7 * 4), "pixels": (1, 2 * 112 * 112 * 3)}
    assert counted.download_bytes == 3 * 4


def test_copies_are_counted_anew_after_they_are_taken(vl: Bench) -> None:
    vl.run(Upload("input_ids", 0, 0, 5), Download("input_ids", 1))
    vl.take_copies()
    counted = vl.take_copies()
    assert (counted.uploads, counted.download_bytes) == ({}, 0)


def test_commands_other_than_copies_count_no_bytes(vl: Bench) -> None:
    vl.load_ids(5, 6)
    vl.load_image(0, 1)
    positions = vl.load_metadata([(0, 2, [3])])
    vl.take_copies()
    vl.run(
        positions,
        Encode(0, 0),
        Lookup("ids", 2),
        Splice("looked_up", 0, 0, 0, 2),
        Merge("copy", 2),
        Forward(2, "inputs_embeds", 2, 2, 0),
        Sample("sampled_ids.0", 1, 1),
    )
    counted = vl.take_copies()
    assert (counted.uploads, counted.download_bytes) == ({}, 0)


# ---- where tokens lie


def test_positions_and_slots_are_derived_from_firsts_counts_and_block_tables(textual: Bench) -> None:
    rows = [(6, 1, [9, 2]), (0, 5, [4, 11]), (3, 3, [7, 0])]
    textual.run(textual.load_metadata(rows))
    geometry = textual.geometry
    assert geometry.rope_positions[0].tolist() == [6, 0, 1, 2, 3, 4, 3, 4, 5]
    assert geometry.slot_mapping.tolist() == [
        *[2 * 4 + 2],
        *[4 * 4 + 0, 4 * 4 + 1, 4 * 4 + 2, 4 * 4 + 3, 11 * 4 + 0],
        *[7 * 4 + 3, 0 * 4 + 0, 0 * 4 + 1],
    ]
    assert geometry.starts.tolist() == [0, 1, 6, 9]
    assert geometry.ends.tolist() == [7, 5, 6]


@pytest.mark.parametrize("block", [-1, CONFIG.num_blocks])
def test_a_block_id_outside_the_cache_is_an_error(textual: Bench, block: int) -> None:
    positions = textual.load_metadata([(0, 5, [4, block])])
    with pytest.raises(IndexError, match=rf"block id outside \[0, {CONFIG.num_blocks}\)"):
        textual.run(positions)


def test_a_position_beyond_the_block_table_is_an_error(textual: Bench) -> None:
    positions = textual.load_metadata([(6, 3, [4, 5])])
    with pytest.raises(IndexError):
        textual.run(positions)


# ---- embeddings and images


def test_looked_up_rows_are_scaled_as_the_model_does_and_merged_where_they_belong(vl: Bench) -> None:
    vl.load_ids(5, 6, 7)
    vl.run(Lookup("ids", 3), Merge("copy", 3))
    with torch.inference_mode():
        wanted = reference_of("vl").embed([5, 6, 7])[0]
    assert torch.equal(vl.inputs_embeds[:3], wanted)
    assert bool(vl.inputs_embeds[3:].isnan().all())


def test_an_encoded_image_lies_in_its_slot_and_in_no_other(vl: Bench) -> None:
    vl.load_image(0, 1)
    vl.load_image(1, 2)
    vl.run(Encode(1, 2))
    with torch.inference_mode():
        reference: Any = reference_of("vl")
        pixels = preprocess([image(2)], VISION)
        wanted = reference._model.model.get_image_features(pixels).pooler_output[0]
    torch.testing.assert_close(vl.encoder_rows[2], wanted, rtol=0, atol=1e-4)
    assert bool(vl.encoder_rows[:2].isnan().all())


def test_a_splice_overwrites_exactly_its_rows_with_the_right_part_of_the_image(vl: Bench) -> None:
    vl.load_ids(*range(10, 18))
    vl.load_image(0, 1)
    vl.run(Encode(0, 1), Lookup("ids", 8), Splice("looked_up", 1, 5, 2, 3), Merge("copy", 8))
    with torch.inference_mode():
        wanted = reference_of("vl").embed(list(range(10, 18)))[0].clone()
        wanted[2:5] = vl.encoder_rows[1, 5:8]
    assert torch.equal(vl.inputs_embeds[:8], wanted)


@pytest.mark.parametrize("token", [-1, TINY_GEMMA3_VL.vocab_size])
def test_an_id_outside_the_vocabulary_never_reaches_the_table(vl: Bench, token: int) -> None:
    vl.load_ids(5, token)
    with pytest.raises(IndexError):
        vl.run(Lookup("ids", 2))


def test_an_id_of_minus_one_is_an_error_inside_the_forward_as_well(textual: Bench) -> None:
    textual.load_ids(5, -1)
    textual.run(textual.load_metadata([(0, 2, [3])]))
    with pytest.raises(IndexError):
        textual.run(Forward(2, "input_ids", 2, 2, 0))


OUT_OF_BOUNDS = [
    Encode(0, CONFIG.num_encoder_slots),
    Encode(0, -1),
    Encode(2, 0),
    Splice("looked_up", CONFIG.num_encoder_slots, 0, 0, 1),
    Splice("looked_up", -1, 0, 0, 1),
    Splice("looked_up", 0, VISION.rows_per_image, 0, 1),
    Splice("looked_up", 0, VISION.rows_per_image - 1, 0, 3),
    Splice("looked_up", 0, 0, 7, 3),
    Upload("input_ids", 20, 0, 5),
    Upload("input_ids", 0, 20, 5),
    Upload("input_ids", 20, 20, 5),
    Download("input_ids", 25),
]


@pytest.mark.parametrize("command", OUT_OF_BOUNDS, ids=lambda command: str(command.to_wire()))
def test_a_command_that_reaches_outside_its_buffers_is_an_error(vl: Bench, command: Command) -> None:
    """An index wrapped, cut short or spread by the tensor library would corrupt a neighbour in silence."""
    vl.load_ids(*range(10, 18))
    vl.load_image(0, 1)
    vl.run(Encode(0, 0), Lookup("ids", 8))
    with pytest.raises((IndexError, RuntimeError, AssertionError)):
        vl.run(command)


def test_an_unknown_buffer_or_command_is_an_error(vl: Bench) -> None:
    with pytest.raises(KeyError):
        vl.run(Upload("nothing", 0, 0, 1))
    with pytest.raises(KeyError):
        vl.program.execute(("dance", 1), vl.copies)


# ---- forward and sample


def greedy(name: str, ids: tuple[int, ...], count: int) -> list[int]:
    with torch.inference_mode():
        return reference_of(name).greedy([Prompt(ids)], count)[0]


def embed_and_forward(name: str, rows: list[tuple[int, int, list[int]]]) -> list[Command]:
    """Of rows as `load_metadata` takes them."""
    counts = [count for _, count, _ in rows]
    limits = (max(counts), max(first + count for first, count, _ in rows), counts.count(1))
    if name == "text":
        return [Forward(sum(counts), "input_ids", *limits)]
    copied: list[Command] = [Lookup("ids", sum(counts)), Merge("copy", sum(counts))]
    return [*copied, Forward(sum(counts), "inputs_embeds", *limits)]


@pytest.mark.parametrize("name", ["vl", "text"])
def test_a_prompt_and_the_decode_after_it_give_the_greedy_tokens(name: str) -> None:
    bench = bench_of(name)
    bench.reset()
    ids = text(TINY_QWEN3, 10, seed=1)
    bench.load_ids(*ids)
    prompt, decode = [(0, 10, [5, 0, 9])], [(10, 1, [5, 0, 9])]
    bench.run(bench.load_metadata(prompt), *embed_and_forward(name, prompt))
    bench.run(Sample("sampled_ids.0", 1, 1))
    first = bench.device("sampled_ids.0")[0]
    bench.load_ids(first)
    bench.run(bench.load_metadata(decode), *embed_and_forward(name, decode))
    bench.run(Sample("sampled_ids.1", 1, 1))
    assert [first, bench.device("sampled_ids.1")[0]] == greedy(name, ids, 2)


@pytest.mark.parametrize("name", ["vl", "text"])
def test_each_row_is_sampled_at_its_own_last_position(name: str) -> None:
    bench = bench_of(name)
    bench.reset()
    prompts = [text(TINY_QWEN3, length, seed=length) for length in (7, 1, 10)]
    bench.load_ids(*(token for ids in prompts for token in ids))
    rows = [(0, 7, [1, 8]), (0, 1, [2]), (0, 10, [11, 3, 4])]
    bench.run(bench.load_metadata(rows), *embed_and_forward(name, rows), Sample("sampled_ids.1", 3, 3))
    assert bench.device("sampled_ids.1") == [*(greedy(name, ids, 1)[0] for ids in prompts), -1]
    assert bench.device("sampled_ids.0") == [-1] * 4


def test_an_image_changes_what_is_sampled_as_it_does_in_the_reference(vl: Bench) -> None:
    ids = (*text(TINY_GEMMA3_VL, 3, seed=2), *VISION.placeholder_ids(), *text(TINY_GEMMA3_VL, 2, seed=3))
    vl.load_ids(*ids)
    vl.load_image(0, 4)
    positions = vl.load_metadata([(0, len(ids), [6, 7, 8, 9, 10, 1])])
    vl.run(
        positions,
        Encode(0, 0),
        Lookup("ids", len(ids)),
        Splice("looked_up", 0, 0, 4, 16),
        Merge("copy", len(ids)),
    )
    vl.run(Forward(len(ids), "inputs_embeds", len(ids), len(ids), 0), Sample("sampled_ids.0", 1, 1))
    with torch.inference_mode():
        wanted = reference_of("vl").greedy([Prompt(ids, (image(4),))], 1)[0]
    assert vl.device("sampled_ids.0")[:1] == wanted


def test_nothing_is_forwarded_before_positions_are_known(textual: Bench) -> None:
    textual.load_ids(5)
    with pytest.raises(AssertionError):
        textual.run(Forward(1, "input_ids", 1, 1, 1))


def test_a_reset_leaves_nothing_of_an_earlier_step(vl: Bench) -> None:
    vl.load_ids(5, 6)
    vl.load_image(0, 1)
    vl.run(
        vl.load_metadata([(0, 2, [3])]),
        Encode(0, 0),
        Lookup("ids", 2),
        Merge("copy", 2),
        Forward(2, "inputs_embeds", 2, 2, 0),
    )
    vl.run(Sample("sampled_ids.0", 1, 1))
    vl.program.reset()
    for buffer in ("input_ids", METADATA, "sampled_ids.0"):
        assert set(vl.device(buffer)) == {-1}
    assert bool(vl.inputs_embeds.isnan().all())
    assert bool(vl.encoder_rows.isnan().all())
    assert all(bool((tensor == POISON).all()) for tensor in vl.cache_tensors)
    with pytest.raises(AssertionError):
        vl.run(Forward(1, "inputs_embeds", 1, 1, 1))


def test_the_models_soft_cap_keeps_the_order_of_logits() -> None:
    """A cap squeezes values; the greedy choice is of capped logits, whose order is that of the others."""
    spec = TINY_GEMMA3_VL
    text_config = dict(spec.hf_config["text_config"])
    capped = replace(
        spec,
        name="capped",
        hf_config={**spec.hf_config, "text_config": {**text_config, "final_logit_softcapping": 3.0}},
    )
    program = Bench(capped).program
    hidden = torch.randn(2, spec.hidden_size, generator=torch.Generator().manual_seed(1)) * 10
    with torch.inference_mode():
        logits = program._model.logits(hidden)
        plain = bench_of("vl").program._model.logits(hidden)
    assert float(logits.abs().max()) <= 3.0
    torch.testing.assert_close(logits, torch.tanh(plain / 3.0) * 3.0)
