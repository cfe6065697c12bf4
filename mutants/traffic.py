"""Faults of traffic: traces read wrong, times and lengths drawn wrong, a pace that is not kept."""

from __future__ import annotations

from mutants.mutant import Mutant

_FORMATS = "tests/suite/test_trace_formats.py::"
_BLOCKS = "tests/suite/test_prefix_blocks.py::"
_CLIENTS = "tests/suite/test_servegen.py::"
_KINDS = "tests/suite/test_arrival_kinds.py::"
_PACE = "tests/suite/test_arrivals.py::"
_LENGTHS = "tests/suite/test_lengths.py::"
_ERRORS = "tests/suite/test_scenario_errors.py::test_a_bad_input_is_refused_with_place_value_and_fix"

MUTANTS = (
    Mutant(
        "milliseconds-are-read-as-seconds",
        "suite/traces/mooncake.py",
        "smallest=0) / 1000",
        "smallest=0) / 1",
        (f"{_FORMATS}test_prefix_blocks_come_with_milliseconds",),
    ),
    Mutant(
        "blocks-are-not-held-against-the-length",
        "suite/traces/mooncake.py",
        "if len(ids) != num_blocks:",
        "if len(ids) > num_blocks:",
        (f"{_ERRORS}[fewer blocks than the prompt has]",),
    ),
    Mutant(
        "one-block-at-two-lengths-is-taken",
        "suite/traces/block_lengths.py",
        "if before != rest:",
        "if before > rest:",
        (f"{_ERRORS}[one block at two lengths]",),
    ),
    Mutant(
        "a-block-is-drawn-anew-for-each-place",
        "suite/prompt_drawing.py",
        'generator = seeded(seed, "block text", block_id)',
        'generator = seeded(seed, f"block text {first}", block_id)',
        (f"{_BLOCKS}test_a_block_means_the_same_tokens_wherever_it_stands",),
    ),
    Mutant(
        "ends-of-blocks-are-not-scaled",
        "suite/trace_demand.py",
        "scaled(size * number, scale)) for number",
        "size * number) for number",
        (f"{_BLOCKS}test_equal_blocks_are_equal_tokens_at_every_scale",),
    ),
    Mutant(
        "images-break-equal-beginnings",
        "suite/workload.py",
        "return [need.text_tokens] * need.num_images",
        "return [0] * need.num_images",
        (f"{_BLOCKS}test_images_stand_behind_the_blocks",),
    ),
    Mutant(
        "failed-requests-are-replayed",
        "suite/trace_demand.py",
        "rows = [row for row in trace.rows if not row.is_failed]",
        "rows = [row for row in trace.rows if row.context_tokens]",
        (f"{_FORMATS}test_requests_that_failed_are_left_out_and_counted",),
    ),
    Mutant(
        "the-whole-file-is-read-for-its-first-rows",
        "suite/traces/reading.py",
        "stream.read(1024).strip()",
        "stream.read().strip()",
        (f"{_FORMATS}test_what_lies_behind_the_limit_costs_nothing",),
    ),
    Mutant(
        "a-zone-is-dropped-in-silence",
        "suite/traces/base.py",
        r"(Z|\+00:00)?",
        r"(Z|[-+][0-9]{2}:[0-9]{2})?",
        (f"{_ERRORS}[naive times in one file with another zone]",),
    ),
    Mutant(
        "a-window-sends-one-request-less",
        "suite/traces/servegen.py",
        "return round(self.rate * self.width_s)",
        "return max(0, round(self.rate * self.width_s) - 1)",
        (f"{_CLIENTS}test_each_window_has_the_requests_its_rate_says_and_an_idle_one_none",),
    ),
    Mutant(
        "every-pattern-is-gamma",
        "suite/traces/servegen.py",
        "generator.weibull(self.shape, size)",
        "generator.standard_gamma(self.shape, size)",
        (f"{_CLIENTS}test_gaps_have_the_shape_of_their_pattern",),
    ),
    Mutant(
        "all-clients-draw-alike",
        "suite/traces/servegen.py",
        'f"servegen times {self.name}"',
        '"servegen times"',
        (f"{_CLIENTS}test_clients_are_superposed_and_none_changes_another",),
    ),
    Mutant(
        "lengths-come-from-the-first-window",
        "suite/traces/servegen_dataset.py",
        "bisect.bisect_right(self.starts, time_s) - 1",
        "0",
        (f"{_CLIENTS}test_lengths_come_from_the_histograms_of_the_dataset_window",),
    ),
    Mutant(
        "any-text-is-evaluated-as-a-histogram",
        "suite/traces/servegen_dataset.py",
        "if not isinstance(text, str) or not _HISTOGRAM.fullmatch(text):",
        "if not isinstance(text, str):",
        (f"{_CLIENTS}test_what_is_no_histogram_is_never_evaluated",),
    ),
    Mutant(
        "burstiness-leaves-the-rate-behind",
        "suite/arrival_kinds.py",
        "/ (self.rate * self.burstiness)",
        "/ self.rate",
        (f"{_KINDS}test_gamma_gaps_have_the_shape_of_their_burstiness",),
    ),
    Mutant(
        "a-ramp-jumps-at-once",
        "suite/arrival_kinds.py",
        "2 * slope * inside",
        "slope * inside",
        (f"{_KINDS}test_an_even_ramp_inverts_the_integrated_rate",),
    ),
    Mutant(
        "a-limit-moves-the-schedule",
        "suite/arrivals.py",
        "                self._places.take(self._requests[self._num_sent].request.request_id)\n",
        "                self._places.take(self._requests[self._num_sent].request.request_id)\n"
        "                self._offsets_ns[self._num_sent] = now - self.start_ns\n",
        (f"{_PACE}test_at_one_at_a_time_the_growing_queue_shows_in_latency_from_the_schedule",),
    ),
    Mutant(
        "sleeps-add-up",
        "suite/arrivals.py",
        "            self._num_sent += 1\n",
        "            self.start_ns += now - self.scheduled_ns(self._num_sent)\n"
        "            self._num_sent += 1\n",
        (f"{_PACE}test_ten_thousand_requests_at_200_a_second_are_sent_within_2_percent_of_the_rate",),
    ),
    Mutant(
        "a-place-counts-from-when-it-is-seen",
        "suite/arrivals.py",
        "self._scheduled_ns.append(self._places.take(request.request_id))",
        "self._places.take(request.request_id)\n                self._scheduled_ns.append(now)",
        (f"{_PACE}test_a_closed_loop_sends_when_one_ends_and_that_is_when_it_was_due",),
    ),
    Mutant(
        "places-are-never-given-back",
        "suite/arrivals.py",
        "                heapq.heappush(self._free_ns, ended_ns)\n",
        "                heapq.heappush(self._free_ns, ended_ns) if not self._free_ns else None\n",
        (f"{_PACE}test_a_closed_loop_sends_when_one_ends_and_that_is_when_it_was_due",),
    ),
    Mutant(
        "waiting-for-a-place-is-off-schedule",
        "suite/validity/schedule.py",
        "has_place = most is None or place < most",
        "has_place = most is None or place <= most",
        (f"{_PACE}test_waiting_for_a_place_is_not_off_schedule_but_waiting_longer_is",),
    ),
    Mutant(
        "the-pace-is-not-in-the-hash",
        "suite/workload.py",
        "digest = hashlib.sha256(pace.encode())",
        "digest = hashlib.sha256()",
        (f"{_KINDS}test_the_pace_is_part_of_the_hash",),
    ),
    Mutant(
        "a-lognormal-forgets-its-spread",
        "suite/lengths.py",
        "np.exp(shape.sigma * generator",
        "np.exp(generator",
        (f"{_LENGTHS}test_lognormal_lengths_have_their_median_and_spread",),
    ),
    Mutant(
        "a-histogram-depends-on-the-order-it-is-written-in",
        "suite/weighted.py",
        "ordered = sorted(weights.items())",
        "ordered = list(weights.items())",
        (f"{_LENGTHS}test_a_histogram_is_drawn_by_its_weights_in_whatever_order",),
    ),
)
