"""The sampler's noise: known values, the same bits whatever is computed beside it, and its statistics.

Every statistic is shown to fail for noise that is keyed wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from runner.kernels.noise import NUM_BITS, gumbel, mix, uniform_bits
from suite import sampling_reference

GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
EDGE_SEEDS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62 + 5, 2**63 - 1]
LEVEL = 1e-3


def bits_of(seed: int, position: int, num_tokens: int) -> torch.Tensor:
    return uniform_bits(torch.tensor([seed]), torch.tensor([position]), num_tokens)[0]


# Known values


def test_the_mixing_is_splitmix64() -> None:
    """The first outputs for seed 1234567, as published for other implementations of it."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    outputs = mix(1234567 + torch.arange(1, 6) * GAMMA)
    assert [value % 2**64 for value in outputs.tolist()] == published
    assert [sampling_reference.splitmix64(1234567, index) for index in range(5)] == published


def test_the_noise_of_a_key_never_changes() -> None:
    """Pinned: another value would change every sampled token of every seed."""
    assert bits_of(0, 0, 4).tolist() == [1163578, 8146194, 2330631, 7571566]
    assert bits_of(2**63 - 1, 131071, 4).tolist() == [3184018, 6789271, 7444586, 5898714]


@pytest.mark.parametrize("position", [0, 1, 511, 2**17])
@pytest.mark.parametrize("seed", EDGE_SEEDS)
def test_bits_and_noise_are_those_of_the_other_implementation(seed: int, position: int) -> None:
    for num_tokens in (1, 7, 4096):
        bits = bits_of(seed, position, num_tokens)
        expected = sampling_reference.uniform_bits(seed, position, num_tokens)
        assert bits.tolist() == expected.tolist()
        noise = sampling_reference.gumbel(seed, position, num_tokens)
        assert gumbel(bits).numpy().tobytes() == noise.tobytes()


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), st.integers(1, 300))
def test_any_key_gives_the_bits_of_the_other_implementation(seed: int, position: int, count: int) -> None:
    expected = sampling_reference.uniform_bits(seed, position, count)
    assert bits_of(seed, position, count).tolist() == expected.tolist()


# The same bits whatever is computed beside them


@given(st.data())
def test_rows_do_not_depend_on_each_other(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 9))
    seeds = torch.tensor(data.draw(st.lists(st.sampled_from(EDGE_SEEDS), min_size=count, max_size=count)))
    positions = torch.tensor(data.draw(st.lists(st.integers(0, 600), min_size=count, max_size=count)))
    num_tokens = data.draw(st.sampled_from([1, 3, 17, 130]))
    together = gumbel(uniform_bits(seeds, positions, num_tokens))
    order = torch.tensor(data.draw(st.permutations(range(count))))
    assert torch.equal(gumbel(uniform_bits(seeds[order], positions[order], num_tokens)), together[order])
    for row in range(count):
        alone = gumbel(uniform_bits(seeds[row, None], positions[row, None], num_tokens))
        assert torch.equal(alone[0], together[row])
    wider = gumbel(uniform_bits(seeds, positions, num_tokens + 13))
    assert torch.equal(wider[:, :num_tokens], together)


def test_the_number_of_threads_changes_nothing() -> None:
    seeds, positions = torch.arange(3), torch.arange(3) * 7
    before = torch.get_num_threads()
    found = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        found.append(gumbel(uniform_bits(seeds, positions, 100_003)))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.skipif(
    np.finfo(np.longdouble).eps >= np.finfo(np.float64).eps, reason="no float beyond 64 bits here"
)
def test_no_value_but_one_is_near_enough_to_a_rounding_boundary_to_differ() -> None:
    """Of all 2**23 values, in extended precision: an error of two units in the last place of either
    logarithm moves no other value to another float32, so that vector and scalar code must agree."""
    uniform = (np.arange(2**NUM_BITS) + np.longdouble(0.5)) / 2**NUM_BITS
    exact = -np.log(-np.log(uniform))
    nearest = exact.astype(np.float32)
    sides = (np.nextafter(nearest, np.float32(side)) for side in (-np.inf, np.inf))
    ends = [(nearest.astype(np.longdouble) + side) / 2 for side in sides]
    distance = np.minimum(*(np.abs(end - exact) for end in ends))
    doubtful = np.flatnonzero(distance <= 4 * np.finfo(np.float64).eps * (1 + np.abs(exact)))
    assert len(doubtful) == 1
    assert abs(exact[doubtful[0]]) < 1e-7

    every = gumbel(torch.arange(2**NUM_BITS))
    assert every.numpy().tobytes() == nearest.tobytes()
    for length in range(1, 20):  # vector code and what is left over at its end
        assert torch.equal(gumbel(torch.arange(length)), every[:length])
        assert torch.equal(gumbel(torch.arange(doubtful[0], doubtful[0] + length))[:1], every[doubtful])


