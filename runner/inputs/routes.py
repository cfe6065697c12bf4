"""How a step's ids and embeddings come about, as recorded with every step (numpy)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runner.core import StepPlan
from runner.inputs.arms import Arm
from runner.inputs.batch import InputBatch
from runner.models import ModelSpec

IdsRoute = Literal["host", "mixed", "slice", "scatter"]
EmbedsRoute = Literal["merge", "lookup", "graph"]
StepKind = Literal["prefill", "decode", "mixed"]

_NONE = np.empty(0, np.int32)


class SampledRoute(NamedTuple):
    """Which ids of a step are the last step's samples: packed offsets `target`, last rows `source`."""

    route: IdsRoute
    target: NDArray[np.int32]
    source: NDArray[np.int32]

    @property
    def needs_host_ids(self) -> bool:
        return self.route in ("host", "mixed")

    @property
    def is_slice(self) -> bool:
        """Whether the samples are the first ids of the step, in the same order."""
        count = len(self.target)
        order = np.arange(count, dtype=np.int32)
        return bool((self.target == order).all() and (self.source == order).all())


def sampled_route(batch: InputBatch, starts: NDArray[np.int32], last_rows: Mapping[str, int]) -> SampledRoute:
    """How a step's ids are completed; `last_rows` gives the rows of the last step's samples by request.

    starts [rows + 1]: offset of each row among the packed ids.
    """
    rows = np.flatnonzero(batch.in_flight[: batch.num_rows])
    if not len(rows):
        return SampledRoute("host", _NONE, _NONE)
    target = starts[rows + 1] - 1
    source = np.array([last_rows[batch.request_ids[row]] for row in rows], np.int32)
    if len(target) < starts[-1]:
        return SampledRoute("mixed", target, source)
    complete = SampledRoute("slice", target, source)
    return complete if complete.is_slice else complete._replace(route="scatter")


def embeds_route(model: ModelSpec, arm: Arm, batch: InputBatch, all_tokens: bool) -> EmbedsRoute:
    """`merge` where supplied rows may have to be kept, `lookup` where all rows are looked up.

    A branch is chosen per batch, as in vLLM's V1 runner: a live request that came with embeddings sends all
    through the merge. Arms that look at the step itself merge only where it has a supplied row.
    """
    choices = arm.choices
    if choices is None:
        return "lookup" if model.is_multimodal else "graph"
    if choices.merge == "index":
        return "merge"
    if choices.merge == "none":
        return "lookup"
    decides_per_step = choices.flags == "skip" or choices.embeds == "resident"
    return "merge" if (not all_tokens if decides_per_step else batch.has_supplied) else "lookup"


def step_kind(plan: StepPlan) -> StepKind:
    """`decode` when every row is a decode row, `prefill` when none is."""
    decodes = sum(row.is_decode for row in plan.rows)
    if decodes == len(plan.rows):
        return "decode"
    return "prefill" if decodes == 0 else "mixed"
