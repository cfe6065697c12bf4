"""Mutants of what keeps measured runs: the folder, its lock, and the finishing of one that was killed."""

from __future__ import annotations

from mutants.mutant import Mutant

_RESUME = "suite/resume.py"
_RESUMED = "tests/suite/test_resume.py::"
_KEPT = "tests/suite/test_faults_kept.py::"
_STORE = "tests/suite/test_store.py::"
_LIVE = "tests/suite/test_report_live.py::"

MUTANTS = (
    Mutant(
        "a-changed-scenario-is-finished-all-the-same",
        _RESUME,
        "    for name, scenario in now.items():\n",
        "    for name, scenario in list(now.items())[:0]:\n",
        (f"{_RESUMED}test_a_changed_scenario_is_refused_with_key_and_both_values",),
    ),
    Mutant(
        "another-machine-finishes-a-run",
        _RESUME,
        "    _check_environment(path, before, now)\n    plan",
        "    plan",
        (f"{_RESUMED}test_another_machine_or_code_is_refused_with_what_differs",),
    ),
    Mutant(
        "an-interrupted-run-counts-as-made",
        _RESUME,
        "reversed(loaded.whole_runs) if run.status is not Status.INTERRUPTED}",
        "reversed(loaded.whole_runs)}",
        (f"{_RESUMED}test_an_interrupted_run_is_finished_too_and_its_run_in_flight_made_again",),
    ),
    Mutant(
        "a-fresh-worker-is-not-warmed-up",
        _RESUME,
        "        kept = _without_warmups(plan, kept)\n",
        "        pass\n",
        (f"{_RESUMED}test_what_a_kill_left_is_finished_and_no_kept_round_is_made_again",),
    ),
    Mutant(
        "kept-runs-are-made-again",
        "suite/experiment.py",
        "            record = self._done.get(run.run_id)\n",
        "            record = None\n",
        (f"{_RESUMED}test_what_a_kill_left_is_finished_and_no_kept_round_is_made_again",),
    ),
    Mutant(
        "two-write-one-folder",
        "suite/folder_lock.py",
        "        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        pass\n",
        (f"{_RESUMED}test_a_run_that_another_process_writes_is_refused",),
    ),
    Mutant(
        "a-live-run-is-published-over",
        "suite/commands.py",
        "publish(path) if is_ours else publish_so_far(path)",
        "publish(path)",
        (f"{_LIVE}test_what_there_is_so_far_is_told_and_nothing_of_the_writers_is_touched",),
    ),
    Mutant(
        "a-page-of-a-live-run-outlives-it",
        "suite/publish.py",
        "    folder.remove(REPORT_SO_FAR)\n",
        "",
        (f"{_LIVE}test_once_nobody_writes_it_any_more_it_is_made_as_ever",),
    ),
    Mutant(
        "the-second-interrupt-says-nothing",
        "suite/experiment.py",
        "                self._say_last_words(sys.stderr)\n",
        "                pass\n",
        ("tests/suite/test_faults.py::test_the_second_sigint_stops_at_once",),
    ),
    Mutant(
        "an-option-that-repeats-the-scenario-is-a-change",
        _RESUME,
        "            before = _of_all(config.scenarios, name)\n",
        "            pass\n",
        (f"{_RESUMED}test_an_option_that_says_what_the_scenario_said_is_no_change",),
    ),
    Mutant(
        "a-cut-line-is-left-in-the-file",
        _RESUME,
        "    if of_runs or len(kept) < len(loaded.runs):\n",
        "    if len(kept) < len(loaded.runs) - 1:\n",
        (f"{_RESUMED}test_a_cut_last_line_is_mended_with_a_warning_and_its_run_made_again",),
    ),
    Mutant(
        "a-missing-table-is-an-empty-one",
        "suite/store.py",
        "    if num_expected > 0 and not path.is_file():\n",
        "    if False:\n",
        (f"{_STORE}test_a_run_whose_table_is_gone_is_shown_with_one_finding_about_that_file",),
    ),
    Mutant(
        "a-table-that-lost-its-rows-is-whole",
        "suite/store.py",
        "    if num_rows < num_expected:\n",
        "    if False:\n",
        (f"{_STORE}test_a_run_whose_table_is_gone_is_shown_with_one_finding_about_that_file",),
    ),
    Mutant(
        "a-line-half-written-stays",
        "suite/store.py",
        "                os.truncate(path, size)\n",
        "                pass\n",
        (f"{_STORE}test_a_limit_that_the_system_itself_sets_cuts_no_line_in_half",),
    ),
    Mutant(
        "out-of-memory-is-any-death",
        "suite/worker_process.py",
        "if is_killed or tells_out_of_memory(tail):",
        "if is_killed:",
        (
            f"{_KEPT}test_workers_that_crash_hang_or_run_out_of_memory_are_typed_failures_and_the_others_go_on",
        ),
    ),
    Mutant(
        "isolated-runs-share-a-worker",
        "suite/experiment.py",
        "return planned.is_isolated and not run.repeats",
        "return False",
        (f"{_KEPT}test_with_isolation_every_run_has_a_worker_of_its_own_and_the_notes_say_so",),
    ),
)
