"""Cases and workloads of a scenario written for a test, here and in fresh processes. Holds no assertion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bad_inputs import GOOD

from suite.scenario import Case, expand, load_scenario
from suite.workload import Workload, build_workload

_ROOT = Path(__file__).resolve().parents[2]
_PRINT_WORKLOAD = """
import sys, hashlib, numpy as np
from pathlib import Path
from suite.scenario import expand, load_scenario
from suite.workload import build_workload, materialise
(case,) = expand(load_scenario(Path(sys.argv[1]), sys.argv[3:]))
workload = build_workload(case, int(sys.argv[2]))
def embed(ids): return np.sin(np.asarray(ids, np.float32)[:, None] + np.arange(256, dtype='f4'))
digest = hashlib.sha256()
for item in materialise(workload, embed):
    prompt = item.request.prompt
    digest.update(repr((prompt.token_ids, item.kind, item.request.sampling)).encode())
    digest.update(prompt.embeds.data + (prompt.embeds.mask or b'') if prompt.embeds else b'')
print(workload.hash, digest.hexdigest(), 'torch' in sys.modules)
"""


def built_case(folder: Path, *overrides: str, text: str = GOOD) -> Case:
    path = folder / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    (case,) = expand(load_scenario(path, overrides))
    return case


def built(folder: Path, *overrides: str, seed: int = 7, text: str = GOOD) -> Workload:
    return build_workload(built_case(folder, *overrides, text=text), seed)


def printed_by_fresh_processes(path: Path, options: tuple[str, ...], seed: int) -> set[str]:
    """What processes of three hash seeds print of a workload: its hash, a digest of the requests as an arm
    with prompt_embeds gets them, and whether torch was loaded.
    """
    return {
        subprocess.run(
            [sys.executable, "-c", _PRINT_WORKLOAD, str(path), str(seed), *options],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(_ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2", "3")
    }
