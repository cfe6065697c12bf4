"""The scheduler without any device: the test plays the device and keeps its own books (simulation.py)."""

from __future__ import annotations

import dataclasses

import pytest
from fabrication import SMALL_VL, prompt_of, request, text_request
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Simulation, plain_token

from runner.config import RunnerConfig
from runner.core import FinishReason, Request, RequestStatus, StepPlan
from runner.encoder_slots import Holder
from runner.models import TINY_QWEN3

BASE = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=16,
    max_model_len=64,
    block_size=4,
    num_blocks=64,
    num_encoder_slots=4,
    max_images_per_step=4,
)


def config(**sizes: int) -> RunnerConfig:
    return dataclasses.replace(BASE, **sizes)


def asked(name: str, length: int, max_tokens: int = 4) -> Request:
    return text_request(SMALL_VL, name, length, max_tokens)


def rows(plan: StepPlan | None) -> list[tuple[str, int, int, bool]]:
    """(request, first, tokens, samples) of each row."""
    assert plan is not None
    return [(row.request_id, row.first, row.num_tokens, row.samples) for row in plan.rows]


# ---- the budget, chunks, order


def test_nothing_to_do_is_no_plan() -> None:
    simulation = Simulation(BASE)
    assert simulation.step() is None
    assert not simulation.scheduler.has_work


def test_a_prompt_that_fits_is_one_step_and_then_one_token_a_step() -> None:
    simulation = Simulation(BASE)
    simulation.run([asked("a", 10, max_tokens=3)])
    assert [rows(plan) for plan in simulation.plans] == [
        [("a", 0, 10, True)],
        [("a", 10, 1, True)],
        [("a", 11, 1, True)],
    ]
    assert simulation.state("a").finish_reason is FinishReason.MAX_TOKENS
    simulation.check_finished()


def test_a_prompt_longer_than_the_budget_is_cut_and_samples_only_at_its_end() -> None:
    simulation = Simulation(BASE)
    simulation.run([asked("a", 35, max_tokens=1)])
    assert [rows(plan) for plan in simulation.plans] == [
        [("a", 0, 16, False)],
        [("a", 16, 16, False)],
        [("a", 32, 3, True)],
    ]
    simulation.check_finished()


def test_one_token_of_output_is_one_step() -> None:
    simulation = Simulation(BASE)
    simulation.run([asked("a", 5, max_tokens=1)])
    assert len(simulation.plans) == 1
    assert simulation.outputs == [("a", plain_token("a", 0), True)]


def test_decodes_come_first_and_a_waiting_prompt_gets_what_is_left() -> None:
    simulation = Simulation(BASE)
    simulation.submit(asked("a", 4), asked("b", 4))
    simulation.step()
    simulation.submit(asked("c", 30))
    assert rows(simulation.step()) == [("a", 4, 1, True), ("b", 4, 1, True), ("c", 0, 14, False)]
    assert rows(simulation.step()) == [("a", 5, 1, True), ("b", 5, 1, True), ("c", 14, 14, False)]
    assert rows(simulation.step()) == [("a", 6, 1, True), ("b", 6, 1, True), ("c", 28, 2, True)]


def test_a_prefill_under_way_goes_before_waiting_requests() -> None:
    simulation = Simulation(BASE)
    simulation.submit(asked("a", 20), asked("b", 20))
    assert rows(simulation.step()) == [("a", 0, 16, False)]
    assert rows(simulation.step()) == [("a", 16, 4, True), ("b", 0, 12, False)]


def test_waiting_requests_are_served_in_order_of_arrival() -> None:
    simulation = Simulation(config(max_num_seqs=2))
    simulation.run([asked(name, 6, max_tokens=2) for name in "abcdef"])
    ended = [output.request_id for output in simulation.outputs if output.is_last]
    assert ended == sorted(ended)
    simulation.check_finished()


def test_a_long_prompt_at_the_head_of_the_queue_is_not_overtaken() -> None:
    simulation = Simulation(config(num_blocks=10, max_num_batched_tokens=64))
    simulation.submit(asked("a", 20, max_tokens=4))
    simulation.step()
    simulation.submit(asked("b", 30, max_tokens=2), asked("c", 2, max_tokens=2))
    assert rows(simulation.step()) == [("a", 20, 1, True)]


