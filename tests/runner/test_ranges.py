"""NVTX ranges: pushes equal pops whatever push returns and the body does, and steps' ranges are siblings."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from runner.measure import Instrument
from runner.ranges import DOMAIN, NoRanges, NvtxRanges, nvtx_ranges
from runner.spans import LEVELS


class Log:
    """The calls that a fake nvtx got, in order: (call, name, payload)."""

    def __init__(self, returned=None):
        self.calls = []
        self.open = []  # of this thread, innermost last
        self.started = {}
        self.max_started = 0
        self._returned = returned
        self._next = 0

    def push(self, name, payload):
        self.calls.append(("push", name, payload))
        self.open.append(name)
        return self._returned

    def pop(self):
        self.calls.append(("pop", self.open.pop(), None))
        return self._returned

    def start(self, name, payload):
        self._next += 1
        self.calls.append(("start", name, payload))
        self.started[self._next] = (name, payload)
        self.max_started = max(self.max_started, len(self.started))
        return self._next

    def end(self, handle):
        self.calls.append(("end", *self.started.pop(handle)))

    def count(self, call):
        return sum(done == call for done, _, _ in self.calls)


class Domain:
    handle = "the domain"

    def __init__(self):
        self.num_registered = 0

    def get_event_attributes(self, message, payload):
        self.num_registered += 1
        return SimpleNamespace(message=SimpleNamespace(string=message), payload=payload)


def newer(log):
    """From 0.2.12: a domain pushes and pops itself."""
    domain = Domain()
    domain.push_range = lambda attributes: log.push(attributes.message.string, attributes.payload)
    domain.pop_range = log.pop
    domain.start_range = lambda attributes: log.start(attributes.message.string, attributes.payload)
    domain.end_range = log.end
    return SimpleNamespace(get_domain=lambda name: domain, domain=domain)


def older(log):
    """Up to 0.2.11: the calls are in a module of nvtx's own, and take the domain's handle."""

    def checked(call):
        def wrapped(attributes, handle):
            assert handle == Domain.handle
            return call(attributes.message.string, attributes.payload)

        return wrapped

    def pop(handle):
        assert handle == Domain.handle
        return log.pop()

    domain = Domain()
    inner = SimpleNamespace(
        push_range=checked(log.push), pop_range=pop, start_range=checked(log.start), end_range=log.end
    )
    return SimpleNamespace(get_domain=lambda name: domain, domain=domain, _lib=inner)


def unknown(log):
    """One with nothing but the documented functions."""

    def checked(call):
        def wrapped(message, domain, payload):
            assert domain == DOMAIN
            return call(message, payload)

        return wrapped

    def pop(domain):
        assert domain == DOMAIN
        return log.pop()

    domain = Domain()
    return SimpleNamespace(
        get_domain=lambda name: domain,
        domain=domain,
        push_range=checked(log.push),
        pop_range=pop,
        start_range=checked(log.start),
        end_range=log.end,
    )


MODULES = {"newer": newer, "older": older, "unknown": unknown}


@pytest.fixture(params=MODULES)
def make_module(request):
    return MODULES[request.param]


# The three ways to reach nvtx


def test_every_nvtx_gets_the_same_calls(make_module):
    log = Log()
    ranges = NvtxRanges(make_module(log))
    ranges.push("launch", 3)
    ranges.push("forward", 3)
    ranges.pop()
    handle = ranges.start("step decode slice/merge", 4)
    ranges.pop()
    ranges.end(handle)
    assert log.calls == [
        ("push", "launch", 3),
        ("push", "forward", 3),
        ("pop", "forward", None),
        ("start", "step decode slice/merge", 4),
        ("pop", "launch", None),
        ("end", "step decode slice/merge", 4),
    ]


def test_a_name_is_registered_once_and_each_range_has_its_own_step(make_module):
    log = Log()
    module = make_module(log)
    ranges = NvtxRanges(module)
    for step_id in range(5):
        ranges.push("forward", step_id)
        ranges.pop()
    assert module.domain.num_registered == 1
    assert [payload for call, _, payload in log.calls if call == "push"] == [0, 1, 2, 3, 4]


# Through an instrument


@pytest.mark.parametrize("returned", [-1, None, 0, 7])
@pytest.mark.parametrize("level", [level for level in LEVELS if level != "off"])
def test_pushes_equal_pops_whatever_push_returns_and_the_body_raises(returned, level, make_module):
    log = Log(returned)
    clock = Instrument(level, NvtxRanges(make_module(log))).clock(3)
    with pytest.raises(ZeroDivisionError), clock.phase("compile"):
        _ = 1 / 0
    with clock.phase("launch"):
        pass
    assert log.count("push") == log.count("pop") == 2
    assert log.open == []


def test_two_interleaved_steps_are_siblings_and_none_is_left_open(make_module):
    log = Log()
    instrument = Instrument("host", NvtxRanges(make_module(log)))
    instrument.start_step(1, "step decode slice/merge")
    with instrument.clock(1).phase("launch"):
        instrument.start_step(2, "step decode slice/merge")
    instrument.end_step(1)
    instrument.end_step(2)
    assert log.started == {} and log.open == []
    assert log.max_started == 2
    assert [(call, payload) for call, _, payload in log.calls if call in ("start", "end")] == [
        ("start", 1),
        ("start", 2),
        ("end", 1),
        ("end", 2),
    ]
    first, second = (span for span in instrument.spans if span.lane == "steps")
    assert first.start_ns < second.start_ns < first.end_ns < second.end_ns


def test_what_an_error_leaves_open_is_ended_once(make_module):
    log = Log(-1)
    instrument = Instrument("nvtx", NvtxRanges(make_module(log)))
    instrument.start_step(1, "step decode slice/merge")
    instrument.start_step(2, "step decode slice/merge")
    instrument.end_step(1)
    instrument.close()
    instrument.close()
    instrument.end_step(2)
    assert log.count("start") == log.count("end") == 2


def test_a_step_that_was_never_started_is_not_ended(make_module):
    log = Log()
    Instrument("nvtx", NvtxRanges(make_module(log))).end_step(9)
    assert log.calls == []


def test_an_instrument_that_is_off_touches_no_nvtx(make_module):
    log = Log()
    instrument = Instrument("off", NvtxRanges(make_module(log)))
    instrument.start_step(1, "step decode slice/merge")
    with instrument.clock(1).phase("launch"):
        pass
    instrument.end_step(1)
    assert log.calls == [] and instrument.spans == []


# With and without nvtx


def test_without_nvtx_the_same_path_records_the_same_spans(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)  # importing it is an ImportError
    assert isinstance(nvtx_ranges(), NoRanges)
    without = spans_of(Instrument("host"))
    with_nvtx = spans_of(Instrument("host", NvtxRanges(newer(Log(-1)))))
    assert without == with_nvtx == [(5, "stage", "host"), (5, "step a b/c", "steps")]


def spans_of(instrument):
    instrument.start_step(5, "step a b/c")
    with instrument.clock(5).phase("stage"):
        pass
    instrument.end_step(5)
    instrument.close()
    return [(span.step_id, span.name, span.lane) for span in instrument.spans]


def test_an_installed_nvtx_is_used(monkeypatch):
    log = Log()
    module = ModuleType("nvtx")
    module.__dict__.update(vars(newer(log)))
    monkeypatch.setitem(sys.modules, "nvtx", module)
    ranges = nvtx_ranges()
    ranges.push("launch", 1)
    ranges.pop()
    assert log.count("push") == log.count("pop") == 1


def test_the_nvtx_that_is_installed_here_takes_our_calls():
    """No profiler is attached: nothing is recorded, but a call that is gone or changed would raise."""
    pytest.importorskip("nvtx")
    ranges = nvtx_ranges()
    assert isinstance(ranges, NvtxRanges)
    for step_id in (0, -1, 2**31):
        ranges.push("launch", step_id)
        ranges.pop()
        ranges.end(ranges.start("step decode slice/merge", step_id))
