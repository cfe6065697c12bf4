"""A device's process in which a short compiler stands in the place of torch's own. Holds no assertion."""

from __future__ import annotations

from typing import Any

SHORT = "aot_eager"
"""Captures, guards and lays out as inductor does, and runs what was captured as it is."""


def serve_with_short_compiler(*arguments: Any) -> None:
    """Entry of the device's process."""
    from runner.device import process_child
    from runner.kernels import compiled_forward

    compiled_forward.BACKEND = SHORT
    process_child.serve(*arguments)
