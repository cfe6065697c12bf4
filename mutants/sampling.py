"""Mutants of sampling: what a slot holds, the sampler, its noise, log-probabilities, and their oracle."""

from __future__ import annotations

from mutants import hazards
from mutants.mutant import Mutant

_STATE = "runner/slot_state.py"
_SAMPLE = "runner/kernels/sample.py"
_NOISE = "runner/kernels/noise.py"
_PROGRAM = "runner/kernels/program.py"
_COMPILE = "runner/inputs/compile.py"
_REFERENCE = "suite/sampling_reference.py"

_SAMPLER = "tests/runner/kernels/test_sample.py::"
_BITS = "tests/runner/kernels/test_noise.py::"
_END_TO_END = "tests/arms/test_sampling.py::"
_STALE_SLOT = f"{_END_TO_END}test_a_plain_request_is_not_touched_by_who_had_its_slot_before"
_SAMPLED = (
    f"{_END_TO_END}test_every_right_arm_samples_the_oracles_tokens_and_reports_its_log_probabilities"
    "[micro-gemma3-vl-refresh-3]"
)
_NO_IDS = (
    "tests/hazards/test_57719_penalties_of_prompts_without_ids.py::"
    "test_penalties_take_no_ids_from_supplied_rows[inline-micro-gemma3-vl]"
)
_JOINING = "tests/hazards/test_27878_history_of_tokens_in_flight.py"
_SEES = f"{_JOINING}::test_a_penalty_that_joins_a_running_batch_sees_every_token[micro-gemma3-vl-inline]"
_BY_HAND = "tests/suite/test_sampling_reference.py::"

