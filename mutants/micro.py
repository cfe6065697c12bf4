"""Faults of micro-benchmarks and ceilings: what is timed, how often, and against what it is held."""

from __future__ import annotations

from mutants.mutant import Mutant

_TIMING = "tests/suite/micro/test_micro_timing.py::"
_MEDIAN = "tests/suite/micro/test_micro_median.py::"
_STORE = "tests/suite/micro/test_ceiling_store.py::"
_POOL = "tests/suite/micro/test_micro_pool.py::"
_CASES = "tests/suite/micro/test_micro_cases.py::"
_COMMAND = "tests/suite/micro/test_micro_command.py::"
_SHARES = "tests/suite/test_ceilings.py::"
_TYPES = "tests/suite/micro/test_ceiling_types.py::"
_KEPT = "tests/suite/test_kept_ceilings.py::"

MUTANTS = (
    Mutant(
        "a-medians-interval-is-one-sided",
        "suite/micro/median.py",
        "if 2 * tail > 1 - CONFIDENCE:",
        "if tail > 1 - CONFIDENCE:",
        (f"{_MEDIAN}test_known_ranks",),
    ),
    Mutant(
        "every-sample-begins-with-the-same-buffers",
        "suite/micro/timing.py",
        "self._next = (first + count) % size",
        "self._next = 0",
        (f"{_TIMING}test_buffers_are_rotated_across_samples_and_none_is_left_out",),
    ),
    Mutant(
        "work-from-before-is-within-the-events",
        "suite/micro/timing.py",
        "        self._synchronize()\n        start.record()",
        "        start.record()\n        self._synchronize()",
        (f"{_TIMING}test_a_sample_has_one_pair_of_events_and_waits_only_outside_it",),
    ),
    Mutant(
        "a-sample-is-shorter-than-asked",
        "suite/micro/timing.py",
        "if elapsed_ns >= effort.min_sample_ns:",
        "if elapsed_ns >= effort.min_sample_ns / 4:",
        (f"{_TIMING}test_a_sample_is_never_shorter_than_asked",),
    ),
    Mutant(
        "a-cold-rotation-fits-the-cache",
        "suite/micro/machine.py",
        "slots = self.cache_bytes // touched_bytes + 2",
        "slots = self.cache_bytes // touched_bytes // 2 + 2",
        (f"{_POOL}test_a_cold_pool_has_more_memory_than_the_cache_and_none_of_it_twice",),
    ),
    Mutant(
        "a-strided-source-is-in-one-piece",
        "suite/micro/transfers.py",
        "_ROW_BYTES * (1 + is_strided)",
        "_ROW_BYTES",
        (f"{_CASES}test_flags_reach_the_device_by_every_way_of_copying",),
    ),
    Mutant(
        "a-merge-is-timed-without-its-rows",
        "suite/micro/pool.py",
        "packed[layout.supplied_length : layout.resident_first] = torch.tensor(mix.lengths)",
        "pass",
        (f"{_POOL}test_every_way_to_merge_gives_the_same_rows",),
    ),
    Mutant(
        "ceilings-are-written-in-place",
        "suite/ceiling_store.py",
        "        replace_file(path, lambda file: file.write(text.encode()))",
        "        path.write_text(text)",
        (f"{_STORE}test_who_writes_at_the_same_time_leaves_a_whole_file",),
    ),
    Mutant(
        "ceilings-of-one-thread-are-those-of-two",
        "suite/ceiling_store.py",
        '        "num_threads": num_threads,\n',
        "",
        (f"{_STORE}test_the_fingerprint_tells_apart_what_changes_a_ceiling",),
    ),
    Mutant(
        "a-measuring-process-that-dies-is-no-failure",
        "suite/micro/session.py",
        "if not is_done and findings.failure is None:",
        "if False:",
        (f"{_COMMAND}test_rows_before_a_crash_are_kept_and_its_last_words_told",),
    ),
    Mutant(
        "the-hosts-time-counts-as-the-devices",
        "suite/ceilings.py",
        'if span.lane not in ("compute", "output"):',
        'if span.lane == "steps":',
        (f"{_SHARES}test_the_hosts_lane_is_no_device_time",),
    ),
    Mutant(
        "a-weight-counts-as-one-operation",
        "suite/ceilings.py",
        "operations = 2 * linear_parameters(model)",
        "operations = linear_parameters(model)",
        (f"{_SHARES}test_forward_counts_two_operations_a_weight_and_token",),
    ),
    Mutant(
        "many-copies-are-held-against-one",
        "suite/ceilings.py",
        "copies * time_at(ceilings.upload_pinned, num_bytes / copies)",
        "time_at(ceilings.upload_pinned, num_bytes)",
        (f"{_SHARES}test_uploads_are_held_against_as_many_copies_of_their_mean_size",),
    ),
    Mutant(
        "ceilings-of-one-type-are-those-of-another",
        "suite/ceiling_store.py",
        '        "dtype": dtype,\n',
        "",
        (f"{_STORE}test_the_fingerprint_tells_apart_what_changes_a_ceiling",),
    ),
    Mutant(
        "a-16-bit-forward-is-held-against-a-float32-ceiling",
        "suite/ceilings.py",
        "if dtype != ceilings.dtype and steps:",
        "if False:",
        (f"{_SHARES}test_a_forward_is_held_against_a_ceiling_of_its_own_type_alone",),
    ),
    Mutant(
        "16-bit-products-are-measured-packed",
        "suite/micro/ceiling_probes.py",
        "return is_quickened(linear.weight.device, linear.weight.dtype) and can_pack()",
        'return linear.weight.device.type == "cpu" and can_pack()',
        (f"{_TYPES}test_the_products_of_a_pass_are_those_of_the_runners_forward",),
    ),
    Mutant(
        "a-case-gets-float32-ceilings-whatever-it-computes-in",
        "suite/kept_ceilings.py",
        "in _types_from(config.dtype):",
        'in _types_from("float32"):',
        (f"{_KEPT}test_a_case_gets_the_ceilings_of_its_own_type",),
    ),
)
