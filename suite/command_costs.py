"""What a command costs by its own definition: copies, bytes and launches, read and not measured.

A device pass is billed for the ids, flags and rows it reads and writes, each time it does, as if nothing
stayed in a cache; arithmetic over a step's few integers of metadata is billed as launches only. What the
model itself computes (the vision tower, the forward, sampling, drafting) is left to the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from runner.commands import (
    BufferSpec,
    Command,
    Download,
    MetadataLayout,
    Positions,
    Record,
    Upload,
    Wait,
    row_bytes,
)
from runner.models import ModelSpec


@dataclass(frozen=True, slots=True)
class CommandCost:
    """`device_bytes` are read and written on the device; it and `launches` are None where the model's own."""

    copies: int = 0
    upload_bytes: int = 0
    device_bytes: int | None = 0
    launches: int | None = 0


@dataclass(frozen=True, slots=True)
class PassCost:
    """One kind of device pass. For each of its `count` positions it moves `small_bytes` of ids, flags and
    indices, and `row_passes` times a row of hidden_size values is read or written; it takes `launches`
    device operations.
    """

    small_bytes: int
    row_passes: int
    launches: int


MODEL_OPERATIONS = frozenset({"encode", "forward", "logprobs", "sample", "draft"})
"""What the model itself computes."""

_DERIVED = "fused, derived"
_DRAFTS = "route.drafts"

# Key: operation and kind. A flag is a byte, an id 4 bytes, an index 8.
PASSES: Mapping[tuple[str, str], PassCost] = MappingProxyType(
    {
        # id read, id written
        ("route.ids", "slice"): PassCost(8, 0, 1),
        ("route.ids", "scatter"): PassCost(8, 0, 4),
        (_DRAFTS, "scatter"): PassCost(8, 0, 5),
        # flag written; derived: mask read too
        ("flags", "fill"): PassCost(1, 0, 1),
        ("flags", "derived"): PassCost(2, 0, 13),
        # packed row read, row written; from the arena through a temporary
        ("place", "scatter"): PassCost(0, 2, 2),
        ("place", "gather"): PassCost(0, 4, 5),
        # id read, id written; where: flag read
        ("merge.ids", "clamp"): PassCost(8, 0, 1),
        ("merge.ids", "where"): PassCost(9, 0, 1),
        # id read, row of the table read, row written; indexed: index and id read, id written before that
        ("lookup", "ids"): PassCost(4, 2, 1),
        ("lookup", "safe"): PassCost(4, 2, 1),
        ("lookup", "indexed"): PassCost(20, 2, 2),
        # row read, row written
        ("splice", "looked_up"): PassCost(0, 2, 1),
        ("splice", "inputs_embeds"): PassCost(0, 2, 1),
        ("merge", "copy"): PassCost(0, 2, 1),
        # both rows read, temporary written; temporary read, row written
        ("merge", "where"): PassCost(1, 5, 2),
        # index and row read, row written
        ("merge", "index"): PassCost(8, 2, 1),
        # arena row read, temporary written; temporary read, row written
        ("merge", "overlay"): PassCost(0, 4, 5),
        # id read, row of the joint table read, row written; derived: mask, flag and index besides
        ("merge", "fused"): PassCost(4, 2, 1),
        ("merge", _DERIVED): PassCost(22, 2, 19),
    }
)

_POSITION_BYTES = 16  # a position and a cache slot written for each token
_POSITION_LAUNCHES = 17
_BY_SLOT_LAUNCHES = 6  # how far a row is computed is taken from its slot where the host guesses
_ROPE_LAG_LAUNCHES = 3
_KEY_END_BYTES = 8  # how far each token sees, where images attend in both directions
_KEY_END_LAUNCHES = 14
_METADATA_BYTES = 4
_SCALING_FAMILIES = frozenset({"gemma3"})  # a lookup there is followed by a pass that scales its rows


def step_costs(
    commands: Sequence[Command], model: ModelSpec, buffers: Mapping[str, BufferSpec]
) -> list[CommandCost]:
    """The cost of each command of one step."""
    is_derived = any(isinstance(command, Positions) and command.derives_flags for command in commands)
    return [_cost(command, model, buffers, is_derived) for command in commands]


def _cost(
    command: Command, model: ModelSpec, buffers: Mapping[str, BufferSpec], is_derived: bool
) -> CommandCost:
    if isinstance(command, (Record, Wait)):
        return CommandCost()
    if command.operation in MODEL_OPERATIONS:
        return CommandCost(device_bytes=None, launches=None)
    if isinstance(command, (Upload, Download)):
        return _copy_cost(command, row_bytes(buffers[command.buffer]))
    if isinstance(command, Positions):
        return _positions_cost(command, model)
    kind, count = pass_of(command, is_derived)
    cost = scaled_pass(kind, model)
    row = row_bytes(buffers["inputs_embeds"])
    return CommandCost(
        device_bytes=count * (cost.small_bytes + cost.row_passes * row), launches=cost.launches
    )


def pass_of(command: Command, is_derived: bool) -> tuple[tuple[str, str], int]:
    """The key in PASSES of a pass, and its count. `is_derived`: its step derives flags on the device."""
    operation, *rest = command.to_wire()
    if operation == _DRAFTS:  # its first field is a buffer: there is one kind
        return (_DRAFTS, "scatter"), int(rest[-1])
    kind, count = str(rest[0]), int(rest[-1])
    if kind == "fused" and is_derived:
        kind = _DERIVED
    return (str(operation), kind), count


def scaled_pass(key: tuple[str, str], model: ModelSpec) -> PassCost:
    """The pass on this model: a lookup may be followed by one that reads and writes its rows again."""
    cost = PASSES[key]
    if key[0] == "lookup" and model.family in _SCALING_FAMILIES:
        return PassCost(cost.small_bytes, cost.row_passes + 2, cost.launches + 1)
    return cost


def _copy_cost(command: Upload | Download, bytes_a_row: int) -> CommandCost:
    num_bytes = command.count * bytes_a_row
    if isinstance(command, Download):
        return CommandCost(device_bytes=num_bytes, launches=1)
    return CommandCost(copies=1, upload_bytes=num_bytes, device_bytes=num_bytes, launches=1)


def _positions_cost(command: Positions, model: ModelSpec) -> CommandCost:
    layout = MetadataLayout(
        command.num_rows,
        command.table_width,
        command.num_routed,
        command.num_placed,
        command.derives_flags,
        command.by_slot,
        command.num_drafted,
        command.num_images,
    )
    num_bytes = layout.size * _METADATA_BYTES + command.count * _POSITION_BYTES
    launches = _POSITION_LAUNCHES + command.by_slot * _BY_SLOT_LAUNCHES
    if command.num_images:
        num_bytes += command.count * _KEY_END_BYTES
        launches += _KEY_END_LAUNCHES
    if command.by_slot and model.rope == "mrope":
        launches += _ROPE_LAG_LAUNCHES
    return CommandCost(device_bytes=num_bytes, launches=launches)
