"""Every kernel compiles for the GPUs we mean, as our own launches call it, and spills no registers.

No GPU is needed: ptxas comes with Triton. In a process of its own, because here Triton interprets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[3]
COMPILING = Path(__file__).with_name("triton_compiling.py")
KERNELS = {
    *("decode_kernel", "combine_kernel", "prefill_kernel"),
    *("decode_inputs_kernel", "overlay_kernel"),
}


@pytest.mark.parametrize("capability", [80, 90], ids=["sm_80", "sm_90"])
def test_every_kernel_compiles_and_spills_nothing(capability: int, tmp_path: Path) -> None:
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", COMPILING, str(capability)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    compiled: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert {kernel["kernel"] for kernel in compiled} == KERNELS
    assert all(kernel["REG"] > 0 for kernel in compiled)
    assert [kernel for kernel in compiled if kernel["STACK"] or kernel["LOCAL"]] == []
