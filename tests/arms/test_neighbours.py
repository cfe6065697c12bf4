"""A request that fails, however and whenever, changes no token of the requests beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from arm_bad_prompts import BAD
from arm_models import MICRO, MICRO_GEMMA3_VL, MICRO_QWEN3
from arm_reference import reference_of
from arm_workloads import Arrivals, Recipe, outputs, request_of

from runner.config import RunnerConfig
from runner.core import FinishReason, Prompt, Request, RequestState, SamplingParams
from runner.device.base import Device
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm
from runner.models import ModelSpec

# A budget that cuts the failing prompt, and slots for all but one, so that someone waits.
CONFIG = RunnerConfig(
    max_num_seqs=3,
    max_num_batched_tokens=9,
    max_model_len=48,
    block_size=4,
    num_blocks=22,
    num_encoder_slots=2,
    num_resident_rows=40,
)
FAILS_AT = 1
PAIRS = [
    pytest.param(model, arm, id=f"{model.name}-{arm.name}")
    for model in MICRO
    for arm in ARMS.values()
    if arm.is_right and arm.fits(model.is_multimodal)
]
PROCESS_PAIRS = [
    pytest.param(model, ARMS[name], id=f"{model.name}-{name}")
    for model, name in (
        (MICRO_GEMMA3_VL, "refresh"),
        (MICRO_GEMMA3_VL, "fused"),
        (MICRO_GEMMA3_VL, "gated"),
        (MICRO_QWEN3, "text"),
    )
]


@cache
def neighbours(model_name: str, prompt_embeds: bool) -> tuple[Request, ...]:
    (model,) = (model for model in MICRO if model.name == model_name)
    images = int(model.is_multimodal)
    recipes = (
        Recipe("pure", 5, max_tokens=5, seed=1),
        Recipe("spliced", 6, images, max_tokens=4, seed=2),
        Recipe("ids", 4, max_tokens=6, seed=3),
    )
    return tuple(
        request_of(model, f"r{index}", recipe, prompt_embeds) for index, recipe in enumerate(recipes)
    )


class Served:
    """Runs of the neighbours, with and without one more request, on one device under one arm.

    `gap`: `due` calls between two neighbours; with 0 they take all the slots before anybody else comes.
    """

    def __init__(self, model: ModelSpec, arm: Arm, device: Device, gap: int = 2) -> None:
        self._model, self._arm, self._device, self._gap = model, arm, device, gap
        self._alone = outputs(self._run(Arrivals(self._arrivals())))

    def _arrivals(self) -> list[tuple[int, Request]]:
        return [
            (self._gap * index, made)
            for index, made in enumerate(neighbours(self._model.name, self._arm.prompt_embeds))
        ]

    def _run(self, arrivals: Arrivals, engine: Engine | None = None) -> Engine:
        engine = engine or self.engine()
        engine.run(arrivals)
        return engine

    def engine(self) -> Engine:
        return Engine(self._model, CONFIG, self._device, self._arm)

    def beside(self, prompt: Prompt) -> RequestState:
        """What became of a request of that prompt, nobody else being disturbed."""
        bad = Request("bad", prompt, SamplingParams(4, ignore_eos=True))
        engine = self._run(Arrivals([*self._arrivals(), (FAILS_AT, bad)]))
        self._check(engine)
        return engine.requests["bad"]

    def beside_aborted(self, request: Request, is_time: Callable[[RequestState], bool]) -> RequestState:
        """The same, for a good request that is aborted when `is_time` says so of its state."""
        engine = self.engine()
        arrivals = Aborting(engine, [*self._arrivals(), (FAILS_AT, request)], request.request_id, is_time)
        self._check(self._run(arrivals, engine))
        assert arrivals.is_done, "the moment to abort it never came"
        return engine.requests[request.request_id]

    def _check(self, engine: Engine) -> None:
        engine.scheduler.check()
        assert engine.scheduler.blocks.num_free == CONFIG.num_blocks
        assert {
            name: tokens for name, tokens in outputs(engine).items() if name in self._alone
        } == self._alone
        reference = reference_of(self._model.name)
        for name, state in engine.requests.items():
            if state.output_ids:
                assert reference.first_wrong(state.request, state.output_ids) is None, name


class Aborting(Arrivals):
    def __init__(
        self,
        engine: Engine,
        arrivals: list[tuple[int, Request]],
        name: str,
        is_time: Callable[[RequestState], bool],
    ) -> None:
        super().__init__(arrivals)
        self.is_done = False
        self._engine, self._name, self._is_time = engine, name, is_time

    def due(self) -> list[Request]:
        state = self._engine.requests.get(self._name)
        if not self.is_done and state is not None and self._is_time(state):
            self._engine.abort(self._name)
            self.is_done = True
        return super().due()


def check_refusals(model: ModelSpec, arm: Arm, device: Device) -> None:
    served = Served(model, arm, device)
    for reason, prompt_of in BAD.items():
        state = served.beside(prompt_of(model))
        assert state.finish_reason is FinishReason.ERROR, reason
        assert state.error is not None and "bad" in state.error, reason
        assert state.output_ids == [], reason


def check_aborts(model: ModelSpec, arm: Arm, device: Device) -> None:
    served, crowded = Served(model, arm, device), Served(model, arm, device, gap=0)
    images = int(model.is_multimodal)
    for recipe in (
        Recipe("pure", 20, max_tokens=9, seed=7),
        Recipe("spliced", 18, images, max_tokens=9, seed=8),
        Recipe("ids", 18, images, max_tokens=9, seed=9),
    ):
        made = request_of(model, "aborted", recipe, arm.prompt_embeds)
        waiting = crowded.beside_aborted(made, lambda state: state.num_computed == 0)
        prefill = served.beside_aborted(made, lambda state: 0 < state.num_computed < state.num_prompt)
        decode = served.beside_aborted(made, lambda state: len(state.output_ids) == 2)
        assert {state.finish_reason for state in (waiting, prefill, decode)} == {FinishReason.ABORTED}
        assert (waiting.output_ids, prefill.output_ids, len(decode.output_ids)) == ([], [], 2)
        assert (waiting.num_wasted, decode.num_wasted) == (
            0,
            int(served.engine().decision.scheduling == "async"),
        )


@pytest.mark.parametrize(("model", "arm"), PAIRS)
def test_a_request_that_is_refused_disturbs_nobody(model: ModelSpec, arm: Arm, devices: Any) -> None:
    check_refusals(model, arm, devices("inline", model, CONFIG))


@pytest.mark.parametrize(("model", "arm"), PAIRS)
def test_a_request_that_is_aborted_disturbs_nobody(model: ModelSpec, arm: Arm, devices: Any) -> None:
    check_aborts(model, arm, devices("inline", model, CONFIG))


@pytest.mark.parametrize(("model", "arm"), PROCESS_PAIRS)
def test_nor_does_it_on_a_device_that_runs_beside_the_host(model: ModelSpec, arm: Arm, devices: Any) -> None:
    device = devices("process", model, CONFIG)
    check_refusals(model, arm, device)
    check_aborts(model, arm, device)
