"""InputBatch against a naive model: rows are those of the plan, and a request keeps its row if it can."""

from __future__ import annotations

from fabrication import request, text
from hypothesis import given
from hypothesis import strategies as st

from runner.config import RunnerConfig
from runner.core import Prompt, RequestState, ScheduledRow, StepPlan
from runner.inputs.batch import InputBatch
from runner.models import TINY_QWEN3

CONFIG = RunnerConfig(max_num_seqs=6, max_num_batched_tokens=64, max_model_len=40, block_size=4)


class World:
    """Requests as a scheduler would leave them, and one batch that follows them."""

    def __init__(self) -> None:
        self.batch = InputBatch(TINY_QWEN3, CONFIG)
        self.states: dict[str, RequestState] = {}
        self._step_id = 0
        self._next_block = 0

    def add(self, name: str, prompt_length: int = 5) -> RequestState:
        made = request(name, Prompt(text(TINY_QWEN3, prompt_length, sum(name.encode()))))
        self.states[name] = RequestState(request=made, spans=())
        return self.states[name]

    def grow(self, name: str, num_blocks: int) -> None:
        state = self.states[name]
        new = range(self._next_block, self._next_block + num_blocks)
        state.block_ids += list(new)
        self._next_block += num_blocks

    def replace_blocks(self, name: str, slot: int) -> None:
        """What a preemption and a resumption leave: other blocks, another slot."""
        state = self.states[name]
        count = len(state.block_ids)
        state.block_ids.clear()
        self.grow(name, count)
        state.slot = slot

    def update(self, *names: str) -> None:
        rows = []
        for name in names:
            state = self.states[name]
            slot = state.slot if state.slot is not None else sum(name.encode()) % 100
            rows.append(ScheduledRow(name, slot, state.num_tokens - 1, 1, True))
        before = dict(self.batch.row_of)
        self.batch.update(StepPlan(self._step_id, tuple(rows)), self.states)
        self._step_id += 1
        self.check(StepPlan(0, tuple(rows)), before)

    def check(self, plan: StepPlan, before: dict[str, int]) -> None:
        batch, names = self.batch, {row.request_id for row in plan.rows}
        assert batch.num_rows == len(names)
        assert set(batch.row_of) == set(batch.request_ids) == names
        assert all(batch.row_of[name] == row for row, name in enumerate(batch.request_ids))
        for name in names & set(before):
            # Only rows beyond the new end had to move.
            if before[name] < batch.num_rows:
                assert batch.row_of[name] == before[name], f"{name} was moved without need"
        for entry in plan.rows:
            self._check_row(entry)

    def _check_row(self, entry: ScheduledRow) -> None:
        batch, row = self.batch, self.batch.row_of[entry.request_id]
        state = self.states[entry.request_id]
        tokens = [*state.request.prompt.token_ids, *state.output_ids]
        assert batch.token_ids[row, : len(tokens)].tolist() == tokens
        assert batch.num_blocks[row] == len(state.block_ids)
        assert batch.block_table[row, : len(state.block_ids)].tolist() == state.block_ids
        assert (batch.first[row], batch.count[row]) == (entry.first, entry.num_tokens)
        assert batch.slots[row] == entry.slot


def test_rows_are_filled_in_the_order_of_the_plan() -> None:
    world = World()
    for name in "abc":
        world.add(name)
    world.update("a", "b", "c")
    assert world.batch.request_ids == ["a", "b", "c"]


def test_the_first_newcomer_takes_the_first_hole() -> None:
    world = World()
    for name in "abcdx":
        world.add(name)
    world.update("a", "b", "c", "d")
    world.update("a", "c", "d", "x")
    assert world.batch.request_ids == ["a", "x", "c", "d"]


def test_a_hole_nobody_takes_is_filled_with_the_last_row() -> None:
    world = World()
    for name in "abcd":
        world.add(name)
        world.grow(name, 2)
    world.update("a", "b", "c", "d")
    world.update("a", "c", "d")
    assert world.batch.request_ids == ["a", "d", "c"]


def test_a_hole_at_the_end_moves_nothing() -> None:
    world = World()
    for name in "abc":
        world.add(name)
    world.update("a", "b", "c")
    world.update("a", "b")
    assert world.batch.request_ids == ["a", "b"]


def test_all_rows_may_be_replaced_at_once() -> None:
    world = World()
    for name in "abcdef":
        world.add(name)
    world.update("a", "b", "c")
    world.update("d", "e")
    assert world.batch.request_ids == ["d", "e"]


def test_a_moved_row_goes_on_growing() -> None:
    world = World()
    for name in "abc":
        world.add(name)
        world.grow(name, 1)
    world.states["a"].output_ids += [70, 71, 72, 73]  # the row it moves to knew more
    world.update("a", "b", "c")
    world.states["c"].output_ids.append(77)
    world.grow("c", 2)
    world.update("b", "c")
    world.states["c"].output_ids.append(78)
    world.update("c", "b")
    assert world.batch.request_ids == ["c", "b"]


def test_a_shorter_request_in_a_used_row_sees_nothing_of_the_longer_one() -> None:
    world = World()
    world.add("a", prompt_length=20)
    world.grow("a", 5)
    world.update("a")
    world.add("b", prompt_length=3)
    world.grow("b", 1)
    world.update("b")
    world.states["b"].output_ids.append(9)
    world.update("b")


def test_a_request_that_comes_back_brings_its_new_blocks_slot_and_tokens() -> None:
    world = World()
    for name in "ab":
        world.add(name)
        world.grow(name, 3)
    world.states["b"].output_ids += [11, 12]
    world.update("a", "b")
    world.update("a")
    world.replace_blocks("b", slot=3)
    world.states["b"].output_ids.append(13)
    world.update("a", "b")


@given(st.data())
def test_any_history_of_joining_growing_resting_and_leaving_is_followed(data: st.DataObject) -> None:
    world = World()
    alive: list[str] = []
    for step in range(data.draw(st.integers(1, 10), label="steps")):
        for index in range(data.draw(st.integers(0, 3), label="new")):
            name = f"{step}-{index}"
            world.add(name, data.draw(st.integers(1, 10), label="prompt"))
            world.grow(name, data.draw(st.integers(1, 3), label="blocks"))
            alive.append(name)
        if not alive:
            continue
        chosen = data.draw(
            st.lists(st.sampled_from(alive), min_size=1, max_size=CONFIG.max_num_seqs, unique=True),
            label="scheduled",
        )
        world.update(*chosen)
        for name in chosen:
            if len(world.states[name].output_ids) < 20 and data.draw(st.booleans()):
                world.states[name].output_ids.append(data.draw(st.integers(3, 4000)))
            if len(world.states[name].block_ids) < 8:
                world.grow(name, data.draw(st.integers(0, 2)))
        for name in sorted(set(alive) - set(chosen)):
            world.replace_blocks(name, slot=step)
        leaving = data.draw(st.lists(st.sampled_from(alive), max_size=2, unique=True), label="leaving")
        alive = [name for name in alive if name not in leaving]
