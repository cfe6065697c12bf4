"""Mutants of what must notice: the oracle, the verdict on negative controls, the rules, the figures."""

from __future__ import annotations

from mutants import hazards
from mutants.mutant import Mutant

_ORACLE = "suite/oracle.py"
_JUDGES = "tests/suite/test_oracle.py::"
_CONTROL = "tests/suite/test_token_case.py::test_a_control_is_judged_by_what_its_flags_predict"
_FIGURES = "tests/suite/test_metrics.py::"

MUTANTS = (
    Mutant(
        "an-older-model-drops-its-cache",
        _ORACLE,
        'return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"',
        'return "cache"',
        (f"{_JUDGES}test_the_cache_is_given_by_the_name_that_the_model_knows",),
    ),
    Mutant(
        "anything-is-a-tie",
        _ORACLE,
        "tie = ~right & (margin < tolerance.margin * logits.std(dim=1)) & is_known",
        "tie = ~right & is_known",
        (f"{_JUDGES}test_a_tie_ends_at_its_margin",),
    ),
    Mutant(
        "an-unknown-id-passes-for-its-neighbour",
        _ORACLE,
        "right = (margin == 0) & is_known",
        "right = margin == 0",
        (f"{_JUDGES}test_an_id_outside_the_vocabulary_does_not_pass_for_its_neighbour",),
    ),
    Mutant(
        "ties-are-excused-without-limit",
        _ORACLE,
        "too_many = num_ties > allowed",
        "too_many = False",
        (f"{_JUDGES}test_ties_above_the_cap_are_all_wrong_and_the_note_says_so",),
    ),
    Mutant(
        "wrong-tokens-are-not-summed",
        _ORACLE,
        "num_wrong=sum(check.num_wrong for check in checks.values()) + excess,",
        "num_wrong=excess,",
        (f"{_JUDGES}test_a_verdict_sums_its_checks_and_names_the_first_wrong_token",),
    ),
    Mutant(
        "other-rows-are-judged-as-these",
        _ORACLE,
        "content = (prompt.token_ids, images, prompt.embeds, sampling, output)",
        "content = (prompt.token_ids, images, sampling, output)",
        ("tests/suite/test_oracle_prompts.py::test_the_same_ids_with_other_rows_are_judged_anew",),
    ),
    Mutant(
        "the-oracle-looks-decoy-ids-up",
        _ORACLE,
        "supplied = [i for i in range(len(prompt)) if prompt.embeds.is_supplied(i)]",
        "supplied = [i for i in range(len(prompt)) if not prompt.token_ids]",
        (
            "tests/suite/test_oracle_prompts.py::"
            "test_spliced_rows_count_where_the_mask_says_and_ids_elsewhere",
        ),
        hazards.GATHER,
    ),
    Mutant(
        "a-collapsed-model-will-do",
        _ORACLE,
        "if share < _MIN_DISTINCT_SHARE:",
        "if False:",
        (f"{_JUDGES}test_a_collapsed_model_is_refused_with_its_name_and_figure",),
    ),
    Mutant(
        "a-blind-control-is-not-exercised",
        "suite/control.py",
        "return BLIND if any(record.predicts_wrong for record in done) else NOT_EXERCISED",
        "return NOT_EXERCISED",
        (_CONTROL,),
    ),
    Mutant(
        "wrong-for-another-reason-is-as-it-must-be",
        "suite/control.py",
        "if any(record.predicts_wrong is False for record in wrong):",
        "if False:",
        (_CONTROL,),
    ),
    Mutant(
        "wrong-tokens-are-no-failure",
        "suite/experiment.py",
        "return (has_wrong_tokens or has_wrong_logprobs) and not record.is_control",
        "return False",
        ("tests/suite/test_experiment.py::test_the_exit_code_is_one_for_wrong_tokens_or_a_failed_run",),
    ),
    Mutant(
        "wrong-tokens-break-no-rule",
        "suite/validity/tokens.py",
        "elif verdict.num_wrong and not run.is_control:",
        "elif verdict.num_wrong and run.is_control:",
        ("tests/suite/test_checks.py::test_wrong_tokens_are_told_with_their_first_place",),
    ),
    Mutant(
        "unchecked-tokens-will-do",
        "suite/validity/tokens.py",
        "if verdict is None or verdict.num_checked == 0:",
        "if verdict is None:\n        return\n    if verdict.num_checked < 0:",
        ("tests/suite/test_checks.py::test_a_run_whose_tokens_nobody_checked_is_not_valid",),
    ),
    Mutant(
        "tpot-divides-by-one-too-many",
        "suite/metrics.py",
        "return (last_ns - first_ns) / NS_PER_MS / (num_tokens - 1)",
        "return (last_ns - first_ns) / NS_PER_MS / num_tokens",
        (f"{_FIGURES}test_tpot_divides_by_the_tokens_that_came_not_by_those_asked_for",),
    ),
    Mutant(
        "ttft-counts-from-the-sending",
        "suite/metrics.py",
        "ttft_ms=float(times[0] - request.scheduled_ns) / NS_PER_MS,",
        "ttft_ms=float(times[0] - request.sent_ns) / NS_PER_MS,",
        (f"{_FIGURES}test_latencies_count_from_the_scheduled_arrival_not_from_the_sending",),
    ),
    Mutant(
        "failed-requests-count-as-throughput",
        "suite/metrics.py",
        "    completed = [request for request in requests if is_completed(request)]\n    output = sum",
        "    completed = list(requests)\n    output = sum",
        (f"{_FIGURES}test_throughputs_count_completed_requests_only",),
    ),
)
