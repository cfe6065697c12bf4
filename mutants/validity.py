"""Faults of the rules of validity: blind to what they are for, or INVALID runs in a figure."""

from __future__ import annotations

from mutants.mutant import Mutant

_ACCOUNTS = "tests/suite/test_validity_accounts.py::"
_MACHINE = "tests/suite/test_validity_machine.py::"
_ROUNDS = "tests/suite/test_validity_rounds.py::"
_SCHEDULE = "tests/suite/test_validity_schedule.py::"
_SUMMARY = "tests/suite/test_summary.py::"
_PACED = "tests/suite/test_precision.py::"

MUTANTS = (
    Mutant(
        "littles-law-forgets-who-waits",
        "suite/validity/accounts.py",
        "step.num_rows + step.num_waiting for step",
        "step.num_rows for step",
        (f"{_ACCOUNTS}test_littles_law_counts_those_that_wait_in_the_scheduler",),
    ),
    Mutant(
        "littles-law-allows-anything",
        "suite/validity/accounts.py",
        "LITTLE_TOLERANCE * lived_ms + edges_ms",
        "LITTLE_TOLERANCE * lived_ms + 100 * edges_ms",
        (f"{_ACCOUNTS}test_littles_law_tells_requests_whose_stay_is_recorded_wrong",),
    ),
    Mutant(
        "littles-law-takes-a-stall-for-a-fault",
        "suite/validity/accounts.py",
        "padded[came] + padded[came + 1] + padded[went]",
        "0 * padded[came] + padded[went]",
        (f"{_ACCOUNTS}test_littles_law_holds_through_a_stall_of_the_machine",),
    ),
    Mutant(
        "a-time-on-another-clock-is-in-order",
        "suite/validity/accounts.py",
        "known == sorted(known) and all(",
        "all(",
        (f"{_ACCOUNTS}test_times_that_go_back_or_lie_on_another_clock_are_told",),
    ),
    Mutant(
        "ids-are-not-counted",
        "suite/validity/accounts.py",
        "counts = (request.num_output_tokens, len(request.output_ids), len(request.token_ns))",
        "counts = (request.num_output_tokens, request.num_output_tokens, len(request.token_ns))",
        (f"{_ACCOUNTS}test_tokens_are_counted_once_and_alike",),
    ),
    Mutant(
        "the-rate-that-was-sent-is-not-looked-at",
        "suite/validity/schedule.py",
        "RATE_TOLERANCE * asked_ms + step_ms",
        "10 * RATE_TOLERANCE * asked_ms + step_ms",
        (f"{_SCHEDULE}test_an_open_loop_that_sends_slower_than_asked_is_off_its_rate",),
    ),
    Mutant(
        "a-growing-queue-is-steady",
        "suite/validity/steadiness.py",
        "np.polyfit(at_ms, delay_ms, 1)[0]",
        "np.polyfit(at_ms, delay_ms, 1)[1] * 0",
        (f"{_SCHEDULE}test_a_queue_that_grows_all_the_time_is_not_steady",),
    ),
    Mutant(
        "our-own-load-is-foreign",
        "suite/record.py",
        "return max(0.0, self.busy_s - self.own_s)",
        "return max(0.0, self.busy_s)",
        (f"{_MACHINE}test_load_of_others_and_stolen_time_make_a_run_invalid_for_timing",),
    ),
    Mutant(
        "a-power-cap-is-no-throttling",
        "suite/gpu_use.py",
        "self._reasons |= self._ask(self._event_reasons) or 0",
        "self._reasons |= (self._ask(self._event_reasons) or 0) & ~4",
        (f"{_MACHINE}test_throttling_makes_a_run_invalid_and_says_by_what",),
    ),
    Mutant(
        "clocks-are-held-against-one-arm-alone",
        "suite/validity/machine.py",
        "cases[run.scenario, run.case_id].append",
        "cases[run.scenario, run.arm].append",
        (f"{_MACHINE}test_a_clock_below_that_of_the_cases_other_runs_makes_the_slow_runs_invalid",),
    ),
    Mutant(
        "drift-needs-no-size",
        "suite/validity/rounds.py",
        "if abs(change) < MIN_DRIFT or p_value",
        "if abs(change) < 0 or p_value",
        (f"{_ROUNDS}test_a_trend_too_small_to_matter_and_one_of_few_rounds_are_not_told",),
    ),
    Mutant(
        "drift-needs-no-significance",
        "suite/validity/rounds.py",
        "if abs(change) < MIN_DRIFT or p_value >= DRIFT_ALPHA",
        "if abs(change) < MIN_DRIFT or p_value >= 2",
        (f"{_ROUNDS}test_a_first_round_that_is_slow_is_no_trend_but_a_slow_warming_is",),
    ),
    Mutant(
        "a-machine-that-slows-all-arms-is-a-drift-of-each",
        "suite/validity/rounds.py",
        "return {number: log - under[number] for number, log",
        "return {number: log for number, log",
        (f"{_ROUNDS}test_a_machine_that_slows_all_arms_alike_breaks_no_rule_and_is_told",),
    ),
    Mutant(
        "one-arm-makes-a-change-of-the-machine",
        "suite/validity/rounds.py",
        "if abs(sum(np.sign(changes))) < len(changes) or min(map(abs, changes)) < MIN_DRIFT:",
        "if max(map(abs, changes)) < MIN_DRIFT:",
        (f"{_ROUNDS}test_half_the_arms_do_not_make_a_change_of_the_machine_though_the_mean_of_all_moves",),
    ),
    Mutant(
        "a-drift-throws-out-its-last-round",
        "suite/validity/rule.py",
        "if finding.rule not in RULES or RULES[finding.rule].is_of_run",
        'if finding.rule != "too-few-rounds"',
        (f"{_ROUNDS}test_a_drift_leaves_its_arms_rounds_in_the_figures_but_the_arm_is_not_valid",),
    ),
    Mutant(
        "invalid-rounds-are-averaged-in",
        "suite/summary.py",
        "valid if is_timed(name) else measured",
        "measured if is_timed(name) else valid",
        (f"{_SUMMARY}test_the_times_of_an_invalid_round_are_in_no_figure_and_what_it_counted_is",),
    ),
    Mutant(
        "invalid-rounds-count-for-the-precision",
        "suite/pace.py",
        "compare(records, {key: design}, self._judged(records))",
        "compare(records, {key: design})",
        (f"{_PACED}test_invalid_runs_are_no_rounds_and_in_no_interval_that_decides",),
    ),
    Mutant(
        "a-percentile-needs-no-samples",
        "suite/metrics.py",
        '"p99": 100})',
        '"p99": 1})',
        (f"{_SUMMARY}test_a_percentile_of_too_few_samples_is_marked_with_their_number",),
    ),
    Mutant(
        "strict-is-not-looked-at",
        "suite/commands.py",
        "is_in_doubt = is_strict and any(",
        "is_in_doubt = False and any(",
        (
            "tests/suite/test_cli.py::test_invalid_for_timing_is_marked_and_fails_the_command_only_with_strict",
        ),
    ),
    Mutant(
        "wrong-accounts-do-not-fail-the-command",
        "suite/commands.py",
        "return is_in_doubt or has_wrong_accounts(published.findings)",
        "return is_in_doubt",
        ("tests/suite/test_cli.py::test_wrong_accounts_fail_the_command_with_or_without_strict",),
    ),
)
