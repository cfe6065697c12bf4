"""The async loop: what it may compute ahead, what it wastes, and what it gives back."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from arm_models import MICRO, MICRO_GEMMA3_VL, MICRO_QWEN3
from arm_probes import probed
from arm_reference import reference_of
from arm_workloads import (
    Arrivals,
    Case,
    Recipe,
    check_finished,
    outputs,
    request_of,
    serve,
    wrong_requests,
)

from runner.admission import admit
from runner.commands import OUTPUT_READY, Command
from runner.config import RunnerConfig
from runner.core import FinishReason, Prompt, Request, RequestStatus, SamplingParams, StepResult
from runner.device.base import Device
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm
from runner.models import ModelSpec
from runner.scheduler import Scheduler

CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=24,
    max_model_len=48,
    block_size=4,
    num_blocks=48,
    num_encoder_slots=2,
    num_resident_rows=80,
)
ASYNC = [arm for arm in ARMS.values() if arm.scheduling == "async"]
RIGHT = [arm for arm in ARMS.values() if arm.is_right]


def fitting(arms: Sequence[Arm], model: ModelSpec) -> list[Arm]:
    return [arm for arm in arms if arm.fits(model.is_multimodal)]


def num_computed(engine: Engine) -> int:
    return sum(step.num_tokens for step in engine.recorder.steps)


# ---- how a request ends


@pytest.mark.parametrize("arm", ASYNC, ids=lambda arm: arm.name)
def test_max_tokens_costs_no_token_more_than_in_sync(arm: Arm, devices: Any) -> None:
    model = MICRO_QWEN3 if arm.models == "text" else MICRO_GEMMA3_VL
    recipes = tuple(Recipe("ids", 5, max_tokens=n, seed=n) for n in (1, 2, 3, 7))
    engine = serve(Case(model, CONFIG, recipes), devices("inline", model, CONFIG), arm)
    check_finished(engine)
    assert all(state.num_wasted == 0 for state in engine.requests.values())
    assert {state.finish_reason for state in engine.requests.values()} == {FinishReason.MAX_TOKENS}
    # A request's last token is never computed.
    assert num_computed(engine) == sum(5 + n - 1 for n in (1, 2, 3, 7))
    assert len(engine.recorder.steps) == 7


@pytest.mark.parametrize("name", ["ids", "refresh", "fused", "sync-ids"])
def test_the_length_limit_costs_no_token_either(name: str, devices: Any) -> None:
    model, arm = MICRO_GEMMA3_VL, ARMS[name]
    prompt = request_of(model, "r", Recipe("ids", 40, seed=1)).prompt
    engine = Engine(model, CONFIG, devices("inline", model, CONFIG), arm)
    engine.run(Arrivals([(0, Request("r", prompt, SamplingParams(100, ignore_eos=True)))]))
    state = engine.requests["r"]
    assert state.finish_reason is FinishReason.MODEL_LENGTH
    assert (len(state.output_ids), state.num_wasted) == (8, 0)
    assert num_computed(engine) == 47
    assert wrong_requests(engine) == {}


def eos_engine(name: str, at: int, devices: Any, kind: str = "inline") -> tuple[Engine, list[int]]:
    """One request whose own token number `at` is declared EOS, and one that goes on; and its free tokens."""
    model = MICRO_GEMMA3_VL
    prompt = request_of(model, "r", Recipe("ids", 6, seed=3)).prompt
    free = reference_of(model.name).greedy(prompt, 10)
    assert free.index(free[at]) == at
    other = request_of(model, "r", Recipe("ids", 4, seed=4)).prompt
    spec = dataclasses.replace(model, eos_token_id=free[at])
    engine = Engine(spec, CONFIG, devices(kind, model, CONFIG), ARMS[name])
    engine.run(
        Arrivals(
            [
                (0, Request("stops", prompt, SamplingParams(10))),
                (0, Request("goes on", other, SamplingParams(12, ignore_eos=True))),
            ]
        )
    )
    return engine, free


@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("arm", fitting(RIGHT, MICRO_GEMMA3_VL), ids=lambda arm: arm.name)
def test_eos_costs_one_wasted_token_under_async_and_none_under_sync(arm: Arm, at: int, devices: Any) -> None:
    engine, free = eos_engine(arm.name, at, devices)
    check_finished(engine)
    stops, goes_on = engine.requests["stops"], engine.requests["goes on"]
    assert stops.output_ids == free[: at + 1]
    assert stops.finish_reason is FinishReason.EOS
    wasted = int(engine.decision.scheduling == "async")
    assert (stops.num_wasted, goes_on.num_wasted) == (wasted, 0)
    assert wrong_requests(engine) == {}
    assert num_computed(engine) == 6 + at + wasted + 4 + 11
    assert len(engine.recorder.timelines["stops"].token_ns) == at + 1


def test_eos_on_the_last_token_allowed_wastes_nothing(devices: Any) -> None:
    model = MICRO_GEMMA3_VL
    prompt = request_of(model, "r", Recipe("ids", 6, seed=3)).prompt
    free = reference_of(model.name).greedy(prompt, 4)
    spec = dataclasses.replace(model, eos_token_id=free[3])
    engine = Engine(spec, CONFIG, devices("inline", model, CONFIG), ARMS["ids"])
    engine.run(Arrivals([(0, Request("r", prompt, SamplingParams(4)))]))
    assert engine.requests["r"].output_ids == free
    assert engine.requests["r"].num_wasted == 0


def test_a_row_freed_by_eos_is_taken_by_a_newcomer_undisturbed(devices: Any) -> None:
    """Its blocks and its row are reused while the wasted step may still be running."""
    model = MICRO_GEMMA3_VL
    config = dataclasses.replace(CONFIG, max_num_seqs=2, num_blocks=8)
    prompts = [request_of(model, "r", Recipe("ids", 5, seed=10 + i)).prompt for i in range(6)]
    eos = reference_of(model.name).greedy(prompts[0], 3)[2]
    spec = dataclasses.replace(model, eos_token_id=eos)
    for kind in ("inline", "lazy", "shuffle:3"):
        for name in ("ids", "refresh", "fused"):
            engine = Engine(spec, config, devices(kind, model, config), ARMS[name])
            engine.run(Arrivals((0, Request(f"r{i}", p, SamplingParams(8))) for i, p in enumerate(prompts)))
            engine.scheduler.check()
            assert engine.requests["r0"].num_wasted == 1
            assert wrong_requests(engine) == {}


# ---- preemption with a step in flight

TIGHT = dataclasses.replace(CONFIG, num_blocks=9, max_num_seqs=3)
GROWING = (
    Recipe("pure", 10, max_tokens=18, seed=1),
    Recipe("spliced", 9, max_tokens=20, seed=2),
    Recipe("ids", 7, max_tokens=16, seed=3),
    Recipe("pure", 4, max_tokens=9, seed=4),
)


@pytest.mark.parametrize("kind", ["inline", "lazy", "shuffle:5"])
@pytest.mark.parametrize("model", MICRO, ids=lambda model: model.name)
def test_preemption_with_a_step_in_flight_neither_repeats_nor_loses_a_token(
    model: ModelSpec, kind: str, devices: Any
) -> None:
    case = Case(model, TIGHT, GROWING)
    expected = None
    for arm in fitting(RIGHT, model):
        engine = serve(case, devices(kind, model, TIGHT), arm)
        check_finished(engine)
        assert sum(state.num_preemptions for state in engine.requests.values()) > 0
        assert wrong_requests(engine) == {}, arm.name
        expected = expected or outputs(engine)
        assert outputs(engine) == expected, arm.name
        for name, state in engine.requests.items():
            assert len(engine.recorder.timelines[name].token_ns) == len(state.output_ids)
            assert state.num_wasted == 0


@pytest.mark.parametrize("arm", fitting(ASYNC, MICRO_GEMMA3_VL), ids=lambda arm: arm.name)
def test_a_preempted_request_rests_until_the_step_it_was_in_is_retired(arm: Arm, devices: Any) -> None:
    """A plan never holds a request that was preempted since, unless all its earlier steps are retired."""
    engine = Engine(MICRO_GEMMA3_VL, TIGHT, devices("inline", MICRO_GEMMA3_VL, TIGHT), arm)
    scheduler = engine.scheduler
    plan, retire = scheduler.plan, scheduler.retire
    in_flight: dict[int, set[str]] = {}
    checked = []

    def watch_plan() -> Any:
        before = {name: state.num_preemptions for name, state in scheduler.requests.items()}
        resting = {n for n, s in scheduler.requests.items() if s.status is RequestStatus.PREEMPTED}
        made = plan()
        if made is not None:
            named = {row.request_id for row in made.rows}
            preempted = {n for n, s in scheduler.requests.items() if s.num_preemptions > before.get(n, 0)}
            checked.extend(resting & named)
            assert not preempted & named, "preempted and planned in one step"
            for name in resting & named:
                assert not any(name in step for step in in_flight.values())
            in_flight[made.step_id] = named
        return made

    def watch_retire(made: Any, result: Any) -> Any:
        del in_flight[made.step_id]
        return retire(made, result)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "plan", watch_plan)
        patch.setattr(scheduler, "retire", watch_retire)
        engine.run(Case(MICRO_GEMMA3_VL, TIGHT, GROWING).arrivals(arm.prompt_embeds))
    assert checked, "no request was resumed"


def test_the_scheduler_itself_holds_back_a_request_whose_token_is_in_flight() -> None:
    """Whoever drives it: with its step not retired, a preempted request is not planned again."""
    config = RunnerConfig(
        max_num_seqs=2, max_num_batched_tokens=16, max_model_len=16, block_size=2, num_blocks=8
    )
    scheduler = Scheduler(config, eos_token_id=1)
    for name in ("a", "b"):
        made = Request(name, Prompt((5, 6, 7, 8, 9)), SamplingParams(10, ignore_eos=True))
        scheduler.submit(admit(made, MICRO_QWEN3, config))
    plans = []
    while not scheduler.requests["b"].num_preemptions:
        plans.append(scheduler.plan())
        assert plans[-1] is not None
        if len(plans) == 1:
            continue
    held = scheduler.requests["b"]
    assert held.num_in_flight > 0
    scheduler.abort("a")  # all the blocks are free now
    assert scheduler.plan() is None
    for made_plan in plans:
        assert made_plan is not None
        sampled = {row.request_id: (7,) for row in made_plan.rows if row.samples}
        scheduler.retire(made_plan, StepResult(made_plan.step_id, sampled))
    again = scheduler.plan()
    assert again is not None
    assert again.rows[0].request_id == "b"
    assert again.rows[0].first == 0


# ---- steps in flight


class Counted:
    """Steps given to a device and not waited for yet."""

    def __init__(self, device: Device) -> None:
        self.most = 0
        self._launched = self._retired = -1
        self._device = device
        self._execute, self._wait = device.execute, device.wait

    def execute(self, step_id: int, commands: Sequence[Command]) -> None:
        self._launched = step_id
        self.most = max(self.most, self._launched - self._retired)
        self._execute(step_id, commands)

    def wait(self, event: str, step_id: int) -> None:
        self._wait(event, step_id)
        if event == OUTPUT_READY:
            self._retired = step_id


@pytest.mark.parametrize("kind", ["inline", "lazy", "process"])
@pytest.mark.parametrize(
    ("name", "most"), [("refresh", 2), ("fused", 2), ("ids", 2), ("gated", 1), ("sync-fused", 1)]
)
def test_at_most_two_steps_are_in_flight_and_one_in_sync(
    name: str, most: int, kind: str, devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = devices(kind, MICRO_GEMMA3_VL, TIGHT)
    counted = Counted(device)
    monkeypatch.setattr(device, "execute", counted.execute)
    monkeypatch.setattr(device, "wait", counted.wait)
    serve(Case(MICRO_GEMMA3_VL, TIGHT, GROWING, gap=1), device, ARMS[name])
    assert counted.most == most


# ---- what is given back


@pytest.mark.parametrize("arm", [arm for arm in RIGHT if arm.prompt_embeds], ids=lambda arm: arm.name)
def test_supplied_rows_leave_host_and_device_when_their_request_ends(arm: Arm, devices: Any) -> None:
    """A burst of prompts of embeddings, then ids only: the rows are gone and so is the slow branch."""
    model = MICRO_QWEN3 if arm.models == "text" else MICRO_GEMMA3_VL
    burst = [(0, request_of(model, f"burst{i}", Recipe("pure", 6, max_tokens=3, seed=i))) for i in range(4)]
    later = [(12, request_of(model, f"ids{i}", Recipe("ids", 5, max_tokens=6, seed=i))) for i in range(3)]
    device = devices("inline", model, CONFIG)
    engine = Engine(model, CONFIG, device, arm)
    held: list[tuple[int, int]] = []
    batch: Any = engine._executor._batch
    with probed(engine, device):
        execute = device.execute

        def watch(step_id: int, commands: Sequence[Command]) -> None:
            held.append(
                (sum(rows is not None for rows in batch.supplied), engine.scheduler.resident_rows.num_free)
            )
            execute(step_id, commands)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device, "execute", watch)
            engine.run(Arrivals([*burst, *later]))
    assert held[0][0] == 4
    assert held[0][1] == (
        CONFIG.num_resident_rows - 24 if arm.keeps_rows_resident else CONFIG.num_resident_rows
    )
    of_ids = [index for index, step in enumerate(engine.recorder.steps) if step.num_supplied_rows == 0][-6:]
    assert all(held[index] == (0, CONFIG.num_resident_rows) for index in of_ids)
    if arm.models != "text":
        branches = Counter(engine.recorder.steps[index].embeds_route for index in of_ids)
        assert branches == {"lookup": 6}
    assert wrong_requests(engine) == {}


def test_an_aborted_request_gives_its_arena_rows_back(devices: Any) -> None:
    model = MICRO_GEMMA3_VL
    engine = Engine(model, CONFIG, devices("inline", model, CONFIG), ARMS["fused"])
    requests = [(0, request_of(model, f"r{i}", Recipe("pure", 9, max_tokens=6, seed=i))) for i in range(2)]

    class Aborting(Arrivals):
        def due(self) -> list[Request]:
            if self._calls == 3:
                engine.abort("r0")
            return super().due()

    engine.run(Aborting(requests))
    state = engine.requests["r0"]
    assert state.finish_reason is FinishReason.ABORTED
    assert state.num_in_flight == 0
    assert (len(state.output_ids), state.num_wasted) == (2, 1)
    assert engine.scheduler.resident_rows.num_free == CONFIG.num_resident_rows
    engine.scheduler.check()
    assert wrong_requests(engine) == {}
