"""The rules of Chrome trace events, checked on a whole document. Times are compared in whole nanoseconds."""

from __future__ import annotations

import json
from collections import defaultdict


def strictly_parsed(content: bytes):
    """As a strict reader takes it: no NaN, no Infinity, no key twice."""

    def refuse(name):
        raise AssertionError(f"{name} is no number of JSON")

    def once(pairs):
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), f"a key twice: {keys}"
        return dict(pairs)

    return json.loads(content.decode("utf-8"), parse_constant=refuse, object_pairs_hook=once)


def broken_rules(document) -> list[str]:
    """What is wrong, in words; empty where all is right."""
    events = document["traceEvents"]
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((nanoseconds(event["ts"]), nanoseconds(event["dur"])))
    return [
        *(fault for event in events for fault in _bad_fields(event)),
        *(fault for lane, slices in lanes.items() for fault in _bad_lane(lane, slices)),
        *_bad_flows(events, lanes),
        *_bad_counters(events),
        *_unnamed(events, lanes),
    ]


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def _bad_fields(event) -> list[str]:
    faults = []
    if event["ph"] not in ("X", "M", "s", "f", "C"):
        faults.append(f"phase {event['ph']!r} is none we write")
    if not (isinstance(event["pid"], int) and isinstance(event["tid"], int)):
        faults.append(f"{event['name']}: pid or tid is no whole number")
    if event["ph"] != "M" and not (isinstance(event["ts"], int | float) and event["ts"] >= 0):
        faults.append(f"{event['name']}: ts {event.get('ts')!r}")
    if event["ph"] == "X" and not (isinstance(event["dur"], int | float) and event["dur"] >= 0):
        faults.append(f"{event['name']}: dur {event.get('dur')!r}")
    return faults


def _bad_lane(lane, slices) -> list[str]:
    """Slices of a lane come in order of start, and lie within one another or apart."""
    faults, open_ends, last = [], [], -1
    for start, duration in slices:
        if start < last:
            faults.append(f"lane {lane}: goes back from {last} to {start}")
        last = start
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and start + duration > open_ends[-1]:
            faults.append(f"lane {lane}: {start}+{duration} ends after what it lies in, {open_ends[-1]}")
        open_ends.append(start + duration)
    return faults


def _bad_flows(events, lanes) -> list[str]:
    ends = {phase: [event for event in events if event["ph"] == phase] for phase in ("s", "f")}
    faults = []
    for phase, found in ends.items():
        ids = [event["id"] for event in found]
        if len(ids) != len(set(ids)):
            faults.append(f"an id is used twice by {phase!r}")
        for event in found:
            at = nanoseconds(event["ts"])
            if not any(start <= at <= start + long for start, long in lanes[event["pid"], event["tid"]]):
                faults.append(f"flow {event['id']}: {phase!r} lies in no slice")
    finishes = {event["id"]: event for event in ends["f"]}
    if finishes.keys() != {event["id"] for event in ends["s"]}:
        faults.append("a flow does not begin and end")
    for event in ends["s"]:
        end = finishes.get(event["id"])
        if end and (end["ts"] < event["ts"] or end.get("bp") != "e"):
            faults.append(f"flow {event['id']} goes back in time, or binds to the next slice")
    return faults


def _bad_counters(events) -> list[str]:
    faults, last = [], {}
    for event in events:
        if event["ph"] == "C":
            key = event["pid"], event["name"]
            if event["ts"] < last.get(key, 0):
                faults.append(f"counter {key} goes back")
            last[key] = event["ts"]
            if not all(isinstance(value, int | float) for value in event["args"].values()):
                faults.append(f"counter {key} holds {event['args']}")
    return faults


def _unnamed(events, lanes) -> list[str]:
    named = {(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    faults = [f"lane {lane} has no name" for lane in lanes if ("thread_name", *lane) not in named]
    pids = {event["pid"] for event in events}
    return faults + [f"process {pid} has no name" for pid in pids if ("process_name", pid, 0) not in named]
