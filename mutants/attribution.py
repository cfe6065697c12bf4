"""Faults of lists of steps and of what is read from them: rounds, kinds, products, and who may enter."""

from __future__ import annotations

from mutants.mutant import Mutant

_TABLE = "tests/suite/test_attribution.py::"
_LISTS = "tests/suite/test_step_list.py::"
_RUNS = "tests/suite/test_listed_runs.py::"
_CELLS = "tests/suite/test_break_even.py::"
_ANY_MIX = f"{_LISTS}test_any_mix_is_made_and_sync_and_async_take_the_same_steps"

MUTANTS = (
    Mutant(
        "the-lead-in-is-timed",
        "suite/attribution.py",
        "if not is_left_out(step.step_id):",
        "if True:",
        (f"{_TABLE}test_a_lead_in_step_amid_the_others_is_in_no_figure",),
    ),
    Mutant(
        "a-step-is-timed-from-its-own-start",
        "suite/attribution.py",
        "before_ns = step.end_ns",
        "before_ns = None",
        (f"{_TABLE}test_time_is_from_the_end_of_a_step_to_the_end_of_the_next_and_lead_in_only_ends_one",),
    ),
    Mutant(
        "the-price-has-rounds-that-its-factors-lack",
        "suite/attribution.py",
        "rounds = self._rounds_of_price(kind) if pair == PRICE else None",
        "rounds = None",
        (f"{_TABLE}test_the_factors_always_multiply_to_the_price",),
    ),
    Mutant(
        "a-line-has-its-arms-the-other-way-round",
        "suite/attribution.py",
        'Pair("flag upload", "async-rows", "async-fill")',
        'Pair("flag upload", "async-fill", "async-rows")',
        (f"{_TABLE}test_the_table_has_these_lines_and_no_others",),
    ),
    Mutant(
        "the-merge-line-mixes-two-choices",
        "suite/attribution.py",
        'Pair("masked merge", "async-fill", "skip")',
        'Pair("masked merge", "async-fill", "resident")',
        (f"{_TABLE}test_every_line_but_those_against_ids_differs_in_exactly_one_choice",),
    ),
    Mutant(
        "noise-between-the-same-commands-is-a-ratio",
        "suite/attribution.py",
        "return SAME_COMMANDS if self._same_commands(pair, kind) else None",
        "return None",
        (f"{_TABLE}test_where_both_arms_run_the_same_commands_there_is_no_ratio",),
    ),
    Mutant(
        "a-run-that-left-its-list-is-attributed",
        "suite/attribution.py",
        "if listed is None or listed.difference is not None or not is_usable:",
        "if listed is None or not is_usable:",
        (f"{_TABLE}test_an_invalid_run_takes_its_round_out_and_one_that_left_its_list_too",),
    ),
    Mutant(
        "a-run-that-left-its-list-is-valid",
        "suite/validity/accounts.py",
        "if run.step_list is not None and run.step_list.difference is not None:",
        "if False:",
        (f"{_RUNS}test_a_run_that_takes_other_steps_is_invalid",),
    ),
    Mutant(
        "a-step-is-not-held-against-its-list",
        "suite/step_list_check.py",
        "if getattr(due, name) != getattr(step, name):",
        "if getattr(due, name) > getattr(step, name):",
        (f"{_LISTS}test_a_run_that_left_its_list_is_told_by_the_first_step_that_differs",),
    ),
    Mutant(
        "a-row-decodes-one-step-too-long",
        "suite/step_list_plan.py",
        "one.num_outputs += 1",
        "one.num_outputs += 1 + (one.num_outputs == 7)",
        (_ANY_MIX,),
    ),
    Mutant(
        "what-an-ended-request-still-holds-is-forgotten",
        "suite/step_list_plan.py",
        "holding = [*self._decoding, *newcomers, *self._gone]",
        "holding = [*self._decoding, *newcomers]",
        (f"{_LISTS}test_what_an_async_arm_still_holds_is_counted",),
    ),
    Mutant(
        "a-recorded-request-comes-a-step-late",
        "suite/step_list_recorded.py",
        "bisect_right(begun, request.sent_ns)",
        "bisect_right(begun, request.sent_ns + 10**9)",
        (f"{_RUNS}test_the_ask_of_a_recorded_request_is_the_step_it_came_before",),
    ),
    Mutant(
        "each-cell-of-a-sweep-is-judged-alone",
        "suite/break_even.py",
        "adjusted = iter(adjusted_p_values([(cell.ratio, cell.floor) for cell in judged]))",
        "adjusted = iter(cell.floor.p_value(cell.ratio) for cell in judged)",
        (f"{_CELLS}test_holm_is_over_all_cells_of_the_sweep",),
    ),
)
