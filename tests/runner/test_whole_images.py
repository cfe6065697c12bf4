"""Images that attend in both directions are computed whole: by every chunk, cached prefix and preemption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fabrication import BOTH_WAYS_VL, SMALL_VL, prompt_of, request, text
from hypothesis import event, given, settings
from hypothesis import strategies as st
from prefix_simulation import PrefixSimulation

from runner.admission import admit
from runner.config import RunnerConfig
from runner.core import ImageSpan, Prompt, Request, RequestError, RequestState, SuppliedRows
from runner.models import ModelSpec

assert BOTH_WAYS_VL.vision is not None
ROWS = BOTH_WAYS_VL.vision.rows_per_image
BASE = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=64,
    block_size=4,
    num_blocks=64,
    num_encoder_slots=8,
    max_images_per_step=8,
)
Piece = int | tuple[str, int]


def config(**sizes: Any) -> RunnerConfig:
    return replace(BASE, **sizes)


def simulated(sizes: RunnerConfig, depth: int = 1, model: ModelSpec = BOTH_WAYS_VL) -> PrefixSimulation:
    """It holds every plan against the rule: no step begins or ends inside such an image."""
    return PrefixSimulation(sizes, depth, model=model)


def asked(name: str, *pieces: Piece, max_tokens: int = 2, seed: int = 1) -> Request:
    return request(name, prompt_of(BOTH_WAYS_VL, pieces, seed), max_tokens)


def chunks(simulation: PrefixSimulation, name: str) -> list[int]:
    """Tokens of a request in each step that has it, of its prompt."""
    found = []
    for plan in simulation.plans:
        found += [row.num_tokens for row in plan.rows if row.request_id == name and not row.is_decode]
    return found


# ---- chunks


def test_a_chunk_ends_before_an_image_that_does_not_fit_it() -> None:
    """Five ids and an image of three rows between its two ids, in chunks of seven."""
    simulation = simulated(config(max_num_batched_tokens=7))
    simulation.run([asked("a", 5, ("image", 1), 4)])
    assert chunks(simulation, "a") == [6, 7, 1]
    causal = simulated(config(max_num_batched_tokens=7), model=replace(SMALL_VL, hidden_size=2))
    causal.run([asked("a", 5, ("image", 1), 4)])
    assert chunks(causal, "a") == [7, 7]


def test_an_image_that_just_fits_is_not_put_off() -> None:
    simulation = simulated(config(max_num_batched_tokens=9))
    simulation.run([asked("a", 5, ("image", 1), 4)])
    assert chunks(simulation, "a") == [9, 5]


def test_a_budget_of_one_image_computes_images_alone_and_text_between_them() -> None:
    simulation = simulated(config(max_num_batched_tokens=ROWS, max_num_seqs=2))
    simulation.run([asked("a", ("image", 1), ("image", 2))])
    assert chunks(simulation, "a") == [1, 3, 2, 3, 1]
    simulation.check_finished()


def test_an_image_without_an_encoder_slot_or_budget_ends_the_chunk_before_it() -> None:
    for sizes in (
        config(num_encoder_slots=1),
        config(max_encoder_tokens_per_step=ROWS),
        config(max_images_per_step=1),
    ):
        simulation = simulated(sizes)
        simulation.run([asked("a", ("image", 1), ("image", 2), 2)])
        assert chunks(simulation, "a") == [6, 6]
        simulation.check_finished()


def test_a_running_image_that_does_not_fit_is_not_starved_by_newcomers() -> None:
    """Four decodes leave two tokens for its three rows. Newcomers taken in would soon decode in its way."""
    simulation = simulated(config(max_num_batched_tokens=6, max_num_seqs=6))
    simulation.submit(*(asked(name, 1, max_tokens=9) for name in "abde"))
    simulation.step()
    (state,) = simulation.submit(asked("c", 2, ("image", 1), max_tokens=2))
    simulation.step()
    simulation.step()
    assert state.num_computed == state.spans[0].first == 3
    simulation.submit(*(asked(f"n{index}", 1, max_tokens=12) for index in range(6)))
    simulation.run()
    order = [row.request_id for plan in simulation.plans for row in plan.rows if row.samples]
    assert order.index("c") < order.index("n0"), "newcomers went first"
    simulation.check_finished()


def test_an_image_at_the_head_of_the_queue_waits_for_a_step_that_holds_it() -> None:
    simulation = simulated(config(max_num_batched_tokens=5, max_num_seqs=4))
    simulation.submit(*(asked(name, 1, max_tokens=4) for name in "abc"))
    simulation.step()
    image_id = BOTH_WAYS_VL.vision.image_token_id if BOTH_WAYS_VL.vision else 0
    images = prompt_of(BOTH_WAYS_VL, [("image", 1)], 1).images
    (state,) = simulation.submit(request("i", Prompt(((image_id,) * ROWS + (5,)), images), 2))
    plan = simulation.step()
    assert plan is not None and [row.request_id for row in plan.rows] == ["a", "b", "c"]
    assert state.num_computed == 0 and not state.block_ids
    simulation.run()
    simulation.check_finished()


# ---- cached prefixes


def test_a_cached_prefix_is_cut_back_to_before_an_image_it_would_end_in() -> None:
    """Blocks of four: the second ends behind the image's second row, the first before its first."""
    simulation = simulated(config(prefix_caching=True))
    first = asked("a", 5, ("image", 1), 9, seed=3)
    simulation.run([first])
    same = request(
        "b", replace(first.prompt, token_ids=(*first.prompt.token_ids[:9], *text(SMALL_VL, 6, 1))), 2
    )
    (state,) = simulation.run([same])
    assert state.spans[0].first == 6 and state.spans[0].end == 9
    assert state.num_cached == 4
    causal = PrefixSimulation(config(prefix_caching=True), model=replace(SMALL_VL, hidden_size=2))
    causal.run([first])
    (state,) = causal.run([same])
    assert state.num_cached == 8
    simulation.check_finished()


