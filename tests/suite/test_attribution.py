"""The attribution table from runs with known step times: ratios, verdicts, and who is left out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import make_run, make_step

from runner.inputs.arms import ARMS
from runner.measure import StepRecord
from suite.amplification import AmplifiedCost, CommandTimes, Estimate
from suite.attribution import (
    CEILING,
    NOT_GATED,
    ONE_CHOICE,
    PRICE,
    PRICE_FACTORS,
    SAME_COMMANDS,
    SUPPLIES_ROWS,
    SWITCH,
    WRONG_TOKENS,
    Line,
    Pair,
    attribution,
    preset_name,
    time_per_token,
)
from suite.bill import ArmBill
from suite.checks import Finding
from suite.ratios import MIN_ROUNDS
from suite.record import RunRecord, Status, StepListRecord
from suite.report.attribution_tables import table
from suite.report.attribution_text import lines as text_lines
from suite.report.data import ScenarioData
from suite.store import to_json
from suite.verdict import NO_FLOOR, Word

MS = 1_000_000
DECODE_TOKENS, MIXED_TOKENS = 16, 96
# ms a step of each arm; a lead-in step comes first and takes 1,000 ms, whatever the arm.
DECODE_MS: Mapping[str, float] = {
    "gated": 16.0,
    "sync-rows": 12.0,
    "async-rows": 10.0,
    "refresh": 10.5,
    "async-fill": 9.0,
    "skip": 8.0,
    "resident-where": 8.4,
    "resident": 8.1,
    "fused": 7.9,
    "ids": 7.5,
}
MIXED_MS = {arm: 3 * time for arm, time in DECODE_MS.items()}

Recorded = tuple[list[RunRecord], dict[str, Sequence[StepRecord]]]


def steps_of_times(times_ms: Mapping[str, float], supplied: int = 24) -> list[StepRecord]:
    """A lead-in step, then two decodes and a mixed step, twice. A step begins before the one before ends."""
    steps, end_ms = [make_step(0, 0, 1000, "prefill", num_tokens=64, num_supplied_rows=supplied)], 1000.0
    for number, kind in enumerate(("decode", "decode", "mixed") * 2, 1):
        tokens = DECODE_TOKENS if kind == "decode" else MIXED_TOKENS
        steps.append(make_step(number, end_ms - 2, end_ms + times_ms[kind], kind, num_tokens=tokens))
        end_ms += times_ms[kind]
    return steps


def runs_of(
    arm: str,
    decode_ms: float,
    mixed_ms: float,
    num_rounds: int = 6,
    drift: Sequence[float] = (1.0, 1.3, 0.9, 1.1, 1.5, 1.2),
    commands: Mapping[str, str] | None = None,
    supplied: int = 24,
    **changes: object,
) -> Recorded:
    """Rounds in which the machine itself drifts: every arm of a round by the same factor."""
    listed = StepListRecord(
        hash="list",
        num_steps=7,
        lead_in=((0, 1),),
        commands=commands or {"decode": f"{arm} decode", "mixed": f"{arm} mixed"},
    )
    runs, steps = [], {}
    for number in range(num_rounds):
        run_id = f"{arm}-{'aa' if changes.get('is_aa') else 'r'}{number}"
        factor = drift[number % len(drift)]
        given = {
            "arm": arm,
            "round": number,
            "scheduling": "sync" if arm in ("gated", "sync-rows", "sync-ids") else "async",
            "step_list": listed,
            "is_control": not ARMS[arm].is_right if arm in ARMS else False,
        }
        runs.append(make_run(run_id=run_id, **(given | changes)))
        steps[run_id] = steps_of_times({"decode": decode_ms * factor, "mixed": mixed_ms * factor}, supplied)
    return runs, steps


def joined(*found: Recorded) -> Recorded:
    runs = [run for one, _ in found for run in one]
    return runs, {name: steps for _, one in found for name, steps in one.items()}


def experiment(arms: Mapping[str, float] = DECODE_MS, **changes: object) -> Recorded:
    """All arms, and the A/A repeats of gated, which take 0.1 % more and less in turn."""
    ratio = [1.0, 1.3, 0.9, 1.1, 1.5, 1.2]
    again = [value * (1.001 if number % 2 else 0.999) for number, value in enumerate(ratio)]
    return joined(
        *(runs_of(arm, time, 3 * time, **changes) for arm, time in arms.items()),  # type: ignore[arg-type]
        runs_of("gated", arms.get("gated", 1), 3 * arms.get("gated", 1), drift=again, is_aa=True, **changes),  # type: ignore[arg-type]
    )


def table_of(
    recorded: Recorded, findings: Sequence[Finding] = (), bills: Sequence[ArmBill] = ()
) -> list[Line]:
    runs, steps = recorded
    return list(attribution(runs, steps.__getitem__, findings, bills))


def line_of(lines: Sequence[Line], name: str, kind: str = "decode", over: str | None = None) -> Line:
    (found,) = (
        line for line in lines if (line.name, line.kind) == (name, kind) and over in (None, line.over)
    )
    return found


# ---- the table itself


@pytest.mark.parametrize("pair", ONE_CHOICE, ids=lambda pair: pair.name)
def test_every_line_but_those_against_ids_differs_in_exactly_one_choice(pair: Pair) -> None:
    assert "ids" not in (pair.over, pair.under)
    assert len(differing(pair)) == 1


def differing(pair: Pair) -> list[str]:
    """`gated` resolves to sync on the models that it gates."""
    over, under = (ARMS[arm] for arm in (pair.over, pair.under))
    choices = [(one.choices.embeds, one.choices.flags, one.choices.merge) for one in (over, under)]
    found = [
        name
        for name, first, second in zip(("embeds", "flags", "merge"), *choices, strict=True)
        if first != second
    ]
    scheduling = [
        "sync" if (one.scheduling, one.rules) == ("auto", "gated") else one.scheduling
        for one in (over, under)
    ]
    return found + (["scheduling"] if scheduling[0] != scheduling[1] else [])


def test_the_table_has_these_lines_and_no_others() -> None:
    found = {(line.name, line.over, line.under) for line in table_of(experiment())}
    assert found == {
        ("flag upload", "async-rows", "async-fill"),
        ("masked merge", "async-fill", "skip"),
        ("merge: where over overlay", "resident-where", "resident"),
        ("merge: overlay over fused", "resident", "fused"),
        ("embedding copy under async", "refresh", "async-rows"),
        ("embedding copy under sync", "gated", "sync-rows"),
        ("overlap", "async-rows", "sync-rows"),
        ("price of disabling async", "refresh", "gated"),
        ("price of the switch", "refresh", "ids"),
        *((CEILING, arm, "ids") for arm in DECODE_MS if arm != "ids"),
    }
    price = line_of(table_of(experiment()), "price of disabling async")
    assert [(factor.over, factor.under) for factor in price.factors] == [
        ("refresh", "async-rows"),
        ("async-rows", "sync-rows"),
        ("sync-rows", "gated"),
    ]


def test_each_line_is_of_the_choice_that_its_name_tells() -> None:
    found = {pair.name: differing(pair)[0] for pair in ONE_CHOICE}
    assert found == {
        "flag upload": "flags",
        "masked merge": "flags",
        "merge: where over overlay": "merge",
        "merge: overlay over fused": "merge",
        "embedding copy under async": "embeds",
        "embedding copy under sync": "embeds",
        "overlap": "scheduling",
        "price of disabling async": "scheduling",
    }
    assert all(len(differing(pair)) == 1 for pair in PRICE_FACTORS)


def test_the_factors_of_the_price_lead_from_its_one_arm_to_the_other() -> None:
    assert (PRICE_FACTORS[0].over, PRICE_FACTORS[-1].under) == (PRICE.over, PRICE.under)
    for one, following in itertools.pairwise(PRICE_FACTORS):
        assert one.under == following.over


def test_known_step_times_come_back_as_ratios_to_a_billionth() -> None:
    lines = table_of(experiment())
    for pair in ONE_CHOICE:
        for kind in ("decode", "mixed"):
            line = line_of(lines, pair.name, kind)
            assert line.value == pytest.approx(DECODE_MS[pair.over] / DECODE_MS[pair.under], rel=1e-9)
            assert line.ratio is not None and line.ratio.num_rounds == 6
    for arm in DECODE_MS:
        if arm != "ids":
            assert line_of(lines, CEILING, over=arm).value == pytest.approx(DECODE_MS[arm] / 7.5, rel=1e-9)
    assert len({(line.name, line.kind, line.over) for line in lines}) == len(lines) == 2 * (8 + 1 + 9)


def test_the_two_kinds_of_steps_are_told_apart() -> None:
    arms = {"async-rows": (10.0, 30.0), "sync-rows": (12.0, 25.0)}
    lines = table_of(joined(*(runs_of(arm, *times) for arm, times in arms.items())))
    assert line_of(lines, "overlap", "decode").value == pytest.approx(10 / 12, rel=1e-9)
    assert line_of(lines, "overlap", "mixed").value == pytest.approx(30 / 25, rel=1e-9)


def test_time_is_from_the_end_of_a_step_to_the_end_of_the_next_and_lead_in_only_ends_one() -> None:
    steps = steps_of_times({"decode": 8.0, "mixed": 48.0})
    found = time_per_token(list(reversed(steps)), lambda step_id: step_id == 0)
    assert found == {"decode": 8.0 * MS / DECODE_TOKENS, "mixed": 48.0 * MS / MIXED_TOKENS}
    whole = time_per_token(steps)
    assert whole["prefill"] == 1000 * MS / 64
    total = whole["prefill"] * 64 + whole["decode"] * 4 * DECODE_TOKENS + whole["mixed"] * 2 * MIXED_TOKENS
    assert total == steps[-1].end_ns - steps[0].start_ns


def test_a_lead_in_step_amid_the_others_is_in_no_figure() -> None:
    steps = steps_of_times({"decode": 8.0, "mixed": 48.0})
    found = time_per_token(steps, lambda step_id: step_id in (0, 2))
    assert found == {"decode": 8.0 * MS / DECODE_TOKENS, "mixed": 48.0 * MS / MIXED_TOKENS}


# ---- the price and its factors


@settings(max_examples=100, deadline=None)
@given(
    times=st.lists(st.floats(0.1, 1e4), min_size=24, max_size=24),
    missing=st.sets(st.sampled_from([(arm, number) for arm in range(4) for number in range(6)]), max_size=4),
)
def test_the_factors_always_multiply_to_the_price(times: list[float], missing: set[tuple[int, int]]) -> None:
    names = ("refresh", "async-rows", "sync-rows", "gated")
    parts = []
    for place, arm in enumerate(names):
        runs, steps = runs_of(arm, 1.0, 3.0, drift=times[6 * place :][:6])
        left = [run for number, run in enumerate(runs) if (place, number) not in missing]
        parts.append((left, steps))
    price = line_of(table_of(joined(*parts)), PRICE.name)
    common = 6 - len({number for _, number in missing})
    assert price.ratio is not None and price.ratio.num_rounds == common
    assert [factor.name for factor in price.factors] == [pair.name for pair in PRICE_FACTORS]
    if common < MIN_ROUNDS:
        assert price.value is price.product is price.is_product is None
        return
    assert price.is_product
    product = math.prod(factor.value or math.nan for factor in price.factors)
    assert product == pytest.approx(price.value, rel=1e-9)
    assert price.product == pytest.approx(price.value, rel=1e-9)


def test_a_price_whose_factors_do_not_multiply_to_it_is_told() -> None:
    price = line_of(table_of(experiment()), PRICE.name)
    assert price.is_product and "do not multiply" not in "\n".join(text_lines([price]))
    broken = replace(price, factors=(*price.factors[:2], price.factors[0]))
    assert broken.is_product is False and broken.document()["is_product_of_factors"] is False
    assert "the factors do not multiply to it" in "\n".join(text_lines([broken]))


def test_a_price_without_all_its_arms_is_not_split_and_says_why() -> None:
    arms = {name: time for name, time in DECODE_MS.items() if name != "async-rows"}
    price = line_of(table_of(experiment(arms)), PRICE.name)
    assert price.value == pytest.approx(10.5 / 16, rel=1e-9)
    assert price.factors == () and price.note == "not split into factors: the scenario has no arm async-rows"


def test_a_factor_between_the_same_commands_is_kept_so_that_the_product_holds() -> None:
    same = {"decode": "same", "mixed": "other"}
    parts = [
        runs_of(arm, time, 3 * time, commands=same if arm in ("refresh", "async-rows") else None)
        for arm, time in DECODE_MS.items()
    ]
    lines = table_of(joined(*parts))
    alone = line_of(lines, "embedding copy under async")
    assert (alone.ratio, alone.verdict, alone.reason) == (None, Word.NONE, SAME_COMMANDS)
    price = line_of(lines, PRICE.name)
    assert price.is_product and price.factors[0].value == pytest.approx(10.5 / 10, rel=1e-9)
    assert price.factors[0].reason == "same commands: what is seen is noise"


# ---- verdicts


def test_verdicts_are_of_the_first_arm_beside_the_noise_of_one_arm_against_itself() -> None:
    lines = table_of(experiment())
    assert line_of(lines, "overlap").verdict is Word.FASTER
    assert line_of(lines, "embedding copy under sync").verdict is Word.SLOWER
    assert line_of(lines, "price of disabling async").verdict is Word.FASTER
    same = {**DECODE_MS, "async-fill": 10.0}
    assert line_of(table_of(experiment(same)), "flag upload").verdict is Word.EQUAL


def test_without_aa_rounds_no_verdict_is_given_and_the_ratio_still_is() -> None:
    found = joined(*(runs_of(arm, time, 3 * time) for arm, time in DECODE_MS.items()))
    line = line_of(table_of(found), "overlap")
    assert (line.verdict, line.reason) == (Word.CANNOT_TELL, NO_FLOOR)
    assert line.value == pytest.approx(10 / 12, rel=1e-9)


def test_too_few_rounds_cannot_tell() -> None:
    line = line_of(table_of(experiment(num_rounds=4)), "overlap")
    assert line.verdict is Word.CANNOT_TELL and line.value is None
    assert line.reason == "4 rounds, at least 5 are needed"


# ---- who is left out


def test_where_both_arms_run_the_same_commands_there_is_no_ratio() -> None:
    parts = [
        runs_of(arm, DECODE_MS[arm], 30, commands={"decode": "same", "mixed": f"{arm} mixed"})
        for arm in ("async-rows", "async-fill")
    ]
    lines = table_of(joined(*parts))
    line = line_of(lines, "flag upload", "decode")
    assert (line.ratio, line.verdict, line.reason) == (None, Word.NONE, SAME_COMMANDS)
    assert line_of(lines, "flag upload", "mixed").value == pytest.approx(1.0)


def test_arms_whose_commands_are_not_known_beforehand_are_compared() -> None:
    runs, steps = joined(runs_of("async-rows", 10, 30), runs_of("sync-rows", 12, 36))
    unknown = [
        run.model_copy(update={"step_list": run.step_list.model_copy(update={"commands": {}})})
        for run in runs
        if run.step_list is not None
    ]
    lines = table_of((unknown, steps))
    assert line_of(lines, "overlap").value == pytest.approx(10 / 12)
    assert {line.kind for line in lines} == {"decode", "mixed"}


def test_an_arm_that_was_not_run_is_named() -> None:
    lines = table_of(runs_of("async-rows", 10, 30))
    assert {line.reason for line in lines if line.name == "overlap"} == {
        "n/a: the scenario has no arm sync-rows"
    }
    assert all(line.ratio is None and line.verdict is Word.NONE for line in lines)


def test_on_a_model_that_is_not_gated_its_lines_say_so() -> None:
    parts = [
        runs_of(arm, time, 3 * time, **({"scheduling": "async"} if arm == "gated" else {}))
        for arm, time in DECODE_MS.items()
    ]
    lines = table_of(joined(*parts))
    for name in ("price of disabling async", "embedding copy under sync"):
        assert line_of(lines, name).reason == NOT_GATED
    assert line_of(lines, "overlap").value == pytest.approx(10 / 12)
    assert line_of(lines, CEILING, over="gated").reason == NOT_GATED


def test_the_price_of_the_switch_is_told_only_where_no_row_is_supplied() -> None:
    lines = table_of(experiment())
    assert line_of(lines, SWITCH.name).reason == SUPPLIES_ROWS
    lines = table_of(experiment(supplied=0))
    assert line_of(lines, SWITCH.name).value == pytest.approx(10.5 / 7.5, rel=1e-9)


def test_wrong_invalid_failed_and_other_runs_never_enter() -> None:
    plain = experiment()
    expected = line_of(table_of(plain), "overlap")
    far = {"decode_ms": 500.0, "mixed_ms": 500.0, "num_rounds": 1}
    others = [
        runs_of("async-rows", **far, is_warmup=True),
        runs_of("async-rows", **far, instrument="events"),
        runs_of("async-rows", **far, repeats={"merge": 3}),
        runs_of("async-rows", **far, sync_check="warn"),
        runs_of("async-rows", **far, status=Status.FAILED),
        runs_of("async-rows", **far, step_list=None),
    ]
    for number, (runs, steps) in enumerate(others):
        for run in list(runs):
            steps[f"far-{number}"] = steps[run.run_id]
            runs[:] = [run.model_copy(update={"run_id": f"far-{number}"})]
    found = line_of(table_of(joined(*others, plain)), "overlap")
    assert found.ratio == expected.ratio and found.verdict is expected.verdict


def test_an_invalid_run_takes_its_round_out_and_one_that_left_its_list_too() -> None:
    runs, steps = experiment()
    finding = Finding("async-rows-r0", "off-schedule", "late", "mend", is_timing=True)
    of_all = Finding("async-rows-r1", "too-few-rounds", "few", "more", is_timing=True)
    line = line_of(table_of((runs, steps), [finding, of_all]), "overlap")
    assert line.ratio is not None and line.ratio.num_rounds == 5
    moved = [
        run.model_copy(update={"step_list": run.step_list.model_copy(update={"difference": "step 3"})})
        if run.run_id == "sync-rows-r2" and run.step_list
        else run
        for run in runs
    ]
    line = line_of(table_of((moved, steps), [finding]), "overlap")
    assert line.ratio is not None and line.ratio.num_rounds == 4 and line.value is None


def test_an_arm_with_a_wrong_token_in_any_run_has_no_ratio() -> None:
    runs, steps = experiment()
    warm, more = runs_of("skip", 8, 24, num_rounds=1, is_warmup=True, num_wrong=1)
    warm = [run.model_copy(update={"run_id": "warm"}) for run in warm]
    lines = table_of(([*warm, *runs], {**steps, **more}))
    line = line_of(lines, "masked merge")
    assert (line.ratio, line.verdict, line.reason) == (None, Word.NONE, WRONG_TOKENS)


def test_negative_controls_get_no_ratio_to_the_ceiling() -> None:
    lines = table_of(joined(experiment(), runs_of("stale", 5, 15)))
    line = line_of(lines, CEILING, over="stale")
    assert (line.ratio, line.reason) == (None, WRONG_TOKENS)


def test_runs_of_requests_have_no_attribution() -> None:
    runs, steps = experiment()
    plain = [run.model_copy(update={"step_list": None}) for run in runs]
    assert table_of((plain, steps)) == []


def test_an_arm_given_by_its_four_choices_is_its_preset() -> None:
    assert preset_name("async/rows/always/where") == "async-rows"
    assert preset_name("sync/all/always/where") == "sync/all/always/where"
    parts = [runs_of("async/rows/always/where", 10, 30), runs_of("sync-rows", 12, 36)]
    assert line_of(table_of(joined(*parts)), "overlap").value == pytest.approx(10 / 12, rel=1e-9)


# ---- the device fill, documents and tables


def test_the_amplified_cost_of_the_device_fill_is_told_beside_both_its_lines() -> None:
    cost = AmplifiedCost(
        span="flags",
        kind="decode",
        ks=(1, 33),
        num_steps=10,
        step_us=900.0,
        cost=Estimate(3.25, 3.0, 3.5, 6),
        times=CommandTimes(1.0, None, "no spans", None, "no spans"),
    )
    bill = ArmBill("smoke", "1234567890abcdef", "smoke", "async-fill", 6, (cost,))
    other = ArmBill("smoke", "another case", "smoke", "async-fill", 6, (cost,))
    lines = table_of(experiment(), bills=[other, bill])
    for name in ("flag upload", "masked merge"):
        assert "3.25 us a step (3 to 3.5 us), amplified" in line_of(lines, name).note
    assert "amplify" in line_of(table_of(experiment(), bills=[other]), "flag upload").note
    assert line_of(lines, "overlap").note == ""


def test_the_document_has_what_was_promised_and_is_strict_json() -> None:
    lines = table_of(experiment())
    price = line_of(lines, PRICE.name).document()
    needed = {"line", "over", "under", "kind", "ratio", "interval_low", "interval_high", "num_rounds"}
    assert needed | {"verdict", "reason", "factors"} <= price.keys()
    assert price["interval_low"] <= price["ratio"] <= price["interval_high"]  # type: ignore[operator]
    assert len(price["factors"]) == 3  # type: ignore[arg-type]
    assert json.loads(to_json([line.document() for line in lines]))
    absent = line_of(table_of(runs_of("ids", 7, 21)), "overlap").document()
    assert absent["ratio"] is absent["interval_low"] is None and absent["num_rounds"] == 0


def test_the_terminal_and_the_page_tell_every_line_with_its_reason() -> None:
    lines = table_of(experiment())
    shown = "\n".join(text_lines(lines))
    for pair in ONE_CHOICE:
        assert f"{pair.name}" in shown and f"{pair.over} / {pair.under}" in shown
    assert "x overlap" in shown and f"not told: price of the switch, refresh / ids: {SUPPLIES_ROWS}" in shown
    data = ScenarioData("smoke", "", None, (), (), attribution=tuple(lines))
    page = table(data)
    assert len(page.rows) == len(lines) + 2 * len(PRICE_FACTORS)
    assert {len(row) for row in page.rows} == {len(page.columns)}
    assert table(ScenarioData("smoke", "", None, (), ())).reason.startswith("n/a")
