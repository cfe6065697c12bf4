"""The Azure LMM trace 2025 as rebased by others: seconds since the first request, no image column."""

from __future__ import annotations

from dataclasses import dataclass

from suite.traces.base import Cells, RawRow


@dataclass(frozen=True, slots=True)
class AzureLmmRebased:
    """`arrival_time,input_tokens,output_tokens`, one request a line, in order of time."""

    name: str = "azure-lmm-rebased"
    columns: tuple[str, ...] = ("arrival_time", "input_tokens", "output_tokens")
    is_json: bool = False
    has_times: bool = True
    has_images: bool = False
    origins: str = "times from arrival_time, lengths from input_tokens and output_tokens"

    def parse(self, cells: Cells) -> RawRow:
        return RawRow(
            time_s=cells.seconds("arrival_time"),
            context_tokens=cells.count("input_tokens", smallest=1),
            output_tokens=cells.count("output_tokens", smallest=1),
        )
