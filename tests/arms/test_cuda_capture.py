"""Profilers that capture on demand: CUDA's own is told when, and has all that was launched within."""

from __future__ import annotations

import pytest
import torch
from fake_cuda import FakeCuda, program_maker

from runner.config import RunnerConfig
from runner.device.cuda import CudaDevice
from runner.models import TINY_GEMMA3_VL

CONFIG = RunnerConfig(
    max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, block_size=4, num_blocks=24
)


def test_the_capture_ends_when_what_was_launched_in_it_is_done(
    monkeypatch: pytest.MonkeyPatch, models_built_once: None
) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: cuda.log.append("start capture"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: cuda.log.append("stop capture"))
    with CudaDevice(TINY_GEMMA3_VL, CONFIG, program_maker(cuda)) as device:
        del cuda.log[:]
        device.start_capture()
        device.stop_capture()
        assert cuda.log == ["start capture", "synchronize device", "stop capture"]
