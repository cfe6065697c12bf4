"""The device contract: named host buffers, a queue of command lists, events to wait for (numpy).

A copy reads its source when it runs, not when it is queued. Host and device sides of a buffer are always
separate storage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from runner.commands import Command
from runner.compilers import missing_compiler
from runner.config import RunnerConfig
from runner.core import DeviceInfo, RunnerError
from runner.models import ModelSpec
from runner.spans import Level, Span
from runner.sync_check import SyncCheck, SyncFinding

CUDA = "cuda"
DEVICE_KINDS = ("process", "inline", "lazy", "shuffle:SEED", CUDA)


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What a device says of one step: its own clock (ns, `time.perf_counter_ns`) and copies by buffer."""

    start_ns: int
    end_ns: int
    copies: Mapping[str, int]
    bytes: Mapping[str, int]
    download_bytes: int


class Device(ABC):
    """Owns device memory and executes command lists in order.

    `host` maps buffer names to the host sides (numpy). Every method raises DeviceError once a command
    failed or the device is gone.
    """

    info: DeviceInfo
    host: Mapping[str, NDArray[Any]]
    clock_uncertainty_ns: int = 0  # of its times on the host's clock; 0 where that is its clock
    level: Level = "off"
    sync_check: SyncCheck = "off"
    """What the next `reset` begins to do about silent waits (runner.sync_check)."""

    @abstractmethod
    def execute(self, step_id: int, commands: Sequence[Command]) -> None:
        """Queue a step's commands and return."""

    @abstractmethod
    def wait(self, event: str, step_id: int) -> None:
        """Return once `event` was recorded by this step or a later one; DeviceError on a timeout."""

    @abstractmethod
    def report(self, step_id: int) -> DeviceReport:
        """The report of a step whose output event was waited for, at most RING_SIZE steps ago."""

    def spans(self, step_id: int, names: Sequence[str]) -> Sequence[Span]:
        """The spans of a step's commands, as long as its report; `names` are those it should have.

        One that is not known by now has no times, and a reason. None at all below level `events`.
        """
        return ()

    def sync_findings(self) -> Sequence[SyncFinding]:
        """What was found to wait since the reset; nothing may be in flight. None where the check is off."""
        return ()

    def num_recompiled(self) -> int:
        """Graphs of the forward that steps since the reset lacked; nothing may be in flight."""
        return 0

    @abstractmethod
    def reset(self, level: Level = "off") -> None:
        """Poison device memory and host buffers; nothing may be in flight. Instrument what follows."""

    def start_trace(self) -> None:
        """Have torch's profiler record what runs from the next reset on, under the spans' names.

        In the place of NVTX ranges, and above level `off`. RunnerError where the device cannot.
        """
        raise RunnerError(f"device {self.info.kind} computes nothing that torch's profiler could record")

    def write_trace(self, path: str) -> None:
        """Stop it and write what it recorded as Chrome trace events. Nothing may be in flight."""
        raise RunnerError(f"device {self.info.kind} records no trace")

    def start_capture(self) -> None:
        """Have a profiler that captures on the device's demand begin; of a CPU there is none."""
        return None

    def stop_capture(self) -> None:
        """Have it end."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Harmless when called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def poison_host(host: Mapping[str, NDArray[Any]]) -> None:
    """Fill host buffers with values no step may send: a forgotten write then shows.

    All bits set are a NaN in both 16-bit types.
    """
    for array in host.values():
        array.fill(np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).max)


def cuda_is_usable() -> bool:
    """Whether `open_device("cuda")` can work. Imports torch."""
    from runner.device.cuda import is_available

    return is_available()


def cuda_holds(num_bytes: int) -> bool:
    """Whether the GPU has so much memory. Imports torch."""
    from runner.device.cuda import memory_bytes

    return num_bytes <= memory_bytes()


def open_device(kind: str, model: ModelSpec, config: RunnerConfig) -> Device:
    """A device of that kind with the model loaded. RunnerError for an unknown kind or impossible sizes."""
    config.check_model(model)
    # Imported here: a device's module may need torch, and a host with a device process does not.
    if config.torch_compile and (lack := missing_compiler(kind)) is not None:
        raise RunnerError(f"runner.torch_compile is true, but {lack}")
    if kind == "process":
        from runner.device.process import ProcessDevice

        return ProcessDevice(model, config)
    if kind == CUDA:
        from runner.device.cuda import CudaDevice

        return CudaDevice(model, config)
    order, _, seed = kind.partition(":")
    if kind in ("inline", "lazy") or (order == "shuffle" and seed.isdecimal()):
        from runner.device.host import HostDevice

        return HostDevice(model, config, cast(Any, order), int(seed or 0))
    raise RunnerError(f"no device {kind!r}; known devices: {', '.join(DEVICE_KINDS)}")
