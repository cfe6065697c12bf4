"""Everything at once: sampling, prefix caching, drafts, chunks, few blocks, aborts, under any right arm and
order of the device. What comes out is what a plain sync run with room for all gives.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from arm_models import MICRO
from arm_workloads import Arrivals, Recipe, request_of

from runner.config import RunnerConfig
from runner.core import FinishReason, Request, RequestState
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm
from runner.models import ModelSpec
from suite.oracle import Oracle
from suite.reported_logprobs import first_fault

Open = Callable[[str, ModelSpec, RunnerConfig], Device]

MAX_MODEL_LEN = 48
ROOMY = RunnerConfig(
    max_num_seqs=16, max_model_len=MAX_MODEL_LEN, num_blocks=64, num_resident_rows=400, num_encoder_slots=16
)
CHOICES: Mapping[str, Sequence[Any]] = {
    "temperature": (0.0, 0.0, 0.7, 1.0, 2.0),
    "top_k": (0, 0, 1, 5, 50),
    "top_p": (1.0, 1.0, 0.1, 0.5, 0.9),
    "min_p": (0.0, 0.0, 0.01, 0.1),
    "repetition_penalty": (1.0, 0.3, 0.3, 1.5),  # below 1: drafts are right now and then
    "frequency_penalty": (0.0, -2.0, -2.0, 0.5),
    "presence_penalty": (0.0, 0.0, -1.0, 1.5),
    "logprobs": (None, None, 0, 3, 20),
    "seed": (0, 1, 2**63 - 1),
}
COUNTS = ("num_preemptions", "num_cached", "num_accepted", "num_wasted", "num_recomputed")


class Watched(Arrivals):
    """Checks the pools before every step, and aborts at given calls."""

    def __init__(
        self, engine: Engine, arrivals: list[tuple[int, Request]], aborts: Mapping[int, list[str]]
    ) -> None:
        super().__init__(arrivals)
        self._engine = engine
        self._aborts = aborts

    def due(self) -> list[Request]:
        self._engine.scheduler.check()
        for name in self._aborts.get(self._calls, ()):
            self._engine.abort(name)
        return super().due()


@cache
def oracle_of(name: str) -> Oracle:
    return Oracle(next(model for model in MICRO if model.name == name), num_threads=1)


def drawn_config(draw: random.Random) -> RunnerConfig:
    block_size, rows = draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 4, 6))
    return RunnerConfig(
        max_num_seqs=rows,
        max_num_batched_tokens=max(rows, draw.choice((4, 7, 16, 40))),
        max_model_len=MAX_MODEL_LEN,
        block_size=block_size,
        num_blocks=-(-MAX_MODEL_LEN // block_size) + draw.choice((0, 1, 3, 10)),
        num_encoder_slots=draw.choice((1, 2, 4)),
        max_images_per_step=draw.choice((1, 2)),
        max_encoder_tokens_per_step=draw.choice((6, 7, 13, 100)),
        num_resident_rows=draw.choice((40, 60, 200)),
        prefix_caching=draw.random() < 0.8,
        num_speculative_tokens=draw.choice((0, 1, 2, 3, 5)),
        prompt_lookup_max=draw.choice((1, 3)),
    )


def drawn_requests(draw: random.Random, model: ModelSpec, arm: Arm) -> list[tuple[int, Request]]:
    """Few seeds for many prompts: they begin alike, and differ in length and kind."""
    arrivals, at = [], 0
    for index in range(draw.randint(5, 14)):
        kind: Any = draw.choice(("ids", "pure", "spliced"))
        num_images = draw.choice((0, 1, 2)) if model.is_multimodal and kind != "pure" else 0
        recipe = Recipe(
            kind, draw.randint(1, 18), num_images, draw.choice((1, 2, 5, 12, 40)), draw.choice((1, 2))
        )
        request = request_of(model, f"r{index}", recipe, arm.prompt_embeds, 0.1 * arm.prompt_embeds)
        arrivals.append((at, replace(request, sampling=drawn_sampling(draw, request))))
        at += draw.choice((0, 0, 1, 2, 5))
    return arrivals


def drawn_sampling(draw: random.Random, request: Request) -> Any:
    if draw.random() < 0.25:
        return request.sampling
    ids = request.prompt.token_ids or tuple(range(5, 15))
    params = {name: draw.choice(values) for name, values in CHOICES.items()}
    if draw.random() < 0.4:
        params["stop_token_ids"] = tuple(draw.choices(ids, k=8))
        params["min_tokens"] = draw.randint(0, request.sampling.max_tokens)
    if draw.random() < 0.3:
        params["bad_words"] = (tuple(draw.choices(ids, k=draw.randint(1, 2))),)
    return replace(request.sampling, **params)


def check_request(model: ModelSpec, state: RequestState, plain: RequestState) -> None:
    """As the plain run has it, up to an abort; where they part, both are right up to rounding."""
    request, found = state.request, state.output_ids
    if state.finish_reason is FinishReason.ABORTED:
        assert found == plain.output_ids[: len(found)] or ties(model, state, plain)
    else:
        same = (found, state.finish_reason) == (plain.output_ids, plain.finish_reason)
        assert same or ties(model, state, plain)
    if request.sampling.logprobs is None:
        assert state.logprobs == []
    else:
        expected = oracle_of(model.name).logprobs(request, found)
        assert first_fault(expected, found, state.logprobs, request.sampling.logprobs) is None


def ties(model: ModelSpec, *states: RequestState) -> bool:
    checks = [oracle_of(model.name).check(state.request, state.output_ids) for state in states]
    return any(check.num_ties for check in checks) and not any(check.num_wrong for check in checks)


def run_at_random(devices: Open, seed: int) -> Counter[str]:
    """What happened in it."""
    draw = random.Random(seed)
    model = MICRO[seed % len(MICRO)]
    arm = draw.choice([arm for arm in ARMS.values() if arm.is_right and arm.fits(model.is_multimodal)])
    config, kind = drawn_config(draw), draw.choice(("inline", "lazy", f"shuffle:{seed}"))
    arrivals = drawn_requests(draw, model, arm)
    aborts: dict[int, list[str]] = {}
    for at, request in arrivals:
        if draw.random() < 0.2:
            aborts.setdefault(at + draw.randint(1, 12), []).append(request.request_id)
    plain = Engine(
        model, ROOMY, devices("inline", model, ROOMY), ARMS["sync-rows" if arm.prompt_embeds else "sync-ids"]
    )
    plain.run(Arrivals(arrivals))
    with open_device(kind, model, config) as device:
        engine = Engine(model, config, device, arm)
        engine.run(Watched(engine, arrivals, aborts))
    happened: Counter[str] = Counter(runs=1)
    refused = [name for name, state in engine.requests.items() if state.error is not None]
    assert all("encoder" in str(engine.requests[name].error) for name in refused)
    for name in refused:
        del engine.requests[name]
    for name, state in engine.requests.items():
        check_request(model, state, plain.requests[name])
        for what in COUNTS:
            happened[what] += getattr(state, what)
        happened[str(state.finish_reason)] += 1
    engine.scheduler.check()
    assert engine.scheduler.blocks.num_free == config.num_blocks
    return happened


def test_all_features_at_once_change_no_token(devices: Open) -> None:
    happened: Counter[str] = Counter()
    for seed in range(24):
        happened += run_at_random(devices, seed)
    for what in COUNTS:
        assert happened[what] > 0, what
    for reason in (
        FinishReason.ABORTED,
        FinishReason.STOP,
        FinishReason.MAX_TOKENS,
        FinishReason.MODEL_LENGTH,
    ):
        assert happened[str(reason)] > 0, reason
