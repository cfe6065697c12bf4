"""Run folders made by hand, with figures of known size: for whatever holds one run against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from records import make_request, make_run, make_step

from suite.environment import Checkout, DeviceFacts, Environment
from suite.record import RunRecord
from suite.store import RunFolder

CASE_ID = "1234567890abcdef"
ENVIRONMENT = Environment(
    started_utc="2026-01-01T00:00:00Z",
    command_line="python -m suite run",
    cpu_model="Fast CPU",
    num_cores=4,
    num_physical_cores=2,
    num_usable_cores=4,
    memory_bytes=2**34,
    available_memory_bytes=2**33,
    os="Linux 6.1 x86_64",
    python="CPython 3.11.2",
    packages={"torch": "2.13.0", "transformers": "5.0.0", "numpy": "2.3.0", "plotly": "6.0.0"},
    checkout=Checkout(commit="a" * 40, is_dirty=False),
    variables={"OMP_NUM_THREADS": "1"},
    device=DeviceFacts(kind="process", name="CPU", num_threads=1, torch_version="2.13.0"),
)


def rounds_of(
    arm: str, factor: float, seed: int = 0, num_rounds: int = 10, is_aa: bool = False, **changes: object
) -> list[RunRecord]:
    """Rounds of 0.2 % noise at `factor` times a second's speed."""
    noise = np.random.default_rng([seed, *arm.encode(), is_aa]).normal(0, 0.002, num_rounds)
    return [
        make_run(
            [make_request()],
            duration_s=float(np.exp(noise[number]) / factor),
            arm=arm,
            round=number,
            run_id=f"{arm}-{'aa' if is_aa else 'r'}{number}",
            is_aa=is_aa,
            **changes,
        )
        for number in range(num_rounds)
    ]


def experiment(seed: int = 0, num_rounds: int = 10, **factors: float) -> list[RunRecord]:
    """The reference arm, its A/A repeats, and arms by factor of its speed (`sync_ids` for itself)."""
    own = factors.pop("sync_ids", 1.0)
    return [
        *rounds_of("sync-ids", own, seed, num_rounds),
        *rounds_of("sync-ids", own, seed, num_rounds, is_aa=True),
        *(run for arm, factor in factors.items() for run in rounds_of(arm, factor, seed, num_rounds)),
    ]


def write_folder(
    path: Path,
    runs: Sequence[RunRecord],
    environment: Environment | None = ENVIRONMENT,
    invocation: Mapping[str, object] | None = None,
) -> Path:
    """A folder with these runs in it, of the case they name."""
    folder = RunFolder.create(path.parent, path.name)
    keys = dict.fromkeys((run.scenario, run.case_id, run.case_label) for run in runs)
    cases = [
        {
            "scenario": scenario,
            "case_id": case_id,
            "label": label,
            "reference": "sync-ids",
            "primary_metrics": ["output_throughput"],
        }
        for scenario, case_id, label in keys
    ]
    config = {"scenarios": [{"name": "smoke"}], "cases": cases, "skipped": [], "invocation": invocation or {}}
    folder.write_config(config)
    if environment is not None:
        folder.write_environment(environment.model_dump(mode="json"))
    for run in runs:
        folder.append_run(run)
        folder.write_requests(run.run_id, [make_request()])
        folder.write_steps(run.run_id, [make_step(0, 0, 30, num_tokens=10)])
    folder.write_summary({"status": "completed"}, "")
    return folder.path
