"""vLLM's own scope names, and which of our spans do the same work. Stdlib only.

Names: `record_function_or_nullcontext` in vLLM 0.11 to 0.33, V1 runner (its V2 runner has none); turned on
there by VLLM_NVTX_SCOPES_FOR_PROFILING=1 or VLLM_CUSTOM_SCOPES_FOR_PROFILING=1.
"""

from __future__ import annotations

from collections.abc import Mapping

_RUNNER = "gpu_model_runner: "
_SCHEDULE = "schedule: "
_ENGINE = "llm_engine step: "

# What our preprocessing is made of. Uploads and embedding work lie in vLLM's `preprocess` as well.
_INPUTS = ("update_batch", "stage", "wait.fence", "compile", "launch")
_EMBEDDING = ("encode", "merge.ids", "lookup", "splice", "merge")
_DEVICE_INPUTS = ("upload.*", "flags", "place", "route.ids", "route.drafts", "positions")

SCOPES: Mapping[str, tuple[str, ...]] = {
    f"{_RUNNER}preprocess": (*_INPUTS, *_DEVICE_INPUTS, *_EMBEDDING),
    f"{_RUNNER}forward": ("forward",),
    f"{_RUNNER}postprocess": ("sample",),
    f"{_RUNNER}sample": ("sample", "logprobs"),
    f"{_RUNNER}draft": ("draft",),
    f"{_RUNNER}bookkeep": ("retire",),
    f"{_RUNNER}eplb": (),
    f"{_RUNNER}ModelRunnerOutput": ("retire",),
    f"{_RUNNER}AsyncGPUModelRunnerOutput": ("download",),
    f"{_RUNNER}set_async_sampled_token_ids": ("wait.output",),
    f"{_SCHEDULE}allocate_slots": ("schedule",),
    f"{_SCHEDULE}make_cached_request_data": ("schedule",),
    f"{_SCHEDULE}update_after_schedule": ("schedule",),
    f"{_ENGINE}get_output": ("wait.output",),
    f"{_ENGINE}process_outputs": ("retire",),
    f"{_ENGINE}abort_requests": (),
    f"{_ENGINE}record_stats": ("record",),
}
"""vLLM's scope -> our spans of the same work; none where we do no such work. `upload.*` is every upload.

In vLLM `postprocess` computes the logits and `sample` draws from them; our `sample` does both.
"""


def is_vllm_scope(name: str) -> bool:
    """Whether vLLM's runner, scheduler or engine names its ranges so, those we do not know included."""
    return name.startswith((_RUNNER, _SCHEDULE, _ENGINE))


def our_spans(scope: str) -> tuple[str, ...]:
    """Our spans of the same work; none for a scope that is not known."""
    return SCOPES.get(scope, ())


def covers(spans: tuple[str, ...], name: str) -> bool:
    """Whether a span's name is one of `spans`."""
    return name in spans or ("upload.*" in spans and name.startswith("upload."))
