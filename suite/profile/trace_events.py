"""Reads what torch's profiler exports, or any Chrome trace events: whole, empty, CPU-only, rankless."""

from __future__ import annotations

import gzip
import json
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from runner.ranges import DOMAIN, STEP_RANGE
from suite.errors import SuiteError
from suite.profile.attribution import Launch, attribute
from suite.profile.capture import (
    Capture,
    CapturedProcess,
    CapturedRange,
    DeviceWork,
    what_is_absent,
    without_reversed,
)
from suite.yaml_source import path_errors

_RANGES = "user_annotation"
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_WORK: Mapping[str, Literal["kernel", "copy", "fill"]] = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "fill",
}

Event = Mapping[str, Any]


def read_trace_events(path: Path) -> Capture:
    """The capture in a trace. SuiteError where the file is none."""
    return capture_of(read_document(path))


def read_document(path: Path) -> dict[str, Any]:
    """The trace as an object with `traceEvents`; a bare list of events becomes one."""
    with path_errors(path):
        content = path.read_bytes()
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        document = json.loads(content.decode("utf-8", "replace"))
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise SuiteError(f"{path} is no JSON that can be read: {error}; export the trace again") from None
    except RecursionError:
        raise SuiteError(f"{path} is nested too deeply to be a trace") from None
    if isinstance(document, list):
        document = {"traceEvents": document}
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise SuiteError(
            f"{path} has no list traceEvents, so it is no trace; give what torch.profiler's "
            "export_chrome_trace wrote"
        )
    return document


def capture_of(document: Mapping[str, Any]) -> Capture:
    """Events that lack what they need are left out, as viewers do."""
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    kept, kept_work, reversed_ones = without_reversed(list(_ranges(events)), list(_work(events)))
    ranges = _with_steps(sorted(kept, key=lambda item: (item.start_ns, -(item.end_ns or 0))))
    pids = {item.pid for item in ranges}
    work = attribute(kept_work, _launches(events), ranges)
    absent = [*reversed_ones, *what_is_absent(ranges, work, bool(work))]
    if not events:
        absent.insert(0, "no events at all: the trace is empty")
    if "distributedInfo" not in document:
        absent.append("no rank: the trace is not of a distributed run")
    names = _process_names(events)
    return Capture(
        tool="torch",
        tool_version=None,
        processes=tuple(CapturedProcess(pid, names.get(pid)) for pid in sorted(pids)),
        ranges=tuple(ranges),
        work=work,
        absent=tuple(absent),
    )


# ---- ranges


def _ranges(events: Sequence[Event]) -> Iterator[CapturedRange]:
    for event in _complete(events):
        if event.get("cat") == _RANGES and isinstance(event.get("name"), str):
            end = _ns(event.get("dur"))
            start = _ns(event["ts"])
            assert start is not None
            yield CapturedRange(
                name=event["name"],
                domain=None,
                pid=_number(event.get("pid")),
                tid=_number(event.get("tid")),
                start_ns=start,
                end_ns=None if end is None else start + end,
            )


def _complete(events: Sequence[Event]) -> Iterator[Event]:
    """Complete events as they are, begun and ended ones joined; one that never ends has no `dur`."""
    open_events: dict[tuple[object, object], list[dict[str, Any]]] = {}
    for event in events:
        phase, time = event.get("ph"), _ns(event.get("ts"))
        if time is None:
            continue
        stack = open_events.setdefault((_key(event.get("pid")), _key(event.get("tid"))), [])
        if phase == "X":
            yield event
        elif phase == "B":
            stack.append(dict(event))
        elif phase == "E" and stack:
            begun = stack.pop()
            yield begun | {"dur": event["ts"] - begun["ts"]}
    for stack in open_events.values():
        yield from stack


def _with_steps(ranges: Sequence[CapturedRange]) -> list[CapturedRange]:
    """What lies in a step's range on its thread is ours, and of that step."""
    threads: dict[tuple[int, int], list[CapturedRange]] = {}
    for item in ranges:
        if _step_of(item) is not None:
            threads.setdefault((item.pid, item.tid), []).append(item)
    return [_with_step(item, threads.get((item.pid, item.tid), ())) for item in ranges]


def _with_step(item: CapturedRange, steps: Sequence[CapturedRange]) -> CapturedRange:
    number = _step_of(item)
    if number is not None:
        return replace(item, domain=DOMAIN, step_id=number, is_nested=True)
    index = bisect_right(steps, item.start_ns, key=lambda step: step.start_ns) - 1
    if index < 0:
        return item
    around = steps[index]
    if around.end_ns is not None and (item.end_ns is None or item.end_ns > around.end_ns):
        return item
    return replace(item, domain=DOMAIN, step_id=_step_of(around))


def _step_of(item: CapturedRange) -> int | None:
    number = item.name.removeprefix(STEP_RANGE)
    return int(number) if number != item.name and number.isdecimal() else None


# ---- the GPU


def _launches(events: Sequence[Event]) -> dict[tuple[int | None, int], Launch]:
    launches: dict[tuple[int | None, int], Launch] = {}
    for event in events:
        correlation, start = _correlation(event), _ns(event.get("ts"))
        if event.get("cat") in _LAUNCHES and correlation is not None and start is not None:
            launch = Launch(_number(event.get("pid")), _number(event.get("tid")), start)
            launches.setdefault((None, correlation), launch)
    return launches


def _work(events: Sequence[Event]) -> Iterator[tuple[DeviceWork, int | None]]:
    """A trace is of one process: its GPU events carry the device in the place of the process."""
    for event in events:
        start, duration = _ns(event.get("ts")), _ns(event.get("dur"))
        kind = _WORK.get(str(event.get("cat")))
        if kind is None or start is None or duration is None:
            continue
        arguments = _arguments(event)
        yield (
            DeviceWork(
                kind=kind,
                name=str(event.get("name")),
                start_ns=start,
                end_ns=start + duration,
                device_id=_number(arguments.get("device")),
                stream_id=_number(arguments.get("stream")),
                correlation_id=_correlation(event),
                num_bytes=_number(arguments.get("bytes")),
            ),
            None,
        )


def _correlation(event: Event) -> int | None:
    value = _arguments(event).get("correlation")
    return value if isinstance(value, int) else None


# ---- fields


def _arguments(event: Event) -> Event:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _process_names(events: Sequence[Event]) -> dict[int, str]:
    return {
        _number(event.get("pid")): str(_arguments(event).get("name"))
        for event in events
        if event.get("ph") == "M" and event.get("name") == "process_name"
    }


def _ns(value: object) -> int | None:
    """Microseconds as whole nanoseconds; None where they are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e15:
        return None
    return round(value * 1000)


def _number(value: object) -> int:
    """An id; words, which name what is no process or thread of the program's, are 0."""
    return value if isinstance(value, int) else 0


def _key(value: object) -> object:
    return value if isinstance(value, (int, str)) else None
