"""Faults of the page beyond its first screen: what n leaves out, reasons, cases, texts, the time of cost."""

from __future__ import annotations

from mutants.mutant import Mutant

_AMPLIFICATION = "tests/suite/test_amplification.py::"
_ANSWER = "tests/suite/test_report_answer.py::"
_COMPARED = "tests/suite/test_compare_folders.py::"
_FIGURES = "tests/suite/test_panel_figures.py::"
_TABLES = "tests/suite/test_report_tables.py::"
_TEXTS = "tests/suite/test_token_text.py::"

MUTANTS = (
    Mutant(
        "rounds-that-are-invalid-are-left-out-in-silence",
        "suite/report/wording.py",
        "    if not num_invalid:\n",
        "    if True:\n",
        (f"{_TABLES}test_n_says_how_many_rounds_are_invalid_of_times_and_of_nothing_else",),
    ),
    Mutant(
        "an-invalid-run-is-held-against-its-partner",
        "suite/comparison.py",
        "run.round for runs, broken in sides for run in runs if run.is_completed and run.run_id in broken\n",
        "run.round for runs, broken in sides for run in runs if False\n",
        (f"{_ANSWER}test_a_round_left_out_for_one_arm_is_no_round_that_only_the_other_has",),
    ),
    Mutant(
        "a-failed-run-is-counted-as-invalid-too",
        "suite/report/answer.py",
        "for run_id, rules in broken.items() if run_id in completed]",
        "for run_id, rules in broken.items()]",
        (f"{_ANSWER}test_a_run_that_failed_is_counted_once_and_as_that",),
    ),
    Mutant(
        "every-cell-repeats-its-reason",
        "suite/report/compare_page.py",
        'return f"[{self._numbers.setdefault(reason, len(self._numbers) + 1)}]"',
        'return f"{reason} [{self._numbers.setdefault(reason, len(self._numbers) + 1)}]"',
        (f"{_COMPARED}test_the_page_names_both_runs_and_gives_each_reason_once",),
    ),
    Mutant(
        "the-cases-drawn-are-named-as-left-out",
        "suite/report/cases.py",
        "if place not in kept]",
        "if place in kept]",
        (f"{_FIGURES}test_of_a_sweep_too_large_to_draw_it_is_said_which_cases_are_left_out",),
    ),
    Mutant(
        "the-runs-without-repeats-take-no-time",
        "suite/cost_time.py",
        "    runs_a_round = num_spans + num_plain_turns(num_spans)\n",
        "    runs_a_round = num_spans\n",
        (f"{_ANSWER}test_the_time_that_cost_takes_is_told_from_the_runs_that_were_made",),
    ),
    Mutant(
        "a-piece-of-text-loses-its-space",
        "suite/token_text.py",
        "return whole.removeprefix(head) if whole.startswith(head) else self._decode([token])",
        "return self._decode([token])",
        (f"{_TEXTS}test_pieces_keep_their_spaces_and_follow_what_came",),
    ),
    Mutant(
        "a-bill-made-beside-a-busy-neighbour-looks-like-any",
        "suite/bill.py",
        '    if not broken:\n        return ""\n    which',
        '    if broken:\n        return ""\n    which',
        (
            "tests/suite/test_cost.py::test_a_bill_made_beside_a_busy_neighbour_says_so_and_counts_all_the_same",
        ),
    ),
    Mutant(
        "the-lead-in-of-a-list-is-billed",
        "suite/slopes.py",
        "if place and step.step_id not in runs[0].lead_in]",
        "if place]",
        (f"{_AMPLIFICATION}test_what_is_repeated_in_a_lead_in_step_is_in_no_line",),
    ),
)
