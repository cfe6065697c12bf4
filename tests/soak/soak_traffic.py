"""Traffic without end: random requests, aborts and bad requests, checked and forgotten as they finish.

Everything is drawn from a seed, and nothing depends on time, so a run repeats itself on every device.
"""

from __future__ import annotations

import ctypes
import gc
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import psutil
from arm_bad_prompts import BAD
from arm_models import MICRO
from arm_reference import reference_of
from arm_workloads import Recipe, request_of

from runner.config import RunnerConfig
from runner.core import FinishReason, Prompt, Request, RequestError, RequestState, SamplingParams
from runner.engine import Engine
from runner.models import ModelSpec
from suite.oracle import Oracle
from suite.reported_logprobs import first_fault

# Fewer blocks than the running requests want: preemption is common.
CONFIG = RunnerConfig(
    max_num_seqs=8,
    max_num_batched_tokens=40,
    max_model_len=48,
    block_size=4,
    num_blocks=24,
    num_encoder_slots=3,
    max_images_per_step=2,
    num_resident_rows=40,
)
# Guesses, and blocks of others: what is in flight is never certain.
FULL = replace(CONFIG, prefix_caching=True, num_speculative_tokens=2, max_encoder_tokens_per_step=6)
PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.9, "top_p": 0.9, "logprobs": 2},
    {"temperature": 0.7, "top_k": 40, "presence_penalty": 0.5},
    {"repetition_penalty": 0.3, "frequency_penalty": -2.0},
    {"bad_words": ((7, 8), (9,)), "min_tokens": 1},
)
NUM_PROMPTS = 300
MAX_ALIVE = 14
_BAD_SHARE = 0.03
_ABORT_SHARE = 0.05  # of the steps
_VERIFIED_SHARE = 0.1
_SAMPLED_SHARE = 0.3
_BAD_NAMES = tuple(BAD)


@cache
def prompts_of(model_name: str, prompt_embeds: bool) -> tuple[Prompt, ...]:
    """Prompts of all kinds and lengths; the same ones as ids where embeddings are not taken."""
    (model,) = (model for model in MICRO if model.name == model_name)
    draw = random.Random(11)
    made = []
    for seed in range(NUM_PROMPTS):
        kind = draw.choice(("ids", "ids", "pure", "spliced"))
        images = draw.choice((0, 0, 1, 2)) if model.is_multimodal and kind != "pure" else 0
        recipe = Recipe(kind, draw.randint(1, 18), images, seed=seed)
        made.append(request_of(model, "", recipe, prompt_embeds, noise=0.1 * (seed % 2 and prompt_embeds)))
    return tuple(request.prompt for request in made)


@cache
def eos_of(model_name: str) -> int:
    """The third token of the first prompt, which is drawn often."""
    return reference_of(model_name).greedy(prompts_of(model_name, False)[0], 3)[2]


@cache
def oracle_of(model: str) -> Oracle:
    (spec,) = (spec for spec in MICRO if spec.name == model)
    return Oracle(with_eos(spec), num_threads=1)


def is_right(model: ModelSpec, state: RequestState) -> bool:
    """By the reference, or the oracle where something is asked of the sampler; no verdict is kept."""
    request, output = state.request, state.output_ids
    if request.sampling.is_plain:
        return reference_of(model.name)._judge(request.prompt, output) is None
    oracle = oracle_of(model.name)
    check = oracle.check(request, output)
    oracle._checks.clear()
    width = request.sampling.logprobs
    if width is not None:
        log_probs = oracle.logprobs(request, output)
        assert first_fault(log_probs, output, state.logprobs, width) is None
    return check.num_wrong == 0 and check.num_ties <= 1


def with_eos(model: ModelSpec) -> ModelSpec:
    return replace(model, eos_token_id=eos_of(model.name))


@dataclass(slots=True)
class Ledger:
    """What a soak went through; samples are taken when nothing is alive."""

    counts: Counter[str] = field(default_factory=Counter)
    objects: list[int] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    allocated_bytes: list[int] = field(default_factory=list)
    open_files: list[int] = field(default_factory=list)

    def sample(self) -> None:
        gc.collect()
        give_back_freed_memory()
        self.objects.append(len(gc.get_objects()))
        self.resident_bytes.append(psutil.Process().memory_info().rss)
        self.allocated_bytes.append(allocated_bytes())
        self.open_files.append(psutil.Process().num_fds())


