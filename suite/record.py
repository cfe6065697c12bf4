"""The typed result of one run: what runs.jsonl, requests/<run>.parquet and summary.json are made of.

A record is immutable and holds raw values; failures are values in it, never missing rows. JSON is strict:
an undefined value is null with a reason beside it, never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from runner.core import FloatType
from runner.models import ImageAttention
from runner.repeats import Turn
from runner.spans import Level
from runner.sync_check import SyncCheck

SCHEMA_VERSION = 1


Settles = Literal["batch", "queue"]
"""What of a run should settle: the batch of a closed loop, or the queue before an open loop of one rate."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="null")


class Status(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Metric(_Frozen):
    """One figure. `value` is None exactly when `reason` says why. `num_samples` values went into it."""

    name: str
    value: float | None
    unit: str
    num_samples: int
    better: Literal["higher", "lower", "neither"]
    reason: str | None = None


class TokenVerdict(_Frozen):
    """Output tokens of a run held against the oracle. `first_wrong` names a request and output index."""

    num_checked: int
    num_right: int
    num_wrong: int
    num_ties: int
    num_requests_right: int
    num_requests_wrong: int
    first_wrong: tuple[str, int] | None = None

    @property
    def is_right(self) -> bool:
        return self.num_wrong == 0 and self.num_checked > 0


class LogprobVerdict(_Frozen):
    """Log-probabilities of a run held against the oracle's. `num_checked` counts output tokens.

    `max_error`: the largest absolute difference; None where none was given as a number. `first_wrong` names
    a request and output index.
    """

    num_checked: int
    num_wrong: int
    max_error: float | None
    first_wrong: tuple[str, int] | None = None


class Failure(_Frozen):
    """Why a run or a request came to nothing: a kind, one sentence, and the tail of the traceback."""

    kind: str
    message: str
    detail: str = ""


class CpuUse(_Frozen):
    """What the cores that a run may use did meanwhile, in seconds of one core, by the kernel's counts.

    `own_s`: of the suite, its worker and the device's process. `stolen_s`: what the hypervisor took; None
    where the kernel does not tell. Counted in ticks, 10 ms on most systems: little of a short run is known.
    """

    wall_s: float
    num_cores: int
    busy_s: float
    own_s: float
    stolen_s: float | None = None

    @property
    def capacity_s(self) -> float:
        return self.wall_s * self.num_cores

    @property
    def foreign_s(self) -> float:
        """Used by processes that are not ours."""
        return max(0.0, self.busy_s - self.own_s)


class GpuUse(_Frozen):
    """What the driver said of the GPU while a run computed. None: it does not tell."""

    name: str
    sm_clock_mhz: int | None = None  # median
    throttled_by: tuple[str, ...] = ()  # what slowed it down, each once
    num_other_processes: int | None = None  # that computed on it when the run ended
    temperature_c: int | None = None  # when the run ended


class CompileUse(_Frozen):
    """Of a run under torch.compile: graphs compiled before the first run and how long that took, which no
    figure of a run includes; and those compiled within the run, where none should be.
    """

    num_graphs: int
    duration_s: float
    num_within: int


class StepListRecord(_Frozen):
    """Of a run whose traffic is a list of steps. `hash` is of what each computes.

    `lead_in`: steps [first, end) that only bring rows as far as decoding. `commands`: for each kind of the
    other steps a digest of the arm's compiled commands; two arms with the same one do the same there. Empty
    where that cannot be told beforehand. `difference`: where the run left its list; None where it kept to it.
    """

    hash: str
    num_steps: int
    lead_in: tuple[tuple[int, int], ...]
    commands: Mapping[str, str]
    difference: str | None = None

    def is_lead_in(self, step_id: int) -> bool:
        return any(first <= step_id < end for first, end in self.lead_in)


class RunRecord(_Frozen):
    """One run: one arm, once, in one round of one case."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    scenario: str
    case_id: str  # content hash of the resolved case
    case_label: str  # e.g. "multimodal_ratio=0.5"; the scenario's name where nothing is swept
    case_values: Mapping[str, object]  # swept key -> value
    arm: str
    round: int
    is_warmup: bool
    status: Status
    device: str
    seed: int
    workload_hash: str
    started_utc: str
    duration_s: float
    metrics: Mapping[str, Metric]
    tokens: TokenVerdict | None = None
    logprobs: LogprobVerdict | None = None  # None: no request asked for any, or none was checked
    failure: Failure | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # what to beware of in its figures, though no rule is broken
    num_steps: int = 0
    num_requests: int = 0
    max_concurrency: int | None = None  # how many requests the schedule let in at once; None: no limit
    scheduling: Literal["sync", "async"] | None = None  # what the gate decided, and why
    scheduling_reason: str | None = None
    is_control: bool = False  # a negative control: its arm is wrong by design
    rotation: int | None = None  # of a token check: by how many requests the order was rotated
    predicts_wrong: bool | None = None  # of a control: whether its flags predict wrong tokens; None: unknown
    instrument: Level = "off"  # what recorded its spans; above off its times enter no verdict
    sync_check: SyncCheck = "off"  # whether silent waits were looked for, which takes time as well
    repeats: Mapping[str, int] = {}  # of an amplified run: span -> how often its commands were run, at most
    turns: tuple[Turn, ...] = ()  # and in which step (runner/repeats.py); none: in every step
    is_aa: bool = False  # the reference arm once more in its round: for the noise floor, and for ratios to it
    side: Literal["head", "baseline"] | None = None  # of two checkouts that took turns; None: of one alone
    step_list: StepListRecord | None = None  # None: the traffic is no list of steps
    clock_uncertainty_ns: int | None = None  # of device times on the host's clock; None: no spans of it
    settles: Settles | None = None  # what of it should settle; None: nothing can be asked
    begins_alike: bool | None = None  # whether prompts share their beginnings by design; None: unknown
    cpu: CpuUse | None = None  # None: not counted
    compiled: CompileUse | None = None  # None: torch.compile is off
    gpu: GpuUse | None = None  # None: no GPU, or nobody watched it (a note says why)
    dtype: FloatType = "float32"  # what the model computed in
    image_attention: ImageAttention | None = None  # None: a text model, or not recorded

    def is_lead_in(self, step_id: int) -> bool:
        """Whether a step only brings rows as far as decoding, so that nothing is said of it."""
        return self.step_list is not None and self.step_list.is_lead_in(step_id)

    @property
    def is_completed(self) -> bool:
        return self.status is Status.COMPLETED

    @property
    def is_instrumented(self) -> bool:
        """Whether its spans are those of the plain run: instruments, and nothing amplified."""
        return self.instrument != "off" and not self.repeats

    @property
    def is_measured(self) -> bool:
        """Whether it is a round of its arm: no warm-up, instrument, amplification or A/A repeat."""
        return self.is_timed_alike and not self.is_aa

    @property
    def is_timed_alike(self) -> bool:
        """Whether it was run as measured runs are: those, and the reference arm's A/A repeats."""
        if self.sync_check != "off" or self.rotation is not None:
            return False
        return not self.is_warmup and self.instrument == "off" and not self.repeats


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request of one run: a row of requests/<run>.parquet. Times as in StepRecord (ns, one clock).

    Latencies count from `scheduled_ns`, the arrival the workload asked for, not from when it was sent.
    """

    request_id: str
    kind: str  # suite.workload.RequestKind
    num_prompt_tokens: int  # all positions, image rows included
    num_image_tokens: int
    num_images: int
    requested_output_tokens: int
    num_output_tokens: int
    scheduled_ns: int
    sent_ns: int
    first_scheduled_ns: int | None  # launch of the first step that computed any of it
    token_ns: tuple[int, ...]  # when the host held each output token
    finished_ns: int | None
    finish_reason: str  # FinishReason.value
    error: str | None
    num_preemptions: int
    num_recomputed_tokens: int
    output_ids: tuple[int, ...]
    num_tokens_right: int | None = None  # None: not checked
    num_tokens_wrong: int | None = None
    num_tokens_tied: int | None = None
    num_wasted_tokens: int = 0  # computed for nothing: the request had ended
    num_supplied_tokens: int = 0  # prompt positions whose row was supplied
    first_wrong: int | None = None  # index of the first wrong output token; None: none, or not checked
    num_cached_tokens: int = 0  # prompt positions the prefix cache gave
    num_drafted_tokens: int = 0  # draft tokens computed to be verified
    num_accepted_tokens: int = 0  # of them, those that were right
    logprobs: tuple[float, ...] | None = None  # of each output token; None: not asked for
    expected_from: int | None = None  # index of the first of `expected_ids`; None: there are none
    expected_ids: tuple[int, ...] | None = None  # the reference's, around the first wrong token
    expected_texts: tuple[str, ...] | None = None  # of them, and of the ids that came; None: no tokenizer
    produced_texts: tuple[str, ...] | None = None
