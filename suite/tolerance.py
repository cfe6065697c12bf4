"""What rounding alone may do to the logits of a right model, by the type it computes in.

The reference computes in float32, with weights and supplied rows rounded to the runner's type, so that what
is left of a right runner's difference is the rounding of its own arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from runner.core import FloatType


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`margin`: a token that lies less below the best one is a tie, in standard deviations of the position's
    logits. `max_tie_share`: of all tokens, the share that may be ties.
    """

    margin: float
    max_tie_share: float


# Measured on a CPU, ids alone, on the tiny presets and twins of them 28 and 48 layers deep, 256 to 768 tokens
# each: the token that a right runner chose lay below the best one by 0.119 (bfloat16) and 0.014 (float16) at
# most, and was another than the best in 7.0 % and 1.2 % at most. The margins are 1.7 and 1.8 times that, the
# shares 2.1 and 2.5 times.
# In bfloat16 the second best token lies within the margin at half of all positions, so it is the share that
# finds a fault which moves logits by little: on tiny-gemma3-vl, of 384 tokens, embeddings off by 3 % of their
# spread or a sliding window one longer are found, embeddings off by 1 % are not. Float32 finds them.
TOLERANCES: Mapping[FloatType, Tolerance] = MappingProxyType(
    {
        "float32": Tolerance(1e-4, 0.005),
        "float16": Tolerance(0.025, 0.03),
        "bfloat16": Tolerance(0.2, 0.15),
    }
)

LOGPROB_MARGIN = 1e-4  # natural logarithm; float32 forwards differ by less


def logprob_margin(dtype: FloatType, deviation: float) -> float:
    """How far a log-probability may lie from the reference's; `deviation`: of the position's logits."""
    return LOGPROB_MARGIN if dtype == "float32" else TOLERANCES[dtype].margin * deviation


def rule_in_words(dtype: FloatType) -> str:
    """By which rule a run's tokens are judged."""
    rule = TOLERANCES[dtype]
    return (
        f"tokens are judged by the rule for {dtype}: given the run's own tokens, the reference computes in "
        f"float32 with weights and supplied rows rounded to {dtype}; a token less than {rule.margin:g} "
        f"standard deviations of the logits below the best is a tie, and at most {rule.max_tie_share:.1%} of "
        "all may be"
    )
