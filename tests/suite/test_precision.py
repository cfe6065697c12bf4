"""Rounds until intervals are narrow: the rule, its budget, and in simulation that they still cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from records import make_request, make_run, make_step

from suite.checks import Finding
from suite.errors import SuiteError
from suite.experiment import Experiment, Stop
from suite.pace import Pace
from suite.plan import Options, for_check, make_plan
from suite.precision import MIN_ROUNDS, Precision, is_spent, read_precision, share_s
from suite.ratios import Interval, ratio_of_logs, t_interval
from suite.store import RunFolder
from suite.verdict import Word, decide, noise_floor

ONE_PERCENT = Precision(1.0)


def interval(width, middle=0.0):
    return Interval(middle - width / 2, middle + width / 2)


def test_every_interval_must_be_narrow_and_where_it_lies_is_never_looked_at():
    narrow, wide = interval(0.0099), interval(0.0101)
    assert ONE_PERCENT.is_reached([narrow, narrow], 10)
    assert not ONE_PERCENT.is_reached([narrow, wide], 10)
    assert not ONE_PERCENT.is_reached([narrow, None], 10) and not ONE_PERCENT.is_reached([], 10)
    for middle in (-3.0, 0.0, 0.02, 5.0):
        assert ONE_PERCENT.is_reached([interval(0.0099, middle)], 10)
        assert not ONE_PERCENT.is_reached([interval(0.0101, middle)], 10)


def test_never_before_ten_rounds():
    assert [ONE_PERCENT.is_reached([interval(0.0)], number) for number in (5, 9, 10)] == [False, False, True]


def test_a_case_leaves_what_it_does_not_take_to_those_after_it():
    left, shares = 600.0, []
    for taken, num_left in ((50.0, 3), (275.0, 2), (400.0, 1)):
        shares.append(share_s(left, num_left))
        left -= taken
    assert shares == [200.0, 275.0, 275.0] and share_s(left, 1) == 0.0


def test_a_round_that_would_end_behind_the_limit_is_not_begun_but_one_always_is():
    assert not is_spent(999.0, [], 10.0)
    assert not is_spent(80.0, [90.0, 20.0, 15.0], 100.0)  # the first often is longer: things are loaded
    assert is_spent(81.0, [90.0, 20.0, 15.0], 100.0)


def stopped_experiments(noise, num_experiments, seed=5, max_rounds=400):
    """Log ratios of experiments that each stopped by the rule, as (experiment's logs, A/A's logs)."""
    random = np.random.default_rng(seed)
    arm, reference, again = random.normal(0, noise, (3, num_experiments, max_rounds))
    ratio, same = arm - reference, again - reference
    going = np.arange(num_experiments)
    for number in range(MIN_ROUNDS, max_rounds + 1):
        mean, half_width, _ = t_interval(ratio[going, :number])
        ends = zip(mean - half_width, mean + half_width, strict=True)
        is_done = np.array([ONE_PERCENT.is_reached([Interval(*pair)], number) for pair in ends], dtype=bool)
        yield from ((ratio[index, :number], same[index, :number]) for index in going[is_done])
        going = going[~is_done]
        if not going.size:
            return
    raise AssertionError(f"{going.size} experiments never stopped")


@pytest.mark.parametrize("noise", [0.004, 0.006, 0.01])
def test_intervals_cover_the_truth_in_93_to_97_percent_though_their_width_decided_the_rounds(noise):
    """10,000 experiments: the share has a standard error of 0.22 %. The lowest is near 0.01 with 94 %."""
    covered = []
    for logs, _ in stopped_experiments(noise, 10_000):
        mean, half_width, _ = t_interval(logs)
        covered.append(abs(mean) <= half_width)
    assert 0.93 <= np.mean(covered) <= 0.97


def test_no_effect_gives_a_winner_in_at_most_5_percent_of_experiments_that_the_rule_stopped():
    """2,000 experiments: at 5 % the share has a standard error of 0.5 %."""
    words = []
    for logs, same in stopped_experiments(0.006, 2_000):
        ratio = ratio_of_logs(logs)
        words.append(decide(ratio, noise_floor(ratio_of_logs(same)), "higher", ratio.p_value).word)
    assert sum(word in (Word.FASTER, Word.SLOWER) for word in words) / len(words) <= 0.05


@pytest.fixture
def planned(tmp_path):
    def plan(*arms, rounds=None, until=ONE_PERCENT):
        file = tmp_path / "a.yaml"
        file.write_text(
            "name: smoke\nmodel: tiny-qwen3\nrounds: 3\nwarmup_rounds: 1\n"
            "traffic: {num_requests: 2, prompt_tokens: 4, output_tokens: 4}\n"
        )
        options = Options(arms=arms, rounds=rounds, until=until, instrument="events")
        return make_plan([file], options)

    return plan


def paced(case, noise, limit_s=1e9, round_s=30.0, is_invalid=lambda run: False):
    """Play a case whose every run takes its part of a round; the runs that were made, and why it stopped."""
    random, now, records, made, asked = np.random.default_rng(1), [0.0], [], [], []

    def findings_of(run):
        asked.append(run.run_id)
        return [Finding(run.run_id, "foreign-load", "busy", "wait", True)] if is_invalid(run) else []

    pace = Pace(case, limit_s, lambda: now[0], findings_of)
    for run in pace.needed(case.runs(), lambda: records):
        made.append(run)
        now[0] += round_s / 3
        records.append(
            make_run(
                [make_request()],
                duration_s=float(np.exp(random.normal(0, noise))),
                case_id=case.case.case_id,
                **{name: getattr(run, name) for name in ("run_id", "arm", "round", "is_warmup", "is_aa")},
                instrument=run.instrument,
            )
        )
    assert len(asked) == len(set(asked)), "each run is judged once"
    return made, pace.stopped


def rounds_of(made):
    return [run.round for run in made if not run.is_warmup and run.instrument == "off"]


def test_a_case_stops_after_a_whole_round_and_its_instrumented_runs_are_made_all_the_same(planned):
    (case,) = planned("sync-ids", "ids").cases
    made, why = paced(case, noise=0.005)
    rounds = rounds_of(made)
    assert MIN_ROUNDS <= max(rounds) + 1 < 60 and rounds == sorted([*range(max(rounds) + 1)] * 3)
    assert why == f"after {max(rounds) + 1} rounds every interval is at most 1 % wide"
    assert [run.instrument for run in made[-2:]] == ["events", "events"]
    quiet, why = paced(case, noise=1e-6)
    assert max(rounds_of(quiet)) + 1 == MIN_ROUNDS and why.startswith("after 10 rounds every interval")


VALID = "of them without an INVALID run,"


def test_invalid_runs_are_no_rounds_and_in_no_interval_that_decides(planned):
    """Every third round has one INVALID run, far off: ten valid rounds are there after 14."""
    (case,) = planned("sync-ids", "ids").cases
    made, why = paced(case, noise=1e-6, is_invalid=lambda run: run.arm == "ids" and run.round % 3 == 0)
    assert (
        max(rounds_of(made)) + 1 == 15
        and why == f"after 15 rounds, 10 {VALID} every interval is at most 1 % wide"
    )
    made, why = paced(case, noise=1e-6, limit_s=999.0, is_invalid=lambda run: run.arm == "ids")
    assert why == f"after 32 rounds, 0 {VALID} its share of the budget, 999 s, was spent"


def test_an_experiment_judges_a_run_by_what_it_stored(planned, tmp_path):
    plan = planned("sync-ids", "ids")
    folder = RunFolder.create(tmp_path, "paced")
    requests = [make_request(sent_ms=5000.0, first_ms=5001.0, token_ms=(5010.0,), num_prompt_tokens=1)]
    folder.write_requests("r0", requests)
    folder.write_steps("r0", [make_step(0, 5001.0, 5010.0, num_rows=1, num_tokens=1)])
    nothing = (None, Stop(), lambda _: None, lambda _: None)
    record = make_run(requests, run_id="r0")
    judged = Experiment(plan, folder.path, *nothing)._findings_of(record)
    assert [one.rule for one in judged] == ["off-schedule"]
    assert Experiment(plan, None, *nothing)._findings_of(record) == ()
    (folder.path / "steps" / "r0.parquet").write_bytes(b"cut short")
    assert Experiment(plan, folder.path, *nothing)._findings_of(record) == ()


def test_a_spent_budget_ends_a_case_whose_intervals_are_still_wide(planned):
    (case,) = planned("sync-ids", "ids").cases
    made, why = paced(case, noise=1.0, limit_s=199.0)
    assert max(rounds_of(made)) + 1 == 5  # a warm-up of 20 s, then rounds of 30 s until 170 s
    assert why == "after 5 rounds its share of the budget, 199 s, was spent"
    made, why = paced(case, noise=1.0, limit_s=0.0)
    assert max(rounds_of(made)) + 1 == 1


def test_rounds_are_the_most_there_may_be(planned):
    (case,) = planned("sync-ids", "ids", rounds=12).cases
    made, why = paced(case, noise=1.0)
    assert max(rounds_of(made)) + 1 == 12 and why is None
    with pytest.raises(SuiteError, match="--rounds 9: with --until-precision it is the most rounds"):
        planned("sync-ids", "ids", rounds=9)


def test_a_trace_with_a_process_is_judged_as_that_process_in_the_plan_and_round_by_round(tmp_path):
    """The latencies of these runs never vary, their throughput does."""
    (tmp_path / "trace.csv").write_text(
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n4,4,8,1.0\n"
    )

    def case_of(process):
        file = tmp_path / "a.yaml"
        arrivals = f"{{kind: trace, path: trace.csv, process: {process}}}"
        file.write_text(f"name: smoke\nmodel: tiny-qwen3\ntraffic: {{arrivals: {arrivals}}}\n")
        plan = make_plan([file], Options(arms=("sync-ids", "ids"), rounds=12, until=ONE_PERCENT))
        (stored,) = plan.document()["cases"]
        return plan.cases[0], stored["primary_metrics"]

    case, metrics = case_of("{kind: closed_loop, concurrency: 1}")
    assert metrics == ["output_throughput"] and paced(case, noise=1.0)[1] is None
    case, metrics = case_of("{kind: constant, rate: 4}")
    assert metrics == ["median_e2e_ms", "median_itl_ms"]
    assert paced(case, noise=1.0)[1].startswith("after 10 rounds every interval")


def test_where_nothing_is_compared_the_scenario_says_how_many_rounds(planned):
    for arms in (("sync-ids",), ("sync-ids", "stale")):
        (case,) = planned(*arms).cases
        assert case.rounds == 3 and case.until is None
        made, why = paced(case, noise=0.0)
        assert max(rounds_of(made)) + 1 == 3 and why is None
    (checked,) = for_check(planned("sync-ids", "ids")).cases
    assert checked.until is None


def test_without_the_option_nothing_is_dropped(planned):
    (case,) = planned("sync-ids", "ids", rounds=30, until=None).cases
    assert len(paced(case, noise=0.0, limit_s=0.0)[0]) == len(case.runs())


def test_options_are_read_and_stored(planned):
    assert read_precision(None, None) is None and read_precision(None, "10m") is None
    assert read_precision("1%", None) == Precision(1.0, 600.0)
    assert read_precision("0.5 %", "90s") == Precision(0.5, 90.0)
    assert read_precision("1%", "1.5h").budget_s == 5400.0
    invocation = planned("sync-ids", "ids").document()["invocation"]
    assert (invocation["until_precision_percent"], invocation["budget_s"]) == (1.0, 600.0)


@pytest.mark.parametrize(
    ("percent", "budget", "words"),
    [
        (
            "1",
            None,
            "--until-precision 1: it must be a percentage above 0 and at most 100, with its sign: write for",
        ),
        ("0%", None, "above 0"),
        ("-1%", None, "above 0"),
        ("nan%", None, "above 0"),
        (
            "1%",
            "10",
            "--budget 10: it must be a duration above 0 and at most 2700h, with its unit: write for instance",
        ),
        ("1%", "0m", "above 0"),
        ("200%", None, "--until-precision 200%: it must be a percentage above 0 and at most 100"),
        ("1e-3%", None, "with its sign"),
        ("", None, "--until-precision '': it must be"),
        ("1%", "2701h", "at most 2700h"),
        ("1%", " ", "--budget '': it must be"),
    ],
)
def test_options_that_mean_nothing_are_refused(percent, budget, words):
    with pytest.raises(SuiteError) as error:
        read_precision(percent, budget)
    assert words in str(error.value)


def test_a_percentage_is_of_the_ratio_from_end_to_end():
    assert Precision(3.0).is_reached([Interval(0.0, math.log(1.0299))], 10)
    assert not Precision(3.0).is_reached([Interval(0.0, math.log(1.0301))], 10)
