"""Mooncake traces: JSON lines whose prompts are lists of prefix blocks."""

from __future__ import annotations

from dataclasses import dataclass

from suite.traces.base import Cells, PrefixBlocks, RawRow

_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Mooncake:
    """`{"timestamp", "input_length", "output_length", "hash_ids"}`, in order of time, in milliseconds.

    A hash id stands for 512 tokens, the last one of a prompt for the rest.
    """

    name: str = "mooncake"
    columns: tuple[str, ...] = ("timestamp", "input_length", "output_length", "hash_ids")
    is_json: bool = True
    has_times: bool = True
    has_images: bool = False
    origins: str = (
        "times from timestamp (ms), lengths from input_length and output_length, "
        "equal beginnings from hash_ids"
    )

    def parse(self, cells: Cells) -> RawRow:
        context_tokens = cells.count("input_length", smallest=1)
        ids = cells.ids("hash_ids")
        num_blocks = -(-context_tokens // _BLOCK_TOKENS)
        if len(ids) != num_blocks:
            raise cells.error(
                "hash_ids",
                f"it has {len(ids)} ids, but an input_length of {context_tokens} makes {num_blocks} blocks "
                f"of {_BLOCK_TOKENS} tokens; correct or remove the row",
            )
        return RawRow(
            time_s=cells.count("timestamp", smallest=0) / 1000,
            context_tokens=context_tokens,
            output_tokens=cells.count("output_length", smallest=1),
            blocks=PrefixBlocks(ids, _BLOCK_TOKENS),
        )
