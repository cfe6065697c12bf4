"""The schema of a scenario's `traffic`: how many requests, when they come, how long they are.

Each length or arrival kind is one class in one table; a new kind is a new class and a new entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from suite.sampling import Sampling
from suite.schema import (
    TAG_OPEN,
    AsTuple,
    Count,
    PositiveNumber,
    Ratio,
    StrictModel,
    broken_rule,
    listed,
    one_of,
)
from suite.traces.reading import AUTO, FORMAT_NAMES


class Fixed(StrictModel):
    """Always the same number."""

    fixed: Count

    @property
    def smallest(self) -> int:
        return self.fixed

    @property
    def largest(self) -> int:
        return self.fixed

    def draw(self, generator: np.random.Generator, count: int) -> list[int]:
        return [self.fixed] * count


class Uniform(StrictModel):
    """Any whole number from the first to the second, both included, equally often."""

    uniform: Annotated[tuple[Count, Count], AsTuple]

    @field_validator("uniform", mode="before")
    @classmethod
    def _is_pair(cls, value: object) -> object:
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise broken_rule("it must be two whole numbers: write [smallest, largest]")
        return value

    @field_validator("uniform")
    @classmethod
    def _is_ordered(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] > value[1]:
            raise broken_rule(f"the smallest comes first: write [{value[1]}, {value[0]}]")
        return value

    @property
    def smallest(self) -> int:
        return self.uniform[0]

    @property
    def largest(self) -> int:
        return self.uniform[1]

    def draw(self, generator: np.random.Generator, count: int) -> list[int]:
        smallest, largest = self.uniform
        return [int(drawn) for drawn in generator.integers(smallest, largest + 1, size=count)]


_LENGTHS: Mapping[str, type[StrictModel]] = {"fixed": Fixed, "uniform": Uniform}


def _as_lengths(value: object) -> object:
    """A bare number means {fixed: number}; a mapping must hold exactly one known kind."""
    if isinstance(value, tuple(_LENGTHS.values())):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return {"fixed": value}
    if not isinstance(value, Mapping):
        raise broken_rule("it must be a whole number, {fixed: number} or {uniform: [smallest, largest]}")
    if len(value) != 1:
        raise broken_rule(f"it must hold exactly one of: {listed(_LENGTHS)}")
    kind = next(iter(value))
    if kind not in _LENGTHS:
        raise broken_rule(f"{kind} is no kind of length; {one_of(kind, _LENGTHS)}")
    return value


def _length_tag(value: object) -> str:
    return _tag(next(iter(value)) if isinstance(value, Mapping) else value, _LENGTHS)


def _tag(value: object, kinds: Mapping[str, type[StrictModel]]) -> str:
    """The union's label for a kind's name or for an object of that kind."""
    name = next((kind for kind, model in kinds.items() if isinstance(value, model)), value)
    return f"{TAG_OPEN}{name}>"


Lengths = Annotated[
    Annotated[Fixed, Tag("<fixed>")] | Annotated[Uniform, Tag("<uniform>")],
    Discriminator(_length_tag),
    BeforeValidator(_as_lengths),
]


class AllAtOnce(StrictModel):
    """Every request is there at the start."""

    kind: Literal["all_at_once"] = "all_at_once"


class Constant(StrictModel):
    """Request i comes i / rate seconds after the start."""

    kind: Literal["constant"]
    rate: Annotated[PositiveNumber, Field(description="requests per second", examples=[4.0])]


class TraceReplay(StrictModel):
    """Requests as a trace file recorded them, made to fit the model.

    In this order: the first `limit` rows are read; silences longer than `max_gap_s` (in the trace's own
    seconds) are cut to it; times are multiplied by `time_scale`. Context and output tokens are multiplied
    by `length_scale` and rounded up, so at least 1. A row keeps at most `max_images` images. With
    `context_includes_images` the scaled context is the whole prompt and the text gets what the images
    leave, at least one token; without it the images come on top. A trace that counts the tokens of images
    apart from the text has them scaled too, and brings as many images of the model as come closest to them,
    at least one where it has any. A request still longer than the runner
    allows is refused, skipped or truncated (the text first, then the output) by `over_length`. Rows that
    failed when they were recorded are left out, or refused, by `failed_requests`; they count for `limit`.
    """

    kind: Literal["trace"]
    path: Annotated[str, Field(min_length=1, examples=["data/trace.csv"])]
    format: str = AUTO
    time_scale: PositiveNumber = 1.0
    limit: Count | None = None
    max_gap_s: PositiveNumber = 5.0
    over_length: Literal["error", "skip", "truncate"] = "error"
    length_scale: PositiveNumber = 1.0
    context_includes_images: bool = True
    max_images: Annotated[int, Field(ge=0, le=1_000)] | None = None
    failed_requests: Literal["skip", "error"] = "skip"

    @field_validator("format")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in FORMAT_NAMES:
            raise broken_rule(one_of(value, FORMAT_NAMES))
        return value


_ARRIVALS: Mapping[str, type[StrictModel]] = {
    "all_at_once": AllAtOnce,
    "constant": Constant,
    "trace": TraceReplay,
}


def _check_arrivals(value: object) -> object:
    if isinstance(value, tuple(_ARRIVALS.values())):
        return value
    if not isinstance(value, Mapping) or "kind" not in value:
        raise broken_rule("it must be a mapping with a kind, such as {kind: all_at_once}")
    if value["kind"] not in list(_ARRIVALS):
        raise broken_rule(one_of(value["kind"], _ARRIVALS), key="kind")
    return value


def _arrival_tag(value: object) -> str:
    return _tag(value["kind"] if isinstance(value, Mapping) else value, _ARRIVALS)


Arrivals = Annotated[
    Annotated[AllAtOnce, Tag("<all_at_once>")]
    | Annotated[Constant, Tag("<constant>")]
    | Annotated[TraceReplay, Tag("<trace>")],
    Discriminator(_arrival_tag),
    BeforeValidator(_check_arrivals),
]


class SplicedShare(StrictModel):
    """How the embeds requests without images are supplied: this share spliced, the others pure."""

    spliced: Ratio


_KIND_SHARES = {"pure": 0.0, "spliced": 1.0}


def _as_share(value: object) -> object:
    """A bare kind means that all are of it."""
    if isinstance(value, (SplicedShare, Mapping)):
        return value
    if not isinstance(value, str) or value not in _KIND_SHARES:
        raise broken_rule(f"{one_of(value, _KIND_SHARES)}, or {{spliced: share}}")
    return {"spliced": _KIND_SHARES[value]}


class SharedPrefixes(StrictModel):
    """Requests that begin alike, as behind one system prompt or about one document.

    They are spread over `groups` evenly, the remainder one each. The first `tokens` text positions of a
    request, a number drawn for each group, are its group's; one with less text has the beginning of them.
    They count within the request's text, and stand before any image. Images are the request's `own`, drawn
    as ever and placed behind the shared text, or `shared`: a group's images are the same for all of it,
    and stand right behind its text. Where a request brings embeddings, those of shared positions are its
    group's to the bit, noise included, and so is which of them are supplied.
    """

    groups: Annotated[Count, Field(examples=[4])]
    tokens: Annotated[Lengths, Field(examples=[64])]
    images: Literal["own", "shared"] = "own"


_NEEDED_WITHOUT_TRACE = ("num_requests", "prompt_tokens", "output_tokens")
_INSTEAD = {
    "num_requests": "the trace has its own rows: remove it, or use traffic.arrivals.limit",
    "prompt_tokens": "the trace has its own lengths: remove it, or use traffic.arrivals.length_scale",
    "output_tokens": "the trace has its own lengths: remove it, or use traffic.arrivals.length_scale",
}
_NOT_WITH_FILES = {
    "embeds_ratio": "the files in traffic.embeds_files are the requests that bring embeddings: remove it",
    "embeds_kind": "a file in traffic.embeds_files is a whole prompt, and so pure: remove it",
    "embeds_noise": "the rows in traffic.embeds_files are taken as they are: remove it",
}


class Traffic(StrictModel):
    """What is asked of the runner.

    `prompt_tokens` counts text ids; each image adds the model's rows and the two ids around them.
    `multimodal_ratio` of the requests (met exactly, half rounded up) bring `images_per_request` images.
    A trace brings its own number of requests and lengths, and its own images where it counts them.

    `embeds_ratio` of the requests (met exactly as well, drawn apart from the images) bring embeddings
    instead of ids: those their own ids have, plus noise of `embeds_noise` times the rows' own spread.
    `embeds_kind` says whether all positions are supplied (pure) or some (spliced), or which share of the
    embeds requests is spliced; one with images is always spliced, beside them. Instead of a ratio,
    `embeds_files` names files of rows, each the whole prompt of one request; what a file holds may take
    `embeds_file_max_mib`.

    `sampling` says how tokens are chosen (suite/sampling.py), `shared_prefix` which requests begin alike.
    """

    num_requests: Count | None = None
    arrivals: Arrivals = AllAtOnce()
    prompt_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    multimodal_ratio: Ratio = 0.0
    images_per_request: Lengths = Fixed(fixed=1)
    distinct_images: Count | None = None
    embeds_ratio: Ratio = 0.0
    embeds_kind: Annotated[SplicedShare, BeforeValidator(_as_share)] = SplicedShare(spliced=0.0)
    embeds_noise: Annotated[float, Field(ge=0, le=100)] = 0.0
    embeds_files: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], AsTuple] = ()
    embeds_file_max_mib: PositiveNumber = 64.0
    ignore_eos: bool = True
    sampling: Sampling = Sampling()
    shared_prefix: SharedPrefixes | None = None

    @model_validator(mode="after")
    def _fits_arrivals(self) -> Traffic:
        is_trace = isinstance(self.arrivals, TraceReplay)
        for name in _NEEDED_WITHOUT_TRACE:
            is_given = getattr(self, name) is not None
            if is_trace and is_given:
                raise broken_rule(_INSTEAD[name], key=name)
            if not is_trace and not is_given:
                raise broken_rule(f"add `{name}: 16` (only a trace brings its own)", key=name)
        return self

    @model_validator(mode="after")
    def _fits_files(self) -> Traffic:
        if not self.embeds_files:
            return self
        if isinstance(self.arrivals, TraceReplay):
            raise broken_rule("a trace has its own requests: remove it", key="embeds_files")
        for name, rule in _NOT_WITH_FILES.items():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise broken_rule(rule, key=name)
        return self

    @model_validator(mode="after")
    def _fits_prefixes(self) -> Traffic:
        shared = self.shared_prefix
        if shared is not None and shared.images == "shared" and self.distinct_images is not None:
            raise broken_rule(
                "with traffic.shared_prefix.images: shared each group has its own: remove it",
                key="distinct_images",
            )
        return self
