"""Mutants of what packs a run folder into one file, and of what spends a budget over several scenarios."""

from __future__ import annotations

from mutants.mutant import Mutant

_ARCHIVE = "tests/suite/test_archive.py::"
_BUDGET = "tests/suite/test_budget.py::"

MUTANTS = (
    Mutant(
        "steps-are-thinned-without-regard-to-their-kind",
        "suite/thinning.py",
        "np.flatnonzero(names == kind)[::one_in]",
        "np.flatnonzero(names == names)[::one_in]",
        (f"{_ARCHIVE}test_too_large_a_folder_keeps_every_run_and_of_each_kind_of_step_one_in_k",),
    ),
    Mutant(
        "a-thinned-folder-does-not-say-so",
        "suite/archive_folder.py",
        "        if note is not None:\n            found",
        "        if note is not None and one_in == 1:\n            found",
        (f"{_ARCHIVE}test_the_page_and_the_summary_of_the_unpacked_folder",),
    ),
    Mutant(
        "thinned-steps-pass-for-all",
        "suite/store.py",
        "        if self.why_thinned is not None:\n            raise",
        "        if False:\n            raise",
        (f"{_ARCHIVE}test_what_needs_every_step_refuses_and_says_why",),
    ),
    Mutant(
        "the-summary-of-all-steps-is-made-anew-of-a-few",
        "suite/publish.py",
        "    if _is_of_all_steps(loaded):\n        document",
        "    if False:\n        document",
        (f"{_ARCHIVE}test_the_page_and_the_summary_of_the_unpacked_folder",),
    ),
    Mutant(
        "a-thinned-step-took-as-long-as-the-gap-to-the-one-kept-before",
        "suite/thinning.py",
        "    if requests is not None and WALL_MS not in steps",
        "    if False and requests is not None and WALL_MS not in steps",
        (f"{_ARCHIVE}test_a_step_that_was_kept_took_as_long_as_before",),
    ),
    Mutant(
        "an-archive-may-be-larger-than-its-limit",
        "suite/archive.py",
        "        if self.tell() + len(data) > self._limit_bytes:\n",
        "        if self.tell() > self._limit_bytes:\n",
        (f"{_ARCHIVE}test_more_room_keeps_more_steps", f"{_ARCHIVE}test_the_command_says_how_much_is_left"),
    ),
    Mutant(
        "a-budget-is-spent-in-the-order-of-the-names",
        "suite/plan.py",
        "    ordered = sorted(cases, key=lambda case: order.index(case.purpose))\n",
        "    ordered = sorted(cases, key=lambda case: len(order))\n",
        (f"{_BUDGET}test_every_cases_tokens_come_first_then_attribution_then_the_rest",),
    ),
    Mutant(
        "a-round-is-cut-where-the-budget-ends",
        "suite/budget.py",
        "            if _part(run) != part:\n",
        "            if run.run_id != part:\n",
        (f"{_BUDGET}test_only_whole_rounds_are_made_and_none_that_would_end_behind_the_budget",),
    ),
    Mutant(
        "a-token-check-counts-as-a-round",
        "suite/record.py",
        'if self.sync_check != "off" or self.rotation is not None:',
        'if self.sync_check != "off":',
        (f"{_BUDGET}test_a_budget_that_suffices_makes_all_and_has_nothing_to_tell",),
    ),
    Mutant(
        "what-a-budget-left-out-is-not-told",
        "suite/left_out.py",
        "    return tuple(one for one in found if one.num_rounds < one.planned_rounds or one.lacks)\n",
        "    return tuple(one for one in found if one.num_rounds < 0)\n",
        (f"{_BUDGET}test_a_spent_budget_opens_no_further_case",),
    ),
)
