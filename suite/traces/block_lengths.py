"""The rule that binds the rows of a trace with prefix blocks together: one id, one length."""

from __future__ import annotations

from suite.traces.base import Cells, RawRow


class BlockLengths:
    """How many tokens each id of the rows so far stands for.

    A block that is full in one prompt may be cut short at the end of another, whose tokens are then the
    beginning of it. Two different short lengths contradict each other.
    """

    def __init__(self, column: str) -> None:
        self._column = column
        self._short: dict[int, tuple[int, int]] = {}  # id -> tokens, line

    def check(self, row: RawRow, cells: Cells) -> None:
        """SuiteError where the row's last id was shorter or longer before, and not a full block."""
        if row.blocks is None:
            return
        ids, block_tokens = row.blocks
        rest = row.context_tokens - (len(ids) - 1) * block_tokens
        if rest == block_tokens:
            return
        before, line = self._short.setdefault(ids[-1], (rest, cells.line))
        if before != rest:
            raise cells.error(
                self._column,
                f"the id {ids[-1]} stands for {rest} tokens here and for {before} in line {line}, and one id "
                "is one block: correct or remove one of the rows",
            )
