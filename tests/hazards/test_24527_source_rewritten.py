"""Wrong ids now and then: a host buffer is written again while its copy is in flight (vLLM #24527, #25279,
#31841, #31679, #28706, #31373).

Minimal: a device that copies late, and a host that is ready with the next step before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN25_VL
from arm_workloads import Recipe, outputs, wrong_requests
from hazard_traffic import CONFIG, engine_of

from runner.config import Fence
from runner.core import DeviceError
from runner.device.base import open_device
from runner.executor import Executor
from runner.models import ModelSpec

TRAFFIC = (
    (0, Recipe("pure", 5, max_tokens=7, seed=1)),
    (1, Recipe("ids", 4, num_images=1, max_tokens=6, seed=2)),
    (2, Recipe("spliced", 6, num_images=1, max_tokens=4, seed=3)),
    (3, Recipe("pure", 7, max_tokens=4, seed=4)),
)
ARM_NAMES = ("refresh", "async-rows", "skip", "fused")


FENCES: tuple[Fence, ...] = ("uploads", "embeddings")


@pytest.mark.parametrize("model", [MICRO_GEMMA3_VL, MICRO_QWEN25_VL], ids=lambda model: model.name)
@pytest.mark.parametrize("kind", ["lazy", "process", "shuffle:2"])
@pytest.mark.parametrize("fence", FENCES)
def test_no_buffer_is_written_while_a_copy_still_reads_it(
    fence: Fence, model: ModelSpec, kind: str, devices: Any
) -> None:
    for name in ARM_NAMES:
        config = replace(CONFIG, fence=fence)
        engine = engine_of(model, config, devices(kind, model, CONFIG), name, TRAFFIC)
        assert wrong_requests(engine) == {}, name


@pytest.mark.parametrize("fence", FENCES)
@pytest.mark.parametrize("name", ARM_NAMES)
def test_without_the_fence_a_late_copy_reads_the_next_steps_values(
    name: str, fence: Fence, models_built_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: two runs that differ in the fence alone."""
    config = replace(CONFIG, fence=fence)
    with open_device("lazy", MICRO_GEMMA3_VL, CONFIG) as device:
        right = outputs(engine_of(MICRO_GEMMA3_VL, config, device, name, TRAFFIC))
        monkeypatch.setattr(Executor, "_wait_for_fence", lambda _executor: None)
        try:
            assert outputs(engine_of(MICRO_GEMMA3_VL, config, device, name, TRAFFIC)) != right
        except DeviceError as error:
            assert "IndexError" in str(error)