def give_back_freed_memory() -> None:
    """Without this, what is kept may lie in memory that other tests freed, and not show as resident."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc's


_MALLINFO2 = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`, over all its arenas."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO2)


def allocated_bytes() -> int:
    """Bytes that are allocated at this moment, tensors among them; 0 where the C library does not tell.

    A process that ran thousands of other tests has gigabytes of heap: its resident size moves by megabytes
    with where the allocator finds room, and what is allocated does not.
    """
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return 0
    mallinfo2.restype = _MallocInfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


class Traffic:
    """Arrivals of `num_requests` for one engine, with a rest after every `rest_every` of them."""

    def __init__(
        self, engine: Engine, model: ModelSpec, num_requests: int, rest_every: int, seed: int, ledger: Ledger
    ) -> None:
        self._engine = engine
        self._model = model
        self._left = num_requests
        self._rest_every = rest_every
        self._until_rest = rest_every
        self._draw = random.Random(seed)
        self._ledger = ledger
        self._prompts = prompts_of(model.name, engine._arm.prompt_embeds)
        self._bad: dict[str, str] = {}
        self._aborted: set[str] = set()
        self._num_made = 0

    def due(self) -> list[Request]:
        self._engine.scheduler.check()
        self._settle()
        if self._draw.random() < _ABORT_SHARE:
            self._abort_one()
        room = min(self._until_rest, self._left, MAX_ALIVE - len(self._engine.requests))
        count = min(room, self._draw.choice((0, 0, 1, 2, 5)))
        if not self._engine.requests:
            count = max(count, min(1, room))
        self._until_rest -= count
        self._left -= count
        return [self._next() for _ in range(count)]

    def wait(self) -> bool:
        """Nothing runs. If nothing is to come before the rest either, everything must be as at the start."""
        self._settle()
        engine = self._engine
        assert (engine.requests, engine.scheduler.requests, engine.recorder.timelines) == ({}, {}, {})
        assert engine.scheduler.blocks.num_free == CONFIG.num_blocks
        assert engine.scheduler.resident_rows.num_free == CONFIG.num_resident_rows
        assert not engine.scheduler.prefix_cache._hashes, "hashes of requests are kept"
        if not self._until_rest or not self._left:
            self._ledger.sample()
            self._until_rest = self._rest_every
        return self._left > 0

    # ---- what is sent

    def _next(self) -> Request:
        self._num_made += 1
        name = f"r{self._num_made}"
        draw = self._draw
        if draw.random() < _BAD_SHARE:
            reason = draw.choice(_BAD_NAMES)
            self._bad[name] = reason
            return Request(name, BAD[reason](self._model), SamplingParams(4))
        prompt = self._prompts[0 if draw.random() < 0.1 else draw.randrange(NUM_PROMPTS)]
        asked = draw.choice(PARAMS) if draw.random() < _SAMPLED_SHARE else {}
        sampling = SamplingParams(
            draw.randint(1, 9), ignore_eos=draw.random() < 0.5, **{"seed": self._num_made, **asked}
        )
        return Request(name, prompt, sampling)

    def _abort_one(self) -> None:
        """Of all moments that a request can be aborted at, one that somebody is at; rare ones as often."""
        at: dict[str, list[str]] = {}
        for name, state in self._engine.requests.items():
            if not state.is_finished:
                at.setdefault(_moment(state), []).append(name)
        if at:
            moment = self._draw.choice(sorted(at))
            name = self._draw.choice(at[moment])
            self._ledger.counts[f"aborted {moment}"] += 1
            self._aborted.add(name)
            self._engine.abort(name)

    # ---- what has finished

    def _settle(self) -> None:
        """Check and forget who has finished and is in no step in flight."""
        for step in self._engine.drain_steps():
            self._ledger.counts["preempted"] += step.num_preempted
            self._ledger.counts["accepted"] += step.num_accepted_tokens
            self._ledger.counts[f"{step.embeds_route} {step.ids_route}"] += 1
        for name, state in list(self._engine.requests.items()):
            if state.is_finished:
                num_told = len(self._engine.recorder.timelines[name].token_ns)
                try:
                    self._engine.forget(name)
                except RequestError:
                    continue  # its last step is not retired yet
                assert num_told == len(state.output_ids)
                self._judge(name, state)

    def _judge(self, name: str, state: RequestState) -> None:
        self._ledger.counts["settled"] += 1
        reason = state.finish_reason
        assert reason is not None
        bad = self._bad.pop(name, None)
        if bad is not None:
            assert (reason, state.output_ids) == (FinishReason.ERROR, []), bad
            self._ledger.counts[f"refused: {bad}"] += 1
            return
        assert state.error is None, state.error
        assert (state.slot, state.block_ids, state.num_in_flight, state.resident_first) == (None, [], 0, None)
        self._ledger.counts[reason.value] += 1
        self._ledger.counts["wasted"] += state.num_wasted
        self._ledger.counts["cached"] += state.num_cached
        if name in self._aborted:
            self._aborted.remove(name)
            assert reason is FinishReason.ABORTED
        elif reason is FinishReason.EOS:
            assert state.output_ids[-1] == eos_of(self._model.name)
        else:
            assert len(state.output_ids) == state.request.sampling.max_tokens
        if state.output_ids and self._draw.random() < _VERIFIED_SHARE:
            self._ledger.counts["verified"] += 1
            assert is_right(self._model, state), f"{name}: a token is wrong"


def _moment(state: RequestState) -> str:
    if state.num_in_flight:
        return f"{state.status.value} with a token in flight"
    if 0 < state.num_computed < state.num_prompt:
        return "in its prompt"
    return state.status.value
