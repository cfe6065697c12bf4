"""Measures the ceilings of a machine for one model (torch)."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, Literal, NamedTuple, Protocol

import torch

from runner.commands import OUTPUT_READY, Record
from runner.config import RunnerConfig
from runner.core import FloatType, usable_cores
from runner.device.base import Device, open_device
from runner.kernels.cpu_layers import is_quickened, products, quicken
from runner.kernels.packed_linear import PackedLinear, can_pack
from runner.models import ModelSpec
from runner.weights import build_model
from suite.ceilings import Ceilings, Point, Shape, linear_parameters
from suite.environment import utc_text
from suite.micro.machine import Machine, Rotation, Source, copies, slots_of
from suite.micro.median import Estimate, estimate
from suite.micro.pool import small_model
from suite.micro.timing import Call, HostTimer, Timing, measure

Memory = Literal["cold", "warm", "step"]

COPY_BYTES = (64, 1024, 4096, 16384, 65536, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
TOKENS = (1, 16, 64, 256, 512)

_NUM_SPANS = 201
_STEP = (Record(OUTPUT_READY, "output"),)


class Linear(NamedTuple):
    """One linear layer of the model: its weight [outer, inner] and bias."""

    weight: torch.Tensor
    bias: torch.Tensor | None


def measure_ceilings(
    machine: Machine, model: ModelSpec, tell: Callable[[str], None], dtype: FloatType = "float32"
) -> Ceilings:
    """All of them, with twice the effort of a micro-benchmark; `tell` hears what comes next.

    `dtype`: of the weights and activations of products.
    """
    machine = replace(machine, effort=replace(machine.effort, budget_ns=2 * machine.effort.budget_ns))
    load_average = _load_average()
    tell("ceilings: copies")
    pinned, pageable = (_uploads(machine, source) for source in ("pinned", "pageable"))
    device_copy = tuple(_device_copies(machine))
    tell("ceilings: hand-off")
    handoff = _handoff(machine)
    tell(f"ceilings: matmul at the shapes of {model.name} in {dtype}")
    torch_type: torch.dtype = getattr(torch, dtype)
    language_model = language_model_of(model, machine.device, torch_type)
    shapes = tuple(_shapes(machine, linear_layers(language_model), torch_type))
    return Ceilings(
        measured_utc=utc_text(datetime.now(UTC)),
        device=machine.kind,
        device_name=machine.name,
        torch_version=torch.__version__,
        num_threads=machine.num_threads,
        model=model.name,
        dtype=dtype,
        num_cores=usable_cores(),
        load_average=load_average,
        copies=machine.copies,
        linear_parameters=linear_parameters(model),
        upload_pinned=pinned,
        upload_pageable=pageable,
        device_copy=device_copy,
        handoff=handoff,
        launch=_launch(machine),
        event_floor=_event_floor(machine),
        matmul=tuple(_passes(machine, _products(language_model), torch_type)),
        shapes=shapes,
    )


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):  # as on Windows
        return None


def _point(size: int, timing: Timing, memory: Memory) -> Point:
    return _from_estimate(size, timing.per_call, memory)


def _from_estimate(size: int, found: Estimate, memory: Memory) -> Point:
    return Point(
        size=size,
        memory=memory,
        best_ns=found.least,
        median_ns=found.value,
        low_ns=found.low,
        high_ns=found.high,
        n=found.n,
    )


def _uploads(machine: Machine, source: Source) -> tuple[Point, ...]:
    points = []
    for size in COPY_BYTES:
        calls, rotation = machine.upload_calls(size, source)
        points.append(_point(size, machine.measure(calls), _memory(rotation)))
    return tuple(points)


def _memory(rotation: Rotation) -> Memory:
    return "cold" if rotation.is_cold else "warm"


def _device_copies(machine: Machine) -> Iterator[Point]:
    """A copy's size is what it moves: half of it read, half of it written."""
    for moved in COPY_BYTES:
        size = moved // 2
        rotation = machine.rotation(moved)
        sources, targets = (
            slots_of(machine.device_bytes(rotation.slots * size), size, size) for _ in range(2)
        )
        yield _point(moved, machine.measure(copies(targets, sources)), _memory(rotation))


