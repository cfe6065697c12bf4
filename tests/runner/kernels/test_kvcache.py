"""KVCache: what is written at a position is gathered there, and only there."""

from __future__ import annotations

import torch

from runner.config import RunnerConfig
from runner.kernels.kvcache import POISON, KVCache
from runner.models import TINY_QWEN3

CONFIG = RunnerConfig(num_blocks=6, block_size=4, max_num_seqs=2)
SHAPE = (TINY_QWEN3.num_kv_heads, TINY_QWEN3.head_dim)


def rows(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def test_a_fresh_cache_is_poisoned_with_a_finite_value() -> None:
    cache = KVCache(TINY_QWEN3, CONFIG, torch.float32, torch.device("cpu"))
    for tensor in (*cache.keys, *cache.values):
        assert bool((tensor == POISON).all())
    assert torch.isfinite(torch.tensor(POISON))


def test_every_layer_has_its_own_keys_and_values() -> None:
    cache = KVCache(TINY_QWEN3, CONFIG, torch.float32, torch.device("cpu"))
    cache.write(1, rows(1, 1), rows(1, 2), torch.tensor([5]))
    assert bool((cache.keys[0] == POISON).all())
    assert torch.equal(cache.keys[1][1, 1], rows(1, 1)[0])
    assert torch.equal(cache.values[1][1, 1], rows(1, 2)[0])


def test_a_write_touches_exactly_its_positions() -> None:
    cache = KVCache(TINY_QWEN3, CONFIG, torch.float32, torch.device("cpu"))
    cache.write(0, rows(3, 1), rows(3, 2), torch.tensor([23, 4, 0]))
    flat = cache.keys[0].flatten(0, 1)
    for row, position in enumerate((23, 4, 0)):
        assert torch.equal(flat[position], rows(3, 1)[row])
    untouched = [position for position in range(24) if position not in (23, 4, 0)]
    assert bool((flat[untouched] == POISON).all())


def test_a_gather_lays_the_blocks_of_each_row_one_behind_the_other() -> None:
    cache = KVCache(TINY_QWEN3, CONFIG, torch.float32, torch.device("cpu"))
    everything = torch.arange(24)
    cache.write(0, rows(24, 1), rows(24, 2), everything)
    keys, values = cache.gather(0, torch.tensor([5, 2, 0, 2]), num_rows=2)
    assert keys.shape == values.shape == (2, SHAPE[0], 8, SHAPE[1])
    for gathered, written in ((keys, rows(24, 1)), (values, rows(24, 2))):
        for row, blocks in enumerate(((5, 2), (0, 2))):
            wanted = torch.cat([written[4 * block : 4 * block + 4] for block in blocks])
            assert torch.equal(gathered[row], wanted.transpose(0, 1))


def test_gathers_of_growing_and_shrinking_sizes_are_right() -> None:
    cache = KVCache(TINY_QWEN3, CONFIG, torch.float32, torch.device("cpu"))
    cache.write(0, rows(24, 1), rows(24, 2), torch.arange(24))
    for count in (1, 6, 2, 9, 3):
        blocks = torch.arange(count) % 6
        keys, values = cache.gather(0, blocks, num_rows=count)
        assert torch.equal(
            keys.transpose(1, 2).flatten(0, 1), rows(24, 1).view(6, 4, *SHAPE)[blocks].flatten(0, 1)
        )
        assert torch.equal(values[-1].transpose(0, 1), rows(24, 2).view(6, 4, *SHAPE)[int(blocks[-1])])


def test_poisoning_leaves_nothing_of_what_was_written() -> None:
    cache = KVCache(TINY_QWEN3, CONFIG, torch.float32, torch.device("cpu"))
    for layer in range(TINY_QWEN3.num_layers):
        cache.write(layer, rows(24, 1), rows(24, 2), torch.arange(24))
    cache.poison()
    for tensor in (*cache.keys, *cache.values):
        assert bool((tensor == POISON).all())
