"""Arms as a user names them: which there are, which a case can run, and a line about each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.core import RunnerError
from runner.inputs.arms import ARMS, Arm, parse_arm
from runner.models import ModelSpec
from suite.errors import SuiteError
from suite.schema import one_of
from suite.traffic import Traffic
from suite.yaml_source import show


def named_arm(name: str) -> Arm:
    """The arm of a preset's name or of four choices; SuiteError says what is wrong and what is near."""
    if "/" not in name and name not in ARMS:
        known = f"{one_of(name, ARMS)}; or four choices such as {choices_text(ARMS['refresh'])}"
        raise SuiteError(f"{show(name)} is no arm; {known}")
    try:
        return parse_arm(name)
    except RunnerError as error:
        raise SuiteError(str(error)) from None


def twice(names: Sequence[str]) -> str | None:
    """What is wrong where two names are one arm, alike or in another spelling; None where all differ."""
    seen: dict[object, int] = {}
    for index, name in enumerate(names):
        arm = named_arm(name)
        first = seen.setdefault((arm.scheduling, arm.choices, arm.rules), index)
        if first != index:
            same = "" if names[first] == name else f" ({names[first]} and {name} are the same)"
            return f"an arm stands twice{same}; name each once"
    return None


def why_not(arm: Arm, model: ModelSpec, traffic: Traffic) -> str | None:
    """Why a case cannot run an arm, with the fix; None where it can."""
    if not arm.fits(model.is_multimodal):
        kind = "multimodal" if model.is_multimodal else "text"
        return (
            f"arm {arm.name} is for {arm.models} models and {model.name} is a {kind} model: choose another "
            "arm or model"
        )
    if traffic.embeds_files and not arm.prompt_embeds:
        return (
            f"arm {arm.name} takes token ids, and the files in traffic.embeds_files hold none: choose "
            "arms with prompt_embeds, or use traffic.embeds_ratio"
        )
    return None


def arm_lines() -> Mapping[str, str]:
    """For every preset: its choices, origin, vLLM version, whether it is right, its models, what it is."""
    return {name: " | ".join(_facts(arm)) for name, arm in ARMS.items()}


def choices_text(arm: Arm) -> str:
    """ "async/all/always/where", as a scenario may write it; "async, token ids" without embeddings."""
    if arm.choices is None:
        return f"{arm.scheduling}, token ids"
    choices = arm.choices
    return "/".join((arm.scheduling, choices.embeds, choices.flags, choices.merge))


def _facts(arm: Arm) -> tuple[str, ...]:
    return (
        choices_text(arm),
        f"from {arm.origin}",
        "held to no vLLM version" if arm.held_to == "-" else f"held to vLLM {arm.held_to}",
        "right" if arm.is_right else "WRONG",
        f"{arm.models} models" if arm.models != "any" else "any model",
        arm.description,
    )
