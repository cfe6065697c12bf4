"""The pool times the runner's own commands: what they compute is what a step computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from micro_fabrication import make_machine

from runner.kernels.program import Wire
from suite.micro.pool import Mix, Pool, Sizes, mix

TOKENS, HIDDEN = 128, 8
SIZES = Sizes(TOKENS, HIDDEN, TOKENS * HIDDEN * 2)

WHERE: tuple[Wire, ...] = (
    ("merge.ids", "where", TOKENS),
    ("lookup", "safe", TOKENS),
    ("merge", "where", TOKENS),
)


def download(pool: Pool, buffer: str) -> list[torch.Tensor]:
    pool.run(("download", buffer, TOKENS))
    return [host[buffer].clone() for host in pool._hosts]


def expected(pool: Pool, step: Mix) -> torch.Tensor:
    """Supplied rows hold their position; all others are rows of the table."""
    (program, *_) = pool._programs
    rows = program._table[pool._hosts[0]["input_ids"].long()]
    rows[step.places] = _numbered(step.places)
    return rows


def _numbered(places: Sequence[int]) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.float32)[:, None].expand(-1, HIDDEN)


def number_rows(pool: Pool, step: Mix) -> None:
    """Every supplied row, wherever it is kept, is told by its position."""
    everywhere = _numbered(range(TOKENS))
    for host in pool._hosts:
        host["inputs_embeds"][:] = host["resident_rows"][:] = everywhere
        host["supplied_rows"][: step.supplied] = _numbered(step.places)
    for buffer in ("inputs_embeds", "resident_rows", "supplied_rows"):
        pool.run(("upload", buffer, 0, 0, TOKENS))


@pytest.mark.parametrize("kind", ["where", "index", "overlay", "fused", "scatter", "gather"])
@pytest.mark.parametrize("share", [0.25, 0.75])
def test_every_way_to_merge_gives_the_same_rows(kind: str, share: float) -> None:
    pool = Pool(make_machine(cache_bytes=SIZES.least_touched * 2), SIZES)
    step = mix(TOKENS, share)
    pool.set_flags(step)
    number_rows(pool, step)
    arena = [(place, place) for place in step.places]
    packed = [(place, index) for index, place in enumerate(step.places)]
    places: Any = {"overlay": arena, "gather": arena, "scatter": packed}.get(kind, ())
    pool.set_step(step, places=places, derives=kind == "fused")
    tokens = TOKENS - step.supplied
    commands: dict[str, tuple[Wire, ...]] = {
        "where": WHERE,
        "index": (("lookup", "indexed", tokens), ("merge", "index", tokens)),
        "overlay": (
            ("lookup", "ids", TOKENS),
            ("merge", "copy", TOKENS),
            ("merge", "overlay", step.supplied),
        ),
        "fused": (("merge", "fused", TOKENS),),
        "scatter": (("merge", "fused", TOKENS), ("place", "scatter", step.supplied), *WHERE),
        "gather": (("merge", "fused", TOKENS), ("place", "gather", step.supplied), *WHERE),
    }
    with torch.inference_mode():
        pool.run(*commands[kind])
        found = download(pool, "inputs_embeds")
        wanted = expected(pool, step)
    assert len(found) > 1
    for rows in found:
        assert torch.equal(rows, wanted)


def test_flags_are_derived_as_they_are_uploaded() -> None:
    pool, step = Pool(make_machine(), SIZES), mix(TOKENS, 0.5)
    pool.set_flags(step)
    pool.set_step(step, derives=True)
    (uploaded, *_) = download(pool, "is_token_ids")
    pool.run(("flags", "fill", TOKENS), ("flags", "derived", TOKENS))
    (derived, *_) = download(pool, "is_token_ids")
    assert torch.equal(derived, uploaded)
    assert int((derived == 0).sum()) == TOKENS // 2


def test_a_cold_pool_has_more_memory_than_the_cache_and_none_of_it_twice() -> None:
    cache_bytes = 10 * SIZES.least_touched
    pool = Pool(make_machine(cache_bytes=cache_bytes), SIZES)
    assert pool.is_cold
    tensors = [program._buffers["inputs_embeds"] for program in pool._programs]
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)
    assert (len(tensors) - 1) * SIZES.least_touched > cache_bytes


def test_a_pool_that_cannot_be_cold_is_called_warm() -> None:
    pool = Pool(make_machine(cache_bytes=10_000 * SIZES.least_touched), SIZES)
    assert not pool.is_cold
    assert len(pool._programs) == 1


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("tokens", [64, 512, 4096])
def test_supplied_positions_are_the_first_of_each_row_and_as_many_as_asked(tokens: int, share: float) -> None:
    step = mix(tokens, share)
    assert len(set(step.places)) == len(step.places) == sum(step.lengths) == round(tokens * share)
    assert max(step.lengths) - min(step.lengths) <= 1
    assert all(place % step.per_row < max(step.lengths) for place in step.places)


def test_routed_ids_arrive_where_they_are_sent() -> None:
    pool = Pool(make_machine(), Sizes(8, 8, 64), rows=8)
    for host in pool._hosts:
        host["sampled_ids.1"][:8] = torch.arange(8, dtype=torch.int32)
    pool.run(("upload", "sampled_ids.1", 0, 0, 8))
    pool.set_step(Mix(8, 8, 0), routes=[(row, 7 - row) for row in range(8)])
    pool.run(("route.ids", "scatter", "sampled_ids.1", 8), ("download", "input_ids", 8))
    assert pool._hosts[0]["input_ids"].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
