"""The Azure LMM inference trace 2025 as published: ISO-8601 times, images counted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from suite.traces.base import Cells, RawRow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AzureLmm:
    """`TIMESTAMP,NumImages,ContextTokens,GeneratedTokens`, one request a line, in order of time."""

    name: str = "azure-lmm"
    columns: tuple[str, ...] = ("TIMESTAMP", "NumImages", "ContextTokens", "GeneratedTokens")
    is_json: bool = False
    has_times: bool = True
    has_images: bool = True
    origins: str = "times from TIMESTAMP, lengths from ContextTokens and GeneratedTokens"

    def parse(self, cells: Cells) -> RawRow:
        return RawRow(
            time_s=(cells.timestamp("TIMESTAMP") - _EPOCH).total_seconds(),
            num_images=cells.count("NumImages", smallest=0),
            context_tokens=cells.count("ContextTokens", smallest=1),
            output_tokens=cells.count("GeneratedTokens", smallest=1),
        )