def test_no_more_requests_run_than_there_are_slots() -> None:
    simulation = Simulation(config(max_num_seqs=2))
    simulation.submit(*(asked(name, 2) for name in "abcde"))
    plan = simulation.step()
    assert [row.request_id for row in plan.rows] == ["a", "b"]
    assert plan.num_waiting == 3
    statuses = [state.status for state in simulation.scheduler.requests.values()]
    assert statuses.count(RequestStatus.RUNNING) == 2


def test_a_slot_is_given_to_the_next_in_the_queue_as_soon_as_it_is_free() -> None:
    simulation = Simulation(config(max_num_seqs=1))
    simulation.submit(asked("a", 2, max_tokens=1), asked("b", 2, max_tokens=1))
    first, second = simulation.step(), simulation.step()
    assert [row.request_id for row in (*first.rows, *second.rows)] == ["a", "b"]
    assert first.rows[0].slot == second.rows[0].slot


def test_a_request_keeps_its_slot_while_it_runs() -> None:
    simulation = Simulation(BASE)
    simulation.run([asked(name, 9, max_tokens=index + 1) for index, name in enumerate("abcd")])
    for name in "abcd":
        slots = {row.slot for plan in simulation.plans for row in plan.rows if row.request_id == name}
        assert len(slots) == 1


def test_a_request_id_may_not_be_used_twice() -> None:
    simulation = Simulation(BASE)
    simulation.submit(asked("a", 4))
    with pytest.raises(AssertionError, match="used twice"):
        simulation.submit(asked("a", 4))


def test_blocks_are_taken_only_as_they_are_needed() -> None:
    simulation = Simulation(BASE)
    simulation.submit(asked("a", 7, max_tokens=6))
    held = []
    while simulation.step() is not None:
        held.append(len(simulation.state("a").block_ids))
    # 7 tokens in 2 blocks of 4; position 8 opens the third; nothing is left at the end.
    assert held == [2, 2, 3, 3, 3, 0]


# ---- leaving


def eos_at(index: int) -> Simulation:
    """A device that answers EOS as the output token of that index."""
    eos = SMALL_VL.eos_token_id
    return Simulation(BASE, token_of=lambda name, i: eos if i == index else plain_token(name, i))


@pytest.mark.parametrize("index", [0, 2])
def test_eos_ends_a_request(index: int) -> None:
    simulation = eos_at(index)
    simulation.run([request("a", prompt_of(SMALL_VL, [5], 1), 9, ignore_eos=False)])
    state = simulation.state("a")
    assert state.finish_reason is FinishReason.EOS
    assert len(state.output_ids) == index + 1
    assert state.output_ids[-1] == SMALL_VL.eos_token_id
    simulation.check_finished()


def test_eos_is_a_token_like_any_other_where_it_is_ignored() -> None:
    simulation = eos_at(2)
    simulation.run([request("a", prompt_of(SMALL_VL, [5], 1), 9, ignore_eos=True)])
    assert simulation.state("a").finish_reason is FinishReason.MAX_TOKENS
    assert len(simulation.state("a").output_ids) == 9
    simulation.check_finished()


def test_eos_in_the_prompt_ends_nothing() -> None:
    simulation = Simulation(BASE)
    prompt = dataclasses.replace(prompt_of(SMALL_VL, [5], 1), token_ids=(5, SMALL_VL.eos_token_id, 6))
    simulation.run([request("a", prompt, 3, ignore_eos=False)])
    assert simulation.state("a").finish_reason is FinishReason.MAX_TOKENS


def test_eos_as_the_last_token_allowed_is_reported_as_eos() -> None:
    simulation = eos_at(3)
    simulation.run([request("a", prompt_of(SMALL_VL, [5], 1), 4, ignore_eos=False)])
    assert simulation.state("a").finish_reason is FinishReason.EOS


def test_the_models_length_ends_a_request_and_costs_no_extra_step() -> None:
    simulation = Simulation(config(max_model_len=12, max_num_seqs=2))
    simulation.run([asked("a", 9, max_tokens=50)])
    state = simulation.state("a")
    assert state.finish_reason is FinishReason.MODEL_LENGTH
    assert state.num_tokens == 12
    assert len(simulation.plans) == 3
    simulation.check_finished()


