"""BurstGPT, in both of its column sets: whole seconds, and failed requests among the others."""

from __future__ import annotations

from dataclasses import dataclass

from suite.traces.base import Cells, RawRow

WITHOUT_SESSIONS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
WITH_SESSIONS = (
    *("Timestamp", "Session ID", "Elapsed time", "Model"),
    *("Request tokens", "Response tokens", "Total tokens", "Log Type"),
)


@dataclass(frozen=True, slots=True)
class BurstGpt:
    """One request a line, in order of time; the third file has two columns more, and starts late.

    `Response tokens` 0 marks a request that failed. What model it went to is not used.
    """

    name: str = "burstgpt"
    columns: tuple[str, ...] = WITHOUT_SESSIONS
    is_json: bool = False
    has_times: bool = True
    has_images: bool = False
    origins: str = "times from Timestamp, lengths from Request tokens and Response tokens"

    def parse(self, cells: Cells) -> RawRow:
        output_tokens = cells.count("Response tokens", smallest=0)
        return RawRow(
            time_s=cells.seconds("Timestamp"),
            context_tokens=cells.count("Request tokens", smallest=1 if output_tokens else 0),
            output_tokens=output_tokens,
        )
