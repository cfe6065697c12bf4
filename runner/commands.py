"""The commands of a step and the named buffers they speak of: the only words between the two halves.

A command is a small frozen value; it holds offsets into named buffers, never an array. On the wire it is a
plain tuple, its operation first. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import ClassVar, Literal, NamedTuple

from runner.config import Fence, RunnerConfig
from runner.core import ITEM_BYTES, MAX_LOGPROBS, FloatType, host_type
from runner.models import ModelSpec
from runner.slot_state import WHOLE_WIDTH, Real
from runner.spans import upload_span

# Each is the fence of the configuration that names it; a step records no other of the two.
UPLOADS_DONE: Fence = "uploads"
EMBEDDINGS_DONE: Fence = "embeddings"
SAMPLED = "sampled"
OUTPUT_READY = "output"
EVENTS = (UPLOADS_DONE, EMBEDDINGS_DONE, SAMPLED, OUTPUT_READY)

Stream = Literal["compute", "output"]
STREAMS: tuple[Stream, ...] = ("compute", "output")

RING_SIZE = 2  # steps in flight at most


def ring(buffer: str, step_id: int) -> str:
    """The name of a ring buffer's copy that a step uses."""
    return f"{buffer}.{step_id % RING_SIZE}"


class BufferSpec(NamedTuple):
    """A named buffer; it exists on both sides, always as separate storage. Shape in elements."""

    dtype: Literal["int32", "int64", "uint8"] | FloatType
    shape: tuple[int, ...]

    @property
    def host_dtype(self) -> str:
        """numpy's type of its host side."""
        return host_type(self.dtype)


_ITEM_BYTES = {"int32": 4, "int64": 8, "uint8": 1, **ITEM_BYTES}


def row_bytes(buffer: BufferSpec) -> int:
    """Bytes of one row: one element of the first dimension, which is what `count` counts."""
    return _ITEM_BYTES[buffer.dtype] * math.prod(buffer.shape[1:])


def buffer_table(config: RunnerConfig, model: ModelSpec) -> Mapping[str, BufferSpec]:
    """Every buffer a command may name, by name."""
    tokens, hidden = config.max_num_batched_tokens, model.hidden_size
    resident = config.num_resident_rows
    table = {
        "input_ids": BufferSpec("int32", (tokens,)),
        "is_token_ids": BufferSpec("uint8", (tokens,)),
        "inputs_embeds": BufferSpec(config.dtype, (tokens, hidden)),
        "supplied_rows": BufferSpec(config.dtype, (tokens, hidden)),
        "resident_rows": BufferSpec(config.dtype, (resident, hidden)),
        "resident_mask": BufferSpec("uint8", (resident,)),
        "token_index": BufferSpec("int64", (tokens,)),
    }
    if model.vision is not None:
        shape = (config.max_images_per_step, *model.vision.image_shape)
        table["pixels"] = BufferSpec("uint8", shape)
    if model.rope == "mrope":
        table["rope_positions"] = BufferSpec("int64", (tokens, 3))
    return table | _slot_buffers(config) | _ring_buffers(config, model)


def history_width(config: RunnerConfig) -> int:
    """Columns of `token_history`."""
    return config.max_model_len + 1 + config.num_speculative_tokens


def _slot_buffers(config: RunnerConfig) -> dict[str, BufferSpec]:
    """One row a slot (runner/slot_state.py)."""
    slots = config.max_num_seqs
    return {
        "sampling_reals": BufferSpec("float32", (slots, len(Real))),
        "sampling_wholes": BufferSpec("int32", (slots, WHOLE_WIDTH)),
        # Beyond the longest request: what is written behind its last token needs no bound of its own.
        "token_history": BufferSpec("int32", (slots, history_width(config))),
    }


