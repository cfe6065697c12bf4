"""Log-probabilities held against a reference: what is right, what is off, what is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from records import make_request

from runner.core import Prompt, Request, RequestState, SamplingParams, TokenLogprobs
from suite.logprob_check import check_logprobs, position_errors
from suite.record import LogprobVerdict
from suite.reported_logprobs import MARGIN

VOCABULARY = 50
OUTPUT = (7, 3, 49)


def _expected() -> np.ndarray:
    logits = np.random.default_rng(5).normal(size=(len(OUTPUT), VOCABULARY))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def _reported(num_top: int, shift: float = 0.0) -> list[TokenLogprobs]:
    """What a right runner reports, each value moved by `shift`."""
    found = []
    for row, token in zip(_expected(), OUTPUT, strict=True):
        order = np.argsort(-row)
        top = tuple((int(index), float(row[index]) + shift) for index in order[:num_top])
        found.append(TokenLogprobs(float(row[token]) + shift, int((row >= row[token]).sum()), top))
    return found


class _Oracle:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def logprobs(self, request: Request, output_ids: Sequence[int], /) -> np.ndarray:
        self.asked.append(request.request_id)
        assert tuple(output_ids) == OUTPUT
        return _expected()


def _verdict(num_top: int | None, given: Sequence[TokenLogprobs]) -> LogprobVerdict | None:
    request = Request("a", Prompt((1,)), SamplingParams(3, logprobs=num_top))
    state = RequestState(request, (), logprobs=list(given))
    return check_logprobs(_Oracle(), [make_request("a", output_ids=OUTPUT)], {"a": request}, {"a": state})


@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_the_models_own_values_are_right_and_rounding_is_excused(num_top: int) -> None:
    assert _verdict(num_top, _reported(num_top)) == LogprobVerdict(num_checked=3, num_wrong=0, max_error=0.0)
    close = _verdict(num_top, _reported(num_top, 0.9 * MARGIN))
    assert close is not None and close.num_wrong == 0 and close.max_error == pytest.approx(9e-5)


def test_values_off_by_more_than_the_tolerance_are_wrong_and_named() -> None:
    given = _reported(2)
    given[1] = given[1]._replace(logprob=given[1].logprob - 2 * MARGIN)
    found = _verdict(2, given)
    assert found is not None and (found.num_checked, found.num_wrong) == (3, 1)
    assert found.first_wrong == ("a", 1) and found.max_error == pytest.approx(2e-4)


def test_other_tokens_than_the_most_likely_are_wrong_even_with_their_own_values() -> None:
    given = _reported(3)
    row = _expected()[0]
    third = int(np.argsort(-row)[3])
    given[0] = given[0]._replace(top=(*given[0].top[:2], (third, float(row[third]))))
    found = _verdict(3, given)
    assert found is not None and found.num_wrong == 1 and found.first_wrong == ("a", 0)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found._replace(logprob=math.nan),
        lambda found: found._replace(top=found.top[:-1]),
        lambda found: found._replace(top=((VOCABULARY, 0.0), *found.top[1:])),
    ],
)
def test_what_is_no_number_missing_or_of_no_token_is_wrong(spoil) -> None:
    given = _reported(2)
    given[2] = spoil(given[2])
    assert position_errors(_expected(), OUTPUT, given, 2)[2].value == math.inf
    found = _verdict(2, given)
    assert found is not None and found.num_wrong == 1 and found.max_error == 0.0


def test_tokens_without_a_log_probability_are_wrong() -> None:
    found = _verdict(0, _reported(0)[:1])
    assert found is not None and (found.num_checked, found.num_wrong) == (3, 2)
    nothing = _verdict(0, [])
    assert nothing is not None and nothing.num_wrong == 3 and nothing.max_error is None


def test_the_oracle_is_not_asked_where_nobody_asked_for_any() -> None:
    assert _verdict(None, []) is None
