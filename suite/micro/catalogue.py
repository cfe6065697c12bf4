"""What is measured, by name, and the row each measurement becomes. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict

from suite.errors import SuiteError
from suite.schema import one_of

CEILINGS = "ceilings"

GROUPS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        CEILINGS: {},
        "flag-upload": {
            "flags.copy": "is_token_ids to the device: one copy, or one a row of 64 bytes",
            "flags.command": "the same by the runner's own upload command",
        },
        "embedding-upload": {
            "embeds.all": "every row of inputs_embeds, token rows included",
            "embeds.rows": "supplied rows packed, their index, and the scatter",
            "embeds.packed": "of these, the copy of the packed rows",
            "embeds.scatter": "of these, the scatter",
            "embeds.gather": "rows that lie in the arena brought into inputs_embeds",
        },
        "merge": {
            "merge.ids": "`where` on the ids, so that they can be looked up",
            "merge.lookup": "the lookup of all ids",
            "merge.lookup.indexed": "the lookup of token positions only",
            "merge.copy": "all looked-up rows copied",
            "merge.where": "rows by `where` to a temporary, then a copy",
            "merge.index": "looked-up rows put at token positions",
            "merge.overlay": "arena rows written over looked-up ones",
            "merge.fused": "one gather from table and arena, flags derived",
            "flags.fill": "flags set by a fill on the device",
            "flags.derived": "flags derived on the device",
        },
        "route": {
            "route.slice": "sampled ids into input_ids, same rows and order",
            "route.scatter": "sampled ids into input_ids, by index",
        },
        "hash": {
            "hash.ids": "blocks of token ids, for the prefix cache",
            "hash.rows": "blocks of supplied rows",
            "hash.image": "an image's content key",
        },
        "instrument": {
            "span.host": "a phase of the host, beyond what it takes without instrument",
            "span.command": "a command of the device, beyond what it takes without instrument",
            "span.read": "the host reading one command's span of a retired step",
        },
    }
)


def choose(only: str | None) -> tuple[str, ...]:
    """The groups and names to measure: all, or those of `a,b`. SuiteError for one that is not known."""
    known = [*GROUPS, *(name for names in GROUPS.values() for name in names)]
    if only is None:
        return tuple(GROUPS)
    names = tuple(name.strip() for name in only.split(","))
    for name in names:
        if name not in known:
            raise SuiteError(f"--only {name or repr(name)}: {one_of(name, known)}")
    return names


def is_chosen(group: str, name: str, chosen: tuple[str, ...]) -> bool:
    return group in chosen or name in chosen


def groups_of(chosen: tuple[str, ...]) -> tuple[str, ...]:
    """The groups that hold something chosen, in order."""
    return tuple(
        group for group, names in GROUPS.items() if group in chosen or any(name in chosen for name in names)
    )


class Row(BaseModel):
    """One measurement, per call. best_ns: the fastest sample. `rate` is in `unit`: work over the median.

    enqueue_ns: what the host took to queue a call, where it runs later; above about the median the device
    waited for the host, and `launch_bound` says so. memory: `cold` where the buffers are rotated over more
    memory than the cache, `warm` where the same are used again. interval_reason: why there is none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    size: str
    best_ns: float
    median_ns: float
    low_ns: float | None
    high_ns: float | None
    interval_reason: str | None
    n: int
    calls: int
    enqueue_ns: float | None
    launch_bound: bool
    memory: Literal["cold", "warm"]
    rate: float | None
    unit: str | None
