"""The budget of encoder tokens a step, beside that of images; slots under pressure; images in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fabrication import image, prompt_of, request
from hypothesis import given, settings
from hypothesis import strategies as st
from prefix_simulation import NARROW_VL, PrefixSimulation

from runner.admission import admit
from runner.config import RunnerConfig
from runner.core import Prompt, Request, RequestError

assert NARROW_VL.vision is not None
ROWS = NARROW_VL.vision.rows_per_image
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


def images(name: str, *seeds: int, after: int = 1, max_tokens: int = 2) -> Request:
    pieces: list[Piece] = [*(("image", seed) for seed in seeds), after]
    return request(name, prompt_of(NARROW_VL, pieces, seed=sum(seeds)), max_tokens)


def encoded(simulation: PrefixSimulation) -> list[int]:
    """Rows encoded in each step."""
    return [len(plan.encodes) * ROWS for plan in simulation.plans]


@pytest.mark.parametrize(
    ("budget", "steps"),
    [(3, [3, 3, 3, 3]), (5, [3, 3, 3, 3]), (6, [6, 6]), (8, [6, 6]), (9, [9, 3]), (12, [12]), (99, [12])],
)
def test_no_more_rows_are_encoded_in_a_step_than_the_budget_has(budget: int, steps: list[int]) -> None:
    simulation = PrefixSimulation(config(max_encoder_tokens_per_step=budget))
    simulation.run([images("a", 1, 2, 3, 4, max_tokens=1)])
    assert encoded(simulation) == steps
    simulation.check_finished()


def test_the_budget_is_one_for_all_requests_of_a_step() -> None:
    simulation = PrefixSimulation(config(max_encoder_tokens_per_step=6))
    simulation.run([images("a", 1), images("b", 2), images("c", 3)])
    assert encoded(simulation)[:2] == [6, 3]
    assert [row.request_id for row in simulation.plans[0].rows] == ["a", "b", "c"]
    # "c" is computed up to its image and no further.
    assert simulation.plans[0].rows[2].num_tokens == 1
    simulation.check_finished()


def test_the_smaller_of_both_limits_holds() -> None:
    simulation = PrefixSimulation(config(max_encoder_tokens_per_step=99, max_images_per_step=1))
    simulation.run([images("a", 1, 2)])
    assert encoded(simulation)[:2] == [3, 3]


def test_an_image_that_is_here_takes_nothing_of_the_budget() -> None:
    simulation = PrefixSimulation(config(max_encoder_tokens_per_step=3))
    simulation.run([images("a", 1)])
    simulation.run([images("b", 1, 2, 1)])
    assert [row.num_tokens for row in simulation.plans[-2].rows] == [len(images("b", 1, 2, 1).prompt)]
    simulation.check_finished()


def test_an_image_larger_than_the_budget_is_refused_with_both_numbers_and_the_remedy() -> None:
    small = config(max_encoder_tokens_per_step=ROWS - 1)
    with pytest.raises(RequestError) as caught:
        admit(images("r", 1), NARROW_VL, small)
    message = str(caught.value)
    assert message.startswith("request r: ")
    assert f"{ROWS} encoder tokens" in message
    assert f"max_encoder_tokens_per_step is {ROWS - 1}" in message
    assert "raise it" in message
    admit(images("r", 1), NARROW_VL, config(max_encoder_tokens_per_step=ROWS))
    admit(request("t", Prompt((5, 6))), NARROW_VL, small)


# ---- slots under pressure


def test_the_images_used_longest_ago_make_room() -> None:
    simulation = PrefixSimulation(config(num_encoder_slots=2))
    for name, seed in (("a", 1), ("b", 2), ("c", 1), ("d", 3), ("e", 1), ("f", 2)):
        simulation.run([images(name, seed)])
    again = [encode.request_id for plan in simulation.plans for encode in plan.encodes]
    assert again == ["a", "b", "d", "f"]  # 3 takes the place of 2, since 1 was used after it
    simulation.check_finished()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [1, 2])
def test_an_images_rows_are_used_over_several_chunks_and_encoded_once(budget: int, depth: int) -> None:
    simulation = PrefixSimulation(
        config(num_encoder_slots=1, max_num_batched_tokens=budget, max_num_seqs=1), depth
    )
    simulation.run([images("a", 1, 2, 1, after=5)])
    assert sum(len(plan.encodes) for plan in simulation.plans) == 3, "one slot: each in its turn"
    assert all(splice.num_rows <= budget < ROWS for plan in simulation.plans for splice in plan.splices)
    simulation.check_finished()


@pytest.mark.parametrize("caching", [False, True])
def test_an_image_whose_slot_was_lost_with_a_preemption_is_encoded_again(caching: bool) -> None:
    """Preempted within its image; another image takes the only slot before it comes back."""
    simulation = PrefixSimulation(
        config(num_encoder_slots=1, max_num_batched_tokens=4, prefix_caching=caching)
    )
    (state,) = simulation.submit(images("a", 1, after=9))
    simulation.step()  # the begin id and three rows; the end of the image's block
    simulation.scheduler._preempt(state)
    simulation._check()
    simulation.scheduler._waiting.remove(state)
    simulation.run([images("b", 2)])
    simulation.scheduler._waiting.append(state)
    simulation.run()
    by = [encode.request_id for plan in simulation.plans for encode in plan.encodes]
    assert by == (["a", "b"] if caching else ["a", "b", "a"])
    simulation.check_finished()


def test_an_image_kept_in_its_slot_over_a_preemption_is_not_encoded_again() -> None:
    simulation = PrefixSimulation(config(num_encoder_slots=1, max_num_batched_tokens=4, block_size=8))
    (state,) = simulation.submit(images("a", 1, after=9))
    simulation.step()
    simulation.scheduler._preempt(state)
    simulation.run()
    assert sum(len(plan.encodes) for plan in simulation.plans) == 1
    simulation.check_finished()


def test_a_held_image_is_not_evicted_by_those_that_wait() -> None:
    simulation = PrefixSimulation(config(num_encoder_slots=1, max_num_batched_tokens=4))
    simulation.submit(images("a", 1, after=20))
    simulation.step()
    simulation.submit(images("b", 2), images("c", 3))
    simulation.run()
    assert [encode.request_id for plan in simulation.plans for encode in plan.encodes] == ["a", "b", "c"]
    simulation.check_finished()


@settings(max_examples=150)
@given(
    wanted=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=6),
    budget=st.integers(ROWS, 4 * ROWS),
    num_slots=st.integers(1, 3),
    per_step=st.integers(1, 4),
    num_tokens=st.integers(4, 40),
    depth=st.integers(1, 2),
    caching=st.booleans(),
)
def test_any_images_are_served_within_both_limits(
    wanted: Sequence[Sequence[int]],
    budget: int,
    num_slots: int,
    per_step: int,
    num_tokens: int,
    depth: int,
    caching: bool,
) -> None:
    """The simulation holds every step against the limits, and every spliced row against its image."""
    simulation = PrefixSimulation(
        config(
            max_encoder_tokens_per_step=budget,
            max_images_per_step=per_step,
            num_encoder_slots=num_slots,
            max_num_batched_tokens=num_tokens,
            prefix_caching=caching,
        ),
        depth,
    )
    simulation.run([images(f"r{i}", *seeds) for i, seeds in enumerate(wanted)])
    distinct = {image(seed, (2, 2, 3)).key for seeds in wanted for seed in seeds}
    assert {encode for plan in simulation.plans for encode in plan.encodes}
    assert sum(len(plan.encodes) for plan in simulation.plans) >= len(distinct)
    simulation.check_finished()
