"""Mutants of speculation: drafts planned, routed, verified, remembered and accounted for."""

from __future__ import annotations

from mutants import hazards
from mutants.mutant import Mutant

_SCHEDULER = "runner/scheduler.py"
_SPECULATION = "runner/kernels/speculation.py"
_PROGRAM = "runner/kernels/program.py"
_COMPILE = "runner/inputs/compile.py"
_ROUTES = "runner/inputs/routes.py"

_PLANS = "tests/runner/test_speculative_scheduling.py::"
_EVERY_TOKEN = f"{_PLANS}test_whatever_drafts_are_right_every_token_comes_once"
_TENSORS = "tests/runner/kernels/test_speculation.py::"
_ARMS = "tests/arms/test_drafts.py::"
_AS_WITHOUT = f"{_ARMS}test_every_right_arm_gives_the_tokens_it_gives_without[micro-gemma3-vl-refresh-tight]"
_WITH_ROPE = f"{_ARMS}test_every_right_arm_gives_the_tokens_it_gives_without[micro-qwen2.5-vl-refresh-tight]"
_SLOTS = (
    "tests/hazards/test_57356_draft_slots.py::"
    "test_every_arm_accepts_as_many_drafts_as_its_twin_without_embeddings_before[inline]"
)
_WINDOW = "tests/hazards/test_40768_placeholder_outlives_its_window.py"