def _ring_buffers(config: RunnerConfig, model: ModelSpec) -> dict[str, BufferSpec]:
    """What a later step could overwrite while an earlier one still needs it.

    `sampled_ids`: a row's newest token, for the next step. `logprobs`, `logprob_ids`: for each sampled
    position the token's own log-probability or rank, then those or the ids of the most likely ones.
    `accepted_ids`, `draft_ids`, with speculation: a row's tokens of this step and its drafts for the next,
    NO_ID where there is none.
    """
    rows, drafts = config.max_num_seqs, config.num_speculative_tokens
    metadata = MetadataLayout.largest(config, model).size
    table = {}
    for parity in range(RING_SIZE):
        table[ring("step_metadata", parity)] = BufferSpec("int32", (metadata,))
        table[ring("sampled_ids", parity)] = BufferSpec("int32", (rows,))
        sampled = rows * (1 + drafts)
        table[ring("logprobs", parity)] = BufferSpec("float32", (sampled, 1 + MAX_LOGPROBS))
        table[ring("logprob_ids", parity)] = BufferSpec("int32", (sampled, 1 + MAX_LOGPROBS))
        if drafts:
            table[ring("accepted_ids", parity)] = BufferSpec("int32", (rows, 1 + drafts))
            table[ring("draft_ids", parity)] = BufferSpec("int32", (rows, drafts))
    return table


_REPEATABLE = frozenset(
    {"flags", "place", "route.ids", "positions", "merge.ids", "lookup", "splice", "merge"},
)


def is_repeatable(span: str) -> bool:
    """Whether commands of that span may run again at once without changing what a step computes."""
    return span in _REPEATABLE or span.startswith("upload.")


def repeated(commands: Sequence[Command], repeats: Mapping[str, int]) -> list[Command]:
    """The list with every command of a span in `repeats` in it that many times."""
    return [command for command in commands for _ in range(repeats.get(command.span or "", 1))]


class MetadataLayout(NamedTuple):
    """Where a step's small integers lie in `step_metadata`, packed so that one copy carries them all.

    query_start_loc [rows + 1] · num_computed [rows] · slots [rows] · block_table [rows, width] ·
    route_target, route_source [num_routed each] · place_target, place_source [num_placed each] ·
    supplied_length, resident_first, has_mask [rows each, when flags are derived] ·
    row_flags, row_drafts [rows each, when the step samples by slot] ·
    draft_target, draft_source [num_drafted each] ·
    image_first, image_end [num_images each]: packed offsets of images that attend both ways, in order

    A property is the offset of the part it is named after.
    """

    num_rows: int
    table_width: int
    num_routed: int = 0
    num_placed: int = 0
    derives_flags: bool = False
    by_slot: bool = False
    num_drafted: int = 0
    num_images: int = 0

    @staticmethod
    def largest(config: RunnerConfig, model: ModelSpec) -> MetadataLayout:
        """The layout of the largest step a configuration allows."""
        rows, tokens = config.max_num_seqs, config.max_num_batched_tokens
        drafts = rows * config.num_speculative_tokens
        vision = model.vision if model.attends_both_ways else None
        images = tokens // vision.rows_per_image if vision is not None else 0
        return MetadataLayout(rows, config.max_blocks_per_seq, rows, tokens, True, True, drafts, images)

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
    def route_target(self) -> int:
        return self.block_table + self.num_rows * self.table_width

    @property
    def route_source(self) -> int:
        return self.route_target + self.num_routed

    @property
    def place_target(self) -> int:
        return self.route_source + self.num_routed

    @property
    def place_source(self) -> int:
        return self.place_target + self.num_placed

    @property
    def supplied_length(self) -> int:
        return self.place_source + self.num_placed

    @property
    def resident_first(self) -> int:
        return self.supplied_length + self.num_rows * self.derives_flags

    @property
    def has_mask(self) -> int:
        return self.resident_first + self.num_rows * self.derives_flags

    @property
    def row_flags(self) -> int:
        return self.has_mask + self.num_rows * self.derives_flags

    @property
    def row_drafts(self) -> int:
        return self.row_flags + self.num_rows * self.by_slot

    @property
    def draft_target(self) -> int:
        return self.row_drafts + self.num_rows * self.by_slot

    @property
    def draft_source(self) -> int:
        return self.draft_target + self.num_drafted

    @property
    def image_first(self) -> int:
        return self.draft_source + self.num_drafted

    @property
    def image_end(self) -> int:
        return self.image_first + self.num_images

    @property
    def size(self) -> int:
        return self.image_end + self.num_images


