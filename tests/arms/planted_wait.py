"""A device process whose `sample` takes a value to the host. Imported by that process; holds no assertion."""

from __future__ import annotations

from typing import Any

from runner.kernels.program import Program


def serve(*given: Any) -> None:
    """In place of runner.device.process._serve."""
    from runner.device.process_child import serve as serve_as_ever

    sample = Program._sample

    def sample_and_look(self: Program, *command: Any) -> None:
        sample(self, *command)
        self._logits.argmax().item()

    Program._sample = sample_and_look  # type: ignore[method-assign]
    serve_as_ever(*given)
