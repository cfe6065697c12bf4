"""Vidur's processed traces: with arrival times, and lengths alone."""

from __future__ import annotations

from dataclasses import dataclass

from suite.traces.base import Cells, RawRow

_LENGTHS = "lengths from num_prefill_tokens and num_decode_tokens"


@dataclass(frozen=True, slots=True)
class Vidur:
    """`arrived_at,num_prefill_tokens,num_decode_tokens`, one request a line, in order of time."""

    name: str = "vidur"
    columns: tuple[str, ...] = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
    is_json: bool = False
    has_times: bool = True
    has_images: bool = False
    origins: str = f"times from arrived_at, {_LENGTHS}"

    def parse(self, cells: Cells) -> RawRow:
        return _lengths(cells, cells.seconds("arrived_at"))


@dataclass(frozen=True, slots=True)
class VidurLengths:
    """`num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio`: a request a line, without times.

    The last two columns follow from the first two and are not used.
    """

    name: str = "vidur-lengths"
    columns: tuple[str, ...] = ("num_prefill_tokens", "num_decode_tokens", "num_total_tokens", "pd_ratio")
    is_json: bool = False
    has_times: bool = False
    has_images: bool = False
    origins: str = f"no times, {_LENGTHS}"

    def parse(self, cells: Cells) -> RawRow:
        return _lengths(cells, 0.0)


def _lengths(cells: Cells, time_s: float) -> RawRow:
    return RawRow(
        time_s=time_s,
        context_tokens=cells.count("num_prefill_tokens", smallest=1),
        output_tokens=cells.count("num_decode_tokens", smallest=1),
    )
