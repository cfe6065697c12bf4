"""Mutants of the device half: program, attention, cache, merge, encoder, and the devices themselves."""

from __future__ import annotations

from mutants import hazards
from mutants.mutant import Mutant

_ATTENTION = "runner/kernels/sdpa_attention.py"
_QUICK = "runner/kernels/quick_layer.py"
_LAYERS = "tests/runner/kernels/test_cpu_layers.py::"
_KEPT = "runner/kernels/kept_contexts.py"
_COPIES = "tests/runner/kernels/test_kept_contexts.py::"
_PROGRAM = "runner/kernels/program.py"
_DENSE = "tests/runner/kernels/test_attention.py::"
_COMMANDS = "tests/runner/kernels/test_program.py::"
_TABLE = (
    "tests/arms/test_arm_table.py::"
    "test_a_legal_combination_is_right_or_wrong_exactly_where_its_flags_predict_it"
)
_CUDA = "tests/arms/test_cuda_order.py::"
_EVENTS = f"{_CUDA}test_every_host_buffer_is_pinned_and_every_event_new_timed_and_blocking"
_CONTRACT = "tests/runner/device/test_contract.py::"


MUTANTS = (
    # ---- attention and cache
    Mutant(
        "prefill-window-one-longer",
        _ATTENTION,
        "is_seen &= keys > queries - window",
        "is_seen &= keys >= queries - window",
        (f"{_DENSE}test_any_batch_equals_dense_attention",),
    ),
    Mutant(
        "decode-window-one-longer",
        _ATTENTION,
        "(ends - window).clamp_(min=0)",
        "(ends - window - 1).clamp_(min=0)",
        (f"{_DENSE}test_any_batch_equals_dense_attention",),
    ),
    Mutant(
        "prefill-sees-the-next-token",
        _ATTENTION,
        "key_ends = queries + 1 if packed",
        "key_ends = queries + 2 if packed",
        (f"{_DENSE}test_a_whole_prompt",),
    ),
    Mutant(
        "decode-reads-what-nobody-wrote",
        _ATTENTION,
        "is_seen = (key_positions < ends[:, None])",
        "is_seen = (key_positions <= ends[:, None])",
        (f"{_DENSE}test_what_lies_in_unwritten_positions_never_leaks",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "a-reset-leaves-the-cache",
        "runner/kernels/kvcache.py",
        "            tensor.fill_(POISON)",
        "            tensor.add_(0)",
        ("tests/runner/kernels/test_kvcache.py::test_poisoning_leaves_nothing_of_what_was_written",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "values-of-every-layer-in-the-first",
        "runner/kernels/kvcache.py",
        "self.values[layer].flatten(0, 1)",
        "self.values[0].flatten(0, 1)",
        ("tests/runner/kernels/test_kvcache.py::test_every_layer_has_its_own_keys_and_values",),
    ),
    # ---- kept contexts
    Mutant(
        "a-block-that-others-wrote-to-is-not-copied-again",
        _KEPT,
        "is_newer.logical_or_(ids != given.block_ids)",
        "(ids != given.block_ids)",
        (f"{_COPIES}test_whatever_rows_and_blocks_are_used_for_it_is_what_a_gather_gives",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "a-block-that-is-anothers-now-is-not-copied-again",
        _KEPT,
        "is_newer.logical_or_(ids != given.block_ids)",
        "is_newer",
        (f"{_COPIES}test_a_row_in_anothers_place_and_a_block_in_anothers_are_copied_anew",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "a-last-block-is-up-to-date-whoever-wrote-to-it-before",
        _KEPT,
        "before > as_of.gather(1, last)",
        "before > before",
        (f"{_COPIES}test_whatever_rows_and_blocks_are_used_for_it_is_what_a_gather_gives",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "copies-of-rows-that-rest-pass-for-new",
        _KEPT,
        "        as_of.fill_(self._step)",
        "        copy.as_of.fill_(self._step)",
        (f"{_COPIES}test_whatever_rows_and_blocks_are_used_for_it_is_what_a_gather_gives",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "rows-in-another-order-than-their-mask",
        _ATTENTION,
        "mask=group.mask[order]",
        "mask=group.mask",
        (f"{_COPIES}test_so_it_is_of_many_rows_of_unlike_lengths",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "copies-outlive-a-reset",
        _KEPT,
        "        self._copies.clear()",
        "        self._written.fill_(0)",
        (f"{_COPIES}test_a_reset_leaves_no_copy",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "the-newest-token-is-copied-to-its-neighbour",
        _KEPT,
        "* self._block_size + given.offsets",
        "* self._block_size + (given.offsets - 1).clamp(min=0)",
        (f"{_COPIES}test_of_a_row_that_goes_on_nothing_is_copied_but_its_token",),
        hazards.CORRUPTION,
    ),
    # ---- quick layers
    Mutant(
        "a-half-of-a-head-turns-the-other-way",
        _QUICK,
        "rotated[..., half:].addcmul_(first, sine[..., half:])",
        "rotated[..., half:].addcmul_(first, sine[..., half:], value=-1)",
        (f"{_LAYERS}test_hidden_states_are_the_same_to_rounding",),
    ),
    Mutant(
        "keys-have-the-norm-of-queries",
        _QUICK,
        "keys.weight.expand(num_kv_heads, -1)",
        "queries.weight.expand(num_kv_heads, -1)",
        (f"{_LAYERS}test_norms_of_queries_keys_and_blocks_are_each_layers_own",),
    ),
    Mutant(
        "a-block-is-normed-by-the-norm-before-it",
        _QUICK,
        "QuickNorm.of(layer.post_feedforward_layernorm) if",
        "QuickNorm.of(before_mlp) if",
        (f"{_LAYERS}test_norms_of_queries_keys_and_blocks_are_each_layers_own",),
    ),
    Mutant(
        "a-joined-product-forgets-its-biases",
        "runner/kernels/packed_linear.py",
        "return PackedLinear(torch.cat([linear.weight for linear in linears]), bias)",
        "return PackedLinear(torch.cat([linear.weight for linear in linears]), None)",
        (f"{_LAYERS}test_biases_are_joined_as_well",),
    ),
    Mutant(
        "a-batch-that-is-no-batch-of-decodes-alone-is-taken-whole",
        _ATTENTION,
        "is_all = firsts == [*range(packed.starts[-1])]",
        "is_all = firsts[0] == 0",
        (f"{_DENSE}test_any_batch_equals_dense_attention",),
    ),
    Mutant(
        "the-first-of-several-prefills-is-taken-for-all",
        _ATTENTION,
        "is_alone = (begin, stop) == (0, packed.starts[-1])",
        "is_alone = begin == 0",
        (f"{_DENSE}test_any_batch_equals_dense_attention",),
    ),
    # ---- program
    Mutant(
        "a-position-is-written-to-its-neighbour",
        _PROGRAM,
        "+ metadata.positions % self._config.block_size",
        "+ (metadata.positions + 1) % self._config.block_size",
        (f"{_COMMANDS}test_positions_and_slots_are_derived_from_firsts_counts_and_block_tables",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "block-ids-are-not-checked",
        _PROGRAM,
        '        _check_range("block id", metadata.block_table, self._config.num_blocks)\n',
        "",
        (f"{_COMMANDS}test_a_block_id_outside_the_cache_is_an_error",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "sampled-ids-are-scattered-in-order",
        _PROGRAM,
        "sampled[metadata.route_source])",
        "sampled[:count])",
        (
            "tests/hazards/test_36013_download_before_its_event.py::test_rows_that_moved_get_their_own_sampled_ids",
        ),
        hazards.DOWNLOAD,
    ),
    Mutant(
        "derived-flags-off-by-one",
        _PROGRAM,
        "metadata.positions >= metadata.supplied_length",
        "metadata.positions > metadata.supplied_length",
        (f"{_TABLE}[async/resident/derived/fused]",),
        hazards.MASK,
    ),
    Mutant(
        "the-mask-is-read-upside-down",
        _PROGRAM,
        "(metadata.has_mask & (mask == 0))",
        "(metadata.has_mask & (mask == 1))",
        (f"{_TABLE}[async/resident/derived/where]",),
        hazards.MASK,
    ),
    Mutant(
        "every-row-is-sampled-at-its-first-position",
        _PROGRAM,
        "self._hidden[metadata.starts[1:] - 1]",
        "self._hidden[metadata.starts[:-1]]",
        (f"{_COMMANDS}test_each_row_is_sampled_at_its_own_last_position",),
    ),
    Mutant(
        "every-image-is-encoded-into-slot-0",
        _PROGRAM,
        "_rows(self._encoder_rows, slot, 1)[0].copy_(",
        "_rows(self._encoder_rows, 0, 1)[0].copy_(",
        (f"{_COMMANDS}test_an_encoded_image_lies_in_its_slot_and_in_no_other",),
    ),
    Mutant(
        "a-reset-leaves-the-encoder-rows",
        _PROGRAM,
        "        self._encoder_rows.fill_(torch.nan)\n",
        "",
        (f"{_COMMANDS}test_a_reset_leaves_nothing_of_an_earlier_step",),
    ),
    Mutant(
        "copies-are-not-added-up",
        _PROGRAM,
        "self.uploads[buffer] = (copies + 1, num_bytes + source.nbytes)",
        "self.uploads[buffer] = (1, source.nbytes)",
        (f"{_COMMANDS}test_copies_are_counted_by_buffer_from_the_tensors_copied",),
    ),
    Mutant(
        "an-upload-waits-for-its-copy",
        _PROGRAM,
        "target.copy_(source, non_blocking=True)",
        "target.copy_(source)",
        (
            "tests/hazards/test_51841_hidden_synchronisation.py::test_every_copy_is_contiguous_and_does_not_block",
        ),
        hazards.SYNC,
    ),
    # ---- merge and encoder
    Mutant(
        "where-is-turned-round",
        "runner/kernels/merge.py",
        "[:, None], looked_up, inputs_embeds)",
        "[:, None], inputs_embeds, looked_up)",
        (f"{_TABLE}[async/rows/always/where]",),
        hazards.MASK,
    ),
    Mutant(
        "an-overlay-starts-at-the-first-arena-row",
        "runner/kernels/merge.py",
        "resident_rows.index_select(0, source)",
        "resident_rows[: len(source)]",
        ("tests/arms/test_chunks.py::test_rows_cut_into_chunks_come_in_their_order[resident]",),
    ),
    Mutant(
        "pixels-are-rescaled-by-256",
        "runner/kernels/encoder.py",
        "(1 / 255)",
        "(1 / 256)",
        ("tests/runner/kernels/test_encoder.py::test_each_pixel_is_rescaled_and_normalised_by_its_channel",),
    ),
    Mutant(
        "patches-in-column-order",
        "runner/kernels/encoder.py",
        "blocks.permute(1, 4, 2, 5, 0, 3, 6)",
        "blocks.permute(4, 1, 2, 5, 0, 3, 6)",
        ("tests/arms/test_mrope.py::test_patches_and_pixels_are_those_of_the_image_processor",),
    ),
    # ---- devices
    Mutant(
        "a-wait-holds-nothing",
        "runner/device/host.py",
        'return command[0] != "wait" or self._reached[str(command[1])] >= step_id',
        "return True",
        (
            "tests/hazards/test_36013_download_before_its_event.py::test_the_output_waits_for_its_sample_in_every_order",
        ),
        hazards.DOWNLOAD,
    ),
    Mutant(
        "an-event-of-the-step-before-will-do",
        "runner/device/host.py",
        "while self._reached[event] < step_id:",
        "while self._reached[event] < step_id - 1:",
        (
            "tests/hazards/test_36942_result_before_its_event.py::test_a_result_is_read_only_after_its_download",
        ),
        hazards.EVENT,
    ),
    Mutant(
        "host-buffers-are-not-poisoned",
        "runner/device/base.py",
        'np.nan if array.dtype.kind == "f"',
        '0.0 if array.dtype.kind == "f"',
        (f"{_CONTRACT}test_a_reset_poisons_both_sides_of_every_buffer[inline]",),
    ),
    Mutant(
        "an-error-is-forgotten",
        "runner/device/host.py",
        "            self._failure = error\n",
        "",
        (f"{_CONTRACT}test_an_error_poisons_every_later_call[inline]",),
    ),
    Mutant(
        "events-spin",
        "runner/device/cuda.py",
        "event(enable_timing=True, blocking=True)",
        "event(enable_timing=True)",
        (_EVENTS,),
        hazards.SPINNING,
    ),
    Mutant(
        "host-buffers-are-not-pinned",
        "runner/device/cuda.py",
        "dtype=dtype, pin_memory=True)",
        "dtype=dtype)",
        (_EVENTS,),
        hazards.SYNC,
    ),
    Mutant(
        "one-event-for-two-steps",
        "runner/device/cuda.py",
        "event = step.events[command.event] = self._new_event()",
        "event = step.events[command.event] = (\n"
        "                next(iter(self._steps.values())).events.get(command.event) or self._new_event()\n"
        "            )",
        (_EVENTS,),
        hazards.EVENT,
    ),
    Mutant(
        "a-stream-does-not-wait",
        "runner/device/cuda.py",
        "            stream.wait_event(step.events[command.event])",
        "            pass",
        (f"{_CUDA}test_three_async_steps_launch_record_and_wait_in_this_order",),
        hazards.DOWNLOAD,
    ),
    Mutant(
        "a-process-tells-events-a-step-early",
        "runner/device/process_child.py",
        "self._events[EVENTS.index(event)] = step_id",
        "self._events[EVENTS.index(event)] = step_id + 1",
        (
            "tests/hazards/test_36942_result_before_its_event.py::test_a_process_tells_no_event_before_it_happened",
        ),
        hazards.EVENT,
    ),
)
