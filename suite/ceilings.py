"""What a machine can do at best, and the share of it that the steps of a run reach. No torch, no files.

`Ceilings` is what suite/micro measured once; `shares` is arithmetic over it and a run's records and spans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from runner.core import ITEM_BYTES, FloatType
from runner.inputs.arms import Arm
from runner.measure import StepRecord
from runner.models import ModelSpec
from runner.spans import Span, upload_span
from suite.command_costs import scaled_pass

SCHEMA_VERSION = 3  # 2: products as the runner's forward runs them; 3: in `dtype`, before it in float32

_MAX_LOAD = 0.5  # of each core: one that measures needs a core, and a device process another


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Point(_Frozen):
    """One measured time in ns: the best of `n` samples of 1 ms at least, and their median with its interval.

    A ceiling is the best: on a machine that others use as well, the median is theirs too. memory: `cold`
    where the buffers are rotated over more memory than the cache, `warm` where the same are used again,
    `step` where they are as a step finds them.
    """

    size: int
    memory: Literal["cold", "warm", "step"]
    best_ns: float
    median_ns: float
    low_ns: float | None
    high_ns: float | None
    n: int


class Shape(_Frozen):
    """Times of x @ w.T for x [size, inner] and w [outer, inner], by size."""

    inner: int
    outer: int
    points: tuple[Point, ...]


class Ceilings(_Frozen):
    """Measured once per machine, device, torch, threads, model shapes and data type.

    upload_pinned, upload_pageable: one copy from host memory to the device's, by bytes. On a CPU device
    both are copies between two separate arrays, the first from memory shared between processes, and
    `copies` says so. device_copy: one copy within the device, by bytes moved, read and written ones
    together. handoff: an empty step there and back. launch: one kernel that does nothing worth mentioning,
    None on a CPU. event_floor: a span around nothing. matmul: one pass over the linear layers of all layers
    of the model with their own weights, as a step makes it, by tokens; `shapes` are its parts. Weights and
    activations of these products are `dtype`; all else goes by bytes, and is the same for every type.
    load_average: of the minute before they were measured, over `num_cores` that may be used; None where the
    system does not tell.
    """

    schema_version: int = SCHEMA_VERSION
    measured_utc: str
    device: str
    device_name: str
    torch_version: str
    num_threads: int
    model: str
    dtype: FloatType = "float32"  # before version 3 nothing else was measured, and this was not told
    num_cores: int
    load_average: float | None
    copies: str
    linear_parameters: int
    upload_pinned: tuple[Point, ...]
    upload_pageable: tuple[Point, ...]
    device_copy: tuple[Point, ...]
    handoff: Point
    launch: Point | None
    event_floor: Point
    matmul: tuple[Point, ...]
    shapes: tuple[Shape, ...]

    @property
    def caveat(self) -> str | None:
        """What to know of them before they are trusted: that others used the machine as well."""
        if self.load_average is None or self.load_average <= _MAX_LOAD * self.num_cores:
            return None
        return (
            f"the ceilings of {self.device} were measured on a busy machine (load {self.load_average:.1f} on "
            f"{self.num_cores} cores) and may be too low; measure them again when it is idle: "
            f"{self.command(self.dtype, self.model)} --fresh"
        )

    def command(self, dtype: FloatType, model_name: str) -> str:
        """What measures a type on this machine and device, for a model of these shapes."""
        return (
            f"python -m suite micro --only ceilings --dtype {dtype} --model {model_name} "
            f"--threads {self.num_threads} --device {self.device}"
        )


def linear_shapes(model: ModelSpec) -> tuple[tuple[int, int], ...]:
    """(inner, outer) of the linear layers of one layer, in order: q, k, v, o, gate, up, down."""
    config = model.hf_config.get("text_config", model.hf_config)
    assert isinstance(config, Mapping)
    wide = int(config["intermediate_size"])
    hidden, heads = model.hidden_size, model.num_heads * model.head_dim
    keys = model.num_kv_heads * model.head_dim
    return (
        *((hidden, heads), (hidden, keys), (hidden, keys), (heads, hidden)),
        *((hidden, wide), (hidden, wide), (wide, hidden)),
    )


def linear_parameters(model: ModelSpec) -> int:
    """Weights of the linear layers of all layers; lm_head, a part of `sample`, is not among them."""
    return model.num_layers * sum(inner * outer for inner, outer in linear_shapes(model))


def time_at(points: Sequence[Point], size: float) -> float:
    """ns at a size: linear between its measured neighbours.

    Below the smallest size it is the smallest one's time; beyond the largest, the largest one's rate.
    """
    assert points
    ordered = sorted(points, key=lambda point: point.size)
    if size <= ordered[0].size:
        return ordered[0].best_ns
    for left, right in pairwise(ordered):
        if size <= right.size:
            part = (size - left.size) / (right.size - left.size)
            return left.best_ns + part * (right.best_ns - left.best_ns)
    return ordered[-1].best_ns * size / ordered[-1].size


StepGroup = Literal["decode", "mixed"]
GROUPS: tuple[StepGroup, ...] = ("decode", "mixed")
"""Steps of decodes only, and all others."""


class CeilingShare(NamedTuple):
    """What the steps of a group reach in one span.

    value = work / time, ceiling = work / the time that work takes at the ceiling, share = value / ceiling;
    work and times are sums over `n` steps. `unit` is GB/s or GFLOP/s. Without a value there is a `reason`.
    """

    span: str
    group: StepGroup
    unit: str
    value: float | None
    ceiling: float | None
    share: float | None
    n: int
    basis: str
    reason: str | None = None


class _Work(NamedTuple):
    """Of one step's span: bytes or floating-point operations, and its least time in ns."""

    amount: float
    least_ns: float


