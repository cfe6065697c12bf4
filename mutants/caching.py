"""Mutants of prefix caching and of the encoder's budget."""

from __future__ import annotations

from mutants import hazards
from mutants.mutant import Mutant

_SCHEDULER = "runner/scheduler.py"
_HASHES = "runner/block_hashes.py"
_CACHE = "runner/prefix_cache.py"
_BLOCKS = "runner/blocks.py"

_ONE_THING = (
    "tests/runner/test_block_hashes.py::"
    "test_two_prompts_that_differ_in_one_thing_share_the_blocks_before_it_and_no_other"
)
_UNSEEN = "tests/runner/test_block_hashes.py::test_what_the_model_never_sees_has_no_part_in_a_hash"
_PLANS = "tests/runner/test_prefix_cache.py::"
_POOL = "tests/runner/test_blocks.py::"
_BUDGET = "tests/runner/test_encoder_budget.py::"

MUTANTS = (
    Mutant(
        "a-block-is-hashed-without-those-before-it",
        _HASHES,
        "digest = hashlib.sha256(self.hashes[-1] if self.hashes else _ROOT)",
        "digest = hashlib.sha256(_ROOT)",
        ("tests/runner/test_block_hashes.py::test_equal_blocks_after_different_ones_differ",),
    ),
    Mutant(
        "supplied-rows-are-not-hashed",
        _HASHES,
        "        yield self._data[first * self._row_bytes : end * self._row_bytes]\n",
        "",
        (_ONE_THING,),
    ),
    Mutant(
        "the-rows-type-is-not-hashed",
        _HASHES,
        "        yield embeds.dtype.encode()\n",
        "",
        (_ONE_THING,),
    ),
    Mutant(
        "images-are-not-hashed",
        _HASHES,
        "        yield span.key.encode()\n",
        "",
        (_ONE_THING,),
    ),
    Mutant(
        "an-images-size-is-not-hashed",
        "runner/core.py",
        'digest = hashlib.sha256(f"uint8:{self.shape}:".encode())',
        'digest = hashlib.sha256(b"uint8:")',
        ("tests/runner/test_block_hashes.py::test_the_same_bytes_as_a_wide_and_as_a_tall_image_differ",),
    ),
    Mutant(
        "which-positions-are-supplied-is-not-hashed",
        _HASHES,
        'mask = embeds.mask if embeds.mask is not None else b"\\x01" * embeds.num_rows',
        'mask = b"\\x01" * embeds.num_rows',
        (_ONE_THING, _UNSEEN),
    ),
    Mutant(
        "a-hit-may-cover-the-whole-prompt",
        _CACHE,
        "most = (state.num_tokens - 1) // self._block_size",
        "most = state.num_tokens // self._block_size",
        (f"{_PLANS}test_a_hit_never_covers_the_whole_prompt",),
    ),
    Mutant(
        "positions-in-flight-are-registered",
        _SCHEDULER,
        "self.prefix_cache.register(state, min(state.num_computed, num_known))",
        "self.prefix_cache.register(state, state.num_computed)",
        (f"{_PLANS}test_a_token_in_flight_is_in_no_registered_block",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "planned-is-as-good-as-computed",
        _SCHEDULER,
        "self.prefix_cache.register(state, min(state.num_computed, num_known))",
        "self.prefix_cache.register(state, num_known)",
        (f"{_PLANS}test_a_prompt_computed_in_chunks_is_shared_as_far_as_it_is_planned",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "a-block-taken-again-stays-free",
        _BLOCKS,
        "                del self._free[block_id]\n",
        "                pass\n",
        (f"{_POOL}test_a_free_block_taken_again_is_free_no_more",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "a-reused-block-is-still-found",
        _BLOCKS,
        "            del self._block_of[content_hash]\n",
        "            pass\n",
        (f"{_POOL}test_a_block_allocated_for_other_content_is_found_no_more",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "taken-and-needed-blocks-are-counted-apart",
        _SCHEDULER,
        "return missing + self.blocks.num_free_among(cached) <= self.blocks.num_free",
        "return missing <= self.blocks.num_free",
        (f"{_PLANS}test_blocks_taken_and_blocks_needed_are_counted_together",),
    ),
    Mutant(
        "cached-positions-are-computed-again",
        _SCHEDULER,
        "state.num_recomputed += max(0, state.num_lost - given)",
        "state.num_recomputed += state.num_lost",
        (f"{_PLANS}test_a_resumed_request_takes_what_is_left_of_its_own_blocks",),
    ),
    Mutant(
        "the-encoders-budget-is-ignored",
        _SCHEDULER,
        "and making.num_encoder_rows + span.count <= self._config.max_encoder_tokens_per_step",
        "and True",
        (f"{_BUDGET}test_no_more_rows_are_encoded_in_a_step_than_the_budget_has",),
    ),
    Mutant(
        "the-encoders-budget-is-never-spent",
        _SCHEDULER,
        "            making.num_encoder_rows += span.count\n",
        "",
        (f"{_BUDGET}test_the_budget_is_one_for_all_requests_of_a_step",),
    ),
)