def test_max_tokens_at_the_models_length_is_reported_as_max_tokens() -> None:
    simulation = Simulation(config(max_model_len=12))
    simulation.run([asked("a", 9, max_tokens=3)])
    assert simulation.state("a").finish_reason is FinishReason.MAX_TOKENS


# ---- abort


def test_a_waiting_request_is_aborted() -> None:
    simulation = Simulation(config(max_num_seqs=1))
    simulation.submit(asked("a", 4), asked("b", 4), asked("c", 4))
    simulation.step()
    simulation.scheduler.abort("b")
    simulation.run()
    assert simulation.state("b").finish_reason is FinishReason.ABORTED
    assert simulation.written["b"] == 0
    assert [len(simulation.state(name).output_ids) for name in "abc"] == [4, 0, 4]


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_a_running_request_is_aborted_and_gives_everything_back(num_steps: int) -> None:
    simulation = Simulation(BASE)
    prompt = prompt_of(SMALL_VL, [10, ("image", 1), 10], 1)
    simulation.submit(request("a", prompt, 9), asked("b", 4, max_tokens=2))
    for _ in range(num_steps):
        simulation.step()
    assert simulation.state("a").status is RequestStatus.RUNNING
    tokens = list(simulation.state("a").output_ids)
    simulation.scheduler.abort("a")
    simulation.scheduler.check()
    simulation.run()
    state = simulation.state("a")
    assert state.finish_reason is FinishReason.ABORTED
    assert state.output_ids == tokens
    assert simulation.scheduler.blocks.num_free == BASE.num_blocks
    assert len(simulation.state("b").output_ids) == 2


def test_a_preempted_request_is_aborted() -> None:
    simulation = preempting()
    while simulation.state("b").status is not RequestStatus.PREEMPTED:
        simulation.step()
    simulation.scheduler.abort("b")
    simulation.scheduler.check()
    simulation.run()
    assert simulation.state("b").finish_reason is FinishReason.ABORTED
    assert len(simulation.state("a").output_ids) == 20


def test_a_token_of_a_request_aborted_while_its_step_ran_is_ignored() -> None:
    simulation = Simulation(BASE)
    simulation.submit(asked("a", 4), asked("b", 4))
    plan = simulation.plan()
    assert plan is not None
    simulation.scheduler.abort("a")
    outputs = simulation.retire(plan)
    assert [output.request_id for output in outputs] == ["b"]
    assert simulation.state("a").output_ids == []
    simulation.run()
    assert len(simulation.state("b").output_ids) == 4


def test_aborting_a_finished_request_changes_nothing() -> None:
    simulation = Simulation(BASE)
    simulation.run([asked("a", 4)])
    simulation.scheduler.abort("a")
    assert simulation.state("a").finish_reason is FinishReason.MAX_TOKENS
    simulation.scheduler.check()


# ---- preemption


def preempting(budget: int = 16) -> Simulation:
    """Two requests that outgrow eight blocks of four positions together; there is no slot for a third."""
    simulation = Simulation(config(num_blocks=8, max_num_seqs=2, max_num_batched_tokens=budget))
    simulation.submit(asked("a", 8, max_tokens=20), asked("b", 8, max_tokens=20))
    return simulation


def test_the_later_request_is_preempted_and_computed_again_from_its_first_position() -> None:
    simulation = preempting()
    simulation.run()
    assert simulation.state("a").num_preemptions == 0
    later = simulation.state("b")
    assert later.num_preemptions == 1
    # Both hold four full blocks when the 17th position of the first needs a fifth.
    assert later.num_recomputed == 16
    resumed = [row for plan in simulation.plans for row in plan.rows if row.request_id == "b"]
    again = next(row for row in resumed[1:] if row.first == 0)
    assert again.num_tokens == 16
    simulation.check_finished()


def test_a_preemption_is_counted_in_its_step_and_nothing_is_admitted_with_it() -> None:
    """Not the victim either, though a chunk of it would fit: a step in which it rests takes its row away."""
    simulation = preempting(budget=8)
    simulation.submit(asked("c", 1, max_tokens=1))
    while simulation.state("b").num_preemptions == 0:
        plan = simulation.step()
    assert plan.num_preempted == 1
    assert [row.request_id for row in plan.rows] == ["a"]
    assert sum(plan.num_preempted for plan in simulation.plans) == 1


