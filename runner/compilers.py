"""Whether torch.compile has what it calls: a C++ compiler for a CPU, triton for a GPU.

Standard library only.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

COMPILE_TIMEOUT_S = 1500.0
"""How much longer a device may take to open: minutes for a model of many layers."""


def missing_compiler(device: str) -> str | None:
    """What is missing to compile for a kind of device, and how to mend that; None where nothing is."""
    if device == "cuda":
        if importlib.util.find_spec("triton") is not None:
            return None
        return "the package triton is not installed: pip install triton, or set it to false"
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is not None:
        return None
    source = "which CXX names" if "CXX" in os.environ else "which torch.compile calls"
    return (
        f"there is no C++ compiler {compiler!r} here, {source}: install one (apt-get install g++), name one "
        "by CXX, or set it to false"
    )
