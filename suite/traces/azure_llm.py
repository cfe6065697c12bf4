"""The Azure LLM inference traces 2023 and 2024: text alone, times of two spellings under one header."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from suite.traces.base import Cells, RawRow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AzureLlm:
    """`TIMESTAMP,ContextTokens,GeneratedTokens`, one request a line, in order of time.

    2023 writes times without a zone and with seven digits of a second (`2023-11-16 18:17:03.9799600`), 2024
    in UTC and with six or none (`2024-05-10 00:00:00.009930+00:00`).
    """

    name: str = "azure-llm"
    columns: tuple[str, ...] = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    is_json: bool = False
    has_times: bool = True
    has_images: bool = False
    origins: str = "times from TIMESTAMP, lengths from ContextTokens and GeneratedTokens"

    def parse(self, cells: Cells) -> RawRow:
        return RawRow(
            time_s=(cells.utc_timestamp("TIMESTAMP") - _EPOCH).total_seconds(),
            context_tokens=cells.count("ContextTokens", smallest=1),
            output_tokens=cells.count("GeneratedTokens", smallest=1),
        )
