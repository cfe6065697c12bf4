"""BlockHashes: blocks are equal exactly where the model was given the same, all before them included."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from block_prompts import HIDDEN_SIZE, Pieces, Position, draw_pieces
from fabrication import SMALL_VL, prompt_of, request
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.admission import admit
from runner.block_hashes import BlockHashes
from runner.config import RunnerConfig
from runner.core import Image, SamplingParams

Change = Callable[[Pieces, random.Random], tuple[Pieces, int] | None]


def num_shared(one: list[bytes], other: list[bytes]) -> int:
    """Blocks of equal hash; after the first that differs none may be equal."""
    equal = [a == b for a, b in zip(one, other, strict=True)]
    count = equal.index(False) if False in equal else len(equal)
    assert not any(equal[count:]), "equal again after a difference"
    return count


# ---- one thing changed: the changed prompt, and the first position where the model is given another thing


def one_id(pieces: Pieces, draw: random.Random) -> tuple[Pieces, int] | None:
    places = pieces.places("id")
    if not places:
        return None
    place = draw.choice(places)
    return pieces.put(place, token_id=pieces.positions[place].token_id ^ 1), place


def one_bit_of_a_row(pieces: Pieces, draw: random.Random) -> tuple[Pieces, int] | None:
    places = pieces.places("supplied")
    if not places:
        return None
    place = draw.choice(places)
    row = bytearray(pieces.positions[place].row)
    # The very last bit of the row as often as any other.
    byte, bit = (len(row) - 1, 7) if draw.random() < 0.5 else (draw.randrange(len(row)), draw.randrange(8))
    row[byte] ^= 1 << bit
    return pieces.put(place, row=bytes(row)), place


def an_image(pieces: Pieces, draw: random.Random) -> tuple[Pieces, int] | None:
    if not pieces.images:
        return None
    index = draw.randrange(len(pieces.images))
    data = bytearray(pieces.images[index].data)
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    changed = pieces.swap_image(index, Image(bytes(data), pieces.images[index].shape))
    return changed, first_row_of(pieces, index)


def the_size_of_an_image(pieces: Pieces, draw: random.Random) -> tuple[Pieces, int] | None:
    """The same bytes on their side."""
    if not pieces.images:
        return None
    index = draw.randrange(len(pieces.images))
    height, width, _ = pieces.images[index].shape
    turned = Image(pieces.images[index].data, (width, height, 3))
    return pieces.swap_image(index, turned), first_row_of(pieces, index)


def which_positions_are_supplied(pieces: Pieces, draw: random.Random) -> tuple[Pieces, int] | None:
    places = pieces.places("text")
    if not pieces.has_rows or not places:
        return None
    place = draw.choice(places)
    return pieces.put(place, is_supplied=not pieces.positions[place].is_supplied), place


def the_dtype(pieces: Pieces, draw: random.Random) -> tuple[Pieces, int] | None:
    """The same bits, read as other numbers."""
    supplied = pieces.places("supplied")
    if pieces.dtype == "float32" or not supplied:
        return None
    other = "bfloat16" if pieces.dtype == "float16" else "float16"
    return replace(pieces, dtype=other), supplied[0]


def first_row_of(pieces: Pieces, image: int) -> int:
    return next(place for place, position in enumerate(pieces.positions) if position.image == image)


CHANGES: tuple[Change, ...] = (
    one_id,
    one_bit_of_a_row,
    an_image,
    the_size_of_an_image,
    which_positions_are_supplied,
    the_dtype,
)


@st.composite
def all_pieces(draw: st.DrawFn) -> Pieces:
    return draw_pieces(
        random.Random(draw(st.integers(0, 2**32))),
        length=draw(st.integers(1, 30)),
        num_images=draw(st.integers(0, 3)),
        supplied=draw(st.sampled_from((0.0, 0.2, 0.5, 0.9, 1.0))),
        dtype=draw(st.sampled_from(("float32", "float16", "bfloat16"))),
    )


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@settings(max_examples=1000)
@given(pieces=all_pieces(), seed=st.integers(0, 2**32), block_size=st.integers(1, 7))
def test_two_prompts_that_differ_in_one_thing_share_the_blocks_before_it_and_no_other(
    change: Change, pieces: Pieces, seed: int, block_size: int
) -> None:
    made = change(pieces, random.Random(seed))
    if made is None:
        return
    changed, place = made
    assert num_shared(pieces.hashes(block_size), changed.hashes(block_size)) == place // block_size


def test_every_kind_of_change_is_drawn_often() -> None:
    """What the test above skips is the smaller part."""
    for change in CHANGES:
        draws = [random.Random(seed) for seed in range(200)]
        made = [
            change(draw_pieces(draw, 20, draw.randrange(3), 0.5, draw.choice(("float16", "float32"))), draw)
            for draw in draws
        ]
        assert sum(one is not None for one in made) > 80, change


@settings(max_examples=1000)
@given(pieces=all_pieces(), seed=st.integers(0, 2**32), block_size=st.integers(1, 7))
def test_what_the_model_never_sees_has_no_part_in_a_hash(pieces: Pieces, seed: int, block_size: int) -> None:
    """Ids beside supplied rows, bytes of rows not supplied, names, and how tokens are chosen."""
    draw = random.Random(seed)
    changed = pieces
    for place in pieces.places("supplied"):
        changed = changed.put(place, token_id=draw.randrange(90))
    for place in (*pieces.places("id"), *pieces.places("image")):
        changed = changed.put(place, row=draw.randbytes(len(pieces.positions[place].row)))
    sampling = SamplingParams(9, temperature=0.7, seed=3, stop_token_ids=(5,))
    expected = pieces.hashes(block_size)
    assert changed.hashes(block_size, "another", sampling) == expected
    assert len(expected) == len(pieces.positions) // block_size


@pytest.mark.parametrize("part", ["_supplied", "_image", "_ids"])
def test_a_part_left_out_of_the_hash_is_noticed(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair test's verdict with a hash that forgets one part of a run."""
    whole = getattr(BlockHashes, part)
    change = {"_supplied": one_bit_of_a_row, "_image": an_image, "_ids": one_id}[part]

    def without_content(hashes: BlockHashes, *place: Any) -> Any:
        parts = list(whole(hashes, *place))
        del parts[1 if part == "_image" else -1]
        return iter(parts)

    monkeypatch.setattr(BlockHashes, part, without_content)
    pieces = draw_pieces(random.Random(4), 24, 2)
    made = change(pieces, random.Random(2))
    assert made is not None
    changed, place = made
    assert num_shared(pieces.hashes(4), changed.hashes(4)) > place // 4


