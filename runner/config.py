"""RunnerConfig: the sizes a runner is built with; resolve(): is async allowed, and why not.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

from runner.core import FloatType, RunnerError
from runner.models import ModelSpec

Scheduling = Literal["sync", "async"]
RequestedScheduling = Literal["auto", "sync", "async"]
Rules = Literal["default", "gated"]
Attention = Literal["auto", "sdpa", "varlen", "triton"]
Fence = Literal["uploads", "embeddings"]

_TRUTH_VALUES = frozenset({"prefix_caching", "cuda_graphs", "torch_compile"})
_CHOICES = {"attention": get_args(Attention), "fence": get_args(Fence), "dtype": get_args(FloatType)}
_MAY_BE_ZERO = frozenset({"host_work_us", "num_speculative_tokens"})
_ASYNC_SPECULATIVE_METHODS = frozenset(
    {"eagle", "eagle3", "mtp", "ngram_gpu", "draft_model", "dspark", "dflash"}
)


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """Sizes in tokens, blocks and requests.

    `num_blocks` blocks of `block_size` positions each hold the keys and values of all requests;
    `num_encoder_slots` encoded images are kept; at most `max_images_per_step` images, and at most
    `max_encoder_tokens_per_step` rows of them, are encoded in a step. `prefix_caching` reuses the blocks of
    equal prompt beginnings. `num_speculative_tokens` drafts at most are proposed for a request in a step by
    prompt lookup: the continuation of the last earlier occurrence of its last `prompt_lookup_max` tokens, or
    of fewer, down to `prompt_lookup_min`.
    `num_resident_rows` supplied rows fit the arena of the arms that keep them on the device. `host_work_us`
    is busy host time added to every step: it stands for tokenising, detokenising, a slow scheduler.
    `attention` is how attention is computed, by default the best that the machine can; `cuda_graphs` captures
    decode steps on a GPU and replays them, where attention can be captured (sdpa cannot).
    `fence` is the event of a step that the host waits for before it writes the next one's input buffers:
    `uploads`, after the last copy that reads them; `embeddings`, as vLLM has it, after lookups, encoder runs
    and merges too, just before the forward (which a lookup inside a captured graph is part of). Either goes
    with every arm, device and other option; under sync scheduling a step is over before the next is planned.
    `torch_compile` compiles the language model's forward, attention apart, while the device is opened: for
    one token, for several, and for plain ids as well where the forward looks them up. It goes with every
    arm, device and attention; captured graphs then replay what was compiled.
    `dtype` is what weights, keys and values, image rows and supplied rows are held and computed in; tokens
    are sampled from float32 logits in any case.
    """

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256
    max_model_len: int = 512
    block_size: int = 16
    num_blocks: int = 512
    num_encoder_slots: int = 16
    max_images_per_step: int = 4
    max_encoder_tokens_per_step: int = 8192
    num_resident_rows: int = 4096
    num_threads: int = 1
    host_work_us: int = 0
    prefix_caching: bool = False
    num_speculative_tokens: int = 0
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 3
    attention: Attention = "auto"
    cuda_graphs: bool = True
    fence: Fence = "uploads"
    torch_compile: bool = False
    dtype: FloatType = "float32"

    def __post_init__(self) -> None:
        for item in fields(self):
            rule = _broken_rule(item.name, getattr(self, item.name))
            if rule is not None:
                raise RunnerError(f"runner.{item.name} is {getattr(self, item.name)!r}; it must be {rule}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise RunnerError(
                f"runner.prompt_lookup_min is {self.prompt_lookup_min}, more than "
                f"runner.prompt_lookup_max {self.prompt_lookup_max}; lower it"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise RunnerError(
                f"runner.max_num_batched_tokens is {self.max_num_batched_tokens}, less than "
                f"runner.max_num_seqs {self.max_num_seqs}: a step of all decodes would not fit; raise it"
            )

    def check_model(self, model: ModelSpec) -> None:
        """Refuse sizes this model cannot have (RunnerError)."""
        if self.max_model_len > model.max_position:
            raise RunnerError(
                f"runner.max_model_len is {self.max_model_len}, but {model.name} has "
                f"{model.max_position} positions; lower it"
            )

    @property
    def max_blocks_per_seq(self) -> int:
        return -(-self.max_model_len // self.block_size)


def _broken_rule(name: str, value: object) -> str | None:
    """What a field's value must be and is not."""
    if name in _TRUTH_VALUES:
        return None if isinstance(value, bool) else "true or false"
    if name in _CHOICES:
        known = _CHOICES[name]
        return None if value in known else f"one of {', '.join(known)}"
    least = 0 if name in _MAY_BE_ZERO else 1
    is_right = isinstance(value, int) and not isinstance(value, bool) and value >= least
    return None if is_right else f"a whole number of at least {least}"


@dataclass(frozen=True, slots=True)
class SchedulingFacts:
    """What the gate looks at; the defaults are this runner's own.

    The rules are vLLM's (vllm/config/vllm.py, VllmConfig.__post_init__); the rule set `gated` adds the one
    that vLLM #45383 added and #45673 took away again.
    """

    is_multimodal: bool
    prompt_embeds: bool
    is_pooling: bool = False
    executor_supports_async: bool = True
    speculative_method: str | None = None
    disable_padded_drafter_batch: bool = False
    pipeline_parallel_size: int = 1


class Decision(NamedTuple):
    """What was resolved, and the reason when it is not what automatic would have liked."""

    scheduling: Scheduling
    reason: str
    is_warning: bool = False


def resolve(
    requested: RequestedScheduling,
    facts: SchedulingFacts,
    rules: Rules = "default",
) -> Decision:
    """Automatic prefers async and falls back with a warning; RunnerError when explicit async is refused."""
    if requested == "sync":
        return Decision("sync", "asked for")
    refusal = next(_refusals(facts, rules), None)
    if requested == "async":
        if refusal is not None:
            raise RunnerError(f"async scheduling is not possible: {refusal}; ask for sync or auto")
        return Decision("async", "asked for")
    if refusal is not None:
        return Decision("sync", f"async scheduling is switched off: {refusal}", is_warning=True)
    if facts.is_pooling:
        return Decision("sync", "pooling gains nothing from async scheduling")
    return Decision("async", "automatic")


def _refusals(facts: SchedulingFacts, rules: Rules) -> Iterator[str]:
    if not facts.executor_supports_async:
        yield "the executor does not support it"
    method = facts.speculative_method
    if method is not None and method not in _ASYNC_SPECULATIVE_METHODS:
        known = ", ".join(sorted(_ASYNC_SPECULATIVE_METHODS))
        yield f"the speculative method {method!r} is not one of {known}"
    if facts.disable_padded_drafter_batch:
        yield "disable_padded_drafter_batch is set"
    if facts.pipeline_parallel_size > 1:
        yield f"pipeline parallel size is {facts.pipeline_parallel_size}, more than 1"
    if rules == "gated" and facts.is_multimodal and facts.prompt_embeds:
        yield "prompt_embeds on a multimodal model (rule of vLLM #45383)"