def test_a_cached_prefix_beyond_the_image_is_shared_whole() -> None:
    simulation = simulated(config(prefix_caching=True))
    prompt = asked("a", 5, ("image", 1), 9, seed=3).prompt
    simulation.run([request("a", prompt, 2)])
    (state,) = simulation.run([request("b", prompt, 2)])
    assert state.num_cached == (len(prompt) - 1) // 4 * 4
    assert sum(len(plan.encodes) for plan in simulation.plans) == 1


def test_where_to_cut_is_found_over_several_images_of_one_block() -> None:
    """A block that ends inside one image and begins inside another."""
    spans = tuple(ImageSpan(f"k{i}", i, first, 3, is_whole=True) for i, first in enumerate((3, 7, 11)))
    state = RequestState(asked("a", 20), spans)
    cache = PrefixSimulation(config(prefix_caching=True, block_size=4), model=BOTH_WAYS_VL)
    shared = cache.scheduler.prefix_cache._num_shared
    assert [shared(state, blocks) for blocks in range(6)] == [0, 0, 0, 0, 4, 5]
    causal = RequestState(asked("a", 20), tuple(replace(span, is_whole=False) for span in spans))
    assert [shared(causal, blocks) for blocks in range(6)] == [0, 1, 2, 3, 4, 5]


# ---- preemption


def test_a_preempted_request_computes_its_images_whole_again() -> None:
    simulation = simulated(config(max_num_batched_tokens=6, num_blocks=8, num_encoder_slots=1))
    states = simulation.run(
        [asked("a", 3, ("image", 1), 3, max_tokens=9), asked("b", 3, ("image", 2), 3, max_tokens=9)]
    )
    assert sum(state.num_preemptions for state in states) > 0
    simulation.check_finished()


# ---- refusals


