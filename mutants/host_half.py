"""Mutants of the host half: persistent batch, routes, staging, compiler, arms' choices, executor, engine."""

from __future__ import annotations

from mutants import hazards
from mutants.mutant import Mutant

_BATCH = "runner/inputs/batch.py"
_COMPILE = "runner/inputs/compile.py"
_STAGING = "runner/inputs/staging.py"

_ROWS = "tests/runner/inputs/test_batch.py::"
_HISTORY = f"{_ROWS}test_any_history_of_joining_growing_resting_and_leaving_is_followed"
_TABLE = (
    "tests/arms/test_arm_table.py::"
    "test_a_legal_combination_is_right_or_wrong_exactly_where_its_flags_predict_it"
)
_ASYNC = "tests/arms/test_async_engine.py::"
_ROUTES = "tests/arms/test_routes.py::"
_MROPE = "tests/arms/test_mrope.py::"
_PLACEHOLDER = "tests/arms/test_placeholder.py::"
_FORGETS = "tests/runner/test_forget.py"
_NEXT_OWNER = f"{_PLACEHOLDER}test_a_placeholder_left_in_a_row_reaches_no_lookup_of_the_next_owner"
_HAZARDS = "tests/hazards/"
_MOVES = "tests/hazards/test_36013_download_before_its_event.py::"
_FLAGS = "tests/hazards/test_45673_mask_not_refreshed.py::"
_EVENTS = "tests/hazards/test_36942_result_before_its_event.py::"
_CHUNKS = "tests/arms/test_chunks.py::test_rows_cut_into_chunks_come_in_their_order"


