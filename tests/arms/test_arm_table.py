"""The arm table, and every combination of the four choices: refused, wrong by rule, or right."""

from __future__ import annotations

from itertools import product
from typing import get_args

import numpy as np
import pytest
from arm_probes import Probe, probed
from arm_workloads import Case, Recipe, check_finished, outputs, wrong_requests

from runner.commands import Upload
from runner.config import RunnerConfig
from runner.core import RunnerError
from runner.engine import Engine
from runner.inputs.arms import (
    ARMS,
    Arm,
    Choices,
    Embeds,
    Flags,
    MergeKind,
    is_wrong_by_rule,
    legal,
    parse_arm,
)
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3

# ---- the table

PRESETS = {
    "ids": ("async", None, True, "any"),
    "sync-ids": ("sync", None, True, "any"),
    "overwrite": ("async", ("all", "with-ids", "none"), False, "multimodal"),
    "stale": ("async", ("all", "with-ids", "where"), False, "any"),
    "gated": ("auto", ("all", "always", "where"), True, "any"),
    "refresh": ("async", ("all", "always", "where"), True, "any"),
    "sync-rows": ("sync", ("rows", "always", "where"), True, "any"),
    "async-rows": ("async", ("rows", "always", "where"), True, "any"),
    "async-fill": ("async", ("rows", "fill", "where"), True, "any"),
    "skip": ("async", ("rows", "skip", "where"), True, "any"),
    "resident-where": ("async", ("resident", "derived", "where"), True, "any"),
    "resident": ("async", ("resident", "derived", "overlay"), True, "any"),
    "fused": ("async", ("resident", "derived", "fused"), True, "any"),
    "sync-fused": ("sync", ("resident", "derived", "fused"), True, "any"),
    "text": ("async", ("all", "always", "index"), True, "text"),
}


def test_the_presets_are_those_of_the_table() -> None:
    assert {
        name: (
            arm.scheduling,
            arm.choices and (arm.choices.embeds, arm.choices.flags, arm.choices.merge),
            arm.is_right,
            arm.models,
        )
        for name, arm in ARMS.items()
    } == PRESETS
    assert [name for name, arm in ARMS.items() if arm.rules == "gated"] == ["gated"]


@pytest.mark.parametrize("name", ARMS)
def test_a_preset_is_legal_and_says_what_it_is(name: str) -> None:
    arm = ARMS[name]
    assert arm.name == name
    assert arm.description
    assert arm.origin
    assert arm.held_to
    assert "\n" not in arm.description
    if arm.choices is not None:
        assert legal(arm.choices) is None
        scheduling = "sync" if arm.scheduling == "sync" else "async"
        assert arm.is_right != is_wrong_by_rule(scheduling, arm.choices)


# The two arms of an attribution line, dividend first, and the one choice they differ in.
ATTRIBUTION = [
    ("async-rows", "async-fill", "flags"),
    ("async-fill", "skip", "flags"),
    ("resident-where", "resident", "merge"),
    ("resident", "fused", "merge"),
    ("refresh", "async-rows", "embeds"),
    ("gated", "sync-rows", "embeds"),
    ("async-rows", "sync-rows", "scheduling"),
    ("refresh", "gated", "scheduling"),
    ("fused", "sync-fused", "scheduling"),
    ("ids", "sync-ids", "scheduling"),
]


def resolved(arm: Arm) -> dict[str, str]:
    """The four choices as they are on a multimodal model, where automatic gives sync under `gated`."""
    choices = arm.choices
    named = {} if choices is None else {key: getattr(choices, key) for key in ("embeds", "flags", "merge")}
    return {"scheduling": "sync" if arm.scheduling == "auto" else arm.scheduling, **named}


@pytest.mark.parametrize(("dividend", "divisor", "choice"), ATTRIBUTION)
def test_an_attribution_line_compares_two_arms_that_differ_in_one_choice(
    dividend: str, divisor: str, choice: str
) -> None:
    one, other = resolved(ARMS[dividend]), resolved(ARMS[divisor])
    assert one.keys() == other.keys()
    assert [key for key in one if one[key] != other[key]] == [choice]


# ---- names and texts of an arm


def test_the_four_choices_can_be_given_instead_of_a_name() -> None:
    assert parse_arm("refresh") is ARMS["refresh"]
    arm = parse_arm("sync/rows/fill/where")
    assert (arm.scheduling, arm.choices) == ("sync", Choices("rows", "fill", "where"))
    assert (arm.is_right, arm.models) == (True, "any")
    assert not parse_arm("async/rows/with-ids/where").is_right
    assert parse_arm("sync/all/with-ids/where").is_right
    assert not parse_arm("sync/all/always/none").is_right
    assert parse_arm("sync/all/always/index").models == "text"


@pytest.mark.parametrize(
    "text", ["", "refersh", "async", "async/all/always", "auto/all/always/where", "async/all/always/where/"]
)
def test_an_unknown_arm_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(RunnerError, match=r"async-fill.*overlay") as caught:
        parse_arm(text)
    assert repr(text) in str(caught.value)


# ---- every combination

