"""Scheduler: which tokens of which requests the next step computes, and what its result means.

Continuous batching under a token budget with chunked prefill: decodes first, then running prefills, then
waiting requests in order of arrival. Owns cache blocks, encoder slots and stable request slots. Standard
library only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from runner.blocks import BlockPool
from runner.config import RunnerConfig
from runner.core import (
    EncodeItem,
    FinishReason,
    ImageSpan,
    RequestState,
    RequestStatus,
    ResidentItem,
    ScheduledRow,
    SpliceItem,
    StepPlan,
    StepResult,
    TokenOutput,
)
from runner.encoder_slots import EncoderSlots, Holder
from runner.resident_rows import ResidentRows


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    budget: int
    rows: list[ScheduledRow] = field(default_factory=list)
    encodes: list[EncodeItem] = field(default_factory=list)
    splices: list[SpliceItem] = field(default_factory=list)
    residents: list[ResidentItem] = field(default_factory=list)
    scheduled: set[str] = field(default_factory=set)
    num_preempted: int = 0


class Scheduler:
    """`eos_token_id` ends a request unless it ignores EOS.

    `keeps_rows_resident`: supplied rows are brought to the device's arena at admission, and charged.
    """

    def __init__(self, config: RunnerConfig, eos_token_id: int, keeps_rows_resident: bool = False) -> None:
        self.requests: dict[str, RequestState] = {}
        self.blocks = BlockPool(config.num_blocks)
        self.encoder_slots = EncoderSlots(config.num_encoder_slots)
        self.resident_rows = ResidentRows(config.num_resident_rows)
        self._keeps_rows_resident = keeps_rows_resident
        self._config = config
        self._eos_token_id = eos_token_id
        self._waiting: deque[RequestState] = deque()
        self._running: list[RequestState] = []
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._next_step_id = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def submit(self, state: RequestState) -> None:
        """Queue an admitted request (runner/admission.py)."""
        assert state.request_id not in self.requests, f"request id {state.request_id} is used twice"
        self.requests[state.request_id] = state
        self._waiting.append(state)

    def abort(self, request_id: str) -> None:
        """Drop a request wherever it is; a token of it still in flight will be ignored."""
        state = self.requests[request_id]
        if state.is_finished:
            return
        if state.status is RequestStatus.RUNNING:
            self._leave_running(state)
        else:
            self._waiting.remove(state)
        self._finish(state, FinishReason.ABORTED)

    def forget(self, request_id: str) -> None:
        """Know no more of a finished request that is in no step in flight, if it ever came here."""
        state = self.requests.pop(request_id, None)
        assert state is None or state.is_finished, f"{request_id} is not finished"

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can be computed now."""
        draft = _Draft(budget=self._config.max_num_batched_tokens)
        for state in sorted(self._running, key=_is_prefill):
            if state.status is RequestStatus.RUNNING:
                self._schedule_running(draft, state)
        if draft.num_preempted == 0:
            self._schedule_waiting(draft)
        if not draft.rows:
            return None
        step_id = self._next_step_id
        self._next_step_id += 1
        return StepPlan(
            step_id=step_id,
            rows=tuple(draft.rows),
            encodes=tuple(draft.encodes),
            splices=tuple(draft.splices),
            residents=tuple(draft.residents),
            num_waiting=len(self._waiting),
            num_free_blocks=self.blocks.num_free,
            num_preempted=draft.num_preempted,
        )

    def retire(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        """Take a step's tokens; finished requests leave and give back what they hold."""
        self._release_images(plan)
        outputs = []
        for request_id, (token_id,) in result.sampled.items():
            state = self.requests[request_id]
            state.num_in_flight -= 1
            assert state.num_in_flight >= 0, f"{request_id} got a token that was not in flight"
            if state.is_finished:
                state.num_wasted += 1  # it ended while this step was in flight
                continue
            state.output_ids.append(token_id)
            reason = self._finish_reason(state, token_id)
            if reason is not None:
                self._retire_request(state, reason)
            outputs.append(TokenOutput(request_id, token_id, reason is not None))
        return outputs

    def check(self) -> None:
        """Assert that blocks, encoder slots and request slots are owned exactly once (tests, soak)."""
        self.blocks.check([state.block_ids for state in self._running])
        self.encoder_slots.check({state.request_id for state in self._running})
        firsts = (state.resident_first for state in self._running)
        self.resident_rows.check({first for first in firsts if first is not None})
        slots = [*self._free_slots, *(state.slot for state in self._running if state.slot is not None)]
        assert sorted(slots) == list(range(self._config.max_num_seqs)), f"request slots leaked: {slots}"

    # ---- planning

    def _schedule_running(self, draft: _Draft, state: RequestState) -> None:
        count = min(self._num_to_compute(state), draft.budget)
        # Asked before room is made: no request gives way to one that cannot start anyway.
        if count and self._can_start(draft, state) and self._make_room(draft, state, count):
            self._add_row(draft, state, self._fit_images(draft, state, count))

    def _schedule_waiting(self, draft: _Draft) -> None:
        while self._waiting and self._free_slots and draft.budget > 0:
            state = self._waiting[0]
            if state.num_in_flight > 0:
                return  # preempted, and the step it was in is not retired yet
            count = min(self._num_to_compute(state), draft.budget)
            if self._missing_blocks(state, count) > self.blocks.num_free:
                return
            if not self._make_resident(draft, state):
                return
            self._extend_table(state, count)
            state.slot = self._free_slots.pop()
            count = self._fit_images(draft, state, count)
            if not count:
                self._release_resources(state)  # its first image found no encoder slot
                draft.residents = [item for item in draft.residents if item.request_id != state.request_id]
                return
            self._add_row(draft, state, count)
            self._waiting.popleft()
            state.num_recomputed += state.num_lost
            state.num_lost = 0
            state.status = RequestStatus.RUNNING
            self._running.append(state)

    def _add_row(self, draft: _Draft, state: RequestState, count: int) -> None:
        """Plan `count` tokens, for which there are blocks and images."""
        first = state.num_computed
        draft.splices.extend(self._splices(state, first, count))
        assert state.slot is not None
        samples = first + count == state.num_tokens + state.num_in_flight
        is_decode = samples and count == 1 and first >= state.num_prompt
        draft.rows.append(ScheduledRow(state.request_id, state.slot, first, count, samples, is_decode))
        draft.scheduled.add(state.request_id)
        draft.budget -= count
        state.num_computed += count
        state.num_in_flight += samples

    def _num_to_compute(self, state: RequestState) -> int:
        known = state.num_tokens + state.num_in_flight
        return known - state.num_computed if known < self._length_limit(state) else 0

    def _length_limit(self, state: RequestState) -> int:
        """Length at which a request is finished for certain, whatever it samples."""
        return min(state.num_prompt + state.request.sampling.max_tokens, self._config.max_model_len)

    # ---- blocks

    def _missing_blocks(self, state: RequestState, count: int) -> int:
        needed = -(-(state.num_computed + count) // self._config.block_size)
        return max(0, needed - len(state.block_ids))

    def _extend_table(self, state: RequestState, count: int) -> None:
        block_ids = self.blocks.allocate(self._missing_blocks(state, count))
        assert block_ids is not None
        state.block_ids.extend(block_ids)

    def _make_room(self, draft: _Draft, state: RequestState, count: int) -> bool:
        """Extend the block table, preempting the latest requests not in this step; False: wait."""
        missing = self._missing_blocks(state, count)
        if not missing:
            return True
        while missing > self.blocks.num_free:
            victim = self._victim(draft, state)
            if victim is None:
                return False
            self._preempt(victim)
            draft.num_preempted += 1
        self._extend_table(state, count)
        return True

    def _victim(self, draft: _Draft, state: RequestState) -> RequestState | None:
        for victim in reversed(self._running):
            if victim is not state and victim.request_id not in draft.scheduled:
                return victim
        return None

    def _preempt(self, state: RequestState) -> None:
        """Back to the head of the queue; everything it computed will be computed again."""
        self._leave_running(state)
        state.num_lost = state.num_computed
        state.num_preemptions += 1
        state.num_computed = 0
        state.status = RequestStatus.PREEMPTED
        self._waiting.appendleft(state)

    # ---- supplied rows

    def _make_resident(self, draft: _Draft, state: RequestState) -> bool:
        """Give a newcomer's supplied rows a place in the arena; False when there is none yet."""
        embeds = state.request.prompt.embeds
        if embeds is None or not self._keeps_rows_resident:
            return True
        first = self.resident_rows.allocate(embeds.num_rows)
        if first is None:
            return False
        state.resident_first = first
        draft.residents.append(ResidentItem(state.request_id, first, embeds.num_rows))
        return True

    # ---- images

    def _can_start(self, draft: _Draft, state: RequestState) -> bool:
        """Whether the next position's image, if it lies in one, has a slot or can get one."""
        may_encode = len(draft.encodes) < self._config.max_images_per_step
        return all(
            self.encoder_slots.can_acquire(Holder(state.request_id, span.index), span.key, may_encode)
            for span in state.spans
            if span.first <= state.num_computed < span.end
        )

    def _fit_images(self, draft: _Draft, state: RequestState, count: int) -> int:
        """How many of `count` tokens can be computed with the images that have, or now get, a slot."""
        first = state.num_computed
        for span in state.spans:
            if span.end <= first or span.first >= first + count:
                continue
            if not self._hold_image(draft, state, span):
                return max(0, span.first - first)
        return count

    def _hold_image(self, draft: _Draft, state: RequestState, span: ImageSpan) -> bool:
        holder = Holder(state.request_id, span.index)
        if self.encoder_slots.slot_of(holder) is not None:
            return True
        may_encode = len(draft.encodes) < self._config.max_images_per_step
        acquired = self.encoder_slots.acquire(holder, span.key, may_encode)
        if acquired is None:
            return False
        if acquired.must_encode:
            draft.encodes.append(EncodeItem(state.request_id, span.index, acquired.slot))
        return True

    def _splices(self, state: RequestState, first: int, count: int) -> Iterable[SpliceItem]:
        """The image rows inside positions [first, first + count), offsets relative to the chunk."""
        for span in state.spans:
            begin, end = max(span.first, first), min(span.end, first + count)
            if begin < end:
                slot = self.encoder_slots.slot_of(Holder(state.request_id, span.index))
                assert slot is not None
                yield SpliceItem(state.request_id, slot, begin - span.first, begin - first, end - begin)

    def _release_images(self, plan: StepPlan) -> None:
        """Let go of images whose last row a retired step has computed."""
        for row in plan.rows:
            for span in self.requests[row.request_id].spans:
                if row.first < span.end <= row.first + row.num_tokens:
                    self.encoder_slots.release(Holder(row.request_id, span.index))

    # ---- leaving

    def _finish_reason(self, state: RequestState, token_id: int) -> FinishReason | None:
        sampling = state.request.sampling
        if token_id == self._eos_token_id and not sampling.ignore_eos:
            return FinishReason.EOS
        if len(state.output_ids) >= sampling.max_tokens:
            return FinishReason.MAX_TOKENS
        if state.num_tokens >= self._config.max_model_len:
            return FinishReason.MODEL_LENGTH
        return None

    def _retire_request(self, state: RequestState, reason: FinishReason) -> None:
        if state.status is RequestStatus.RUNNING:
            self._leave_running(state)
        else:
            self._waiting.remove(state)  # preempted, then ended by the token in flight
        self._finish(state, reason)

    def _finish(self, state: RequestState, reason: FinishReason) -> None:
        state.status = RequestStatus.FINISHED
        state.finish_reason = reason

    def _leave_running(self, state: RequestState) -> None:
        self._running.remove(state)
        self._release_resources(state)

    def _release_resources(self, state: RequestState) -> None:
        self.blocks.release(state.block_ids)
        state.block_ids.clear()
        self.encoder_slots.release_request(state.request_id)
        if state.resident_first is not None:
            self.resident_rows.release(state.resident_first)
            state.resident_first = None
        assert state.slot is not None
        self._free_slots.append(state.slot)
        state.slot = None


def _is_prefill(state: RequestState) -> bool:
    return state.num_tokens + state.num_in_flight - state.num_computed > 1
