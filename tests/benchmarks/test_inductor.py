"""torch.compile with its own compiler, in the device's process: right tokens, and nothing compiled in a step.

It needs a minute where it has compiled none of this before. The time is told, and not gated.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from arm_models import MICRO_GEMMA3_VL
from arm_workloads import Case, Recipe, serve, wrong_requests

from runner.config import RunnerConfig
from runner.device.base import open_device
from runner.inputs.arms import ARMS

CONFIG = RunnerConfig(
    max_num_seqs=4, max_num_batched_tokens=24, max_model_len=48, block_size=4, num_resident_rows=96
)
PROMPTS = (
    Recipe("pure", 29, max_tokens=5, seed=1),
    Recipe("spliced", 6, max_tokens=9, seed=2),
    Recipe("ids", 5, num_images=1, max_tokens=4, seed=4),
)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++, which torch.compile calls")
def test_inductor(capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(CONFIG, torch_compile=True)
    case = Case(MICRO_GEMMA3_VL, config, PROMPTS, gap=2)
    with open_device("process", MICRO_GEMMA3_VL, config) as device:
        compiled = device.info.compiled
        assert compiled is not None and compiled.num_graphs == 2
        for arm in ("sync-ids", "refresh", "fused"):
            assert wrong_requests(serve(case, device, ARMS[arm])) == {}, arm
            assert device.num_recompiled() == 0, arm
    with capsys.disabled():
        print(f"\n{compiled.num_graphs} graphs compiled in {compiled.duration_s:.1f} s")
