"""Mutants of what plans: scheduler, blocks, encoder slots, arena rows, admission, the gate."""

from __future__ import annotations

from mutants import hazards
from mutants.mutant import Mutant

_SCHEDULER = "runner/scheduler.py"
_PLANS = "tests/runner/test_scheduler.py::"
_ASYNC = "tests/arms/test_async_engine.py::"
_ADMITS = "tests/runner/test_admission.py::"
_NEIGHBOURS = "tests/arms/test_neighbours.py::"


MUTANTS = (
    # ---- scheduler: how a request ends
    Mutant(
        "eos-ends-nothing",
        _SCHEDULER,
        "if may_stop and token_id == self._eos_token_id and not sampling.ignore_eos:",
        "if False:",
        (f"{_PLANS}test_eos_ends_a_request",),
    ),
    Mutant(
        "eos-ends-who-ignores-it",
        _SCHEDULER,
        "if may_stop and token_id == self._eos_token_id and not sampling.ignore_eos:",
        "if may_stop and token_id == self._eos_token_id:",
        (f"{_PLANS}test_eos_is_a_token_like_any_other_where_it_is_ignored",),
    ),
    Mutant(
        "one-token-too-many",
        _SCHEDULER,
        "if len(state.output_ids) >= sampling.max_tokens:",
        "if len(state.output_ids) > sampling.max_tokens:",
        (f"{_PLANS}test_one_token_of_output_is_one_step",),
    ),
    Mutant(
        "one-position-too-many",
        _SCHEDULER,
        "if state.num_tokens >= self._config.max_model_len:",
        "if state.num_tokens > self._config.max_model_len:",
        (f"{_PLANS}test_the_models_length_ends_a_request_and_costs_no_extra_step",),
    ),
    Mutant(
        "token-of-a-finished-request-counts",
        _SCHEDULER,
        "                continue\n            if self._speculates:",
        "            if self._speculates:",
        (f"{_PLANS}test_a_token_of_a_request_aborted_while_its_step_ran_is_ignored",),
        hazards.PREEMPTION,
    ),
    Mutant(
        "waste-is-not-counted",
        _SCHEDULER,
        "state.num_wasted += 1 + row.num_drafts",
        "state.num_wasted += row.num_drafts",
        (f"{_ASYNC}test_eos_costs_one_wasted_token_under_async_and_none_under_sync[ids-1]",),
    ),
    # ---- scheduler: what a step computes
    Mutant(
        "budget-ignored-at-admission",
        _SCHEDULER,
        "count = min(self._num_to_compute(state), making.budget)\n            if not (",
        "count = self._num_to_compute(state)\n            if not (",
        (f"{_PLANS}test_a_prompt_longer_than_the_budget_is_cut_and_samples_only_at_its_end",),
    ),
    Mutant(
        "budget-never-spent",
        _SCHEDULER,
        "        making.budget -= count\n",
        "",
        (f"{_PLANS}test_decodes_come_first_and_a_waiting_prompt_gets_what_is_left",),
    ),
    Mutant(
        "prefills-before-decodes",
        _SCHEDULER,
        "sorted(self._running, key=_is_prefill)",
        "sorted(self._running, key=_is_prefill, reverse=True)",
        (f"{_PLANS}test_any_workload_is_served_whole_under_any_sizes",),
    ),
    Mutant(
        "computes-beyond-the-last-token",
        _SCHEDULER,
        "return 0 if is_done or known >=",
        "return 0 if known >=",
        (f"{_ASYNC}test_max_tokens_costs_no_token_more_than_in_sync[ids]",),
    ),
    Mutant(
        "a-chunk-samples",
        _SCHEDULER,
        "samples = first + count == num_known + state.num_in_flight",
        "samples = True",
        (f"{_PLANS}test_a_prompt_longer_than_the_budget_is_cut_and_samples_only_at_its_end",),
    ),
    # ---- scheduler: blocks and preemption
    Mutant(
        "a-block-too-few",
        _SCHEDULER,
        "return -(-lacking // self._block_size) if lacking > 0 else 0",
        "return lacking // self._block_size if lacking > 0 else 0",
        (f"{_PLANS}test_blocks_are_taken_only_as_they_are_needed",),
    ),
    Mutant(
        "blocks-leak",
        _SCHEDULER,
        "        self.blocks.release(state.block_ids)\n",
        "",
        (f"{_PLANS}test_a_running_request_is_aborted_and_gives_everything_back",),
    ),
    Mutant(
        "request-slot-leaks",
        _SCHEDULER,
        "        self._free_slots.append(state.slot)\n",
        "",
        (f"{_PLANS}test_a_running_request_is_aborted_and_gives_everything_back",),
    ),
    Mutant(
        "blocks-freed-when-the-last-token-is-planned",
        _SCHEDULER,
        "        state.num_steps_in_flight += samples\n",
        "        state.num_steps_in_flight += samples\n"
        "        if state.num_tokens + state.num_in_flight >= self._length_limit(state):\n"
        "            self.blocks.release(state.block_ids)\n"
        "            state.block_ids.clear()\n",
        (
            "tests/hazards/test_45357_kv_reuse.py::test_a_block_is_reused_only_after_the_step_that_reads_it[inline]",
        ),
        hazards.CORRUPTION,
    ),
    Mutant(
        "planned-again-with-its-token-in-flight",
        _SCHEDULER,
        "            if state.num_in_flight > 0:\n"
        "                return  # preempted, and the step it was in is not retired yet\n",
        "",
        (f"{_ASYNC}test_the_scheduler_itself_holds_back_a_request_whose_token_is_in_flight",),
        hazards.PREEMPTION,
    ),
    Mutant(
        "preempted-but-called-half-computed",
        _SCHEDULER,
        "            state.num_computed = len(cached) * self._config.block_size\n",
        "            state.num_computed = len(cached) * self._config.block_size + state.num_lost // 2\n",
        (
            f"{_PLANS}test_the_later_request_is_preempted_and_computed_again_from_its_first_position",
            "tests/hazards/test_48245_preempted_in_flight.py",
        ),
        hazards.PREEMPTION,
    ),
    Mutant(
        "a-quick-decode-needs-no-block",
        _SCHEDULER,
        "            and first < len(state.block_ids) * self._block_size\n",
        "",
        (f"{_PLANS}test_any_workload_is_served_whole_under_any_sizes",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "a-quick-decode-has-no-end",
        _SCHEDULER,
        "            and num_known + state.num_steps_in_flight < self._length_limit(state)\n",
        "",
        (f"{_ASYNC}test_max_tokens_costs_no_token_more_than_in_sync[ids]",),
    ),
    Mutant(
        "victim-is-in-this-step",
        _SCHEDULER,
        "if victim is not state and victim.request_id not in scheduled:",
        "if victim is not state:",
        (f"{_PLANS}test_any_workload_is_served_whole_under_any_sizes",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "victim-is-the-earliest",
        _SCHEDULER,
        "for victim in reversed(self._running):",
        "for victim in self._running:",
        (f"{_PLANS}test_the_latest_is_the_first_victim_and_the_earliest_is_resumed_first",),
    ),
    Mutant(
        "preempted-goes-to-the-end-of-the-queue",
        _SCHEDULER,
        "self._waiting.appendleft(state)",
        "self._waiting.append(state)",
        (f"{_PLANS}test_a_preempted_request_goes_before_those_that_never_ran",),
    ),
    # ---- scheduler: images and supplied rows
    Mutant(
        "image-let-go-at-its-first-chunk",
        _SCHEDULER,
        "if row.first < span.end <= row.first + row.num_tokens:",
        "if row.first < span.end:",
        (f"{_PLANS}test_an_image_cut_by_the_budget_is_held_until_its_last_row_is_computed",),
    ),
    Mutant(
        "image-never-let-go",
        _SCHEDULER,
        "if row.first < span.end <= row.first + row.num_tokens:",
        "if False:",
        (f"{_PLANS}test_an_image_is_let_go_when_its_last_row_is_computed_not_when_its_request_ends",),
    ),
    Mutant(
        "image-goes-on-at-its-first-row",
        _SCHEDULER,
        "slot, begin - span.first, begin - first, end - begin)",
        "slot, 0, begin - first, end - begin)",
        (f"{_PLANS}test_an_image_is_cut_where_the_budget_ends_and_is_encoded_once",),
    ),
    Mutant(
        "aborted-request-holds-its-images",
        _SCHEDULER,
        "        self.encoder_slots.release_request(state.request_id)\n",
        "",
        (f"{_PLANS}test_a_request_aborted_in_the_middle_of_an_image_lets_go_of_it",),
    ),
    Mutant(
        "arena-rows-leak",
        _SCHEDULER,
        "            self.resident_rows.release(state.resident_first)\n",
        "",
        (f"{_ASYNC}test_an_aborted_request_gives_its_arena_rows_back",),
    ),
    Mutant(
        "arena-rows-are-charged-as-one",
        _SCHEDULER,
        "first = self.resident_rows.allocate(embeds.num_rows)",
        "first = self.resident_rows.allocate(1)",
        (
            "tests/hazards/test_45357_kv_reuse.py::test_arena_rows_are_reused_only_after_the_prompt_is_computed",
        ),
        hazards.CORRUPTION,
    ),
    # ---- blocks
    Mutant(
        "newest-freed-block-first",
        "runner/blocks.py",
        "self._free[block_id] = None",
        "self._free = {block_id: None, **self._free}",
        ("tests/runner/test_blocks.py::test_a_freed_block_is_the_last_to_be_reused",),
    ),
    Mutant(
        "shared-block-freed-by-its-first-owner",
        "runner/blocks.py",
        "self._references[block_id] -= 1",
        "self._references[block_id] = 0",
        ("tests/runner/test_blocks.py::test_a_shared_block_is_free_only_after_its_last_release",),
        hazards.CORRUPTION,
    ),
    # ---- encoder slots
    Mutant(
        "held-image-is-evicted",
        "runner/encoder_slots.py",
        "        self._idle.pop(key, None)\n",
        "",
        ("tests/runner/test_encoder_slots.py",),
    ),
    Mutant(
        "most-recently-used-image-is-evicted",
        "runner/encoder_slots.py",
        "popitem(last=False)",
        "popitem(last=True)",
        ("tests/runner/test_encoder_slots.py::test_the_least_recently_used_idle_image_makes_room",),
    ),
    Mutant(
        "image-encoded-again-beside-its-twin",
        "runner/encoder_slots.py",
        "        if key in self._slot_of:\n",
        "        if False:\n",
        (
            "tests/runner/test_encoder_slots.py::test_equal_images_of_two_requests_share_a_slot"
            "_and_are_encoded_once",
        ),
    ),
    Mutant(
        "image-key-without-its-shape",
        "runner/core.py",
        'f"uint8:{self.shape}:".encode()',
        'b"uint8:"',
        (f"{_ADMITS}test_the_same_bytes_in_another_shape_have_another_key",),
    ),
    # ---- arena rows
    Mutant(
        "arena-ranges-overlap",
        "runner/resident_rows.py",
        "rest = (first + count, length - count)",
        "rest = (first + count - 1, length - count + 1)",
        (
            "tests/hazards/test_45357_kv_reuse.py::test_arena_rows_are_reused_only_after_the_prompt_is_computed",
        ),
    ),
    Mutant(
        "arena-stays-in-pieces",
        "runner/resident_rows.py",
        "if joined and sum(joined[-1]) == begin:",
        "if False:",
        (
            "tests/runner/test_resident_rows.py::test_neighbouring_ranges_are_joined_in_whatever_order_they_come",
        ),
    ),
    # ---- admission
    Mutant(
        "no-position-is-left-for-output",
        "runner/admission.py",
        "if length >= config.max_model_len:",
        "if length > config.max_model_len:",
        (f"{_ADMITS}test_a_prompt_that_leaves_no_room_for_output_is_refused_with_both_lengths",),
    ),
    Mutant(
        "a-request-larger-than-the-cache-is-admitted",
        "runner/admission.py",
        "if longest > capacity:",
        "if False:",
        (f"{_ADMITS}test_a_request_larger_than_the_cache_is_refused_with_both_sizes",),
    ),
    Mutant(
        "an-id-behind-the-vocabulary-is-admitted",
        "runner/admission.py",
        "if not 0 <= token_id < model.vocab_size:",
        "if not 0 <= token_id <= model.vocab_size:",
        (f"{_ADMITS}test_an_id_outside_the_vocabulary_is_refused_with_its_position",),
    ),
    Mutant(
        "rows-of-another-width-are-admitted",
        "runner/admission.py",
        "if embeds.hidden_size != model.hidden_size:",
        "if False:",
        (f"{_NEIGHBOURS}test_a_request_that_is_refused_disturbs_nobody[micro-gemma3-vl-refresh]",),
    ),
    Mutant(
        "an-image-too-few-is-admitted",
        "runner/admission.py",
        "if len(positions) != expected:",
        "if len(positions) < expected:",
        (f"{_ADMITS}test_placeholders_and_image_tokens_that_disagree_are_refused_with_both_numbers",),
    ),
    Mutant(
        "rows-beyond-the-arena-are-admitted",
        "runner/admission.py",
        "if embeds.num_rows > config.num_resident_rows:",
        "if False:",
        (f"{_NEIGHBOURS}test_a_request_that_is_refused_disturbs_nobody[micro-gemma3-vl-refresh]",),
    ),
    # ---- the gate
    Mutant(
        "the-gate-is-open",
        "runner/config.py",
        'if rules == "gated" and facts.is_multimodal and facts.prompt_embeds:',
        "if False:",
        (
            "tests/arms/test_gate.py::test_only_the_gated_rules_refuse_prompt_embeds"
            "_and_only_on_a_multimodal_model",
        ),
    ),
)
