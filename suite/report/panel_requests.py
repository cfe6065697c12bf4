"""Panel: requests."""

from __future__ import annotations

from collections.abc import Sequence

from suite.report import figures, request_figures, tables
from suite.report.cases import in_order
from suite.report.chart import MAX_SERIES, Chart
from suite.report.data import ScenarioData, Series
from suite.report.panels import TITLES, Detail, Panel


def panel(scenario: ScenarioData, max_points: int) -> Panel:
    """Throughput, latencies as shares, over time and by class, and goodput; wrong arms are not drawn."""
    judged = [one for one in in_order(scenario) if not tables.why_no_speed(one)]
    left_out = [
        f"{one.label} ({tables.why_no_speed(one)})" for one in in_order(scenario) if one not in judged
    ]
    told = f" Not drawn here: {'; '.join(left_out)}." if left_out else ""
    labelled = list(zip(figures.short_labels(judged), judged, strict=True))
    gates = scenario.gates
    command = f"`python -m suite run {scenario.file} --goodput 'ttft:200 tpot:20 e2el:900'` sets some"
    return Panel(
        id="panel-requests",
        title=TITLES["panel-requests"],
        lead=f"How long requests waited, how many were good enough, and how much came out each second.{told}",
        charts=(
            figures.throughput(judged),
            request_figures.goodput(labelled, gates, command),
            request_figures.by_class(labelled, "ttft_ms"),
            request_figures.by_class(labelled, "e2e_ms"),
        ),
        num_columns=2,
        tables=(tables.more_verdicts(scenario),),
        details=(
            *_shares(judged, max_points),
            *_over_time(labelled, max_points),
            Detail("Every metric of every arm", (), (tables.all_metrics(scenario),)),
        ),
    )


def _shares(judged: Sequence[Series], max_points: int) -> list[Detail]:
    groups = figures.latency_charts(judged, max_points)
    return [
        Detail(
            f"Latencies as shares{f': {heading}' if heading else ''}", tuple(charts), (), is_open=index == 0
        )
        for index, (heading, charts) in enumerate(groups)
    ]


def _over_time(labelled: Sequence[tuple[str, Series]], max_points: int) -> list[Detail]:
    details = []
    for first in range(0, len(labelled), MAX_SERIES):
        group = labelled[first : first + MAX_SERIES]
        which = (
            f": {first + 1} to {first + len(group)} of {len(labelled)}" if len(labelled) > MAX_SERIES else ""
        )
        charts: tuple[Chart, ...] = (
            request_figures.first_tokens_over_time(group, max_points),
            request_figures.gaps_over_time(group),
        )
        details.append(Detail(f"Latencies over time{which}", charts, (), is_open=first == 0))
    return details
