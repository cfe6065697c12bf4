"""Limits on a change: what breaks one, what does not, and what is said where one cannot tell."""

from __future__ import annotations

import pytest
from compared_folders import CASE_ID, experiment, rounds_of
from test_compare_runs import compared, side

from suite.checks import Finding
from suite.compare_runs import Compared, compare_sides
from suite.errors import SuiteError
from suite.gate import Outcome, judge, read_limit, read_limits
from suite.record import Status


def judged(limit, base, head, **options):
    limits = read_limits([limit])
    found = compared(base, head, more=[one.metric for one in limits], **options)
    return judge(limits, found)


def outcomes(limit, base, head):
    return [one.outcome for one in judged(limit, base, head)]


@pytest.mark.parametrize(
    ("limit", "factor", "outcome"),
    [
        ("output_throughput<-3%", 0.90, Outcome.BROKEN),
        ("output_throughput<-3%", 0.96, Outcome.BROKEN),
        ("output_throughput<-3%", 0.97, Outcome.CANNOT_TELL),
        ("output_throughput<-3%", 0.98, Outcome.HELD),
        ("output_throughput<-3%", 1.10, Outcome.HELD),
        ("output_throughput < -3.0 %", 0.90, Outcome.BROKEN),
        ("output_throughput<+2%", 1.0, Outcome.BROKEN),
        ("output_throughput>+5%", 1.10, Outcome.BROKEN),
        ("output_throughput>5%", 1.02, Outcome.HELD),
        ("output_throughput>0%", 0.95, Outcome.HELD),
    ],
)
def test_a_limit_is_broken_where_the_whole_interval_lies_beyond_it(limit, factor, outcome):
    (one,) = judged(limit, experiment(1), experiment(2, sync_ids=factor))
    assert one.outcome is outcome
    if outcome is Outcome.CANNOT_TELL:
        assert one.reason == "the interval reaches across the limit"


def test_a_metric_without_data_breaks_its_limit():
    assert outcomes("request_goodput<-3%", experiment(1), experiment(2)) == [Outcome.NO_DATA]
    assert outcomes("output_throughput<-3%", experiment(1), []) == [Outcome.NO_DATA]
    failed = [run.model_copy(update={"status": Status.FAILED}) for run in experiment(2)]
    assert outcomes("output_throughput<-3%", experiment(1), failed) == [Outcome.NO_DATA]
    wrong = rounds_of("sync-ids", 1.0, num_wrong=1)
    assert outcomes("output_throughput<-3%", experiment(1), wrong) == [Outcome.NO_DATA]


def test_an_arm_or_a_case_that_the_head_lacks_breaks_every_limit():
    base = experiment(1, refresh=1.0)
    held, lacking = judged("output_throughput<-50%", base, experiment(2))
    assert held.outcome is Outcome.HELD
    assert lacking.outcome is Outcome.NO_DATA and lacking.outcome.is_failure
    assert "arm refresh of base is missing in head0" in lacking.reason
    document = lacking.document()
    assert (document["arm"], document["case_id"], document["head"]) == ("refresh", CASE_ID, "head0")
    swept = [run.model_copy(update={"case_id": "f" * 16, "case_label": "n=2"}) for run in base]
    told = judged("output_throughput<-50%", [*base, *swept], base)
    assert [one.outcome for one in told] == [Outcome.HELD] * 2 + [Outcome.NO_DATA] * 2
    assert [one.missing.arm for one in told[2:]] == ["sync-ids", "refresh"]


def test_an_arm_more_and_a_missing_one_that_is_wrong_by_design_break_no_limit():
    control = rounds_of("stale", 1.0, is_control=True)
    assert outcomes("output_throughput<-50%", experiment(1), experiment(2, refresh=1.0)) == [Outcome.HELD]
    assert outcomes("output_throughput<-50%", [*experiment(1), *control], experiment(2)) == [Outcome.HELD]


def test_too_few_rounds_cannot_tell_and_do_not_break_a_limit():
    (one,) = judged("output_throughput<-3%", experiment(1), experiment(2, num_rounds=3, sync_ids=0.5))
    assert one.outcome is Outcome.CANNOT_TELL and not one.outcome.is_failure
    assert one.reason == "3 and 10 rounds, at least 5 of each are needed"


@pytest.mark.parametrize("interleaved", [None, "the same"])
def test_too_few_rounds_because_others_are_invalid_do_not_open_the_gate(interleaved):
    base, head = experiment(1), experiment(2, sync_ids=0.2)
    bad = [Finding(f"sync-ids-r{number}", "foreign-load", "seen", "remedy", True) for number in range(6)]
    sides = (side("base", base, (), interleaved), side("head", head, bad, interleaved))
    (one,) = judge(read_limits(["output_throughput<-3%"]), compare_sides(sides[0], sides[1:]))
    assert one.outcome is Outcome.NO_DATA and one.outcome.is_failure
    assert "6 of 10 rounds INVALID (foreign-load)" in one.reason and "at least 5" in one.reason
    fewer = side("head", head, bad[:5], interleaved)
    (one,) = judge(read_limits(["output_throughput<-3%"]), compare_sides(sides[0], [fewer]))
    assert one.outcome is Outcome.BROKEN