MUTANTS = (
    # ---- plans
    Mutant(
        "wrong-drafts-stay-computed",
        _SCHEDULER,
        "            state.num_computed -= num_rejected\n",
        "            pass\n",
        (_EVERY_TOKEN,),
    ),
    Mutant(
        "wrong-drafts-are-taken-from-a-preempted-request",
        _SCHEDULER,
        "        if state.status is RequestStatus.RUNNING:\n            state.num_computed -= num_rejected",
        "        if not state.is_finished:\n            state.num_computed -= num_rejected",
        (_EVERY_TOKEN,),
        hazards.PREEMPTION,
    ),
    Mutant(
        "drafts-outlive-their-window",
        _SCHEDULER,
        "on_device = self._config.num_speculative_tokens if state.num_steps_in_flight else 0",
        "on_device = self._config.num_speculative_tokens",
        (_EVERY_TOKEN,),
        hazards.WINDOW,
    ),
    Mutant(
        "drafts-beyond-the-budget",
        _SCHEDULER,
        "budget = making.budget - 1 - making.num_to_come",
        "budget = making.budget - 1",
        (f"{_PLANS}test_drafts_take_no_token_from_a_decode_that_comes_after",),
    ),
    Mutant(
        "drafts-take-the-blocks-of-others",
        _SCHEDULER,
        "num_free = self.blocks.num_free - making.blocks_to_come",
        "num_free = self.blocks.num_free",
        (f"{_PLANS}test_drafts_take_no_block_from_a_decode_that_comes_after",),
    ),
    Mutant(
        "drafts-beyond-the-budget-of-the-step",
        _SCHEDULER,
        "min(available, budget, self._length_limit(state) - known - 1)",
        "min(available, self._length_limit(state) - known - 1)",
        (f"{_PLANS}test_drafts_never_preempt_and_never_exceed_budget_or_length",),
    ),
    Mutant(
        "drafts-beyond-the-length",
        _SCHEDULER,
        "min(available, budget, self._length_limit(state) - known - 1)",
        "min(available, budget)",
        (_EVERY_TOKEN, f"{_PLANS}test_one_token_left_asks_for_no_drafts"),
    ),
    Mutant(
        "tokens-behind-the-last-are-kept",
        _SCHEDULER,
        "                self._retire_request(state, reason)\n                return index + 1\n",
        "                self._retire_request(state, reason)\n",
        (f"{_ARMS}test_a_token_that_ends_the_request_ends_it_in_the_midst_of_accepted_ones",),
    ),
    Mutant(
        "accepted-drafts-cut-off-are-not-wasted",
        _SCHEDULER,
        "                state.num_wasted += len(token_ids) - 1 - index\n",
        "",
        (f"{_ARMS}test_a_token_that_ends_the_request_ends_it_in_the_midst_of_accepted_ones",),
    ),
    Mutant(
        "blocks-for-drafts-are-forgotten",
        _SCHEDULER,
        "            self._extend_table(state, count + num_drafts)\n",
        "            self._extend_table(state, count)\n",
        (_EVERY_TOKEN,),
        hazards.CORRUPTION,
    ),
    # ---- routes
    Mutant(
        "drafts-count-as-ids-of-the-host",
        _ROUTES,
        "total_without_spec = starts[-1] - batch.num_drafts[: batch.num_rows].sum()",
        "total_without_spec = starts[-1]",
        (f"{_ARMS}test_all_routes_of_ids_are_taken",),
    ),
    Mutant(
        "sampled-ids-go-where-the-last-draft-is",
        _ROUTES,
        "target = starts[rows + 1] - 1 - num_drafts",
        "target = starts[rows + 1] - 1",
        (_SLOTS, f"{_ARMS}test_acceptance_is_recorded_by_step_and_by_request"),
        hazards.DRAFT_SLOTS,
    ),
    Mutant(
        "drafts-of-another-row",
        _ROUTES,
        "sources = np.repeat(source, num_drafts) * max_drafts + within",
        "sources = 0 * np.repeat(source, num_drafts) + within",
        ("tests/arms/test_draft_routes.py",),
        hazards.DRAFT_SLOTS,
    ),
    Mutant(
        "draft-slots-are-no-ids",
        "runner/inputs/batch.py",
        "        self.is_token_ids[row] = True\n",
        "        self.is_token_ids[row, : len(prompt)] = True\n",
        (_SLOTS,),
        hazards.DRAFT_SLOTS,
    ),
    Mutant(
        "placeholders-are-routed-as-they-are",
        _PROGRAM,
        "drafts = proposed[places].clamp(min=0)",
        "drafts = proposed[places]",
        (f"{_WINDOW}::test_no_placeholder_reaches_a_lookup_though_drafts_are_missing",),
        hazards.WINDOW,
    ),
    Mutant(
        "drafts-of-this-step-instead-of-the-last",
        _COMPILE,
        'RouteDrafts(ring("draft_ids", step.plan.step_id - 1), count)',
        'RouteDrafts(ring("draft_ids", step.plan.step_id), count)',
        ("tests/arms/test_draft_routes.py",),
        hazards.DRAFT_SLOTS,
    ),
    # ---- on the device
    Mutant(
        "a-draft-behind-a-wrong-one-counts",
        _SPECULATION,
        "num_right = is_right.long().cumprod(dim=1).sum(dim=1)",
        "num_right = is_right.long().sum(dim=1)",
        (f"{_TENSORS}test_tokens_are_kept_up_to_the_first_that_was_not_foreseen",),
    ),
    Mutant(
        "a-draft-stands-where-it-is-foreseen",
        _SPECULATION,
        "foreseen[expanded.row, expanded.within - 1] = ids[expanded.offset].long()",
        "foreseen[expanded.row, expanded.within] = ids[expanded.offset].long()",
        (f"{_TENSORS}test_the_id_before_the_drafts_is_none_of_them",),
    ),
    Mutant(
        "the-first-occurrence-is-continued",
        _SPECULATION,
        "return torch.where(matches, places, -1).amax(dim=1)",
        "return torch.where(matches.any(dim=1), matches.long().argmax(dim=1), -1)",
        (f"{_TENSORS}test_the_last_earlier_occurrence_of_the_longest_ending_is_continued",),
    ),
    Mutant(
        "positions-without-ids-match",
        _SPECULATION,
        "matches = matches & (shifted == last) & (last >= 0)",
        "matches = matches & (shifted == last)",
        (f"{_TENSORS}test_proposals_are_those_of_a_search_in_a_list",),
        hazards.DRAFTER,
    ),
    Mutant(
        "proposals-run-past-the-end",
        _SPECULATION,
        "is_there = (begin[:, None] >= 0) & (wanted < lengths[:, None]) & (drafts >= 0)",
        "is_there = (begin[:, None] >= 0) & (drafts >= 0)",
        (f"{_TENSORS}test_a_continuation_that_runs_into_the_end_is_as_long_as_it_is",),
    ),
    Mutant(
        "positions-are-as-the-host-guesses",
        _PROGRAM,
        "self.first = torch.where(self.has_flag(RowFlag.ON_DEVICE), computed[self.slots], planned)",
        "self.first = planned",
        (_AS_WITHOUT,),
        hazards.DOWNLOAD,
    ),
    Mutant(
        "rope-positions-are-as-the-host-guesses",
        _PROGRAM,
        "return given - metadata.lag[metadata.row_of_token] if metadata.by_slot else given",
        "return given",
        (_WITH_ROPE,),
    ),
    Mutant(
        "drafts-are-no-history-of-those-behind-them",
        _PROGRAM,
        "        self._remember_drafts(expanded)\n",
        "",
        (f"{_ARMS}test_a_bad_word_is_stopped_behind_a_draft",),
    ),
    Mutant(
        "the-newest-token-is-the-first-kept",
        _PROGRAM,
        "kept.gather(1, num_kept[:, None] - 1)[:, 0]",
        "kept[:, 0]",
        ("tests/arms/test_draft_routes.py",),
    ),
    Mutant(
        "accepted-tokens-out-of-one-buffer",
        _COMPILE,
        'accepted = ring("accepted_ids", step_id) if self._speculates else ""',
        'accepted = ring("accepted_ids", 0) if self._speculates else ""',
        (_AS_WITHOUT,),
        hazards.RESULT,
    ),
)
