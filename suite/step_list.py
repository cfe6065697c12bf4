"""The schema of a scenario's `traffic.steps`: a list of steps that every arm runs, written or recorded."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from suite.schema import AsTuple, Count, StrictModel, broken_rule, kind_tag

MAX_STEPS = 10_000
"""A list is planned step by step each time its scenario is read."""

_LONGEST_SHARE = 32
_SHARE_RULE = "it must be a share from 0 to 1, such as 0.5 or 1/2"


def _as_share(value: object) -> object:
    """A share as a number; text may say it as a fraction."""
    share = _fraction(value) if isinstance(value, str) else value
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise broken_rule(_SHARE_RULE)
    return float(share)


def _fraction(text: str) -> float | None:
    """ "1/2" or "½" as a number; None for anything else, or what no share takes so many digits to say."""
    if len(text) > _LONGEST_SHARE or "e" in text.lower():
        return None
    try:
        return unicodedata.numeric(text.strip()) if len(text.strip()) == 1 else float(Fraction(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        return None


Share = Annotated[
    float,
    BeforeValidator(_as_share),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": 1},
                {"type": "string", "pattern": r"^\s*([0-9]+/[0-9]+|[0-9.]+|\S)\s*$"},
            ]
        }
    ),
]


class StepMix(StrictModel):
    """What is computed in one step, `repeat` times in a row.

    `decode` rows decode. Each number in `prefill` is the prompt of a request that begins and ends in this
    step, in positions. `images` are dealt to them one after the other, and take positions of theirs. Of the
    other positions of each prompt `supplied` have their row given, by default as many as everywhere: 1 is a
    whole prompt of embeddings, 0 one of token ids, a share in between a spliced one.
    """

    decode: Annotated[int, Field(ge=0, le=100_000)] = 0
    prefill: Annotated[tuple[Count, ...], AsTuple] = ()
    supplied: Share | None = None
    images: Annotated[int, Field(ge=0, le=1_000)] = 0
    repeat: Count = 1

    @model_validator(mode="after")
    def _computes_something(self) -> StepMix:
        if not self.decode and not self.prefill:
            raise broken_rule("a step computes at least one row: add `decode: 16` or `prefill: [64]`")
        if self.images and not self.prefill:
            raise broken_rule("an image comes with a prompt: add `prefill: [64]`", key="images")
        return self


class Context(StrictModel):
    """The prompts of the requests that decode, computed in steps of their own that nothing is said of.

    `supplied` as in StepMix, by default the largest of the mix: they came as the others do.
    """

    tokens: Count = 16
    supplied: Share | None = None


class WrittenSteps(StrictModel):
    """The steps of `mix` one after the other, all of it `repeat` times; `supplied` where one says nothing."""

    mix: Annotated[
        tuple[StepMix, ...],
        AsTuple,
        Field(min_length=1, examples=["[{decode: 16, prefill: [64], supplied: 1/2}]"]),
    ]
    repeat: Count = 1
    supplied: Share = 0.0
    context: Context = Context()

    @model_validator(mode="after")
    def _is_short_enough(self) -> WrittenSteps:
        if self.num_steps > MAX_STEPS:
            raise broken_rule(
                f"it makes {self.num_steps:,} steps, at most {MAX_STEPS:,} are run: lower it", "repeat"
            )
        return self

    @property
    def num_steps(self) -> int:
        return self.repeat * sum(entry.repeat for entry in self.mix)

    def share(self, entry: StepMix) -> float:
        return self.supplied if entry.supplied is None else entry.supplied

    @property
    def context_share(self) -> float:
        if self.context.supplied is not None:
            return self.context.supplied
        return max(self.share(entry) for entry in self.mix)


class RecordedRun(StrictModel):
    """The steps that a run of another experiment took, of its own requests: its folder and the run's id."""

    recorded: Annotated[str, Field(min_length=1, examples=["results/20260101-000000-smoke"])]
    run: Annotated[str, Field(min_length=1, examples=["smoke-12345678-sync-ids-r0"])]


_KINDS: Mapping[str, type[StrictModel]] = {"written": WrittenSteps, "recorded": RecordedRun}


def _tag(value: Any) -> str:
    if isinstance(value, Mapping):
        return kind_tag("recorded" if "recorded" in value or "run" in value else "written", _KINDS)
    return kind_tag(value if isinstance(value, (WrittenSteps, RecordedRun)) else "written", _KINDS)


Steps = Annotated[
    Annotated[WrittenSteps, Tag("<written>")] | Annotated[RecordedRun, Tag("<recorded>")],
    Discriminator(_tag),
]


def exact_count(num_positions: int, share: float) -> int:
    """`share` of some positions, half rounded up; the share is taken as the simple fraction it stands for."""
    exact = Fraction(share).limit_denominator(1_000_000)
    return int(num_positions * exact + Fraction(1, 2))
