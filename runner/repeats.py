"""How often the commands of a span are run in which step. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Turn = tuple[str, int]
"""In such a step the commands of this span are run so often; NO_REPEATS: each command once."""

NO_REPEATS: Turn = ("", 1)


def repeats_in(step_id: int, repeats: Mapping[str, int], turns: Sequence[Turn]) -> Mapping[str, int]:
    """Span -> how often, in one step: as its turn says, in a circle; where there are no turns, `repeats`."""
    if not turns:
        return repeats
    span, k = turns[step_id % len(turns)]
    return {span: k} if span else {}
