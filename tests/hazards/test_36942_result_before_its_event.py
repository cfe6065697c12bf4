"""Garbage output: a result is read before its event, or the next step writes over it (vLLM #36942, #31570,
#31584, #29623, #48901); a waiter woken by another step's event (#39115).

Minimal: results that are there only once someone waits, and two steps in flight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arm_models import MICRO_GEMMA3_VL
from arm_workloads import Recipe, outputs, request_of, wrong_requests
from hazard_traffic import CONFIG, engine_of

import runner.executor
import runner.inputs.compile
from runner.commands import OUTPUT_READY, ring
from runner.core import DeviceError
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.executor import InFlight
from runner.inputs.arms import ARMS

TRAFFIC = (
    (0, Recipe("ids", 4, max_tokens=6, seed=1)),
    (0, Recipe("pure", 5, max_tokens=8, seed=2)),
    (2, Recipe("ids", 3, max_tokens=5, seed=3)),
)


def launched(device: Device, num_steps: int) -> list[InFlight]:
    """The first steps of one request under `refresh`, launched and not waited for."""
    engine = Engine(MICRO_GEMMA3_VL, CONFIG, device, ARMS["refresh"])
    engine.submit([request_of(MICRO_GEMMA3_VL, "r", Recipe("pure", 5, max_tokens=9, seed=1))])
    steps = [engine._launch() for _ in range(num_steps)]
    assert all(step is not None for step in steps)
    return [step for step in steps if step is not None]


def without_waiting(flight: InFlight) -> Any:
    tokens = flight.device.host[ring("sampled_ids", flight.plan.step_id)].tolist()
    return runner.executor.StepResult(
        flight.plan.step_id, {name: (tokens[row],) for name, row in flight.sampling_rows}
    )


@pytest.mark.parametrize("kind", ["lazy", "process", "shuffle:4"])
def test_a_result_is_read_only_after_its_download(kind: str, devices: Any) -> None:
    device = devices(kind, MICRO_GEMMA3_VL, CONFIG)
    for name in ("ids", "refresh", "fused", "gated"):
        engine = engine_of(MICRO_GEMMA3_VL, CONFIG, device, name, TRAFFIC)
        assert wrong_requests(engine) == {}, name


def test_read_without_its_event_a_result_is_no_token(
    models_built_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: what is there before the download is poison, not a token that could pass."""
    with open_device("lazy", MICRO_GEMMA3_VL, CONFIG) as device:
        (step,) = launched(device, 1)
        early = without_waiting(step).sampled["r"][0]
        assert early == np.iinfo(np.int32).max
        assert step.result().sampled["r"][0] != early


def test_two_steps_in_flight_have_an_output_each(devices: Any) -> None:
    """On a device that is done at once, the second step's output is there before the first one is read."""
    device = devices("inline", MICRO_GEMMA3_VL, CONFIG)
    engine = engine_of(MICRO_GEMMA3_VL, CONFIG, device, "refresh", TRAFFIC)
    assert wrong_requests(engine) == {}
    first, second = launched(device, 2)
    results = [flight.result().sampled["r"][0] for flight in (second, first)]
    reference = engine_of(
        MICRO_GEMMA3_VL, CONFIG, device, "gated", [(0, Recipe("pure", 5, max_tokens=9, seed=1))]
    )
    assert results == reference.requests["r0"].output_ids[1::-1]


def test_with_one_output_buffer_the_next_step_overwrites_it(
    devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    device = devices("inline", MICRO_GEMMA3_VL, CONFIG)
    right = outputs(engine_of(MICRO_GEMMA3_VL, CONFIG, device, "refresh", TRAFFIC))

    def one_output(buffer: str, step_id: int) -> str:
        return ring(buffer, 0 if buffer == "sampled_ids" else step_id)

    monkeypatch.setattr(runner.inputs.compile, "ring", one_output)
    monkeypatch.setattr(runner.executor, "ring", one_output)
    try:
        assert outputs(engine_of(MICRO_GEMMA3_VL, CONFIG, device, "refresh", TRAFFIC)) != right
    except DeviceError as error:
        pytest.fail(f"the tokens should have been wrong, not refused: {error}")


def test_a_waiter_wakes_at_its_own_step_and_not_at_the_next(models_built_once: None) -> None:
    """#39115: with both steps queued, the first one's output is told before the second one has run."""
    with open_device("lazy", MICRO_GEMMA3_VL, CONFIG) as device:
        first, second = launched(device, 2)
        sampled = device.host[ring("sampled_ids", second.plan.step_id)]
        first.result()
        assert sampled[0] == np.iinfo(np.int32).max, "the second step had to run for the first one's waiter"
        assert second.result().sampled["r"][0] == sampled[0]


def test_a_process_tells_no_event_before_it_happened(devices: Any) -> None:
    """Whenever the counter says a step's output is there, its token is."""
    device = devices("process", MICRO_GEMMA3_VL, CONFIG)
    inline = devices("inline", MICRO_GEMMA3_VL, CONFIG)
    expected = [flight.result().sampled for flight in launched(inline, 2)]
    for _ in range(20):
        flights = launched(device, 2)
        sampled = []
        for flight in flights:
            device.wait(OUTPUT_READY, flight.plan.step_id)
            sampled.append(without_waiting(flight).sampled)
            assert device._events[:].max() <= flights[-1].plan.step_id
        assert sampled == expected