def test_the_latest_is_the_first_victim_and_the_earliest_is_resumed_first() -> None:
    simulation = Simulation(config(num_blocks=12, max_num_batched_tokens=32))
    simulation.run([asked(name, 8, max_tokens=24) for name in "abc"])
    preempted = [simulation.state(name).num_preemptions for name in "abc"]
    assert preempted[0] == 0
    assert 1 <= preempted[1] <= preempted[2]
    ended = [output.request_id for output in simulation.outputs if output.is_last]
    assert ended == ["a", "b", "c"]
    simulation.check_finished()


def test_two_victims_of_one_step_are_resumed_in_their_old_order() -> None:
    """Images without a slot stop `a` and `b` early, so that three prefills are under way at once."""
    simulation = Simulation(config(num_blocks=7, num_encoder_slots=1, max_num_batched_tokens=14))
    pieces = [2, ("image", 1), ("image", 2), 10]
    simulation.submit(request("a", prompt_of(SMALL_VL, pieces, 1), 1))
    simulation.submit(request("b", prompt_of(SMALL_VL, [1, ("image", 3), 3], 2), 1), asked("c", 12))
    assert rows(simulation.step()) == [("a", 0, 8, False), ("b", 0, 2, False), ("c", 0, 4, False)]
    second = simulation.step()
    assert rows(second) == [("a", 8, 14, True)]
    assert second.num_preempted == 2
    assert [row[0] for row in rows(simulation.step())] == ["b", "c"]
    simulation.run()
    simulation.check_finished()


def test_a_preempted_request_goes_before_those_that_never_ran() -> None:
    simulation = preempting()
    simulation.submit(asked("c", 8, max_tokens=2))
    simulation.run()
    order = [row.request_id for plan in simulation.plans for row in plan.rows if row.first == 0]
    assert order == ["a", "b", "b", "c"]


def test_a_pool_as_small_as_the_largest_request_still_serves_all() -> None:
    sizes = config(num_blocks=7, max_num_seqs=4)
    simulation = Simulation(sizes)
    simulation.run([asked(name, 8, max_tokens=20) for name in "abcd"])
    assert sum(state.num_preemptions for state in simulation.scheduler.requests.values()) > 0
    simulation.check_finished()


# ---- images


def images_of(*seeds: int) -> list[int | tuple[str, int]]:
    return [piece for seed in seeds for piece in (("image", seed),)]


def test_an_image_is_encoded_in_the_step_that_computes_its_first_row() -> None:
    simulation = Simulation(config(max_num_batched_tokens=8))
    simulation.run([request("a", prompt_of(SMALL_VL, [10, ("image", 1), 4], 1), 2)])
    assert [len(plan.encodes) for plan in simulation.plans] == [0, 1, 0, 0]


def test_an_image_is_cut_where_the_budget_ends_and_is_encoded_once() -> None:
    simulation = Simulation(config(max_num_batched_tokens=4))
    # Placeholders at 3, 4, 5 behind two text ids and the begin id: the first chunk ends after one of them.
    simulation.run([request("a", prompt_of(SMALL_VL, [2, ("image", 1), 3], 1), 2)])
    splices = [splice[2:] for plan in simulation.plans for splice in plan.splices]
    assert splices == [(0, 3, 1), (1, 0, 2)]
    assert sum(len(plan.encodes) for plan in simulation.plans) == 1
    simulation.check_finished()


def test_a_chunk_is_cut_before_an_image_that_has_no_slot() -> None:
    simulation = Simulation(config(num_encoder_slots=1))
    simulation.run([request("a", prompt_of(SMALL_VL, [2, *images_of(1, 2)], 1), 2)])
    # Image 1 at positions 3-5, image 2 at 8-10.
    assert rows(simulation.plans[0]) == [("a", 0, 8, False)]
    assert rows(simulation.plans[1])[0][1] == 8
    simulation.check_finished()


