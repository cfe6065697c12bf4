"""Host memory kept and the slow branch left on after the last request with embeddings (vLLM #57974, #57988).

Minimal: a burst of prompts of embeddings, then token ids only.
"""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL
from arm_workloads import Arrivals, Recipe, request_of, wrong_requests
from hazard_traffic import CONFIG, batch_of, engine_of, fitting

from runner.engine import Engine
from runner.inputs.arms import ARMS

BURST = tuple((0, Recipe("pure", 8, max_tokens=3, seed=seed)) for seed in range(6))
LATER = tuple((30, Recipe("ids", 5, max_tokens=6, seed=seed)) for seed in range(3))


@pytest.mark.parametrize("kind", ["inline", "lazy", "process"])
def test_token_traffic_after_a_burst_takes_no_slow_branch_and_holds_no_rows(kind: str, devices: Any) -> None:
    device = devices(kind, MICRO_GEMMA3_VL, CONFIG)
    for arm in fitting(MICRO_GEMMA3_VL):
        engine = engine_of(MICRO_GEMMA3_VL, CONFIG, device, arm.name, BURST + LATER)
        steps = engine.recorder.steps
        first = next(step for step in steps if step.step_id and step.num_tokens == 15)  # the later prompts
        after = [step for step in steps if step.step_id >= first.step_id]
        assert len(after) == 6
        assert {step.embeds_route for step in after} == {"lookup"}, arm.name
        assert "merge" in {step.embeds_route for step in steps}
        assert not batch_of(engine).has_supplied
        assert engine.scheduler.resident_rows.num_free == CONFIG.num_resident_rows
        assert wrong_requests(engine) == {}, arm.name


def kept_bytes(devices: Any, forget: bool) -> tuple[int, int]:
    """Bytes that an engine still holds of a burst that is served, and bytes the burst brought."""
    config = replace(CONFIG, max_num_seqs=8, num_blocks=96)
    device = devices("inline", MICRO_GEMMA3_VL, config)
    engine = Engine(MICRO_GEMMA3_VL, config, device, ARMS["refresh"])
    engine.run(Arrivals([(0, request_of(MICRO_GEMMA3_VL, "warm", Recipe("pure", 9, seed=1)))]))
    engine.forget("warm")
    gc.collect()
    tracemalloc.start()
    try:
        burst = [
            (0, request_of(MICRO_GEMMA3_VL, f"r{i}", Recipe("pure", 40, max_tokens=2, seed=i)))
            for i in range(24)
        ]
        brought = sum(len(made.prompt.embeds.data) for _, made in burst if made.prompt.embeds is not None)
        engine.run(Arrivals(burst))
        del burst
        engine.run(Arrivals([(0, request_of(MICRO_GEMMA3_VL, "later", Recipe("ids", 5, seed=1)))]))
        if forget:
            for name in list(engine.requests):
                engine.forget(name)
            engine.drain_steps()
        gc.collect()
        return tracemalloc.get_traced_memory()[0], brought
    finally:
        tracemalloc.stop()


def test_a_forgotten_burst_leaves_no_host_memory(devices: Any) -> None:
    kept, brought = kept_bytes(devices, forget=True)
    assert kept < brought / 5
    kept, brought = kept_bytes(devices, forget=False)
    assert kept >= brought, "negative control: what nobody forgets is still held"
