"""BlockPool: nothing is handed out twice, nothing is lost, and misuse is noticed at once."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from runner.blocks import BlockPool


def test_all_blocks_can_be_had_and_none_more() -> None:
    pool = BlockPool(3)
    assert sorted(pool.allocate(3) or []) == [0, 1, 2]
    assert pool.num_free == 0
    assert pool.allocate(1) is None


def test_a_refused_allocation_takes_nothing() -> None:
    pool = BlockPool(3)
    assert pool.allocate(4) is None
    assert pool.num_free == 3
    pool.check([])


def test_no_blocks_are_always_to_be_had() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    assert pool.allocate(0) == []


def test_a_freed_block_is_the_last_to_be_reused() -> None:
    """A stale reference to a freed block then stays harmless as long as can be."""
    pool = BlockPool(4)
    first = pool.allocate(2)
    assert first is not None
    pool.release(first)
    assert not set(pool.allocate(2) or []) & set(first)


def test_a_shared_block_is_free_only_after_its_last_release() -> None:
    pool = BlockPool(1)
    table = pool.allocate(1)
    assert table is not None
    pool.retain(table)
    pool.release(table)
    assert pool.allocate(1) is None
    pool.check([table])
    pool.release(table)
    assert pool.allocate(1) == table


def test_a_double_free_is_an_assertion() -> None:
    pool = BlockPool(2)
    table = pool.allocate(1)
    assert table is not None
    pool.release(table)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(table)


def test_sharing_a_free_block_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match="cannot be shared"):
        BlockPool(2).retain([1])


@pytest.mark.parametrize(
    ("tables", "fault"),
    [
        ([[0]], "a leaked block: allocated, in no table"),
        ([[0, 1, 2]], "a block in a table that is free"),
        ([[0, 1], [1]], "a block in two tables with one reference"),
        ([[0, 0, 1]], "a block twice in one table"),
    ],
)
def test_check_finds(tables: list[list[int]], fault: str) -> None:
    pool = BlockPool(4)
    assert pool.allocate(2) == [0, 1]
    pool.check([[0, 1]])
    with pytest.raises(AssertionError):
        pool.check(tables)


# ---- content


def table_of(pool: BlockPool, count: int, *keys: bytes) -> list[int]:
    """`count` blocks, the first of them registered under `keys`."""
    table = pool.allocate(count)
    assert table is not None
    for block_id, key in zip(table, keys, strict=False):
        pool.register(block_id, key)
    return table


def test_a_registered_block_is_found_while_it_is_in_use_and_after() -> None:
    pool = BlockPool(3)
    table = table_of(pool, 2, b"one", b"two")
    assert [pool.find(b"one"), pool.find(b"two"), pool.find(b"three")] == [*table, None]
    pool.release(table)
    pool.check([])
    assert [pool.find(b"one"), pool.find(b"two")] == table
    assert (pool.num_free, pool.num_registered) == (3, 2)


def test_a_free_block_taken_again_is_free_no_more() -> None:
    pool = BlockPool(2)
    (block_id,) = table_of(pool, 1, b"one")
    pool.release([block_id])
    assert pool.num_free_among([block_id]) == 1
    pool.take([block_id])
    assert pool.num_free == 1
    assert pool.num_free_among([block_id]) == 0
    assert block_id not in (pool.allocate(1) or [])
    pool.check([[block_id], [1 - block_id]])


def test_a_block_in_use_taken_by_another_is_free_after_both_let_go() -> None:
    pool = BlockPool(1)
    table = table_of(pool, 1, b"one")
    pool.take(table)
    pool.check([table, table])
    pool.release(table)
    assert pool.num_free == 0
    pool.release(table)
    assert pool.num_free == 1
    assert pool.find(b"one") == table[0]


def test_a_block_allocated_for_other_content_is_found_no_more() -> None:
    pool = BlockPool(1)
    pool.release(table_of(pool, 1, b"one"))
    table = pool.allocate(1)
    assert table is not None
    assert pool.find(b"one") is None
    pool.register(table[0], b"two")
    assert pool.find(b"two") == table[0]
    pool.check([table])


def test_a_refused_allocation_forgets_nothing() -> None:
    pool = BlockPool(2)
    pool.release(table_of(pool, 2, b"one", b"two"))
    assert pool.allocate(3) is None
    assert pool.num_registered == 2


def test_blocks_that_hold_nothing_known_are_reused_before_those_freed_later() -> None:
    pool = BlockPool(3)
    pool.release(table_of(pool, 1, b"one"))
    pool.allocate(2)
    assert pool.find(b"one") is not None


def test_the_least_recently_used_content_is_forgotten_first() -> None:
    pool = BlockPool(3)
    tables = [table_of(pool, 1, key) for key in (b"one", b"two", b"three")]
    for table in tables:
        pool.release(table)
    pool.take(tables[0])  # used again: now "two" is the oldest
    pool.release(tables[0])
    left = []
    for _ in range(3):
        pool.allocate(1)
        left.append([key for key in (b"one", b"two", b"three") if pool.find(key) is not None])
    assert left == [[b"one", b"three"], [b"one"], []]


def test_of_a_released_table_the_end_is_forgotten_before_the_beginning() -> None:
    """A beginning without its end is still of use; an end without its beginning is not."""
    keys = (b"one", b"two", b"three")
    pool = BlockPool(3)
    pool.release(table_of(pool, 3, *keys))
    left = []
    for _ in range(3):
        pool.allocate(1)
        left.append([key for key in keys if pool.find(key) is not None])
    assert left == [[b"one", b"two"], [b"one"], []]


def test_of_two_blocks_with_one_content_the_first_is_found_whichever_goes() -> None:
    pool = BlockPool(3)
    first, second = table_of(pool, 1, b"one"), table_of(pool, 1, b"one")
    assert pool.find(b"one") == first[0]
    pool.release(second)
    pool.check([first])
    assert (pool.find(b"one"), pool.hash_of(second[0])) == (first[0], None)
    pool.release(first)
    assert pool.find(b"one") == first[0]


def test_a_block_is_not_registered_free_nor_under_two_contents_nor_taken_unknown() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="holds nothing new"):
        pool.register(0, b"one")
    (block_id,) = table_of(pool, 1, b"one")
    pool.register(block_id, b"one")
    with pytest.raises(AssertionError, match="other content already"):
        pool.register(block_id, b"two")
    with pytest.raises(AssertionError, match="no known content"):
        pool.take([1 - block_id])


def test_check_finds_a_hash_that_leads_elsewhere() -> None:
    pool = BlockPool(3)
    table = table_of(pool, 2, b"one")
    pool.check([table])
    pool._block_of[b"one"] = table[1]
    with pytest.raises(AssertionError, match="does not have it"):
        pool.check([table])
    pool._block_of[b"one"] = table[0]
    pool._hash_of[table[1]] = b"one"
    with pytest.raises(AssertionError):
        pool.check([table])


KEYS = tuple(f"key {i}".encode() for i in range(6))


class PoolMachine(RuleBasedStateMachine):
    """Against a plain list of tables, and of free blocks in the order in which they became free."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.live: list[list[int]] = []
        self.queue = list(range(12))
        self.content: dict[int, bytes] = {}

    def _used(self) -> set[int]:
        return {block for table in self.live for block in table}

    @rule(target=tables, count=st.integers(0, 13))
    def allocate(self, count: int) -> object:
        used = self._used()
        table = self.pool.allocate(count)
        if count > 12 - len(used):
            assert table is None
            return multiple()
        assert table is not None
        assert len(set(table)) == count
        assert table == self.queue[:count], "not the blocks that were free for longest"
        self.queue = self.queue[count:]
        for block_id in table:
            self.content.pop(block_id, None)
        self.live.append(table)
        return table

    @precondition(lambda self: self.live)
    @rule(table=tables, place=st.integers(0, 12), key=st.sampled_from(KEYS))
    def register(self, table: list[int], place: int, key: bytes) -> None:
        """In a table in use, a block that holds nothing known."""
        if not table or table[place % len(table)] in self.content:
            return
        block_id = table[place % len(table)]
        self.pool.register(block_id, key)
        if key not in self.content.values():
            self.content[block_id] = key

    @rule(target=tables, keys=st.sets(st.sampled_from(KEYS), min_size=1))
    def take(self, keys: set[bytes]) -> object:
        found = [block_id for block_id, key in self.content.items() if key in keys]
        if not found:
            return multiple()
        assert self.pool.num_free_among(found) == len(set(found) & set(self.queue))
        self.pool.take(found)
        self.queue = [block_id for block_id in self.queue if block_id not in found]
        self.live.append(found)
        return found

    @rule(target=tables, table=tables)
    def share(self, table: list[int]) -> list[int]:
        self.pool.retain(table)
        copy = list(table)
        self.live.append(copy)
        return copy

    @precondition(lambda self: self.live)
    @rule(table=consumes(tables))
    def release(self, table: list[int]) -> None:
        self.pool.release(table)
        self.live = [other for other in self.live if other is not table]
        used = self._used()
        self.queue += [block_id for block_id in reversed(table) if block_id not in used]

    @invariant()
    def is_sound(self) -> None:
        self.pool.check(self.live)
        assert self.pool.num_free == 12 - len(self._used()) == len(self.queue)
        found = {block_id: key for key in KEYS if (block_id := self.pool.find(key)) is not None}
        assert found == self.content


TestPoolMachine = PoolMachine.TestCase