COMBINATIONS = [
    Choices(embeds, flags, merge)
    for embeds, flags, merge in product(get_args(Embeds), get_args(Flags), get_args(MergeKind))
]
LEGAL = [
    (embeds, flags, merge)
    for embeds in ("all", "rows", "resident")
    for flags, merge in [
        ("always", "none"),
        ("with-ids", "none"),
        ("always", "index"),
        ("with-ids", "index"),
        ("always", "where"),
        ("with-ids", "where"),
        ("fill", "where"),
        ("skip", "where"),
    ]
] + [("resident", "derived", merge) for merge in ("where", "overlay", "fused")]


def test_legal_refuses_exactly_what_means_nothing_and_says_why() -> None:
    accepted = [choices for choices in COMBINATIONS if legal(choices) is None]
    assert {(c.embeds, c.flags, c.merge) for c in accepted} == set(LEGAL)
    for choices in COMBINATIONS:
        reason = legal(choices)
        if reason is not None:
            assert choices.merge in reason or choices.flags in reason
            for scheduling in ("sync", "async"):
                text = "/".join((scheduling, choices.embeds, choices.flags, choices.merge))
                with pytest.raises(RunnerError, match="means nothing"):
                    parse_arm(text)


CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=48,
    max_model_len=64,
    block_size=8,
    num_blocks=40,
    num_encoder_slots=2,
    num_resident_rows=128,
)
# Two supplied rows at the very start of the batch, so that rows 2 and 3 escape stale flags and rows 0 and 1
# do not; then a newcomer in a row that was used before.
RECIPES = (
    Recipe("pure", 2, max_tokens=6, seed=1),
    Recipe("spliced", 9, max_tokens=3, seed=2, supplied_from=4),
    Recipe("ids", 6, max_tokens=3, seed=3),
    Recipe("spliced", 5, max_tokens=3, seed=4),
    Recipe("pure", 6, max_tokens=4, seed=5),
)
TEXT = Case(TINY_QWEN3, CONFIG, RECIPES)
IMAGES = Case(
    TINY_GEMMA3_VL,
    CONFIG,
    (*RECIPES[:3], Recipe("spliced", 5, num_images=1, max_tokens=3, seed=4), *RECIPES[4:]),
)
ARM_NAMES = ["/".join((scheduling, *choices)) for scheduling in ("sync", "async") for choices in LEGAL]


def case_of(arm: Arm) -> Case:
    return TEXT if arm.models == "text" else IMAGES


@pytest.mark.parametrize("name", ARM_NAMES)
def test_a_legal_combination_is_right_or_wrong_exactly_where_its_flags_predict_it(
    name: str, devices: object
) -> None:
    arm = parse_arm(name)
    case = case_of(arm)
    device = devices("inline", case.model, case.config)
    engine = Engine(case.model, case.config, device, arm)
    with probed(engine, device) as probe:
        engine.run(case.arrivals())
    check_finished(engine)
    wrong = set(wrong_requests(engine))
    if arm.is_right:
        assert wrong == set()
        reference = Engine(case.model, case.config, device, ARMS["sync-ids"])
        reference.run(case.arrivals(prompt_embeds=False))
        assert outputs(engine) == outputs(reference)
    elif arm.choices is not None and arm.choices.merge == "none":
        assert wrong == {"r0", "r1", "r3", "r4"}, "all that supply rows, and no other"
    else:
        assert wrong == predicted_stale(probe, engine)


def predicted_stale(probe: Probe, engine: Engine) -> set[str]:
    """Requests with a token position that a merge reads a false flag for: the flags last uploaded."""
    flags = np.zeros(CONFIG.max_num_batched_tokens, np.uint8)
    found = set()
    for step, record in zip(probe.steps, engine.recorder.steps, strict=True):
        if step.has(Upload, buffer="is_token_ids"):
            flags[: step.num_tokens] = step.uploaded["is_token_ids"]
        if record.embeds_route != "merge":
            continue
        for row in step.rows:
            embeds = engine.requests[row.request_id].request.prompt.embeds
            for index in range(row.count):
                is_supplied = embeds is not None and embeds.is_supplied(row.first + index)
                if flags[row.offset + index] == is_supplied:
                    found.add(row.request_id)
    return found


def test_the_historical_bugs_are_exercised_by_this_workload(devices: object) -> None:
    """Or a wrong combination that never goes wrong would pass for a right one."""
    exercised = []
    for name in ARM_NAMES:
        arm = parse_arm(name)
        if arm.is_right or (arm.choices is not None and arm.choices.merge == "none"):
            continue
        case = case_of(arm)
        device = devices("inline", case.model, case.config)
        engine = Engine(case.model, case.config, device, arm)
        with probed(engine, device) as probe:
            engine.run(case.arrivals())
        predicted = predicted_stale(probe, engine)
        if predicted:
            assert predicted == {"r0", "r1", "r4"}
            exercised.append(name)
    # With rows resident the merge is chosen by the step, and a step with a supplied row uploads its flags.
    assert exercised == ["async/all/with-ids/where", "async/rows/with-ids/where"]
