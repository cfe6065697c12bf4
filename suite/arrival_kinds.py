"""The schema of `traffic.arrivals`: when requests come, by a clock, by a trace, or when others have ended.

Each kind is one class in one table; a new kind is a new class and a new entry. Times are seconds from the
start, absolute, so that nothing that happens in a run moves those to come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from suite.record import Settles
from suite.schema import Count, PositiveNumber, StrictModel, broken_rule, kind_tag, one_of
from suite.traces.reading import AUTO, FORMAT_NAMES

Times = list[float]
Rate = Annotated[PositiveNumber, Field(description="requests per second", examples=[4.0])]


class AllAtOnce(StrictModel):
    """Every request is there at the start; at most `max_concurrency` of them are in the runner at once."""

    kind: Literal["all_at_once"] = "all_at_once"
    max_concurrency: Count | None = None

    def times(self, count: int, generator: np.random.Generator) -> Times:
        return [0.0] * count


class ClosedLoop(StrictModel):
    """There are `concurrency` places, and the next request is sent when the one in a place has ended.

    That moment is its scheduled time: waiting for a place is no queue.
    """

    kind: Literal["closed_loop"]
    concurrency: Annotated[Count, Field(examples=[8])]

    def times(self, count: int, generator: np.random.Generator) -> Times:
        return [0.0] * count


class _OpenLoop(StrictModel):
    """Requests come whatever became of those before, so that their latency counts from when they come, even
    where more than `max_concurrency` would be in the runner and they wait outside it.
    """

    max_concurrency: Count | None = None


class Constant(_OpenLoop):
    """Request i comes i / rate seconds after the start."""

    kind: Literal["constant"]
    rate: Rate

    def times(self, count: int, generator: np.random.Generator) -> Times:
        return [index / self.rate for index in range(count)]


class Poisson(_OpenLoop):
    """Gaps are drawn from an exponential distribution of mean 1 / rate; the first request comes at once."""

    kind: Literal["poisson"]
    rate: Rate

    def times(self, count: int, generator: np.random.Generator) -> Times:
        return _rounded(_sums(count, 1.0, generator) / self.rate)


class Gamma(_OpenLoop):
    """Gaps are drawn from a gamma distribution of shape `burstiness` and mean 1 / rate, as vLLM spells it.

    Its scale is 1 / (rate * burstiness). At 1 it is poisson; below, requests come in bursts; above, evenly.
    """

    kind: Literal["gamma"]
    rate: Rate
    burstiness: Annotated[float, Field(ge=0.001, le=1e6, examples=[0.5])]

    def times(self, count: int, generator: np.random.Generator) -> Times:
        return _rounded(_sums(count, self.burstiness, generator) / (self.rate * self.burstiness))


class Ramp(_OpenLoop):
    """The rate goes evenly from `from_rate` to `to_rate` within `duration_s`, and stays there.

    Without a duration it arrives with the last request, (from_rate + to_rate) / 2 being the mean. The rate
    integrated over time is the number of requests that should have come: request i comes when it reaches i
    (`even`), or the sum of i exponential gaps of mean 1 (`poisson`).
    """

    kind: Literal["ramp"]
    from_rate: Annotated[PositiveNumber, Field(description="requests per second", examples=[1.0])]
    to_rate: Annotated[PositiveNumber, Field(description="requests per second", examples=[8.0])]
    duration_s: PositiveNumber | None = None
    spacing: Literal["poisson", "even"] = "poisson"

    def times(self, count: int, generator: np.random.Generator) -> Times:
        if self.spacing == "even":
            reached = np.arange(count, dtype=np.float64)
        else:
            reached = _sums(count, 1.0, generator)
        duration_s = self.duration_s
        if duration_s is None:
            duration_s = 2 * max(count - 1, 1) / (self.from_rate + self.to_rate)
        return _rounded(self._inverse(reached, duration_s))

    def _inverse(self, reached: npt.NDArray[np.float64], duration_s: float) -> npt.NDArray[np.float64]:
        """When the integrated rate reaches each number; stable where the slope is nearly 0."""
        slope = (self.to_rate - self.from_rate) / duration_s
        whole = (self.from_rate + self.to_rate) / 2 * duration_s
        inside = np.minimum(reached, whole)
        root = np.sqrt(np.maximum(self.from_rate**2 + 2 * slope * inside, 0.0))
        rising = 2 * inside / (self.from_rate + root)
        times: npt.NDArray[np.float64] = rising + (reached - inside) / self.to_rate
        return times


def _sums(count: int, shape: float, generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """The first `count` sums of gamma distributed gaps of scale 1, from 0 on."""
    gaps = generator.standard_gamma(shape, max(count - 1, 0))
    return np.concatenate([[0.0], np.cumsum(gaps)])[:count]


def _rounded(times: npt.NDArray[np.float64]) -> Times:
    """To nanoseconds, the clock of all records."""
    return [round(time_s, 9) for time_s in times.tolist()]


_PROCESSES: Mapping[str, type[StrictModel]] = {
    "all_at_once": AllAtOnce,
    "closed_loop": ClosedLoop,
    "constant": Constant,
    "poisson": Poisson,
    "gamma": Gamma,
    "ramp": Ramp,
}


def _checked(value: object, kinds: Mapping[str, type[StrictModel]]) -> object:
    if isinstance(value, tuple(kinds.values())):
        return value
    if not isinstance(value, Mapping) or "kind" not in value:
        raise broken_rule("it must be a mapping with a kind, such as {kind: all_at_once}")
    if value["kind"] not in list(kinds):
        raise broken_rule(one_of(value["kind"], kinds), key="kind")
    return value


def _tag(value: object, kinds: Mapping[str, type[StrictModel]]) -> str:
    return kind_tag(value["kind"] if isinstance(value, Mapping) else value, kinds)


_TaggedProcess = (
    Annotated[AllAtOnce, Tag("<all_at_once>")]
    | Annotated[ClosedLoop, Tag("<closed_loop>")]
    | Annotated[Constant, Tag("<constant>")]
    | Annotated[Poisson, Tag("<poisson>")]
    | Annotated[Gamma, Tag("<gamma>")]
    | Annotated[Ramp, Tag("<ramp>")]
)

Process = Annotated[
    _TaggedProcess,
    Discriminator(lambda value: _tag(value, _PROCESSES)),
    BeforeValidator(lambda value: _checked(value, _PROCESSES)),
]

_NOT_WITH_PROCESS = {
    "time_scale": "the times are traffic.arrivals.process's and not the trace's: remove it",
    "max_gap_s": "the times are traffic.arrivals.process's and not the trace's: remove it",
    "max_concurrency": "put it into traffic.arrivals.process, which says when requests are sent",
}


class TraceReplay(_OpenLoop):
    """Requests as a trace file recorded them, made to fit the model.

    In this order: the first `limit` rows are read; silences longer than `max_gap_s` (in the trace's own
    seconds) are cut to it; times are multiplied by `time_scale`. Context and output tokens are multiplied
    by `length_scale` and rounded up, so at least 1. A row keeps at most `max_images` images. With
    `context_includes_images` the scaled context is the whole prompt and the text gets what the images
    leave, at least one token; without it the images come on top. A trace that counts the tokens of images
    apart from the text has them scaled too, and brings as many images of the model as come closest to them,
    at least one where it has any. A request still longer than the runner allows is refused, skipped or
    truncated (the text first, then the output) by `over_length`. Rows that failed when they were recorded
    are left out, or refused, by `failed_requests`; they count for `limit`. `process` says when requests
    come in place of the trace's times, and must where it has none.
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
    process: Process | None = None

    @field_validator("format")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in FORMAT_NAMES:
            raise broken_rule(one_of(value, FORMAT_NAMES))
        return value

    @model_validator(mode="after")
    def _fits_process(self) -> TraceReplay:
        for name, rule in _NOT_WITH_PROCESS.items():
            if self.process is not None and getattr(self, name) != type(self).model_fields[name].default:
                raise broken_rule(rule, key=name)
        return self


