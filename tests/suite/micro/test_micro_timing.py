"""Timing on a clock and on events that a test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from suite.micro.machine import open_machine
from suite.micro.timing import Effort, EventTimer, HostTimer, floor, measure


class Clock:
    """Moved by calls, and by its own reading."""

    def __init__(self, read_ns: int = 0) -> None:
        self.now = 0
        self.read_ns = read_ns

    def __call__(self) -> int:
        self.now += self.read_ns
        return self.now

    def taking(self, duration_ns: int) -> Callable[[], None]:
        def call() -> None:
            self.now += duration_ns

        return call


def test_a_call_below_the_clocks_own_cost_is_measured_over_many() -> None:
    clock = Clock(read_ns=200)
    timing = measure(HostTimer(clock), [clock.taking(50)])
    assert timing.calls >= 1_000_000 / 50 / 1.3
    assert timing.per_call.value == pytest.approx(50, rel=0.001)


def test_one_sample_of_a_long_call_is_that_call() -> None:
    clock = Clock()
    timing = measure(HostTimer(clock), [clock.taking(5_000_000)])
    assert (timing.calls, timing.per_call.value) == (1, 5_000_000)


def test_a_sample_is_never_shorter_than_asked() -> None:
    clock = Clock()
    for duration_ns in (1, 7, 333, 99_999, 999_999):
        timing = measure(HostTimer(clock), [clock.taking(duration_ns)], Effort(max_samples=7))
        assert timing.calls * duration_ns >= 1_000_000


def test_buffers_are_rotated_across_samples_and_none_is_left_out() -> None:
    clock, seen = Clock(), []

    def call(index: int) -> Callable[[], None]:
        def touch() -> None:
            seen.append(index)
            clock.now += 400_000

        return touch

    measure(HostTimer(clock), [call(index) for index in range(7)], Effort(max_samples=9))
    assert seen == [index % 7 for index in range(len(seen))]
    assert len(seen) > 21


def test_the_median_is_not_moved_by_outliers_and_lies_within_its_interval() -> None:
    clock, turns = Clock(), iter(range(10**6))

    def call() -> None:
        clock.now += 9_000_000 if next(turns) % 5 == 4 else 1_000_000

    timing = measure(HostTimer(clock), [call], Effort(budget_ns=10**12))
    assert timing.per_call.value == 1_000_000
    assert (timing.per_call.low, timing.per_call.n) == (1_000_000, 41)


def test_the_budget_ends_sampling_but_not_before_the_fewest_samples() -> None:
    clock = Clock()
    assert measure(HostTimer(clock), [clock.taking(50_000_000)]).per_call.n == 7
    assert measure(HostTimer(clock), [clock.taking(2_000_000_000)]).per_call.n == 3
    assert (
        measure(HostTimer(clock), [clock.taking(10_000_000)], Effort(budget_ns=200_000_000)).per_call.n < 41
    )


def test_the_empty_loop_is_the_floor() -> None:
    timing = floor(HostTimer(), Effort(max_samples=7, budget_ns=1))
    assert 1 < timing.per_call.value < 20_000
    assert timing.calls > 50


class Device:
    """A stream: calls queue work on it, which runs once what is before it is done."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.free_at = 0
        self.log: list[str] = []

    def launch(self, enqueue_ns: int, run_ns: int) -> Callable[[], None]:
        def call() -> None:
            self.clock.now += enqueue_ns
            self.free_at = max(self.free_at, self.clock.now) + run_ns

        return call

    def event(self) -> Event:
        return Event(self)

    def synchronize(self) -> None:
        self.log.append("device synchronize")
        self.clock.now = max(self.clock.now, self.free_at)


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at: int | None = None

    def record(self) -> None:
        self.device.log.append("record")
        self.at = max(self.device.free_at, self.device.clock.now)

    def synchronize(self) -> None:
        assert self.at is not None
        self.device.log.append("event synchronize")
        self.device.clock.now = max(self.device.clock.now, self.at)

    def elapsed_time(self, end: Event) -> float:
        assert self.at is not None and end.at is not None
        assert self.device.clock.now >= end.at, "read before it was done"
        return (end.at - self.at) / 1e6


def test_device_time_and_queueing_are_told_apart() -> None:
    device = Device(Clock())
    timer = EventTimer(device.event, device.synchronize, device.clock)
    timing = measure(timer, [device.launch(enqueue_ns=3_000, run_ns=20_000)])
    assert timing.per_call.value == pytest.approx(20_000, rel=0.01)
    assert timing.enqueue is not None
    assert timing.enqueue.value == 3_000
    assert not timing.is_launch_bound


def test_a_device_that_waits_for_its_launches_is_called_launch_bound() -> None:
    device = Device(Clock())
    timer = EventTimer(device.event, device.synchronize, device.clock)
    timing = measure(timer, [device.launch(enqueue_ns=5_000, run_ns=800)])
    assert timing.is_launch_bound
    assert timing.per_call.value == pytest.approx(5_000, rel=0.01)  # the host's time, and said to be so


def test_a_sample_has_one_pair_of_events_and_waits_only_outside_it() -> None:
    device = Device(Clock())
    timer = EventTimer(device.event, device.synchronize, device.clock)
    timer.time([device.launch(10, 10)] * 100)
    assert device.log == ["device synchronize", "record", "record", "event synchronize"]


def test_the_machine_of_a_gpu_is_timed_by_timing_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made with a fake torch.Event: whatever is here, no GPU is asked for."""
    made: list[dict[str, object]] = []
    device = Device(Clock())

    def make(**settings: object) -> Event:
        made.append(settings)
        return device.event()

    monkeypatch.setattr(torch, "Event", make)
    monkeypatch.setattr(torch.accelerator, "synchronize", device.synchronize)
    monkeypatch.setattr("runner.device.cuda.cache_bytes", lambda: 50 << 20)
    monkeypatch.setattr("runner.device.cuda.device_name", lambda: "a fake device")
    monkeypatch.setattr(torch, "set_num_threads", lambda _number: None)
    machine = open_machine("cuda", 1, Effort())
    assert (machine.name, machine.cache_bytes, machine.is_cuda) == ("a fake device", 50 << 20, True)
    sample = machine.timer.time([device.launch(10, 2_000_000)] * 3)
    assert sample.elapsed_ns == pytest.approx(6_000_000, rel=0.001)
    assert made == [{"device": "cuda", "enable_timing": True}] * 2
    assert device.log == ["device synchronize", "record", "record", "event synchronize"]
    rotation = machine.rotation(1 << 20)
    assert rotation.is_cold and rotation.slots > 50
