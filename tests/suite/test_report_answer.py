"""What the first screen says: which arm, how sure, what async, flags and merge cost, what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import report_fabrication as fabricate
import report_situations as situations
from cost_fabrication import line, span_row, step_costs, with_costs

from suite.amplification import AmplifiedCost
from suite.cost_time import cost_time_s
from suite.ratios import Interval, Ratio
from suite.report.answer import points
from suite.report.choice import ceiling_arms
from suite.report.comparison_text import size_text
from suite.report.cost_hint import cost_time
from suite.report.data import ReportData, ScenarioData, Series, from_loaded, scenario_file
from suite.report.point import Point
from suite.validity.rule import Finding
from suite.verdict import Floor, Word


def only(data: ReportData) -> ScenarioData:
    (scenario,) = data.scenarios
    return scenario


def by_label(scenario: ScenarioData) -> dict[str, Point]:
    found = points(scenario)
    return {point.label: replace(point, text=point.text.replace("\u00a0", " ")) for point in found}


@pytest.fixture(scope="module")
def arms() -> ScenarioData:
    return only(situations.arms())


@pytest.fixture(scope="module")
def sweep() -> ScenarioData:
    return only(situations.sweep())


def judged(scenario: ScenarioData, **words: Word) -> ScenarioData:
    """The same comparisons with other words, by arm."""
    changed = tuple(
        replace(
            one, verdict=replace(one.verdict, word=words.get(one.arm.replace("-", "_"), one.verdict.word))
        )
        for one in scenario.comparisons
    )
    return replace(scenario, comparisons=changed)


def which(scenario: ScenarioData) -> Point:
    return by_label(scenario)["Which arm"]


def test_the_arm_known_to_be_fastest_is_named_first_with_its_evidence(arms: ScenarioData) -> None:
    told = by_label(arms)
    assert told["Which arm"].text.startswith("Use skip: known to be faster than gated in output throughput")
    assert told["Which arm"].mark == "right"
    assert told["How sure"].text.startswith("skip is faster than gated: output throughput +22")
    assert "n = 6 rounds; noise floor 0.50 %" in told["How sure"].text
    assert "is found in 4 of 5 such experiments, a smaller one less often." in told["How sure"].text
    assert "No rule of validity was broken in " in told["How sure"].text
    broken = Finding("r", "drift", "it drifted", "warm up", True)
    doubted = tuple(replace(one, findings=(broken,)) for one in arms.series)
    assert "No rule" not in by_label(replace(arms, series=doubted))["How sure"].text


def test_arms_whose_intervals_overlap_are_not_told_apart(arms: ScenarioData) -> None:
    best = next(one for one in arms.comparisons if one.arm == "skip")
    close = tuple(replace(one, ratio=best.ratio) if one.arm == "refresh" else one for one in arms.comparisons)
    assert (
        "; which of refresh and skip is the fastest one cannot tell."
        in which(replace(arms, comparisons=close)).text
    )
    assert ", by less." in which(arms).text


def test_where_no_arm_is_known_to_be_faster_the_reference_stays_or_one_cannot_tell(
    arms: ScenarioData,
) -> None:
    slower = judged(arms, refresh=Word.SLOWER, async_rows=Word.SLOWER, skip=Word.SLOWER)
    assert which(slower).text.startswith(
        "Stay with gated: refresh, async-rows and skip are known to be slower"
    )
    equal = judged(arms, refresh=Word.EQUAL, async_rows=Word.EQUAL, skip=Word.EQUAL)
    assert which(equal).text.startswith("Any of them")
    unclear = judged(arms, refresh=Word.CANNOT_TELL, async_rows=Word.EQUAL, skip=Word.CANNOT_TELL)
    assert which(unclear).text.startswith("Cannot tell: no arm is known to be faster than gated.")
    assert "Equal within the noise floor: async-rows." in which(unclear).text
    assert which(unclear).mark == "doubt"
    assert "--rounds 12" in by_label(unclear)["How sure"].text


def test_over_a_sweep_the_answer_counts_cases(sweep: ScenarioData) -> None:
    assert which(sweep).text.startswith("Use ids, nowhere known to be slower than sync-ids.")
    assert "Of 25 cases" in which(sweep).text and "ids faster in 25" in which(sweep).text
    first = sweep.comparisons[0]
    mixed = (replace(first, verdict=replace(first.verdict, word=Word.SLOWER)), *sweep.comparisons[1:])
    assert which(replace(sweep, comparisons=mixed)).text.startswith("It depends on the case.")


def of_two_metrics(scenario: ScenarioData, *words: tuple[str, Word, Word]) -> ScenarioData:
    """As of an open loop: (arm, its word in E2E latency, its word in inter-token latency)."""
    made = []
    for place, metric in enumerate(("median_e2e_ms", "median_itl_ms")):
        for arm, *both in words:
            one = next(one for one in scenario.comparisons if one.arm == arm)
            verdict = replace(one.verdict, word=both[place])
            made.append(replace(one, metric=metric, verdict=verdict, ratio=of_latency(one.ratio)))
    return replace(scenario, comparisons=tuple(made))


def of_latency(ratio: Ratio) -> Ratio:
    assert ratio.interval is not None and ratio.mean_log is not None
    ends = Interval(-ratio.interval.high, -ratio.interval.low)
    return replace(ratio, mean_log=-ratio.mean_log, interval=ends)


FASTER, SLOWER, EQUAL, UNKNOWN = Word.FASTER, Word.SLOWER, Word.EQUAL, Word.CANNOT_TELL


def test_an_arm_that_is_slower_in_another_metric_is_not_the_one_to_use(arms: ScenarioData) -> None:
    point = which(of_two_metrics(arms, ("skip", FASTER, SLOWER), ("refresh", EQUAL, EQUAL)))
    assert point.mark == "doubt"
    assert point.text == (
        "It depends: skip is faster in median E2E latency, slower in median inter-token latency, "
        "held against gated."
    )
    point = which(of_two_metrics(arms, ("skip", FASTER, SLOWER), ("refresh", FASTER, UNKNOWN)))
    assert point.mark == "right"
    assert point.text.startswith(
        "Use refresh: known to be faster than gated in median E2E latency. Of others it depends: skip is"
    )


@pytest.mark.parametrize(
    ("in_e2e", "in_itl", "told"),
    [
        (SLOWER, UNKNOWN, "Stay with gated: skip is known to be slower."),
        (SLOWER, FASTER, "It depends: skip is faster in median inter-token latency, slower in median E2E"),
        (EQUAL, EQUAL, "Any of them: skip is equal to gated"),
        (EQUAL, UNKNOWN, "Cannot tell: no arm is known to be faster than gated in median E2E latency."),
        (
            UNKNOWN,
            FASTER,
            "Cannot tell: no arm is known to be faster than gated in median E2E latency. Known",
        ),
    ],
)
def test_every_metric_that_decides_is_asked(
    arms: ScenarioData, in_e2e: Word, in_itl: Word, told: str
) -> None:
    point = which(of_two_metrics(arms, ("skip", in_e2e, in_itl)))
    assert point.text.startswith(told)
    assert point.mark == ("right" if told.startswith(("Stay", "Any")) else "doubt")


def test_over_a_sweep_an_arm_slower_in_another_metric_depends_on_the_case(sweep: ScenarioData) -> None:
    last = sweep.comparisons[-1]
    slower = replace(last, metric="median_itl_ms", verdict=replace(last.verdict, word=SLOWER))
    point = which(replace(sweep, comparisons=(*sweep.comparisons, slower)))
    assert point.text.startswith("It depends on the case.") and point.mark == "doubt"
    assert "ids faster in 25, slower in median inter-token latency in 1" in point.text


def sure(scenario: ScenarioData) -> str:
    return by_label(scenario)["How sure"].text


def test_the_evidence_is_of_the_arm_named_in_the_metric_that_decides(arms: ScenarioData) -> None:
    # refresh gains less than skip, and is the one to use; in the other metric it gains most.
    words = (("skip", FASTER, SLOWER), ("refresh", FASTER, FASTER), ("async-rows", UNKNOWN, FASTER))
    told = sure(of_two_metrics(arms, *words))
    assert told.startswith("refresh is faster than gated: median E2E latency")


def test_the_smallest_effect_is_the_worst_of_the_metric_that_decides(arms: ScenarioData) -> None:
    scenario = of_two_metrics(arms, ("skip", FASTER, EQUAL), ("refresh", EQUAL, EQUAL))
    floors = {("skip", "median_e2e_ms"): 0.01, ("refresh", "median_e2e_ms"): 0.05}
    changed = [
        replace(one, floor=Floor(floors.get((one.arm, one.metric), 0.2), 5)) for one in scenario.comparisons
    ]
    worst = next(one for one in changed if one.floor.value == 0.05).smallest_effect
    assert worst is not None and 0.05 < worst < 0.1
    told = sure(replace(scenario, comparisons=tuple(changed)))
    assert f"{size_text(worst)} of median E2E latency is found in 4 of 5".replace("\u00a0", " ") in told


def test_a_ceiling_is_no_evidence_and_sets_no_smallest_effect() -> None:
    scenario = supplied_to("gated", "refresh")
    held = [one for one in scenario.comparisons if one.arm == "refresh"]
    ceiling = replace(held[0], arm="ids", floor=Floor(0.4, 5))
    few = replace(held[0], verdict=replace(held[0].verdict, word=UNKNOWN))
    told = sure(replace(scenario, comparisons=(few, ceiling)))
    assert told.startswith("Whether refresh is faster or slower than gated")
    assert few.smallest_effect is not None
    assert f"{size_text(few.smallest_effect)} of output".replace("\u00a0", " ") in told


def supplied_to(*arms: str) -> ScenarioData:
    loaded = fabricate.loaded(arms=("gated", "refresh", "ids"), num_rounds=5)
    for run in loaded.runs:
        frame = loaded.request_frames[run.run_id]
        loaded.request_frames[run.run_id] = frame.assign(num_supplied_tokens=9 if run.arm in arms else 0)
    return only(situations.compared(loaded))


def test_an_arm_to_use_is_in_doubt_where_the_rounds_of_an_arm_broke_a_rule(arms: ScenarioData) -> None:
    def broken(rule: str) -> ScenarioData:
        finding = Finding("r", rule, "it went up by 25 %", "warm up", True)
        doubted = (replace(one, findings=(finding,)) if one.arm == "gated" else one for one in arms.series)
        return replace(arms, series=tuple(doubted))

    assert which(broken("drift")).mark == "doubt"
    assert which(broken("drift")).text.endswith("In doubt: drift (see Beware).")
    told = by_label(broken("drift"))["Beware"].text
    assert told.startswith("1 arm in doubt: drift (gated: it went up by 25 %)")
    assert which(broken("foreign-load")).mark == which(arms).mark == "right"


def with_findings(rules: dict[str, str]) -> ScenarioData:
    """Two rounds of one arm; run_id -> the rule it broke, by its place."""
    loaded = fabricate.loaded(num_rounds=2, has_warmup=False)
    findings = [
        {"run_id": loaded.runs[int(place)].run_id, "rule": rule, "message": "", "remedy": ""}
        for place, rule in rules.items()
    ]
    loaded.summary = {"findings": findings}
    return only(from_loaded(loaded))


def test_a_finding_about_all_rounds_makes_no_run_invalid() -> None:
    told = by_label(with_findings({"0": "drift"}))["Beware"].text
    assert told == "1 arm in doubt: drift; see below."
    told = by_label(with_findings({"0": "drift", "1": "foreign-load"}))["Beware"].text
    assert told == "1 run INVALID (foreign-load), 1 arm in doubt: drift; see below."


def test_a_run_that_failed_is_counted_once_and_as_that() -> None:
    loaded = fabricate.loaded(num_rounds=2)
    loaded.runs += fabricate.all_failed().runs
    loaded.summary = {
        "findings": [
            {"run_id": run.run_id, "rule": "run-failed", "message": "", "remedy": ""}
            for run in loaded.runs
            if not run.is_completed
        ]
    }
    assert by_label(only(from_loaded(loaded)))["Beware"].text == "3 runs failed; see below."


@pytest.mark.parametrize("name", sorted(situations.SITUATIONS.keys() - {"large", "hostile"}))
def test_no_point_says_its_label_twice(name: str) -> None:
    for scenario in situations.SITUATIONS[name]().scenarios:
        assert [point.label for point in points(scenario) if point.text.startswith(point.label)] == []


def two_of_eight_invalid() -> ScenarioData:
    """In two of eight rounds a run of either arm is INVALID, each for its own rule."""
    return of_invalid(8, {("sync-ids", 2): "foreign-load", ("ids", 5): "stolen-time"})


def of_invalid(num_rounds: int, broke: dict[tuple[str, int], str]) -> ScenarioData:
    """Two arms; (arm, round) -> the rule it broke."""
    loaded = fabricate.loaded(arms=("sync-ids", "ids"), num_rounds=num_rounds, has_warmup=False)
    loaded.summary = {
        "findings": [
            {"run_id": run.run_id, "rule": rule, "message": "", "remedy": "", "is_timing": True}
            for run in loaded.runs
            if (rule := broke.get((run.arm, run.round)))
        ]
    }
    return only(situations.compared(loaded))


def test_the_answer_says_how_many_rounds_are_left_of_how_many_and_why() -> None:
    told = by_label(two_of_eight_invalid())
    assert "n = 6 of 8 rounds: 2 INVALID (foreign-load, stolen-time)" in told["How sure"].text
    one = with_findings({"1": "foreign-load"})
    assert "n = 1 of 2 rounds: 1 INVALID (foreign-load)" in by_label(one)["Speed"].text
    assert "n = 2 rounds)" in by_label(with_findings({"1": "drift"}))["Speed"].text


def test_where_too_few_rounds_are_left_it_is_said_of_how_many_and_why() -> None:
    told = by_label(of_invalid(5, {("sync-ids", 2): "foreign-load"}))["How sure"].text
    assert "4 rounds, at least 5 are needed; 1 of 5 rounds INVALID (foreign-load)." in told


def test_a_round_left_out_for_one_arm_is_no_round_that_only_the_other_has() -> None:
    (one, *_) = two_of_eight_invalid().comparisons
    assert (one.ratio.num_rounds, one.ratio.notes) == (6, ())
    assert one.document()["notes"] == ["2 of 8 rounds INVALID (foreign-load, stolen-time)"]


def test_only_what_makes_a_run_invalid_is_why_it_is() -> None:
    scenario = with_findings({"0": "foreign-load", "1": "stolen-time"})
    (one,) = scenario.series
    drift = replace(one.findings[0], rule="drift")
    told = replace(one, findings=(drift, *one.findings)).reason("output_throughput")
    assert told == "every round is INVALID: foreign-load, stolen-time"


def supplied_only_to(arm: str) -> ScenarioData:
    """Two arms, of which one is given embeddings."""
    loaded = fabricate.loaded(arms=("sync-ids", "refresh"), num_rounds=5)
    for run in loaded.runs:
        frame = loaded.request_frames[run.run_id]
        loaded.request_frames[run.run_id] = frame.assign(num_supplied_tokens=9 if run.arm == arm else 0)
    return only(situations.compared(loaded))


def test_an_arm_that_is_given_token_ids_is_a_ceiling_and_never_the_choice() -> None:
    scenario = supplied_only_to("refresh")
    assert ceiling_arms(scenario) == {"sync-ids"}
    assert "held against sync-ids, which takes token ids" in which(scenario).text
    assert "sync-ids is a ceiling" in by_label(scenario)["How sure"].text
    assert "Price of disabling async" not in by_label(scenario)
    assert ceiling_arms(supplied_only_to("none of them")) == frozenset()


def test_the_price_of_disabling_async_is_split_in_overlap_and_copy(arms: ScenarioData) -> None:
    told = by_label(arms)["Price of disabling async"].text
    assert told == (
        "On decode steps disabling async costs 15.0 % [14.8, 15.2] of throughput "
        "(x 0.91 by lost overlap, x 0.93 by the embedding copy that sync repeats every step; n = 5 rounds)."
    ).replace("x 0", "\N{MULTIPLICATION SIGN} 0")


def test_without_equal_steps_the_price_is_that_of_the_arms_own_comparison(arms: ScenarioData) -> None:
    told = by_label(replace(arms, attribution=()))["Price of disabling async"].text
    assert told.startswith("Without async (gated against refresh): output throughput -13.")
    unjudged = tuple(one for one in arms.comparisons if one.arm != "refresh")
    point = by_label(replace(arms, attribution=(), comparisons=unjudged))["Price of disabling async"]
    assert point.mark == "doubt" and point.command.endswith("--arms gated,refresh --rounds 10")


def ran_async(scenario: ScenarioData, arm: str) -> ScenarioData:
    """As on a model that the gate says nothing about."""

    def changed(one: Series) -> Series:
        records = (record.model_copy(update={"scheduling": "async"}) for record in one.records)
        return replace(one, records=tuple(records))

    return replace(
        scenario,
        series=tuple(changed(one) if one.arm == arm else one for one in scenario.series),
        attribution=(),
    )


def test_a_gated_arm_that_ran_async_is_no_price_of_disabling_async(arms: ScenarioData) -> None:
    text_model = ran_async(arms, "gated")
    told = (
        "gated ran async: not gated for this model (the gate bars async only from multimodal models with "
        "prompt_embeds), so async was never disabled."
    )
    for one in (text_model, replace(text_model, comparisons=())):
        point = by_label(one)["Price of disabling async"]
        assert (point.text, point.mark, point.command) == (told, "doubt", "")


def test_of_two_pairs_the_one_that_is_not_gated_is_left_out() -> None:
    scenario = only(situations.compared(fabricate.loaded(arms=("gated", "refresh", "sync-ids", "ids"))))
    held = next(one for one in scenario.comparisons if one.arm == "ids")
    scenario = replace(scenario, comparisons=(*scenario.comparisons, replace(held, reference="sync-ids")))
    told = by_label(ran_async(scenario, "gated"))["Price of disabling async"].text
    assert "sync-ids against ids" in told
    assert told.endswith("so async was never disabled.")
    assert "gated against refresh" not in told


def test_a_line_of_the_attribution_that_is_not_decided_is_told_marked_doubt(arms: ScenarioData) -> None:
    lines = (
        line("flag upload", "async-rows", "async-fill", 0.0004, Word.CANNOT_TELL),
        line("masked merge", "async-fill", "skip", 0.002, Word.CANNOT_TELL),
    )
    told = by_label(replace(without_bills(arms), attribution=lines))
    for label, change in (("Flag upload", "+0.04 %"), ("Masked merge", "+0.20 %")):
        assert told[label].text.startswith(f"{change} of the time of a decode step (")
        assert "cannot tell" in told[label].text
        assert (told[label].mark, told[label].command) == ("doubt", "")


def test_the_flag_upload_has_microseconds_interval_share_and_rounds(arms: ScenarioData) -> None:
    told = by_label(arms)
    assert told["Flag upload"].text == (
        "3.10 µs a decode step (95 % interval 2.40 to 3.80 µs, 0.042 % of it, n = 12 rounds); "
        "cannot tell of a mixed step, at most 5.00 µs (n = 12 rounds) (arm refresh)."
    )
    assert told["Masked merge"].text.startswith(
        "41.0 µs a decode step (95 % interval 38.0 to 44.0 µs, 0.56 % of it"
    )
    assert told["Masked merge"].text.endswith("arm skip does without flags and merge.")


def without_bills(scenario: ScenarioData) -> ScenarioData:
    return replace(scenario, series=tuple(replace(one, bill=None) for one in scenario.series))


def test_the_time_that_cost_takes_is_told_from_the_runs_that_were_made() -> None:
    loaded = fabricate.loaded(cases=("a", "b"), arms=("ids", "refresh"), num_rounds=3)
    for place, run in enumerate(loaded.runs):
        seconds = 0.5 if run.arm == "refresh" else 9.0
        loaded.runs[place] = run.model_copy(update={"duration_s": seconds})
    scenario = only(from_loaded(loaded))
    assert cost_time(scenario) == "at most about 4\u00a0min"  # two budgets: no run tells the spans of a step
    rows = (span_row("merge"), span_row("upload.is_token_ids"), span_row("forward"))
    series = tuple(with_costs(one, step_costs(rows)) for one in scenario.series)
    # 2 first runs; in each of 20 rounds one that repeats each span and one that repeats none
    assert cost_time_s(0.5, 2) == 0.5 * (2 + 20 * 3)
    assert cost_time(replace(scenario, series=series)) == f"about {70}\u00a0s"
    assert cost_time(replace(scenario, series=())) == ""


def test_a_flag_upload_that_was_not_measured_says_so_and_gives_the_command(arms: ScenarioData) -> None:
    point = by_label(replace(without_bills(arms), file="scenarios/mine.yaml"))["Flag upload"]
    assert point.text == "No arm uploads flags here: no request brings embeddings."
    loaded = fabricate.loaded(arms=("refresh",), num_rounds=2)
    for frame in loaded.step_frames.values():
        frame["bytes.is_token_ids"] = 8
    loaded.environment = {"command_line": "python -m suite run a/other.yaml deep/smoke.yaml --rounds 2"}
    told = by_label(only(from_loaded(loaded)))
    assert told["Flag upload"].text == (
        "Not timed; refresh uploads 8 B a decode step (mean). To measure it, at most about 2 min:"
    )
    assert told["Flag upload"].command == "python -m suite cost deep/smoke.yaml"
    assert told["Masked merge"].command == told["Flag upload"].command


def test_a_bill_without_a_whole_round_tells_nothing(arms: ScenarioData) -> None:
    def emptied(line: AmplifiedCost) -> AmplifiedCost:
        return replace(line, cost=None)

    series = tuple(
        replace(one, bill=replace(one.bill, lines=tuple(map(emptied, one.bill.lines)))) if one.bill else one
        for one in arms.series
    )
    point = by_label(replace(arms, series=series))["Flag upload"]
    assert point.mark == "doubt" and "no whole round" in point.text


def test_a_bill_made_beside_a_busy_neighbour_is_in_doubt(arms: ScenarioData) -> None:
    series = tuple(
        replace(one, bill=replace(one.bill, busy="others used the machine")) if one.bill else one
        for one in arms.series
    )
    told = by_label(replace(arms, series=series))
    assert told["Flag upload"].mark == "doubt"
    assert told["Flag upload"].text.endswith("(arm refresh). Others used the machine.")
    assert by_label(arms)["Flag upload"].mark == ""


def test_the_folder_of_suite_cost_says_what_it_is_and_that_its_tokens_are_right() -> None:
    told = by_label(only(situations.cost_folder()))
    assert told["What this is"].text.endswith("2 of 3 lines decided. No arms were compared.")
    assert told["Flag upload"].text.startswith("3.10 µs")
    assert told["Tokens"].mark == "right" and "All 576 output tokens" in told["Tokens"].text


def test_goodput_stands_in_the_answer_with_its_gates_and_n() -> None:
    loaded = fabricate.loaded(num_rounds=3)
    loaded.config = [{"name": "smoke", "goodput": {"ttft": 200.0, "tpot": None, "e2el": 900.0}}]
    for index, run in enumerate(loaded.runs):
        good = run.metrics["request_goodput"].model_copy(update={"value": 20.5 + index, "reason": None})
        loaded.runs[index] = run.model_copy(update={"metrics": {**run.metrics, "request_goodput": good}})
    told = by_label(only(from_loaded(loaded)))["Also"].text
    assert told == "Goodput under ttft 200 ms, e2el 900 ms: median 22.50 req/s (n = 3 rounds)."


def test_wrong_tokens_stand_before_any_speed() -> None:
    loaded = fabricate.loaded(num_rounds=2)
    wrong = loaded.runs[-1].tokens
    assert wrong is not None
    changed = wrong.model_copy(update={"num_wrong": 1, "num_right": wrong.num_right - 1})
    loaded.runs[-1] = loaded.runs[-1].model_copy(update={"tokens": changed})
    first = points(only(from_loaded(loaded)))[0]
    assert first.label == "Tokens" and first.mark == "wrong"


@pytest.mark.parametrize(
    ("command_line", "file"),
    [
        ("python -m suite run scenarios/smoke.yaml", "scenarios/smoke.yaml"),
        ("python -m suite run a.yaml smoke.yml", "smoke.yml"),
        ("python -m suite run scenarios/", "SCENARIO"),
        ("", "SCENARIO"),
    ],
)
def test_the_file_of_a_scenario_is_taken_from_the_command(command_line: str, file: str) -> None:
    assert scenario_file(command_line, "smoke") == file


def test_arms_stand_in_the_order_of_the_scenario_whatever_order_they_ran_in() -> None:
    loaded = fabricate.loaded(arms=("skip", "gated", "refresh"), num_rounds=1)
    loaded.config = [{"name": "smoke", "arms": ["gated", "refresh", "skip"]}]
    assert [one.arm for one in from_loaded(loaded).series] == ["gated", "refresh", "skip"]
