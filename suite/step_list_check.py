"""Whether a run took the very steps of its list: how many, what each computed, of which kind."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from runner.measure import StepRecord
from suite.need import ListedStep

_COMPARED = (
    *("kind", "num_rows", "num_decode_rows", "num_prefill_tokens"),
    *("num_image_rows", "num_images_encoded", "num_supplied_rows"),
)


def first_other_step(
    listed: Sequence[ListedStep], steps: Sequence[StepRecord], *, has_rows: bool
) -> str | None:
    """Where a run left its list, in one sentence; None where it kept to it.

    `has_rows`: the arm takes prompt_embeds; in others no row is supplied.
    """
    for index, (due, step) in enumerate(zip(listed, steps, strict=False)):
        for name in _COMPARED:
            if name == "num_supplied_rows" and (not has_rows or due.num_supplied_rows is None):
                continue
            if getattr(due, name) != getattr(step, name):
                return f"step {index} should have {name} {getattr(due, name)}, and has {getattr(step, name)}"
    if len(steps) != len(listed):
        return f"the list has {len(listed)} steps, and the run took {len(steps)}"
    return None


def list_hash(listed: Sequence[ListedStep]) -> str:
    """Of what every arm computes: the same for the same list in every process."""
    return hashlib.sha256(repr(tuple(listed)).encode()).hexdigest()


def lead_in_ranges(listed: Sequence[ListedStep]) -> tuple[tuple[int, int], ...]:
    """[first, end) of the steps that are lead-in, in order."""
    return tuple(_ranges([index for index, step in enumerate(listed) if step.is_lead_in]))


def _ranges(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = 0
    for place, index in enumerate(indexes):
        if place + 1 == len(indexes) or indexes[place + 1] != index + 1:
            yield indexes[first], index + 1
            first = place + 1
