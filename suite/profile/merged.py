"""The trace of a device and our records of its host, on one clock: a pure function of both."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

from runner.measure import StepRecord
from runner.spans import Span
from suite.profile.capture import Capture
from suite.profile.perfetto import TracedRun, host_events


def offset_ns(spans: Sequence[Span], capture: Capture) -> int | None:
    """What to add to a time of ours to have the capture's: the median over what both saw begin.

    The n-th of a name here is the n-th of that name there. None where nothing was seen by both.
    """
    theirs: dict[str, list[int]] = defaultdict(list)
    for item in sorted(capture.own, key=lambda item: item.start_ns):
        theirs[item.name].append(item.start_ns)
    ours: dict[str, list[int]] = defaultdict(list)
    for span in spans:
        if span.start_ns is not None and span.lane == "compute":
            ours[span.name].append(span.start_ns)
    differences = [
        there - here
        for name, times in ours.items()
        if len(times) == len(theirs[name])
        for here, there in zip(sorted(times), theirs[name], strict=True)
    ]
    return median_low(differences) if differences else None


def within(document: Mapping[str, Any], start_ns: int, end_ns: int) -> dict[str, Any]:
    """What begins from `start_ns` to `end_ns` of the trace's clock; arrows only with both of their ends."""
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    inside = [event for event in events if _begins_within(event, start_ns, end_ns)]
    ends = Counter(_arrow(event) for event in inside)
    kept = [event for event in inside if _arrow(event) is None or ends[_arrow(event)] == 2]
    return {**document, "traceEvents": kept}


def _begins_within(event: Mapping[str, Any], start_ns: int, end_ns: int) -> bool:
    """Names of processes and threads always do."""
    time = event.get("ts")
    if event.get("ph") == "M":
        return True
    return isinstance(time, (int, float)) and start_ns <= time * 1000 <= end_ns


def _arrow(event: Mapping[str, Any]) -> tuple[str, str] | None:
    is_end = event.get("ph") in ("s", "f")
    return (str(event.get("cat")), str(event.get("id"))) if is_end else None


def with_host(
    document: Mapping[str, Any],
    capture: Capture,
    title: str,
    steps: Sequence[StepRecord],
    spans: Sequence[Span],
) -> dict[str, Any] | None:
    """The trace with the host's phases, steps and counters in it; None where the clocks cannot be joined."""
    offset = offset_ns(spans, capture)
    if offset is None:
        return None
    pids = [event.get("pid") for event in document["traceEvents"] if isinstance(event, dict)]
    first_pid = max((pid for pid in pids if isinstance(pid, int)), default=0) + 1
    host = [span for span in spans if span.lane in ("host", "steps")]
    added = host_events(TracedRun(title, steps, host), first_pid, -offset)
    return {**document, "traceEvents": [*document["traceEvents"], *added]}
