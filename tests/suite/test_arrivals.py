"""Requests handed to an engine: the rate is met, a limit is kept, and waiting shows in the latency."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from built_cases import built_case
from records import MS, make_request, make_run, make_step

from runner.config import RunnerConfig
from runner.core import Prompt, Request, SamplingParams
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.models import TINY_QWEN3
from suite.arrivals import ClosedLoopArrivals, ScheduledArrivals, arrivals_for
from suite.checks import check_run
from suite.worker import _ended_ns
from suite.workload import WorkloadRequest, build_workload

SECOND = 1_000_000_000


def _requests(
    arrivals_s: list[float], prompt_tokens: int = 4, output_tokens: int = 1
) -> list[WorkloadRequest]:
    sampling = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
    return [
        WorkloadRequest(
            Request(f"request-{index}", Prompt(tuple(range(10, 10 + prompt_tokens))), sampling), at, "text", 0
        )
        for index, at in enumerate(arrivals_s)
    ]


@dataclass
class FakeEngine:
    """Serves any number of requests at once, each for `service_ns`, asking for more every `step_ns`.

    Its clock moves when it works, and when it sleeps, `late_ns` longer than asked.
    """

    service_ns: int
    step_ns: int
    late_ns: int = 0
    now: int = 1_000
    sent: dict[str, int] = field(default_factory=dict)

    def clock(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += round(seconds * SECOND) + self.late_ns

    def ended_ns(self, request_id: str) -> int | None:
        end = self.sent[request_id] + self.service_ns
        return end if end <= self.now else None

    def run(self, arrivals: ScheduledArrivals | ClosedLoopArrivals) -> None:
        arrivals.start(ended_ns=self.ended_ns)
        while True:
            for request in arrivals.due():
                assert request.request_id not in self.sent
                self.sent[request.request_id] = self.now
            last_ns = next(reversed(self.sent.values()), 0)  # served alike, so the last sent ends last
            if last_ns + self.service_ns > self.now:
                self.now += self.step_ns
            elif not arrivals.wait():
                return

    def at_once(self) -> int:
        """The most requests that were with it together."""
        begins = list(self.sent.values())
        return max(sum(begin <= at < begin + self.service_ns for begin in begins) for at in begins)


def test_ten_thousand_requests_at_200_a_second_are_sent_within_2_percent_of_the_rate() -> None:
    """On an engine that asks every 3 ms, and sleeps 2 ms too long whenever it has nothing to do."""
    engine = FakeEngine(service_ns=3 * MS, step_ns=3 * MS, late_ns=2 * MS)
    requests = _requests([index / 200 for index in range(10_000)])
    arrivals = ScheduledArrivals(requests, True, engine.clock, engine.sleep)
    engine.run(arrivals)
    sent = [engine.sent[item.request.request_id] for item in requests]
    assert 9_999 / ((sent[-1] - sent[0]) / SECOND) == pytest.approx(200, rel=0.02)
    late = [time_ns - arrivals.scheduled_ns(index) for index, time_ns in enumerate(sent)]
    assert min(late) >= 0 and max(late) <= 5 * MS, "what one request is late by is not handed on to the next"


def test_at_one_at_a_time_the_growing_queue_shows_in_latency_from_the_schedule() -> None:
    """10 requests a second, each served for 1 s: request i ends 1 + 0.9 i seconds after it was due."""
    engine = FakeEngine(service_ns=SECOND, step_ns=100 * MS)
    requests = _requests([index / 10 for index in range(20)])
    arrivals = ScheduledArrivals(requests, True, engine.clock, engine.sleep, max_concurrency=1)
    engine.run(arrivals)
    assert engine.at_once() == 1
    for index, item in enumerate(requests):
        sent = engine.sent[item.request.request_id]
        latency_s = (sent + SECOND - arrivals.scheduled_ns(index)) / SECOND
        assert latency_s == pytest.approx(1 + 0.9 * index, abs=0.01)
        assert (sent - arrivals.scheduled_ns(index)) / SECOND == pytest.approx(0.9 * index, abs=0.01)


def test_a_limit_that_is_never_reached_changes_nothing() -> None:
    free, limited = (FakeEngine(service_ns=10 * MS, step_ns=MS) for _ in range(2))
    requests = _requests([index / 50 for index in range(100)])
    free.run(ScheduledArrivals(requests, True, free.clock, free.sleep))
    limited.run(ScheduledArrivals(requests, True, limited.clock, limited.sleep, max_concurrency=2))
    assert free.sent == limited.sent and free.at_once() == 1


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_a_closed_loop_sends_when_one_ends_and_that_is_when_it_was_due(concurrency: int) -> None:
    engine = FakeEngine(service_ns=100 * MS, step_ns=30 * MS)
    requests = _requests([0.0] * 20)
    arrivals = ClosedLoopArrivals(requests, concurrency, engine.clock)
    engine.run(arrivals)
    assert len(engine.sent) == 20
    assert engine.at_once() == min(concurrency, 20)
    sent = list(engine.sent.values())
    for index in range(20):
        expected = arrivals.start_ns if index < concurrency else sent[index - concurrency] + 100 * MS
        assert arrivals.scheduled_ns(index) == expected
        assert 0 <= sent[index] - expected < 30 * MS


def test_what_was_never_sent_has_a_time_all_the_same() -> None:
    engine = FakeEngine(service_ns=SECOND, step_ns=MS)
    arrivals = ClosedLoopArrivals(_requests([0.0] * 4), 2, engine.clock)
    assert arrivals.scheduled_ns(3) == 1_000
    arrivals.start(ended_ns=lambda _: None)
    assert len(arrivals.due()) == 2 and arrivals.due() == [] and arrivals.wait()
    assert arrivals.scheduled_ns(3) == arrivals.scheduled_ns(1) == arrivals.start_ns


def _served(arrivals: ScheduledArrivals | ClosedLoopArrivals, arm: str, host_work_us: int = 0) -> Engine:
    """A real engine, whose device computes nothing."""
    config = RunnerConfig(max_num_seqs=8, host_work_us=host_work_us)
    engine = Engine(
        TINY_QWEN3,
        config,
        NullDevice(TINY_QWEN3, config, lambda _step_id, _commands: None, token_id=9),
        ARMS[arm],
    )
    arrivals.start(ended_ns=lambda request_id: _ended_ns(engine, request_id))
    engine.run(arrivals)
    return engine


@pytest.mark.parametrize("arm", ["sync-ids", "ids"])
def test_a_real_engine_never_holds_more_than_the_loop_allows(arm: str) -> None:
    requests = _requests([0.0] * 30, output_tokens=3)
    arrivals = ClosedLoopArrivals(requests, 4)
    engine = _served(arrivals, arm)
    ended = []
    for index, item in enumerate(requests):
        timeline = engine.recorder.timelines[item.request.request_id]
        assert timeline.finished_ns is not None
        assert arrivals.scheduled_ns(index) <= timeline.sent_ns
        num_open = index - sum(end <= timeline.sent_ns for end in ended)
        assert num_open < 4
        if index >= 4:
            assert arrivals.scheduled_ns(index) in ended
        ended.append(timeline.finished_ns)


@pytest.mark.parametrize("arm", ["sync-ids", "ids"])
def test_requests_that_are_refused_give_their_place_to_the_next(arm: str) -> None:
    requests = _requests([0.0] * 10, prompt_tokens=RunnerConfig().max_model_len + 1)
    for arrivals in (ClosedLoopArrivals(requests, 2), ScheduledArrivals(requests, True, max_concurrency=2)):
        states = _served(arrivals, arm).requests
        assert len(states) == 10 and all(state.error for state in states.values())


def test_a_real_engine_shows_the_growing_queue_too() -> None:
    """100 requests a second, one at a time, each a step of 30 ms or more."""
    requests = _requests([index / 100 for index in range(12)])
    arrivals = ScheduledArrivals(requests, True, max_concurrency=1)
    engine = _served(arrivals, "sync-ids", host_work_us=30_000)
    timelines = [engine.recorder.timelines[item.request.request_id] for item in requests]
    waits = [timeline.sent_ns - arrivals.scheduled_ns(index) for index, timeline in enumerate(timelines)]
    growth = [after - before for before, after in itertools.pairwise(waits)]
    assert min(growth) >= 19 * MS


@pytest.mark.parametrize(
    ("kind", "is_timed", "expected"),
    [
        ("{kind: closed_loop, concurrency: 2}", True, 2),
        ("{kind: closed_loop, concurrency: 2}", False, 4),
        ("{kind: all_at_once, max_concurrency: 3}", True, 3),
        ("{kind: all_at_once, max_concurrency: 3}", False, 4),
        ("{kind: all_at_once}", True, 4),
        ("{kind: poisson, rate: 1}", False, 4),
    ],
)
def test_a_check_of_tokens_takes_all_at_once(
    kind: str, is_timed: bool, expected: int, tmp_path: Path
) -> None:
    case = built_case(tmp_path, f"traffic.arrivals={kind}")
    arrivals = arrivals_for(case.scenario.traffic.arrivals, build_workload(case, 7).requests, is_timed)
    arrivals.start(ended_ns=lambda _: None)
    assert len(arrivals.due()) == expected


def test_waiting_for_a_place_is_not_off_schedule_but_waiting_longer_is() -> None:
    """Two requests at 0 ms and one at a time: the second may be sent when the first ends, at 40 ms."""
    steps = [make_step(number, 10 * number, 10 * number + 10, num_tokens=1) for number in range(9)]
    first = make_request("a", token_ms=(10.0, 20.0, 40.0), num_prompt_tokens=1)
    for sent_ms, limit, is_fine in (
        (40, 1, True),
        (60, 1, True),
        (75, 1, False),
        (40, None, False),
        (40, 2, False),
    ):
        second = make_request(
            "b",
            sent_ms=sent_ms,
            first_ms=sent_ms,
            token_ms=(sent_ms + 5, sent_ms + 10, sent_ms + 15),
            num_prompt_tokens=1,
        )
        requests = [first, second]
        run = make_run(requests, steps).model_copy(update={"max_concurrency": limit})
        broken = [finding.rule for finding in check_run(run, requests, steps)]
        assert ("off-schedule" not in broken) == is_fine, (sent_ms, limit)
