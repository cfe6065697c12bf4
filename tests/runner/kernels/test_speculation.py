"""Drafts proposed and verified as tensors, held against plain Python over lists."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.kernels.speculation import accept, expand, propose

NONE = -1


def looked_up(ids: list[int], max_drafts: int, shortest: int, longest: int) -> list[int]:
    """The continuation of the last earlier occurrence of the longest possible ending."""
    for length in range(min(longest, len(ids) - 1), shortest - 1, -1):
        ending = ids[-length:]
        if NONE in ending:
            continue
        for begin in range(len(ids) - 1 - length, -1, -1):
            if ids[begin : begin + length] == ending:
                found = ids[begin + length : begin + length + max_drafts]
                known = found[: found.index(NONE)] if NONE in found else found
                return known + [NONE] * (max_drafts - len(known))
    return [NONE] * max_drafts


def proposed(
    histories: list[list[int]], max_drafts: int = 3, shortest: int = 1, longest: int = 3, garbage: int = 7
) -> list[list[int]]:
    width = max(len(ids) for ids in histories) + 4
    table = torch.full((len(histories), width), garbage, dtype=torch.int32)
    for row, ids in enumerate(histories):
        table[row, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
    lengths = torch.tensor([len(ids) for ids in histories])
    drafts: list[list[int]] = propose(table, lengths, max_drafts, shortest, longest).tolist()
    return drafts


def test_the_last_earlier_occurrence_of_the_longest_ending_is_continued() -> None:
    assert proposed([[1, 2, 3, 9, 1, 2, 4, 8, 8, 1, 2]]) == [[4, 8, 8]]
    assert proposed([[1, 2, 3, 9, 9, 5, 2, 4, 8, 1, 2]]) == [[3, 9, 9]], "two tokens are more than one"


def test_what_never_occurred_before_has_no_drafts() -> None:
    assert proposed([[1, 2, 3, 4]]) == [[NONE] * 3]


def test_an_ending_does_not_find_itself() -> None:
    assert proposed([[5]]) == [[NONE] * 3]
    assert proposed([[6, 5]]) == [[NONE] * 3]


def test_a_continuation_that_runs_into_the_end_is_as_long_as_it_is() -> None:
    assert proposed([[4, 4]]) == [[4, NONE, NONE]]
    assert proposed([[1, 2, 1]]) == [[2, 1, NONE]]


def test_positions_without_an_id_neither_match_nor_are_proposed() -> None:
    """A prompt of embeddings has no ids (vLLM #42302)."""
    assert proposed([[NONE, NONE, NONE, NONE]]) == [[NONE] * 3]
    assert proposed([[NONE, NONE, 5, NONE, 6, 5]]) == [[NONE] * 3]
    assert proposed([[NONE, 5, 7, NONE, 6, 5]]) == [[7, NONE, NONE]]


def test_shorter_endings_than_allowed_are_not_looked_up() -> None:
    assert proposed([[1, 2, 3, 1]], shortest=2) == [[NONE] * 3]
    assert proposed([[1, 2, 3, 1, 2]], shortest=2) == [[3, 1, 2]]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([NONE, 0, 1, 2]), min_size=1, max_size=14), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_proposals_are_those_of_a_search_in_a_list(
    histories: list[list[int]], max_drafts: int, shortest: int, more: int
) -> None:
    longest = shortest + more
    expected = [looked_up(ids, max_drafts, shortest, longest) for ids in histories]
    for garbage in (NONE, 0, 1):
        assert proposed(histories, max_drafts, shortest, longest, garbage) == expected


# ---- verification


def kept(rows: list[tuple[list[int], list[int]]], max_drafts: int) -> list[list[int]]:
    """Of rows (drafts, tokens sampled at each of their positions): what `accept` keeps of each.

    Each row begins with two ids that are no drafts.
    """
    ids, starts, sampled = [], [0], []
    for drafts, tokens in rows:
        ids += [50, 60, *drafts]
        starts.append(len(ids))
        sampled += tokens
    num_drafts = torch.tensor([len(drafts) for drafts, _ in rows])
    expanded = expand(torch.tensor(starts), num_drafts, len(sampled))
    result = accept(torch.tensor(sampled), torch.tensor(ids), expanded, len(rows), max_drafts)
    return [[token for token in row if token != NONE] for row in result.tolist()]


def verified(drafts: list[int], tokens: list[int]) -> list[int]:
    for index, draft in enumerate(drafts):
        if draft != tokens[index]:
            return tokens[: index + 1]
    return tokens


def test_tokens_are_kept_up_to_the_first_that_was_not_foreseen() -> None:
    assert kept([([4, 5, 6], [4, 5, 9, 6])], 3) == [[4, 5, 9]]
    assert kept([([4, 5, 6], [7, 5, 6, 8])], 3) == [[7]], "a draft behind a wrong one counts for nothing"
    assert kept([([4, 5, 6], [4, 5, 6, 8])], 3) == [[4, 5, 6, 8]]
    assert kept([([], [8])], 3) == [[8]]


def test_the_id_before_the_drafts_is_none_of_them() -> None:
    assert kept([([4], [60, 5])], 1) == [[60]]
    assert kept([([60], [4, 60])], 2) == [[4]]


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 5))
def test_each_row_is_verified_by_its_own_drafts(data: st.DataObject, max_drafts: int, num_rows: int) -> None:
    token = st.integers(0, 2)
    rows = []
    for _ in range(num_rows):
        drafts = data.draw(st.lists(token, max_size=max_drafts))
        count = len(drafts) + 1
        rows.append((drafts, data.draw(st.lists(token, min_size=count, max_size=count))))
    assert kept(rows, max_drafts) == [verified(*row) for row in rows]


def test_rows_spread_over_their_last_positions() -> None:
    expanded = expand(torch.tensor([0, 3, 4, 9]), torch.tensor([0, 0, 2]), 5)
    assert expanded.row.tolist() == [0, 1, 2, 2, 2]
    assert expanded.within.tolist() == [0, 0, 0, 1, 2]
    assert expanded.offset.tolist() == [2, 3, 6, 7, 8]
