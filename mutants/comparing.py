"""Mutants of what compares runs: which cases and rounds belong together, the floor, the gate, the turns."""

from __future__ import annotations

from mutants.mutant import Mutant

_RUNS = "suite/compare_runs.py"
_GATE = "suite/gate.py"
_TURNS = "suite/baseline_turns.py"
_RATIOS = "suite/ratios.py"
_COMPARED = "tests/suite/test_compare_runs.py::"
_HELD = "tests/suite/test_gate_limits.py::"
_VERDICT = "tests/suite/test_verdict.py::"
_TAKEN = "tests/suite/test_baseline_turns.py::"
_UNPAIRED = "tests/suite/test_ratios.py::"

MUTANTS = (
    Mutant(
        "cases-of-one-name-are-one-case",
        _RUNS,
        "found.setdefault(run.case_id, []).append(run)",
        "found.setdefault(run.case_label, []).append(run)",
        (f"{_COMPARED}test_cases_are_matched_by_content_and_never_by_name",),
    ),
    Mutant(
        "other-requests-pass-for-the-same",
        _RUNS,
        "return hashes[0] == hashes[1]",
        "return len(hashes) == 2",
        (f"{_COMPARED}test_the_same_case_with_other_requests_is_not_compared",),
    ),
    Mutant(
        "runs-apart-are-paired-by-their-number",
        _RUNS,
        "return self.base.interleaved is not None and self.base.interleaved == self.head.interleaved",
        "return True",
        (f"{_COMPARED}test_runs_that_took_turns_are_paired_so_that_a_drift_cancels",),
    ),
    Mutant(
        "the-floor-is-the-narrower-one",
        _RUNS,
        "return max(floors.values(), key=lambda floor: floor.value or 0.0)",
        "return min(floors.values(), key=lambda floor: floor.value or 0.0)",
        (f"{_COMPARED}test_the_floor_is_the_wider_of_both_runs_and_missing_where_one_has_none",),
    ),
    Mutant(
        "within-what-an-arm-differs-from-itself-all-are-equal",
        "suite/verdict.py",
        "    if floor.is_unsteady:\n        return Verdict(Word.CANNOT_TELL",
        "    if floor.is_unsteady and is_outside:\n        return Verdict(Word.CANNOT_TELL",
        (f"{_VERDICT}test_of_an_arm_that_differs_from_itself_what_is_beyond_the_farther_end_is_told",),
    ),
    Mutant(
        "beyond-a-shift-is-beyond-nothing",
        "suite/verdict.py",
        "return ratio.p_against(math.copysign(self.shift, ratio.mean_log))",
        "return ratio.p_value",
        (f"{_VERDICT}test_the_p_value_beside_an_unsteady_floor_is_of_no_difference_beyond_the_shift",),
    ),
    Mutant(
        "of-two-unsteady-runs-one-counts",
        _RUNS,
        "shift = sum(floor.shift or 0.0 for floor in known)",
        "shift = max(floor.shift or 0.0 for floor in known)",
        (f"{_COMPARED}test_the_floor_is_the_wider_of_both_runs_and_missing_where_one_has_none",),
    ),
    Mutant(
        "the-gate-forgets-that-an-arm-differs-from-itself",
        _GATE,
        "shift = one.floor.shift if one.floor.is_unsteady else 0.0",
        "shift = 0.0 if one.floor.is_unsteady else 0.0",
        (f"{_HELD}test_where_an_arm_differs_from_itself_only_what_is_beyond_that_is_judged",),
    ),
    Mutant(
        "invalid-runs-of-the-base-enter",
        _RUNS,
        "invalid, base_invalid = self.head.broken, self.base.broken",
        "invalid = base_invalid = self.head.broken",
        (f"{_COMPARED}test_runs_that_broke_a_rule_or_did_not_finish_do_not_enter",),
    ),
    Mutant(
        "a-repeat-of-the-reference-counts-though-invalid",
        "suite/comparison.py",
        "of_both = _mean_of_both(of_under, by_round(again, metric, sides[1][1]))",
        "of_both = _mean_of_both(of_under, by_round(again, metric, ()))",
        (
            "tests/suite/test_arm_comparison.py::"
            "test_a_repeat_of_the_reference_that_is_invalid_or_lost_leaves_its_round_to_the_other",
        ),
    ),
    Mutant(
        "two-runs-spread-alike",
        _RATIOS,
        "return math.sqrt(total), total**2 / sum(shares)",
        "return math.sqrt(total), float(over.size + under.size - 2 + 0 * sum(shares))",
        (f"{_UNPAIRED}test_unpaired_ratio_interval_and_p_value_are_those_of_welchs_test_on_logs",),
    ),
    Mutant(
        "an-environment-nobody-recorded-is-alike",
        "suite/compare_environments.py",
        "if first is None or first != second",
        "if first != second",
        (
            "tests/suite/test_compare_environments.py::"
            "test_what_neither_folder_recorded_is_not_known_to_be_alike",
        ),
    ),
    Mutant(
        "a-limit-is-broken-by-a-part-of-the-interval",
        _GATE,
        "if (high < limit.log) if limit.is_below else (low > limit.log):",
        "if (low < limit.log) if limit.is_below else (high > limit.log):",
        (f"{_HELD}test_a_limit_is_broken_where_the_whole_interval_lies_beyond_it",),
    ),
    Mutant(
        "a-gate-without-data-opens",
        _GATE,
        "return self in (Outcome.BROKEN, Outcome.NO_DATA)",
        "return self is Outcome.BROKEN",
        (
            "tests/suite/test_compare_folders.py::"
            "test_a_metric_without_data_fails_the_gate_and_an_unknown_one_is_a_mistake",
        ),
    ),
    Mutant(
        "a-gate-opens-where-too-many-rounds-are-invalid",
        _GATE,
        "if ratio.interval is None and one.lost:",
        "if ratio.interval is None and not one:",
        (f"{_HELD}test_too_few_rounds_because_others_are_invalid_do_not_open_the_gate",),
    ),
    Mutant(
        "a-gate-over-many-arms-fails-by-chance",
        _GATE,
        "adjusted = holm([_p_value(one) for one in found])",
        "adjusted = [_p_value(one) for one in found]",
        (f"{_HELD}test_of_many_arms_one_that_is_beyond_by_chance_breaks_nothing",),
    ),
    Mutant(
        "one-side-is-always-first",
        _TURNS,
        "order += [(side, run) for side in (SIDES[::-1] if is_swapped else SIDES)]",
        "order += [(side, run) for side in SIDES if is_swapped is not None]",
        (f"{_TAKEN}test_either_side_is_first_as_often_and_in_no_fixed_order",),
    ),
    Mutant(
        "two-sides-run-at-once",
        _TURNS,
        "while self._now != number:",
        "while self._now < number - 1:",
        (f"{_TAKEN}test_both_sides_run_in_turns_each_in_one_worker_and_never_at_the_same_time",),
    ),
    Mutant(
        "the-baseline-runs-our-own-files",
        "suite/baseline.py",
        "import os, sys; root = {root!r}; sys.path.insert(0, root); ",
        "import os, sys; root = {root!r}; sys.path.append(root); ",
        (
            "tests/suite/test_baseline.py::"
            "test_the_files_of_a_commit_are_there_while_they_are_needed_and_gone_afterwards",
        ),
    ),
    Mutant(
        "an-open-range-took-no-time",
        "suite/profile/capture.py",
        "num_closed = self.num_ranges - self.num_open",
        "num_closed = self.num_ranges",
        ("tests/suite/profile/test_profile_commands.py::test_open_ranges_are_not_counted_as_taking_no_time",),
    ),
    Mutant(
        "ranges-that-end-before-they-begin-count",
        "suite/profile/capture.py",
        "kept = [item for item in ranges if not item.is_reversed]",
        "kept = list(ranges)",
        (
            "tests/suite/profile/test_profile_commands.py::"
            "test_ranges_that_end_before_they_begin_are_left_out_and_told",
        ),
    ),
    Mutant(
        "a-copy-of-a-run-is-another-run",
        "suite/compare_folders.py",
        "        if one.runs and one.runs == other.runs:\n",
        "        if False:\n",
        ("tests/suite/test_compare_folders.py::test_a_copy_of_a_run_is_told_and_no_gate_opens_on_it",),
    ),
    Mutant(
        "a-request-that-stands-twice-counts-twice",
        "suite/vllm_requests.py",
        "        if first != number:\n",
        "        if False:\n",
        ("tests/suite/test_vllm_oracle.py::test_a_bad_line_is_refused_with_file_line_key_and_rule",),
    ),
)
