"""Scheduling with drafts, the test being the device: it alone knows how many of them are right.

Sync hands drafts to the host with the result; async plans the next step before it knows.
"""

from __future__ import annotations

import dataclasses
import random

import pytest
from fabrication import SMALL_VL, text_request
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import plain_token

from runner.admission import admit
from runner.config import RunnerConfig
from runner.core import RequestState, RequestStatus, StepPlan, StepResult
from runner.scheduler import Scheduler

BASE = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=24,
    max_model_len=64,
    block_size=4,
    num_blocks=64,
    num_speculative_tokens=3,
)


class SpeculatingDevice:
    """Steps of a scheduler, at most two in flight where `is_async`, and the truth about each request.

    `draw` says how many drafts of a row are right. `computed` counts positions computed, drafts and all.
    """

    def __init__(self, config: RunnerConfig, is_async: bool, seed: int = 0) -> None:
        self.scheduler = Scheduler(config, SMALL_VL.eos_token_id, drafts_on_device=is_async)
        self.config = config
        self.is_async = is_async
        self.computed: dict[str, int] = {}
        self.plans: list[StepPlan] = []
        self._draw = random.Random(seed)
        self._truth: dict[str, int] = {}  # positions really computed, of the current admission
        self._in_flight: tuple[StepPlan, StepResult] | None = None
        self._sampled_last: set[str] = set()

    def submit(self, name: str, length: int, max_tokens: int) -> RequestState:
        state = admit(text_request(SMALL_VL, name, length, max_tokens), SMALL_VL, self.config)
        self.scheduler.submit(state)
        self.computed[name] = 0
        return state

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.step():
                return
        raise AssertionError("no end: a livelock")

    def step(self) -> bool:
        """One turn of the loop; False when nothing is left."""
        plan = self.scheduler.plan()
        self.scheduler.check()
        launched = None if plan is None else (plan, self._compute(plan))
        if not self.is_async:
            self._retire(launched)
            return launched is not None
        last, self._in_flight = self._in_flight, launched
        self._retire(last)
        return last is not None or launched is not None

    def _compute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        sampled, drafts = {}, {}
        for item in plan.admitted:
            self._truth[item.request_id] = plan_first(plan, item.request_id)
        for row in plan.rows:
            name, state = row.request_id, self.scheduler.requests[row.request_id]
            first = self._truth[name]
            assert first <= row.first, "the host may take drafts for right, never for wrong"
            assert len(state.block_ids) * self.config.block_size >= row.first + row.num_tokens
            assert row.first + row.num_tokens <= self.config.max_model_len
            assert not (row.num_drafts and self.is_async) or name in self._sampled_last, (
                "the device has drafts of the last step only"
            )
            self.computed[name] += row.num_tokens
            num_right = self._draw.randint(0, row.num_drafts)
            self._truth[name] = first + row.num_tokens - row.num_drafts + num_right
            if row.samples:
                index = self._truth[name] - num_right - state.num_prompt
                sampled[name] = tuple(plain_token(name, index + i) for i in range(1 + num_right))
                drafts[name] = (7,) * self._draw.randint(0, self.config.num_speculative_tokens)
        self._sampled_last = set(sampled)
        return StepResult(plan.step_id, sampled, drafts={} if self.is_async else drafts)

    def _retire(self, step: tuple[StepPlan, StepResult] | None) -> None:
        if step is not None:
            self.scheduler.retire(*step)
            self.scheduler.check()


def plan_first(plan: StepPlan, name: str) -> int:
    return next(row.first for row in plan.rows if row.request_id == name)


def check_state(device: SpeculatingDevice, state: RequestState) -> None:
    """Served to its last token, and every computed position accounted for."""
    name, outputs = state.request_id, state.output_ids
    assert state.is_finished
    assert outputs == [plain_token(name, index) for index in range(len(outputs))]
    limit = min(state.request.sampling.max_tokens, device.config.max_model_len - state.num_prompt)
    assert len(outputs) == limit
    assert (state.num_in_flight, state.num_steps_in_flight, state.block_ids) == (0, 0, [])
    rejected = state.num_drafted - state.num_accepted
    needed = state.num_prompt + len(outputs) - 1
    assert device.computed[name] == needed + state.num_recomputed + state.num_wasted + rejected


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), num_blocks=st.sampled_from([16, 20, 64]), drafts=st.integers(1, 5))
def test_whatever_drafts_are_right_every_token_comes_once(
    is_async: bool, seed: int, num_blocks: int, drafts: int
) -> None:
    draw = random.Random(seed)
    sizes = dataclasses.replace(BASE, num_blocks=num_blocks, num_speculative_tokens=drafts)
    device = SpeculatingDevice(sizes, is_async, seed)
    states = []
    for index in range(8):
        states.append(device.submit(f"r{index}", draw.randint(1, 40), draw.randint(1, 40)))
        for _ in range(draw.randint(0, 4)):
            device.step()
    device.run()
    for state in states:
        check_state(device, state)
    assert device.scheduler.blocks.num_free == num_blocks


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_abort_with_drafts_in_flight_is_ignored_when_they_come_back(is_async: bool) -> None:
    for seed in range(40):
        device = SpeculatingDevice(BASE, is_async, seed)
        aborted, other = device.submit("a", 6, 30), device.submit("b", 9, 20)
        for _ in range(seed % 7 + 1):
            device.step()
        device.scheduler.abort("a")
        device.run()
        assert aborted.num_in_flight == aborted.num_steps_in_flight == 0
        assert len(aborted.output_ids) < 30
        check_state(device, other)


