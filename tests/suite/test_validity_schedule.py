"""The rate that was sent, and whether a run settled: by its batch or by its queue."""

from __future__ import annotations

import numpy as np
import pytest
from records import make_request, make_run, make_step

from suite.arrival_kinds import settles
from suite.checks import check_run
from suite.traffic import Traffic


def timing(requests, steps, **changes):
    found = check_run(make_run(requests, steps, **changes), requests, steps)
    return [(one.rule, one.message) for one in found if one.is_timing]


def sent(num, rate, sent_rate, steps_ms=10.0):
    """Requests scheduled at one rate and sent at another, with steps of one length throughout."""
    requests = [
        make_request(
            f"r{index}",
            scheduled_ms=1000 * index / rate,
            sent_ms=1000 * index / sent_rate,
            first_ms=1000 * index / sent_rate,
            token_ms=[1000 * index / sent_rate + 5],
        )
        for index in range(num)
    ]
    end_ms = 1000 * num / sent_rate
    steps = [make_step(i, i * steps_ms, (i + 1) * steps_ms) for i in range(int(end_ms / steps_ms))]
    return requests, steps


def test_an_open_loop_that_sends_slower_than_asked_is_off_its_rate():
    requests, steps = sent(500, rate=100, sent_rate=95)
    rules = dict(timing(requests, steps))
    assert rules["off-rate"] == "100 requests/s were asked for and 95 requests/s sent"


@pytest.mark.parametrize("sent_rate", [98.5, 100.0])
def test_within_2_percent_of_the_rate_and_a_step_nothing_is_said(sent_rate):
    requests, steps = sent(500, rate=100, sent_rate=sent_rate)
    assert "off-rate" not in dict(timing(requests, steps))


def test_long_steps_hide_no_rate_that_was_not_met():
    """A step of 3 s explains each request's lateness, and not that all of them came in one lump."""
    requests, steps = sent(500, rate=100, sent_rate=60)
    stalled = [make_step(900, 0, 5000)]
    found = dict(timing(requests, stalled + steps))
    assert "off-rate" in found


def test_a_limit_on_concurrency_or_too_few_requests_have_no_rate_to_keep():
    requests, steps = sent(500, rate=100, sent_rate=50)
    assert "off-rate" not in dict(timing(requests, steps, max_concurrency=1))
    requests, steps = sent(9, rate=100, sent_rate=50)
    assert "off-rate" not in dict(timing(requests, steps))
    at_once = [make_request(f"r{i}") for i in range(20)]
    assert "off-rate" not in dict(timing(at_once, steps))


# Steadiness


def queued(delays_ms, gap_ms=100.0, stay_ms=50.0):
    """Requests by their queue delay, one every `gap_ms`, each served within `stay_ms`."""
    return [
        make_request(
            f"r{index}",
            scheduled_ms=index * gap_ms,
            sent_ms=index * gap_ms,
            first_ms=index * gap_ms + delay,
            token_ms=[index * gap_ms + delay + stay_ms],
            num_prompt_tokens=1,
        )
        for index, delay in enumerate(delays_ms)
    ]


def test_a_queue_that_grows_all_the_time_is_not_steady():
    """10 requests a second come, and 5 are served: a request waits half as long as the run has lasted."""
    ((rule, message),) = timing(queued(50.0 * np.arange(60)), [], settles="queue")
    assert rule == "not-steady"
    assert message == (
        "the queue delay grew by 500 ms in every second, 2950 ms over the run: more comes than is served"
    )


def test_a_queue_that_goes_up_and_down_is_steady():
    draw = np.random.default_rng(1)
    for _ in range(20):
        assert timing(queued(draw.exponential(40.0, 60)), [], settles="queue") == []
    assert timing(queued(np.zeros(60)), [], settles="queue") == []
    assert timing(queued(1.0 * np.arange(60)), [], settles="queue") == []  # 10 ms a second


def test_what_was_not_asked_to_settle_is_not_judged():
    assert timing(queued(50.0 * np.arange(60)), [], settles=None) == []


def batch(rows):
    """A step for each number of rows, a request leaving at every other step."""
    return [
        make_step(i, 10 * i, 10 * i + 10, num_rows=count, num_decode_rows=count - i % 2)
        for i, count in enumerate(rows)
    ]


def test_a_batch_that_never_settles_is_not_steady_and_one_that_does_is():
    request = [make_request("a", num_prompt_tokens=1)]
    uneven = batch([2, 9] * 20)
    ((rule, message),) = timing(request, uneven, settles="batch")
    assert rule == "not-steady"
    assert message == "the batch never settled: the last 8 steps have from 2 to 9 rows"
    assert timing(request, batch([1, 2, 4, *[8] * 20]), settles="batch") == []
    assert timing(request, uneven) == []
    assert timing(request, uneven[:31], settles="batch") == [], "too short to ask"


def test_prompts_of_one_token_that_keep_all_places_full_are_steady():
    """None ever decodes, so that the steps alone do not tell that anyone has left."""
    requests = [make_request("a", first_ms=0, token_ms=[10], num_prompt_tokens=8)]
    steps = [make_step(i, 10 * i, 10 * i + 10, "prefill", num_rows=8) for i in range(40)]
    assert timing(requests, steps, settles="batch") == []
    still_running = [make_request("a", first_ms=0, token_ms=[400], num_prompt_tokens=8)]
    ((rule, message),) = timing(still_running, steps, settles="batch")
    assert rule == "not-steady" and "none has left" in message


@pytest.mark.parametrize(
    ("arrivals", "num_requests", "expected"),
    [
        ({"kind": "all_at_once"}, 1000, None),
        ({"kind": "all_at_once", "max_concurrency": 2}, 1000, None),
        ({"kind": "closed_loop", "concurrency": 8}, 32, "batch"),
        ({"kind": "closed_loop", "concurrency": 8}, 31, None),
        ({"kind": "poisson", "rate": 4}, 50, "queue"),
        ({"kind": "gamma", "rate": 4, "burstiness": 0.5}, 50, "queue"),
        ({"kind": "constant", "rate": 4}, 49, None),
        ({"kind": "ramp", "from_rate": 1, "to_rate": 4}, 1000, None),
        ({"kind": "trace", "path": "a.csv"}, 1000, None),
        (
            {"kind": "trace", "path": "a.csv", "process": {"kind": "closed_loop", "concurrency": 2}},
            9,
            "batch",
        ),
    ],
)
def test_what_should_settle_depends_on_how_requests_come_and_on_how_many(arrivals, num_requests, expected):
    traffic = {"arrivals": arrivals}
    if arrivals["kind"] != "trace":
        traffic |= {"num_requests": num_requests, "prompt_tokens": 4, "output_tokens": 4}
    assert settles(Traffic.model_validate(traffic).arrivals, num_requests) == expected
