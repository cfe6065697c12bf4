"""Accounts that must add up, on runs that do and on the same runs with one figure wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from records import MS, START_NS, failed_request, make_request, make_run, make_step

from suite import checks
from suite.checks import RULES, check_run, has_wrong_accounts
from suite.validity.accounts import littles_law


def served(num=40, gap_ms=20.0, step_ms=10.0, num_tokens=12):
    """Requests `gap_ms` apart, each in `num_tokens` consecutive steps from the one after it came."""
    requests, rows = [], {}
    for index in range(num):
        sent_ms = index * gap_ms + 3
        first = int(sent_ms // step_ms) + 1
        tokens = [step_ms * (first + number + 1) for number in range(num_tokens)]
        requests.append(
            make_request(
                f"r{index}",
                scheduled_ms=sent_ms,
                first_ms=step_ms * first,
                token_ms=tokens,
                num_prompt_tokens=1,
            )
        )
        for step in range(first, first + num_tokens):
            rows[step] = rows.get(step, 0) + 1
    steps = [
        make_step(step, step * step_ms, (step + 1) * step_ms, num_rows=count, num_tokens=count)
        for step, count in sorted(rows.items())
    ]
    return requests, steps


def rules(requests, steps, **changes):
    return [finding.rule for finding in check_run(make_run(requests, steps, **changes), requests, steps)]


def test_a_run_whose_accounts_agree_breaks_none():
    requests, steps = served()
    assert rules(requests, steps) == []


def test_littles_law_tells_rows_that_the_steps_lost_or_made_up():
    requests, steps = served()
    for factor in (0.5, 2):
        wrong = [replace(step, num_rows=round(step.num_rows * factor)) for step in steps]
        assert "littles-law" in rules(requests, wrong)


def test_littles_law_tells_requests_whose_stay_is_recorded_wrong():
    requests, steps = served()
    longer = [replace(one, sent_ns=one.sent_ns - 100 * MS) for one in requests]
    # 480 rows of 10 ms against 40 stays of 227 ms, from the first sending to the last end 1,007 ms apart
    (finding,) = littles_law(make_run(longer, steps), longer, steps)
    assert finding.message == (
        "by the steps 4.767 requests were in the system at a time, by rate x mean time in the system 9.017"
    )


def test_littles_law_counts_those_that_wait_in_the_scheduler():
    requests, steps = served()
    waiting = [replace(step, num_rows=1, num_waiting=step.num_rows - 1) for step in steps]
    assert rules(requests, waiting) == []
    assert "littles-law" in rules(requests, [replace(step, num_waiting=0) for step in waiting])


def test_littles_law_is_not_asked_where_a_request_was_dropped_half_way():
    requests, steps = served(num=2)
    dropped = [requests[0], replace(requests[1], error="the run ended before this request did")]
    assert "littles-law" not in rules(dropped, steps)
    assert "littles-law" not in rules(requests, [])


@pytest.mark.parametrize("stall_ms", [0, 500, 5000])
def test_littles_law_holds_through_a_stall_of_the_machine(stall_ms):
    """A step that takes as long as a hundred others: who came during it was in no plan until the next."""
    requests, steps = served(num=10)
    at_ns = steps[8].start_ns

    def later(time_ns):
        return time_ns + stall_ms * MS if time_ns > at_ns else time_ns

    steps = [replace(step, start_ns=later(step.start_ns), end_ns=later(step.end_ns)) for step in steps]
    requests = [
        replace(
            one,
            first_scheduled_ns=later(one.first_scheduled_ns),
            token_ns=tuple(later(at) for at in one.token_ns),
            finished_ns=later(one.finished_ns),
        )
        for one in requests
    ]
    assert list(littles_law(make_run(requests, steps), requests, steps)) == []


def test_requests_in_are_finished_failed_and_running():
    requests, steps = served(num=3)
    running = make_request("cut", finish_reason="aborted", error="the run ended", finished_ns=None)
    all_of_them = [*requests, failed_request(), running]
    assert "requests-conserved" not in rules(all_of_them, steps)
    miscounted = make_run(requests, steps).metrics
    run = make_run(all_of_them, steps, metrics=miscounted)
    (finding,) = [one for one in check_run(run, all_of_them, steps) if one.rule == "requests-conserved"]
    assert finding.message == (
        "5 requests went in: 3 finished, 1 failed, 1 running at the end; the figures say 3 completed and 0 "
        "not"
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_output_tokens": 4}, "has 4 output tokens by its number, 3 by its ids and 3 by their times"),
        ({"output_ids": (1, 2)}, "has 3 output tokens by its number, 2 by its ids and 3"),
        ({"token_ns": (START_NS + 10 * MS,)}, "3 by its ids and 1 by their times"),
    ],
)
def test_tokens_are_counted_once_and_alike(changes, told):
    request = make_request("a", **changes)
    found = {one.rule: one for one in check_run(make_run([request]), [request], [])}
    assert told in found["tokens-counted"].message


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sent_ms": 7.0}, "the first step of it lies 2.000 ms before its sending"),
        ({"first_ms": 11.0}, "output token 0 lies 1.000 ms before the first step of it"),
        ({"token_ms": (10, 30, 20)}, "output token 2 lies 10.000 ms before output token 1"),
        ({"finished_ns": START_NS}, "its end lies 30.000 ms before output token 2"),
        # the time of day beside a monotonic clock
        ({"first_scheduled_ns": 1_800_000_000 * 10**9}, "its sending"),
    ],
)
def test_times_that_go_back_or_lie_on_another_clock_are_told(changes, told):
    request = make_request("a", **changes)
    found = {one.rule: one for one in check_run(make_run([request]), [request], [])}
    assert told in found["times-in-order"].message


def test_a_mean_above_its_maximum_or_percentiles_out_of_order_are_told():
    requests, steps = served()
    metrics = make_run(requests, steps).metrics
    for name, factor, told in (
        ("mean_itl_ms", 3, "mean_itl_ms is 30, and max_itl_ms is 10"),
        ("p99_e2e_ms", 9, "p99_e2e_ms is 1"),
        ("median_ttft_ms", 99, "median_ttft_ms is"),
    ):
        value = metrics[name].value * factor
        wrong = {**metrics, name: metrics[name].model_copy(update={"value": value})}
        found = check_run(make_run(requests, steps, metrics=wrong), requests, steps)
        assert [one.rule for one in found] == ["peak-above-mean"] and told in found[0].message


def test_wrong_accounts_are_faults_of_the_program_and_others_are_not(monkeypatch):
    request = make_request("a", output_ids=())
    assert has_wrong_accounts(check_run(make_run([request]), [request], []))
    late = [make_request("a", sent_ms=4, scheduled_ms=10)]
    told = [replace(found, remedy="look again") for found in check_run(make_run([request]), [request], [])]
    assert has_wrong_accounts(told)
    monkeypatch.setattr(checks, "RULES", {name: replace(rule, remedy="x") for name, rule in RULES.items()})
    assert has_wrong_accounts(told)
    assert not has_wrong_accounts(check_run(make_run(late, num_wrong=1, tokens=None), late, [])[:1])
    accounts = {name for name, rule in RULES.items() if "fault of the program" in rule.remedy}
    assert accounts == {
        *("requests-conserved", "tokens-conserved", "tokens-counted", "times-in-order"),
        *("littles-law", "peak-above-mean", "spans-within-step"),
    }
    assert not any(RULES[name].is_timing for name in accounts)
