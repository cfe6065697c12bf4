"""The clocks: phases are closed whatever happens inside them."""

from __future__ import annotations

import pytest

from runner import measure
from runner.measure import Recorder, StepClock


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock the test moves: the last element is now."""
    times = [1000]
    monkeypatch.setattr(measure, "now_ns", lambda: times[-1])
    return times


def test_a_phase_is_as_long_as_its_body(ticks: list[int]) -> None:
    clock = StepClock()
    with clock.phase("compile"):
        ticks.append(1250)
    assert clock.start_ns == 1000
    assert clock.phase_ns == {"compile": 250}


def test_a_phase_is_closed_when_its_body_raises(ticks: list[int]) -> None:
    clock = StepClock()
    with pytest.raises(ZeroDivisionError), clock.phase("launch"):
        ticks.append(1040)
        raise ZeroDivisionError
    ticks.append(9999)
    assert clock.phase_ns == {"launch": 40}


def test_a_phase_entered_twice_is_summed_and_others_are_left_alone(ticks: list[int]) -> None:
    clock = StepClock()
    for end in (1010, 1030):
        with clock.phase("retire"):
            ticks.append(end)
    with clock.phase("schedule"):
        ticks.append(1035)
    assert clock.phase_ns == {"retire": 30, "schedule": 5}


def test_nested_phases_each_have_their_own_time(ticks: list[int]) -> None:
    clock = StepClock()
    with clock.phase("outer"):
        ticks.append(1001)
        with clock.phase("inner"):
            ticks.append(1011)
        ticks.append(1012)
    assert clock.phase_ns == {"outer": 12, "inner": 10}


def test_two_clocks_share_nothing(ticks: list[int]) -> None:
    first, second = StepClock(), StepClock()
    with first.phase("compile"):
        ticks.append(1002)
    assert second.phase_ns == {}


def test_the_clock_never_goes_back() -> None:
    times = [measure.now_ns() for _ in range(100)]
    assert times == sorted(times)


def test_two_recorders_share_nothing() -> None:
    first, second = Recorder(), Recorder()
    first.timelines["r"] = measure.Timeline(sent_ns=1)
    first.timelines["r"].token_ns.append(2)
    assert second.timelines == {}
    assert measure.Timeline(sent_ns=1).token_ns == []
