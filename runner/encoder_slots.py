"""EncoderSlots: which encoded images the device keeps, and who still needs them. Standard library only.

A slot's content is known by the image's key (content, shape, dtype), so equal images share one slot. A slot
nobody holds keeps its content until its place is wanted, least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple


class Holder(NamedTuple):
    """Image number `image` of a request, whose rows are not all computed yet."""

    request_id: str
    image: int


class Acquired(NamedTuple):
    """The slot, and whether the image must be encoded into it first."""

    slot: int
    must_encode: bool


class EncoderSlots:
    def __init__(self, num_slots: int) -> None:
        self._empty = list(range(num_slots - 1, -1, -1))
        self._slot_of: dict[str, int] = {}
        self._holders: dict[str, set[Holder]] = {}
        self._key_of: dict[Holder, str] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()

    def slot_of(self, holder: Holder) -> int | None:
        """The slot this holder holds, if any."""
        key = self._key_of.get(holder)
        return None if key is None else self._slot_of[key]

    def can_acquire(self, holder: Holder, key: str, may_encode: bool) -> bool:
        """Whether `acquire` would give a slot."""
        has_slot = holder in self._key_of or key in self._slot_of
        return has_slot or (may_encode and bool(self._empty or self._idle))

    def acquire(self, holder: Holder, key: str, may_encode: bool) -> Acquired | None:
        """Hold the image for `holder`; None when it is not here and may not or cannot be encoded now."""
        if key in self._slot_of:
            self._hold(holder, key)
            return Acquired(self._slot_of[key], must_encode=False)
        slot = self._take_slot() if may_encode else None
        if slot is None:
            return None
        self._slot_of[key] = slot
        self._hold(holder, key)
        return Acquired(slot, must_encode=True)

    def release(self, holder: Holder) -> None:
        """The holder needs its image no more. Harmless when it holds none."""
        key = self._key_of.pop(holder, None)
        if key is None:
            return
        holders = self._holders[key]
        holders.remove(holder)
        if not holders:
            del self._holders[key]
            self._idle[key] = None

    def release_request(self, request_id: str) -> None:
        """All holds of a request that leaves the running set."""
        for holder in [holder for holder in self._key_of if holder.request_id == request_id]:
            self.release(holder)

    def check(self, live_request_ids: set[str]) -> None:
        """Assert that only live requests hold slots and that no slot is lost or shared by two images."""
        assert {holder.request_id for holder in self._key_of} <= live_request_ids, (
            "a dead request holds a slot"
        )
        slots = [*self._slot_of.values(), *self._empty]
        assert len(set(slots)) == len(slots), "two images share an encoder slot"
        assert set(self._slot_of) == set(self._holders) | set(self._idle), "a slot is neither held nor idle"

    def _hold(self, holder: Holder, key: str) -> None:
        self._idle.pop(key, None)
        self._holders.setdefault(key, set()).add(holder)
        self._key_of[holder] = key

    def _take_slot(self) -> int | None:
        if self._empty:
            return self._empty.pop()
        if not self._idle:
            return None
        key, _ = self._idle.popitem(last=False)
        return self._slot_of.pop(key)
