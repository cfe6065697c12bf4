"""The arena's rows: adjacent, owned once, and joined again when they are given back."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from runner.resident_rows import ResidentRows


def test_rows_of_a_request_lie_together_and_beside_the_last_ones() -> None:
    arena = ResidentRows(10)
    assert (arena.allocate(4), arena.allocate(6)) == (0, 4)
    assert arena.allocate(1) is None
    assert arena.num_free == 0


@pytest.mark.parametrize("order", list(permutations((0, 3, 6))))
def test_neighbouring_ranges_are_joined_in_whatever_order_they_come(order: tuple[int, ...]) -> None:
    """An arena nobody uses holds whatever fits it at all."""
    arena = ResidentRows(9)
    assert [arena.allocate(3) for _ in range(3)] == [0, 3, 6]
    for first in order:
        arena.release(first)
    arena.check(set())
    assert arena.allocate(9) == 0


def test_a_hole_too_small_is_passed_over_and_used_by_who_fits() -> None:
    arena = ResidentRows(9)
    first, _ = arena.allocate(2), arena.allocate(3)
    assert first is not None
    arena.release(first)
    assert arena.allocate(3) == 5
    assert arena.allocate(2) == 0


def test_any_history_owns_every_row_at_most_once() -> None:
    draw = random.Random(3)
    arena = ResidentRows(40)
    owned: dict[int, int] = {}
    for _ in range(2000):
        if owned and draw.random() < 0.5:
            first = draw.choice(list(owned))
            del owned[first]
            arena.release(first)
        else:
            count = draw.randint(1, 12)
            first_free = arena.allocate(count)
            if first_free is not None:
                owned[first_free] = count
        rows = [row for first, count in owned.items() for row in range(first, first + count)]
        assert len(set(rows)) == len(rows)
        assert arena.num_free == 40 - len(rows)
        arena.check(set(owned))


def test_check_finds_rows_that_nobody_alive_owns() -> None:
    arena = ResidentRows(4)
    arena.allocate(2)
    with pytest.raises(AssertionError, match="leaked"):
        arena.check(set())
