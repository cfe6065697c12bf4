"""Bytes and copies of some rounds added up by kind of step and buffer."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from suite.metrics import STEP_KINDS

RING_HALF = re.compile(r"\.\d+$")  # a buffer's name ends in its parity where it is a ring of two


def upload_totals(steps: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Sums over all steps of these rounds: a row a kind of step that ran, with `num_steps`.

    The halves of a ring, which take turns, count as one buffer.
    """
    frames = []
    for frame in steps:
        counters = [name for name in frame.columns if name.startswith(("bytes.", "copies."))]
        if "kind" in frame and counters:
            frames.append(frame[["kind", *counters]].assign(num_steps=1).groupby("kind").sum())
    if not frames:
        return pd.DataFrame()
    totals = pd.concat(frames).groupby(level=0).sum()
    merged: dict[str, pd.Series[float]] = {}
    for name in totals.columns:
        whole = RING_HALF.sub("", str(name))
        merged[whole] = totals[name] + merged[whole] if whole in merged else totals[name]
    kinds = [kind for kind in STEP_KINDS if kind in totals.index]
    return pd.DataFrame(merged, index=kinds)


def buffers(totals: pd.DataFrame) -> list[str]:
    """Buffers whose bytes are counted in `upload_totals`, most bytes first."""
    sums = {str(name): float(totals[name].sum()) for name in totals if str(name).startswith("bytes.")}
    return [name.removeprefix("bytes.") for name in sorted(sums, key=lambda name: (-sums[name], name))]