def _handoff(machine: Machine) -> Point:
    """An empty step there and back again, both sides awake: the least a step can take."""
    config = RunnerConfig(num_blocks=1, max_model_len=16, num_threads=machine.num_threads)
    with open_device(machine.kind, small_model(16), config) as device:
        return _point(0, measure(HostTimer(), [_round_trip(device)], machine.effort), "step")


def _round_trip(device: Device) -> Call:
    steps = count()

    def there_and_back() -> None:
        step_id = next(steps)
        device.execute(step_id, _STEP)
        device.wait(OUTPUT_READY, step_id)

    return there_and_back


def _launch(machine: Machine) -> Point | None:
    if not machine.is_cuda:
        return None
    return _point(0, machine.measure([torch.zeros(1, device=machine.device).zero_]), "warm")


def _event_floor(machine: Machine) -> Point:
    """What a span around nothing shows, sample by sample, for a span is no average either."""
    return _from_estimate(0, estimate([machine.timer.time(()).elapsed_ns for _ in range(_NUM_SPANS)]), "warm")


def language_model_of(model: ModelSpec, device: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    built: Any = build_model(model, dtype).to(device)
    return built.model.language_model if model.is_multimodal else built.model


def linear_layers(language_model: Any) -> list[Linear]:
    """The linear layers of the model's layers, in the order in which a step runs them."""
    return [
        Linear(module.weight, module.bias)
        for module in language_model.layers.modules()
        if isinstance(module, torch.nn.Linear)
    ]


class Product(Protocol):
    """A weight [outer, inner] that takes [..., inner] to [..., outer]."""

    @property
    def inner(self) -> int: ...
    @property
    def outer(self) -> int: ...
    def __call__(self, given: torch.Tensor) -> torch.Tensor: ...


class _Plain(NamedTuple):
    """A layer as torch runs it."""

    linear: Linear

    @property
    def inner(self) -> int:
        return self.linear.weight.shape[1]

    @property
    def outer(self) -> int:
        return self.linear.weight.shape[0]

    def __call__(self, given: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(given, self.linear.weight, self.linear.bias)


def _products(language_model: Any) -> list[Product]:
    """The products of a step in the order in which the runner's own forward runs them there."""
    if not _is_packed(linear_layers(language_model)[0]):
        return [_Plain(linear) for linear in linear_layers(language_model)]
    quicken(language_model)
    return list(products(language_model))


def _product(linear: Linear) -> Product:
    return PackedLinear(linear.weight, linear.bias) if _is_packed(linear) else _Plain(linear)


def _is_packed(linear: Linear) -> bool:
    return is_quickened(linear.weight.device, linear.weight.dtype) and can_pack()


def _passes(machine: Machine, found: Sequence[Product], dtype: torch.dtype) -> Iterator[Point]:
    """One call runs all layers, so that weights are as cold as a step finds them."""
    for tokens in TOKENS:
        inputs = _inputs(machine, {product.inner for product in found}, tokens, dtype)

        def run_all(inputs: Mapping[int, torch.Tensor] = inputs) -> None:
            with torch.inference_mode():
                for product in found:
                    product(inputs[product.inner])

        yield _point(tokens, machine.measure([run_all]), "step")


def _shapes(machine: Machine, linears: Sequence[Linear], dtype: torch.dtype) -> Iterator[Shape]:
    by_shape: defaultdict[tuple[int, int], list[Linear]] = defaultdict(list)
    for linear in linears:
        outer, inner = linear.weight.shape
        by_shape[inner, outer].append(linear)
    for (inner, outer), members in by_shape.items():
        points, found = [], [_product(item) for item in members]
        for tokens in TOKENS:
            given = _inputs(machine, {inner}, tokens, dtype)[inner]
            calls = [partial(product, given) for product in found]
            points.append(_point(tokens, machine.measure(calls), "step"))
        yield Shape(inner=inner, outer=outer, points=tuple(points))


def _inputs(machine: Machine, widths: set[int], tokens: int, dtype: torch.dtype) -> dict[int, torch.Tensor]:
    """One input for each width, written by the last pass over it and so in the cache, as in a step."""
    return {width: torch.ones(tokens, width, dtype=dtype, device=machine.device) for width in widths}
