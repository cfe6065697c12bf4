"""Spans: what the time of a step went to, under one name in NVTX, in records and in reports. Stdlib only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal, NamedTuple

Level = Literal["off", "nvtx", "host", "events"]
LEVELS: tuple[Level, ...] = ("off", "nvtx", "host", "events")
"""What an instrument does, each all that the one before does: nothing; NVTX ranges; records of host spans;
records of device spans."""

Lane = Literal["host", "steps", "compute", "output"]
"""Where a span ran: the host's thread, or a stream of the device. In lane `steps` lie the steps' own ranges,
from when their routes are known until they are retired: there alone spans of one lane overlap."""

HOST_PHASES = (
    "hash",
    "schedule",
    "update_batch",
    "stage",
    "wait.fence",
    "compile",
    "launch",
    "wait.output",
    "retire",
    "host_work",
    "record",
)
"""The host's own spans of a step, in order. `stage` and `compile` are `compile` of a StepRecord: what may be
written before the fence, and what may not. `record` is the work of measuring the step, off or on."""

IDLE = "wait.arrivals"
"""The host's span while nothing can run: it belongs to NO_STEP."""

ADMISSION = "admit"
"""The host's span while it takes in the requests that have come: it belongs to NO_STEP."""

NO_STEP = -1

OPERATIONS = (
    "flags",
    "place",
    "route.ids",
    "route.drafts",
    "positions",
    "encode",
    "merge.ids",
    "lookup",
    "splice",
    "merge",
    "forward",
    "sample",
    "logprobs",
    "draft",
    "download",
)
"""The spans of commands, beside `upload.<buffer>`; `sample` computes the logits as well."""


class Span(NamedTuple):
    """A stretch of one lane's time, in ns of `time.perf_counter_ns`, that belongs to one step.

    Without times there is a `reason`. Spans of a lane do not overlap, but may lie within one another.
    """

    step_id: int
    name: str
    lane: Lane
    start_ns: int | None
    end_ns: int | None
    reason: str | None = None

    @property
    def duration_ns(self) -> int | None:
        if self.start_ns is None or self.end_ns is None:
            return None
        return self.end_ns - self.start_ns


def records_host(level: Level) -> bool:
    return LEVELS.index(level) >= LEVELS.index("host")


def records_device(level: Level) -> bool:
    return level == "events"


@cache
def upload_span(buffer: str) -> str:
    """The span of an upload; a ring buffer's parity is no part of it."""
    return f"upload.{buffer.partition('.')[0]}"


def span_name(command: Sequence[str | int]) -> str | None:
    """The span of a command on the wire; None for those that only order others."""
    operation = str(command[0])
    if operation == "upload":
        return upload_span(str(command[1]))
    return None if operation in ("record", "wait") else operation


def command_spans(buffers: Iterable[str]) -> tuple[str, ...]:
    """Every span a command can have, where these are the named buffers."""
    uploads = dict.fromkeys(map(upload_span, buffers))
    return (*uploads, *OPERATIONS)


def step_label(kind: str, ids_route: str, embeds_route: str) -> str:
    """The name of a step's own range."""
    return f"step {kind} {ids_route}/{embeds_route}"
