"""GpuWatch: what NVIDIA's driver says of a GPU while a run computes on it; nvidia-ml-py is optional.

The library is imported only where a CUDA device is used. Every question may be refused by a driver or a
card; what is refused is unknown, and the run goes on.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, TypeVar

import psutil

from suite.record import GpuUse

LIBRARY = "pynvml"
NOT_INSTALLED = (
    "the GPU's clocks, throttling and other processes were not watched: nvidia-ml-py is not installed "
    "(pip install nvidia-ml-py)"
)

_THROTTLES: Mapping[int, str] = {
    0x04: "limit of power",
    0x08: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
"""nvml.h, nvmlClocksEventReasons: those that say it could not run as fast as it was told to."""

_Answer = TypeVar("_Answer")


class GpuWatch:
    """Asks when told to: `sample` while a run computes, `use` when it has ended.

    `note`: why it knows nothing.
    """

    def __init__(self, nvml: Any, note: str | None = None) -> None:
        self.note = note
        self._nvml = nvml
        self._handle: Any = None
        self._clocks: list[int] = []
        self._reasons = 0
        if nvml is not None:
            self._open()

    def start(self) -> None:
        """Forget the run before."""
        self._clocks, self._reasons = [], 0

    def sample(self) -> None:
        """Clock and throttling as they are now: some tens of microseconds."""
        if self._handle is None:
            return
        nvml = self._nvml
        clock = self._ask(lambda: int(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)))
        if clock is not None:
            self._clocks.append(clock)
        self._reasons |= self._ask(self._event_reasons) or 0

    def use(self) -> GpuUse | None:
        """Of the run that has just ended, while the GPU has not slowed down yet."""
        if self._handle is None:
            return None
        self.sample()
        nvml, handle = self._nvml, self._handle
        return GpuUse(
            name=self._ask(lambda: _text(nvml.nvmlDeviceGetName(handle))) or "GPU",
            sm_clock_mhz=round(median(self._clocks)) if self._clocks else None,
            throttled_by=tuple(text for bit, text in _THROTTLES.items() if self._reasons & bit),
            num_other_processes=self._ask(self._count_others),
            temperature_c=self._ask(
                lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
        )

    def _open(self) -> None:
        try:
            self._nvml.nvmlInit()
            self._handle = _handle(self._nvml, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        except Exception as error:  # whatever a driver says, the run needs none of this
            self.note = f"the GPU's clocks, throttling and other processes were not watched: {error}"

    def _ask(self, question: Callable[[], _Answer]) -> _Answer | None:
        try:
            return question()
        except Exception:  # NVMLError is made by the library at run time; a missing function is alike
            return None

    def _event_reasons(self) -> int:
        """Under its name since driver 535, or the one before: an older driver refuses the new one."""
        new = self._ask(lambda: int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)))
        if new is not None:
            return new
        return int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

    def _count_others(self) -> int:
        """In a container the driver may know our process by another number: one is ours then all the same."""
        listed = {int(one.pid) for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}
        own = {process.pid for process in (psutil.Process(), *psutil.Process().children(recursive=True))}
        return len(listed - own) if listed & own else max(0, len(listed) - 1)


def watch_for(device: str) -> GpuWatch:
    """For a kind of device; one that is no GPU is never asked about, and needs no library."""
    if device.partition(":")[0] != "cuda":
        return GpuWatch(None)
    try:
        return GpuWatch(importlib.import_module(LIBRARY))
    except ImportError:
        return GpuWatch(None, NOT_INSTALLED)


def _handle(nvml: Any, visible: str) -> Any:
    """The first GPU that CUDA may use: by its number in the order of the bus, or by its UUID."""
    first = visible.split(",")[0].strip()
    if first.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(first)
    if first and not first.isdecimal():
        raise ValueError(f"CUDA_VISIBLE_DEVICES begins with {first}, which is no number and no GPU's UUID")
    return nvml.nvmlDeviceGetHandleByIndex(int(first or 0))


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
