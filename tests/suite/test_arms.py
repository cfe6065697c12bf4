"""Arms as users name them."""

import pytest

from runner.inputs.arms import ARMS
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3
from suite.arms import arm_lines, choices_text, named_arm, why_not
from suite.errors import SuiteError
from suite.traffic import Traffic

TRAFFIC = Traffic.model_validate({"num_requests": 1, "prompt_tokens": 1, "output_tokens": 1})


@pytest.mark.parametrize("name", list(ARMS))
def test_a_preset_is_found_by_name_and_its_choices_name_the_same_arm(name: str) -> None:
    arm = named_arm(name)
    assert arm is ARMS[name]
    if arm.choices is not None and arm.scheduling != "auto":
        spelt = named_arm(choices_text(arm))
        assert (spelt.scheduling, spelt.choices, spelt.is_right) == (
            arm.scheduling,
            arm.choices,
            arm.is_right,
        )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("refrsh", "did you mean refresh?"),
        ("FUSED", "did you mean fused?"),
        ("nothing-like-it", "or four choices such as async/all/always/where"),
        ("async/all/always", "presets: ids"),
        ("async/all/always/blend", "none|where|index|overlay|fused"),
        ("async/rows/derived/where", "means nothing: flags derived"),
    ],
)
def test_an_unknown_arm_is_refused_with_what_is_near(name: str, words: str) -> None:
    with pytest.raises(SuiteError) as caught:
        named_arm(name)
    assert words in str(caught.value) and name in str(caught.value)


def test_an_arm_that_does_not_fit_the_model_says_why() -> None:
    for name, model, kind in (("text", TINY_GEMMA3_VL, "multimodal"), ("overwrite", TINY_QWEN3, "text")):
        reason = why_not(ARMS[name], model, TRAFFIC)
        assert reason is not None and f"arm {name} is for" in reason and f"is a {kind} model" in reason
    assert why_not(ARMS["refresh"], TINY_QWEN3, TRAFFIC) is None


def test_every_preset_has_a_line_with_all_there_is_to_know() -> None:
    lines = arm_lines()
    assert list(lines) == list(ARMS)
    assert lines["refresh"] == (
        "async/all/always/where | from vLLM #45673 | held to vLLM 0.32.0 | right | any model | "
        "async; the flags are uploaded on every step, rows only on steps that are given some"
    )
    assert lines["stale"].split(" | ")[2:4] == ["held to no vLLM version", "WRONG"]
    assert lines["ids"].startswith("async, token ids | from vLLM |")
    assert "| text models |" in lines["text"]
    assert all(len(line.splitlines()) == 1 for line in lines.values())
