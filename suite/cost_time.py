"""How long `suite cost` takes: how many runs it makes of a case, each as long as one is known to take."""

from __future__ import annotations

import math

DEFAULT_BUDGET_S = 120.0
"""Of each case."""

MAX_ROUNDS = 20
NUM_FIRST_RUNS = 2
"""One whose steps the others replay, and one with device spans."""


def num_plain_turns(num_spans: int) -> int:
    """How many runs of a round repeat nothing in a step, beside one for each of so many spans."""
    return round(math.sqrt(num_spans))


def cost_time_s(run_s: float, num_spans: int) -> float:
    """Of one case with the default options: until all rounds are done, or the budget ends."""
    runs_a_round = num_spans + num_plain_turns(num_spans)
    return min(DEFAULT_BUDGET_S, run_s * (NUM_FIRST_RUNS + MAX_ROUNDS * runs_a_round))
