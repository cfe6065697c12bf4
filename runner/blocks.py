"""BlockPool: the KV cache's blocks, reference counted. Knows ids, never memory. Standard library only."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class BlockPool:
    """`num_blocks` block ids from 0. A freed block goes to the back of the queue: oldest reused first."""

    def __init__(self, num_blocks: int) -> None:
        self._free: deque[int] = deque(range(num_blocks))
        self._references = [0] * num_blocks

    @property
    def num_blocks(self) -> int:
        return len(self._references)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None (and nothing taken) when too few are free."""
        if count > len(self._free):
            return None
        block_ids = [self._free.popleft() for _ in range(count)]
        for block_id in block_ids:
            self._references[block_id] = 1
        return block_ids

    def retain(self, block_ids: Sequence[int]) -> None:
        """One more reference to each block."""
        for block_id in block_ids:
            assert self._references[block_id] > 0, f"block {block_id} is free and cannot be shared"
            self._references[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """One reference less to each block; a block without any is free."""
        for block_id in block_ids:
            assert self._references[block_id] > 0, f"block {block_id} is released twice"
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                self._free.append(block_id)

    def check(self, tables: Sequence[Sequence[int]]) -> None:
        """Assert that the references are exactly those of the given block tables, and the rest is free."""
        expected = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), f"a block appears twice in one table: {table}"
            for block_id in table:
                expected[block_id] += 1
        assert expected == self._references, "references differ from the live block tables"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is in the free queue twice"
        unused = {block_id for block_id, count in enumerate(expected) if count == 0}
        assert free == unused, f"leaked or doubly owned blocks: {sorted(free ^ unused)}"
