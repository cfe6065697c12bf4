"""What the two ends of a device process agree on: shared arrays and how long a wait spins (numpy)."""

from __future__ import annotations

from collections.abc import Mapping

from runner.commands import EVENTS, BufferSpec
from runner.config import RunnerConfig
from runner.core import usable_cores
from runner.device.report import ReportRing, SpanRing

Layout = dict[str, tuple[str, tuple[int, ...]]]

_SPIN_S = 0.001  # waking a sleeping core costs 150-400 us; a wait spins this long before it blocks


def channel_layout(config: RunnerConfig, buffers: Mapping[str, BufferSpec]) -> Layout:
    """Event counters, number of messages sent, the rings of reports and spans, every buffer's host side."""
    return {
        "events": ("int64", (len(EVENTS),)),
        "submitted": ("int64", (1,)),
        "reports": ("int64", ReportRing.shape(len(buffers))),
        "spans": ("int64", SpanRing.shape(config)),
        **{name: (item.host_dtype, item.shape) for name, item in buffers.items()},
    }


def spin_s() -> float:
    """Seconds a wait spins; none when the other side has no core of its own to make progress on."""
    return _SPIN_S if usable_cores() > 1 else 0.0
