"""BlockPool: the KV cache's blocks, reference counted, and what full ones hold. Knows ids and hashes, never
memory or requests. Standard library only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """`num_blocks` block ids from 0. A freed block goes to the back of the queue: oldest reused first.

    A block whose content is registered keeps it while it waits in the queue and can be taken from there; it
    is forgotten when the block is allocated for other content, so the least recently used goes first.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}

    @property
    def num_blocks(self) -> int:
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Blocks without a reference, whether or not their content is still known."""
        return len(self._free)

    @property
    def num_registered(self) -> int:
        """Blocks that can be found by their content."""
        return len(self._block_of)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None (and nothing taken) when too few are free."""
        if count > len(self._free):
            return None
        block_ids = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block_id in block_ids:
            self._references[block_id] = 1
            self._forget(block_id)
        return block_ids

    def retain(self, block_ids: Sequence[int]) -> None:
        """One more reference to each block."""
        for block_id in block_ids:
            assert self._references[block_id] > 0, f"block {block_id} is free and cannot be shared"
            self._references[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """One reference less to each block of a table; a block without any is free.

        The last block goes first, so that of a beginning kept for others the end is reused first.
        """
        for block_id in reversed(block_ids):
            assert self._references[block_id] > 0, f"block {block_id} is released twice"
            self._references[block_id] -= 1
            if self._references[block_id] == 0:
                self._free[block_id] = None

    # ---- content

    def register(self, block_id: int, content_hash: bytes) -> None:
        """Let a block in use be found by its content, unless another that holds the same was there first."""
        assert self._references[block_id] > 0, f"block {block_id} is free and holds nothing new"
        if content_hash in self._block_of:
            return
        assert self._hash_of[block_id] is None, f"block {block_id} holds other content already"
        self._hash_of[block_id] = content_hash
        self._block_of[content_hash] = block_id

    def find(self, content_hash: bytes) -> int | None:
        """The block with that content, in use or free."""
        return self._block_of.get(content_hash)

    def hash_of(self, block_id: int) -> bytes | None:
        """The hash a block is found by."""
        return self._hash_of[block_id]

    def take(self, block_ids: Sequence[int]) -> None:
        """One more reference to each of these registered blocks; a free one leaves the queue."""
        for block_id in block_ids:
            assert self._hash_of[block_id] is not None, f"block {block_id} has no known content"
            if self._references[block_id] == 0:
                del self._free[block_id]
            self._references[block_id] += 1

    def num_free_among(self, block_ids: Sequence[int]) -> int:
        """How many of these would leave the queue of free blocks when taken."""
        return sum(self._references[block_id] == 0 for block_id in block_ids)

    def _forget(self, block_id: int) -> None:
        content_hash = self._hash_of[block_id]
        if content_hash is not None:
            del self._block_of[content_hash]
            self._hash_of[block_id] = None

    def check(self, tables: Sequence[Sequence[int]]) -> None:
        """Assert that the references are exactly those of the given block tables, the rest is free, and each
        hash leads to the block that has it.
        """
        expected = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), f"a block appears twice in one table: {table}"
            for block_id in table:
                expected[block_id] += 1
        assert expected == self._references, "references differ from the live block tables"
        unused = {block_id for block_id, count in enumerate(expected) if count == 0}
        assert set(self._free) == unused, f"leaked or doubly owned blocks: {sorted(set(self._free) ^ unused)}"
        hashed = {key: block_id for block_id, key in enumerate(self._hash_of) if key is not None}
        assert hashed == self._block_of, "a hash leads to a block that does not have it"
        assert len(hashed) == sum(key is not None for key in self._hash_of), "two blocks have one hash"