def test_a_request_that_rested_has_no_drafts_on_the_device() -> None:
    """What a step proposed is gone two steps later: a draft may not outlive its window (vLLM #40768)."""
    device = SpeculatingDevice(dataclasses.replace(BASE, num_blocks=16), is_async=True, seed=3)
    for index in range(6):
        device.submit(f"r{index}", 12, 25)
    device.run()
    sampled_in = {(plan.step_id, row.request_id) for plan in device.plans for row in plan.rows if row.samples}
    with_drafts = [
        (plan.step_id, row.request_id) for plan in device.plans for row in plan.rows if row.num_drafts
    ]
    assert with_drafts
    assert all((step_id - 1, name) in sampled_in for step_id, name in with_drafts)
    rested = [
        (step_id, name)
        for step_id, name in sampled_in
        if (step_id - 1, name) not in sampled_in and step_id > 0
    ]
    assert rested, "nobody rested: the case is not there"


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_drafts_never_preempt_and_never_exceed_budget_or_length(is_async: bool) -> None:
    sizes = dataclasses.replace(BASE, max_num_batched_tokens=6, num_speculative_tokens=4)
    device = SpeculatingDevice(sizes, is_async, seed=1)
    for index in range(4):
        device.submit(f"r{index}", 5, 12)
    device.run()
    assert max(plan.num_tokens for plan in device.plans) <= 6
    assert sum(plan.num_preempted for plan in device.plans) == 0
    most = [plan for plan in device.plans if any(row.num_drafts for row in plan.rows)]
    assert most


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_drafts_take_no_token_from_a_decode_that_comes_after(is_async: bool) -> None:
    """Eight decodes fit the budget: none of them waits a step because another had guesses."""
    sizes = dataclasses.replace(BASE, max_num_seqs=8, max_num_batched_tokens=9)
    device = SpeculatingDevice(sizes, is_async, seed=5)
    for index in range(8):
        device.submit(f"r{index}", 1, 20)
    for _ in range(6):
        device.step()
    steady = device.plans[-3:]
    assert all(len(plan.rows) == 8 for plan in steady)
    assert all(plan.num_tokens <= 9 for plan in steady)
    assert any(row.num_drafts for plan in steady for row in plan.rows)


def test_drafts_take_no_block_from_a_decode_that_comes_after() -> None:
    """Guesses of the first would need a new block; the last free one is what the second needs."""
    sizes = dataclasses.replace(BASE, max_num_seqs=2, num_blocks=7, max_model_len=24)
    device = SpeculatingDevice(sizes, is_async=False, seed=0)
    first, second = device.submit("a", 10, 12), device.submit("b", 12, 12)
    device.step()  # three blocks each, one is free; both have sampled once
    first.draft_ids, second.draft_ids = (7, 7, 7), ()
    device.step()
    (a, b) = device.plans[-1].rows
    assert (a.request_id, a.num_drafts, b.request_id) == ("a", 1, "b")
    second.draft_ids = ()
    assert device.plans[-1].num_preempted == 0


def test_one_token_left_asks_for_no_drafts() -> None:
    device = SpeculatingDevice(BASE, is_async=False)
    state = device.submit("a", 5, 2)
    device.run()
    assert [row.num_drafts for plan in device.plans for row in plan.rows] == [0, 0]
    assert state.num_drafted == 0


def test_a_preempted_request_gives_its_drafts_up() -> None:
    device = SpeculatingDevice(dataclasses.replace(BASE, num_blocks=17), is_async=False, seed=2)
    states = [device.submit(f"r{index}", 14, 24) for index in range(4)]
    preempted = 0
    for _ in range(200):
        if not device.step():
            break
        for state in states:
            if state.status is RequestStatus.PREEMPTED:
                preempted += 1
                assert state.draft_ids == ()
    assert preempted
    for state in states:
        check_state(device, state)
