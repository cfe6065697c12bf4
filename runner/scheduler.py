"""Scheduler: which tokens of which requests the next step computes, and what its result means.

Continuous batching under a token budget with chunked prefill: decodes first, then running prefills, then
waiting requests in order of arrival. Owns cache blocks, encoder slots and stable request slots. Standard
library only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
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
    SlotItem,
    SpliceItem,
    StepPlan,
    StepResult,
    SuppliedRows,
    TokenOutput,
)
from runner.encoder_slots import EncoderSlots, Holder
from runner.prefix_cache import PrefixCache
from runner.resident_rows import ResidentRows


@dataclass(slots=True)
class _Making:
    """A plan in the making."""

    budget: int
    rows: list[ScheduledRow] = field(default_factory=list)
    encodes: list[EncodeItem] = field(default_factory=list)
    splices: list[SpliceItem] = field(default_factory=list)
    residents: list[ResidentItem] = field(default_factory=list)
    admitted: list[SlotItem] = field(default_factory=list)
    num_preempted: int = 0
    num_encoder_rows: int = 0
    num_to_come: int = 0  # running requests not looked at yet, and the blocks a token of each needs
    blocks_to_come: int = 0
    is_short: bool = False  # a running request's image, to be computed whole, does not fit the budget left


class Scheduler:
    """`eos_token_id` ends a request unless it ignores EOS.

    `keeps_rows_resident`: supplied rows are brought to the device's arena at admission, and charged.
    `drafts_on_device`: drafts never reach the host, which plans as if the device always had some.
    An image that is to be whole (ImageSpan) is never cut over two steps.
    """

    def __init__(
        self,
        config: RunnerConfig,
        eos_token_id: int,
        keeps_rows_resident: bool = False,
        drafts_on_device: bool = False,
    ) -> None:
        self.requests: dict[str, RequestState] = {}
        self.blocks = BlockPool(config.num_blocks)
        self.prefix_cache = PrefixCache(self.blocks, config.block_size, config.prefix_caching)
        self.encoder_slots = EncoderSlots(config.num_encoder_slots)
        self.resident_rows = ResidentRows(config.num_resident_rows)
        self._keeps_rows_resident = keeps_rows_resident
        self._drafts_on_device = drafts_on_device
        self._speculates = config.num_speculative_tokens > 0
        self._config = config
        self._block_size = config.block_size
        self._eos_token_id = eos_token_id
        self._waiting: deque[RequestState] = deque()
        self._running: list[RequestState] = []
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self.next_step_id = 0

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
        self.prefix_cache.expect(state)

    def hash_waiting(self) -> None:
        """Hash the prompts that came since the last call; a plan would do it later, as part of itself."""
        self.prefix_cache.hash_expected()

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
        making = _Making(budget=self._config.max_num_batched_tokens)
        running = sorted(self._running, key=_is_prefill)
        if self._speculates:
            making.num_to_come = len(running)
            making.blocks_to_come = sum(self._missing_blocks(state, 1) for state in running)
        has_quick = not self._speculates and not self._config.prefix_caching
        for state in running:
            # A decode in its own block is nearly every row of nearly every step: it needs no more.
            if has_quick and self._schedule_decode(making, state):
                continue
            if state.status is RequestStatus.RUNNING:
                self._schedule_running(making, state)
        # Newcomers would decode soon, and might keep the budget too short for that image for ever.
        if making.num_preempted == 0 and not making.is_short:
            self._schedule_waiting(making)
        if not making.rows:
            return None
        step_id = self.next_step_id
        self.next_step_id += 1
        return StepPlan(
            step_id=step_id,
            rows=tuple(making.rows),
            encodes=tuple(making.encodes),
            splices=tuple(making.splices),
            residents=tuple(making.residents),
            admitted=tuple(making.admitted),
            num_waiting=len(self._waiting),
            num_free_blocks=self.blocks.num_free,
            num_preempted=making.num_preempted,
        )

    def retire(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        """Take a step's tokens; finished requests leave and give back what they hold."""
        self._release_images(plan)
        outputs: list[TokenOutput] = []
        for row in plan.rows:
            if not row.samples:
                continue
            state, token_ids = self.requests[row.request_id], result.sampled[row.request_id]
            self._settle(state, row.num_drafts, len(token_ids))
            if state.is_finished:
                state.num_wasted += 1 + row.num_drafts  # it ended while this step was in flight
                continue
            if self._speculates:
                state.num_drafted += row.num_drafts
                state.num_accepted += len(token_ids) - 1
                state.draft_ids = result.drafts.get(row.request_id, ())
            num_accepted = self._accept(state, token_ids, outputs)
            if result.logprobs:
                state.logprobs += result.logprobs.get(row.request_id, ())[:num_accepted]
        return outputs

    def _settle(self, state: RequestState, num_drafts: int, num_sampled: int) -> None:
        """A step of it has come back: what was planned for drafts that were wrong was never computed."""
        state.num_in_flight -= 1 + num_drafts
        state.num_steps_in_flight -= 1
        assert state.num_in_flight >= 0, f"{state.request_id} got a token that was not in flight"
        num_rejected = 1 + num_drafts - num_sampled
        if not num_rejected:
            return
        if state.status is RequestStatus.RUNNING:
            state.num_computed -= num_rejected
        elif state.status is RequestStatus.PREEMPTED:
            state.num_lost -= num_rejected

    def _accept(self, state: RequestState, token_ids: Sequence[int], outputs: list[TokenOutput]) -> int:
        """Take tokens up to one that ends the request; how many. The rest was computed for nothing."""
        for index, token_id in enumerate(token_ids):
            state.output_ids.append(token_id)
            reason = self._finish_reason(state, token_id)
            outputs.append(TokenOutput(state.request_id, token_id, reason is not None))
            if reason is not None:
                state.num_wasted += len(token_ids) - 1 - index
                self._retire_request(state, reason)
                return index + 1
        return len(token_ids)

    def check(self) -> None:
        """Assert that blocks, encoder slots and request slots are owned exactly once (tests, soak)."""
        self.blocks.check([state.block_ids for state in self._running])
        self.prefix_cache.check(self._running)
        self.encoder_slots.check({state.request_id for state in self._running})
        firsts = (state.resident_first for state in self._running)
        self.resident_rows.check({first for first in firsts if first is not None})
        slots = [*self._free_slots, *(state.slot for state in self._running if state.slot is not None)]
        assert sorted(slots) == list(range(self._config.max_num_seqs)), f"request slots leaked: {slots}"

    # ---- planning

    def _schedule_decode(self, making: _Making, state: RequestState) -> bool:
        """Plan the one token of a row that has its block, and no image or draft; False: it was not that easy.

        What `_schedule_running` would do of it, in one go. One preempted just now has nothing computed.
        """
        first, num_known = state.num_computed, state.num_prompt + len(state.output_ids)
        is_easy = (
            making.budget > 0
            and not state.spans
            and first >= state.num_prompt
            and first == num_known + state.num_in_flight - 1
            and first < len(state.block_ids) * self._block_size
            and num_known + state.num_steps_in_flight < self._length_limit(state)
            and first + 1 < self._config.max_model_len
        )
        if is_easy:
            assert state.slot is not None
            making.rows.append(ScheduledRow(state.request_id, state.slot, first, 1, True, True))
            making.budget -= 1
            state.num_computed = first + 1
            state.num_in_flight += 1
            state.num_steps_in_flight += 1
        return is_easy

    def _schedule_running(self, making: _Making, state: RequestState) -> None:
        if self._speculates:
            making.num_to_come -= 1
            making.blocks_to_come -= self._missing_blocks(state, 1)
        count = self._within_budget(making, state)
        making.is_short |= count == 0 and self._num_to_compute(state) > 0
        # Asked before room is made: no request gives way to one that cannot start anyway.
        if count and self._can_start(making, state) and self._make_room(making, state, count):
            num_drafts = self._num_drafts(making, state) if self._speculates else 0
            self._extend_table(state, count + num_drafts)
            self._add_row(making, state, self._fit_images(making, state, count), num_drafts)

    def _schedule_waiting(self, making: _Making) -> None:
        while self._waiting and self._free_slots and making.budget > 0:
            state = self._waiting[0]
            if state.num_in_flight > 0:
                return  # preempted, and the step it was in is not retired yet
            cached = self.prefix_cache.find(state)
            state.num_computed = len(cached) * self._config.block_size
            count = self._within_budget(making, state)
            if not (
                count
                and self._has_blocks(state, cached, count)
                and self._can_start(making, state)
                and self._make_resident(making, state)
            ):
                state.num_computed = 0  # it goes on waiting and holds nothing
                return
            self.prefix_cache.take(state, cached)
            self._extend_table(state, count)
            state.slot = self._free_slots.pop()
            self._count_cached(state)
            self._add_row(making, state, self._fit_images(making, state, count))
            making.admitted.append(SlotItem(state.request_id, state.slot))
            self._waiting.popleft()
            state.status = RequestStatus.RUNNING
            self._running.append(state)

    def _count_cached(self, state: RequestState) -> None:
        """What the cache gives of lost positions is not computed again; what it gives beyond never was."""
        given = state.num_computed
        state.num_recomputed += max(0, state.num_lost - given)
        state.num_cached += max(0, given - state.num_lost)
        state.num_lost = 0

    def _add_row(self, making: _Making, state: RequestState, count: int, num_drafts: int = 0) -> None:
        """Plan `count` tokens, for which there are blocks and images, and `num_drafts` guessed ones."""
        first, num_known = state.num_computed, state.num_tokens
        making.splices.extend(self._splices(state, first, count))
        assert state.slot is not None
        samples = first + count == num_known + state.num_in_flight
        is_decode = samples and count == 1 and first >= state.num_prompt
        count += num_drafts
        making.rows.append(
            ScheduledRow(state.request_id, state.slot, first, count, samples, is_decode, num_drafts)
        )
        making.budget -= count
        state.num_computed += count
        state.num_in_flight += samples * (1 + num_drafts)
        state.num_steps_in_flight += samples
        if self._config.prefix_caching:
            self.prefix_cache.register(state, min(state.num_computed, num_known))

    def _within_budget(self, making: _Making, state: RequestState) -> int:
        """How many positions the budget allows; 0 where the next are an image that would not be whole."""
        first = state.num_computed
        return state.whole_end(first + min(self._num_to_compute(state), making.budget)) - first

    def _num_to_compute(self, state: RequestState) -> int:
        """Positions whose ids are there or on their way; drafts in flight are taken for right."""
        num_known = state.num_tokens
        known = num_known + state.num_in_flight
        is_done = num_known + state.num_steps_in_flight >= self._length_limit(state)
        # If all drafts were right there would be no position left: wait until it is known.
        return 0 if is_done or known >= self._config.max_model_len else known - state.num_computed

    def _num_drafts(self, making: _Making, state: RequestState) -> int:
        """How many drafts ride with a decode: those there are, within its length and what nobody else needs.

        A guess takes no token of the budget and no block from requests that are still to be planned.
        """
        known = state.num_tokens + state.num_in_flight
        if known - state.num_computed != 1 or state.num_computed < state.num_prompt:
            return 0
        # The device has drafts of the last step only; a request that rested has none there.
        on_device = self._config.num_speculative_tokens if state.num_steps_in_flight else 0
        available = on_device if self._drafts_on_device else len(state.draft_ids)
        budget = making.budget - 1 - making.num_to_come
        num_drafts = max(0, min(available, budget, self._length_limit(state) - known - 1))
        num_free = self.blocks.num_free - making.blocks_to_come
        while num_drafts and self._missing_blocks(state, 1 + num_drafts) > num_free:
            num_drafts -= 1
        return num_drafts

    def _length_limit(self, state: RequestState) -> int:
        """Length at which a request is finished for certain, whatever it samples."""
        return min(state.num_prompt + state.request.sampling.max_tokens, self._config.max_model_len)

    # ---- blocks

    def _missing_blocks(self, state: RequestState, count: int) -> int:
        lacking = state.num_computed + count - len(state.block_ids) * self._block_size
        return -(-lacking // self._block_size) if lacking > 0 else 0

    def _has_blocks(self, state: RequestState, cached: list[int], count: int) -> bool:
        """Whether a newcomer's `cached` blocks and those for `count` more tokens can be had together."""
        missing = self._missing_blocks(state, count) - len(cached)
        return missing + self.blocks.num_free_among(cached) <= self.blocks.num_free

    def _extend_table(self, state: RequestState, count: int) -> None:
        missing = self._missing_blocks(state, count)
        if missing:
            block_ids = self.blocks.allocate(missing)
            assert block_ids is not None
            state.block_ids.extend(block_ids)

    def _make_room(self, making: _Making, state: RequestState, count: int) -> bool:
        """Free the blocks it lacks, preempting the latest requests not in this step; False: wait."""
        missing = self._missing_blocks(state, count)
        while missing > self.blocks.num_free:
            victim = self._victim(making, state)
            if victim is None:
                return False
            self._preempt(victim)
            making.num_preempted += 1
        return True

    def _victim(self, making: _Making, state: RequestState) -> RequestState | None:
        scheduled = {row.request_id for row in making.rows}
        for victim in reversed(self._running):
            if victim is not state and victim.request_id not in scheduled:
                return victim
        return None

    def _preempt(self, state: RequestState) -> None:
        """Back to the head of the queue; everything it computed will be computed again."""
        self._leave_running(state)
        state.num_lost = state.num_computed
        state.num_preemptions += 1
        state.num_computed = 0
        state.draft_ids = ()
        state.status = RequestStatus.PREEMPTED
        self._waiting.appendleft(state)

    # ---- supplied rows

    def _make_resident(self, making: _Making, state: RequestState) -> bool:
        """Give a newcomer's supplied rows a place in the arena; False when there is none yet."""
        embeds = state.request.prompt.embeds
        if embeds is None or not self._keeps_rows_resident or not _reads_supplied(state, embeds):
            return True
        first = self.resident_rows.allocate(embeds.num_rows)
        if first is None:
            return False
        state.resident_first = first
        making.residents.append(ResidentItem(state.request_id, first, embeds.num_rows))
        return True

    # ---- images

    def _can_start(self, making: _Making, state: RequestState) -> bool:
        """Whether the next position's image, if it lies in one, has a slot or can get one."""
        return all(
            self.encoder_slots.can_acquire(
                Holder(state.request_id, span.index), span.key, self._may_encode(making, span)
            )
            for span in state.spans
            if span.first <= state.num_computed < span.end
        )

    def _fit_images(self, making: _Making, state: RequestState, count: int) -> int:
        """How many of `count` tokens can be computed with the images that have, or now get, a slot."""
        first = state.num_computed
        for span in state.spans:
            if span.end <= first or span.first >= first + count:
                continue
            if not self._hold_image(making, state, span):
                return max(0, span.first - first)
        return count

    def _hold_image(self, making: _Making, state: RequestState, span: ImageSpan) -> bool:
        holder = Holder(state.request_id, span.index)
        if self.encoder_slots.slot_of(holder) is not None:
            return True
        acquired = self.encoder_slots.acquire(holder, span.key, self._may_encode(making, span))
        if acquired is None:
            return False
        if acquired.must_encode:
            making.encodes.append(EncodeItem(state.request_id, span.index, acquired.slot))
            making.num_encoder_rows += span.count
        return True

    def _may_encode(self, making: _Making, span: ImageSpan) -> bool:
        """Whether this step may encode one more image, as images and as rows are counted."""
        return (
            len(making.encodes) < self._config.max_images_per_step
            and making.num_encoder_rows + span.count <= self._config.max_encoder_tokens_per_step
        )

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
        may_stop = len(state.output_ids) > sampling.min_tokens
        if may_stop and token_id == self._eos_token_id and not sampling.ignore_eos:
            return FinishReason.EOS
        if may_stop and token_id in sampling.stop_token_ids:
            return FinishReason.STOP
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
        self.prefix_cache.forget(state)

    def _leave_running(self, state: RequestState) -> None:
        self._running.remove(state)
        self._release_resources(state)

    def _release_resources(self, state: RequestState) -> None:
        # Not the last token: whether it was computed is not told by `num_computed` while steps are in flight.
        self.prefix_cache.register(state, min(state.num_computed, state.num_tokens - 1))
        self.prefix_cache.leave(state)
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
    return state.num_prompt + len(state.output_ids) + state.num_in_flight - state.num_computed > 1


def _reads_supplied(state: RequestState, embeds: SuppliedRows) -> bool:
    """Whether a supplied position is still to be computed."""
    if embeds.mask is None:
        return state.num_computed < embeds.num_rows
    return 1 in embeds.mask[state.num_computed :]
