"""A scheduler with a prefix cache, and a cache of keys and values that knows what each position truly holds.

A position's content is the whole of what the model was given up to it, taken from the prompt itself and not
from any hash. A plan's rows are written into their blocks, then every row's context is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fabrication import SMALL_VL
from simulation import check_splices

from runner.admission import admit
from runner.config import RunnerConfig
from runner.core import Prompt, Request, RequestState, RequestStatus, ScheduledRow, StepPlan, StepResult
from runner.models import ModelSpec
from runner.scheduler import Scheduler

# Rows of two values keep what a failing test prints short.
NARROW_VL = replace(SMALL_VL, name="narrow-vl", hidden_size=2)

Item = tuple[object, ...]
TokenOf = Callable[[Prompt, int], int]  # prompt, index of the output token


def output_token(prompt: Prompt, index: int) -> int:
    """Equal prompts get equal outputs, as greedy decoding gives them."""
    seed = sum(prompt.token_ids[:8]) + 13 * len(prompt)
    return 100 + (seed * 31 + index * 7) % 3000


class PrefixSimulation:
    """`depth` 2 plans a step before the last one's tokens are known, as under async; 1 does not.

    `given` counts, by request, positions that the cache gave at each admission, `computed` positions
    computed; `admissions` are (request, first computed position).
    """

    def __init__(
        self,
        config: RunnerConfig,
        depth: int = 1,
        keeps_rows_resident: bool = False,
        token_of: TokenOf = output_token,
        model: ModelSpec = NARROW_VL,
    ) -> None:
        self.config = config
        self.depth = depth
        self.model = model
        self.scheduler = Scheduler(config, model.eos_token_id, keeps_rows_resident)
        self.plans: list[StepPlan] = []
        self.computed: dict[str, int] = {}
        self.admissions: list[tuple[str, int]] = []
        self._token_of = token_of
        self._in_flight: list[StepPlan] = []
        self._held: dict[tuple[int, int], int] = {}  # block, offset -> content
        self._contents: dict[tuple[int, Item], int] = {}  # content before, what is added -> content
        self._content_of_hash: dict[bytes, int] = {}
        self._next: dict[str, int] = {}  # first position not computed yet, of running requests
        self._slots: dict[int, str] = {}
        self._sampled: dict[str, int] = {}

    def submit(self, *requests: Request) -> list[RequestState]:
        states = [admit(request, self.model, self.config) for request in requests]
        for state in states:
            self.scheduler.submit(state)
            self.computed[state.request_id] = self._sampled[state.request_id] = 0
        return states

    def state(self, request_id: str) -> RequestState:
        return self.scheduler.requests[request_id]

    @property
    def last(self) -> StepPlan:
        return self.plans[-1]

    def step(self) -> StepPlan | None:
        """One turn of the engine's loop: plan and compute, then retire what is due."""
        plan = self._plan()
        if len(self._in_flight) == self.depth or plan is None:
            self._retire()
        return plan

    def run(self, requests: Sequence[Request] = (), max_steps: int = 5000) -> list[RequestState]:
        states = self.submit(*requests)
        for _ in range(max_steps):
            was_idle = not self._in_flight
            if self.step() is None and was_idle:
                assert not self.scheduler.has_work, "requests are left, but none can be scheduled"
                return states
        raise AssertionError(f"no end after {max_steps} steps: a livelock")

    def abort(self, request_id: str) -> None:
        self.scheduler.abort(request_id)
        self._check()

    def check_finished(self) -> None:
        """All is served and given back, and every position computed is accounted for."""
        assert self.scheduler.blocks.num_free == self.config.num_blocks
        for name, state in self.scheduler.requests.items():
            assert state.is_finished
            assert (state.slot, state.block_ids, state.num_in_flight) == (None, [], 0)
            assert min(state.num_cached, state.num_recomputed, state.num_wasted) >= 0
            if state.finish_reason is not None and state.finish_reason.value == "aborted":
                continue
            needed = state.num_prompt + len(state.output_ids) - 1
            assert self.computed[name] == (
                needed - state.num_cached + state.num_recomputed + state.num_wasted
            ), name

    # ---- one step

    def _plan(self) -> StepPlan | None:
        before = {name: state.status for name, state in self.scheduler.requests.items()}
        known = self._registered()
        plan = self.scheduler.plan()
        if plan is None:
            assert set(self._registered()) <= set(known), "no step is planned, but blocks were registered"
            return None
        self._check()
        for row in plan.rows:
            if before[row.request_id] is not RequestStatus.RUNNING:
                self._check_admission(row)
        self._encode(plan)
        for row in plan.rows:
            self._write(row, known)
        for row in plan.rows:
            self._read(row)
        self._check_hashes()
        self.plans.append(plan)
        self._in_flight.append(plan)
        return plan

    def _retire(self) -> None:
        if not self._in_flight:
            return
        plan = self._in_flight.pop(0)
        sampled = {}
        for row in plan.rows:
            if row.samples:
                state = self.state(row.request_id)
                sampled[row.request_id] = (self._token_of(state.request.prompt, len(state.output_ids)),)
        self.scheduler.retire(plan, StepResult(plan.step_id, sampled))
        self._check()
        self._check_hashes()

    def _check(self) -> None:
        self.scheduler.check()
        for state in self.scheduler.requests.values():
            if state.status is not RequestStatus.RUNNING:
                self._next.pop(state.request_id, None)
                assert (state.block_ids, state.slot, state.num_computed if not state.is_finished else 0) == (
                    [],
                    None,
                    0,
                )

    def _check_admission(self, row: ScheduledRow) -> None:
        assert row.first % self.config.block_size == 0
        assert row.first < self.state(row.request_id).num_tokens, "nothing is left to compute"
        self.admissions.append((row.request_id, row.first))
        self._next[row.request_id] = row.first

    def _encode(self, plan: StepPlan) -> None:
        """Encode, then splice; a wrong image, or one that nothing reads, is found here."""
        spans = {
            (state.request_id, span.index): span
            for state in self.scheduler.requests.values()
            for span in state.spans
        }
        sizes = [spans[encode.request_id, encode.image].count for encode in plan.encodes]
        assert len(sizes) <= self.config.max_images_per_step
        assert sum(sizes) <= self.config.max_encoder_tokens_per_step
        for encode in plan.encodes:
            key = spans[encode.request_id, encode.image].key
            assert key not in self._slots.values(), "an image that is here is encoded again"
            self._slots[encode.slot] = key
        assert {encode.slot for encode in plan.encodes} <= {splice.slot for splice in plan.splices}
        check_splices(plan, self.scheduler.requests, self._slots)

    def _write(self, row: ScheduledRow, known: dict[int, bytes]) -> None:
        state = self.state(row.request_id)
        assert row.first == self._next[row.request_id], "a position is skipped or computed twice"
        end = row.first + row.num_tokens
        num_sampled = state.num_tokens + state.num_in_flight - row.samples
        assert end <= num_sampled, "a token is computed before it is sampled"
        self._next[row.request_id] = end
        self.computed[row.request_id] += row.num_tokens
        self._sampled[row.request_id] += row.samples
        contents = self._contents_of(state, end)
        for position in range(row.first, end):
            place = self._place(state, position)
            key = self.scheduler.blocks.hash_of(place[0])
            if key is not None and known.get(place[0]) == key:
                assert self._held[place] == contents[position], "a block others may read gets other content"
            self._held[place] = contents[position]

    def _read(self, row: ScheduledRow) -> None:
        """Attention reads all positions of the row's context."""
        state = self.state(row.request_id)
        for position, content in enumerate(self._contents_of(state, row.first + row.num_tokens)):
            held = self._held.get(self._place(state, position))
            assert held == content, f"{row.request_id} reads other content at position {position}"

    def _place(self, state: RequestState, position: int) -> tuple[int, int]:
        size = self.config.block_size
        return state.block_ids[position // size], position % size

    # ---- the truth about content

    def _check_hashes(self) -> None:
        """Each registered block holds, whole, the one content that its hash always stood for."""
        last = self.config.block_size - 1
        for block_id, key in self._registered().items():
            content = self._held[block_id, last]
            assert self._content_of_hash.setdefault(key, content) == content
        assert len(set(self._content_of_hash.values())) == len(self._content_of_hash)

    def _registered(self) -> dict[int, bytes]:
        blocks = self.scheduler.blocks
        found = {block_id: blocks.hash_of(block_id) for block_id in range(blocks.num_blocks)}
        return {block_id: key for block_id, key in found.items() if key is not None}

    def _contents_of(self, state: RequestState, num_tokens: int) -> list[int]:
        """Content at each of a request's first positions, tokens still in flight included."""
        contents, before = [], 0
        for position in range(num_tokens):
            step = (before, self._item(state, position))
            before = self._contents.setdefault(step, len(self._contents) + 1)
            contents.append(before)
        return contents

    def _item(self, state: RequestState, position: int) -> Item:
        prompt = state.request.prompt
        if position >= len(prompt):
            return ("id", self._token_of(prompt, position - len(prompt)))
        embeds = prompt.embeds
        if embeds is not None and embeds.is_supplied(position):
            width = len(embeds.data) // embeds.num_rows
            return ("row", embeds.data[position * width : (position + 1) * width])
        for span in state.spans:
            if span.first <= position < span.end:
                image = prompt.images[span.index]
                return ("image", image.data, image.shape, position - span.first)
        return ("id", prompt.token_ids[position])