def test_arms_that_are_wrong_by_design_are_held_to_no_limit():
    slow = rounds_of("stale", 0.5, is_control=True)
    base = experiment(1, stale=1.0)
    assert outcomes("output_throughput<-3%", base, [*experiment(2), *slow]) == [Outcome.HELD]


def unsteady(share):
    """At `share` of the base's speed, and the reference arm half as fast again the second time."""
    once = [run for run in experiment(2, sync_ids=share) if not run.is_aa]
    return [*once, *rounds_of("sync-ids", 1.5 * share, 2, is_aa=True)]


@pytest.mark.parametrize(
    ("limit", "share", "outcome"),
    [
        ("output_throughput<-3%", 0.8, Outcome.CANNOT_TELL),
        ("output_throughput<-3%", 0.5, Outcome.BROKEN),
        ("output_throughput<-3%", 1.2, Outcome.CANNOT_TELL),
        ("output_throughput<-3%", 2.0, Outcome.HELD),
        ("output_throughput>3%", 1.2, Outcome.CANNOT_TELL),
        ("output_throughput>3%", 2.0, Outcome.BROKEN),
    ],
)
def test_where_an_arm_differs_from_itself_only_what_is_beyond_that_is_judged(limit, share, outcome):
    (one,) = judged(limit, experiment(1), unsteady(share))
    assert one.outcome is outcome
    assert ("differs from itself" in one.reason) == (outcome is Outcome.CANNOT_TELL)
    assert ("even shifted by what A/A shows" in one.reason) == (outcome is not Outcome.CANNOT_TELL)


def test_where_one_run_differs_from_itself_and_the_other_says_nothing_of_that_nothing_is_judged():
    silent = [run for run in experiment(1) if not run.is_aa]
    for base, head in ((silent, unsteady(0.2)), (unsteady(5.0), silent)):
        (one,) = judged("output_throughput<-3%", base, head)
        assert one.outcome is Outcome.CANNOT_TELL and "differs from itself" in one.reason


def test_of_many_arms_one_that_is_beyond_by_chance_breaks_nothing():
    """A p value of some 3 % at the limit is one of 20 that one expects to see without any change."""
    names = [f"arm{number}" for number in range(20)]
    base = experiment(1, **dict.fromkeys(names, 1.0))
    head = experiment(2, **dict.fromkeys(names, 1.0))
    limits = read_limits(["output_throughput<0%"])
    found = compared(base, head)
    beyond = [one for one in found.differences if one.ratio.interval.high < 0]
    assert beyond, "the draws hold no such arm: choose other seeds"
    assert all(one.ratio.p_value > 0.05 / 21 for one in beyond)
    assert not any(one.outcome.is_failure for one in judge(limits, found))
    alone = judge(limits, Compared(tuple(beyond[:1]), ()))
    assert alone[0].outcome is Outcome.BROKEN


def test_runs_that_took_turns_are_held_to_limits_as_well():
    limits = read_limits(["output_throughput<-3%"])
    base, head = experiment(1), experiment(2, sync_ids=0.9)
    found = compare_sides(side("base", base, interleaved="x"), [side("head", head, interleaved="x")])
    (one,) = judge(limits, found)
    assert one.outcome is Outcome.BROKEN and one.difference.pairing == "paired"
    empty = compare_sides(
        side("base", base, interleaved="x"),
        [side("head", [run.model_copy(update={"status": Status.FAILED}) for run in head], interleaved="x")],
    )
    assert [one.outcome for one in judge(limits, empty)] == [Outcome.NO_DATA]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("output_throughput", "write METRIC"),
        ("output_throughput<-3", "write METRIC"),
        ("output_throughput=-3%", "write METRIC"),
        ("output_throughput<--3%", "write METRIC"),
        ("output_throughput<nan%", "write METRIC"),
        ("", "write METRIC"),
        ("output_througput<-3%", "did you mean output_throughput?"),
        ("output_throughput<-100%", "a limit is above -100 % (all of it is gone) and at most 1,000,000 %"),
        ("output_throughput<-250%", "a limit is above -100 %"),
        ("median_ttft_ms>+1000001%", "at most 1,000,000 %; write METRIC"),
    ],
)
def test_a_limit_that_is_none_is_refused_with_what_to_write(text, told):
    with pytest.raises(SuiteError, match="--fail-on") as error:
        read_limit(text)
    assert told in str(error.value)
