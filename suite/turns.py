"""Which step of which run repeats what: turns dealt so that over the runs no step favours one of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from runner.repeats import Turn

CIRCLE = 61
"""Steps until a run's turns begin anew: a prime, so that no rhythm of the steps falls in with it."""


def shuffled_turns(turns: Sequence[Turn], draw: random.Random) -> list[tuple[Turn, ...]]:
    """As many runs as turns, each a circle of steps.

    In every step each run has another turn, so that runs can be compared step by step. Every step is shuffled
    by itself: which turn a run has in the one says nothing of the next, so that neither a run that is slow as
    a whole nor what a step leaves to the next favours any turn.
    """
    steps = [draw.sample(turns, len(turns)) for _ in range(CIRCLE)]
    return list(zip(*steps, strict=True))
