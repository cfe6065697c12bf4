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


class PoolMachine(RuleBasedStateMachine):
    """Against a plain list of tables."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.live: list[list[int]] = []

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
        assert not set(table) & used
        self.live.append(table)
        return table

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

    @invariant()
    def is_sound(self) -> None:
        self.pool.check(self.live)
        assert self.pool.num_free == 12 - len(self._used())


TestPoolMachine = PoolMachine.TestCase
