"""Prefix caching in the scheduler: what is taken, registered, counted and given back, without any device."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fabrication import prompt_of, request, text
from hypothesis import event, given, settings
from hypothesis import strategies as st
from prefix_simulation import NARROW_VL, PrefixSimulation, output_token

from runner.block_hashes import BlockHashes
from runner.config import RunnerConfig
from runner.core import FinishReason, Prompt, Request, RequestStatus, SuppliedRows
from runner.prefix_cache import PrefixCache

BASE = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=32,
    max_model_len=96,
    block_size=4,
    num_blocks=64,
    num_encoder_slots=4,
    max_images_per_step=4,
    prefix_caching=True,
)
Piece = int | tuple[str, int]


def config(**sizes: Any) -> RunnerConfig:
    return replace(BASE, **sizes)


def ids_request(name: str, ids: Sequence[int], max_tokens: int = 4) -> Request:
    return request(name, Prompt(tuple(ids)), max_tokens)


def text_ids(count: int, seed: int = 1) -> tuple[int, ...]:
    return text(NARROW_VL, count, seed)


def rows_of(count: int, seed: int) -> bytes:
    draw = random.Random(seed)
    return struct.pack(
        f"<{count * NARROW_VL.hidden_size}f", *(draw.random() for _ in range(count * NARROW_VL.hidden_size))
    )


def admissions(simulation: PrefixSimulation) -> dict[str, int]:
    return dict(simulation.admissions)


# ---- hits


def test_the_second_of_two_equal_prompts_takes_all_full_blocks_of_the_first() -> None:
    simulation = PrefixSimulation(BASE)
    prompt = text_ids(14)
    simulation.run([ids_request("a", prompt)])
    simulation.run([ids_request("b", prompt)])
    assert simulation.admissions == [("a", 0), ("b", 12)]
    assert [simulation.state(name).num_cached for name in "ab"] == [0, 12]
    assert simulation.state("a").output_ids == simulation.state("b").output_ids
    simulation.check_finished()


@pytest.mark.parametrize(("length", "taken"), [(4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (3, 0), (1, 0)])
def test_a_hit_never_covers_the_whole_prompt(length: int, taken: int) -> None:
    """At least one position is computed, or there would be no logits to sample from."""
    simulation = PrefixSimulation(BASE)
    simulation.run([ids_request("a", text_ids(length))])
    simulation.run([ids_request("b", text_ids(length))])
    assert admissions(simulation)["b"] == taken
    simulation.check_finished()


def test_blocks_before_the_first_difference_are_shared() -> None:
    simulation = PrefixSimulation(BASE)
    prompt = text_ids(20)
    simulation.run([ids_request("a", prompt)])
    for place in range(20):
        changed = (*prompt[:place], prompt[place] ^ 1, *prompt[place + 1 :])
        simulation.run([ids_request(f"b{place}", changed, 1)])
        assert admissions(simulation)[f"b{place}"] == min(place, 19) // 4 * 4
    simulation.check_finished()


def test_nothing_is_taken_when_caching_is_off() -> None:
    simulation = PrefixSimulation(config(prefix_caching=False))
    prompt = text_ids(14)
    simulation.run([ids_request("a", prompt)])
    simulation.run([ids_request("b", prompt)])
    assert simulation.admissions == [("a", 0), ("b", 0)]
    assert simulation.scheduler.blocks.num_registered == 0
    simulation.check_finished()


def test_how_tokens_are_chosen_does_not_matter() -> None:
    simulation = PrefixSimulation(BASE)
    made = ids_request("a", text_ids(14))
    simulation.run([made])
    sampling = replace(made.sampling, temperature=0.8, seed=9, presence_penalty=1.0, logprobs=3)
    simulation.run([replace(made, request_id="b", sampling=sampling)])
    assert admissions(simulation)["b"] == 12


def test_two_equal_prompts_of_one_step_share_their_blocks() -> None:
    """The second reads what the first writes in the same step, layer by layer."""
    simulation = PrefixSimulation(BASE)
    simulation.submit(ids_request("a", text_ids(14)), ids_request("b", text_ids(14)))
    simulation.step()
    assert [(row.request_id, row.first, row.num_tokens) for row in simulation.last.rows] == [
        ("a", 0, 14),
        ("b", 12, 2),
    ]
    assert simulation.state("a").block_ids[:3] == simulation.state("b").block_ids[:3]
    simulation.run()
    simulation.check_finished()


def test_a_prompt_computed_in_chunks_is_shared_as_far_as_it_is_planned() -> None:
    simulation = PrefixSimulation(config(max_num_batched_tokens=10))
    simulation.submit(ids_request("a", text_ids(25)))
    simulation.step()  # positions 0 to 9: two full blocks
    simulation.submit(ids_request("b", text_ids(25)))
    simulation.step()  # a: 10 to 19, all of the budget
    simulation.step()  # a: the rest, which leaves half the budget; by now six blocks of it are full
    assert admissions(simulation)["b"] == 24
    simulation.run()
    simulation.check_finished()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_output", range(1, 10))
def test_the_next_turn_takes_the_blocks_of_the_last_answer(num_output: int, depth: int) -> None:
    """All but the last token, which is never computed; sync and async alike."""
    simulation = PrefixSimulation(BASE, depth)
    simulation.run([ids_request("a", text_ids(10), num_output)])
    answer = simulation.state("a").output_ids
    simulation.run([ids_request("b", (*text_ids(10), *answer, *text_ids(6, seed=9)))])
    assert admissions(simulation)["b"] == (10 + num_output - 1) // 4 * 4
    simulation.check_finished()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_token_in_flight_is_in_no_registered_block(depth: int) -> None:
    simulation = PrefixSimulation(BASE, depth)
    simulation.submit(ids_request("a", text_ids(7), 9))
    while simulation.scheduler.has_work:
        simulation.step()
        state = simulation.state("a")
        assert simulation.scheduler.blocks.num_registered <= state.num_tokens // 4


# ---- what is registered


def test_an_admission_that_comes_to_nothing_registers_and_takes_nothing() -> None:
    """A cached request that finds too few blocks waits; what it would take stays as it was."""
    simulation = PrefixSimulation(config(num_blocks=8))
    simulation.run([ids_request("a", text_ids(17), 1)])
    simulation.submit(ids_request("b", text_ids(18, seed=2), 2))
    simulation.step()
    # "b" took five blocks, one of the four known of "a" among them; the three left are all that is free.
    pool = simulation.scheduler.blocks
    queue, known = list(pool._free), dict(pool._block_of)
    assert (len(queue), len(known)) == (3, 7)
    (waiting,) = simulation.submit(ids_request("c", text_ids(17), 1))
    assert simulation.scheduler.prefix_cache.find(waiting) == queue[::-1]
    plan = simulation.scheduler.plan()
    assert plan is not None
    assert [row.request_id for row in plan.rows] == ["b"]
    assert (waiting.status, waiting.num_computed, waiting.block_ids) == (RequestStatus.WAITING, 0, [])
    assert (list(pool._free), pool._block_of) == (queue, known)


def test_blocks_taken_and_blocks_needed_are_counted_together() -> None:
    """Free blocks of its own beginning are not room for the rest of it."""
    simulation = PrefixSimulation(config(num_blocks=5))
    simulation.run([ids_request("a", text_ids(12), 1)])
    simulation.submit(ids_request("x", text_ids(4, seed=7), 2))
    simulation.step()  # holds one of the two blocks that hold nothing known
    assert simulation.scheduler.blocks.num_free == 4
    simulation.submit(ids_request("b", text_ids(18), 1))  # three cached, two more needed, four free
    simulation.step()
    assert [row.request_id for row in simulation.last.rows] == ["x"]
    simulation.run()
    simulation.check_finished()


def test_content_is_forgotten_only_when_its_block_is_wanted() -> None:
    simulation = PrefixSimulation(config(num_blocks=8))
    simulation.run([ids_request("a", text_ids(16, seed=1), 1)])
    simulation.run([ids_request("b", text_ids(16, seed=2), 1)])
    assert simulation.scheduler.blocks.num_registered == 8
    simulation.run([ids_request("c", text_ids(8, seed=3), 1)])  # the two oldest: the end of "a"
    simulation.run([ids_request("a2", text_ids(16, seed=1), 1)])
    assert admissions(simulation)["a2"] == 8
    simulation.check_finished()


def test_a_fresh_scheduler_has_a_fresh_cache() -> None:
    for _ in range(2):
        simulation = PrefixSimulation(BASE)
        simulation.run([ids_request("a", text_ids(14))])
        assert simulation.admissions == [("a", 0)]


def test_hashes_of_ended_requests_are_not_kept() -> None:
    simulation = PrefixSimulation(BASE)
    simulation.submit(*(ids_request(name, text_ids(14)) for name in "abcdef"))
    simulation.abort("f")
    simulation.scheduler.hash_waiting()
    simulation.step()
    simulation.abort("b")
    simulation.run()
    cache = simulation.scheduler.prefix_cache
    assert (cache._hashes, cache._num_registered, cache._unhashed) == ({}, {}, [])


def test_each_prompt_is_hashed_once_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    parts = BlockHashes._parts

    def watch(hashes: BlockHashes, first: int, end: int) -> Any:
        hashed.append(first)
        return parts(hashes, first, end)

    monkeypatch.setattr(BlockHashes, "_parts", watch)
    simulation = PrefixSimulation(config(max_num_seqs=1))
    simulation.submit(ids_request("a", text_ids(16), 2), ids_request("b", text_ids(20), 2))
    simulation.scheduler.hash_waiting()
    assert sorted(hashed) == [0, 0, 4, 4, 8, 8, 12, 12, 16]
    simulation.scheduler.hash_waiting()
    simulation.run()
    assert len(hashed) == 9, "the outputs fill no further block"


# ---- preemption


def contended(depth: int = 1) -> PrefixSimulation:
    """Two requests that outgrow nine blocks together; there is no slot for a third."""
    simulation = PrefixSimulation(config(num_blocks=9, max_num_seqs=2), depth)
    simulation.submit(ids_request("a", text_ids(8), 20), ids_request("b", text_ids(8, seed=2), 20))
    return simulation


@pytest.mark.parametrize("depth", [1, 2])
def test_a_resumed_request_takes_what_is_left_of_its_own_blocks(depth: int) -> None:
    simulation = contended(depth)
    simulation.run()
    (state,) = [state for state in simulation.scheduler.requests.values() if state.num_preemptions]
    first, second = [first for name, first in simulation.admissions if name == state.request_id]
    assert first == 0
    assert second > 0, "nothing of it was left"
    assert state.num_cached == 0, "it computed those positions itself"
    assert 0 <= state.num_recomputed < 17
    simulation.check_finished()


def test_without_the_cache_all_of_it_is_computed_again() -> None:
    """The same traffic, so that the test above is about the cache."""
    simulation = PrefixSimulation(config(num_blocks=9, max_num_seqs=2, prefix_caching=False))
    simulation.run([ids_request("a", text_ids(8), 20), ids_request("b", text_ids(8, seed=2), 20)])
    (state,) = [state for state in simulation.scheduler.requests.values() if state.num_preemptions]
    assert state.num_recomputed >= 16


def test_what_another_computed_meanwhile_counts_as_cached_not_as_less_than_nothing() -> None:
    """Preempted after 8 positions, resumed when 24 of them are known through a longer request."""
    simulation = PrefixSimulation(config(num_blocks=16, max_num_batched_tokens=8))
    (state,) = simulation.submit(ids_request("b", text_ids(30), 2))
    simulation.step()
    simulation.scheduler._preempt(state)
    simulation._check()
    simulation.scheduler._waiting.remove(state)
    simulation.run([ids_request("a", text_ids(25), 1)])
    simulation.scheduler._waiting.append(state)
    simulation.run()
    assert [first for name, first in simulation.admissions if name == "b"] == [0, 24]
    assert (state.num_recomputed, state.num_cached) == (0, 16)
    simulation.check_finished()


@pytest.mark.parametrize("depth", [1, 2])
def test_cached_and_recomputed_positions_are_told_apart_when_both_happen(depth: int) -> None:
    simulation = PrefixSimulation(config(num_blocks=11, max_num_seqs=2), depth)
    simulation.run([ids_request("first", text_ids(9), 1)])
    simulation.run([ids_request(name, text_ids(9), 24) for name in "ab"])
    assert [simulation.state(name).num_cached for name in "ab"] == [8, 8]
    assert sum(simulation.state(name).num_preemptions for name in "ab") > 0
    simulation.check_finished()


# ---- aborts and ends while steps are in flight


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("at", range(1, 5))
def test_blocks_of_a_request_aborted_in_flight_are_still_good_for_others(at: int, depth: int) -> None:
    simulation = PrefixSimulation(config(max_num_batched_tokens=8), depth)
    simulation.submit(ids_request("a", text_ids(20), 6))
    for _ in range(at):
        simulation.step()
    simulation.abort("a")
    simulation.run([ids_request("b", text_ids(24), 6)])
    assert admissions(simulation)["b"] == min(at * 8, 20)
    simulation.check_finished()


def test_eos_with_the_next_step_in_flight_leaves_only_known_content() -> None:
    """The step in flight computes the EOS itself, into a block that is given to the next request at once."""
    eos = NARROW_VL.eos_token_id
    for num_output in range(1, 9):
        simulation = PrefixSimulation(
            config(num_blocks=5),
            depth=2,
            token_of=lambda prompt, i, n=num_output: eos if i == n - 1 else output_token(prompt, i),
        )
        made = replace(
            ids_request("a", text_ids(8), 10),
            sampling=replace(ids_request("a", text_ids(8)).sampling, max_tokens=10, ignore_eos=False),
        )
        simulation.submit(made)
        while not simulation.state("a").is_finished:
            simulation.step()
        state = simulation.state("a")
        assert (state.finish_reason, len(state.output_ids)) == (FinishReason.EOS, num_output)
        # In flight still; every block there is goes to "b".
        simulation.run([ids_request("b", (*text_ids(8), *state.output_ids, 7, 8), 2)])
        assert simulation.state("a").num_wasted == 1
        simulation.check_finished()


# ---- images and supplied rows


def image_request(name: str, pieces: Sequence[Piece], seed: int = 1, max_tokens: int = 3) -> Request:
    return request(name, prompt_of(NARROW_VL, list(pieces), seed), max_tokens)


def test_an_image_inside_cached_blocks_is_not_encoded() -> None:
    simulation = PrefixSimulation(BASE)
    pieces = [3, ("image", 1), 8]  # the image's rows at 4, 5, 6
    simulation.run([image_request("a", pieces)])
    simulation.run([image_request("b", pieces)])
    assert admissions(simulation)["b"] == 12
    assert [encode.request_id for plan in simulation.plans for encode in plan.encodes] == ["a"]
    assert {splice.request_id for plan in simulation.plans for splice in plan.splices} == {"a"}
    simulation.check_finished()


def test_of_an_image_partly_in_cached_blocks_the_other_rows_are_spliced() -> None:
    simulation = PrefixSimulation(config(num_encoder_slots=1))
    head = [5, ("image", 1)]  # rows at 6, 7, 8: the second block ends within the image
    simulation.run([image_request("a", [*head, 4])])
    simulation.run([image_request("x", [("image", 2), 3])])  # takes the only slot
    prompt = prompt_of(NARROW_VL, [*head, 4], 1)
    changed = replace(prompt, token_ids=(*prompt.token_ids[:-1], 9))
    simulation.run([request("b", changed, 3)])
    simulation.check_finished()
    assert admissions(simulation)["b"] == 12
    short = PrefixSimulation(config(num_encoder_slots=1))
    short.run([image_request("a", head)])
    short.run([image_request("x", [("image", 2), 3])])
    short.run([image_request("b", head)])
    assert admissions(short)["b"] == 8
    assert [splice[2:] for splice in short.plans[-3].splices] == [(2, 0, 1)]
    assert sum(len(plan.encodes) for plan in short.plans) == 3
    short.check_finished()


def test_another_image_at_the_same_place_shares_only_what_comes_before_it() -> None:
    simulation = PrefixSimulation(BASE)
    simulation.run([image_request("a", [9, ("image", 1), 8])])
    simulation.run([image_request("b", [9, ("image", 2), 8])])
    assert admissions(simulation)["b"] == 8
    simulation.check_finished()


def test_a_cached_request_whose_next_image_finds_no_slot_waits_and_takes_nothing() -> None:
    simulation = PrefixSimulation(config(num_encoder_slots=1, max_num_batched_tokens=12))
    head = [3, ("image", 1)]  # rows at 4, 5, 6, the end id at 7
    simulation.run([image_request("a", [*head, 4], max_tokens=1)])
    vision = NARROW_VL.vision
    assert vision is not None
    bare = prompt_of(NARROW_VL, head, 1)
    second = prompt_of(NARROW_VL, [("image", 2)], 2)
    touching = Prompt((*bare.token_ids, *second.token_ids[1:]), (*bare.images, *second.images))
    simulation.submit(image_request("x", [9, ("image", 3), 2], seed=4))
    simulation.step()  # image 3 fills the slot and is cut by the budget: it is held for one step more
    simulation.submit(request("b", touching, 2))
    waiting = simulation.state("b")
    simulation.step()
    assert [(row.request_id, row.num_tokens) for row in simulation.last.rows] == [("x", 4)]
    assert (waiting.status, waiting.block_ids, waiting.num_computed) == (RequestStatus.WAITING, [], 0)
    simulation.run()
    assert admissions(simulation)["b"] == 8
    simulation.check_finished()


def spliced(num_rows: int, num_supplied: int, seed: int = 1) -> Prompt:
    """Ids with the first `num_supplied` positions supplied."""
    mask = bytes(position < num_supplied for position in range(num_rows))
    rows = SuppliedRows(rows_of(num_rows, seed), num_rows, NARROW_VL.hidden_size, mask=mask)
    return Prompt(text_ids(num_rows, seed), (), rows)


def test_a_request_whose_supplied_positions_are_all_cached_takes_no_place_in_the_arena() -> None:
    sizes = config(num_resident_rows=24)
    simulation = PrefixSimulation(sizes, keeps_rows_resident=True)
    simulation.run([request("a", spliced(18, 7), 2)])
    assert [item[0] for plan in simulation.plans for item in plan.residents] == ["a"]
    simulation.submit(request("b", spliced(18, 7), 6))
    simulation.step()
    assert (simulation.last.residents, simulation.state("b").resident_first) == ((), None)
    # A supplied position is left to compute: the rows are needed.
    simulation.submit(request("c", spliced(18, 17), 6))
    simulation.step()
    assert [item[0] for item in simulation.last.residents] == ["c"]
    simulation.run()
    simulation.check_finished()


def test_a_prompt_of_embeddings_is_cached_like_any_other() -> None:
    simulation = PrefixSimulation(BASE)
    rows = SuppliedRows(rows_of(14, 3), 14, NARROW_VL.hidden_size)
    simulation.run([request("a", Prompt((), embeds=rows), 4)])
    simulation.run([request("b", Prompt((), embeds=rows), 4)])
    changed = bytearray(rows.data)
    changed[9 * NARROW_VL.hidden_size * 4] ^= 1
    simulation.run([request("c", Prompt((), embeds=replace(rows, data=bytes(changed))), 4)])
    assert [admissions(simulation)[name] for name in "abc"] == [0, 12, 8]
    simulation.check_finished()


# ---- the simulation itself, and keys that leave something out


@pytest.mark.parametrize(
    ("part", "makes"),
    [
        ("_supplied", lambda i: spliced(14, 14, seed=i)),
        ("_supplied", lambda i: replace(spliced(14, 14), embeds=replace(
            spliced(14, 14).embeds, mask=bytes(p != i for p in range(14))))),
        ("_image", lambda i: prompt_of(NARROW_VL, [3, ("image", i), 9], 1)),
        ("_ids", lambda i: Prompt(text_ids(14, seed=i))),
    ],
    ids=["rows", "mask", "image", "ids"],
)  # fmt: skip
def test_a_key_without_its_content_gives_a_request_the_blocks_of_another(
    part: str, makes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request(f"r{i}", makes(i), 2) for i in (1, 2)]
    sound = PrefixSimulation(BASE)
    sound.run(requests[:1])
    sound.run(requests[1:])
    sound.check_finished()
    monkeypatch.setattr(BlockHashes, part, lambda *_arguments: iter(()))
    if part == "_supplied":
        monkeypatch.setattr(BlockHashes, "_ids", lambda *_arguments: iter(()))
    blind = PrefixSimulation(BASE)
    blind.run(requests[:1])
    with pytest.raises(AssertionError):
        blind.run(requests[1:])


def test_registering_positions_in_flight_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned, but of unknown value: the hash would be of a block that is not full of known tokens."""
    monkeypatch.setattr(
        PrefixCache,
        "register",
        lambda cache, state, _num_tokens, register=PrefixCache.register: register(
            cache, state, state.num_computed
        ),
    )
    simulation = PrefixSimulation(BASE, depth=2)
    with pytest.raises(AssertionError, match="in flight"):
        simulation.run([ids_request("a", text_ids(7), 9), ids_request("b", text_ids(7), 9)])


