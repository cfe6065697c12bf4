"""Gumbel noise as a pure function of (seed, position, token id): no state, no generator (torch).

SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014; the constants
are those of S. Vigna's public domain splitmix64.c) gives output i of a seed s as mix(s + (i + 1) * GAMMA).
Here the mixed seed's stream gives every position a seed of its own, and that one's stream every token its
bits. Integers only until the last step, so nothing depends on which other rows are there.
"""

from __future__ import annotations

import torch

NUM_BITS = 23


def _signed64(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


_GAMMA = _signed64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = _signed64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = _signed64(0x94D049BB133111EB)


def mix(state: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finalizer on int64 of any shape, taken as 64 bits; products wrap. A new tensor."""
    state = (state ^ _shifted(state, 30)).mul_(_FIRST_FACTOR)
    state = (state ^ _shifted(state, 27)).mul_(_SECOND_FACTOR)
    return state ^ _shifted(state, 31)


def uniform_bits(seeds: torch.Tensor, positions: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """int64 [rows, num_tokens] from 0 to 2**23 - 1, for seeds [rows] and positions [rows], both int64."""
    of_seed = mix(seeds + _GAMMA)
    of_position = mix(of_seed + (positions + 1) * _GAMMA)
    steps = torch.arange(1, num_tokens + 1, device=seeds.device) * _GAMMA
    return _shifted(mix(of_position[:, None] + steps), 64 - NUM_BITS)


def gumbel(bits: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float32, of uniform bits: -log(-log u) at u = (bits + 1/2) / 2**23.

    Computed in float64 and rounded once: vector and scalar code differ in a float64's last place, and of
    all 2**23 values one alone (about 2.5e-8) lies so near to a rounding boundary that this could show.
    From -2.8 to 16.6: a token that is more than 19.4 below another, after temperature, never wins.
    """
    uniform = bits.to(torch.float64).add_(0.5).mul_(2.0**-NUM_BITS)
    return uniform.log_().neg_().log_().neg_().to(torch.float32)


def _shifted(state: torch.Tensor, count: int) -> torch.Tensor:
    """A logical shift to the right: torch shifts the sign in."""
    return (state >> count).bitwise_and_((1 << (64 - count)) - 1)
