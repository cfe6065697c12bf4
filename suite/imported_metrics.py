"""`suite metrics FILE`: the latencies of requests that another program served, by our definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.metrics import latency_metrics
from suite.record import Metric
from suite.report.wording import number
from suite.vllm_requests import VllmRequests, read_vllm_requests

if TYPE_CHECKING:
    from suite.commands import Screen

EXIT_FINE = 0
STATISTICS = ("mean", "median", "p90", "p95", "p99", "max")
_WIDTH = 10


def metrics_command(file: Path, screen: Screen) -> int:
    """Print the figures of a requests.jsonl of vLLM's. SuiteError names file, line and key of a mistake."""
    found = read_vllm_requests(file)
    metrics = {metric.name: metric for metric in latency_metrics(found.latencies())}
    screen.show(_lines(found, metrics), _document(found, metrics))
    return EXIT_FINE


def _lines(found: VllmRequests, metrics: Mapping[str, Metric]) -> list[str]:
    tokens = sum(one.num_output_tokens for one in found.requests)
    lines = [f"{len(found.requests):,} requests, {tokens:,} output tokens", found.note]
    lines += [_row("ms", STATISTICS)]
    absent: dict[str, str] = {}
    for name in dict.fromkeys(name.partition("_")[2] for name in metrics):
        row = [metrics.get(f"{statistic}_{name}") for statistic in STATISTICS]
        lines.append(_row(name.removesuffix("_ms"), [_cell(metric) for metric in row]))
        reason = next((metric.reason for metric in row if metric is not None and metric.reason), None)
        if reason is not None:
            absent[name] = reason
    return [*lines, *(f"{name.removesuffix('_ms')}: n/a: {reason}" for name, reason in absent.items())]


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:12}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)


def _cell(metric: Metric | None) -> str:
    """Nothing where the statistic is not one of the metric's, n/a where it has no value."""
    if metric is None:
        return ""
    return "n/a" if metric.value is None else number(metric.value)


def _document(found: VllmRequests, metrics: Mapping[str, Metric]) -> dict[str, object]:
    return {
        "num_requests": len(found.requests),
        "note": found.note,
        "metrics": {name: metric.model_dump(mode="json") for name, metric in metrics.items()},
    }
