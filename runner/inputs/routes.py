"""How a step's ids and embeddings come about, as recorded with every step."""

from __future__ import annotations

from typing import Literal

from runner.core import ScheduledRow, StepPlan
from runner.models import ModelSpec

IdsRoute = Literal["host"]
EmbedsRoute = Literal["lookup", "graph"]
StepKind = Literal["prefill", "decode", "mixed"]


def embeds_route(model: ModelSpec) -> EmbedsRoute:
    """A multimodal model is given embeddings; a text model's lookup is inside its forward."""
    return "lookup" if model.is_multimodal else "graph"


def is_decode_row(row: ScheduledRow) -> bool:
    """One token, and it is the request's last: the row goes on from what it sampled before."""
    return row.num_tokens == 1 and row.samples


def step_kind(plan: StepPlan) -> StepKind:
    """`decode` when every row is a decode row, `prefill` when none is."""
    decodes = sum(is_decode_row(row) for row in plan.rows)
    if decodes == len(plan.rows):
        return "decode"
    return "prefill" if decodes == 0 else "mixed"
