"""The capture window: a range that opens when the batch is steady and closes when it is no more."""

from __future__ import annotations

import pytest
from records import make_step

from runner.device.base import Device
from suite.profile.capture import WINDOW
from suite.profile.merged import within
from suite.profile.window import CaptureWindow


class Ranges:
    def __init__(self):
        self.log = []

    def start(self, name, step_id):
        self.log.append(("start", name, step_id))
        return len(self.log)

    def end(self, handle):
        self.log.append(("end", handle))


class Steady:
    """Open from step 3 to step 5."""

    def __init__(self):
        self.is_open = False
        self.seen = []

    def update(self, record):
        self.seen.append(record.step_id)
        self.is_open = 2 <= record.step_id < 5


@pytest.fixture
def parts():
    ranges, steady, log = Ranges(), Steady(), []
    window = CaptureWindow(ranges, steady, lambda: log.append("open"), lambda: log.append("close"))
    return window, ranges, steady, log


def steps(number):
    return [make_step(step_id, step_id, step_id + 1) for step_id in range(number)]


def test_the_range_is_open_for_the_steps_of_the_window_alone(parts):
    window, ranges, steady, log = parts
    for number in range(8):
        window.poll(steps(number))
        window.poll(steps(number))  # asked twice between two steps
    assert steady.seen == [0, 1, 2, 3, 4, 5, 6]  # each once, in order
    assert ranges.log == [("start", WINDOW, 3), ("end", 1)]
    assert log == ["open", "close"]


def test_several_steps_retired_between_two_polls_are_all_seen(parts):
    window, ranges, steady, _ = parts
    window.poll(steps(2))
    window.poll(steps(5))
    assert steady.seen == [0, 1, 2, 3, 4] and ranges.log == [("start", WINDOW, 5)]


def test_a_run_that_ends_within_its_window_closes_it_once(parts):
    window, ranges, _, log = parts
    window.poll(steps(4))
    window.close()
    window.close()
    assert ranges.log == [("start", WINDOW, 4), ("end", 1)] and log == ["open", "close"]


def test_a_run_that_never_settled_opened_nothing(parts):
    window, ranges, _, log = parts
    window.poll(steps(1))
    window.close()
    assert ranges.log == [] and log == []


def test_a_device_without_a_profiler_of_its_own_is_asked_in_vain():
    assert Device.start_capture(None) is None and Device.stop_capture(None) is None


# A window of a trace


def test_a_trace_is_cut_to_what_begins_within_and_keeps_names_and_whole_arrows():
    def event(phase, at, **more):
        return {"ph": phase, "ts": at, "name": str(at), **more}

    kept = [
        {"ph": "M", "name": "process_name"},
        event("X", 10, dur=100),
        event("s", 12, cat="flow", id=1),
        event("f", 14, cat="flow", id=1),
        event("C", 20),
    ]
    dropped = [
        event("X", 9.999, dur=1),
        event("X", 20.001, dur=1),
        event("s", 9, cat="flow", id=2),
        event("f", 14, cat="flow", id=2),
        {"ph": "X", "name": "no time"},
        None,
    ]
    document = {"traceEvents": [*dropped, *kept], "displayTimeUnit": "ms"}
    assert within(document, 10_000, 20_000) == {"traceEvents": kept, "displayTimeUnit": "ms"}
