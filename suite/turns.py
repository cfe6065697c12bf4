"""Which step of which run repeats what: turns dealt so that no run and no step favours one of them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from runner.repeats import Turn

MIN_CIRCLE = 60
"""Steps until a run's turns begin anew, at least."""


def balanced_turns(turns: Sequence[Turn], draw: random.Random) -> list[tuple[Turn, ...]]:
    """As many runs as turns, each a circle of steps, made of Latin squares drawn one behind the other.

    Over the runs every step has each turn once, so that they can be compared step by step; within as many
    steps as there are turns every run has each turn once, so that a run which is slow as a whole is so for
    all of them alike. What precedes a turn changes from square to square.
    """
    runs: list[list[Turn]] = [[] for _ in turns]
    for _ in range(math.ceil(MIN_CIRCLE / len(turns))):
        for run, row in zip(runs, _latin_square(len(turns), draw), strict=True):
            run += [turns[index] for index in row]
    return [tuple(run) for run in runs]


def _latin_square(size: int, draw: random.Random) -> list[list[int]]:
    """The cyclic square with rows, columns and symbols shuffled."""
    rows, columns, symbols = (draw.sample(range(size), size) for _ in range(3))
    return [[symbols[(row + column) % size] for column in columns] for row in rows]