def refusal(prompt: Prompt, **sizes: Any) -> str:
    with pytest.raises(RequestError) as caught:
        admit(request("a", prompt), BOTH_WAYS_VL, config(**sizes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_image_larger_than_a_step_is_refused_with_the_key_and_both_numbers() -> None:
    prompt = prompt_of(BOTH_WAYS_VL, [("image", 1), 2], 1)
    told = refusal(prompt, max_num_batched_tokens=2, max_num_seqs=2)
    assert told.startswith("request a: an image takes 3 tokens and is computed in one step")
    assert told.endswith("runner.max_num_batched_tokens is 2; raise it")
    admit(request("a", prompt), BOTH_WAYS_VL, config(max_num_batched_tokens=3, max_num_seqs=2))
    admit(request("a", prompt), SMALL_VL, config(max_num_batched_tokens=2, max_num_seqs=2))


def test_images_that_touch_are_refused_for_the_model_would_take_them_for_one() -> None:
    image_id = BOTH_WAYS_VL.vision.image_token_id if BOTH_WAYS_VL.vision else 0
    images = prompt_of(BOTH_WAYS_VL, [("image", 1), ("image", 2)], 1).images
    told = refusal(Prompt((5, *(image_id,) * 2 * ROWS, 6), images))
    assert "images 0 and 1 touch at position 4" in told and "put a token between them" in told
    admit(request("a", Prompt((5, *(image_id,) * ROWS, 6, *(image_id,) * ROWS), images)), BOTH_WAYS_VL, BASE)


# ---- anything


@st.composite
def workloads(draw: st.DrawFn) -> tuple[RunnerConfig, int, list[tuple[int, Request]]]:
    prompts: list[Prompt] = []
    for index in range(draw(st.integers(1, 5))):
        if prompts and draw(st.booleans()):
            again = draw(st.sampled_from(prompts))
            prompts.append(replace(again, token_ids=(*again.token_ids, *text(SMALL_VL, 3, index))))
            continue
        piece = st.one_of(st.integers(1, 6), st.tuples(st.just("image"), st.integers(0, 2)))
        pieces: list[Piece] = draw(st.lists(piece, min_size=1, max_size=5))
        prompt = prompt_of(BOTH_WAYS_VL, pieces, seed=draw(st.integers(1, 2)))
        prompts.append(_with_rows(prompt) if draw(st.booleans()) else prompt)
    outputs = draw(st.lists(st.integers(1, 9), min_size=len(prompts), max_size=len(prompts)))
    # A prompt that goes on from one with rows would have ids beyond them.
    given_prompts = [
        p if p.embeds is None or len(p.token_ids) == p.embeds.num_rows else replace(p, embeds=None)
        for p in prompts
    ]
    arrivals = [
        (draw(st.integers(0, 6)), request(f"r{index}", prompt, max_tokens))
        for index, (prompt, max_tokens) in enumerate(zip(given_prompts, outputs, strict=True))
    ]
    longest = max(len(made.prompt) + made.sampling.max_tokens for _, made in arrivals)
    block_size, num_seqs = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    sizes = config(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=max(ROWS, num_seqs) + draw(st.integers(0, 8)),
        max_model_len=longest + 1,
        block_size=block_size,
        num_blocks=-(-longest // block_size) + draw(st.integers(0, 6)),
        num_encoder_slots=draw(st.integers(1, 3)),
        max_images_per_step=draw(st.integers(1, 3)),
        max_encoder_tokens_per_step=draw(st.integers(ROWS, 8)),
        prefix_caching=draw(st.booleans()),
    )
    return sizes, draw(st.integers(1, 2)), arrivals


def _with_rows(prompt: Prompt) -> Prompt:
    """Every other text position supplied."""
    image_id = BOTH_WAYS_VL.vision.image_token_id if BOTH_WAYS_VL.vision else -1
    mask = bytes(token != image_id and place % 2 for place, token in enumerate(prompt.token_ids))
    width = 4 * BOTH_WAYS_VL.hidden_size
    data = b"".join(bytes([place % 100]) * width for place in range(len(prompt)))
    return replace(prompt, embeds=SuppliedRows(data, len(prompt), BOTH_WAYS_VL.hidden_size, mask=mask))


def served(made: tuple[RunnerConfig, int, Sequence[tuple[int, Request]]]) -> PrefixSimulation:
    sizes, depth, arrivals = made
    simulation = simulated(sizes, depth)
    for step in range(7):
        simulation.submit(*(asked_for for when, asked_for in arrivals if when == step))
        simulation.step()
    simulation.run(max_steps=2000)
    simulation.check_finished()
    return simulation


@settings(max_examples=200)
@given(made=workloads())
def test_any_images_are_computed_whole_and_everyone_is_served(made: Any) -> None:
    states = served(made).scheduler.requests.values()
    event(f"cached {sum(state.num_cached for state in states) > 0}")
    event(f"preempted {sum(state.num_preemptions for state in states) > 0}")


def test_a_planted_cut_inside_an_image_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestState, "whole_end", lambda self, end: end)
    with pytest.raises(AssertionError, match="a step begins or ends at 7, inside"):
        simulated(config(max_num_batched_tokens=7)).run([asked("a", 5, ("image", 1), 4)])
