"""What is measured: every metric's name, unit, direction, definition, and how it is computed.

The only module that turns times into figures. An undefined figure is None with a reason, never 0
or NaN. Percentiles interpolate linearly between the closest ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from runner.config import RunnerConfig
from runner.core import FinishReason
from runner.measure import StepRecord
from suite.record import Metric, RequestRecord

Direction = Literal["higher", "lower", "neither"]
Values = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]

NS_PER_MS = 1e6
WALL_MS = "wall_ms"
"""A step's wall time: a column of figures, and of tables whose other steps are gone (suite/thinning.py)."""
STEP_KINDS = ("prefill", "decode", "mixed")

NONE_COMPLETED = "no request completed"
ONE_TOKEN = "one output token"
AT_ONCE = "all output tokens came at the same time"
CACHING_OFF = "prefix caching is off"
SPECULATION_OFF = "speculation is off"
NO_GATES = "no goodput gates are set"
NO_TIME = "the run took no time"
EDGES_ONLY = "only the times of the first and last token were recorded"

_COMPLETED = frozenset(
    reason.value
    for reason in (
        FinishReason.MAX_TOKENS,
        FinishReason.EOS,
        FinishReason.STOP,
        FinishReason.MODEL_LENGTH,
    )
)


@dataclass(frozen=True, slots=True)
class Definition:
    """What a metric is: `text` is printed wherever the metric is explained."""

    name: str
    unit: str
    better: Direction
    text: str

    def of(self, value: float, num_samples: int) -> Metric:
        return Metric(
            name=self.name,
            value=value,
            unit=self.unit,
            num_samples=num_samples,
            better=self.better,
        )

    def undefined(self, reason: str) -> Metric:
        return Metric(
            name=self.name,
            value=None,
            unit=self.unit,
            num_samples=0,
            better=self.better,
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class Latencies:
    """One request's latencies in ms; a None has its reason in `undefined` under the field's name.

    TTFT, E2E latency and queue delay count from the scheduled arrival.
    """

    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None
    queue_delay_ms: float | None
    send_delay_ms: float | None
    itl_ms: Values
    undefined: Mapping[str, str]


# Definitions

_STATISTICS: Mapping[str, tuple[str, Callable[[Values], float]]] = MappingProxyType(
    {
        "mean": ("mean", lambda values: float(np.mean(values))),
        "median": ("median", lambda values: float(np.percentile(values, 50))),
        "p90": ("90th percentile", lambda values: float(np.percentile(values, 90))),
        "p95": ("95th percentile", lambda values: float(np.percentile(values, 95))),
        "p99": ("99th percentile", lambda values: float(np.percentile(values, 99))),
        "max": ("maximum", lambda values: float(np.max(values))),
    }
)

# Metric name without its statistic -> what one sample is.
_SAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "ttft_ms": "time to first token of a completed request, from its scheduled arrival to the "
        "moment the host held its first output token",
        "tpot_ms": "time per output token of a completed request: (last token - first token) / "
        "(actual output tokens - 1); undefined for one output token",
        "itl_ms": "inter-token latency: the gap between two consecutive output tokens, pooled over "
        "all completed requests, so that one long stall is seen; tokens of one step (accepted drafts) "
        "share its time: the gaps between them are 0, and the whole wait is in the gap before them",
        "e2e_ms": "end-to-end latency of a completed request, from its scheduled arrival to the "
        "moment the host held its last output token",
        "queue_delay_ms": "time from a request's scheduled arrival to the launch of the first step "
        "that computed any of it",
        "send_delay_ms": "time from a request's scheduled arrival to the moment it was handed to "
        "the engine; an engine takes new requests between two steps",
    }
)

_SAMPLE_STATISTICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ttft_ms": ("mean", "median", "p90", "p95", "p99", "max"),
        "tpot_ms": ("mean", "median", "p90", "p95", "p99", "max"),
        "itl_ms": ("mean", "median", "p90", "p95", "p99", "max"),
        "e2e_ms": ("mean", "median", "p90", "p95", "p99", "max"),
        "queue_delay_ms": ("mean", "median", "p99", "max"),
        "send_delay_ms": ("median", "p99", "max"),
    }
)

_STEP_TIMES: Mapping[str, str] = MappingProxyType(
    {
        "wall": "time between the ends of consecutive steps, idle waits for an arrival left out",
        "host": "the host's own work on a step, waits for the device left out",
        "device": "device time from the start of a step's first command to the end of its last",
    }
)
_STEP_STATISTICS = ("median", "p99")

