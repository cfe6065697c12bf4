"""Turns are dealt evenly: in every step over the runs, and in every run over the steps."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from runner.repeats import NO_REPEATS, repeats_in
from suite.turns import MIN_CIRCLE, balanced_turns

TURNS = [NO_REPEATS, ("merge", 9), ("lookup", 5), ("merge", 3), ("positions", 2)]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_step_has_every_turn_once_over_the_runs_and_every_run_as_often_as_any_other(size: int) -> None:
    turns = TURNS[:size]
    runs = balanced_turns(turns, random.Random(1))
    assert len(runs) == size
    assert all(len(run) >= MIN_CIRCLE for run in runs)
    for step in zip(*runs, strict=True):
        assert sorted(step) == sorted(turns)
    for run in runs:
        for first in range(0, len(run), size):
            assert sorted(run[first : first + size]) == sorted(turns)


def test_a_turn_is_not_always_behind_the_same_one() -> None:
    runs = balanced_turns(TURNS, random.Random(1))
    before = Counter(pair for run in runs for pair in pairwise(run))
    assert len({first for first, then in before if then == ("merge", 9)}) >= 4


def test_turns_come_from_the_draw_alone() -> None:
    assert balanced_turns(TURNS, random.Random(3)) == balanced_turns(TURNS, random.Random(3))
    assert balanced_turns(TURNS, random.Random(3)) != balanced_turns(TURNS, random.Random(4))


def test_a_steps_repeats_are_its_turns_and_without_turns_those_of_all_steps() -> None:
    everywhere = {"merge": 9}
    assert repeats_in(7, everywhere, ()) == everywhere
    assert [repeats_in(step_id, everywhere, TURNS[:3]) for step_id in range(4)] == [
        {},
        {"merge": 9},
        {"lookup": 5},
        {},
    ]