_FORWARD = (
    "2 x weights of the linear layers x tokens (attention, norms and lm_head not counted), against one pass "
    "over the same weights in the same data type; time linear between the measured numbers of tokens"
)
_UPLOAD = (
    "bytes counted at the copies, against as many pinned copies of their mean size; time linear between "
    "the measured sizes"
)
_PASS = (
    "bytes each pass reads and writes by suite/command_costs.py, against a device copy that moves as many; "
    "time linear between the measured sizes"
)
_NO_SPANS = "the run holds no device spans; they need --instrument events"
_NO_TIMES = "none of its spans has a time"


def shares(
    ceilings: Ceilings,
    steps: Sequence[StepRecord],
    spans: Sequence[Span],
    model: ModelSpec,
    arm: Arm,
    dtype: FloatType = "float32",
) -> list[CeilingShare]:
    """The share of the ceiling that forward, uploads and device passes reach, decode and mixed apart.

    `dtype`: what the model computed in; a forward is held against a ceiling of that type alone. `spans` are
    those of the same run at level `events`; a step with a span of that name that has no time is left out of
    that row. ValueError where the ceilings are another model's.
    """
    if ceilings.linear_parameters != linear_parameters(model):
        raise ValueError(f"the ceilings are those of {ceilings.model}, the steps those of {model.name}")
    times = _device_times(spans)
    found: list[CeilingShare] = []
    for group in GROUPS:
        members = [step for step in steps if (step.kind == "decode") == (group == "decode")]
        found += _forward(ceilings, members, times, model, group, dtype)
        found += _uploads(ceilings, members, times, group)
        found += _passes(ceilings, members, times, model, arm, group, dtype)
    return found


def _forward(
    ceilings: Ceilings,
    steps: Sequence[StepRecord],
    times: _Times,
    model: ModelSpec,
    group: StepGroup,
    dtype: FloatType,
) -> list[CeilingShare]:
    if dtype != ceilings.dtype and steps:
        reason = (
            f"the ceiling was measured in {ceilings.dtype}, and the model computes in {dtype}; for the runs "
            f"that follow: {ceilings.command(dtype, model.name)}"
        )
        return [CeilingShare("forward", group, "GFLOP/s", None, None, None, 0, _FORWARD, reason)]
    operations = 2 * linear_parameters(model)
    work = {
        step.step_id: _Work(operations * step.num_tokens, time_at(ceilings.matmul, step.num_tokens))
        for step in steps
    }
    return [_share("forward", group, "GFLOP/s", work, times, _FORWARD)] if work else []


def _uploads(
    ceilings: Ceilings, steps: Sequence[StepRecord], times: _Times, group: StepGroup
) -> list[CeilingShare]:
    work: defaultdict[str, dict[int, _Work]] = defaultdict(dict)
    for step in steps:
        for buffer, num_bytes in step.bytes.items():
            copies = step.copies[buffer]
            if not num_bytes or not copies:
                continue
            least_ns = copies * time_at(ceilings.upload_pinned, num_bytes / copies)
            # A step uses one parity of a ring buffer, so that a name comes once a step.
            work[upload_span(buffer)][step.step_id] = _Work(num_bytes, least_ns)
    return [_share(name, group, "GB/s", work[name], times, _UPLOAD) for name in sorted(work)]


