"""What the tests of a GPU run on: a GPU where there is one, and a CPU, so that the tests are tried too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from runner.config import RunnerConfig
from runner.device.base import Device, open_device
from runner.device.host import HostDevice
from runner.kernels.program import Program
from runner.models import ModelSpec

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none")
ON_GPU = (pytest.mark.gpu, NEEDS_GPU)
KINDS = [pytest.param("inline", id="cpu"), pytest.param("cuda", id="gpu", marks=ON_GPU)]
GRAPHS = [pytest.param(True, id="graphs"), pytest.param(False, id="eager")]


def opened(kind: str, model: ModelSpec, config: RunnerConfig, graphs: bool) -> Device:
    """On a CPU, `graphs` are decode steps filled up as if they were captured."""
    if kind == "cuda":
        return open_device("cuda", model, replace(config, cuda_graphs=graphs))
    sizes = tuple(range(2, config.max_num_seqs + 1, 2)) if graphs else ()
    return HostDevice(model, config, "inline", graph_sizes=sizes)


def program_of(device: Device) -> Program:
    inside: Any = device
    program: Program = inside._runner._program if isinstance(device, HostDevice) else inside._program
    return program
