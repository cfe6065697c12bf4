"""Prefix blocks of a trace become equal beginnings of prompts, which a prefix cache really finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_inputs import GOOD, MOONCAKE
from built_cases import built, built_case, printed_by_fresh_processes
from recorded_traces import recorded

from runner.core import Request
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS
from suite.workload import build_workload

REPLAY_ALL = """\
name: blocks
model: tiny-qwen3
runner: {max_model_len: 2048, max_num_batched_tokens: 2048, num_blocks: 512, prefix_caching: true}
traffic:
  arrivals: {kind: trace, path: trace.jsonl, over_length: truncate}
"""


class _OneAfterAnother:
    """Each request when the one before has finished."""

    def __init__(self, requests: list[Request]) -> None:
        self._left = requests

    def due(self) -> list[Request]:
        return [self._left.pop(0)] if self._left else []

    def wait(self) -> bool:
        return bool(self._left)


def _prompts(folder: Path, *overrides: str, text: str = REPLAY_ALL, seed: int = 7) -> list[tuple[int, ...]]:
    (folder / "trace.jsonl").write_text(MOONCAKE)
    workload = built(folder, *overrides, text=text, seed=seed)
    return [item.request.prompt.token_ids for item in workload.requests]


def _num_alike(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@pytest.mark.parametrize(("scale", "shared"), [(1.0, 1024), (0.1, 103), (0.03, 31), (1.2, 1229)])
def test_equal_blocks_are_equal_tokens_at_every_scale(scale: float, shared: int, tmp_path: Path) -> None:
    first, second, third = _prompts(tmp_path, f"traffic.arrivals.length_scale={scale}")
    assert _num_alike(first, second) == shared  # two blocks of 512, their ends rounded up
    assert _num_alike(first, third) < 3


def test_a_block_cut_short_is_the_beginning_of_the_whole_one(tmp_path: Path) -> None:
    cut = '{"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [0]}\n'
    (tmp_path / "trace.jsonl").write_text(cut + MOONCAKE)
    workload = built(tmp_path, text=REPLAY_ALL)
    short, whole = (item.request.prompt.token_ids for item in workload.requests[:2])
    assert len(short) == 100 and whole[:100] == short


def test_a_block_means_the_same_tokens_wherever_it_stands(tmp_path: Path) -> None:
    """Blocks are read as content: the trace's own ids stand for a whole beginning, and never move."""
    moved = '{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [4, 0]}\n'
    (tmp_path / "trace.jsonl").write_text(moved + MOONCAKE)
    prompts = [item.request.prompt.token_ids for item in built(tmp_path, text=REPLAY_ALL).requests]
    assert prompts[0][512:] == prompts[1][:512]
    assert prompts[0][:512] == prompts[3]


def test_another_seed_draws_other_blocks(tmp_path: Path) -> None:
    assert _num_alike(_prompts(tmp_path)[0], _prompts(tmp_path, seed=8)[0]) < 3


def test_images_stand_behind_the_blocks(tmp_path: Path) -> None:
    text = REPLAY_ALL.replace("tiny-qwen3", "tiny-gemma3-vl") + "  multimodal_ratio: 1\n"
    first, second, _ = _prompts(tmp_path, text=text)
    assert _num_alike(first, second) == 1030 - 18
    workload = built(tmp_path, text=text)
    assert all(len(item.request.prompt.images) == 1 for item in workload.requests)
    assert [len(item.request.prompt) for item in workload.requests] == [1030, 1500, 512]


def test_the_prefix_cache_hits_what_the_trace_says_is_alike(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    case = built_case(tmp_path, text=REPLAY_ALL)
    workload = build_workload(case, 7)
    device = NullDevice(case.model_spec, case.runner_config, lambda _step_id, _commands: None, token_id=9)
    engine = Engine(case.model_spec, case.runner_config, device, ARMS["ids"])
    engine.run(_OneAfterAnother([item.request for item in workload.requests]))
    assert [state.num_cached for state in engine.requests.values()] == [0, 1024, 0]
    assert workload.begins_alike
    (note,) = (note for note in workload.notes if "prefix blocks" in note)
    assert "the trace's 5 different prefix blocks" in note
    assert "1024 of 3042 text tokens are in a block that came before (runner.prefix_caching is on)" in note


def test_prompts_without_blocks_are_not_said_to_begin_alike(tmp_path: Path) -> None:
    assert not built(tmp_path, text=GOOD).begins_alike


def test_blocks_are_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    case = built_case(tmp_path, text=REPLAY_ALL)
    (printed,) = printed_by_fresh_processes(tmp_path / "scenario.yaml", (), 7)
    assert printed.split()[0] == build_workload(case, 7).hash


def test_recorded_conversations_share_their_beginnings(tmp_path: Path) -> None:
    path = recorded("mooncake_fast25", "conversation_trace.first2000.jsonl")
    text = REPLAY_ALL.replace("trace.jsonl, over", f"{path}, limit: 100, length_scale: 0.02, over")
    prompts = [item.request.prompt.token_ids for item in built(tmp_path, text=text).requests]
    assert len(prompts) == 100
    assert len({prompt[:10] for prompt in prompts}) < 100
