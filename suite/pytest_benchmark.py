"""The rounds of a run as pytest-benchmark's storage, for its own compare and whatever reads its files.

Its statistics are of times: a throughput is the time per token, so that "OPS" is the throughput again.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from suite.case_label import case_title
from suite.checks import Finding, invalid_runs
from suite.comparison import by_round, why_not_judged
from suite.metrics import DEFINITIONS
from suite.record import RunRecord

VERSION = "5.1.0"
"""Of pytest-benchmark, whose files these are like."""

METRICS = (
    "output_throughput",
    *(f"{statistic}_{name}_ms" for name in ("ttft", "itl", "e2e") for statistic in ("median", "p99")),
)
_SECONDS = {"ms": 1e-3, "us": 1e-6, "s": 1.0}


def storage_document(
    runs: Sequence[RunRecord], findings: Sequence[Finding], environment: Mapping[str, Any]
) -> tuple[dict[str, object], list[str]]:
    """What a file of its storage holds, and what was left out and why."""
    invalid = invalid_runs(findings)
    arms: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in runs:
        arms.setdefault((run.scenario, run.case_id, run.arm), []).append(run)
    rows: list[dict[str, object]] = []
    left_out: list[str] = []
    for group in arms.values():
        why = why_not_judged(group)
        if why is not None:
            left_out.append(f"{_name(group[0])}: {why}")
            continue
        found = [_row(group, metric, invalid) for metric in METRICS]
        rows += [row for row in found if row is not None]
        if not any(found):
            left_out.append(f"{_name(group[0])}: no round that counts has a value")
    document: dict[str, object] = {
        "machine_info": _machine(environment),
        "commit_info": _commit(environment),
        "benchmarks": rows,
        "datetime": str(environment.get("started_utc") or ""),
        "version": VERSION,
    }
    return document, left_out


def _row(runs: Sequence[RunRecord], metric: str, invalid: frozenset[str]) -> dict[str, object] | None:
    """One arm and metric; None where no round has a value above 0."""
    measured = [run for run in runs if run.is_measured]
    values = [value for value in by_round(measured, metric, invalid).values() if value]
    if not values:
        return None
    first, unit = runs[0], DEFINITIONS[metric].unit
    times_s = [value * _SECONDS[unit] if unit in _SECONDS else 1 / value for value in values]
    name = f"{_name(first)} {metric}"
    return {
        "group": metric,
        "name": name,
        "fullname": f"{first.scenario}::{first.case_id}::{first.arm}::{metric}",
        "params": {"case": first.case_label, "arm": first.arm, "metric": metric},
        "param": f"{first.case_label}-{first.arm}-{metric}",
        "extra_info": {"case_id": first.case_id, "unit": unit, "device": first.device},
        "options": {
            "disable_gc": False,
            "timer": "perf_counter_ns",
            "min_rounds": len(values),
            "max_time": 0.0,
            "min_time": 0.0,
            "warmup": True,
        },
        "stats": _statistics(times_s),
    }


def _name(run: RunRecord) -> str:
    case = case_title(run.scenario, run.case_label)
    return f"{case} {run.arm}"


def _statistics(times_s: Sequence[float]) -> dict[str, object]:
    """As pytest-benchmark computes them: its quartiles are Hazen's."""
    ordered = sorted(times_s)
    mean, median = statistics.fmean(ordered), statistics.median(ordered)
    stddev = statistics.stdev(ordered) if len(ordered) > 1 else 0.0
    q1, q3 = (float(np.percentile(ordered, share, method="hazen")) for share in (25, 75))
    iqr = q3 - q1
    low, high = q1 - 1.5 * iqr, q3 + 1.5 * iqr
    num_far = sum(abs(value - mean) > stddev for value in ordered)
    num_outside = sum(not low <= value <= high for value in ordered)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": stddev,
        "rounds": len(ordered),
        "median": median,
        "iqr": iqr,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": num_outside,
        "stddev_outliers": num_far,
        "outliers": f"{num_far};{num_outside}",
        "ld15iqr": next(value for value in ordered if value >= low),
        "hd15iqr": next(value for value in reversed(ordered) if value <= high),
        "ops": 1 / mean,
        "total": sum(ordered),
        "data": list(times_s),
        "iterations": 1,
    }


def _machine(environment: Mapping[str, Any]) -> dict[str, object]:
    """Names no user and no host, as our environment does."""
    device = environment.get("device")
    return {
        "node": "",
        "processor": str(environment.get("cpu_model") or ""),
        "machine": str(environment.get("os") or "").rpartition(" ")[2],
        "system": str(environment.get("os") or ""),
        "python_version": str(environment.get("python") or "").rpartition(" ")[2],
        "python_implementation": str(environment.get("python") or "").partition(" ")[0],
        "cpu": {"brand_raw": environment.get("cpu_model"), "count": environment.get("num_cores")},
        "device": device if isinstance(device, Mapping) else None,
    }


def _commit(environment: Mapping[str, Any]) -> dict[str, object]:
    checkout = environment.get("checkout")
    known = checkout if isinstance(checkout, Mapping) else {}
    return {
        "id": known.get("commit") or "unversioned",
        "dirty": bool(known.get("is_dirty")),
        "project": "stepcost",
    }
