"""The machine under measurement: its device, its timer, its memory (torch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from runner.device.shared import SharedArena
from suite.micro.timing import (
    DEFAULT_EFFORT,
    Call,
    Effort,
    EventTimer,
    HostTimer,
    SampleTimer,
    Timing,
    measure,
)

Source = Literal["pinned", "pageable"]

_UNKNOWN_CACHE_BYTES = 64 << 20
_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_MAX_SLOTS = 4096  # of a rotation: beyond it, what Python keeps of the slots fills the cache as well
_MAX_BYTES = 2 << 30  # that a rotation may take in all
_STAGGER = 4096  # keeps slots of a few bytes off each other's pages

CPU_COPIES = "memcpy between two separate arrays of one memory; pinned: from memory shared by processes"
CUDA_COPIES = "host to device over the bus"


class Rotation(NamedTuple):
    """How many sets of buffers to use in turn, and whether they exceed the cache."""

    slots: int
    is_cold: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """`cache_bytes`: the cache that all of the device shares. `kind` is the runner's kind of device."""

    kind: str
    name: str
    device: torch.device
    timer: SampleTimer
    cache_bytes: int
    num_threads: int
    effort: Effort = DEFAULT_EFFORT

    @property
    def is_cuda(self) -> bool:
        return self.device.type != "cpu"

    @property
    def copies(self) -> str:
        return CUDA_COPIES if self.is_cuda else CPU_COPIES

    def measure(self, calls: Sequence[Call]) -> Timing:
        return measure(self.timer, calls, self.effort)

    def rotation(
        self, touched_bytes: int, held_bytes: int | None = None, max_slots: int = _MAX_SLOTS
    ) -> Rotation:
        """For a call that touches that many bytes of a slot that holds so many: cold if that can be had.

        A slot fewer would not do: by the time one comes round again, all others have passed the cache.
        """
        slots = self.cache_bytes // touched_bytes + 2
        is_cold = slots <= max_slots and slots * (held_bytes or touched_bytes) <= _MAX_BYTES
        return Rotation(slots, True) if is_cold else Rotation(1, False)

    def host_bytes(self, size: int, source: Source) -> torch.Tensor:
        """Host memory, written once so that it is there.

        pinned: on a CPU device, which has none, memory that processes share, as its host buffers are.
        """
        if source == "pageable":
            return torch.ones(size, dtype=torch.uint8)
        if self.is_cuda:
            return torch.ones(size, dtype=torch.uint8, pin_memory=True)
        arena = SharedArena({"bytes": ("uint8", (size,))})
        tensor = torch.from_numpy(arena.arrays["bytes"])
        arena.close()
        return tensor.fill_(1)

    def device_bytes(self, size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.uint8, device=self.device)

    def upload_calls(self, size: int, source: Source) -> tuple[list[Call], Rotation]:
        """One contiguous copy of `size` bytes to the device, as the runner makes it, slot by slot."""
        stride = -(-size // _STAGGER) * _STAGGER
        rotation = self.rotation(2 * size, 2 * stride)
        sources = slots_of(self.host_bytes(rotation.slots * stride, source), stride, size)
        targets = slots_of(self.device_bytes(rotation.slots * stride), stride, size)
        return copies(targets, sources), rotation


def slots_of(tensor: torch.Tensor, stride: int, size: int) -> list[torch.Tensor]:
    return [tensor[first : first + size] for first in range(0, len(tensor), stride)]


def copies(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> list[Call]:
    pairs = zip(targets, sources, strict=True)
    return [partial(target.copy_, source, non_blocking=True) for target, source in pairs]


def open_machine(kind: str, num_threads: int, effort: Effort) -> Machine:
    """That of a device kind; it sets torch's threads for the whole process."""
    torch.set_num_threads(num_threads)
    if kind != "cuda":
        device = torch.device("cpu")
        return Machine(kind, "cpu", device, HostTimer(), last_level_cache(), num_threads, effort)
    from runner.device.cuda import cache_bytes, device_name

    make_event: Callable[[], Any] = partial(torch.Event, device="cuda", enable_timing=True)
    timer = EventTimer(make_event, torch.accelerator.synchronize)
    device = torch.device("cuda")
    return Machine(kind, device_name(), device, timer, cache_bytes(), num_threads, effort)


def last_level_cache(folder: Path = _CPU_CACHES) -> int:
    """Bytes of the CPU's largest cache; a guess on the large side where the system does not tell."""
    sizes = []
    for file in folder.glob("index*/size"):
        text = file.read_text(encoding="ascii").strip()
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        sizes += [int(digits) * scale] if digits.isdecimal() else []
    return max(sizes, default=_UNKNOWN_CACHE_BYTES)