class RowFlag(IntFlag):
    """What `row_flags` says of a row.

    SAMPLES: its sampled tokens count. HAS_PARAMS: its slot holds sampling parameters; without, it is greedy.
    ON_DEVICE: how many positions it has computed is known on the device only.
    """

    SAMPLES = 1
    HAS_PARAMS = 2
    ON_DEVICE = 4


@dataclass(frozen=True, slots=True)
class Command:
    """Base of all commands. `operation` names it on the wire and in spans."""

    operation: ClassVar[str]

    @property
    def on_stream(self) -> Stream:
        """The stream that runs it, in order."""
        return "compute"

    @property
    def span(self) -> str | None:
        """The name its time goes by; None for a command that only orders others."""
        return self.operation

    def to_wire(self) -> tuple[str | int, ...]:
        # The fields in order; they are plain values, and `astuple` would copy each of them deeply.
        names: tuple[str, ...] = self.__match_args__
        return (self.operation, *(getattr(self, name) for name in names))


@dataclass(frozen=True, slots=True)
class Upload(Command):
    """Copy rows [host_first, host_first + count) of a buffer to its device side at device_first."""

    operation: ClassVar[str] = "upload"
    buffer: str
    host_first: int
    device_first: int
    count: int

    @property
    def span(self) -> str | None:
        return upload_span(self.buffer)


@dataclass(frozen=True, slots=True)
class Positions(Command):
    """Derive positions, context lengths and slot mapping of `count` tokens from `buffer`.

    The other fields are its MetadataLayout, which later commands of the step read as well. With a ring
    buffer `routed`, the ids that the last step sampled are taken from it in the same launch, as RouteIds
    would by route_target and route_source.
    """

    operation: ClassVar[str] = "positions"
    buffer: str
    count: int
    num_rows: int
    table_width: int
    num_routed: int
    num_placed: int
    derives_flags: bool
    by_slot: bool = False
    num_drafted: int = 0
    num_images: int = 0
    routed: str = ""


@dataclass(frozen=True, slots=True)
class RouteIds(Command):
    """Take `count` ids sampled by the last step from `source` into input_ids, host unseen.

    `slice`: the first `count`, in order; `scatter`: by the step's route_target and route_source.
    """

    operation: ClassVar[str] = "route.ids"
    kind: Literal["slice", "scatter"]
    source: str
    count: int


@dataclass(frozen=True, slots=True)
class RouteDrafts(Command):
    """Take `count` drafts proposed by the last step from `source`, by draft_target and draft_source.

    A draft that was not proposed is routed as id 0: what it is verified against decides, as for any other.
    """

    operation: ClassVar[str] = "route.drafts"
    source: str
    count: int


@dataclass(frozen=True, slots=True)
class Flags(Command):
    """Set is_token_ids of `count` positions on the device.

    `fill`: all true; `derived`: position beyond the supplied length, or not supplied by the mask.
    """

    operation: ClassVar[str] = "flags"
    kind: Literal["fill", "derived"]
    count: int


@dataclass(frozen=True, slots=True)
class Place(Command):
    """Bring `count` supplied rows into inputs_embeds, by place_target and place_source.

    `scatter`: from the packed rows of this step; `gather`: from the arena.
    """

    operation: ClassVar[str] = "place"
    kind: Literal["scatter", "gather"]
    count: int


@dataclass(frozen=True, slots=True)
class SafeIds(Command):
    """Make `count` ids safe to look up, to a temporary.

    `where`: 0 at supplied positions; `clamp`: 0 for a negative id.
    """

    operation: ClassVar[str] = "merge.ids"
    kind: Literal["where", "clamp"]
    count: int