# ---- drawn at random


@st.composite
def traffic(
    draw: st.DrawFn,
) -> tuple[RunnerConfig, int, bool, list[tuple[int, Request]], dict[str, int], bool]:
    """Sizes, depth, arena or not, arrivals; when requests are aborted. Prompts begin alike, often."""
    block_size = draw(st.integers(1, 6))
    num_seqs = draw(st.integers(1, 4))
    arrivals: list[tuple[int, Request]] = []
    aborts: dict[str, int] = {}
    for index in range(draw(st.integers(2, 8))):
        name = f"r{index}"
        prompt = draw(prompts([made.prompt for _, made in arrivals]))
        made = request(name, prompt, draw(st.integers(1, 10)), ignore_eos=draw(st.booleans()))
        arrivals.append((draw(st.integers(0, 16)), made))
        if draw(st.integers(0, 5)) == 0:
            aborts[name] = draw(st.integers(0, 20))
    max_model_len = max(len(made.prompt) for _, made in arrivals) + draw(st.integers(1, 12))
    longest = max(min(len(made.prompt) + made.sampling.max_tokens, max_model_len) for _, made in arrivals)
    sizes = RunnerConfig(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_seqs + draw(st.integers(0, 20)),
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=-(-longest // block_size) + draw(st.integers(0, 8)),
        num_encoder_slots=draw(st.integers(1, 3)),
        max_images_per_step=draw(st.integers(1, 3)),
        max_encoder_tokens_per_step=draw(st.integers(3, 8)),
        num_resident_rows=max_model_len + draw(st.integers(0, 20)),
        prefix_caching=True,
    )
    return sizes, draw(st.integers(1, 2)), draw(st.booleans()), arrivals, aborts, draw(st.booleans())


@st.composite
def prompts(draw: st.DrawFn, earlier: list[Prompt]) -> Prompt:
    """Of a few pieces in a few orders; or an earlier prompt again, or with its answer and more behind it."""
    if earlier and draw(st.booleans()):
        prompt = draw(st.sampled_from(earlier))
        if prompt.embeds is not None or draw(st.booleans()):
            return prompt
        answer = tuple(output_token(prompt, i) for i in range(draw(st.integers(0, 6))))
        return replace(prompt, token_ids=(*prompt.token_ids, *answer, *text_ids(draw(st.integers(1, 4)))))
    pieces = draw(
        st.lists(
            st.one_of(st.sampled_from((2, 5, 9)), st.tuples(st.just("image"), st.integers(0, 2))),
            min_size=1,
            max_size=4,
        )
    )
    prompt = prompt_of(NARROW_VL, pieces, seed=draw(st.integers(1, 2)))
    if draw(st.booleans()):
        return prompt
    if not prompt.images and draw(st.booleans()):
        return Prompt((), embeds=SuppliedRows(rows_of(len(prompt), 5), len(prompt), NARROW_VL.hidden_size))
    image_id = NARROW_VL.vision.image_token_id if NARROW_VL.vision else None
    among = random.Random(draw(st.integers(0, 3)))
    mask = bytes(token != image_id and among.random() < 0.5 for token in prompt.token_ids)
    rows = SuppliedRows(rows_of(len(prompt), 5), len(prompt), NARROW_VL.hidden_size, mask=mask)
    return replace(prompt, embeds=rows)


@settings(max_examples=400)
@given(made=traffic())
def test_any_traffic_reads_only_its_own_content_and_accounts_for_every_position(made: Any) -> None:
    sizes, depth, keeps_rows_resident, arrivals, aborts, ends_early = made
    eos = NARROW_VL.eos_token_id

    def token_of(prompt: Prompt, index: int) -> int:
        ends = ends_early and index == len(prompt) % 5
        return eos if ends else output_token(prompt, index)

    simulation = PrefixSimulation(sizes, depth, keeps_rows_resident, token_of)
    for step in range(21):
        simulation.submit(*(request for when, request in arrivals if when == step))
        if step % 2:
            simulation.scheduler.hash_waiting()
        for name, when in aborts.items():
            if when == step and name in simulation.scheduler.requests:
                simulation.abort(name)
        simulation.step()
    simulation.run(max_steps=2000)
    simulation.check_finished()
    states = simulation.scheduler.requests.values()
    event(f"cached {sum(state.num_cached for state in states) > 0}")
    event(f"preempted {sum(state.num_preemptions for state in states) > 0}")
    event(f"wasted {sum(state.num_wasted for state in states) > 0}")
    resumed = [first for name, first in simulation.admissions if simulation.state(name).num_preemptions]
    event(f"resumed from cached blocks {any(resumed)}")
    # The same traffic without the cache gives the same tokens.
    if not aborts:
        plain = PrefixSimulation(replace(sizes, prefix_caching=False), 1, keeps_rows_resident, token_of)
        plain.run([request for _, request in arrivals])
        for state in states:
            assert plain.state(state.request_id).output_ids == state.output_ids