MUTANTS = (
    # ---- batch
    Mutant(
        "a-moved-row-forgets-what-it-knew",
        _BATCH,
        "        self._num_known[target] = self._num_known[source]\n",
        "",
        (f"{_ROWS}test_a_moved_row_goes_on_growing",),
    ),
    Mutant(
        "flags-stay-behind-when-a-row-moves",
        _BATCH,
        "            self.is_token_ids,\n            self.slots,\n",
        "            self.slots,\n",
        (f"{_MOVES}test_a_row_moved_in_mid_prompt_brings_its_flags_and_rows",),
        hazards.MASK,
    ),
    Mutant(
        "supplied-rows-stay-behind-when-a-row-moves",
        _BATCH,
        "self.supplied[target], self.supplied[source] = self.supplied[source], None",
        "self.supplied[source] = None",
        (f"{_MOVES}test_a_row_moved_in_mid_prompt_brings_its_flags_and_rows",),
    ),
    Mutant(
        "rope-stays-behind-when-a-row-moves",
        _BATCH,
        "            self.rope_offset,\n",
        "",
        (f"{_MOVES}test_a_moved_row_keeps_its_rope_shift",),
    ),
    Mutant(
        "flags-of-the-last-owner-stay",
        _BATCH,
        "        self.is_token_ids[row] = True\n",
        "",
        (f"{_FLAGS}test_flags_of_a_rows_last_owner_are_not_those_of_the_next",),
        hazards.MASK,
    ),
    Mutant(
        "blocks-of-the-last-owner-stay",
        _BATCH,
        "        self.num_blocks[row] = 0\n",
        "",
        (_HISTORY,),
        hazards.CORRUPTION,
    ),
    Mutant(
        "blocks-not-refreshed-after-preemption",
        _BATCH,
        "if name not in scheduled or requests[name].num_preemptions != self._admission[row]",
        "if name not in scheduled",
        (
            "tests/runner/test_regressions.py::"
            "test_a_row_of_a_request_preempted_and_resumed_between_two_steps_is_made_anew",
        ),
        hazards.CORRUPTION,
    ),
    Mutant(
        "new-blocks-are-not-told",
        _BATCH,
        "if total > known:\n                self.block_table",
        "if not known:\n                self.block_table",
        (f"{_ROWS}test_a_moved_row_goes_on_growing",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "rows-are-kept-after-their-request",
        _BATCH,
        "            self.supplied[row] = self.rope[row] = None\n",
        "",
        (f"{_ASYNC}test_supplied_rows_leave_host_and_device_when_their_request_ends[refresh]",),
        hazards.KEPT,
    ),
    Mutant(
        "placeholder-is-a-valid-id",
        _BATCH,
        "IN_FLIGHT_ID = -1",
        "IN_FLIGHT_ID = 0",
        (f"{_PLACEHOLDER}test_a_placeholder_at_the_lookup_is_an_error_that_names_step_and_command",),
        hazards.GATHER,
    ),
    Mutant(
        "a-token-in-flight-is-taken-for-known",
        _BATCH,
        "end - num_drafts > total for end, num_drafts, total",
        "False for end, num_drafts, total",
        (f"{_ROUTES}test_a_newcomer_makes_the_step_mixed",),
        hazards.GATHER,
    ),
    Mutant(
        "ids-of-the-last-owner-beside-resident-rows",
        _BATCH,
        "            self.token_ids[row, : embeds.num_rows][is_supplied] = 0\n",
        "            pass\n",
        (f"{_NEXT_OWNER}[resident]",),
        hazards.GATHER,
    ),
    Mutant(
        "a-sampled-id-is-written-a-position-late",
        _BATCH,
        "single.append((row, known, state.output_ids[-1]))",
        "single.append((row, total, state.output_ids[-1]))",
        (_HISTORY,),
    ),
    Mutant(
        "positions-off-by-one",
        _BATCH,
        "self.first[rows] = firsts",
        "self.first[rows] = [first + 1 for first in firsts]",
        (_HISTORY,),
    ),
    # ---- routes
    Mutant(
        "a-newcomers-ids-are-not-uploaded",
        "runner/inputs/routes.py",
        "if len(target) < total_without_spec:",
        "if False:",
        (f"{_ROUTES}test_a_newcomer_makes_the_step_mixed",),
    ),
    Mutant(
        "moved-rows-are-sliced",
        "runner/inputs/routes.py",
        "bool((self.target == order).all() and (self.source == order).all())",
        "bool((self.target == order).all())",
        (f"{_MOVES}test_rows_that_moved_get_their_own_sampled_ids",),
        hazards.DOWNLOAD,
    ),
    Mutant(
        "slow-branch-decided-by-the-step",
        "runner/inputs/routes.py",
        "(not all_tokens if decides_per_step else batch.has_supplied)",
        "(not all_tokens)",
        (f"{_ROUTES}test_the_branch_of_a_step_is_the_arms_own",),
    ),
    # ---- compile
    Mutant(
        "flags-uploaded-on-mixed-steps-only",
        _COMPILE,
        '"always": True,',
        '"always": step.ids.needs_host_ids,',
        (f"{_HAZARDS}test_45673_mask_not_refreshed.py",),
        hazards.MASK,
    ),
    Mutant(
        "flags-are-not-filled",
        _COMPILE,
        'return [Flags("fill", step.count)]',
        "return []",
        (f"{_TABLE}[async/rows/fill/where]",),
        hazards.MASK,
    ),
    Mutant(
        "looked-up-rows-over-supplied-ones",
        _COMPILE,
        '                Merge("where", count),\n',
        '                Merge("copy", count),\n',
        (
            f"{_HAZARDS}test_44842_placeholder_ids_in_the_gather.py::test_supplied_rows_in_a_reused_row_are_not_looked_up_over",
        ),
        hazards.GATHER,
    ),
    Mutant(
        "ids-beside-supplied-rows-are-looked-up",
        _COMPILE,
        '                Lookup("safe", count),\n                *self._splices',
        '                Lookup("ids", count),\n                *self._splices',
        (f"{_NEXT_OWNER}[refresh]",),
        hazards.GATHER,
    ),
    Mutant(
        "uploads-called-done-before-they-are",
        _COMPILE,
        "            *self._upload_ids(step),\n",
        "            Record(UPLOADS_DONE),\n            *self._upload_ids(step),\n",
        (f"{_HAZARDS}test_24527_source_rewritten.py",),
        hazards.PINNED,
    ),
    Mutant(
        "no-wait-for-the-sampled-ids",
        _COMPILE,
        '            Wait(SAMPLED, "output"),\n',
        "",
        (f"{_MOVES}test_the_output_waits_for_its_sample_in_every_order",),
        hazards.DOWNLOAD,
    ),
    Mutant(
        "output-called-ready-before-its-download",
        _COMPILE,
        "            Download(accepted or sampled, rows),\n            *downloaded,\n            *told,\n"
        '            Record(OUTPUT_READY, "output"),\n',
        '            Record(OUTPUT_READY, "output"),\n            Download(accepted or sampled, rows),\n'
        "            *downloaded,\n            *told,\n",
        (f"{_EVENTS}test_a_result_is_read_only_after_its_download",),
        hazards.RESULT,
    ),
    Mutant(
        "sampled-ids-of-this-step-instead-of-the-last",
        _COMPILE,
        'source = ring("sampled_ids", step.plan.step_id - 1)',
        'source = ring("sampled_ids", step.plan.step_id)',
        (
            f"{_ROUTES}test_the_first_step_is_host_then_a_steady_batch_is_sliced",
            f"{_MOVES}test_rows_that_moved_get_their_own_sampled_ids",
        ),
    ),
    Mutant(
        "every-image-from-slot-0",
        _COMPILE,
        "                splice.slot,\n",
        "                0,\n",
        ("tests/arms/test_chunks.py::test_images_cut_into_chunks_keep_their_slots_and_rows",),
    ),
    Mutant(
        "an-image-lies-at-the-start-of-its-chunk",
        _COMPILE,
        "int(starts[batch.row_of[splice.request_id]]) + splice.row_first,",
        "int(starts[batch.row_of[splice.request_id]]),",
        ("tests/arms/test_chunks.py::test_images_cut_into_chunks_keep_their_slots_and_rows",),
    ),
    Mutant(
        "every-chunk-reads-the-arena-from-its-first-row",
        _COMPILE,
        "packed.supplied - packed.starts[rows] + packed.batch.first[rows]",
        "packed.supplied - packed.starts[rows]",
        (f"{_CHUNKS}[resident]",),
    ),
    Mutant(
        "block-tables-cut-to-the-shortest",
        _COMPILE,
        "table_width=int(batch.num_blocks[: batch.num_rows].max()),",
        "table_width=int(batch.num_blocks[: batch.num_rows].min()),",
        (f"{_CHUNKS}[resident]",),
        hazards.CORRUPTION,
    ),
    # ---- staging
    Mutant(
        "every-chunk-packs-from-the-first-row",
        _STAGING,
        "chosen = rows[first : first + count]",
        "chosen = rows[:count]",
        (f"{_CHUNKS}[async-rows]",),
    ),
    Mutant(
        "every-chunk-writes-from-the-first-row",
        _STAGING,
        "] = rows[first : first + count]\n\n\ndef write_packed_rows",
        "] = rows[:count]\n\n\ndef write_packed_rows",
        (f"{_CHUNKS}[refresh]",),
    ),
    Mutant(
        "the-mask-is-not-brought-to-the-arena",
        _STAGING,
        'host["resident_mask"][places] = np.frombuffer(embeds.mask, np.uint8)',
        "pass",
        (f"{_CHUNKS}[fused]",),
        hazards.MASK,
    ),
    Mutant(
        "supplied-length-off-by-one",
        _STAGING,
        "lengths = [0 if given is None else len(given) for given",
        "lengths = [0 if given is None else len(given) + 1 for given",
        (f"{_FLAGS}test_a_first_decode_beside_a_prompt_of_embeddings_is_looked_up[inline]",),
        hazards.MASK,
    ),
    Mutant(
        "every-image-is-the-first",
        _STAGING,
        "prompt.images[encode.image]",
        "prompt.images[0]",
        ("tests/arms/test_chunks.py::test_images_cut_into_chunks_keep_their_slots_and_rows",),
    ),
    Mutant(
        "rope-shift-is-lost",
        _STAGING,
        " + batch.rope_offset[:rows]",
        "",
        (f"{_MROPE}test_qwen_grid_reaches_decodes_across_chunks",),
    ),
    Mutant(
        "text-after-an-image-starts-too-early",
        "runner/inputs/rope_positions.py",
        "start + max(vision.grid_height",
        "start + min(vision.grid_height",
        (f"{_MROPE}test_positions_are_those_of_transformers",),
    ),
    Mutant(
        "rows-that-are-not-finite-are-admitted",
        "runner/inputs/supplied.py",
        "if fine.all():",
        "if True:",
        ("tests/runner/test_regressions.py::test_rows_that_are_not_finite_fail_their_request_alone[inf]",),
    ),
    # ---- commands
    Mutant(
        "a-ring-of-one",
        "runner/commands.py",
        'return f"{buffer}.{step_id % RING_SIZE}"',
        'return f"{buffer}.{step_id % RING_SIZE * 0}"',
        (f"{_EVENTS}test_two_steps_in_flight_have_an_output_each",),
        hazards.RESULT,
    ),
    # ---- executor
    Mutant(
        "no-fence",
        "runner/executor.py",
        "            self._device.wait(UPLOADS_DONE, self._last.plan.step_id)",
        "            pass",
        (f"{_HAZARDS}test_24527_source_rewritten.py",),
        hazards.PINNED,
    ),
    Mutant(
        "result-read-without-waiting",
        "runner/executor.py",
        "            self.device.wait(OUTPUT_READY, self.plan.step_id)\n",
        "            pass\n",
        (f"{_EVENTS}test_a_result_is_read_only_after_its_download",),
        hazards.RESULT,
    ),
    Mutant(
        "result-waits-for-the-step-before",
        "runner/executor.py",
        "self.device.wait(OUTPUT_READY, self.plan.step_id)",
        "self.device.wait(OUTPUT_READY, self.plan.step_id - 1)",
        (f"{_EVENTS}test_a_result_is_read_only_after_its_download",),
        hazards.EVENT,
    ),
    Mutant(
        "rows-of-the-next-batch",
        "runner/executor.py",
        "last_rows = {row.request_id: row.row for row in self._last.sampling_rows} if self._last else {}",
        "last_rows = dict(self._batch.row_of)",
        (f"{_MOVES}test_rows_that_moved_get_their_own_sampled_ids",),
        hazards.NEXT_BATCH,
    ),
    Mutant(
        "result-read-by-the-next-batchs-rows",
        "runner/executor.py",
        "            sampling_rows=self._sampling_rows(step.plan, requests),\n",
        "            sampling_rows=type('Late', (), {'__iter__': lambda _: iter(\n"
        "                self._sampling_rows(step.plan, requests))})(),\n",
        (
            "tests/runner/test_executor.py::"
            "test_a_step_in_flight_knows_its_rows_though_the_batch_has_moved_on",
        ),
        hazards.NEXT_BATCH,
    ),
    # ---- engine
    Mutant(
        "forgotten-by-the-engine-alone",
        "runner/engine.py",
        "        self.scheduler.forget(request_id)\n",
        "",
        (_FORGETS,),
        hazards.KEPT,
    ),
    Mutant(
        "forgotten-while-in-flight",
        "runner/engine.py",
        "if any(row.request_id == request_id for step in self._in_flight for row in step.plan.rows):",
        "if False:",
        (_FORGETS,),
    ),
    Mutant(
        "async-waits-for-every-step",
        "runner/engine.py",
        'if self.decision.scheduling == "async":',
        "if False:",
        (f"{_ASYNC}test_at_most_two_steps_are_in_flight_and_one_in_sync[ids-2-inline]",),
        hazards.SYNC,
    ),
    Mutant(
        "nobody-looks-for-nan",
        "runner/engine.py",
        "                state.request, state.note = in_model_type(request, self._config.dtype)\n",
        "",
        ("tests/runner/test_regressions.py::test_rows_that_are_not_finite_fail_their_request_alone[nan]",),
    ),
)
