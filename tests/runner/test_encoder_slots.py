"""EncoderSlots: equal images share, held ones stay, the least recently used idle one makes room."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from runner.encoder_slots import Acquired, EncoderSlots, Holder

A, B, C = Holder("a", 0), Holder("b", 0), Holder("c", 0)


def acquired(slots: EncoderSlots, holder: Holder, key: str) -> Acquired:
    result = slots.acquire(holder, key, may_encode=True)
    assert result is not None
    return result


def test_a_new_image_must_be_encoded() -> None:
    slots = EncoderSlots(2)
    assert acquired(slots, A, "cat").must_encode
    assert slots.slot_of(A) == slots.slot_of(Holder("a", 0))


def test_equal_images_of_two_requests_share_a_slot_and_are_encoded_once() -> None:
    slots = EncoderSlots(2)
    first, second = acquired(slots, A, "cat"), acquired(slots, B, "cat")
    assert second == Acquired(first.slot, must_encode=False)


def test_equal_images_of_one_request_share_a_slot_until_both_are_released() -> None:
    slots = EncoderSlots(1)
    acquired(slots, Holder("a", 0), "cat")
    assert not acquired(slots, Holder("a", 1), "cat").must_encode
    slots.release(Holder("a", 0))
    assert slots.acquire(B, "dog", may_encode=True) is None
    slots.release(Holder("a", 1))
    assert acquired(slots, B, "dog").must_encode


def test_different_images_have_different_slots() -> None:
    slots = EncoderSlots(2)
    assert acquired(slots, A, "cat").slot != acquired(slots, B, "dog").slot


def test_a_held_image_is_never_evicted() -> None:
    slots = EncoderSlots(1)
    slot = acquired(slots, A, "cat").slot
    assert slots.acquire(B, "dog", may_encode=True) is None
    assert slots.slot_of(B) is None
    assert slots.slot_of(A) == slot


def test_a_released_image_is_still_there_for_the_next_request() -> None:
    slots = EncoderSlots(1)
    slot = acquired(slots, A, "cat").slot
    slots.release(A)
    assert slots.slot_of(A) is None
    assert acquired(slots, B, "cat") == Acquired(slot, must_encode=False)


def test_an_image_that_is_here_needs_no_leave_to_encode() -> None:
    slots = EncoderSlots(1)
    acquired(slots, A, "cat")
    assert slots.acquire(B, "cat", may_encode=False) is not None
    assert EncoderSlots(1).acquire(B, "cat", may_encode=False) is None


def test_the_least_recently_used_idle_image_makes_room() -> None:
    slots = EncoderSlots(2)
    cat, dog = acquired(slots, A, "cat").slot, acquired(slots, B, "dog").slot
    slots.release(A)
    slots.release(B)
    acquired(slots, A, "cat")  # used again: now dog is the oldest
    slots.release(A)
    assert acquired(slots, C, "owl") == Acquired(dog, must_encode=True)
    assert acquired(slots, A, "cat") == Acquired(cat, must_encode=False)


def test_an_empty_slot_is_taken_before_an_idle_image_is_evicted() -> None:
    slots = EncoderSlots(2)
    acquired(slots, A, "cat")
    slots.release(A)
    acquired(slots, B, "dog")
    assert not acquired(slots, C, "cat").must_encode


def test_a_request_that_leaves_lets_go_of_all_its_images() -> None:
    slots = EncoderSlots(2)
    acquired(slots, Holder("a", 0), "cat")
    acquired(slots, Holder("a", 1), "dog")
    slots.release_request("a")
    slots.check(set())
    assert acquired(slots, B, "owl").must_encode
    assert acquired(slots, C, "eel").must_encode


def test_releasing_what_is_not_held_is_harmless() -> None:
    slots = EncoderSlots(1)
    slots.release(A)
    slots.release_request("nobody")
    slots.check(set())


def test_check_finds_a_dead_holder() -> None:
    slots = EncoderSlots(1)
    acquired(slots, A, "cat")
    slots.check({"a"})
    with pytest.raises(AssertionError, match="dead request"):
        slots.check({"b"})


NAMES = st.sampled_from("abc")
HOLDERS = st.builds(Holder, NAMES, st.integers(0, 1))


class SlotsMachine(RuleBasedStateMachine):
    """Against a naive model: the content of each slot, who holds which key, and when keys fell idle."""

    NUM_SLOTS = 3

    def __init__(self) -> None:
        super().__init__()
        self.slots = EncoderSlots(self.NUM_SLOTS)
        self.content: dict[int, str] = {}
        self.held: dict[Holder, str] = {}
        self.idle_since: dict[str, int] = {}
        self.time = 0

    @rule(holder=HOLDERS, key=st.sampled_from("uvwxyz"), may_encode=st.booleans())
    def acquire(self, holder: Holder, key: str, may_encode: bool) -> None:
        if holder in self.held:
            return  # a holder asks once
        result = self.slots.acquire(holder, key, may_encode)
        if key in self.content.values():
            assert result is not None
            assert not result.must_encode
            assert self.content[result.slot] == key
        elif not may_encode or len(set(self.held.values())) == self.NUM_SLOTS:
            assert result is None
            return
        else:
            assert result is not None
            assert result.must_encode
            self._evict(result.slot)
            self.content[result.slot] = key
        self.held[holder] = key
        self.idle_since.pop(key, None)

    def _evict(self, slot: int) -> None:
        evicted = self.content.get(slot)
        if evicted is None:
            return
        assert len(self.content) == self.NUM_SLOTS, "evicted although a slot was empty"
        assert evicted == min(self.idle_since, key=self.idle_since.__getitem__)
        del self.idle_since[evicted]

    @rule(holder=HOLDERS)
    def release(self, holder: Holder) -> None:
        self.slots.release(holder)
        self._drop([holder])

    @rule(name=NAMES)
    def release_request(self, name: str) -> None:
        self.slots.release_request(name)
        self._drop([holder for holder in self.held if holder.request_id == name])

    def _drop(self, holders: list[Holder]) -> None:
        for holder in holders:
            key = self.held.pop(holder, None)
            if key is not None and key not in self.held.values():
                self.time += 1
                self.idle_since[key] = self.time

    @invariant()
    def is_sound(self) -> None:
        self.slots.check({holder.request_id for holder in self.held})
        for holder, key in self.held.items():
            slot = self.slots.slot_of(holder)
            assert slot is not None
            assert self.content[slot] == key


TestSlotsMachine = SlotsMachine.TestCase
