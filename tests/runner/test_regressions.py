"""Faults that were found by reading: each in the smallest run that shows it."""

from __future__ import annotations

import numpy as np
import pytest
from fabrication import SharedDevice, Staggered, prompt_of, request, text_request

from runner.admission import admit
from runner.config import RunnerConfig
from runner.core import Prompt, Request, SamplingParams, StepResult, SuppliedRows
from runner.encoder_slots import EncoderSlots, Holder
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.inputs.batch import InputBatch
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3
from runner.scheduler import Scheduler


def crowd() -> list[tuple[int, Request]]:
    """One slot for images and too few blocks: requests wait for one while they give up the other."""
    short = prompt_of(TINY_GEMMA3_VL, [("image", 1)], seed=1)
    long = [prompt_of(TINY_GEMMA3_VL, [40, ("image", n), 20], seed=n) for n in (2, 3)]
    return [
        (0, request("c", short, 1)),
        *((0, request(name, prompt, 12)) for name, prompt in zip("ab", long, strict=True)),
    ]


@pytest.mark.parametrize("arm", ["ids", "sync-ids"])
def test_waiting_for_an_encoder_slot_never_costs_another_request_its_place(
    arm: str, shared_device: SharedDevice
) -> None:
    outputs = []
    for num_blocks in (10, 100):
        config = RunnerConfig(
            max_num_seqs=4,
            max_num_batched_tokens=98,
            max_model_len=160,
            num_blocks=num_blocks,
            num_encoder_slots=1,
        )
        engine = Engine(TINY_GEMMA3_VL, config, shared_device("inline", TINY_GEMMA3_VL, config), ARMS[arm])
        engine.run(Staggered(crowd()))
        engine.scheduler.check()
        outputs.append({name: tuple(state.output_ids) for name, state in engine.requests.items()})
    assert outputs[0] == outputs[1]


def test_a_row_of_a_request_preempted_and_resumed_between_two_steps_is_made_anew() -> None:
    """Its table and slot are new, although it was in the step before and is in this one."""
    config = RunnerConfig(max_num_seqs=2, max_num_batched_tokens=32, max_model_len=32, num_blocks=8)
    scheduler = Scheduler(config, TINY_QWEN3.eos_token_id)
    state = admit(text_request(TINY_QWEN3, "a", 20, 4), TINY_QWEN3, config)
    scheduler.submit(state)
    batch = InputBatch(TINY_QWEN3, config)
    first = scheduler.plan()
    assert first is not None
    batch.update(first, scheduler.requests)
    scheduler.retire(first, StepResult(first.step_id, {"a": (7,)}))
    scheduler._preempt(state)
    second = scheduler.plan()
    assert second is not None
    batch.update(second, scheduler.requests)
    assert batch.block_table[0, : len(state.block_ids)].tolist() == state.block_ids
    assert (batch.slots[0], batch.num_blocks[0]) == (state.slot, len(state.block_ids))


def test_no_request_gives_way_to_one_whose_image_has_no_slot() -> None:
    """The image of `b` waits for the one slot, so `a`'s blocks are of no use to it."""
    slots = EncoderSlots(1)
    assert slots.acquire(Holder("a", 0), "one", may_encode=True) == (0, True)
    assert not slots.can_acquire(Holder("b", 0), "two", may_encode=True)
    assert slots.can_acquire(Holder("b", 0), "one", may_encode=False)
    slots.release(Holder("a", 0))
    assert slots.can_acquire(Holder("b", 0), "two", may_encode=True)
    assert not slots.can_acquire(Holder("b", 0), "two", may_encode=False)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_fail_their_request_alone(value: float, shared_device: SharedDevice) -> None:
    config = RunnerConfig(max_num_seqs=2, max_num_batched_tokens=32, max_model_len=48, num_blocks=4)
    rows = np.zeros((5, TINY_QWEN3.hidden_size), np.float32)
    rows[3, 17] = value
    embeds = SuppliedRows(rows.tobytes(), 5, TINY_QWEN3.hidden_size)
    bad = Request("bad", Prompt((), (), embeds), SamplingParams(4, ignore_eos=True))
    good = text_request(TINY_QWEN3, "good", 12, 6)
    device = shared_device("inline", TINY_QWEN3, config)
    outputs = []
    for arrivals in ([(0, bad), (4, good)], [(0, good)]):
        engine = Engine(TINY_QWEN3, config, device, ARMS["sync-rows"])
        engine.run(Staggered(arrivals))
        outputs.append(tuple(engine.requests["good"].output_ids))
        if "bad" in engine.requests:
            error = engine.requests["bad"].error
            assert error is not None
            assert "request bad: supplied row 3 holds" in error
            assert "value 17" in error
    assert outputs[0] == outputs[1]


def test_positions_thrown_away_count_as_recomputed_only_once_they_are() -> None:
    config = RunnerConfig(max_num_seqs=2, max_num_batched_tokens=32, max_model_len=32, num_blocks=8)
    scheduler = Scheduler(config, TINY_QWEN3.eos_token_id)
    state = admit(text_request(TINY_QWEN3, "a", 20, 1), TINY_QWEN3, config)
    scheduler.submit(state)
    plan = scheduler.plan()
    assert plan is not None
    scheduler._preempt(state)
    scheduler.retire(plan, StepResult(plan.step_id, {"a": (7,)}))
    assert state.is_finished
    assert state.num_recomputed == 0
