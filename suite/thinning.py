"""Thinning the tables of a run: of each kind of step one in k, evenly, with the spans of those steps.

By kind, since steps come in patterns: of eight decodes and a mixed step, one in nine would be of one kind.
Each step that is kept also keeps how long it took, which is counted from the end of the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from suite.metrics import WALL_MS, walls_ms

if TYPE_CHECKING:
    import pyarrow as pa

REQUEST_COLUMNS = ("sent_ns", "finished_ns")
_ENDS = ("start_ns", "end_ns")


def kept_rows(kinds: Sequence[str], one_in: int) -> npt.NDArray[np.bool_]:
    """Which rows are kept: of each kind the first, and every `one_in`-th after it."""
    names = np.asarray(kinds, dtype=object)
    kept = np.zeros(len(names), dtype=np.bool_)
    for kind in dict.fromkeys(kinds):
        kept[np.flatnonzero(names == kind)[::one_in]] = True
    return kept


def thin_steps(steps: pa.Table, requests: pa.Table | None, one_in: int) -> pa.Table:
    """The steps that are kept, with their wall times where the requests can tell them."""
    import pyarrow as pa

    table = steps
    if requests is not None and WALL_MS not in steps.column_names and {*_ENDS} <= {*steps.column_names}:
        table = steps.append_column(WALL_MS, pa.array(_walls(steps, requests), pa.float64()))
    return table.filter(pa.array(kept_rows(steps.column("kind").to_pylist(), one_in)))


def thin_spans(spans: pa.Table, steps: pa.Table, one_in: int) -> pa.Table:
    """The spans of the steps that are kept; of those that belong to no step one in so many."""
    import pyarrow as pa

    of_steps = steps.column("step_id").to_numpy()
    step_ids = spans.column("step_id").to_numpy()
    kept = np.isin(step_ids, of_steps[kept_rows(steps.column("kind").to_pylist(), one_in)])
    kept[np.flatnonzero(~np.isin(step_ids, of_steps))[::one_in]] = True
    return spans.filter(pa.array(kept))


def num_kept(counts: Mapping[str, int], one_in: int) -> int:
    """How many steps are kept of a run that has so many of each kind."""
    return sum(-(-count // one_in) for count in counts.values())


def _walls(steps: pa.Table, requests: pa.Table) -> npt.NDArray[np.float64]:
    import pyarrow.compute as pc

    sent, finished = (requests.column(name) for name in REQUEST_COLUMNS)
    return walls_ms(
        sent.to_numpy(),
        pc.coalesce(finished, sent).to_numpy(),
        *(steps.column(name).to_numpy() for name in _ENDS),
    )
