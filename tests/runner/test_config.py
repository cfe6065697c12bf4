"""RunnerConfig refuses sizes with which nothing could run, in one line naming key and value."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from runner.config import RunnerConfig
from runner.core import RunnerError
from runner.models import TINY_QWEN3

# No host work is a duration like any other, and no drafts is the usual case.
MAY_BE_ZERO = ("host_work_us", "num_speculative_tokens")
SIZES = [
    item.name for item in fields(RunnerConfig) if item.type in ("int", int) and item.name not in MAY_BE_ZERO
]


def test_all_known_sizes_are_covered() -> None:
    assert {"max_num_seqs", "max_num_batched_tokens", "block_size", "num_blocks"} <= set(SIZES)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -1, True, 1.5, float("nan"), float("inf"), "16", None])
def test_a_size_that_is_no_positive_whole_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(RunnerError) as caught:
        RunnerConfig(**{name: value})
    assert f"runner.{name} is {value!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", MAY_BE_ZERO)
@pytest.mark.parametrize("value", [-1, True, 0.5, float("nan"), "5"])
def test_what_may_be_zero_is_a_whole_number_all_the_same(name: str, value: object) -> None:
    assert getattr(RunnerConfig(**{name: 0}), name) == 0
    with pytest.raises(RunnerError, match=rf"runner.{name} is .* at least 0"):
        RunnerConfig(**{name: value})


@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_prefix_caching_is_a_truth_value(value: object) -> None:
    with pytest.raises(RunnerError, match=r"runner.prefix_caching is .* true or false"):
        RunnerConfig(prefix_caching=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, 1, "on", None])
def test_cuda_graphs_is_a_truth_value(value: object) -> None:
    with pytest.raises(RunnerError, match=r"runner.cuda_graphs is .* true or false"):
        RunnerConfig(cuda_graphs=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, 1, "torch", None])
def test_torch_compile_is_a_truth_value(value: object) -> None:
    with pytest.raises(RunnerError, match=r"runner.torch_compile is .* true or false"):
        RunnerConfig(torch_compile=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["flash", "Triton", "", 0, None, True])
def test_an_attention_there_is_not_is_refused_with_those_there_are(value: object) -> None:
    with pytest.raises(RunnerError, match=r"runner.attention is .* one of auto, sdpa, varlen, triton$"):
        RunnerConfig(attention=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["output", "Uploads", "", 0, None, True])
def test_a_fence_there_is_not_is_refused_with_those_there_are(value: object) -> None:
    with pytest.raises(RunnerError, match=r"runner.fence is .* one of uploads, embeddings$"):
        RunnerConfig(fence=value)  # type: ignore[arg-type]


def test_lookup_lengths_the_wrong_way_round_are_refused_with_both_numbers() -> None:
    with pytest.raises(RunnerError, match=r"prompt_lookup_min is 4.*prompt_lookup_max 3"):
        RunnerConfig(prompt_lookup_min=4)


def test_a_budget_below_one_token_a_request_is_refused_with_both_numbers() -> None:
    with pytest.raises(RunnerError, match=r"max_num_batched_tokens is 7.*max_num_seqs 8"):
        RunnerConfig(max_num_seqs=8, max_num_batched_tokens=7)
    RunnerConfig(max_num_seqs=8, max_num_batched_tokens=8)


def test_more_positions_than_the_model_has_are_refused_with_both_numbers() -> None:
    with pytest.raises(RunnerError, match=r"max_model_len is 4097.*tiny-qwen3 has 4096"):
        RunnerConfig(max_model_len=4097).check_model(TINY_QWEN3)
    RunnerConfig(max_model_len=4096).check_model(TINY_QWEN3)


@pytest.mark.parametrize(("length", "size", "blocks"), [(16, 4, 4), (17, 4, 5), (1, 4, 1), (5, 1, 5)])
def test_the_longest_table_covers_the_longest_request(length: int, size: int, blocks: int) -> None:
    assert RunnerConfig(max_model_len=length, block_size=size).max_blocks_per_seq == blocks


def test_a_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        RunnerConfig().num_blocks = 3
