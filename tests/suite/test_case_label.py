"""What a case is called."""

from __future__ import annotations

import pytest

from suite.case_label import case_label, case_title

LONG = {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1, "presence_penalty": 0.2, "logprobs": 3}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0.5, "0.5"),
        ({}, "{}"),
        ({"temperature": 0.8, "logprobs": None}, "{temperature: 0.8, logprobs: null}"),
        ([1, [2, 3]], "[1, [2, 3]]"),
    ],
)
def test_a_short_value_is_written_in_full(value: object, text: str) -> None:
    key = "traffic.sampling"
    assert case_label({key: value}, {key: [value]}) == f"sampling={text}"


def test_a_title_is_the_scenario_and_what_is_swept_in_brackets() -> None:
    assert case_title("smoke", "ratio=0.5") == "smoke [ratio=0.5]"
    assert case_title("smoke", "smoke") == "smoke"


def test_a_long_mapping_shows_its_first_items_and_its_place_in_the_sweep() -> None:
    key = "traffic.sampling"
    label = case_label({key: LONG}, {key: [{}, LONG]})
    assert label == "sampling={temperature: 0.8, top_p: 0.95, ...} #2"


@pytest.mark.parametrize(
    "values",
    [
        [LONG, {**LONG, "logprobs": 4}],
        [{"bad_words": [list(range(40)), [1]]}, {"bad_words": [list(range(40)), [2]]}],
        [list(range(40)), [*range(40), 41]],
    ],
)
def test_values_that_differ_where_they_are_cut_have_labels_that_differ(values: list[object]) -> None:
    key = "traffic.sampling"
    labels = {case_label({key: value}, {key: values}) for value in values}
    assert len(labels) == 2
    assert all(len(label) < 90 for label in labels)