_THROUGHPUT = (
    Definition(
        "request_throughput",
        "req/s",
        "higher",
        "completed requests / duration; the duration runs from the start of the arrival schedule "
        "until the engine has finished every request",
    ),
    Definition(
        "output_throughput",
        "tok/s",
        "higher",
        "output tokens of completed requests / duration",
    ),
    Definition(
        "total_token_throughput",
        "tok/s",
        "higher",
        "prompt positions (image rows included) and output tokens of completed requests / duration",
    ),
)

GATES: Mapping[str, str] = MappingProxyType({"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2e_ms"})
"""What goodput may ask of a request, by vLLM's names -> the field of Latencies."""

_GOODPUT = Definition(
    "request_goodput",
    "req/s",
    "higher",
    "completed requests that meet every gate of the scenario's goodput (ttft, tpot, e2el: ms at most) / "
    "duration; a request of one output token has no TPOT and is held to the other gates; undefined where no "
    "request has a figure for a gate",
)

_COUNTS = (
    Definition("completed_requests", "requests", "higher", "requests that got all their tokens"),
    Definition("failed_requests", "requests", "lower", "requests that did not complete"),
    Definition("output_tokens", "tokens", "neither", "output tokens of completed requests"),
    Definition(
        "prompt_tokens",
        "tokens",
        "neither",
        "prompt positions of completed requests, text and image together",
    ),
    Definition("text_prompt_tokens", "tokens", "neither", "prompt positions that are not an image's rows"),
    Definition("image_prompt_tokens", "tokens", "neither", "prompt positions an image's rows fill"),
    Definition("images", "images", "neither", "images of completed requests"),
    Definition("steps", "steps", "neither", "steps the engine ran"),
    Definition("preemptions", "preemptions", "lower", "times a running request lost its blocks to another"),
    Definition(
        "recomputed_tokens",
        "tokens",
        "lower",
        "positions computed once more because of a preemption",
    ),
    Definition(
        "wasted_tokens",
        "tokens",
        "lower",
        "tokens sampled for a request that had ended while the step was in flight",
    ),
    Definition(
        "supplied_tokens",
        "tokens",
        "neither",
        "prompt positions of completed requests whose embedding was supplied",
    ),
    Definition("upload_bytes", "bytes", "lower", "bytes copied from host to device, all steps"),
    Definition("upload_copies", "copies", "lower", "copies from host to device, all steps"),
)


# Undefined where what they are about is off.
_CACHE = (
    Definition("cached_tokens", "tokens", "higher", "prompt positions the prefix cache gave, all requests"),
    Definition(
        "prefix_cache_hit_rate",
        "%",
        "higher",
        "prompt positions the prefix cache gave / prompt positions of all admitted requests (those of which "
        "a step computed something); repeats of one prompt raise it as well as shared beginnings do",
    ),
    Definition(
        "hash_ms",
        "ms",
        "lower",
        "the host's time for hashing prompts, supplied rows and images for the prefix cache, all steps",
    ),
)
_SPECULATION = (
    Definition(
        "drafted_tokens", "tokens", "neither", "draft tokens computed to be verified, all requests and steps"
    ),
    Definition("accepted_tokens", "tokens", "higher", "draft tokens that were the model's own choice"),
    Definition(
        "acceptance_rate",
        "%",
        "higher",
        "accepted / drafted tokens; sync drafts only what was proposed, async plans for drafts before it is "
        "known whether there are any, so the rate does not compare the two",
    ),
    Definition(
        "tokens_per_step",
        "tokens",
        "higher",
        "tokens a request gets from a decode step: 1 + accepted tokens / its rows in decode steps",
    ),
)


def _sample_definitions() -> Iterable[Definition]:
    for sample, statistics in _SAMPLE_STATISTICS.items():
        for statistic in statistics:
            word = _STATISTICS[statistic][0]
            yield Definition(f"{statistic}_{sample}", "ms", "lower", f"{word} of the {_SAMPLES[sample]}")


def _step_definitions() -> Iterable[Definition]:
    for kind in STEP_KINDS:
        for clock, text in _STEP_TIMES.items():
            for statistic in _STEP_STATISTICS:
                word = _STATISTICS[statistic][0]
                name = f"{statistic}_{kind}_step_{clock}_ms"
                yield Definition(name, "ms", "lower", f"{word} over {kind} steps: {text}")


DEFINITIONS: Mapping[str, Definition] = MappingProxyType(
    {
        definition.name: definition
        for definition in (
            *_THROUGHPUT,
            _GOODPUT,
            *_sample_definitions(),
            *_step_definitions(),
            *_COUNTS,
            *_CACHE,
            *_SPECULATION,
        )
    }
)


