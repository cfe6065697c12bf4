"""The schema of a scenario's `traffic`: how many requests, how long, with what; when they come is in
suite/arrival_kinds.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from suite.arrival_kinds import AllAtOnce, Arrivals, TraceReplay
from suite.lengths import Fixed, Lengths
from suite.sampling import Sampling
from suite.schema import AsTuple, Count, PositiveNumber, Ratio, StrictModel, broken_rule, one_of
from suite.step_list import RecordedRun, Steps


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
_WITH_STEPS = frozenset({"steps", "embeds_noise", "sampling"})
_NOT_WITH_STEPS = "traffic.steps says what every step computes: remove it"
_NOT_WITH_RECORDED = "recorded steps have the requests of their own run: remove it"
_STOPS = "a token that ends a request would change the steps of traffic.steps: remove stop_token_ids"
_TOO_MANY = "a request of traffic.steps may have one token to generate: lower min_tokens to 1"
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

    In place of all that, `steps` lists what is computed in each step (suite/step_list.py); beside it stand at
    most `embeds_noise` and `sampling`.
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
    steps: Annotated[Steps | None, Field(examples=["{mix: [{decode: 16}], repeat: 50}"])] = None

    @model_validator(mode="after")
    def _fits_steps(self) -> Traffic:
        if self.steps is None:
            return self
        is_recorded = isinstance(self.steps, RecordedRun)
        for name, info in type(self).model_fields.items():
            if getattr(self, name) == info.default or name == "steps":
                continue
            if is_recorded or name not in _WITH_STEPS:
                raise broken_rule(_NOT_WITH_RECORDED if is_recorded else _NOT_WITH_STEPS, key=name)
        if self.sampling.stop_token_ids:
            raise broken_rule(_STOPS, key="sampling")
        if self.sampling.min_tokens > 1:
            raise broken_rule(_TOO_MANY, key="sampling")
        return self

    @model_validator(mode="after")
    def _fits_arrivals(self) -> Traffic:
        if self.steps is not None:
            return self
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
