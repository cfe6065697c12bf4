"""What `fused` moves beside a plain copy of the same bytes in the same run, and `where` beside both."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import median

import pytest
import torch

from runner.kernels.merge import merge_fused, merge_where

NUM_TOKENS, HIDDEN, VOCAB, ARENA = 4096, 2560, 4096, 4096
NUM_ROUNDS = 15
MIN_SHARE = 0.7


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_fused_moves_its_bytes_nearly_as_fast_as_a_copy(
    one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """One gather from the joint table; and lookup, `where` and copy."""
    draw = torch.Generator().manual_seed(1)
    joined = torch.randn(VOCAB + ARENA, HIDDEN, generator=draw)
    index = torch.randint(0, VOCAB + ARENA, (NUM_TOKENS,), generator=draw)
    source, target = torch.randn(NUM_TOKENS, HIDDEN, generator=draw), torch.empty(NUM_TOKENS, HIDDEN)
    is_token = (torch.rand(NUM_TOKENS, generator=draw) < 0.5).to(torch.uint8)
    ids, table = index.clamp(max=VOCAB - 1), joined[:VOCAB]
    ways: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "fused": lambda: merge_fused(joined, index, target),
        "where": lambda: merge_where(torch.nn.functional.embedding(ids, table), is_token, target),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    with torch.inference_mode():
        for number in range(NUM_ROUNDS + 2):
            for name in random.Random(number).sample([*ways], len(ways)):
                begin = time.perf_counter()
                ways[name]()
                if number >= 2:
                    spent[name].append(time.perf_counter() - begin)
    num_bytes = 2 * target.nbytes  # one read and one write of a step's rows
    rates = {name: num_bytes / median(times) / 1e9 for name, times in spent.items()}
    share = median(a / b for a, b in zip(spent["copy"], spent["fused"], strict=True))
    with capsys.disabled():
        print(
            "\n" + ", ".join(f"{name} {rate:.1f} GB/s" for name, rate in rates.items()), f"share {share:.2f}"
        )
    assert share >= MIN_SHARE
