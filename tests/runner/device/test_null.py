"""The device that computes nothing answers as one that does could have answered."""

from __future__ import annotations

import pytest

from runner.config import RunnerConfig
from runner.core import Prompt, Request, SamplingParams
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.models import TINY_QWEN3


class Nobody:
    """No further request."""

    def due(self) -> list[Request]:
        return []

    def wait(self) -> bool:
        return False


@pytest.mark.parametrize("arm", ["sync-ids", "ids"])
def test_no_draft_is_accepted(arm: str) -> None:
    """It cannot know which rows have any: a row without them would be given more than it computed."""
    config = RunnerConfig(num_speculative_tokens=3)
    device = NullDevice(TINY_QWEN3, config, lambda *_: None, token_id=7)
    engine = Engine(TINY_QWEN3, config, device, ARMS[arm])
    engine.submit(
        Request(f"r{index}", Prompt((5,) * 9), SamplingParams(12, ignore_eos=True)) for index in range(3)
    )
    engine.run(Nobody())
    for state in engine.requests.values():
        assert (state.output_ids, state.num_accepted) == ([7] * 12, 0)
    rejected = sum(state.num_drafted + state.num_wasted for state in engine.requests.values())
    assert rejected > 0
    assert sum(step.num_tokens for step in engine.recorder.steps) == 3 * (9 + 12 - 1) + rejected
