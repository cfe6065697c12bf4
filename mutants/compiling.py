"""Faults in what is compiled, when, and how that is told."""

from __future__ import annotations

from mutants.mutant import Mutant

_COMPILE = "tests/arms/test_torch_compile.py::"
_EVERY_ARM = f"{_COMPILE}test_every_right_arm_gives_the_right_tokens_and_compiles_nothing_in_a_step"

MUTANTS = (
    Mutant(
        "warmed-up-for-one-token-alone",
        "runner/kernels/program.py",
        "for count in sorted({1, min(2, most), most}):",
        "for count in (1,):",
        (f"{_EVERY_ARM}[micro-gemma3-vl-2]",),
    ),
    Mutant(
        "positions-compiled-as-they-lie",
        "runner/kernels/compiled_forward.py",
        "self._compiled(_laid_out_plainly(positions), input_ids, inputs_embeds)",
        "self._compiled(positions, input_ids, inputs_embeds)",
        (f"{_EVERY_ARM}[micro-qwen2.5-vl-2]",),
    ),
    Mutant(
        "what-is-compiled-in-a-step-is-not-counted",
        "runner/kernels/program.py",
        "return self._model.num_graphs - self._num_graphs_at_reset",
        "return 0",
        (f"{_COMPILE}test_a_graph_compiled_in_a_step_is_counted_until_the_next_reset",),
    ),
    Mutant(
        "compiled-within-a-run-and-believed",
        "suite/validity/machine.py",
        "if run.compiled is not None and run.compiled.num_within:",
        "if run.compiled is None:",
        ("tests/suite/test_compile_phase.py",),
    ),
)
