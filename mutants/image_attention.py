"""Mutants of images whose rows attend in both directions: planning, metadata, masks, oracle."""

from __future__ import annotations

from mutants import hazards
from mutants.mutant import Mutant

_WHOLE = "tests/runner/test_whole_images.py::"
_LOGITS = (
    "tests/arms/test_image_attention.py::"
    "test_every_logit_is_that_of_the_unmodified_model_whatever_the_chunks[micro-gemma3-vl-both-ways-13-sdpa]"
)
_SDPA = "tests/runner/kernels/test_attention.py::test_rows_of_an_image_see_all_of_it_and_no_more"
_TRITON = (
    "tests/runner/kernels/test_triton_attention.py::"
    "test_an_image_longer_than_a_tile_of_queries_sees_all_of_itself"
)

MUTANTS = (
    Mutant(
        "an-image-is-cut-over-two-chunks",
        "runner/core.py",
        "if span.is_whole and span.first < end < span.end)",
        "if False)",
        (f"{_WHOLE}test_a_chunk_ends_before_an_image_that_does_not_fit_it",),
    ),
    Mutant(
        "newcomers-starve-an-image-that-does-not-fit",
        "runner/scheduler.py",
        "if making.num_preempted == 0 and not making.is_short:",
        "if making.num_preempted == 0:",
        (f"{_WHOLE}test_a_running_image_that_does_not_fit_is_not_starved_by_newcomers",),
    ),
    Mutant(
        "a-cached-prefix-ends-inside-an-image",
        "runner/prefix_cache.py",
        "return found[: self._num_shared(state, len(found))]",
        "return found",
        (f"{_WHOLE}test_a_cached_prefix_is_cut_back_to_before_an_image_it_would_end_in",),
    ),
    Mutant(
        "images-that-touch-are-taken",
        "runner/admission.py",
        "if span.end == after.first:",
        "if span.end > after.first:",
        (f"{_WHOLE}test_images_that_touch_are_refused_for_the_model_would_take_them_for_one",),
    ),
    Mutant(
        "text-before-an-image-sees-it",
        "runner/kernels/program.py",
        "return self.positions + 1 + num_later * (image >= 0)",
        "return self.positions + 1 + num_later",
        (_LOGITS,),
    ),
    Mutant(
        "an-image-hides-its-last-row",
        "runner/kernels/program.py",
        "num_later = (ends[image.clamp(min=0)] - offsets - 1).clamp(min=0)",
        "num_later = (ends[image.clamp(min=0)] - offsets - 2).clamp(min=0)",
        (_LOGITS,),
    ),
    Mutant(
        "images-lie-in-the-order-of-the-plan",
        "runner/inputs/compile.py",
        "return np.sort([firsts, ends])",
        "return np.array([firsts, ends])",
        (
            "tests/arms/test_image_attention.py::"
            "test_images_of_rows_in_another_order_than_their_plan_are_told_apart",
        ),
        hazards.CORRUPTION,
    ),
    Mutant(
        "a-chunk-has-the-key-ends-of-the-first",
        "runner/kernels/sdpa_attention.py",
        "packed.key_ends[begin:stop, None]",
        "packed.key_ends[: stop - begin, None]",
        (_SDPA,),
    ),
    Mutant(
        "a-kernels-tile-ends-with-its-queries",
        "runner/kernels/triton_attention.py",
        "        stop = tl.max(q_end, 0)\n",
        "",
        (_TRITON,),
    ),
    Mutant(
        "the-oracle-is-told-of-no-image",
        "suite/oracle.py",
        "row[_placeholders(prompt, vision)] = 1",
        "row[_placeholders(prompt, vision)] = 0",
        ("tests/suite/test_oracle.py::test_image_rows_attending_both_ways_are_found",),
    ),
    Mutant(
        "a-gemma-3-checkpoint-attends-causally",
        "runner/checkpoints.py",
        'image_attention="bidirectional" if family == "gemma3" else "causal"',
        'image_attention="causal"',
        ("tests/runner/test_checkpoints.py::test_what_the_spec_says_is_what_the_checkpoint_holds",),
    ),
)