TIME_UNITS = ("ms", "req/s", "tok/s")
"""Of figures that are as good as the times they are made of; others only count."""

_LEAST_SAMPLES: Mapping[str, int] = MappingProxyType({"p90": 10, "p95": 20, "p99": 100})


def is_timed(name: str) -> bool:
    return name in DEFINITIONS and DEFINITIONS[name].unit in TIME_UNITS


def least_samples(name: str) -> int:
    """How many samples a metric needs to be what its name says: beyond a percentile must lie one of them.

    With fewer, p99 is little else than the maximum.
    """
    return _LEAST_SAMPLES.get(name.partition("_")[0], 0)


# One request


def is_completed(request: RequestRecord) -> bool:
    return request.finish_reason in _COMPLETED and request.error is None


def latencies(request: RequestRecord) -> Latencies:
    """The latencies of one request; a request that did not complete has none but its send delay."""
    undefined: dict[str, str] = {}
    queue_delay = _queue_delay_ms(request, undefined)
    send_delay = (request.sent_ns - request.scheduled_ns) / NS_PER_MS
    if not is_completed(request) or not request.token_ns:
        reason = f"request did not complete: {request.error or request.finish_reason}"
        undefined.update(dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms", "itl_ms"), reason))
        return Latencies(None, None, None, queue_delay, send_delay, np.empty(0), undefined)
    times = np.asarray(request.token_ns, dtype=np.int64)
    gaps: Values = np.diff(times) / NS_PER_MS
    if not gaps.size:
        undefined["itl_ms"] = ONE_TOKEN
    return Latencies(
        ttft_ms=float(times[0] - request.scheduled_ns) / NS_PER_MS,
        tpot_ms=_tpot_ms(int(times[0]), int(times[-1]), len(times), undefined),
        e2e_ms=float(times[-1] - request.scheduled_ns) / NS_PER_MS,
        queue_delay_ms=queue_delay,
        send_delay_ms=send_delay,
        itl_ms=gaps,
        undefined=undefined,
    )


def _queue_delay_ms(request: RequestRecord, undefined: dict[str, str]) -> float | None:
    if request.first_scheduled_ns is None:
        undefined["queue_delay_ms"] = "no step computed any of it"
        return None
    return (request.first_scheduled_ns - request.scheduled_ns) / NS_PER_MS


def edge_latencies(
    start_ns: int, first_step_ns: int, first_token_ns: int, last_token_ns: int, num_output_tokens: int
) -> Latencies:
    """Of a completed request of which only these times are known: all but ITL and send delay."""
    undefined = {"itl_ms": EDGES_ONLY, "send_delay_ms": EDGES_ONLY}
    return Latencies(
        ttft_ms=(first_token_ns - start_ns) / NS_PER_MS,
        tpot_ms=_tpot_ms(first_token_ns, last_token_ns, num_output_tokens, undefined),
        e2e_ms=(last_token_ns - start_ns) / NS_PER_MS,
        queue_delay_ms=(first_step_ns - start_ns) / NS_PER_MS,
        send_delay_ms=None,
        itl_ms=np.empty(0),
        undefined=undefined,
    )


def _tpot_ms(first_ns: int, last_ns: int, num_tokens: int, undefined: dict[str, str]) -> float | None:
    if num_tokens <= 1:
        undefined["tpot_ms"] = ONE_TOKEN
        return None
    if last_ns <= first_ns:
        undefined["tpot_ms"] = AT_ONCE
        return None
    return (last_ns - first_ns) / NS_PER_MS / (num_tokens - 1)


# One run


def run_metrics(
    requests: Sequence[RequestRecord],
    steps: Sequence[StepRecord],
    duration_s: float,
    config: RunnerConfig | None = None,
    gates: Mapping[str, float] | None = None,
) -> dict[str, Metric]:
    """Every metric of DEFINITIONS for one run, defined or None with a reason.

    `config` says what was switched on; None: the runner's defaults. `gates`: of goodput, by GATES, in ms.
    """
    config = config or RunnerConfig()
    measured = [latencies(request) for request in requests]
    has_completed = any(is_completed(request) for request in requests)
    found = [
        *_throughput(requests, duration_s),
        goodput(measured, gates or {}, duration_s) if has_completed else _GOODPUT.undefined(NONE_COMPLETED),
        *latency_metrics(measured, has_completed),
        *_step_times(requests, steps),
        *_counts(requests, steps),
        *_cache(requests, steps, config.prefix_caching),
        *_speculation(requests, steps, config.num_speculative_tokens > 0),
    ]
    return {metric.name: metric for metric in found}


def empty_metrics(reason: str) -> dict[str, Metric]:
    """Every metric undefined for one reason: a run of which nothing is known."""
    return {name: definition.undefined(reason) for name, definition in DEFINITIONS.items()}


def _throughput(requests: Sequence[RequestRecord], duration_s: float) -> Iterable[Metric]:
    completed = [request for request in requests if is_completed(request)]
    output = sum(request.num_output_tokens for request in completed)
    total = output + sum(request.num_prompt_tokens for request in completed)
    for definition, amount in zip(_THROUGHPUT, (len(completed), output, total), strict=True):
        if not completed:
            yield definition.undefined(NONE_COMPLETED)
        elif duration_s <= 0:
            yield definition.undefined(NO_TIME)
        else:
            yield definition.of(amount / duration_s, len(completed))


def goodput(measured: Sequence[Latencies], gates: Mapping[str, float], duration_s: float) -> Metric:
    """Requests a second that meet every gate; `measured`: of all requests, failed ones included."""
    if not gates:
        return _GOODPUT.undefined(NO_GATES)
    if duration_s <= 0:
        return _GOODPUT.undefined(NO_TIME)
    for name in gates:
        if not _defined(getattr(one, GATES[name]) for one in measured).size:
            reason = _why_undefined(GATES[name], measured)
            return _GOODPUT.undefined(f"no data: no request has a figure for the gate {name} ({reason})")
    completed = [one for one in measured if one.e2e_ms is not None]
    num_good = sum(all(_meets(one, GATES[name], limit) for name, limit in gates.items()) for one in completed)
    return _GOODPUT.of(num_good / duration_s, len(completed))


def _meets(one: Latencies, sample: str, limit_ms: float) -> bool:
    """A figure that is missing meets nothing, but a TPOT that one output token cannot have."""
    value: float | None = getattr(one, sample)
    return one.undefined.get(sample) == ONE_TOKEN if value is None else value <= limit_ms


def latency_metrics(measured: Sequence[Latencies], has_completed: bool = True) -> Iterable[Metric]:
    """The statistics of some requests' latencies; `has_completed`: whether any of the requests did."""
    gaps = [one.itl_ms for one in measured if one.itl_ms.size]
    samples: dict[str, Values] = {
        "ttft_ms": _defined(one.ttft_ms for one in measured),
        "tpot_ms": _defined(one.tpot_ms for one in measured),
        "itl_ms": np.concatenate(gaps) if gaps else np.empty(0),
        "e2e_ms": _defined(one.e2e_ms for one in measured),
        "queue_delay_ms": _defined(one.queue_delay_ms for one in measured),
        "send_delay_ms": _defined(one.send_delay_ms for one in measured),
    }
    for sample, values in samples.items():
        reason = NONE_COMPLETED if not has_completed else _why_undefined(sample, measured)
        for statistic in _SAMPLE_STATISTICS[sample]:
            yield _statistic(f"{statistic}_{sample}", statistic, values, reason)


def _defined(values: Iterable[float | None]) -> Values:
    return np.asarray([value for value in values if value is not None], dtype=np.float64)


def _why_undefined(sample: str, measured: Sequence[Latencies]) -> str:
    """The most frequent reason why requests lack this sample."""
    reasons = [one.undefined[sample] for one in measured if sample in one.undefined]
    return max(reasons, key=reasons.count) if reasons else "no request"


def _statistic(name: str, statistic: str, values: Values, reason: str) -> Metric:
    if not values.size:
        return DEFINITIONS[name].undefined(reason)
    return DEFINITIONS[name].of(_STATISTICS[statistic][1](values), int(values.size))


def _step_times(requests: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> Iterable[Metric]:
    clocks: dict[str, Values] = {
        "wall": step_wall_ms(requests, steps),
        "host": np.asarray([step.host_ns for step in steps], dtype=np.float64) / NS_PER_MS,
        "device": np.asarray([step.device_ns for step in steps], dtype=np.float64) / NS_PER_MS,
    }
    kinds = np.asarray([step.kind for step in steps], dtype=np.str_)
    for kind in STEP_KINDS:
        for clock, values in clocks.items():
            for statistic in _STEP_STATISTICS:
                name = f"{statistic}_{kind}_step_{clock}_ms"
                yield _statistic(name, statistic, values[kinds == kind], f"no {kind} step")


def step_wall_ms(requests: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> Values:
    """Wall time of each step, in order: from the previous step's end to its own, shape (steps,).

    Where every request sent so far had finished at the previous step's end the engine was waiting
    for an arrival, so the step counts from its own start instead.
    """
    return walls_ms(
        np.asarray([request.sent_ns for request in requests], dtype=np.int64),
        np.asarray([_finished_ns(request) for request in requests], dtype=np.int64),
        np.asarray([step.start_ns for step in steps], dtype=np.int64),
        np.asarray([step.end_ns for step in steps], dtype=np.int64),
    )


def walls_ms(sent: Times, finished: Times, starts: Times, ends: Times) -> Values:
    """`step_wall_ms` of columns in ns: of requests when they were sent and finished, of steps both ends."""
    if not starts.size:
        return np.empty(0)
    sent, finished = np.sort(sent), np.sort(finished)
    open_requests = np.searchsorted(sent, ends, "right") - np.searchsorted(finished, ends, "right")
    begins = starts.copy()
    is_busy = open_requests[:-1] > 0
    begins[1:][is_busy] = ends[:-1][is_busy]
    # A step that only finishes what had ended may begin inside the one before it: no time counts twice.
    begins[1:] = np.maximum(begins[1:], ends[:-1])
    walls: Values = (ends - begins) / NS_PER_MS
    return walls


def _finished_ns(request: RequestRecord) -> int:
    return request.sent_ns if request.finished_ns is None else request.finished_ns


def _counts(requests: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> Iterable[Metric]:
    completed = [request for request in requests if is_completed(request)]
    image_rows = sum(request.num_image_tokens for request in completed)
    prompt = sum(request.num_prompt_tokens for request in completed)
    amounts = {
        "completed_requests": (len(completed), len(requests)),
        "failed_requests": (len(requests) - len(completed), len(requests)),
        "output_tokens": (sum(r.num_output_tokens for r in completed), len(completed)),
        "prompt_tokens": (prompt, len(completed)),
        "text_prompt_tokens": (prompt - image_rows, len(completed)),
        "image_prompt_tokens": (image_rows, len(completed)),
        "images": (sum(r.num_images for r in completed), len(completed)),
        "steps": (len(steps), len(steps)),
        "preemptions": (sum(r.num_preemptions for r in requests), len(requests)),
        "recomputed_tokens": (sum(r.num_recomputed_tokens for r in requests), len(requests)),
        "wasted_tokens": (sum(r.num_wasted_tokens for r in requests), len(requests)),
        "supplied_tokens": (sum(r.num_supplied_tokens for r in completed), len(completed)),
        "upload_bytes": (sum(sum(step.bytes.values()) for step in steps), len(steps)),
        "upload_copies": (sum(sum(step.copies.values()) for step in steps), len(steps)),
    }
    for definition in _COUNTS:
        amount, num_samples = amounts[definition.name]
        yield definition.of(float(amount), num_samples)


def _cache(requests: Sequence[RequestRecord], steps: Sequence[StepRecord], is_on: bool) -> Iterable[Metric]:
    if not is_on:
        return [definition.undefined(CACHING_OFF) for definition in _CACHE]
    admitted = [request for request in requests if request.first_scheduled_ns is not None]
    cached = sum(request.num_cached_tokens for request in admitted)
    prompt = sum(request.num_prompt_tokens for request in admitted)
    hash_ms = sum(step.hash_ns for step in steps) / NS_PER_MS
    tokens, rate, hashing = _CACHE
    return [
        tokens.of(float(cached), len(admitted)),
        _percent(rate, cached, prompt, len(admitted), "no request was admitted"),
        hashing.of(hash_ms, len(steps)),
    ]


def _speculation(
    requests: Sequence[RequestRecord], steps: Sequence[StepRecord], is_on: bool
) -> Iterable[Metric]:
    if not is_on:
        return [definition.undefined(SPECULATION_OFF) for definition in _SPECULATION]
    num_drafted = sum(request.num_drafted_tokens for request in requests)
    num_accepted = sum(request.num_accepted_tokens for request in requests)
    num_rows = sum(step.num_decode_rows for step in steps)
    accepted_in_steps = sum(step.num_accepted_tokens for step in steps)
    drafted, accepted, rate, per_step = _SPECULATION
    return [
        drafted.of(float(num_drafted), len(requests)),
        accepted.of(float(num_accepted), len(requests)),
        _percent(rate, num_accepted, num_drafted, num_drafted, "no token was drafted"),
        per_step.of(1 + accepted_in_steps / num_rows, num_rows)
        if num_rows
        else per_step.undefined("no decode step"),
    ]


def _percent(definition: Definition, part: int, whole: int, num_samples: int, reason: str) -> Metric:
    """`part` of `whole` in percent; undefined for `reason` where there is no whole."""
    return definition.of(100 * part / whole, num_samples) if whole else definition.undefined(reason)
