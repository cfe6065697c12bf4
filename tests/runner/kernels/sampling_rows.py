"""Slots of requests on their way, for the tests of the sampler. Holds no assertion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from runner.core import Prompt, Request, RequestState, SamplingParams
from runner.kernels.sample import Rows, SlotTables, rows_of
from runner.slot_state import WHOLE_WIDTH, Real, history_of, real_row, whole_row

EOS = 1
MAX_MODEL_LEN = 40


def params(**given: object) -> SamplingParams:
    """Sampling parameters, with room for any `min_tokens` and no end at EOS unless it is asked for."""
    return SamplingParams(**{"max_tokens": 30, "ignore_eos": True, **given})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Asker:
    """A request and the ids it has so far; the next one is to be sampled."""

    sampling: SamplingParams
    prompt: Prompt = field(default_factory=lambda: Prompt((5, 6, 7)))
    output: tuple[int, ...] = ()

    @property
    def request(self) -> Request:
        return Request("r", self.prompt, self.sampling)

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.output)


@dataclass(slots=True)
class Batch:
    """What `sample` takes beside logits and needs."""

    slots: torch.Tensor
    positions: torch.Tensor
    has_params: torch.Tensor
    tables: SlotTables

    @property
    def rows(self) -> Rows:
        return rows_of(self.slots, self.positions, self.has_params, self.tables)

    def taken(self, index: Sequence[int]) -> Batch:
        chosen = list(index)
        return Batch(self.slots[chosen], self.positions[chosen], self.has_params[chosen], self.tables)


def batch_of(askers: Sequence[Asker], garbage_seed: int = 0, spare_slots: int = 2) -> Batch:
    """Row i has asker i, in a slot drawn at random; every place that is no asker's holds garbage."""
    generator = torch.Generator().manual_seed(garbage_seed)
    count = len(askers) + spare_slots

    def noise(width: int) -> torch.Tensor:
        return torch.randint(-5, 5000, (count, width), generator=generator, dtype=torch.int32)

    reals = torch.full((count, len(Real)), torch.nan)
    tables = SlotTables(reals, noise(WHOLE_WIDTH), noise(MAX_MODEL_LEN))
    slots = torch.randperm(count, generator=generator)[: len(askers)]
    for slot, asker in zip(slots.tolist(), askers, strict=True):
        state = RequestState(asker.request, (), output_ids=list(asker.output))
        tables.reals[slot] = torch.tensor(real_row(asker.sampling))
        tables.wholes[slot] = torch.tensor(whole_row(state, EOS), dtype=torch.int32)
        ids = history_of(state)
        tables.history[slot, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
    positions = torch.tensor([asker.position for asker in askers], dtype=torch.int64)
    return Batch(slots, positions, torch.ones(len(askers), dtype=torch.bool), tables)