@dataclass(frozen=True, slots=True)
class Encode(Command):
    """Run the vision tower on image `item` of `pixels`; its rows go to encoder slot `slot`."""

    operation: ClassVar[str] = "encode"
    item: int
    slot: int


@dataclass(frozen=True, slots=True)
class Lookup(Command):
    """Embed `count` ids to a temporary.

    `ids`: the first of input_ids; `safe`: those SafeIds left; `indexed`: those at token_index.
    """

    operation: ClassVar[str] = "lookup"
    kind: Literal["ids", "safe", "indexed"]
    count: int


@dataclass(frozen=True, slots=True)
class Splice(Command):
    """Copy image rows [item_first, item_first + count) of a slot over rows of `target` at row_first."""

    operation: ClassVar[str] = "splice"
    target: Literal["looked_up", "inputs_embeds"]
    slot: int
    item_first: int
    row_first: int
    count: int


@dataclass(frozen=True, slots=True)
class Merge(Command):
    """Bring looked-up and supplied rows together in inputs_embeds.

    `copy`: all `count` looked-up rows; `where`: looked-up rows at token positions, through a temporary;
    `index`: the `count` looked-up rows to token_index; `overlay`: `count` resident rows over looked-up
    ones; `fused`: `count` rows in one gather from table and arena.
    """

    operation: ClassVar[str] = "merge"
    kind: Literal["copy", "where", "index", "overlay", "fused"]
    count: int


@dataclass(frozen=True, slots=True)
class Forward(Command):
    """The model over `count` packed tokens; `inputs` says what it reads.

    What its launches are sized by, since the host knows it without asking the device: rows of `max_query`
    tokens, `num_decodes` rows of one, and contexts of `max_context` positions, guesses of the host included.
    A step of one token a row may run as the captured graph of `graph` rows, those beyond its own padded; 0
    is none.
    """

    operation: ClassVar[str] = "forward"
    count: int
    inputs: Literal["input_ids", "inputs_embeds"]
    max_query: int
    max_context: int
    num_decodes: int
    graph: int = 0


@dataclass(frozen=True, slots=True)
class Sample(Command):
    """Tokens of the last position of each of `count` rows, the newest of each to ring buffer `buffer`.

    Of `num_logits` positions in all: a row with drafts is sampled at each of them too, and gets the tokens
    up to the first that its drafts did not foresee; `accepted` is the ring buffer for them, empty without
    speculation. `needs` says what is asked for beside the likeliest token (runner.slot_state.SamplerNeed).
    """

    operation: ClassVar[str] = "sample"
    buffer: str
    count: int
    num_logits: int
    needs: int = 0
    accepted: str = ""


@dataclass(frozen=True, slots=True)
class Logprobs(Command):
    """Log-probabilities at the `count` positions just sampled, to ring buffers `values` and `ids`."""

    operation: ClassVar[str] = "logprobs"
    values: str
    ids: str
    count: int


@dataclass(frozen=True, slots=True)
class Draft(Command):
    """Propose the next tokens of `count` rows by prompt lookup, to ring buffer `buffer`."""

    operation: ClassVar[str] = "draft"
    buffer: str
    count: int


@dataclass(frozen=True, slots=True)
class Download(Command):
    """Copy the first `count` elements of a buffer to its host side, on the output stream."""

    operation: ClassVar[str] = "download"
    buffer: str
    count: int

    @property
    def on_stream(self) -> Stream:
        return "output"


@dataclass(frozen=True, slots=True)
class Record(Command):
    """Mark an event as reached by this step once all before it on the stream is done."""

    operation: ClassVar[str] = "record"
    event: str
    stream: Stream = "compute"

    @property
    def span(self) -> str | None:
        return None

    @property
    def on_stream(self) -> Stream:
        return self.stream


@dataclass(frozen=True, slots=True)
class Wait(Command):
    """Hold the stream until this step has recorded the event."""

    operation: ClassVar[str] = "wait"
    event: str
    stream: Stream

    @property
    def span(self) -> str | None:
        return None

    @property
    def on_stream(self) -> Stream:
        return self.stream
