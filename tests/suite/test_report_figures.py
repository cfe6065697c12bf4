"""The report's figures: what is drawn is the data, thinned openly, and escaped for plotly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import report_fabrication as fabricate
from hypothesis import given
from hypothesis import strategies as st

from suite.checks import Finding
from suite.report import chart as chart_parts
from suite.report import figures
from suite.report.chart import Chart
from suite.report.data import Series, from_loaded


def series(**options: object) -> Series:
    (one,) = from_loaded(fabricate.loaded(**options)).series  # type: ignore[arg-type]
    return one


def test_throughput_has_a_point_for_every_measured_round_and_the_median() -> None:
    one = series(num_rounds=5)
    figure = figures.throughput([one]).figure
    assert figure is not None
    rounds, middle = figure.data
    assert list(rounds.x) == one.values("output_throughput")
    assert list(rounds.customdata) == [1, 2, 3, 4, 5]
    assert list(middle.x) == [np.median(one.values("output_throughput"))]


def with_invalid(one: Series, *rounds: int) -> Series:
    found = [
        Finding(one.runs[number].record.run_id, "foreign-load", "busy", "wait", True) for number in rounds
    ]
    return replace(one, findings=tuple(found))


def test_an_invalid_round_is_shown_as_a_cross_and_is_in_no_median_curve_or_box() -> None:
    whole = series(num_rounds=5, num_requests=10)
    one = with_invalid(whole, 0, 3)
    chart = figures.throughput([one])
    assert chart.figure is not None
    rounds, middle, crosses = chart.figure.data
    values = whole.values("output_throughput")
    assert list(rounds.customdata) == [2, 3, 5] and list(crosses.customdata) == [1, 4]
    assert list(crosses.x) == [values[0], values[3]] and crosses.name == "INVALID"
    assert list(middle.x) == [np.median([values[1], values[2], values[4]])]
    assert "A cross is a round that is INVALID" in chart.caption
    assert one.values("output_throughput") == [values[1], values[2], values[4]]
    assert len(one.values("output_tokens")) == 5, "what was counted is of every round"
    latency = figures.latency([("x", one)], "ttft_ms", 1000)
    assert "n = 30 requests, 3\u00a0rounds pooled" in latency.caption
    assert "3\u00a0rounds pooled" in figures.step_times(one).caption
    assert figures.middle_run(one).record.round in (1, 2, 4)


def test_where_every_round_is_invalid_the_charts_say_so() -> None:
    one = with_invalid(series(num_rounds=2), 0, 1)
    assert figures.throughput([one]).reason == "every round is INVALID: foreign-load"
    assert figures.latency([("x", one)], "e2e_ms", 100).reason == "every round is INVALID: foreign-load"


@pytest.mark.parametrize("kind", ["ttft_ms", "itl_ms", "e2e_ms"])
def test_a_latency_curve_ends_at_the_longest_sample_and_at_one(kind: str) -> None:
    one = series(num_rounds=2, num_requests=10)
    chart = figures.latency([("x", one)], kind, 1000)
    assert chart.figure is not None
    samples = np.concatenate(
        [
            np.concatenate([*run.requests[kind]]) if kind == "itl_ms" else run.requests[kind].to_numpy()
            for run in one.runs
        ]
    )
    (curve,) = chart.figure.data
    assert curve.x == pytest.approx(np.sort(samples), rel=1e-4)
    assert curve.y[-1] == 1
    assert f"n = {len(samples):,}" in chart.caption


def test_latencies_count_from_the_scheduled_arrival() -> None:
    one = series(num_rounds=1, num_requests=3)
    row = one.runs[0].requests.iloc[1]
    assert row["ttft_ms"] == (row["token_ns"][0] - row["scheduled_ns"]) / 1e6
    assert row["e2e_ms"] == (row["token_ns"][-1] - row["scheduled_ns"]) / 1e6


def test_a_thinned_curve_says_so_and_keeps_the_extremes() -> None:
    one = series(num_rounds=1, num_requests=500)
    chart = figures.latency([("x", one)], "ttft_ms", 100)
    assert chart.figure is not None
    (curve,) = chart.figure.data
    assert len(curve.x) == 100
    values = one.runs[0].requests["ttft_ms"]
    assert (curve.x[0], curve.x[-1]) == pytest.approx((values.min(), values.max()), rel=1e-4)
    assert "at most 100 of its samples" in chart.caption


@given(count=st.integers(1, 5000), max_points=st.integers(5, 400))
def test_thinned_ranks_rise_and_keep_both_ends(count: int, max_points: int) -> None:
    ranks = figures.thin_ranks(count, max_points)
    assert ranks[0] == 0 and ranks[-1] == count - 1
    assert len(ranks) == min(count, max_points)
    assert (np.diff(ranks) > 0).all()


@given(values=st.lists(st.integers(0, 99), min_size=1, max_size=400), group=st.integers(1, 90))
def test_groups_of_steps_keep_mean_lowest_and_highest(values: list[int], group: int) -> None:
    pieces = [values[first : first + group] for first in range(0, len(values), group)]
    means, low, high = figures.by_group(np.asarray(values, dtype=np.float64), group)
    assert means == pytest.approx([np.mean(piece) for piece in pieces])
    assert list(low) == [min(piece) for piece in pieces]
    assert list(high) == [max(piece) for piece in pieces]


def test_step_times_are_told_for_every_kind_and_clock() -> None:
    one = series(num_rounds=2, num_steps=80)
    chart = figures.step_times(one)
    assert chart.figure is not None
    boxes = {y: trace.median[i] for trace in chart.figure.data for i, y in enumerate(trace.y)}
    assert len(boxes) == 9
    device = np.concatenate([run.steps.query("kind == 'decode'")["device_ns"] for run in one.runs])
    assert boxes["decode · device"] == pytest.approx(np.median(device) / 1e6, rel=1e-4)
    assert "prefill 20, decode 120, mixed 20" in chart.caption


def test_batch_composition_is_of_the_round_of_median_throughput() -> None:
    one = series(num_rounds=3, num_steps=40)
    chart = figures.batch_over_time(one, 1000)
    assert chart.figure is not None
    # Rounds get slower one by one, so the middle one is the median.
    assert list(chart.figure.data[0].y) == one.runs[1].steps["num_decode_rows"].tolist()
    assert list(chart.figure.data[1].customdata) == list(range(40))
    assert "40\u00a0steps of round 2" in chart.caption


def test_many_steps_are_grouped_and_it_is_said() -> None:
    one = series(num_rounds=1, num_steps=5000)
    chart = figures.batch_over_time(one, 400)
    assert chart.figure is not None
    band, line, *_ = chart.figure.data
    decode = one.runs[0].steps["num_decode_rows"].to_numpy().reshape(100, 50)
    assert line.y == pytest.approx(decode.mean(axis=1), rel=1e-4)
    assert list(band.y) == [*decode.max(axis=1), *decode.min(axis=1)[::-1]]
    assert (line.meta, band.meta) == ("decode", None)
    assert "means of 50 steps in a row" in chart.caption


@pytest.mark.parametrize(
    ("low", "high", "ticks"), [(5, 40, None), (0.4, 60, "D2"), (10, 10_000, "D2"), (3, 200_000, 1)]
)
def test_ticks_of_a_logarithmic_axis_leave_room_for_their_numbers(
    low: float, high: float, ticks: object
) -> None:
    assert chart_parts.log_axis("B", "~s", low, high).get("dtick") == ticks


def test_every_chart_without_data_has_a_reason() -> None:
    (one,) = from_loaded(fabricate.all_failed()).series
    charts: list[Chart] = [
        figures.throughput([one]),
        *(figures.latency([("x", one)], kind, 100) for kind in figures.LATENCIES),
        figures.step_times(one),
        figures.batch_over_time(one, 100),
    ]
    for chart in charts:
        assert chart.figure is None
        assert "no run completed (3 failed, 0 interrupted)" in chart.reason


def test_latency_without_samples_tells_which_requests_lack_them() -> None:
    one = series(num_output=1)
    assert figures.latency([("x", one)], "itl_ms", 100).reason == "one output token"
    (none,) = from_loaded(fabricate.none_finished()).series
    assert figures.latency([("x", none)], "ttft_ms", 100).reason == "no request completed"


def test_many_series_are_split_over_charts_and_none_is_lost() -> None:
    loaded = fabricate.loaded(num_rounds=1, cases=[f"ratio={i}" for i in range(14)])
    groups = figures.latency_charts(from_loaded(loaded).series, 100)
    assert [len(charts[0].figure.data) for _, charts in groups if charts[0].figure] == [6, 6, 2]
    assert groups[2][0] == "case and arm 13 to 14 of 14"


def test_names_are_escaped_for_plotly_and_stay_apart_when_cut() -> None:
    assert chart_parts.wrap("<b>&amp;</b>") == "&lt;b&gt;&amp;amp;&lt;/b&gt;"
    first, second = chart_parts.distinct(["x" * 200 + "1", "x" * 200 + "2"])
    assert first != second


def test_labels_say_only_what_differs() -> None:
    loaded = fabricate.loaded(num_rounds=1, num_requests=2, cases=("a", "b"))
    assert figures.short_labels(from_loaded(loaded).series) == ["a", "b"]
    loaded = fabricate.loaded(num_rounds=1, num_requests=2, arms=("sync", "async"))
    assert figures.short_labels(from_loaded(loaded).series) == ["sync", "async"]


def test_colours_have_a_dark_twin_and_another_mark_each() -> None:
    size = chart_parts.MAX_SERIES
    assert len(chart_parts.DARK) == len(set(chart_parts.DARK)) == size
    assert len(set(chart_parts.DASHES)) >= size and len(set(chart_parts.SYMBOLS)) >= size
