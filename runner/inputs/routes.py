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

IdsRoute = Literal["host", "mixed", "slice", "scatter", "draft"]
EmbedsRoute = Literal["merge", "lookup", "graph"]
StepKind = Literal["prefill", "decode", "mixed"]

_NONE = np.empty(0, np.int32)


class SampledRoute(NamedTuple):
    """Which ids of a step are the last step's samples: packed offsets `target`, last rows `source`.

    And which are its drafts: packed offsets `draft_target`, and `draft_source`, places in its drafts
    [rows, num_speculative_tokens] as if in one row.
    """

    route: IdsRoute
    target: NDArray[np.int32]
    source: NDArray[np.int32]
    draft_target: NDArray[np.int32] = _NONE
    draft_source: NDArray[np.int32] = _NONE

    @property
    def needs_host_ids(self) -> bool:
        return self.route in ("host", "mixed")

    @property
    def is_slice(self) -> bool:
        """Whether the samples are the first ids of the step, in the same order."""
        count = len(self.target)
        order = np.arange(count, dtype=np.int32)
        return bool((self.target == order).all() and (self.source == order).all())


def sampled_route(
    batch: InputBatch,
    starts: NDArray[np.int32],
    last_rows: Mapping[str, int],
    max_drafts: int = 0,
) -> SampledRoute:
    """How a step's ids are completed; `last_rows` gives the rows of the last step's samples by request.

    starts [rows + 1]: offset of each row among the packed ids. As in vLLM, drafts do not count when it is
    asked whether some id must come from the host (`total_without_spec`).
    """
    rows = np.flatnonzero(batch.in_flight[: batch.num_rows])
    if not len(rows):
        return SampledRoute("host", _NONE, _NONE)
    num_drafts = batch.num_drafts[rows]
    target = starts[rows + 1] - 1 - num_drafts
    source = np.array([last_rows[batch.request_ids[row]] for row in rows], np.int32)
    drafts = _draft_places(target, source, num_drafts, max_drafts)
    total_without_spec = starts[-1] - batch.num_drafts[: batch.num_rows].sum()
    if len(target) < total_without_spec:
        return SampledRoute("mixed", target, source, *drafts)
    if num_drafts.any():
        return SampledRoute("draft", target, source, *drafts)
    complete = SampledRoute("slice", target, source)
    return complete if complete.is_slice else complete._replace(route="scatter")


def _draft_places(
    target: NDArray[np.int32], source: NDArray[np.int32], num_drafts: NDArray[np.int32], max_drafts: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Drafts go right behind their row's sampled id, in order."""
    if not num_drafts.any():
        return _NONE, _NONE
    ends = np.cumsum(num_drafts)
    within = np.arange(ends[-1], dtype=np.int32) - np.repeat(ends - num_drafts, num_drafts)
    targets = np.repeat(target, num_drafts) + 1 + within
    sources = np.repeat(source, num_drafts) * max_drafts + within
    return targets.astype(np.int32), sources.astype(np.int32)


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