MUTANTS = (
    # ---- what a slot holds
    Mutant(
        "ids-beside-supplied-rows-are-history",
        _STATE,
        "ids = [NO_ID if given else token for token, given in zip(ids, embeds.mask, strict=True)]",
        "pass",
        (
            "tests/hazards/test_42302_prompts_of_embeddings_and_drafts.py::"
            "test_the_history_of_supplied_positions_is_no_id",
        ),
        hazards.NO_IDS,
    ),
    Mutant(
        "a-prompt-of-embeddings-keeps-the-last-owners-history",
        "runner/inputs/staging.py",
        '    host["token_history"][slot, : len(history)] = history\n',
        "    for place, token in enumerate(history):\n"
        "        if token >= 0:\n"
        '            host["token_history"][slot, place] = token\n',
        (
            "tests/hazards/test_42302_prompts_of_embeddings_and_drafts.py::"
            "test_the_history_of_supplied_positions_is_no_id",
        ),
        hazards.DRAFTER,
    ),
    Mutant(
        "output-of-a-resumed-request-is-forgotten",
        _STATE,
        "    return ids + state.output_ids\n",
        "    return ids\n",
        (f"{_JOINING}::test_resumed_after_preemption_it_sees_what_it_said_before",),
        hazards.IN_FLIGHT,
    ),
    Mutant(
        "the-seeds-upper-half-is-lost",
        _STATE,
        "_signed(sampling.seed >> _SEED_BITS)",
        "0",
        ("tests/runner/test_slot_state.py",),
    ),
    Mutant(
        "eos-is-never-held-back",
        _STATE,
        "stops = [*sampling.stop_token_ids, *([] if sampling.ignore_eos else [eos_token_id])]",
        "stops = [*sampling.stop_token_ids]",
        ("tests/runner/test_slot_state.py",),
    ),
    Mutant(
        "min-tokens-counts-from-nothing",
        _STATE,
        "state.num_prompt + sampling.min_tokens,",
        "sampling.min_tokens,",
        (f"{_SAMPLER}test_no_stop_token_before_the_minimal_length",),
    ),
    # ---- the step
    Mutant(
        "parameters-are-not-uploaded",
        _COMPILE,
        '                    Upload("sampling_reals", slot, slot, 1),\n',
        "",
        (_SAMPLED,),
    ),
    Mutant(
        "plain-rows-are-sampled-by-who-was-there",
        _PROGRAM,
        "has_params = metadata.has_flag(RowFlag.HAS_PARAMS)[expanded.row]",
        "has_params = torch.ones_like(expanded.row, dtype=torch.bool)",
        (_STALE_SLOT,),
    ),
    Mutant(
        "a-guess-is-assumed-without-drafts",
        "runner/inputs/batch.py",
        "return self.in_flight if self._speculates else np.zeros_like(self.in_flight)",
        "return self.in_flight",
        (_STALE_SLOT,),
    ),
    Mutant(
        "what-is-sampled-is-not-remembered",
        _PROGRAM,
        "        self._remember(kept, num_kept)\n",
        "",
        (_SEES,),
        hazards.IN_FLIGHT,
    ),
    Mutant(
        "remembered-one-place-late",
        _PROGRAM,
        "places = first[:, None] + torch.arange(kept.shape[1], device=kept.device)",
        "places = first[:, None] + 1 + torch.arange(kept.shape[1], device=kept.device)",
        (_SEES,),
        hazards.IN_FLIGHT,
    ),
    Mutant(
        "a-chunks-token-is-remembered",
        _PROGRAM,
        "counts = samples[:, None] & (kept >= 0)",
        "counts = kept >= 0",
        (f"{_JOINING}::test_chunks_of_a_prompt_add_nothing_to_its_history",),
        hazards.IN_FLIGHT,
    ),
    Mutant(
        "noise-of-the-position-before",
        _PROGRAM,
        "positions = metadata.positions[expanded.offset] + 1",
        "positions = metadata.positions[expanded.offset]",
        (_SAMPLED,),
    ),
    Mutant(
        "a-moved-row-leaves-its-needs",
        "runner/inputs/batch.py",
        "            self.needs,\n            self.is_plain,\n",
        "",
        (_SAMPLED,),
    ),
    Mutant(
        "log-probabilities-of-the-first-rows",
        "runner/executor.py",
        "places = slice(row.first_logit, row.first_logit + num_tokens)",
        "places = slice(0, num_tokens)",
        (_SAMPLED,),
    ),
    Mutant(
        "log-probabilities-out-of-one-buffer",
        _COMPILE,
        'values, ids = (ring(name, step.plan.step_id) for name in ("logprobs", "logprob_ids"))',
        'values, ids = (ring(name, 0) for name in ("logprobs", "logprob_ids"))',
        (_SAMPLED,),
        hazards.RESULT,
    ),
    # ---- the sampler
    Mutant(
        "bad-words-match-the-prompt-too",
        _SAMPLE,
        "is_output = places >= rows.whole(Whole.NUM_PROMPT)",
        "is_output = places >= 0",
        (f"{_SAMPLER}test_a_prefix_of_a_bad_word_counts_in_the_output_only",),
    ),
    Mutant(
        "ids-behind-the-position-are-penalised",
        _SAMPLE,
        "is_before = places < rows.positions",
        "is_before = places <= rows.positions",
        (f"{_SAMPLER}test_a_row_does_not_depend_on_its_batch",),
    ),
    Mutant(
        "frequency-counts-the-prompt",
        _SAMPLE,
        "is_output = is_before & (places >= rows.whole(Whole.NUM_PROMPT))",
        "is_output = is_before",
        (f"{_SAMPLER}test_penalties_count_prompt_and_output_as_they_should",),
    ),
    Mutant(
        "repetition-rewards-negative-logits",
        _SAMPLE,
        "torch.where(logits > 0, logits / repetition, logits * repetition)",
        "(logits / repetition)",
        (f"{_SAMPLER}test_the_repetition_penalty_is_that_of_transformers",),
    ),
    Mutant(
        "top-k-keeps-one-more",
        _SAMPLE,
        "torch.where(top_k < 1, vocab, top_k).clamp(max=vocab) - 1",
        "torch.where(top_k < 1, vocab, top_k + 1).clamp(max=vocab) - 1",
        (f"{_SAMPLER}test_the_tokens_kept_are_those_of_transformers",),
    ),
    Mutant(
        "top-p-stops-one-early",
        _SAMPLE,
        "last = (reached < wanted).sum(dim=1, keepdim=True).clamp_(max=vocab - 1)",
        "last = (reached < wanted).sum(dim=1, keepdim=True).sub_(1).clamp_(0, vocab - 1)",
        (f"{_SAMPLER}test_top_p_keeps_the_fewest_tokens_that_reach_it",),
    ),
    Mutant(
        "noise-ignores-the-position",
        _NOISE,
        "of_position = mix(of_seed + (positions + 1) * _GAMMA)",
        "of_position = mix(of_seed + 0 * positions)",
        (f"{_BITS}test_bits_and_noise_are_those_of_the_other_implementation",),
    ),
    Mutant(
        "noise-shifts-the-sign-in",
        _NOISE,
        "return (state >> count).bitwise_and_((1 << (64 - count)) - 1)",
        "return state >> count",
        (f"{_BITS}test_the_mixing_is_splitmix64",),
    ),
    Mutant(
        "log-probabilities-of-nothing-normalised",
        _SAMPLE,
        "values = torch.cat([chosen, best.values], dim=1) - logits.logsumexp(dim=1, keepdim=True)",
        "values = torch.cat([chosen, best.values], dim=1)",
        (f"{_SAMPLER}test_logprobs_are_those_of_the_raw_logits",),
    ),
    # ---- the oracle
    Mutant(
        "one-verdict-for-all-parameters",
        "suite/oracle.py",
        "content = (prompt.token_ids, images, prompt.embeds, sampling, output)",
        "content = (prompt.token_ids, images, prompt.embeds, output)",
        ("tests/suite/test_oracle_sampling.py::test_the_same_output_under_other_parameters_is_judged_anew",),
    ),
    Mutant(
        "any-log-probability-will-do",
        "suite/reported_logprobs.py",
        "if not abs(report.logprob - own) <= margin:",
        "if False:",
        ("tests/suite/test_oracle_sampling.py::test_every_fault_of_reported_logprobs_is_found",),
    ),
)
