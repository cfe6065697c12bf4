"""Mutants of the GPU path that show without a GPU: Triton kernels, padded decode steps, captured graphs."""

from __future__ import annotations

from mutants import hazards
from mutants.mutant import Mutant

_ATTENTION = "runner/kernels/triton_attention.py"
_INPUTS = "runner/kernels/triton_inputs.py"
_DECODE = "runner/kernels/decode_inputs.py"
_CUDA = "runner/device/cuda.py"
_ANY_STEP = "tests/runner/kernels/test_triton_attention.py::test_any_step_equals_dense_attention"
_SPLIT = "tests/runner/kernels/test_triton_attention.py::test_parts_beyond_a_short_context_weigh_nothing"
_FILLED = (
    "tests/runner/kernels/test_triton_inputs.py::"
    "test_a_decode_steps_rows_routes_and_padding_are_those_of_torch"
)
_PADDED = "tests/arms/test_padded_decodes.py::"
_ORDER = "tests/arms/test_cuda_order.py::"

MUTANTS = (
    # ---- attention
    Mutant(
        "a-kernels-decode-window-is-one-longer",
        _ATTENTION,
        "oldest = tl.maximum(end - window, 0)",
        "oldest = tl.maximum(end - window - 1, 0)",
        (_ANY_STEP,),
    ),
    Mutant(
        "a-kernels-prefill-sees-the-next-token",
        _ATTENTION,
        "is_seen = position[None, :] < q_end[:, None]",
        "is_seen = position[None, :] <= q_end[:, None]",
        (_ANY_STEP,),
    ),
    Mutant(
        "parts-of-a-context-weigh-alike",
        _ATTENTION,
        "weights = tl.exp(logs - tl.max(logs, 0))",
        'weights = tl.where(logs == float("-inf"), 0.0, 1.0)',
        (_SPLIT,),
    ),
    Mutant(
        "a-group-of-heads-shares-the-next-kv-head",
        _ATTENTION,
        "kv_head = head // GROUP",
        "kv_head = head % NUM_KV_HEADS",
        (_ANY_STEP,),
    ),
    # ---- inputs
    Mutant(
        "padding-is-written-to-a-requests-block",
        "runner/kernels/program.py",
        "            scratch=self._cache.scratch_block,",
        "            scratch=0,",
        (f"{_PADDED}test_padding_writes_to_the_scratch_block_only",),
        hazards.CORRUPTION,
    ),
    Mutant(
        "padding-keeps-the-slots-of-the-last-step",
        _DECODE,
        "        self.slot_mapping[count:].fill_(self._scratch_slot)\n",
        "",
        (_FILLED,),
        hazards.CORRUPTION,
    ),
    Mutant(
        "guessed-positions-are-taken-for-known",
        _INPUTS,
        "position = tl.where(is_on_device, known, planned)",
        "position = tl.where(is_on_device, planned, planned)",
        (_FILLED,),
    ),
    Mutant(
        "the-last-columns-of-a-block-table-are-left",
        _INPUTS,
        "for begin in range(0, table_width, COLUMNS):",
        "for begin in range(0, table_width - COLUMNS + 1, COLUMNS):",
        (_FILLED,),
        hazards.CORRUPTION,
    ),
    # ---- graphs
    Mutant(
        "a-graph-one-row-too-small",
        "runner/inputs/compile.py",
        "size for size in self._graph_sizes if size >= rows",
        "size for size in self._graph_sizes if size + 1 >= rows",
        (f"{_PADDED}test_no_arm_has_other_tokens_for_padding",),
    ),
    Mutant(
        "a-chunk-is-replayed-as-a-decode",
        "runner/inputs/compile.py",
        "        if count != rows:\n            return 0\n        return next(",
        "        return next(",
        (f"{_PADDED}test_no_arm_has_other_tokens_for_padding",),
    ),
    Mutant(
        "a-capture-is-launched-and-not-replayed",
        _CUDA,
        "            graph.replay()\n",
        "",
        (f"{_ORDER}test_decode_steps_are_captured_once_and_replayed_in_the_same_order",),
    ),
    Mutant(
        "a-wait-that-gave-up-tells-nothing",
        _CUDA,
        'raise TimeoutError(f"not reached within {_WAIT_TIMEOUT_S:g} s")',
        "return",
        (f"{_ORDER}test_a_wait_for_a_device_that_hangs_ends_and_is_typed",),
    ),
)