def test_a_request_whose_first_image_has_no_slot_waits_and_holds_nothing() -> None:
    simulation = Simulation(config(num_encoder_slots=1, max_num_batched_tokens=8))
    vision = SMALL_VL.vision
    simulation.submit(request("a", prompt_of(SMALL_VL, [5, ("image", 1)], 1), 1))
    simulation.submit(request("b", prompt_of(SMALL_VL, [("image", 2)], 1), 1))
    prompt = simulation.state("b").request.prompt
    assert prompt.token_ids[0] == vision.begin_token_id
    first = simulation.step()  # all of a's budget: two of three image rows
    assert rows(first) == [("a", 0, 8, False)]
    second = simulation.step()
    assert rows(second) == [("a", 8, 2, True), ("b", 0, 1, False)]
    simulation.run()
    simulation.check_finished()


def test_a_request_that_starts_with_an_image_without_slot_is_not_admitted() -> None:
    simulation = Simulation(config(num_encoder_slots=1, max_num_batched_tokens=6))
    simulation.submit(request("a", prompt_of(SMALL_VL, [4, ("image", 1)], 1), 1))
    placeholders = SMALL_VL.vision.placeholder_ids()[1:]
    bare = dataclasses.replace(prompt_of(SMALL_VL, [("image", 2)], 1), token_ids=placeholders)
    simulation.submit(request("b", bare, 1))
    assert rows(simulation.step()) == [("a", 0, 6, False)]
    assert rows(simulation.step()) == [("a", 6, 3, True)]
    assert simulation.state("b").block_ids == []
    simulation.run()
    simulation.check_finished()


def test_no_more_images_are_encoded_in_a_step_than_allowed() -> None:
    simulation = Simulation(config(max_images_per_step=1, max_num_batched_tokens=64))
    simulation.run([request("a", prompt_of(SMALL_VL, images_of(1, 2, 3), 1), 1)])
    assert [len(plan.encodes) for plan in simulation.plans] == [1, 1, 1]
    simulation.check_finished()


def test_an_image_shared_by_two_requests_is_encoded_once() -> None:
    simulation = Simulation(config(max_num_batched_tokens=64))
    pieces = [3, *images_of(1, 2, 1)]
    simulation.run([request(name, prompt_of(SMALL_VL, pieces, seed), 2) for seed, name in enumerate("ab")])
    assert sum(len(plan.encodes) for plan in simulation.plans) == 2
    simulation.check_finished()


def test_an_image_is_let_go_when_its_last_row_is_computed_not_when_its_request_ends() -> None:
    simulation = Simulation(config(num_encoder_slots=1, max_num_batched_tokens=64))
    simulation.submit(request("a", prompt_of(SMALL_VL, [("image", 1)], 1), 20))
    simulation.step()
    simulation.submit(request("b", prompt_of(SMALL_VL, [("image", 2)], 1), 2))
    plan = simulation.step()
    assert [row.request_id for row in plan.rows] == ["a", "b"]
    assert len(plan.encodes) == 1


def test_an_image_is_held_until_the_step_of_its_last_row_is_retired() -> None:
    simulation = Simulation(config(num_encoder_slots=1, max_num_batched_tokens=64))
    simulation.submit(request("a", prompt_of(SMALL_VL, [("image", 1), 40], 1), 2))
    plan = simulation.plan()
    assert plan is not None
    holders = simulation.scheduler.encoder_slots
    assert holders.acquire(Holder("x", 0), "another key", may_encode=True) is None
    simulation.retire(plan)
    assert holders.acquire(Holder("x", 0), "another key", may_encode=True) is not None


@pytest.mark.parametrize("num_rows", [1, 2])
def test_an_image_cut_by_the_budget_is_held_until_its_last_row_is_computed(num_rows: int) -> None:
    """Three rows behind two text ids and the begin id; the first step computes some of them."""
    simulation = Simulation(config(num_encoder_slots=1, max_num_batched_tokens=3 + num_rows))
    simulation.submit(request("a", prompt_of(SMALL_VL, [2, ("image", 1), 20], 1), 2))
    simulation.step()
    slots = simulation.scheduler.encoder_slots
    assert slots.acquire(Holder("x", 0), "another key", may_encode=True) is None
    simulation.step()
    assert slots.acquire(Holder("x", 0), "another key", may_encode=True) is not None


