"""The sampler: every part against a second opinion, tokens that depend on their own row alone, extremes."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_rows import EOS, MAX_MODEL_LEN, Asker, Batch, batch_of, params
from scipy.stats import chisquare
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from runner.core import Prompt, SuppliedRows
from runner.kernels import sample as sample_module
from runner.kernels.sample import (
    SlotTables,
    ban_stops,
    ban_words,
    penalise,
    sample,
    scale,
    scores,
    token_logprobs,
    truncate,
)
from runner.slot_state import WHOLE_WIDTH, Real, SamplerNeed, Whole, needs_of
from suite.sampling_reference import SamplingReference

VOCAB = 50
LEVEL = 1e-3


def logits_of(rows: int, seed: int = 0, vocab: int = VOCAB, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def sampled(logits: torch.Tensor, batch: Batch, needs: SamplerNeed = SamplerNeed.ALL) -> list[int]:
    found: list[int] = sample(
        logits, batch.slots, batch.positions, batch.has_params, batch.tables, needs
    ).tolist()
    return found


def token_of(logits: torch.Tensor, asker: Asker) -> int:
    (token,) = sampled(logits, batch_of([asker]), needs_of(asker.sampling))
    return token


def scores_of(logits: torch.Tensor, batch: Batch, needs: SamplerNeed = SamplerNeed.ALL) -> torch.Tensor:
    return scores(logits, batch.rows, needs)


def bits(values: torch.Tensor) -> bytes:
    return values.numpy().tobytes()


def ids(count: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(VOCAB), k=count))


# Any parameters: draws for the properties below

token_ids = st.integers(0, VOCAB - 1)
samplings = st.builds(
    params,
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.5, 1e-6]),
    top_k=st.sampled_from([0, 1, 3, 20, VOCAB, 1000]),
    top_p=st.sampled_from([1.0, 0.01, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, 2.0]),
    bad_words=st.lists(st.lists(token_ids, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    stop_token_ids=st.lists(token_ids, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 6),
    seed=st.integers(0, 2**63 - 1),
)
prompts = st.one_of(
    st.lists(token_ids, min_size=1, max_size=9).map(lambda given: Prompt(tuple(given))),
    st.integers(1, 9).map(lambda count: Prompt((), embeds=SuppliedRows(bytes(8 * count), count, 2))),
    st.lists(st.tuples(token_ids, st.integers(0, 1)), min_size=1, max_size=9).map(
        lambda given: Prompt(
            tuple(token for token, _ in given),
            embeds=SuppliedRows(
                bytes(8 * len(given)), len(given), 2, mask=bytes(is_given for _, is_given in given)
            ),
        )
    ),
)
outputs = st.lists(token_ids, max_size=12).map(tuple)
askers = st.builds(Asker, samplings, prompts, outputs)


@settings(max_examples=300)
@given(askers, st.integers(0, 2**31))
def test_any_parameters_give_the_token_of_the_reference(asker: Asker, seed: int) -> None:
    logits = logits_of(1, seed)
    reference = SamplingReference(asker.request, EOS)
    row = logits[0].double().numpy()
    for needs in (needs_of(asker.sampling), SamplerNeed.ALL):
        (token,) = sampled(logits, batch_of([asker]), needs)
        is_right = reference.is_right(row, asker.output, token)
        assert is_right or reference.is_tie(row, asker.output, token, margin=1e-5)


@settings(max_examples=100)
@given(st.lists(askers, min_size=1, max_size=7), st.data())
def test_a_row_does_not_depend_on_its_batch(drawn: list[Asker], data: st.DataObject) -> None:
    """Bit for bit in every score: any order, any splitting, other slots, other garbage, other needs."""
    vocab = data.draw(st.sampled_from([VOCAB, 61, 1031]))
    logits = logits_of(len(drawn), 3, vocab)
    batch = batch_of(drawn)
    together = scores_of(logits, batch)
    order = data.draw(st.permutations(range(len(drawn))))
    assert bits(scores_of(logits[order], batch.taken(order))) == bits(together[order])
    moved = batch_of(drawn, garbage_seed=data.draw(st.integers(1, 9)), spare_slots=5)
    assert bits(scores_of(logits, moved)) == bits(together)
    for row, asker in enumerate(drawn):
        alone = scores_of(logits[[row]], batch.taken([row]))
        assert bits(alone) == bits(together[[row]])
        own_needs = scores_of(logits[[row]], batch.taken([row]), needs_of(asker.sampling))
        assert int(own_needs.argmax()) == int(together[row].argmax())
        if asker.sampling.temperature:
            assert bits(own_needs) == bits(together[[row]])
    cut = data.draw(st.integers(0, len(drawn)))
    parts = [order[:cut], order[cut:]]
    split = [token for part in parts for token in sampled(logits[part], batch.taken(part))]
    assert split == together[order].argmax(dim=1).tolist()


@given(st.lists(askers, min_size=1, max_size=5), st.integers(1, 5))
def test_chunks_give_the_same_tokens(drawn: list[Asker], per_chunk: int) -> None:
    logits, batch = logits_of(len(drawn), 4), batch_of(drawn)
    whole = sampled(logits, batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_module, "_CHUNK_ELEMENTS", per_chunk * VOCAB)
        assert sampled(logits, batch) == whole


def test_the_number_of_threads_changes_no_score() -> None:
    """On rows long enough for torch to share one among threads."""
    asker = Asker(
        params(temperature=0.8, top_p=0.9, min_p=1e-4, frequency_penalty=0.1, seed=3), output=(9, 9)
    )
    batch = batch_of([asker, replace(asker, output=(3,))])
    logits = logits_of(2, 5, vocab=262_208)
    before = torch.get_num_threads()
    found = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        found.append(bits(scores_of(logits, batch)))
        found.append(bits(torch.cat([scores_of(logits[[i]], batch.taken([i])) for i in range(2)])))
    torch.set_num_threads(before)
    assert len(set(found)) == 1


@given(st.lists(askers, min_size=2, max_size=5), st.data())
def test_rows_that_share_a_slot_are_as_if_sampled_one_after_the_other(
    drawn: list[Asker], data: st.DataObject
) -> None:
    """Draft tokens: the slot's history is longer than what is before the row's position."""
    logits, rows, expected = logits_of(20, 6), [], []
    batch = batch_of(drawn)
    for index, asker in enumerate(drawn):
        for taken in data.draw(st.lists(st.integers(0, len(asker.output)), min_size=1, max_size=4)):
            shorter = replace(asker, output=asker.output[:taken])
            row = logits[[len(rows)]]
            expected.append(sampled(row, batch_of([shorter]))[0])
            rows.append((int(batch.slots[index]), shorter.position))
    slots, positions = torch.tensor(rows).T
    shared = Batch(slots, positions, torch.ones(len(rows), dtype=torch.bool), batch.tables)
    assert sampled(logits[: len(rows)], shared) == expected


@given(st.lists(askers, min_size=1, max_size=5), st.data())
def test_a_row_without_parameters_is_greedy_whatever_its_slot_holds(
    drawn: list[Asker], data: st.DataObject
) -> None:
    batch, logits = batch_of(drawn), logits_of(len(drawn), 7)
    has = data.draw(st.lists(st.booleans(), min_size=len(drawn), max_size=len(drawn)))
    batch.has_params = torch.tensor(has)
    with_params = sampled(logits, batch_of(drawn))
    greedy = logits.argmax(dim=1).tolist()
    expected = [own if is_own else plain for own, plain, is_own in zip(with_params, greedy, has, strict=True)]
    assert sampled(logits, batch) == expected


def test_a_row_without_parameters_may_have_an_unset_slot() -> None:
    reals = torch.tensor([[torch.nan] * len(Real), [torch.inf] * len(Real)])
    for fill in (-1, 2**31 - 1, 0):
        wholes = torch.full((2, WHOLE_WIDTH), fill, dtype=torch.int32)
        history = torch.full((2, MAX_MODEL_LEN), fill, dtype=torch.int32)
        batch = Batch(
            torch.tensor([0, 1]),
            torch.tensor([5, MAX_MODEL_LEN]),
            torch.zeros(2, dtype=torch.bool),
            SlotTables(reals, wholes, history),
        )
        logits = logits_of(2, 8)
        assert bits(scores_of(logits, batch)) == bits(logits)


def test_logits_and_tables_stay_as_they_are() -> None:
    asker = Asker(
        params(temperature=1.0, top_k=3, repetition_penalty=2.0, bad_words=((4,),), min_tokens=4), output=(9,)
    )
    logits, batch = logits_of(1), batch_of([asker])
    before = [tensor.clone() for tensor in (logits, *batch.tables)]
    sampled(logits, batch)
    for kept, now in zip(before, (logits, *batch.tables), strict=True):
        assert bits(kept) == bits(now)


def test_nothing_asks_for_a_value_on_the_device() -> None:
    """Tensors without storage: anything that waited for data would raise here."""
    asker = Asker(params(temperature=1.0))
    batch = batch_of([asker] * 3)
    tables = SlotTables(*(table.to("meta") for table in batch.tables))
    given = [tensor.to("meta") for tensor in (logits_of(3), batch.slots, batch.positions, batch.has_params)]
    tokens = sample(*given, tables)
    assert (tokens.shape, tokens.dtype) == ((3,), torch.int64)
    values, chosen = token_logprobs(given[0], tokens, 5)
    assert values.shape == chosen.shape == (3, 6)


def test_without_needs_nothing_but_an_argmax_is_done() -> None:
    batch, logits = batch_of([Asker(params(temperature=1.0))] * 2), logits_of(2)
    with torch.profiler.profile() as profile:
        tokens = sample(logits, batch.slots, batch.positions, batch.has_params, batch.tables, SamplerNeed(0))
    operations = {event.key for event in profile.key_averages() if event.key.startswith("aten::")}
    assert operations <= {"aten::argmax", "aten::as_strided", "aten::resize_"}
    assert tokens.tolist() == logits.argmax(dim=1).tolist()


# Needs


def test_a_request_needs_what_it_asks_for() -> None:
    assert needs_of(params(top_k=5, top_p=0.5, min_p=0.5, seed=7, logprobs=3)) == SamplerNeed(0)
    assert needs_of(params(temperature=0.5)) == SamplerNeed.NOISE
    assert needs_of(params(temperature=0.5, top_k=4)) == SamplerNeed.NOISE | SamplerNeed.TOP_K_TOP_P
    assert needs_of(params(temperature=0.5, top_p=0.9)) == SamplerNeed.NOISE | SamplerNeed.TOP_K_TOP_P
    assert needs_of(params(temperature=0.5, min_p=0.1)) == SamplerNeed.NOISE | SamplerNeed.MIN_P
    assert needs_of(params(min_tokens=1)) == SamplerNeed.MIN_TOKENS
    assert needs_of(params(bad_words=((3,),))) == SamplerNeed.BAD_WORDS
    for penalty in ({"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}):
        assert needs_of(params(**penalty)) == SamplerNeed.PENALTIES


# Second opinions: transformers' processors


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_p", [None, 0.05, 0.5, 0.95])
@pytest.mark.parametrize("top_k", [None, 1, 7, VOCAB])
@pytest.mark.parametrize("min_p", [None, 0.02, 0.3])
def test_the_tokens_kept_are_those_of_transformers(
    seed: int, temperature: float, top_p: float | None, top_k: int | None, min_p: float | None
) -> None:
    given: dict[str, Any] = {"top_p": top_p, "top_k": top_k, "min_p": min_p}
    asked = {name: value for name, value in given.items() if value is not None}
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    warpers += [MinPLogitsWarper(min_p)] if min_p else []
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p else []
    logits = logits_of(4, seed)
    expected = warpers(torch.zeros(4, 1, dtype=torch.int64), logits.clone()) > -math.inf
    batch = batch_of([Asker(params(temperature=temperature, seed=seed, **asked))] * 4)
    assert torch.equal(scores_of(logits, batch) > -math.inf, expected)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 5.0])
def test_the_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    logits, prompt, output = logits_of(1), ids(9, 1), ids(14, 2)
    batch = batch_of([Asker(params(repetition_penalty=penalty), Prompt(prompt), output)])
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[*prompt, *output]]), logits.clone())
    torch.testing.assert_close(penalise(logits, batch.rows), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("seed", range(20))
def test_bad_words_of_an_output_are_those_of_transformers(seed: int) -> None:
    """Few ids, so that prefixes match often. The prompt has no id that a word has: transformers matches
    prefixes there as well, vLLM and the sampler do not."""
    draw = random.Random(seed)
    output = tuple(draw.choices(range(10, 13), k=draw.randint(1, 6)))
    words = tuple({tuple(draw.choices(range(10, 13), k=draw.randint(1, 8))) for _ in range(16)})
    logits = logits_of(1, seed)
    processor = NoBadWordsLogitsProcessor([list(word) for word in words], eos_token_id=EOS)
    expected = processor(torch.tensor([[5, 6, *output]]), logits.clone())
    batch = batch_of([Asker(params(bad_words=words), Prompt((5, 6)), output)])
    assert torch.equal(ban_words(logits, batch.rows), expected)


# What each parameter means


def test_a_prefix_of_a_bad_word_counts_in_the_output_only() -> None:
    logits = torch.zeros(1, VOCAB)

    def banned(prompt: tuple[int, ...], output: tuple[int, ...], word: tuple[int, ...]) -> list[int]:
        asker = Asker(params(bad_words=(word,)), Prompt(prompt), output)
        found: list[int] = ban_words(logits, batch_of([asker]).rows)[0].isneginf().nonzero()[:, 0].tolist()
        return found

    assert banned((5, 6), (7, 8), (7, 8, 9)) == [9]
    assert banned((5, 7), (8,), (7, 8, 9)) == []  # it would begin in the prompt
    assert banned((7, 8), (), (7, 8, 9)) == []
    assert banned((5, 6), (7, 8, 3), (7, 8, 9)) == []
    assert banned((5,), (7,), (9,)) == [9]  # one id: always
    assert banned((5,), tuple(range(20, 27)), tuple(range(20, 28))) == [27]
    assert banned((5,), tuple(range(21, 27)), tuple(range(20, 28))) == []
    assert banned((5,), (), (VOCAB,)) == []  # outside the vocabulary


def test_penalties_count_prompt_and_output_as_they_should() -> None:
    logits = torch.tensor([[2.0, -2.0, 2.0, -2.0, 0.0, 2.0]])
    asker = Asker(
        params(repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5),
        Prompt((0, 1, 0, 4)),
        (2, 3, 3, 4),
    )
    found = penalise(logits, batch_of([asker]).rows)
    expected = [[1.0, -4.0, 1 - 0.75, -4 - 1.0, -0.75, 2.0]]
    assert found.tolist() == expected


def test_supplied_rows_have_no_ids_to_penalise() -> None:
    logits = torch.full((1, VOCAB), 4.0)
    asked = params(repetition_penalty=2.0)

    def penalised(prompt: Prompt, output: tuple[int, ...]) -> list[int]:
        changed = penalise(logits, batch_of([Asker(asked, prompt, output)]).rows)[0] != 4
        found: list[int] = changed.nonzero()[:, 0].tolist()
        return found

    pure = SuppliedRows(bytes(8 * 20), 20, 2)
    spliced = replace(pure, mask=bytes([0, 1] * 10))
    held = tuple(range(10, 30))
    assert penalised(Prompt((), embeds=pure), ()) == []
    assert penalised(Prompt((), embeds=pure), (7, 7)) == [7]
    assert penalised(Prompt(held, embeds=spliced), (7,)) == [7, *range(10, 30, 2)]


@pytest.mark.parametrize("min_tokens", [0, 1, 3])
def test_no_stop_token_before_the_minimal_length(min_tokens: int) -> None:
    logits = torch.zeros(1, VOCAB)
    asked = params(min_tokens=min_tokens, stop_token_ids=(4, 9), ignore_eos=False)
    for length in range(5):
        batch = batch_of([Asker(asked, Prompt((5, 6)), (8,) * length)])
        banned = ban_stops(logits, batch.rows)[0].isneginf().nonzero()[:, 0].tolist()
        assert banned == ([EOS, 4, 9] if length < min_tokens else [])


def test_greedy_is_the_maximum_of_processed_logits() -> None:
    logits = torch.tensor([[1.0, 5.0, 4.9, 0.0]])
    assert token_of(logits, Asker(params(), Prompt((1,)))) == 1
    assert token_of(logits, Asker(params(repetition_penalty=1.1), Prompt((1,)))) == 2
    assert token_of(logits, Asker(params(bad_words=((1,), (2,))), Prompt((1,)))) == 0
    cut = params(top_k=1, top_p=0.1, min_p=1.0, repetition_penalty=1.1)
    assert token_of(logits, Asker(cut, Prompt((1,)))) == 2


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.4, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 4), (0.9, 4), (1.0, 4)]
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, kept: int) -> None:
    """Probabilities 1/2, 1/4, 1/8, 1/8; equal tokens stay together."""
    scaled = scale(torch.tensor([[1 / 8, 1 / 2, 1 / 4, 1 / 8]]).log(), torch.ones(1, 1))
    found = truncate(scaled, torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[top_p]]))
    assert int((found > -math.inf).sum()) == kept


def test_top_p_is_a_share_of_what_top_k_and_min_p_keep() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    for cut in ({"top_k": 2}, {"min_p": 0.6}):
        # Of 4/7 and 3/7 the first does not reach 0.6; of all four, two would not reach 0.75.
        for top_p, kept in ((0.55, 1), (0.6, 2), (0.75, 2)):
            batch = batch_of([Asker(params(temperature=1.0, top_p=top_p, **cut))])
            assert int((scores_of(logits, batch) > -math.inf).sum()) == kept


def test_equal_seeds_give_equal_tokens_only_at_equal_positions() -> None:
    logits = torch.zeros(1, 4096)
    asker = Asker(params(temperature=1.0, seed=2**40))
    other_prompt = replace(asker, prompt=Prompt((9, 9)), output=(4,))
    assert token_of(logits, asker) == token_of(logits, other_prompt)
    assert token_of(logits, asker) != token_of(logits, replace(asker, output=(4,)))
    assert token_of(logits, asker) != token_of(logits, replace(asker, sampling=params(temperature=1.0)))


# Extremes

LARGE = 3e38


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-6, 1.0, 1e6, 3e38, 1e300])
@pytest.mark.parametrize("spread", [0.0, 1e-30, 1.0, 1e30, 1e37])
def test_no_temperature_and_no_logits_give_anything_but_numbers(temperature: float, spread: float) -> None:
    logits = logits_of(3, 9, spread=spread).clamp(-LARGE, LARGE)
    logits[1, ::2] = -math.inf
    logits[2, 0], logits[2, 1] = LARGE, -LARGE
    cuts = ({}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}, {"repetition_penalty": 1e-30})
    for cut in (*cuts, {"repetition_penalty": 1e300}, {"repetition_penalty": 1e-300, "top_p": 0.5}):
        asked = params(temperature=temperature, **cut)
        found = scores_of(logits, batch_of([Asker(asked, output=(8, 0, 1))] * 3))
        assert not found.isnan().any()
        assert (found.amax(dim=1) > -math.inf).all()
        assert (found[1, ::2] == -math.inf).all()


def test_a_tiny_temperature_is_greedy_and_a_huge_one_is_uniform() -> None:
    logits = logits_of(200, 10)
    tiny = batch_of([Asker(params(temperature=1e-6, seed=seed)) for seed in range(200)])
    assert sampled(logits, tiny) == logits.argmax(dim=1).tolist()
    huge = batch_of([Asker(params(temperature=1e30, seed=seed)) for seed in range(4000)])
    counts = np.bincount(sampled(logits[:1].expand(4000, -1), huge), minlength=VOCAB)
    assert chisquare(counts).pvalue > LEVEL


def test_all_but_one_token_banned_leaves_that_one() -> None:
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, 17] = -1e30
    for asked in (params(), params(temperature=1.0), params(temperature=9.0, top_p=0.1, top_k=5, min_p=1.0)):
        assert token_of(logits, Asker(asked)) == 17
    words = tuple((token,) for token in range(8))
    assert token_of(torch.zeros(1, 9), Asker(params(temperature=5.0, bad_words=words), Prompt((1,)))) == 8


def test_where_all_tokens_are_banned_the_token_is_still_an_id() -> None:
    words = tuple((token,) for token in range(8))
    for temperature in (0.0, 1.0):
        for cut in ({}, {"top_k": 2, "top_p": 0.3, "min_p": 0.2}):
            asked = params(temperature=temperature, bad_words=words, **cut)
            assert token_of(torch.zeros(1, 8), Asker(asked, Prompt((1,)))) == 0


def test_a_vocabulary_of_one_and_top_k_beyond_it() -> None:
    asked = params(temperature=1.0, top_k=2**31 - 1, top_p=1e-30, min_p=1.0)
    assert token_of(torch.zeros(1, 1), Asker(asked, Prompt((0,)))) == 0
    beyond, none = (Asker(params(temperature=2.0, top_k=top_k)) for top_k in (VOCAB + 1, 0))
    logits = logits_of(1)
    assert bits(scores_of(logits, batch_of([beyond]))) == bits(scores_of(logits, batch_of([none])))


def test_no_rows_give_no_tokens() -> None:
    batch = batch_of([Asker(params())]).taken([])
    assert sampled(logits_of(0), batch) == []
    values, chosen = token_logprobs(logits_of(0), torch.zeros(0, dtype=torch.int64), 3)
    assert values.shape == chosen.shape == (0, 4)


def test_half_precision_logits_are_sampled_as_float32() -> None:
    logits = logits_of(4, 11).to(torch.bfloat16)
    batch = batch_of([Asker(params(temperature=0.7, top_p=0.8, seed=seed)) for seed in range(4)])
    assert bits(scores_of(logits, batch)) == bits(scores_of(logits.float(), batch))


# Distributions

NUM_DRAWS = 20_000


def p_of(tokens: list[int], expected: np.ndarray) -> float:
    """p of the tokens under the expected probabilities; 0 if one was drawn that has none."""
    counts = np.bincount(tokens, minlength=len(expected))
    if counts[expected == 0].any():
        return 0.0
    is_possible = expected > 0
    if is_possible.sum() == 1:
        return 1.0
    return float(chisquare(counts[is_possible], expected[is_possible] * counts.sum()).pvalue)


DISTRIBUTIONS = [
    {},
    {"temperature": 0.4},
    {"temperature": 2.0, "top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1, "temperature": 1.5},
    {"temperature": 1.2, "top_k": 8, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.5, "presence_penalty": 0.7, "frequency_penalty": 0.3},
]


@pytest.mark.parametrize("given_params", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("over", ["seeds", "positions"])
def test_frequencies_are_the_reference_probabilities(given_params: dict[str, Any], over: str) -> None:
    asker = Asker(params(**{"temperature": 1.0, **given_params}), output=(3, 3, 4))
    logits = logits_of(1, 12, vocab=12, spread=1.5)
    expected = SamplingReference(asker.request, EOS).probabilities(logits[0].double().numpy(), asker.output)
    assert p_of(draws(logits, asker, over), expected) > LEVEL


def draws(logits: torch.Tensor, asker: Asker, over: str) -> list[int]:
    """Tokens of NUM_DRAWS seeds or positions, all after the asker's own ids."""
    batch = batch_of([asker])
    count = torch.arange(NUM_DRAWS)
    repeated = SlotTables(*(table[batch.slots.expand(NUM_DRAWS)] for table in batch.tables))
    repeated.history[:, asker.position :] = -1
    positions = batch.positions.expand(NUM_DRAWS)
    if over == "seeds":
        repeated.wholes[:, Whole.SEED_LOW] = count.int()
    else:
        positions = positions + count
    rows = Batch(count, positions, torch.ones(NUM_DRAWS, dtype=torch.bool), repeated)
    return sampled(logits.expand(NUM_DRAWS, -1), rows)


