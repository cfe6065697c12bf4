"""Parts of prompts, drawn from a seed: supplied positions, the ids beside them, what a group shares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from suite.need import SharedPrefix, TextBlocks
from suite.seeding import seeded

Positions = npt.NDArray[np.int64]

_MAX_RUNS = 3  # a spliced text has its supplied positions in so many runs at most


def supplied_runs(num_text: int, generator: np.random.Generator) -> Positions:
    """Which of some text positions are supplied: one to three runs, at least one and never all of two."""
    if num_text == 1:
        return np.zeros(1, np.int64)
    num_runs = int(generator.integers(1, min(_MAX_RUNS, (num_text + 1) // 2) + 1))
    cuts = np.sort(generator.choice(num_text + 1, size=2 * num_runs, replace=False)).reshape(-1, 2)
    chosen = np.concatenate([np.arange(first, end) for first, end in cuts])
    return chosen if len(chosen) < num_text else chosen[:-1]


def exact_runs(num_text: int, num_supplied: int, generator: np.random.Generator) -> Positions:
    """`num_supplied` of some text positions, in one to three runs with others between them."""
    num_others = num_text - num_supplied
    num_runs = int(generator.integers(1, min(_MAX_RUNS, num_supplied, num_others + 1) + 1))
    ends = np.sort(generator.choice(num_supplied - 1, size=num_runs - 1, replace=False)) + 1
    places = np.sort(generator.choice(num_others + 1, size=num_runs, replace=False))  # others before each run
    lengths = np.diff([0, *ends, num_supplied])
    return np.arange(num_supplied) + np.repeat(places, lengths)


def other_ids(
    text_ids: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """For each of some text ids another one, drawn evenly from all the others."""
    right = np.searchsorted(text_ids, ids)
    drawn = generator.integers(0, len(text_ids) - 1, size=len(ids))
    others: npt.NDArray[np.int64] = text_ids[drawn + (drawn >= right)]
    return others


def block_text(text_ids: npt.NDArray[np.int64], blocks: TextBlocks, seed: int) -> list[int]:
    """The text that blocks make: each id has the same tokens in every prompt, drawn from (seed, id)."""
    parts = []
    for block_id, first, end in blocks.spans():
        generator = seeded(seed, "block text", block_id)
        parts.append(generator.integers(0, len(text_ids), size=blocks.longest)[: end - first])
    text: list[int] = text_ids[np.concatenate(parts)].tolist()
    return text


@dataclass(frozen=True, slots=True)
class Group:
    """What the prompts of a group have alike, over the whole text they may share.

    `supplied`: the positions whose row a spliced prompt brings; `decoys`: an id for each position, in case.
    """

    ids: tuple[int, ...]
    supplied: Positions
    decoys: npt.NDArray[np.int64]


class Groups:
    """Draws each group once, from the seed and its number alone."""

    def __init__(self, text_ids: npt.NDArray[np.int64], seed: int) -> None:
        self._text_ids = text_ids
        self._seed = seed
        self._drawn: dict[int, Group] = {}

    def of(self, prefix: SharedPrefix) -> Group:
        group = prefix.group
        if group not in self._drawn:
            count = prefix.group_tokens
            drawn = seeded(self._seed, "prefix text", group).integers(0, len(self._text_ids), size=count)
            ids = self._text_ids[drawn]
            self._drawn[group] = Group(
                tuple(ids.tolist()),
                supplied_runs(count, seeded(self._seed, "prefix embeds positions", group)),
                other_ids(self._text_ids, ids, seeded(self._seed, "prefix embeds decoys", group)),
            )
        return self._drawn[group]


def joined_runs(group: Group, prefix: SharedPrefix, own: Positions, num_text: int) -> Positions:
    """The supplied text positions of a prompt: its group's, then its `own`, counted behind the prefix.

    At least one and never all of two: where a cut prefix leaves none or all, the last position tells.
    """
    common = group.supplied[group.supplied < prefix.num_tokens]
    chosen = np.concatenate([common, own + prefix.num_tokens])
    if not len(chosen):
        return np.array([num_text - 1])
    return chosen if len(chosen) < num_text or num_text == 1 else chosen[:-1]