def test_a_request_aborted_in_the_middle_of_an_image_lets_go_of_it() -> None:
    simulation = Simulation(config(num_encoder_slots=1, max_num_batched_tokens=4))
    simulation.submit(request("a", prompt_of(SMALL_VL, [2, ("image", 1), 20], 1), 2))
    simulation.step()
    simulation.scheduler.abort("a")
    simulation.scheduler.check()
    slots = simulation.scheduler.encoder_slots
    assert slots.acquire(Holder("x", 0), "another key", may_encode=True) is not None


def test_a_preempted_request_gets_its_images_again() -> None:
    simulation = Simulation(config(num_blocks=8, num_encoder_slots=1))
    simulation.submit(asked("a", 8, max_tokens=20))
    simulation.submit(request("b", prompt_of(SMALL_VL, [2, ("image", 1), 1], 1), 20))
    simulation.run()
    assert simulation.state("b").num_preemptions > 0
    simulation.check_finished()


# ---- drawn at random

PIECES = st.lists(
    st.one_of(st.integers(1, 12), st.tuples(st.just("image"), st.integers(0, 3))), min_size=1, max_size=4
)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[RunnerConfig, list[tuple[int, Request]], dict[str, int], set[str]]:
    """Sizes; requests with the step they arrive in; where EOS comes, by request; who is aborted."""
    block_size = draw(st.integers(1, 6))
    num_seqs = draw(st.integers(1, 4))
    arrivals, eos_index, aborted = [], {}, set()
    for index in range(draw(st.integers(1, 6))):
        name = f"r{index}"
        prompt = prompt_of(SMALL_VL, draw(PIECES), index)
        ignore_eos = draw(st.booleans())
        made = request(name, prompt, draw(st.integers(1, 10)), ignore_eos)
        arrivals.append((draw(st.integers(0, 8)), made))
        if draw(st.booleans()):
            eos_index[name] = draw(st.integers(0, 9))
        if draw(st.integers(0, 5)) == 0:
            aborted.add(name)
    max_model_len = max(len(made.prompt) for _, made in arrivals) + draw(st.integers(1, 12))
    longest = max(min(len(made.prompt) + made.sampling.max_tokens, max_model_len) for _, made in arrivals)
    sizes = RunnerConfig(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_seqs + draw(st.integers(0, 20)),
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=-(-longest // block_size) + draw(st.integers(0, 8)),
        num_encoder_slots=draw(st.integers(1, 3)),
        max_images_per_step=draw(st.integers(1, 2)),
    )
    return sizes, arrivals, eos_index, aborted


def expected_output(made: Request, sizes: RunnerConfig, eos_index: int | None) -> int:
    """How many tokens a request must give."""
    limits = [made.sampling.max_tokens, sizes.max_model_len - len(made.prompt)]
    if eos_index is not None and not made.sampling.ignore_eos:
        limits.append(eos_index + 1)
    return min(limits)


@settings(max_examples=150)
@given(workload=workloads(), abort_step=st.integers(0, 12))
def test_any_workload_is_served_whole_under_any_sizes(
    workload: tuple[RunnerConfig, list[tuple[int, Request]], dict[str, int], set[str]], abort_step: int
) -> None:
    sizes, arrivals, eos_index, aborted = workload
    eos = SMALL_VL.eos_token_id
    simulation = Simulation(
        sizes, token_of=lambda name, i: eos if eos_index.get(name) == i else plain_token(name, i)
    )
    for step in range(13):
        simulation.submit(*(made for when, made in arrivals if when == step))
        if step == abort_step:
            for name in aborted & set(simulation.scheduler.requests):
                simulation.scheduler.abort(name)
        simulation.step()
    simulation.run(max_steps=2000)
    for _, made in arrivals:
        state = simulation.state(made.request_id)
        expected = expected_output(made, sizes, eos_index.get(made.request_id))
        if state.finish_reason is FinishReason.ABORTED:
            assert made.request_id in aborted
            assert len(state.output_ids) <= expected
        else:
            assert len(state.output_ids) == expected
    if not aborted:
        simulation.check_finished()
    assert simulation.scheduler.blocks.num_free == sizes.num_blocks


def test_a_text_model_is_scheduled_the_same_way() -> None:
    simulation = Simulation(BASE, model=TINY_QWEN3)
    simulation.run([text_request(TINY_QWEN3, name, 20, 5) for name in "abc"])
    simulation.check_finished()
