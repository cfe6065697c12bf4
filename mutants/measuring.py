"""Faults of what measures: spans, ranges, instruments, and what may enter a statistic."""

from __future__ import annotations

from mutants.mutant import Mutant

_SPANS = "tests/arms/test_spans.py::"
_CUDA = "tests/arms/test_cuda_order.py::"
_CONTRACT = "tests/runner/device/test_contract.py::"
_SUMMARY = "tests/suite/test_summary.py::"
_COSTS = "tests/suite/test_span_costs.py"
_STEADY = "tests/suite/test_steady.py::"
_SYNC = "tests/arms/test_sync_check.py::"
_FAILED = f"{_SPANS}test_a_step_that_fails_leaves_no_range_open_and_what_was_recorded"
_PHASES = f"{_SPANS}test_every_step_has_each_phase_and_one_range_of_its_kind_and_routes"
_EXACT = f"{_CUDA}test_a_spans_time_is_that_between_its_own_two_events_and_sums_stay_exact"

MUTANTS = (
    Mutant(
        "a-phases-range-is-not-closed",
        "runner/measure.py",
        "            instrument.ranges.pop()\n",
        "",
        (_PHASES,),
    ),
    Mutant(
        "a-steps-range-is-not-ended",
        "runner/measure.py",
        "            self.ranges.end(handle)\n",
        "",
        (_PHASES,),
    ),
    Mutant(
        "an-error-leaves-ranges-open",
        "runner/engine.py",
        "            self._instrument.close()",
        "            pass",
        (_FAILED,),
    ),
    Mutant(
        "an-instrument-is-not-told-to-the-device",
        "runner/executor.py",
        "device.reset(self._instrument.level)",
        "device.reset()",
        (f"{_SPANS}test_every_command_of_every_step_has_a_span[inline-refresh]",),
    ),
    Mutant(
        "a-span-that-is-lacking-is-left-out",
        "runner/device/report.py",
        'return [*found, *(Span(step_id, name, "compute", None, None, why) for name in lacking.elements())]',
        "return found",
        (f"{_CONTRACT}test_a_command_that_did_not_run_has_a_span_without_times_and_a_reason[inline]",),
    ),
    Mutant(
        "spans-are-added-to-those-of-an-earlier-step",
        "runner/device/report.py",
        "self._array[step_id % RING_SIZE, 0] = (0, step_id, 0)",
        "self._array[step_id % RING_SIZE, 0, 1] = step_id",
        (f"{_SPANS}test_every_command_of_every_step_has_a_span[inline-refresh]",),
    ),
    Mutant(
        "a-span-begins-after-its-command",
        "runner/device/command_runner.py",
        "        finally:\n            end_ns = time.perf_counter_ns()",
        "        finally:\n            start_ns = end_ns = time.perf_counter_ns()",
        (f"{_CONTRACT}test_a_command_that_did_not_run_has_a_span_without_times_and_a_reason[inline]",),
    ),
    Mutant(
        "cuda-times-all-spans-from-the-steps-start",
        "runner/device/cuda.py",
        "time_ns = start_ns = time_ns + _elapsed_ns(last, item.start)",
        "time_ns = start_ns = (step.start_ns or 0) + _elapsed_ns(last, item.start)",
        (_EXACT,),
    ),
    Mutant(
        "cuda-reads-spans-that-are-not-done",
        "runner/device/cuda.py",
        "if not item.end.query():",
        "if False:",
        (f"{_CUDA}test_a_span_that_is_not_done_is_null_with_a_reason_and_nobody_waits_for_it",),
    ),
    Mutant(
        "cuda-puts-an-event-back-twice",
        "runner/device/cuda.py",
        "            self._timers.append(item.start)\n",
        "            self._timers += [item.start, item.start]\n",
        (f"{_CUDA}test_events_that_time_spans_are_used_again_once_they_are_read",),
    ),
    Mutant(
        "all-commands-are-repeated",
        "runner/commands.py",
        'repeats.get(command.span or "", 1)',
        "max(repeats.values())",
        (f"{_SPANS}test_commands_that_may_be_repeated_change_no_token_when_they_are",),
    ),
    Mutant(
        "runs-with-instruments-enter-figures",
        "suite/record.py",
        'return not self.is_warmup and self.instrument == "off" and not self.repeats',
        "return not self.is_warmup and not self.repeats",
        (
            f"{_SUMMARY}test_a_run_with_instruments_or_repeated_commands_enters_no_figure_and_the_ratio_is_told",
        ),
    ),
    Mutant(
        "amplified-runs-enter-figures",
        "suite/record.py",
        'self.instrument == "off" and not self.repeats',
        'self.instrument == "off"',
        (
            f"{_SUMMARY}test_a_run_with_instruments_or_repeated_commands_enters_no_figure_and_the_ratio_is_told",
        ),
    ),
    Mutant(
        "runs-checked-for-silent-waits-enter-figures",
        "suite/record.py",
        'if self.sync_check != "off" or self.rotation is not None:',
        "if self.rotation is not None:",
        (
            f"{_SUMMARY}test_a_run_with_instruments_or_repeated_commands_enters_no_figure_and_the_ratio_is_told",
        ),
    ),
    Mutant(
        "any-memory-counts-as-pinned",
        "runner/kernels/sync_watch.py",
        "if _storage(host) not in self._pinned:",
        "if False:",
        (f"{_SYNC}test_a_copy_that_waits_is_found",),
    ),
    Mutant(
        "strided-copies-are-not-looked-for",
        "runner/kernels/sync_watch.py",
        "if not (source.is_contiguous() and target.is_contiguous()):",
        "if False:",
        (f"{_SYNC}test_a_copy_that_waits_is_found",),
    ),
    Mutant(
        "blocking-copies-are-not-looked-for",
        "runner/kernels/sync_watch.py",
        "if not is_non_blocking:",
        "if False:",
        (f"{_SYNC}test_a_copy_that_waits_is_found",),
    ),
    Mutant(
        "only-named-reads-are-looked-for",
        "runner/kernels/sync_watch.py",
        "if name in _READING_CALLS:",
        "if False:",
        (f"{_SYNC}test_a_value_taken_to_the_host_is_found",),
    ),
    Mutant(
        "a-mask-is-no-read",
        "runner/kernels/sync_watch.py",
        "index.dtype in (torch.bool, torch.uint8)",
        "False",
        (f"{_SYNC}test_a_value_taken_to_the_host_is_found",),
    ),
    Mutant(
        "a-silent-wait-is-no-error",
        "runner/kernels/sync_watch.py",
        'if self.mode == "error" and self._first_of_command is not None:',
        "if False:",
        (f"{_SYNC}test_as_an_error_it_names_command_and_place",),
    ),
    Mutant(
        "findings-outlive-a-reset",
        "runner/device/command_runner.py",
        "        self._program.watch.clear()\n",
        "",
        (f"{_SYNC}test_a_device_process_tells_what_it_found",),
    ),
    Mutant(
        "torch-is-not-asked-for-its-waits",
        "runner/device/cuda.py",
        'set_mode("warn")',
        "pass",
        (f"{_SYNC}test_torchs_sync_debug_mode_is_on_around_each_step_and_only_then",),
    ),
    Mutant(
        "a-slow-filling-is-a-steady-window",
        "suite/steady.py",
        "if steps[-1].num_waiting:",
        "if False:",
        (f"{_STEADY}test_a_slow_filling_does_not_pass_for_a_settled_batch",),
    ),
    Mutant(
        "a-dip-that-others-will-fill-ends-the-window",
        "suite/steady.py",
        "not record.num_waiting and ",
        "",
        (f"{_STEADY}test_it_ends_before_the_drain_and_not_at_a_dip_that_others_will_fill",),
    ),
    Mutant(
        "the-handoff-is-the-hosts-own-time",
        "suite/span_costs.py",
        'if span.name == "launch"}',
        'if span.name == "handoff"}',
        (_COSTS,),
    ),
    Mutant(
        "a-plan-that-came-to-nothing-is-its-steps",
        "suite/span_costs.py",
        "start_ns < record.start_ns",
        "False",
        (_COSTS,),
    ),
    Mutant(
        "time-between-spans-is-nobodys",
        "suite/lane_pieces.py",
        'UNATTRIBUTED = "unattributed"',
        'UNATTRIBUTED = "schedule"',
        (_COSTS,),
    ),
    Mutant(
        "a-command-of-another-stream-counts-as-serial",
        "suite/span_costs.py",
        '        *_split("output", lanes["output"], output, busy),\n',
        '        *_serial(lanes["output"], output, devices),\n',
        (_COSTS,),
    ),
    Mutant(
        "idle-time-belongs-to-the-step-before",
        "suite/span_costs.py",
        "        step_id = by_start[index].step_id\n",
        "        step_id = by_start[index - 1].step_id\n",
        (_COSTS,),
    ),
)
