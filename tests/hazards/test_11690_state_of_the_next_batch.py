"""A late consumer reads what belongs to the next batch (vllm-ascend #11690).

Minimal: step N + 1 rearranges the persistent rows before the result of step N is read.
"""

from __future__ import annotations

from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL
from arm_workloads import Recipe, outputs, wrong_requests
from hazard_traffic import CONFIG, batch_of, engine_of

import runner.executor
from runner.commands import ring
from runner.core import StepResult
from runner.engine import Engine
from runner.executor import InFlight

LEAVING = (
    (0, Recipe("ids", 4, max_tokens=3, seed=1)),
    (0, Recipe("pure", 5, max_tokens=7, seed=2)),
    (0, Recipe("ids", 3, max_tokens=12, seed=3)),
    (0, Recipe("spliced", 6, max_tokens=9, seed=4)),
)


@pytest.mark.parametrize("kind", ["inline", "lazy", "process"])
def test_a_result_is_read_by_the_rows_of_its_own_step(
    kind: str, devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = devices(kind, MICRO_GEMMA3_VL, CONFIG)
    for name in ("ids", "refresh", "fused"):
        moved: list[str] = []
        engine = watched(device, name, moved, monkeypatch)
        assert moved, "no row had moved when its result was read"
        assert wrong_requests(engine) == {}, name


def watched(device: Any, name: str, moved: list[str], patch: pytest.MonkeyPatch) -> Engine:
    """`moved` gets the requests whose batch row is another one by the time their result is read."""
    made: list[Engine] = []
    read = InFlight.read

    def noted(flight: InFlight) -> StepResult:
        now = batch_of(made[0]).row_of
        moved.extend(n for n, row, *_ in flight.sampling_rows if n in now and now[n] != row)
        return read(flight)

    with patch.context() as context:
        context.setattr(InFlight, "read", noted)
        return engine_of(MICRO_GEMMA3_VL, CONFIG, device, name, LEAVING, made.append)


def test_read_by_the_batch_as_it_is_now_the_tokens_are_anothers(
    devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    device = devices("inline", MICRO_GEMMA3_VL, CONFIG)
    right = outputs(engine_of(MICRO_GEMMA3_VL, CONFIG, device, "refresh", LEAVING))
    made: list[Engine] = []

    def by_the_batch(flight: InFlight) -> StepResult:
        tokens = flight.device.host[ring("sampled_ids", flight.plan.step_id)].tolist()
        now = batch_of(made[0]).row_of
        sampled = {name: (tokens[now.get(name, row)],) for name, row, *_ in flight.sampling_rows}
        return StepResult(flight.plan.step_id, sampled)

    monkeypatch.setattr(runner.executor.InFlight, "read", by_the_batch)
    engine = engine_of(MICRO_GEMMA3_VL, CONFIG, device, "refresh", LEAVING, made.append)
    assert outputs(engine) != right
