"""The arm table: runner configurations compared within a case, and which combinations mean something.

An arm is nothing but a different list of commands for the same plan. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, cast, get_args

from runner.config import RequestedScheduling, Rules, Scheduling
from runner.core import RunnerError

Embeds = Literal["all", "rows", "resident"]
Flags = Literal["always", "with-ids", "fill", "skip", "derived"]
MergeKind = Literal["none", "where", "index", "overlay", "fused"]


@dataclass(frozen=True, slots=True)
class Choices:
    """How supplied rows travel, how the device learns which they are, and how they are merged."""

    embeds: Embeds
    flags: Flags
    merge: MergeKind


@dataclass(frozen=True, slots=True)
class Arm:
    """One configuration. `choices` is None with prompt_embeds off: prompts come as token ids.

    `is_right` is false for negative controls; `models` says which models it is meant for; `origin` and
    `held_to` say where it comes from and which vLLM version it is held to.
    """

    name: str
    scheduling: RequestedScheduling
    choices: Choices | None
    description: str
    origin: str = "stepcost"
    held_to: str = "-"
    is_right: bool = True
    models: Literal["any", "multimodal", "text"] = "any"
    rules: Rules = "default"

    @property
    def prompt_embeds(self) -> bool:
        return self.choices is not None

    @property
    def keeps_rows_resident(self) -> bool:
        return self.choices is not None and self.choices.embeds == "resident"

    def fits(self, is_multimodal: bool) -> bool:
        return self.models == "any" or (self.models == "multimodal") == is_multimodal


def legal(choices: Choices) -> str | None:
    """Why a combination means nothing, or None when it can be run."""
    embeds, flags, merge = choices.embeds, choices.flags, choices.merge
    if merge in ("overlay", "fused") and embeds != "resident":
        return f"merge {merge} reads supplied rows by position, which needs embeds resident"
    if merge in ("overlay", "fused") and flags != "derived":
        return f"merge {merge} tells supplied rows by position; flags {flags} would never be read"
    if flags == "derived" and embeds != "resident":
        return "flags derived reads lengths and masks kept with the rows, which needs embeds resident"
    if merge in ("none", "index") and flags in ("fill", "skip", "derived"):
        reads = "no flags" if merge == "none" else "the host's flags only"
        return f"merge {merge} reads {reads}; flags {flags} would change nothing"
    return None


def is_wrong_by_rule(scheduling: Scheduling, choices: Choices) -> bool:
    """Whether the combination can give wrong tokens: the historical bugs."""
    if choices.merge == "none":
        return True
    return scheduling == "async" and choices.flags == "with-ids" and choices.merge == "where"


def parse_arm(text: str) -> Arm:
    """A preset's name, or the four choices as scheduling/embeds/flags/merge. RunnerError otherwise."""
    if text in ARMS:
        return ARMS[text]
    parts = text.split("/")
    valid = (get_args(Scheduling), get_args(Embeds), get_args(Flags), get_args(MergeKind))
    if len(parts) != 4 or any(part not in names for part, names in zip(parts, valid, strict=True)):
        kinds = "/".join("|".join(names) for names in valid)
        raise RunnerError(f"no arm {text!r}; presets: {', '.join(ARMS)}; or the four choices {kinds}")
    scheduling = cast(Scheduling, parts[0])
    choices = Choices(cast(Embeds, parts[1]), cast(Flags, parts[2]), cast(MergeKind, parts[3]))
    reason = legal(choices)
    if reason is not None:
        raise RunnerError(f"arm {text!r} means nothing: {reason}")
    return Arm(
        name=text,
        scheduling=scheduling,
        choices=choices,
        description="the four choices as given",
        is_right=not is_wrong_by_rule(scheduling, choices),
        models="text" if choices.merge == "index" else "any",
    )


_PRESETS = (
    Arm(
        "ids",
        "async",
        None,
        "the same prompts as token ids, prompt_embeds off: the ceiling",
        "vLLM",
        "0.32.0",
    ),
    Arm("sync-ids", "sync", None, "the ceiling's sync twin: token ids, no overlap", "vLLM", "0.32.0"),
    Arm(
        "overwrite",
        "async",
        Choices("all", "with-ids", "none"),
        "every position is looked up and supplied rows are lost: the bug before #45383",
        "vLLM #44842",
        "0.23.0",
        is_right=False,
        models="multimodal",
    ),
    Arm(
        "stale",
        "async",
        Choices("all", "with-ids", "where"),
        "#45383 without its gate: the device keeps the flags of the last mixed step",
        "vLLM #45383",
        "-",
        is_right=False,
    ),
    Arm(
        "gated",
        "auto",
        Choices("all", "always", "where"),
        "async is off for multimodal prompt_embeds; every step uploads flags and rows of all positions",
        "vLLM #45383",
        "0.32.0 (sync)",
        rules="gated",
    ),
    Arm(
        "refresh",
        "async",
        Choices("all", "always", "where"),
        "async; the flags are uploaded on every step, rows only on steps that are given some",
        "vLLM #45673",
        "0.32.0",
    ),
    Arm(
        "sync-rows",
        "sync",
        Choices("rows", "always", "where"),
        "only supplied rows are uploaded, sync: overlap apart from the copy",
    ),
    Arm(
        "async-rows",
        "async",
        Choices("rows", "always", "where"),
        "only supplied rows are uploaded, async: overlap apart from the copy",
    ),
    Arm(
        "async-fill",
        "async",
        Choices("rows", "fill", "where"),
        "an all-token step fills the flags on the device: the copy is gone, the merge kept",
    ),
    Arm(
        "skip",
        "async",
        Choices("rows", "skip", "where"),
        "async; a step of token ids alone has neither flags nor merge",
    ),
    Arm(
        "resident-where",
        "async",
        Choices("resident", "derived", "where"),
        "rows uploaded once, flags derived from positions, merged with a mask",
        "vLLM V2 runner",
        "-",
    ),
    Arm(
        "resident",
        "async",
        Choices("resident", "derived", "overlay"),
        "rows uploaded once, written over the looked-up ones",
        "vLLM V2 runner",
        "-",
    ),
    Arm(
        "fused",
        "async",
        Choices("resident", "derived", "fused"),
        "rows uploaded once, lookup and merge in one gather",
    ),
    Arm(
        "sync-fused",
        "sync",
        Choices("resident", "derived", "fused"),
        "the sync twin of fused: one gather, no overlap",
    ),
    Arm(
        "text",
        "async",
        Choices("all", "always", "index"),
        "text models: the host finds token positions and only those are looked up",
        "vLLM",
        "0.32.0",
        models="text",
    ),
)

ARMS: Mapping[str, Arm] = MappingProxyType({arm.name: arm for arm in _PRESETS})
