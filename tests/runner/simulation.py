"""Drives a scheduler without any device, and checks every plan against bookkeeping of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fabrication import SMALL_VL

from runner.admission import admit
from runner.config import RunnerConfig
from runner.core import Request, RequestState, ScheduledRow, StepPlan, StepResult, TokenOutput
from runner.models import ModelSpec
from runner.scheduler import Scheduler

TokenOf = Callable[[str, int], int]  # request id, index of the output token


def plain_token(request_id: str, index: int) -> int:
    """A token that never is EOS and tells request and index apart."""
    return 100 + (sum(request_id.encode()) * 31 + index * 7) % 3000


def check_splices(plan: StepPlan, requests: Mapping[str, RequestState], content: Mapping[int, str]) -> None:
    """Each placeholder that a row computes gets the right row of the right image, once; none is cut that is
    to be whole.

    `content`: the key of the image in each encoder slot.
    """
    for row in plan.rows:
        for end in (row.first, row.first + row.num_tokens):
            spans = [span for span in requests[row.request_id].spans if span.is_whole]
            inside = [span for span in spans if span.first < end < span.end]
            assert not inside, f"{row.request_id}: a step begins or ends at {end}, inside {inside}"
    got = [
        (splice.request_id, splice.row_first + i, content[splice.slot], splice.item_first + i)
        for splice in plan.splices
        for i in range(splice.num_rows)
    ]
    wanted = [
        (row.request_id, position - row.first, span.key, position - span.first)
        for row in plan.rows
        for span in requests[row.request_id].spans
        for position in range(max(span.first, row.first), min(span.end, row.first + row.num_tokens))
    ]
    assert sorted(got) == sorted(wanted)


class Simulation:
    """One scheduler and the truth about what its "device" has computed.

    `computed` counts, by request, the positions whose keys and values are in the cache; `written` counts
    every position ever computed; `content` is what each encoder slot holds.
    """

    def __init__(
        self, config: RunnerConfig, model: ModelSpec = SMALL_VL, token_of: TokenOf = plain_token
    ) -> None:
        self.config = config
        self.model = model
        self.scheduler = Scheduler(config, model.eos_token_id)
        self.plans: list[StepPlan] = []
        self.outputs: list[TokenOutput] = []
        self.computed: dict[str, int] = {}
        self.written: dict[str, int] = {}
        self.content: dict[int, str] = {}
        self._token_of = token_of
        self._preemptions: dict[str, int] = {}

    def submit(self, *requests: Request) -> list[RequestState]:
        states = [admit(request, self.model, self.config) for request in requests]
        for state in states:
            self.scheduler.submit(state)
            self.computed[state.request_id] = self.written[state.request_id] = 0
            self._preemptions[state.request_id] = 0
        return states

    def state(self, request_id: str) -> RequestState:
        return self.scheduler.requests[request_id]

    def step(self) -> StepPlan | None:
        """Plan, check the plan, "compute" it, retire it."""
        plan = self.plan()
        if plan is not None:
            self.retire(plan)
        return plan

    def plan(self) -> StepPlan | None:
        known = {name: state.num_tokens for name, state in self.scheduler.requests.items()}
        plan = self.scheduler.plan()
        self._forget_preempted()
        self.scheduler.check()
        if plan is not None:
            self.plans.append(plan)
            self._check_plan(plan, known)
            self._compute(plan)
        return plan

    def retire(self, plan: StepPlan) -> list[TokenOutput]:
        sampled = {
            row.request_id: (self._token_of(row.request_id, len(self.state(row.request_id).output_ids)),)
            for row in plan.rows
            if row.samples
        }
        outputs = self.scheduler.retire(plan, StepResult(plan.step_id, sampled))
        self.scheduler.check()
        self.outputs += outputs
        return outputs

    def run(self, requests: Iterable[Request] = (), max_steps: int = 5000) -> None:
        """Serve until nothing is left."""
        self.submit(*requests)
        for _ in range(max_steps):
            if self.step() is None:
                assert not self.scheduler.has_work, "requests are left, but none can be scheduled"
                return
        raise AssertionError(f"no end after {max_steps} steps: a livelock")

    def check_finished(self) -> None:
        """Everything served, everything given back, and no position computed without need."""
        assert self.scheduler.blocks.num_free == self.config.num_blocks
        for name, state in self.scheduler.requests.items():
            assert state.is_finished
            assert (state.slot, state.block_ids, state.num_in_flight) == (None, [], 0)
            needed = state.num_prompt + len(state.output_ids) - 1  # the last token is never computed
            assert self.written[name] == needed + state.num_recomputed
            assert state.output_ids == [self._token_of(name, i) for i in range(len(state.output_ids))]
            reported = [output.token_id for output in self.outputs if output.request_id == name]
            assert reported == state.output_ids
            lasts = [output.is_last for output in self.outputs if output.request_id == name]
            assert lasts == [False] * (len(lasts) - 1) + [True]

    # ---- the checks of one plan

    def _forget_preempted(self) -> None:
        """A preempted request's cache is gone: it must be computed again from its first position."""
        for name, state in self.scheduler.requests.items():
            if state.num_preemptions > self._preemptions[name]:
                assert state.num_preemptions == self._preemptions[name] + 1
                assert state.block_ids == []
                self._preemptions[name] += 1
                self.computed[name] = 0

    def _check_plan(self, plan: StepPlan, known: dict[str, int]) -> None:
        assert [earlier.step_id for earlier in self.plans] == list(range(len(self.plans)))
        assert 1 <= len(plan.rows) <= self.config.max_num_seqs
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        assert len({row.request_id for row in plan.rows}) == len(plan.rows)
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        for row in plan.rows:
            self._check_row(row, known[row.request_id])
        decodes = [0 < row.first == known[row.request_id] - 1 for row in plan.rows]
        assert decodes == sorted(decodes, reverse=True), "a prefill comes before a decode"
        assert plan.num_waiting == self.scheduler.num_waiting
        assert plan.num_free_blocks == self.scheduler.blocks.num_free

    def _check_row(self, row: ScheduledRow, num_known: int) -> None:
        state = self.state(row.request_id)
        assert not state.is_finished
        assert row.slot == state.slot
        assert row.first == self.computed[row.request_id], "a position is skipped or computed twice"
        assert row.num_tokens >= 1
        end = row.first + row.num_tokens
        assert end <= num_known, "a token is computed before its value is known"
        assert row.samples == (end == num_known)
        assert len(state.block_ids) * self.config.block_size >= end, "a position has no block"

    def _compute(self, plan: StepPlan) -> None:
        """Encode, then splice, as a device does; a wrong image is found at the splice."""
        assert len(plan.encodes) <= self.config.max_images_per_step
        assert len({encode.slot for encode in plan.encodes}) == len(plan.encodes)
        for encode in plan.encodes:
            assert 0 <= encode.slot < self.config.num_encoder_slots
            key = self.state(encode.request_id).request.prompt.images[encode.image].key
            assert key not in self.content.values(), "an image that is here is encoded again"
            self.content[encode.slot] = key
        self._check_splices(plan)
        for row in plan.rows:
            self.computed[row.request_id] += row.num_tokens
            self.written[row.request_id] += row.num_tokens

    def _check_splices(self, plan: StepPlan) -> None:
        """Each placeholder that a row computes gets the right row of the right image, once."""
        check_splices(plan, self.scheduler.requests, self.content)
