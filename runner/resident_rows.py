"""ResidentRows: who owns which rows of the device's arena of supplied rows. Standard library only.

A request's rows lie together, so that position p is at first + p. Neighbouring free ranges are joined, so
an arena nobody uses can hold any request that fits it at all.
"""

from __future__ import annotations

from bisect import insort


class ResidentRows:
    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._free: list[tuple[int, int]] = [(0, num_rows)] if num_rows else []
        self._owned: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        return sum(count for _, count in self._free)

    def allocate(self, count: int) -> int | None:
        """The first of `count` adjacent rows (first fit), or None."""
        for index, (first, length) in enumerate(self._free):
            if length >= count:
                rest = (first + count, length - count)
                self._free[index : index + 1] = [rest] if rest[1] else []
                self._owned[first] = count
                return first
        return None

    def release(self, first: int) -> None:
        """Give back the rows allocated at `first`."""
        insort(self._free, (first, self._owned.pop(first)))
        joined: list[tuple[int, int]] = []
        for begin, length in self._free:
            if joined and sum(joined[-1]) == begin:
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                joined.append((begin, length))
        self._free = joined

    def check(self, live_firsts: set[int]) -> None:
        """Assert that exactly the live ranges are owned and that no row is lost or owned twice."""
        assert set(self._owned) == live_firsts, f"arena rows leaked: {set(self._owned) ^ live_firsts}"
        ranges = sorted([*self._free, *self._owned.items()])
        position = 0
        for first, count in ranges:
            assert first == position, f"arena rows {position} to {first} are lost or owned twice"
            position = first + count
        assert position == self._num_rows, "arena rows are lost at the end"
