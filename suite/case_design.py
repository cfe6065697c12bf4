"""Design: what the arms of a case are compared with, and in which metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from suite.metrics import DEFINITIONS
from suite.record import RunRecord

CaseKey = tuple[str, str]
"""scenario, case_id"""

AT_ONCE_METRICS = ("output_throughput",)
OPEN_LOOP_METRICS = ("median_e2e_ms", "median_itl_ms")
"""Below saturation the throughput of an open loop is the load that was asked for, whatever the arm."""

_NOT_OPEN = ("all_at_once", "closed_loop")


@dataclass(frozen=True, slots=True)
class Design:
    """What a case was run for: the arm to compare with, and the metrics to compare."""

    reference: str | None
    metrics: tuple[str, ...]


def primary_metrics(arrivals_kind: str) -> tuple[str, ...]:
    """What decides between two arms under a kind of arrivals: a trace's process's, where it has one."""
    return AT_ONCE_METRICS if arrivals_kind in _NOT_OPEN else OPEN_LOOP_METRICS


def designs(cases: Iterable[Mapping[str, object]]) -> dict[CaseKey, Design]:
    """The designs of a run folder's cases (LoadedRun.cases); older folders have none."""
    found = {}
    for case in cases:
        metrics, reference = case.get("primary_metrics"), case.get("reference")
        if isinstance(metrics, list) and isinstance(reference, str | None):
            known = tuple(name for name in metrics if isinstance(name, str) and name in DEFINITIONS)
            found[str(case.get("scenario")), str(case.get("case_id"))] = Design(reference, known)
    return found


def complete_designs(
    runs: Sequence[RunRecord], cases: Iterable[Mapping[str, object]]
) -> dict[CaseKey, Design]:
    """Those, and for cases that tell none what `compare` takes instead."""
    known = designs(cases)
    groups: dict[CaseKey, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((run.scenario, run.case_id), []).append(run)
    return {key: known.get(key) or old_design(group) for key, group in groups.items()}


def old_design(runs: Sequence[RunRecord]) -> Design:
    """Of a folder that tells none: the first right arm that scheduled sync, or the first right one."""
    right = [run for run in runs if not run.is_control]
    sync = [run for run in right if run.scheduling == "sync"]
    reference = next((run.arm for run in (*sync, *right)), None)
    return Design(reference, AT_ONCE_METRICS)
