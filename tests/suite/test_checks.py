"""Each rule of validity: kept by an honest run, broken by a planted fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
from records import failed_request, make_request, make_run, make_step

from runner.config import RunnerConfig
from suite.checks import RULES, check_run, check_runs
from suite.metrics import run_metrics
from suite.record import Failure, LogprobVerdict, Status

REQUESTS = [make_request("a", num_prompt_tokens=8), make_request("b", num_prompt_tokens=4)]
# 8 + 4 prompt positions and all but the last of 3 + 3 outputs
STEPS = [
    make_step(0, 0, 10, "prefill", num_rows=2, num_tokens=12),
    make_step(1, 10, 20, num_rows=2, num_tokens=2),
    make_step(2, 20, 30, num_rows=2, num_tokens=2),
]


def served_from(sent_ms):
    """Request b at once, and request a, due at 0 as well, that was handed over then: requests and steps."""
    first_ms = max(30, sent_ms)
    tokens = [first_ms + 10 * number for number in (1, 2, 3)]
    late = make_request("a", num_prompt_tokens=8, sent_ms=sent_ms, first_ms=first_ms, token_ms=tokens)
    steps = [
        make_step(0, 0, 10, "prefill", num_rows=1, num_tokens=4),
        *(make_step(number, 10 * number, 10 * number + 10, num_rows=1, num_tokens=1) for number in (1, 2)),
        make_step(3, first_ms, tokens[0], "prefill", num_rows=1, num_tokens=8),
        *(make_step(3 + i, tokens[i] - 10, tokens[i], num_rows=1, num_tokens=1) for i in (1, 2)),
    ]
    return [late, REQUESTS[1]], steps


def rules(run, requests=REQUESTS, steps=STEPS):
    return [finding.rule for finding in check_run(run, requests, steps)]


def test_an_honest_run_breaks_no_rule():
    assert rules(make_run(REQUESTS, STEPS)) == []


def test_wrong_tokens_are_told_with_their_first_place():
    (finding,) = check_run(make_run(REQUESTS, STEPS, num_wrong=2), REQUESTS, STEPS)
    assert finding.rule == "tokens-wrong" and not finding.is_timing
    assert finding.message == "2 of 6 output tokens are wrong; the first: request a, output token 1"
    assert finding.remedy


def test_a_negative_control_with_wrong_tokens_is_what_it_must_be_and_valid():
    assert rules(make_run(REQUESTS, STEPS, num_wrong=2, arm="stale", is_control=True)) == []
    unchecked = make_run(REQUESTS, STEPS, arm="stale", is_control=True, tokens=None)
    assert rules(unchecked) == ["tokens-unchecked"]


def test_a_run_whose_tokens_nobody_checked_is_not_valid():
    assert rules(make_run(REQUESTS, STEPS, tokens=None)) == ["tokens-unchecked"]


def test_a_failed_run_is_told_with_its_cause():
    failure = Failure(kind="timeout", message="the run took longer than 5 s")
    (finding,) = check_run(make_run(status=Status.FAILED, failure=failure), [], [])
    assert finding.rule == "run-failed" and finding.message == "the run took longer than 5 s"


def test_failed_requests_are_counted_and_named_by_cause():
    requests = [*REQUESTS, failed_request("c", "17 image placeholders")]
    (finding,) = check_run(make_run(requests, STEPS), requests, STEPS)
    assert finding.rule == "requests-failed"
    assert finding.message == "1 of 3 requests failed; the first: 17 image placeholders"


@pytest.mark.parametrize("requests", [REQUESTS[:1], [*REQUESTS, REQUESTS[0]]])
def test_a_request_that_got_lost_or_came_twice_breaks_conservation(requests):
    assert "requests-conserved" in rules(make_run(REQUESTS, STEPS), requests)


def test_positions_computed_too_often_or_too_seldom_break_conservation():
    assert rules(make_run(REQUESTS, STEPS), steps=STEPS[:2]) == ["tokens-conserved"]
    assert rules(make_run(REQUESTS, STEPS), steps=[*STEPS, make_step(3, 30, 40, num_tokens=1)]) == [
        "tokens-conserved"
    ]


def test_recomputed_positions_are_accounted_for():
    requests = [
        make_request("a", num_prompt_tokens=8, num_recomputed_tokens=9, num_preemptions=1),
        REQUESTS[1],
    ]
    steps = [*STEPS, make_step(3, 30, 40, "prefill", num_tokens=9)]
    assert rules(make_run(requests, steps), requests, steps) == []


def test_positions_computed_for_nothing_are_accounted_for():
    """Under async a request that ends by EOS has one more step in flight."""
    requests = [make_request("a", num_prompt_tokens=8, num_wasted_tokens=1), REQUESTS[1]]
    assert rules(make_run(requests, STEPS), requests) == ["tokens-conserved"]
    steps = [*STEPS, make_step(3, 30, 40, num_tokens=1)]
    assert rules(make_run(requests, steps), requests, steps) == []


def test_conservation_is_undefined_where_a_request_was_dropped_half_way():
    dropped = make_request("c", finish_reason="aborted", error="the run ended before this request did")
    requests = [*REQUESTS, dropped]
    assert rules(make_run(requests, STEPS), requests) == ["requests-failed"]


def test_a_request_may_wait_for_the_step_that_runs_but_no_longer():
    in_time, steps = served_from(25)
    assert rules(make_run(in_time, steps), in_time, steps) == []
    late, steps = served_from(45)
    (finding,) = check_run(make_run(late, steps), late, steps)
    assert finding.rule == "off-schedule" and finding.is_timing
    assert "45.0 ms after its scheduled time" in finding.message


def test_a_request_sent_before_its_time_is_off_schedule():
    early = [make_request("a", num_prompt_tokens=8, scheduled_ms=10, sent_ms=4), REQUESTS[1]]
    assert rules(make_run(early, STEPS), early) == ["off-schedule"]


def test_one_measured_round_is_too_few_and_warm_ups_do_not_count():
    runs = [
        make_run(REQUESTS, STEPS, run_id="w", is_warmup=True),
        make_run(REQUESTS, STEPS, run_id="r0"),
    ]
    (finding,) = check_runs(runs, lambda _: REQUESTS, lambda _: STEPS)
    assert finding.rule == "too-few-rounds" and finding.run_id == "r0"
    assert (
        check_runs([*runs, make_run(REQUESTS, STEPS, run_id="r1")], lambda _: REQUESTS, lambda _: STEPS) == []
    )


def test_interrupted_and_warm_up_runs_are_not_judged():
    runs = [
        make_run(status=Status.INTERRUPTED, run_id="r0"),
        make_run(REQUESTS, STEPS, num_wrong=1, is_warmup=True, run_id="w"),
    ]
    assert check_runs(runs, lambda _: REQUESTS, lambda _: STEPS) == []


def test_of_a_run_with_instruments_the_tokens_are_judged_and_the_times_are_not():
    late, late_steps = served_from(45)
    on = make_run(late, late_steps, num_wrong=1, run_id="i0", instrument="events")
    measured = [make_run(REQUESTS, STEPS, run_id=f"r{i}") for i in range(2)]
    requests, steps = {"i0": late}, {"i0": late_steps}
    found = check_runs(
        [*measured, on], lambda name: requests.get(name, REQUESTS), lambda name: steps.get(name, STEPS)
    )
    assert [(finding.run_id, finding.rule) for finding in found] == [("i0", "tokens-wrong")]
    (finding,) = check_runs([measured[0], on], lambda _: REQUESTS, lambda _: STEPS)[1:]
    assert finding.rule == "too-few-rounds", "a run with instruments is no second round"


def test_every_rule_says_what_it_asks_and_what_to_do():
    for name, rule in RULES.items():
        assert rule.name == name and len(rule.text) > 10 and len(rule.remedy) > 10


def test_cached_positions_are_not_computed_and_rejected_drafts_are_for_nothing():
    drafted = {"num_drafted_tokens": 5, "num_accepted_tokens": 2}
    requests = [make_request("a", num_prompt_tokens=8, num_cached_tokens=4, **drafted), REQUESTS[1]]
    # 4 fewer of the prompt, 3 rejected drafts more; accepted ones are outputs.
    steps = [
        make_step(0, 0, 10, "prefill", num_rows=2, num_tokens=8),
        make_step(1, 10, 30, num_rows=2, num_tokens=7),
    ]
    assert rules(make_run(requests, steps), requests, steps) == []
    for change in ({"num_cached_tokens": 3}, {"num_drafted_tokens": 6}, {"num_accepted_tokens": 1}):
        wrong = [replace(requests[0], **change), requests[1]]
        assert rules(make_run(wrong, steps), wrong, steps) == ["tokens-conserved"]


def test_wrong_log_probabilities_break_a_rule_unless_the_arm_is_wrong_by_design():
    found = LogprobVerdict(num_checked=6, num_wrong=2, max_error=0.25, first_wrong=("b", 1))
    (finding,) = check_run(make_run(REQUESTS, STEPS, logprobs=found), REQUESTS, STEPS)
    assert finding.rule == "logprobs-wrong" and not finding.is_timing
    assert finding.message == (
        "the log-probabilities of 2 of 6 output tokens are wrong, off by up to 0.25; the first: request b, "
        "output token 1"
    )
    assert rules(make_run(REQUESTS, STEPS, logprobs=found, is_control=True)) == []
    right = LogprobVerdict(num_checked=6, num_wrong=0, max_error=1e-6)
    assert rules(make_run(REQUESTS, STEPS, logprobs=right)) == []


@pytest.mark.parametrize(
    ("cached", "begins_alike", "is_broken"),
    [(0, False, False), (8, False, False), (9, False, True), (400, True, False), (400, None, False)],
)
def test_hits_that_nobody_asked_for_make_a_run_invalid_above_one_percent(cached, begins_alike, is_broken):
    """Of an older record nobody knows whether its prompts were to begin alike (None)."""
    requests = [make_request("a", num_prompt_tokens=800, num_cached_tokens=cached)]
    steps = [make_step(0, 0, 10, "prefill", num_rows=1, num_tokens=800 - cached)]
    steps += [make_step(number, 10 * number, 10 * number + 10, num_rows=1, num_tokens=1) for number in (1, 2)]
    metrics = run_metrics(requests, steps, 1.0, RunnerConfig(prefix_caching=True))
    run = make_run(requests, steps, metrics=metrics, begins_alike=begins_alike)
    found = check_run(run, requests, steps)
    assert [finding.rule for finding in found] == ["cache-hits"] * is_broken
    assert all(finding.is_timing and "gave 1.1 % of prompt positions" in finding.message for finding in found)
