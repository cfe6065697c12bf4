"""Silent corruption: a block, or an arena row, is reused while a step in flight touches it (vLLM #45357,
#47728, #45096).

Minimal: a request ends by EOS with one more step in flight, and a newcomer takes its blocks at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL
from arm_reference import reference_of
from arm_workloads import Arrivals, Recipe, request_of, wrong_requests
from hazard_traffic import CONFIG

from runner.core import Request, SamplingParams
from runner.engine import Engine
from runner.inputs.arms import ARMS

MODEL = MICRO_GEMMA3_VL
KINDS = ["inline", "lazy", "process", "shuffle:1", "shuffle:2"]


def requests(eos_of_first: int) -> tuple[int, list[tuple[int, Request]]]:
    """The EOS id, and requests of which the first samples it as its second token; the rest ignore it."""
    made = [request_of(MODEL, f"r{i}", Recipe("ids", 6, max_tokens=7, seed=10 + i)) for i in range(8)]
    eos = reference_of(MODEL.name).greedy(made[0].prompt, eos_of_first + 1)[eos_of_first]
    first = replace(made[0], sampling=SamplingParams(12))
    return eos, [(0, first), *((0, request) for request in made[1:])]


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_reused_only_after_the_step_that_reads_it(kind: str, devices: Any) -> None:
    config = replace(CONFIG, num_blocks=8, max_num_seqs=6)  # blocks, not slots, make requests wait
    eos, arrivals = requests(eos_of_first=2)
    spec = replace(MODEL, eos_token_id=eos)
    for name in ("ids", "refresh", "fused"):
        engine = Engine(spec, config, devices(kind, MODEL, config), ARMS[name])
        reused = watch_reuse(engine)
        engine.run(Arrivals(arrivals))
        engine.scheduler.check()
        assert engine.requests["r0"].num_wasted == 1
        assert reused, "no block was taken over in the step after its owner's end"
        assert wrong_requests(engine) == {}, name


def watch_reuse(engine: Engine) -> list[int]:
    """Blocks given out while a step that named them is in flight and its owner has ended."""
    scheduler: Any = engine.scheduler
    plan, retire = scheduler.plan, scheduler.retire
    named: dict[int, set[int]] = {}
    ended: set[int] = set()
    reused: list[int] = []

    def planned() -> Any:
        made = plan()
        if made is not None:
            of_ended = set().union(*named.values()) & ended
            blocks = {b for row in made.rows for b in scheduler.requests[row.request_id].block_ids}
            reused.extend(of_ended & blocks)
            named[made.step_id] = blocks
        return made

    def retired(made: Any, result: Any) -> Any:
        running = {name: list(s.block_ids) for name, s in scheduler.requests.items() if not s.is_finished}
        outputs = retire(made, result)
        del named[made.step_id]
        for name, blocks in running.items():
            if scheduler.requests[name].is_finished:
                ended.update(blocks)
        return outputs

    scheduler.plan, scheduler.retire = planned, retired
    return reused


@pytest.mark.parametrize("name", ["resident-where", "resident", "fused", "sync-fused"])
@pytest.mark.parametrize("kind", ["inline", "lazy"])
def test_arena_rows_are_reused_only_after_the_prompt_is_computed(kind: str, name: str, devices: Any) -> None:
    """An arena for two prompts; every prompt takes several steps, so its rows are read more than once."""
    config = replace(CONFIG, num_resident_rows=40, max_num_batched_tokens=8)
    recipes = [Recipe("pure", 15 + i % 3, max_tokens=4, seed=i) for i in range(6)]
    made = [(0, request_of(MODEL, f"r{i}", recipe, noise=0.1)) for i, recipe in enumerate(recipes)]
    engine = Engine(MODEL, config, devices(kind, MODEL, config), ARMS[name])
    engine.run(Arrivals(made))
    engine.scheduler.check()
    assert engine.scheduler.resident_rows.num_free == 40
    assert wrong_requests(engine) == {}
