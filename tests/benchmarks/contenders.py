"""Who is compared on throughput: this runner and transformers' own two ways to generate.

All serve the same requests on the same weights in float32 and are timed from the first request to the
last token; loading a model, starting a device and allocating a cache come before.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from runner.config import RunnerConfig
from runner.core import Request
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.measure import StepRecord
from runner.models import TINY_QWEN3
from runner.weights import build_model

# One thread computes for every contender; on the process device the runner's host half, which mostly
# waits, runs on another core. With more threads, a core that another program wants for a moment stalls
# every parallel region, and the figures say little else.
NUM_THREADS = 1

CONFIG = RunnerConfig(
    max_num_seqs=64,
    max_num_batched_tokens=512,
    max_model_len=512,
    num_blocks=2048,
    num_threads=NUM_THREADS,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One timed service of a case: output ids in the order of the requests."""

    seconds: float
    outputs: tuple[tuple[int, ...], ...]


class Contender(ABC):
    name: str

    @abstractmethod
    def serve(self, requests: Sequence[Request]) -> Outcome:
        """Serve all requests, present at once, each to exactly its `max_tokens`."""


class _AllAtOnce:
    """Arrivals: every request is there from the start."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._left: Sequence[Request] = requests

    def due(self) -> Sequence[Request]:
        due, self._left = self._left, ()
        return due

    def wait(self) -> bool:
        return False


class Runner(Contender):
    """This runner, synchronous scheduling, on a device that stays open. Keeps the last run's steps."""

    def __init__(self, kind: str, device: Device) -> None:
        self.name = f"runner, {kind}"
        self.steps: Sequence[StepRecord] = ()
        self._device = device

    def serve(self, requests: Sequence[Request]) -> Outcome:
        torch.set_num_threads(NUM_THREADS)
        engine = Engine(TINY_QWEN3, CONFIG, self._device)
        start = time.perf_counter()
        engine.run(_AllAtOnce(requests))
        seconds = time.perf_counter() - start
        self.steps = engine.recorder.steps
        states = (engine.requests[request.request_id] for request in requests)
        return Outcome(seconds, tuple(tuple(state.output_ids) for state in states))


class Generate(Contender):
    """`generate`: one batch, padded on the left, run until the longest output is done."""

    name = "generate"

    def __init__(self, model: Any) -> None:
        self._model = model

    def serve(self, requests: Sequence[Request]) -> Outcome:
        torch.set_num_threads(NUM_THREADS)
        prompts = [request.prompt.token_ids for request in requests]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + [*prompt] for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        lengths = [request.sampling.max_tokens for request in requests]
        config = GenerationConfig(do_sample=False, pad_token_id=0, max_new_tokens=max(lengths))
        start = time.perf_counter()
        with torch.inference_mode():
            rows = self._model.generate(ids, attention_mask=mask, generation_config=config)
        seconds = time.perf_counter() - start
        outputs = zip(rows[:, width:].tolist(), lengths, strict=True)
        return Outcome(seconds, tuple(tuple(row[:length]) for row, length in outputs))


class GenerateBatch(Contender):
    """What `generate_batch` runs, transformers' continuous batching, asked for each own length.

    `generate_batch` itself takes one length for all requests and would compute tokens nobody wants.
    """

    name = "generate_batch"

    def __init__(self, model: Any) -> None:
        self._model = model
        self._generation = GenerationConfig(do_sample=False, pad_token_id=0)
        self._batching = ContinuousBatchingConfig(
            page_size=CONFIG.block_size,
            num_blocks=CONFIG.num_blocks,
            max_batch_tokens=CONFIG.max_num_batched_tokens,
            max_requests_per_batch=CONFIG.max_num_seqs,
            allow_block_sharing=False,
            use_cuda_graph=False,
        )

    def serve(self, requests: Sequence[Request]) -> Outcome:
        torch.set_num_threads(NUM_THREADS)
        with torch.inference_mode(), self._manager() as manager:
            self._collect(manager, [("set-up", requests[0].prompt.token_ids, 1)])
            wanted = [
                (request.request_id, request.prompt.token_ids, request.sampling.max_tokens)
                for request in requests
            ]
            start = time.perf_counter()
            finished = self._collect(manager, wanted)
            seconds = time.perf_counter() - start
        return Outcome(seconds, tuple(finished[request.request_id] for request in requests))

    def _manager(self) -> Any:
        return self._model.continuous_batching_context_manager(
            generation_config=self._generation,
            continuous_batching_config=self._batching,
            block=True,
            timeout=30,
        )

    def _collect(
        self, manager: Any, wanted: Sequence[tuple[str, Sequence[int], int]]
    ) -> dict[str, tuple[int, ...]]:
        for request_id, prompt, length in wanted:
            manager.add_request([*prompt], request_id=request_id, max_new_tokens=length)
        finished: dict[str, tuple[int, ...]] = {}
        while len(finished) < len(wanted):
            result = manager.get_result(timeout=1)
            if result is None:
                assert manager.is_running(), "continuous batching ended before its requests did"
            elif result.is_finished():
                assert result.error is None, result.error
                finished[result.request_id] = tuple(result.generated_tokens)
        return finished


@contextmanager
def open_contenders() -> Iterator[tuple[Contender, ...]]:
    """All contenders, the runner on both CPU devices."""
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    model = build_model(TINY_QWEN3)
    model.generation_config.eos_token_id = None  # every request runs to its length
    with (
        open_device("inline", TINY_QWEN3, CONFIG) as inline,
        open_device("process", TINY_QWEN3, CONFIG) as process,
    ):
        yield (
            Runner("process", process),
            Runner("inline", inline),
            Generate(model),
            GenerateBatch(model),
        )
