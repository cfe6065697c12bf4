"""Faults of the report's first screen: the wrong arm, the wrong price, names that break a page."""

from __future__ import annotations

from mutants.mutant import Mutant

_ANSWER = "tests/suite/test_report_answer.py::"
_FORMATS = "tests/suite/test_report_formats.py::"
_PAGE = "tests/suite/test_report_page.py::"
_STEP_COSTS = "tests/suite/test_step_costs.py::"
_FIRST = f"{_ANSWER}test_the_arm_known_to_be_fastest_is_named_first_with_its_evidence"
_SPLIT = f"{_ANSWER}test_the_price_of_disabling_async_is_split_in_overlap_and_copy"
_FLAGS = f"{_ANSWER}test_the_flag_upload_has_microseconds_interval_share_and_rounds"

MUTANTS = (
    Mutant(
        "the-least-fast-arm-is-recommended",
        "suite/report/choice.py",
        "key=_gain, reverse=True)",
        "key=_gain)",
        (_FIRST,),
    ),
    Mutant(
        "a-ceiling-is-recommended",
        "suite/report/choice.py",
        "    return frozenset(arm for arm, has_any in supplied.items() if not has_any)",
        "    return frozenset()",
        (f"{_ANSWER}test_an_arm_that_is_given_token_ids_is_a_ceiling_and_never_the_choice",),
    ),
    Mutant(
        "arms-whose-intervals-overlap-are-told-apart",
        "suite/report/choice.py",
        "near = [one.arm for one in others if _overlap(best, one)]",
        "near = []",
        (f"{_ANSWER}test_arms_whose_intervals_overlap_are_not_told_apart",),
    ),
    Mutant(
        "an-arm-slower-in-a-case-is-recommended-for-all",
        "suite/report/choice.py",
        "    if counts[best][Word.FASTER] and not slower[best]:",
        "    if counts[best][Word.FASTER]:",
        (f"{_ANSWER}test_over_a_sweep_the_answer_counts_cases",),
    ),
    Mutant(
        "overlap-and-copy-change-places",
        "suite/report/prices.py",
        "{_times(overlap)} by lost overlap, {_times(sum(known) - overlap)} by",
        "{_times(sum(known) - overlap)} by lost overlap, {_times(overlap)} by",
        (_SPLIT,),
    ),
    Mutant(
        "the-price-of-disabling-async-is-the-gain-of-async",
        "suite/report/prices.py",
        '    return f"{-100 * math.expm1(log):.1f}"',
        '    return f"{100 * math.expm1(-log):.1f}"',
        (_SPLIT,),
    ),
    Mutant(
        "a-comparison-is-told-the-wrong-way-round",
        "suite/report/prices.py",
        "        log, interval = -log, Interval(-interval.high, -interval.low)\n",
        "        pass\n",
        (f"{_ANSWER}test_without_equal_steps_the_price_is_that_of_the_arms_own_comparison",),
    ),
    Mutant(
        "a-flag-upload-that-is-not-decided-has-a-price",
        "suite/report/prices.py",
        "    if not cost.is_decided:\n",
        "    if False:\n",
        (_FLAGS,),
    ),
    Mutant(
        "wrong-tokens-stand-behind-speed",
        "suite/report/answer.py",
        '    found.insert(0 if tokens.mark == "wrong" else len(found), tokens)',
        "    found.insert(len(found), tokens)",
        (f"{_ANSWER}test_wrong_tokens_stand_before_any_speed",),
    ),
    Mutant(
        "a-bar-in-a-name-splits-a-markdown-cell",
        "suite/report/markdown.py",
        "#!|~@]",
        "#!~@]",
        (f"{_FORMATS}test_hostile_names_cannot_break_a_row_or_start_a_tag",),
    ),
    Mutant(
        "markup-in-a-figure-ends-its-block",
        "suite/report/page.py",
        '    for character in "<>&":',
        '    for character in "":',
        (f"{_PAGE}test_every_json_block_is_strict_and_cannot_end_its_element",),
    ),
    Mutant(
        "arms-stand-in-the-order-of-a-shuffled-round",
        "suite/report/data.py",
        "    return sorted(groups, key=place)",
        "    return list(groups)",
        (f"{_ANSWER}test_arms_stand_in_the_order_of_the_scenario_whatever_order_they_ran_in",),
    ),
    Mutant(
        "a-span-of-the-host-is-priced-as-a-command",
        "suite/micro/span_cost.py",
        "    return cost.host.value * counted.host + of_commands",
        "    return cost.command.value * counted.host + of_commands",
        (f"{_STEP_COSTS}test_what_spans_cost_a_step_is_ns_a_span_times_spans_a_step",),
    ),
)
