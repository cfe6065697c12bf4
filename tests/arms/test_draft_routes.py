"""Drafts stand right behind their own row's sampled id, however rows move: read from what a step is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arm_models import MICRO_GEMMA3_VL
from arm_sampling import CYCLING, sampled_requests
from arm_workloads import Arrivals, Case, Recipe

from runner.config import RunnerConfig
from runner.device.base import open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.kernels.program import Program

CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=32,
    max_model_len=64,
    block_size=4,
    num_blocks=64,
    num_resident_rows=128,
    num_speculative_tokens=3,
)
# They leave at different times, so that rows move with drafts behind them.
RECIPES = tuple(
    Recipe(("ids", "spliced")[index % 2], 5 + index, max_tokens=6 + 5 * index, seed=index)
    for index in range(4)
)


@pytest.mark.parametrize("name", ["async-rows", "fused"])
def test_each_row_gets_the_drafts_that_were_proposed_for_it(
    name: str, models_built_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposed: dict[int, Any] = {}  # by slot, which a row keeps when it moves
    compared: list[bool] = []
    rows: list[Any] = []
    draft, forward = Program._draft, Program._forward

    def note(program: Program, buffer: str, count: int) -> None:
        draft(program, buffer, count)
        slots = program._current_metadata().slots.tolist()
        proposed.update(zip(slots, program._buffers[buffer][:count].clone().numpy(), strict=True))

    def compare(program: Program, *command: Any) -> None:
        (batch,) = rows
        metadata, history = program._current_metadata(), program._buffers["token_history"]
        ids, ends = program._buffers["input_ids"].numpy(), metadata.starts[1:].tolist()
        for row, num_drafts in enumerate(batch.num_drafts[: batch.num_rows].tolist()):
            if num_drafts:
                first = ends[row] - num_drafts - 1
                newest = history[int(batch.slots[row]), metadata.positions[first]]
                compared.append(int(ids[first]) == int(newest))
                got = ids[ends[row] - num_drafts : ends[row]]
                wanted = np.maximum(proposed[int(batch.slots[row])][:num_drafts], 0)
                compared.append(bool((got == wanted).all()))
        forward(program, *command)

    monkeypatch.setattr(Program, "_draft", note)
    monkeypatch.setattr(Program, "_forward", compare)
    case = Case(MICRO_GEMMA3_VL, CONFIG, RECIPES)
    with open_device("inline", case.model, CONFIG) as device:
        engine = Engine(case.model, CONFIG, device, ARMS[name])
        rows.append(engine._executor._batch)
        engine.run(Arrivals((0, request) for request in sampled_requests(case, ARMS[name], CYCLING)))
    assert len(compared) > 40
    assert all(compared)
