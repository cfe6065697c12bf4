"""Turns are dealt evenly over the runs in every step, and freely from one step to the next."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from runner.repeats import NO_REPEATS, repeats_in
from suite.turns import CIRCLE, shuffled_turns

TURNS = [NO_REPEATS, ("merge", 9), ("lookup", 5), ("merge", 3), ("positions", 2)]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_step_has_every_turn_once_over_the_runs(size: int) -> None:
    runs = shuffled_turns(TURNS[:size], random.Random(1))
    assert len(runs) == size
    assert all(len(run) == CIRCLE for run in runs)
    for step in zip(*runs, strict=True):
        assert sorted(step) == sorted(TURNS[:size])


def test_a_turn_that_stands_twice_comes_twice_in_every_step() -> None:
    runs = shuffled_turns([NO_REPEATS, *TURNS], random.Random(1))
    assert len(runs) == 6
    assert all(Counter(step)[NO_REPEATS] == 2 for step in zip(*runs, strict=True))


def test_a_turn_says_nothing_of_the_next() -> None:
    """A square of turns would not do: there a turn is never behind itself, and its next is a cheaper one."""
    pairs: Counter[bool] = Counter()
    for seed in range(40):
        for run in shuffled_turns(TURNS[:2], random.Random(seed)):
            pairs.update(one == then for one, then in pairwise(run))
    assert 0.47 < pairs[True] / pairs.total() < 0.53


def test_turns_come_from_the_draw_alone() -> None:
    assert shuffled_turns(TURNS, random.Random(3)) == shuffled_turns(TURNS, random.Random(3))
    assert shuffled_turns(TURNS, random.Random(3)) != shuffled_turns(TURNS, random.Random(4))


def test_a_steps_repeats_are_its_turns_and_without_turns_those_of_all_steps() -> None:
    everywhere = {"merge": 9}
    assert repeats_in(7, everywhere, ()) == everywhere
    assert [repeats_in(step_id, everywhere, TURNS[:3]) for step_id in range(4)] == [
        {},
        {"merge": 9},
        {"lookup": 5},
        {},
    ]