def test_noise_is_finite_at_both_ends() -> None:
    ends = gumbel(torch.tensor([0, 2**NUM_BITS - 1]))
    assert ends.tolist() == pytest.approx([-math.log(24 * math.log(2)), 24 * math.log(2)], rel=1e-6)


# Statistics. A noise takes (seeds, positions, num_tokens) and gives bits.

Noise = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def without_position(seeds: torch.Tensor, positions: torch.Tensor, num_tokens: int) -> torch.Tensor:
    return uniform_bits(seeds, torch.zeros_like(positions), num_tokens)


def without_token(seeds: torch.Tensor, positions: torch.Tensor, num_tokens: int) -> torch.Tensor:
    return uniform_bits(seeds, positions, 1).expand(-1, num_tokens)


def without_seed(seeds: torch.Tensor, positions: torch.Tensor, num_tokens: int) -> torch.Tensor:
    return uniform_bits(torch.zeros_like(seeds), positions, num_tokens)


def by_sum(seeds: torch.Tensor, positions: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Position and token are interchangeable: the noise of one step is that of the one before, shifted."""
    keys = (seeds + positions)[:, None] + torch.arange(num_tokens)
    return mix((keys + 1) * GAMMA) >> 41 & (2**NUM_BITS - 1)


def unmixed(seeds: torch.Tensor, positions: torch.Tensor, num_tokens: int) -> torch.Tensor:
    keys = (seeds * 1000 + positions)[:, None] * 1000 + torch.arange(num_tokens)
    return keys * 7919 & (2**NUM_BITS - 1)


NUM_ROWS, NUM_TOKENS = 4000, 16


def over_positions(noise: Noise, seed: int) -> torch.Tensor:
    """Bits [rows, tokens] at one seed and many positions."""
    positions = torch.arange(NUM_ROWS)
    return noise(torch.full_like(positions, seed), positions, NUM_TOKENS)


def over_seeds(noise: Noise, position: int) -> torch.Tensor:
    seeds = torch.arange(NUM_ROWS)
    return noise(seeds, torch.full_like(seeds, position), NUM_TOKENS)


def uniformity(bits: torch.Tensor) -> float:
    """p of 256 equally likely classes, by the upper bits."""
    return float(chisquare(np.bincount(bits.flatten().numpy() >> (NUM_BITS - 8), minlength=256)).pvalue)


def independence(first: torch.Tensor, second: torch.Tensor) -> float:
    """p of pairs in 16 x 16 equally likely classes, by the upper bits."""
    shift = NUM_BITS - 4
    classes = (first.flatten().numpy() >> shift) * 16 + (second.flatten().numpy() >> shift)
    return float(chisquare(np.bincount(classes, minlength=256)).pvalue)


def worst(noise: Noise) -> float:
    """The least p of uniformity and of the independence of neighbours: token, position, seed, diagonal."""
    tables = [over_positions(noise, seed) for seed in (0, 1, 2**40 + 3)]
    tables += [over_seeds(noise, position) for position in (0, 77)]
    found = []
    for bits in tables:
        found.append(uniformity(bits))
        found.append(independence(bits[:, :-1], bits[:, 1:]))
        found.append(independence(bits[:-1], bits[1:]))
        found.append(independence(bits[:-1, 1:], bits[1:, :-1]))
        found.append(independence(bits[:-1, :-1], bits[1:, 1:]))
    found.append(independence(tables[0], tables[1]))
    found.append(independence(tables[3], tables[4]))
    return min(found)


def test_bits_are_uniform_and_neighbours_independent() -> None:
    assert worst(uniform_bits) > LEVEL


@pytest.mark.parametrize(
    "noise",
    [without_position, without_token, without_seed, by_sum, unmixed],
    ids=lambda noise: noise.__name__,
)
def test_noise_keyed_wrongly_is_found(noise: Noise) -> None:
    assert worst(noise) < LEVEL / 1e6


def test_noise_is_gumbel_distributed() -> None:
    drawn = gumbel(over_positions(uniform_bits, seed=5)).flatten().double().numpy()
    assert kstest(drawn, "gumbel_r").pvalue > LEVEL
    assert kstest(drawn + 0.05, "gumbel_r").pvalue < LEVEL


def test_every_bit_of_a_seed_and_a_position_matters() -> None:
    """One bit more or less changes half of the bits, as two unrelated keys would."""
    base = bits_of(12345, 678, 512)
    for flipped in [bits_of(12345 ^ 1 << bit, 678, 512) for bit in range(63)] + [
        bits_of(12345, 678 ^ 1 << bit, 512) for bit in range(31)
    ]:
        differing = sum(int(((base ^ flipped) >> bit & 1).sum()) for bit in range(NUM_BITS))
        assert abs(differing / (512 * NUM_BITS) - 0.5) < 0.03
