"""Leaf spans within their step: on the engine's own spans, and on the same with one made longer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from arm_models import MICRO_QWEN3
from records import make_request, make_run
from simulated_steps import DeviceTimes, HostTimes, simulate

from suite.checks import check_runs
from suite.validity.nesting import spans_within_step

FORWARD_NS = 50_000


@pytest.fixture(scope="module", params=["sync-ids", "ids"])
def simulated(request):
    times = DeviceTimes({"upload.step_metadata": 10, "forward": FORWARD_NS, "sample": 20, "download": 4})
    with pytest.MonkeyPatch.context() as patch:
        found = simulate(patch, MICRO_QWEN3, request.param, HostTimes(), times, 0, later_after_ns=99)
    return found.engine.recorder.steps, found.spans


def messages(steps, spans):
    return [found.message for found in spans_within_step(make_run(), steps, spans)]


def test_the_spans_of_a_run_lie_within_its_steps(simulated):
    steps, spans = simulated
    assert messages(steps, spans) == [] and messages(steps, []) == []


def test_a_step_that_is_recorded_shorter_than_its_host_spans_is_told(simulated):
    steps, spans = simulated
    shorter = [replace(step, end_ns=step.start_ns - 5_000) if step.step_id == 3 else step for step in steps]
    (message,) = messages(shorter, [span for span in spans if span.lane == "host"])
    assert message.startswith("step 3: its host spans add up to")
    assert message.endswith("the step took -5,000 ns")


def test_device_spans_that_overlap_are_damaged_and_told(simulated):
    steps, spans = simulated
    doubled = [
        span._replace(start_ns=span.start_ns - FORWARD_NS // 2, end_ns=span.end_ns - FORWARD_NS // 2)
        if span.name == "sample"
        else span
        for span in spans
    ]
    doubled = [
        span._replace(end_ns=span.end_ns + FORWARD_NS) if span.name == "sample" else span for span in doubled
    ]
    (message,) = messages(steps, doubled)
    assert "overlaps" in message


def test_only_runs_with_instruments_are_asked_for_their_spans(simulated):
    steps, spans = simulated
    asked = []

    def spans_of(run_id):
        asked.append(run_id)
        return spans

    runs = [
        make_run([make_request()], run_id=name, instrument=level)
        for name, level in (("r", "off"), ("i", "events"))
    ]
    check_runs(runs, lambda _: [make_request()], lambda _: steps, spans_of)
    assert asked == ["i"]
