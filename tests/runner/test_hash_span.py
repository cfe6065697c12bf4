"""What hashing prompts costs is a span of its own: recorded once, in the step that follows it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fabrication import SharedDevice, Staggered, text_request, together

import runner.measure
from runner.config import RunnerConfig
from runner.core import StepPlan
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.models import TINY_QWEN3
from runner.prefix_cache import PrefixCache

CONFIG = RunnerConfig(max_num_seqs=3, max_num_batched_tokens=32, max_model_len=64, prefix_caching=True)
HASH_NS = 1_000_000


def engine_of(config: RunnerConfig = CONFIG, arm: str = "sync-ids") -> Engine:
    device = NullDevice(TINY_QWEN3, config, lambda _step_id, _commands: None, token_id=9)
    return Engine(TINY_QWEN3, config, device, ARMS[arm])


@pytest.fixture
def slow_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by a nanosecond a look, and by HASH_NS for each request that is hashed."""
    time_ns = 0
    hash_expected = PrefixCache.hash_expected

    def look() -> int:
        nonlocal time_ns
        time_ns += 1
        return time_ns

    def slowly(cache: PrefixCache) -> None:
        nonlocal time_ns
        time_ns += HASH_NS * len(cache._unhashed)
        hash_expected(cache)

    monkeypatch.setattr(runner.measure, "now_ns", look)
    monkeypatch.setattr(PrefixCache, "hash_expected", slowly)


@pytest.mark.parametrize("arm", ["sync-ids", "ids"])
def test_hashing_is_recorded_in_the_step_after_an_arrival_and_not_as_scheduling(
    arm: str, slow_hashing: None
) -> None:
    engine = engine_of(arm=arm)
    engine.run(Staggered((i * 3, text_request(TINY_QWEN3, f"r{i}", 20, 8)) for i in range(2)))
    steps = engine.recorder.steps
    assert [round(step.hash_ns / HASH_NS) for step in steps] == [1, 0, 0, 1, *[0] * (len(steps) - 4)]
    for step in steps:
        assert step.schedule_ns < HASH_NS
        assert 0 < step.hash_ns < step.host_ns
        assert step.host_ns - step.hash_ns < HASH_NS


def test_nothing_is_hashed_or_recorded_when_caching_is_off(slow_hashing: None) -> None:
    engine = engine_of(replace(CONFIG, prefix_caching=False))
    engine.run(together([text_request(TINY_QWEN3, "r", 20, 4)]))
    assert [step.hash_ns for step in engine.recorder.steps] == [0] * 4


def test_time_spent_when_no_plan_came_of_it_is_in_the_next_steps_record(
    slow_hashing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of()
    plan, left = engine.scheduler.plan, [None, None]

    def plan_later() -> StepPlan | None:
        return left.pop() if left else plan()

    monkeypatch.setattr(engine.scheduler, "plan", plan_later)
    for name in ("a", "b"):
        engine.submit([text_request(TINY_QWEN3, name, 20, 2)])
        assert engine._launch() is None
    step = engine._launch()
    assert step is not None
    assert round(step.clock.phase_ns["hash"] / HASH_NS) == 2
    engine._retire(step)
    later = engine._launch()
    assert later is not None
    assert 0 < later.clock.phase_ns["hash"] < HASH_NS


def test_a_cached_prompt_is_served_and_counted_on_a_device(shared_device: SharedDevice) -> None:
    device = shared_device("inline", TINY_QWEN3, CONFIG)
    for _ in range(2):  # a fresh engine starts with an empty cache
        engine = Engine(TINY_QWEN3, CONFIG, device, ARMS["sync-ids"])
        engine.run(Staggered((i * 9, text_request(TINY_QWEN3, f"r{i}", 30, 4, seed=5)) for i in range(3)))
        states = engine.requests.values()
        assert [state.num_cached for state in states] == [0, 16, 16]
        assert len({tuple(state.output_ids) for state in states}) == 1
        assert sum(step.num_tokens for step in engine.recorder.steps) == 33 + 2 * 17
