"""Noise of single runs, as rounds recorded it: python tools/round_noise.py RUN > tests/data/round-noise.json

RUN is the folder of a run with A/A rounds. Of log output throughput by round and arm (the reference arm's
repeat is an arm of its own) the means of rounds and of arms are taken out; what is left is scaled by the root
of all values over those still free, so that its variance is that of a run.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(folder: str) -> None:
    from suite.store import load_run

    loaded = load_run(Path(folder))
    logs: dict[int, dict[str, float]] = {}
    for run in (run for run in loaded.runs if run.is_timed_alike and run.is_completed):
        value = run.metrics["output_throughput"].value
        if value:
            logs.setdefault(run.round, {})[f"{run.arm} repeated" if run.is_aa else run.arm] = math.log(value)
    arms = sorted({arm for of_round in logs.values() for arm in of_round})
    table = np.array(
        [[logs[number][arm] for arm in arms] for number in sorted(logs) if len(logs[number]) == len(arms)]
    )
    left = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    num_rounds, num_arms = table.shape
    scaled = left * math.sqrt(table.size / ((num_rounds - 1) * (num_arms - 1)))
    cpu = [run.cpu for run in loaded.runs if run.cpu is not None]
    document = {
        "cpu_model": loaded.environment.get("cpu_model"),
        "num_cores": loaded.environment.get("num_usable_cores"),
        "command": "python -m suite run scenarios/smoke.yaml --rounds 22 --instrument off",
        "num_rounds": num_rounds,
        "arms": arms,
        "foreign_load": round(float(np.median([one.foreign_s / one.capacity_s for one in cpu])), 3)
        if cpu
        else None,
        "residuals": [round(float(value), 5) for value in scaled.ravel()],
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
