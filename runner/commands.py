"""The commands of a step and the named buffers they speak of: the only words between the two halves.

A command is a small frozen value; it holds offsets into named buffers, never an array. On the wire it is a
plain tuple, its operation first. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import ClassVar, Literal, NamedTuple

from runner.config import RunnerConfig
from runner.models import ModelSpec

UPLOADS_DONE = "uploads"
OUTPUT_READY = "output"
EVENTS = (UPLOADS_DONE, OUTPUT_READY)

RING_SIZE = 2  # steps in flight at most


def ring(buffer: str, step_id: int) -> str:
    """The name of a ring buffer's copy that a step uses."""
    return f"{buffer}.{step_id % RING_SIZE}"


class BufferSpec(NamedTuple):
    """A named buffer; it exists on both sides, always as separate storage. Shape in elements."""

    dtype: Literal["int32", "uint8"]
    shape: tuple[int, ...]


def buffer_table(config: RunnerConfig, model: ModelSpec) -> Mapping[str, BufferSpec]:
    """Every buffer a command may name, by name."""
    table = {"input_ids": BufferSpec("int32", (config.max_num_batched_tokens,))}
    if model.vision is not None:
        shape = (config.max_images_per_step, *model.vision.image_shape)
        table["pixels"] = BufferSpec("uint8", shape)
    metadata = MetadataLayout(config.max_num_seqs, config.max_blocks_per_seq).size
    for parity in range(RING_SIZE):
        table[ring("step_metadata", parity)] = BufferSpec("int32", (metadata,))
        table[ring("sampled_ids", parity)] = BufferSpec("int32", (config.max_num_seqs,))
    return table


class MetadataLayout(NamedTuple):
    """Where a step's small integers lie in `step_metadata`, packed so that one copy carries them all.

    query_start_loc [rows + 1] · num_computed [rows] · slots [rows] · block_table [rows, width]
    """

    num_rows: int
    table_width: int

    @property
    def num_computed(self) -> int:
        return self.num_rows + 1

    @property
    def slots(self) -> int:
        return 2 * self.num_rows + 1

    @property
    def block_table(self) -> int:
        return 3 * self.num_rows + 1

    @property
    def size(self) -> int:
        return self.block_table + self.num_rows * self.table_width


@dataclass(frozen=True, slots=True)
class Command:
    """Base of all commands. `operation` names it on the wire and in spans."""

    operation: ClassVar[str]

    def to_wire(self) -> tuple[str | int, ...]:
        return (self.operation, *astuple(self))


@dataclass(frozen=True, slots=True)
class Upload(Command):
    """Copy rows [host_first, host_first + count) of a buffer to its device side at device_first."""

    operation: ClassVar[str] = "upload"
    buffer: str
    host_first: int
    device_first: int
    count: int


@dataclass(frozen=True, slots=True)
class Positions(Command):
    """Derive positions, context lengths and slot mapping of `count` tokens from `buffer`."""

    operation: ClassVar[str] = "positions"
    buffer: str
    count: int
    num_rows: int
    table_width: int


@dataclass(frozen=True, slots=True)
class Encode(Command):
    """Run the vision tower on image `item` of `pixels`; its rows go to encoder slot `slot`."""

    operation: ClassVar[str] = "encode"
    item: int
    slot: int


@dataclass(frozen=True, slots=True)
class Lookup(Command):
    """Embed the first `count` of input_ids to a temporary."""

    operation: ClassVar[str] = "lookup"
    count: int


@dataclass(frozen=True, slots=True)
class Splice(Command):
    """Copy image rows [item_first, item_first + count) of a slot over looked-up rows at row_first."""

    operation: ClassVar[str] = "splice"
    slot: int
    item_first: int
    row_first: int
    count: int


@dataclass(frozen=True, slots=True)
class Merge(Command):
    """Bring looked-up rows into inputs_embeds. `copy`: all of them (no row was supplied)."""

    operation: ClassVar[str] = "merge"
    kind: Literal["copy"]
    count: int


@dataclass(frozen=True, slots=True)
class Forward(Command):
    """The model over `count` packed tokens; `inputs` says what it reads."""

    operation: ClassVar[str] = "forward"
    count: int
    inputs: Literal["input_ids", "inputs_embeds"]


@dataclass(frozen=True, slots=True)
class Sample(Command):
    """Greedy tokens of the last position of each of `count` rows, into ring buffer `buffer`."""

    operation: ClassVar[str] = "sample"
    buffer: str
    count: int


@dataclass(frozen=True, slots=True)
class Download(Command):
    """Copy the first `count` elements of a buffer to its host side."""

    operation: ClassVar[str] = "download"
    buffer: str
    count: int


@dataclass(frozen=True, slots=True)
class Record(Command):
    """Mark an event as reached by this step once all before it is done."""

    operation: ClassVar[str] = "record"
    event: str
