"""Mutants of models in 16 bits: bits and their type, what is cast, and by which rule tokens are judged."""

from __future__ import annotations

from mutants.mutant import Mutant

_HALF = "tests/arms/test_half_precision.py::"
_BITS = "tests/runner/inputs/test_float_bits.py::"
_SUITE = "tests/suite/test_dtype.py::"
_SOURCE = "tests/suite/test_model_source.py::"

MUTANTS = (
    Mutant(
        "bits-are-viewed-as-the-other-16-bit-type",
        "runner/kernels/program.py",
        "tensor.view(_DTYPES[buffers[name].dtype])",
        "tensor.view(_DTYPES.get({'bfloat16': 'float16'}.get(buffers[name].dtype, buffers[name].dtype)))",
        (f"{_HALF}test_every_pattern_of_bits_survives_the_upload",),
    ),
    Mutant(
        "a-16-bit-model-has-the-other-16-bit-type",
        "runner/kernels/program.py",
        '    "bfloat16": torch.bfloat16,\n',
        '    "bfloat16": torch.float16,\n',
        (f"{_HALF}test_all_that_the_device_keeps_of_rows_is_in_the_models_type",),
    ),
    Mutant(
        "rows-are-cut-and-not-rounded",
        "runner/inputs/float_bits.py",
        "((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16)",
        "(bits >> 16)",
        (f"{_BITS}test_any_number_is_rounded_as_torch_rounds_it",),
    ),
    Mutant(
        "a-value-that-overflows-is-cast",
        "runner/inputs/supplied.py",
        "    _check(request, embeds, is_finite(cast, dtype), too_large)\n",
        "",
        (f"{_HALF}test_rows_too_large_for_float16_are_refused_and_the_others_are_served",),
    ),
    Mutant(
        "rope-is-rounded-too",
        "runner/weights.py",
        'if name.endswith("embed_scale"))',
        "if buffer.is_floating_point())",
        (f"{_HALF}test_all_that_the_device_keeps_of_rows_is_in_the_models_type",),
    ),
    Mutant(
        "16-bits-excuse-everything",
        "suite/tolerance.py",
        '"bfloat16": Tolerance(',
        '"bfloat16": Tolerance(100 + ',
        (f"{_HALF}test_negative_controls_are_wrong_at_the_same_tolerance",),
    ),
    Mutant(
        "16-bits-are-judged-as-float32",
        "suite/oracle.py",
        "        self._tolerance = TOLERANCES[dtype]\n",
        "        self._tolerance = _FLOAT32\n",
        (f"{_HALF}test_every_right_arm_is_right_in_bfloat16",),
    ),
    Mutant(
        "the-reference-keeps-weights-nobody-rounded",
        "suite/oracle.py",
        "build_model(preset.spec, _TYPES[preset.dtype])",
        "build_model(preset.spec)",
        (f"{_SUITE}test_the_reference_holds_rounded_weights_and_computes_in_float32",),
    ),
    Mutant(
        "bytes-are-counted-as-float32s",
        "suite/ceilings.py",
        "ITEM_BYTES[dtype]",
        'ITEM_BYTES["float32"]',
        (f"{_SUITE}test_shares_of_ceilings_count_the_types_bytes_and_say_what_was_not_measured",),
    ),
    Mutant(
        "the-oracles-weights-count-in-the-runners-type",
        "suite/scenario.py",
        'weight_bytes(model, dtype), weight_bytes(model, "float32")',
        "weight_bytes(model, dtype), weight_bytes(model, dtype)",
        (f"{_SOURCE}test_weights_take_the_runners_type_on_the_device_and_float32_in_the_oracle",),
    ),
)
