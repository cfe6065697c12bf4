"""The environment of the programs the suite starts from its own code."""

from __future__ import annotations

import os
from pathlib import Path


def child_environment() -> dict[str, str]:
    """The suite's own, with its packages on the path from any folder and UTF-8 in any locale."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1"}
