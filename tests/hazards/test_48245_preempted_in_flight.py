"""A token repeated or lost, or a negative count of placeholders: preemption while the output is in flight
(vLLM #48245, #38624, #42117, #28787, #41190).

Minimal: a KV pool too small for all, so that step N + 1 preempts a request before its token of step N lands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL
from arm_workloads import Recipe, check_finished, wrong_requests
from hazard_traffic import CONFIG, engine_of, fitting

from runner.core import RequestState
from runner.engine import Engine

TIGHT = replace(CONFIG, num_blocks=9, max_num_seqs=3)
TRAFFIC = (
    (0, Recipe("pure", 9, max_tokens=16, seed=1)),
    (0, Recipe("ids", 7, max_tokens=18, seed=2)),
    (0, Recipe("spliced", 6, max_tokens=14, seed=3)),
)


def noting(found: list[int]) -> Any:
    """A watch that notes, at every preemption, the tokens its victim has in flight."""

    def watch(engine: Engine) -> None:
        scheduler: Any = engine.scheduler
        preempt = scheduler._preempt

        def noted(state: RequestState) -> None:
            found.append(state.num_in_flight)
            preempt(state)

        scheduler._preempt = noted

    return watch


@pytest.mark.parametrize("kind", ["inline", "lazy", "process", "shuffle:3"])
def test_no_token_is_repeated_or_lost(kind: str, devices: Any) -> None:
    device = devices(kind, MICRO_GEMMA3_VL, TIGHT)
    for arm in fitting(MICRO_GEMMA3_VL):
        in_flight: list[int] = []
        engine = engine_of(MICRO_GEMMA3_VL, TIGHT, device, arm.name, TRAFFIC, noting(in_flight))
        check_finished(engine)
        assert in_flight, arm.name
        assert (1 in in_flight) == (engine.decision.scheduling == "async"), arm.name
        assert wrong_requests(engine) == {}, arm.name
        for name, state in engine.requests.items():
            assert len(engine.recorder.timelines[name].token_ns) == len(state.output_ids)