@pytest.mark.parametrize("over", ["seeds", "positions"])
def test_noise_that_ignores_its_key_gives_other_frequencies(
    over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative controls of the test above: each fault must be seen where it can be."""
    true_bits = sample_module.uniform_bits

    def without(seeds: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
        fixed = torch.zeros_like(seeds)
        return true_bits(*((fixed, positions) if over == "seeds" else (seeds, fixed)), vocab)

    def one_for_all(seeds: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
        return true_bits(seeds, positions, 1).expand(-1, vocab)

    def few(seeds: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
        return true_bits(seeds % 64, positions % 64, vocab)

    asker, logits = Asker(params(temperature=1.0)), logits_of(1, 12, vocab=12, spread=1.5)
    expected = logits[0].double().softmax(dim=0).numpy()
    assert p_of(draws(logits, asker, over), expected) > LEVEL
    for fault in (without, one_for_all, few):
        monkeypatch.setattr(sample_module, "uniform_bits", fault)
        assert p_of(draws(logits, asker, over), expected) < LEVEL / 1e6, fault.__name__


def test_tokens_of_neighbouring_positions_and_seeds_are_independent() -> None:
    """Pairs of tokens in a table of 6 x 6 classes."""
    logits = logits_of(1, 13, vocab=6, spread=0.7)
    probabilities = logits[0].double().softmax(dim=0).numpy()
    for over in ("seeds", "positions"):
        tokens = draws(logits, Asker(params(temperature=1.0, seed=4), Prompt((1,))), over)
        pairs = [6 * left + right for left, right in zip(tokens[::2], tokens[1::2], strict=True)]
        expected = np.outer(probabilities, probabilities).flatten()
        assert p_of(pairs, expected) > LEVEL
        assert p_of([7 * token for token in tokens[::2]], expected) < LEVEL  # each twice the same


# Log-probabilities


@pytest.mark.parametrize("width", [0, 1, 5, 20])
def test_logprobs_are_those_of_the_raw_logits(width: int) -> None:
    logits = logits_of(6, 14)
    tokens = torch.tensor([0, 1, 2, 3, 4, int(logits[5].argmax())])
    values, chosen = token_logprobs(logits, tokens, width)
    assert (values.dtype, chosen.dtype) == (torch.float32, torch.int32)
    expected = logits.double().log_softmax(dim=1)
    order = expected.argsort(dim=1, descending=True)
    for row, token in enumerate(tokens.tolist()):
        top = order[row, :width]
        assert chosen[row, 1:].tolist() == top.tolist()
        assert chosen[row, 0] == order[row].tolist().index(token) + 1
        wanted = [float(expected[row, token]), *expected[row, top].tolist()]
        assert values[row].tolist() == pytest.approx(wanted, abs=1e-5)
    assert chosen[5, 0] == 1


def test_equal_logits_share_a_rank_and_banned_ones_have_no_probability() -> None:
    logits = torch.tensor([[1.0, 1.0, 0.0, -math.inf]])
    for token, rank in ((0, 1), (1, 1), (2, 3), (3, 4)):
        values, chosen = token_logprobs(logits, torch.tensor([token]), 2)
        assert int(chosen[0, 0]) == rank
        assert sorted(chosen[0, 1:].tolist()) == [0, 1]
    assert values[0, 0] == -math.inf


def test_logprobs_of_huge_logits_are_numbers() -> None:
    values, _ = token_logprobs(torch.tensor([[LARGE, -LARGE, 0.0]]), torch.tensor([0]), 3)
    assert values[0].tolist()[:2] == [0.0, 0.0]
    assert not values.isnan().any()