def test_a_hash_without_the_mask_is_noticed() -> None:
    """All rows and all ids of a block, but not which of them count (vLLM #56655)."""
    pieces = draw_pieces(random.Random(1), 8)
    made = which_positions_are_supplied(pieces, random.Random(1))
    assert made is not None
    one, other = pieces.prompt(), made[0].prompt()
    assert one.embeds is not None and other.embeds is not None
    assert (one.token_ids, one.embeds.data) == (other.token_ids, other.embeds.data)
    assert pieces.hashes(8) != made[0].hashes(8)


# ---- what a block is


def texts(*ids: int) -> Pieces:
    return Pieces(tuple(Position(token_id, b"", False) for token_id in ids), has_rows=False)


def test_only_full_blocks_are_hashed() -> None:
    for length in range(1, 10):
        assert len(texts(*range(3, 3 + length)).hashes(4)) == length // 4


def test_equal_blocks_after_different_ones_differ() -> None:
    one, other = texts(3, 4, 5, 6, 7, 8), texts(3, 9, 5, 6, 7, 8)
    assert num_shared(one.hashes(2), other.hashes(2)) == 0


def test_a_block_and_its_repetition_in_one_prompt_differ() -> None:
    assert len(set(texts(*(3, 4) * 5).hashes(2))) == 5


def test_the_beginning_of_a_longer_prompt_has_the_hashes_of_the_shorter() -> None:
    pieces = draw_pieces(random.Random(7), 20)
    cut = replace(pieces, positions=pieces.positions[:10])
    assert cut.hashes(4) == pieces.hashes(4)[:2]
    plain = texts(*range(3, 25))
    assert texts(*range(3, 17)).hashes(4) == plain.hashes(4)[:3]


def test_output_continues_the_hashes_as_a_prompt_of_the_same_ids_would() -> None:
    """So a next turn finds the blocks of the last answer, wherever the prompt ended within a block."""
    for num_prompt in range(1, 12):
        state = texts(*range(3, 3 + num_prompt)).state()
        state.output_ids += range(3 + num_prompt, 15)
        hashes = BlockHashes(state, 4)
        for num_tokens in range(num_prompt, state.num_tokens + 1):
            hashes.extend(num_tokens)
            assert len(hashes.hashes) == num_tokens // 4
        assert hashes.hashes == texts(*range(3, 15)).hashes(4)