_KINDS: Mapping[str, type[StrictModel]] = {**_PROCESSES, "trace": TraceReplay}

Arrivals = Annotated[
    _TaggedProcess | Annotated[TraceReplay, Tag("<trace>")],
    Discriminator(lambda value: _tag(value, _KINDS)),
    BeforeValidator(lambda value: _checked(value, _KINDS)),
]


def process_of(arrivals: Arrivals) -> Arrivals:
    """What decides when requests are sent: a trace's process where it has one, else the arrivals."""
    if isinstance(arrivals, TraceReplay) and arrivals.process is not None:
        return arrivals.process
    return arrivals


def most_at_once(arrivals: Arrivals) -> int | None:
    """How many requests may be in the runner at once; None where nothing limits them."""
    process = process_of(arrivals)
    return process.concurrency if isinstance(process, ClosedLoop) else process.max_concurrency


def is_closed_loop(arrivals: Arrivals) -> bool:
    return isinstance(process_of(arrivals), ClosedLoop)


LEAST_FILLS = 4
"""So many times a closed loop must fill its places before one can ask whether its batch settles."""

LEAST_OF_RATE = 50
"""So many requests an open loop must send before one can ask whether its queue grows."""


def settles(arrivals: Arrivals, num_requests: int) -> Settles | None:
    """What of a run should settle. A closed batch fills and drains; a ramp or a trace has no one rate."""
    process = process_of(arrivals)
    if isinstance(process, ClosedLoop):
        return "batch" if num_requests >= LEAST_FILLS * process.concurrency else None
    is_of_one_rate = isinstance(process, (Constant, Poisson, Gamma))
    return "queue" if is_of_one_rate and num_requests >= LEAST_OF_RATE else None
