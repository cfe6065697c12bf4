"""Garbage prefill or an index out of bounds: ids beside supplied rows are looked up (vLLM #45383, #44842).

Minimal: a prompt of embeddings in a row used before, over its last owner's ids and a placeholder of -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arm_models import MICRO_GEMMA3_VL
from arm_probes import probed
from arm_workloads import Arrivals, Recipe, request_of, wrong_requests
from hazard_traffic import CONFIG, batch_of, engine_of, fitting, requests_of

from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.inputs.batch import IN_FLIGHT_ID

TRAFFIC = ((0, Recipe("ids", 3, max_tokens=6, seed=1)), (20, Recipe("pure", 12, max_tokens=5, seed=2)))


def run(name: str, kind: str, devices: Any, beneath: list[list[int]]) -> Engine:
    """`beneath` gets the ids in the row that the prompt of embeddings takes, before it is written."""

    def watch(engine: Engine) -> None:
        batch = batch_of(engine)
        write = batch._write_prompt

        def look_first(row: int, state: Any) -> None:
            if state.request_id == "r1":
                beneath.append(batch.token_ids[row, :12].tolist())
            write(row, state)

        batch._write_prompt = look_first

    return engine_of(MICRO_GEMMA3_VL, CONFIG, devices(kind, MICRO_GEMMA3_VL, CONFIG), name, TRAFFIC, watch)


@pytest.mark.parametrize("kind", ["inline", "lazy", "process"])
def test_supplied_rows_in_a_reused_row_are_not_looked_up_over(kind: str, devices: Any) -> None:
    last_owner = list(request_of(MICRO_GEMMA3_VL, "r0", TRAFFIC[0][1]).prompt.token_ids)
    for arm in fitting(MICRO_GEMMA3_VL):
        beneath: list[list[int]] = []
        engine = run(arm.name, kind, devices, beneath)
        assert wrong_requests(engine) == {}, arm.name
        (ids,) = beneath
        assert ids[:3] == last_owner
        assert (IN_FLIGHT_ID in ids) == (engine.decision.scheduling == "async"), arm.name


def test_the_unconditional_copy_loses_the_rows(devices: Any) -> None:
    """Negative control: `overwrite` looks the row's leftovers up, -1 as 0, and only that request is wrong."""
    device = devices("inline", MICRO_GEMMA3_VL, CONFIG)
    engine = Engine(MICRO_GEMMA3_VL, CONFIG, device, ARMS["overwrite"])
    with probed(engine, device) as probe:
        engine.run(Arrivals(requests_of(MICRO_GEMMA3_VL, TRAFFIC)))
    assert set(wrong_requests(engine)) == {"r1"}
    (prefill,) = [step for step in probe.steps if any(row.count == 12 for row in step.rows)]
    given, embeds = prefill.given, engine.requests["r1"].request.prompt.embeds
    assert given is not None and embeds is not None
    supplied = np.frombuffer(embeds.data, np.float32).reshape(12, -1)
    assert not np.isclose(given, supplied).all(axis=1).any()
