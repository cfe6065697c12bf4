"""Faults of the report's figures: numbers that would be drawn wrong without anything looking broken."""

from __future__ import annotations

from mutants.mutant import Mutant

_FIGURES = "tests/suite/test_panel_figures.py::"
_LANES = "tests/suite/test_lanes.py::"

MUTANTS = (
    Mutant(
        "a-wait-under-the-device-is-drawn-as-hidden-work",
        "suite/report/span_figures.py",
        'one.total_us("host", "overlapped_us", False)',
        'one.total_us("host", "overlapped_us")',
        (f"{_FIGURES}test_a_steps_length_is_the_devices_time_and_its_gaps_by_what_the_host_did",),
    ),
    Mutant(
        "the-small-spans-of-a-bar-are-lost",
        "suite/report/span_figures.py",
        "if found not in largest)",
        "if found in largest)",
        (f"{_FIGURES}test_the_spans_of_a_bar_add_up_to_the_lane_and_the_small_ones_are_other",),
    ),
    Mutant(
        "a-timelines-bar-starts-where-it-ends",
        "suite/report/timeline_figures.py",
        "base=[_ms(piece.start_ns) for piece in pieces],",
        "base=[_ms(piece.end_ns) for piece in pieces],",
        (f"{_FIGURES}test_bars_lie_where_the_pieces_were",),
    ),
    Mutant(
        "a-piece-reaches-out-of-the-picture",
        "suite/lanes.py",
        "first, last = max(piece.start_ns, start_ns), min(piece.end_ns, end_ns)",
        "first, last = piece.start_ns, piece.end_ns",
        (f"{_LANES}test_what_reaches_over_the_edges_is_cut_there",),
    ),
    Mutant(
        "lanes-begin-at-the-first-step",
        "suite/lanes.py",
        "wanted = ids.index(window.first_step_id)",
        "wanted = 0",
        (f"{_LANES}test_the_steps_begin_with_the_steady_window",),
    ),
    Mutant(
        "a-turned-ratio-keeps-its-interval",
        "suite/report/bill_figures.py",
        "(-found.high, -found.low)",
        "(found.low, found.high)",
        (f"{_FIGURES}test_an_interval_is_turned_with_the_direction_of_the_way",),
    ),
    Mutant(
        "a-cost-that-may-be-nothing-is-drawn-as-decided",
        "suite/report/bill_figures.py",
        "line.cost is not None\n        and line.cost.is_decided\n",
        "line.cost is not None\n",
        (f"{_FIGURES}test_a_cost_that_five_rounds_have_not_decided_is_at_most_its_upper_end",),
    ),
    Mutant(
        "the-devices-clock-forgets-how-many-commands-a-step-has",
        "suite/report/bill_figures.py",
        "return line.times.device_us * line.times.per_step",
        "return line.times.device_us",
        (f"{_FIGURES}test_a_decided_cost_has_its_interval_and_another_is_at_most_its_upper_end",),
    ),
    Mutant(
        "a-cell-that-crosses-one-keeps-its-colour",
        "suite/report/break_even_figures.py",
        "if interval.low <= 0 <= interval.high:",
        "if interval.low > interval.high:",
        (f"{_FIGURES}test_a_cell_is_coloured_by_its_verdict_and_grey_where_the_interval_crosses_one",),
    ),
    Mutant(
        "thinning-loses-the-slowest-request",
        "suite/report/request_figures.py",
        ".nlargest(",
        ".nsmallest(",
        (f"{_FIGURES}test_first_tokens_over_time_keep_the_slowest_when_thinned",),
    ),
    Mutant(
        "a-failed-request-is-a-good-one",
        "suite/report/request_figures.py",
        '(requests[field].astype("float64") <= limit_ms)',
        '~(requests[field].astype("float64") > limit_ms)',
        (f"{_FIGURES}test_a_failed_request_meets_no_gate",),
    ),
    Mutant(
        "the-flags-are-too-small-to-be-drawn",
        "suite/report/upload_figures.py",
        'flags = [name for name in ordered if name == "is_token_ids"]',
        "flags: list[str] = []",
        (f"{_FIGURES}test_the_flags_have_a_mark_however_small_they_are",),
    ),
    Mutant(
        "wrong-requests-are-not-among-those-drawn",
        "suite/report/token_figures.py",
        "key=lambda name: -badness(name)",
        "key=badness",
        (f"{_FIGURES}test_of_many_requests_the_wrong_ones_are_drawn",),
    ),
    Mutant(
        "the-bracket-is-one-token-off",
        "suite/report/token_tables.py",
        "if place == index else",
        "if place == index + 1 else",
        (f"{_FIGURES}test_the_tokens_around_the_first_wrong_one_stand_beside_the_expected_ones",),
    ),
)