def _passes(
    ceilings: Ceilings,
    steps: Sequence[StepRecord],
    times: _Times,
    model: ModelSpec,
    arm: Arm,
    group: StepGroup,
    dtype: FloatType,
) -> list[CeilingShare]:
    work: defaultdict[str, dict[int, _Work]] = defaultdict(dict)
    row = model.hidden_size * ITEM_BYTES[dtype]
    for step in steps:
        amounts: defaultdict[str, list[int]] = defaultdict(list)
        for key, count in passes_of(step, arm):
            cost = scaled_pass(key, model)
            amounts[key[0]].append(count * (cost.small_bytes + cost.row_passes * row))
        for name, moved in amounts.items():
            least_ns = sum(time_at(ceilings.device_copy, num_bytes) for num_bytes in moved)
            work[name][step.step_id] = _Work(sum(moved), least_ns)
    return [_share(name, group, "GB/s", work[name], times, _PASS) for name in sorted(work)]


def passes_of(step: StepRecord, arm: Arm) -> list[tuple[tuple[str, str], int]]:
    """The place, lookup and merge passes of a step, as keys of command_costs.PASSES with their counts."""
    tokens, choices = step.num_tokens, arm.choices
    if step.embeds_route == "graph":
        return []
    looked_up: list[tuple[tuple[str, str], int]] = [(("lookup", "ids"), tokens), (("merge", "copy"), tokens)]
    if choices is None:
        return looked_up
    placed = _placed(step, arm)
    if choices.merge == "none":
        return [*placed, (("lookup", "safe"), tokens), (("merge", "copy"), tokens)]
    if choices.merge == "fused":
        kind = "fused, derived" if step.embeds_route == "merge" else "fused"
        return [*placed, (("merge", kind), tokens)]
    if step.embeds_route == "lookup":
        return [*placed, *looked_up]
    if choices.merge == "where":
        return [*placed, (("lookup", "safe"), tokens), (("merge", "where"), tokens)]
    if choices.merge == "overlay":
        return [*placed, *looked_up, (("merge", "overlay"), step.num_supplied_rows)]
    token_rows = tokens - step.num_supplied_rows
    indexed: list[tuple[tuple[str, str], int]] = [
        (("lookup", "indexed"), token_rows),
        (("merge", "index"), token_rows),
    ]
    return [*placed, *(indexed if token_rows else ())]


def _placed(step: StepRecord, arm: Arm) -> list[tuple[tuple[str, str], int]]:
    choices, count = arm.choices, step.num_supplied_rows
    if choices is None or not count or choices.embeds == "all" or choices.merge in ("fused", "overlay"):
        return []
    return [(("place", "scatter" if choices.embeds == "rows" else "gather"), count)]


_Times = Mapping[str, Mapping[int, float | None]]


def _device_times(spans: Sequence[Span]) -> _Times:
    """Device time by name and step, all spans of a name together; None where one has no time."""
    times: defaultdict[str, dict[int, float | None]] = defaultdict(dict)
    for span in spans:
        if span.lane not in ("compute", "output"):
            continue
        of_name, duration_ns = times[span.name], span.duration_ns
        so_far = of_name.get(span.step_id, 0.0)
        of_name[span.step_id] = None if duration_ns is None or so_far is None else so_far + duration_ns
    return times


def _share(
    name: str, group: StepGroup, unit: str, work: Mapping[int, _Work], times: _Times, basis: str
) -> CeilingShare:
    of_name = times.get(name, {})
    measured = [
        (item, duration_ns)
        for step_id, item in work.items()
        if item.amount > 0 and (duration_ns := of_name.get(step_id))
    ]
    if not measured:
        is_there = any(step_id in of_name for step_id in work)
        reason = _NO_SPANS if not times else _NO_TIMES if is_there else f"these steps have no span {name}"
        return CeilingShare(name, group, unit, None, None, None, 0, basis, reason)
    amount = sum(item.amount for item, _ in measured)
    value = amount / sum(duration_ns for _, duration_ns in measured)
    ceiling = amount / sum(item.least_ns for item, _ in measured)
    return CeilingShare(name, group, unit, value, ceiling, value / ceiling, len(measured), basis)
