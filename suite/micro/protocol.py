"""What the command line and the process that measures say to each other: a JSON document a line. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from runner.core import FloatType
from suite.ceilings import Ceilings
from suite.micro.catalogue import Row


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Order(_Frozen):
    """What to measure. `budget_ns`: the time a measurement aims at; None: as usual.

    dtype: of the products of the ceilings; nothing else depends on it.
    """

    device: str
    model: str
    num_threads: int
    dtype: FloatType = "float32"
    chosen: tuple[str, ...]
    is_fresh: bool = False
    budget_ns: int | None = None


class Message(_Frozen):
    """progress, note, failed: `text`. row, ceilings: what was measured. done: nothing more comes."""

    kind: Literal["progress", "note", "ceilings", "row", "failed", "done"]
    text: str = ""
    row: Row | None = None
    ceilings: Ceilings | None = None
    is_cached: bool = False
