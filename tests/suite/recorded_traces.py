"""Where recorded traces lie, which the repository does not hold. Holds no assertion."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]


def recorded(*names: str) -> Path:
    """A recorded file or folder; the test is skipped where it is missing."""
    folder = Path(os.environ.get("STEPCOST_TRACES", _ROOT.parent / "shared" / "traces"))
    path = folder.joinpath(*names)
    if not path.exists():
        pytest.skip(f"no {path}; set STEPCOST_TRACES to the folder of recorded traces")
    return path