def test_output_after_embeddings_is_hashed_as_ids() -> None:
    pieces = replace(draw_pieces(random.Random(3), 6, supplied=1.0), is_pure=True)
    state = pieces.state()
    state.output_ids += [11, 12, 13]
    hashes = BlockHashes(state, 3)
    hashes.extend(9)
    tail = tuple(Position(token_id, bytes(8), False) for token_id in (11, 12, 13))
    spliced = replace(pieces, is_pure=False, positions=(*pieces.positions, *tail))
    assert hashes.hashes == spliced.hashes(3)


def test_all_rows_supplied_is_the_same_with_and_without_a_mask() -> None:
    pieces = draw_pieces(random.Random(3), 12, supplied=1.0)
    assert replace(pieces, is_pure=True).hashes(4) == pieces.hashes(4)


def test_ids_and_rows_of_the_same_bytes_differ() -> None:
    row = struct.pack("<ii", 5, 0)  # as the id 5 in eight bytes
    rows = Pieces(tuple(Position(5, row, True) for _ in range(4)))
    ids = Pieces(tuple(Position(5, row, False) for _ in range(4)))
    assert num_shared(rows.hashes(1), ids.hashes(1)) == 0


def test_where_one_run_ends_and_the_next_begins_is_part_of_the_hash() -> None:
    row = struct.pack("<ii", 5, 0)
    layouts = [[bool(bits >> place & 1) for place in range(6)] for bits in range(64)]
    made = {
        Pieces(tuple(Position(5, row, supplied) for supplied in layout)).hashes(6)[0] for layout in layouts
    }
    assert len(made) == 64


def test_rows_of_another_width_differ_though_their_bytes_do_not() -> None:
    one = draw_pieces(random.Random(2), 4, supplied=1.0).state()
    embeds = one.request.prompt.embeds
    assert embeds is not None and embeds.hidden_size == HIDDEN_SIZE
    halves = replace(embeds, num_rows=8, hidden_size=1, mask=None)
    other = replace(one.request, prompt=replace(one.request.prompt, token_ids=(), embeds=halves))
    wide, narrow = BlockHashes(one, 4), BlockHashes(type(one)(other, ()), 8)
    wide.extend(4)
    narrow.extend(8)
    assert wide.hashes != narrow.hashes


@pytest.mark.parametrize("block_size", [1, 2, 3, 5])
def test_an_images_rows_are_told_apart_by_their_place_in_it(block_size: int) -> None:
    """The same image one row earlier: no block that holds a row of it is the same."""
    image = Image(bytes(18), (2, 3, 3))
    body = tuple(Position(99, b"", False, 0) for _ in range(6))
    word = Position(7, b"", False)
    early = Pieces((word, *body, word, word), (image,), has_rows=False)
    late = Pieces((word, word, *body, word), (image,), has_rows=False)
    assert num_shared(early.hashes(block_size), late.hashes(block_size)) == 1 // block_size


def test_the_same_bytes_as_a_wide_and_as_a_tall_image_differ() -> None:
    data = bytes(range(250)) * 54
    body = tuple(Position(99, b"", False, 0) for _ in range(4))
    wide = Pieces(body, (Image(data, (30, 150, 3)),), has_rows=False)
    tall = Pieces(body, (Image(data, (150, 30, 3)),), has_rows=False)
    assert num_shared(wide.hashes(2), tall.hashes(2)) == 0


def test_two_images_in_the_other_order_differ_from_the_first_one_on() -> None:
    sizes = RunnerConfig(max_model_len=64, block_size=4)
    one = prompt_of(SMALL_VL, [4, ("image", 1), ("image", 2), 3], seed=5)
    other = replace(one, images=one.images[::-1])
    made = []
    for prompt in (one, other):
        hashes = BlockHashes(admit(request("r", prompt), SMALL_VL, sizes), 4)
        hashes.extend(len(prompt))
        made.append(hashes.hashes)
    assert num_shared(*made) == 1


def test_supplied_rows_are_read_in_place() -> None:
    """A view of the prompt's bytes, never a copy of a block of them."""
    pieces = replace(draw_pieces(random.Random(2), 8, supplied=1.0), is_pure=True)
    state = pieces.state()
    views = [part for part in BlockHashes(state, 4)._parts(0, 4) if isinstance(part, memoryview)]
    assert state.request.prompt.embeds is not None
    assert [view.obj is state.request.prompt.embeds.data for view in views] == [True]
