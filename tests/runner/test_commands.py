"""Commands are values; on the wire they are tuples of primitives; buffers are all named in one table."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from runner import commands
from runner.commands import RING_SIZE, Command, MetadataLayout, Upload, buffer_table, ring
from runner.config import RunnerConfig
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3


def kinds() -> list[type[Command]]:
    found = [value for value in vars(commands).values() if isinstance(value, type)]
    return [kind for kind in found if issubclass(kind, Command) and kind is not Command]


def test_every_command_has_its_own_name_on_the_wire() -> None:
    names = [kind.operation for kind in kinds()]
    assert len(names) >= 10
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.operation)
def test_a_command_travels_as_a_plain_tuple_of_its_fields(kind: type[Command]) -> None:
    values = list(range(len(fields(kind))))
    assert kind(*values).to_wire() == (kind.operation, *values)


def test_a_command_is_frozen_and_compared_by_value() -> None:
    command = Upload("input_ids", 0, 0, 4)
    assert command == Upload("input_ids", 0, 0, 4)
    assert command != Upload("input_ids", 0, 0, 5)
    with pytest.raises(FrozenInstanceError):
        command.count = 5


def test_the_ring_takes_turns_and_its_names_are_buffers() -> None:
    table = buffer_table(RunnerConfig(), TINY_GEMMA3_VL)
    for base in ("step_metadata", "sampled_ids"):
        names = [ring(base, step_id) for step_id in range(2 * RING_SIZE)]
        assert len(set(names)) == RING_SIZE
        assert names[:RING_SIZE] == names[RING_SIZE:]
        assert set(names) <= set(table)


def test_the_buffers_hold_a_step_of_the_largest_size() -> None:
    config = RunnerConfig(max_num_seqs=3, max_num_batched_tokens=40, max_model_len=50, block_size=8)
    table = buffer_table(config, TINY_GEMMA3_VL)
    assert table["input_ids"].shape == (40,)
    assert table["pixels"].shape == (config.max_images_per_step, 112, 112, 3)
    assert table["pixels"].dtype == "uint8"
    assert table[ring("sampled_ids", 0)].shape == (3,)
    assert table[ring("step_metadata", 1)].shape == (MetadataLayout(3, 7, 3, 40, True, True, 0).size,)


def test_a_text_model_has_no_pixels() -> None:
    assert "pixels" not in buffer_table(RunnerConfig(), TINY_QWEN3)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("width", [1, 4])
def test_the_parts_of_the_metadata_are_adjacent_and_do_not_overlap(rows: int, width: int) -> None:
    layout = MetadataLayout(rows, width)
    assert layout.num_computed == rows + 1  # after query_start_loc
    assert layout.slots == layout.num_computed + rows
    assert layout.block_table == layout.slots + rows
    assert layout.size == layout.block_table + rows * width
