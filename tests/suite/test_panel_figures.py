"""The figures of the panels: numbers worked out by hand, reasons, thinning and strict JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import cost_fabrication as make
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import report_fabrication as fabricate

from suite.ceilings import CeilingShare
from suite.report import (
    bill_figures,
    break_even_figures,
    request_figures,
    scenario_panels,
    span_figures,
    timeline_figures,
    token_figures,
    token_tables,
    upload_figures,
)
from suite.report import cases as case_drawing
from suite.report.cases import drawn_cases, in_order
from suite.report.chart import Chart
from suite.report.data import ScenarioData, Series, from_loaded
from suite.report.panels import Panel
from suite.verdict import Word

MS = make.MS


def scenario(**options: Any) -> ScenarioData:
    (one,) = from_loaded(fabricate.loaded(**options)).scenarios
    return one


def arms(*names: str, **options: Any) -> list[Series]:
    return list(scenario(arms=names, **options).series)


def figure_of(chart: Chart) -> go.Figure:
    assert chart.figure is not None, chart.reason
    json.dumps(chart.figure.to_plotly_json(), allow_nan=False, default=_plain)
    assert chart.figure.layout.height > 0
    return chart.figure


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else str(value)


def by_name(figure: go.Figure) -> Mapping[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.name}


# where the step goes


def spans_of(one: Series, scale: float = 1.0) -> Series:
    rows = (
        make.span_row("forward", serial=100 * scale),
        make.span_row("lookup", serial=20 * scale),
        make.span_row("schedule", "host", overlapped=30 * scale, idle=10 * scale),
        make.span_row("wait.output", "host", overlapped=50 * scale, idle=5 * scale),
    )
    return make.with_costs(one, make.step_costs(rows))


def test_a_steps_length_is_the_devices_time_and_its_gaps_by_what_the_host_did() -> None:
    first, second = arms("sync-ids", "ids", num_rounds=1)
    figure = figure_of(span_figures.lengthening([spans_of(first), spans_of(second, 2.0)], "decode"))
    traces = by_name(figure)
    assert list(traces["device busy (serial)"].x) == [120, 240]
    assert list(traces["device idle, host works (idle-causing)"].x) == [10, 20]
    assert list(traces["device idle, host waits"].x) == [5, 10]
    assert list(traces["device idle, host waits"].base) == [130, 260]
    # What waits under the device is no work: it is not hidden work either.
    assert list(traces["host works, hidden under the device (overlapped)"].x) == [30, 60]
    assert [text.strip() for text in figure.data[-1].text] == ["135", "270"]


def test_a_long_step_is_told_in_milliseconds() -> None:
    (one,) = arms("ids", num_rounds=1)
    figure = figure_of(span_figures.lengthening([spans_of(one, 100.0)], "decode"))
    assert list(by_name(figure)["device busy (serial)"].x) == [12]
    assert figure.layout.xaxis.title.text.startswith("ms")


def test_the_spans_of_a_bar_add_up_to_the_lane_and_the_small_ones_are_other() -> None:
    (one,) = arms("ids", num_rounds=1)
    rows = tuple(make.span_row(f"upload.{name}", serial=value) for value, name in enumerate("abcdefg", 1))
    chart = span_figures.by_arm([make.with_costs(one, make.step_costs(rows))], "decode", "compute")
    traces = by_name(figure_of(chart))
    assert sum(trace.x[0] for trace in traces.values()) == 28
    assert traces["other"].x[0] == 3 and traces["upload.g"].base[0] == 0
    assert "other: upload.a, upload.b." in chart.caption


def test_an_arm_without_spans_is_named_with_its_reason() -> None:
    first, second = arms("sync-ids", "ids", num_rounds=1)
    chart = span_figures.lengthening([spans_of(first), second], "decode")
    assert list(by_name(figure_of(chart))["device busy (serial)"].y) == ["sync-ids"]
    assert "Not drawn: ids (no run with instruments" in chart.caption
    assert span_figures.lengthening([spans_of(first)], "mixed").reason == "no mixed step was recorded"


def test_boxes_are_the_percentiles_of_single_spans() -> None:
    (one,) = arms("ids", num_rounds=1)
    figure = figure_of(span_figures.durations(spans_of(one), "decode"))
    device = by_name(figure)["device"]
    assert list(device.y) == ["device · forward", "device · lookup"]
    assert list(device.median) == [100, 20] and list(device.q1) == [75, 15]
    assert list(device.lowerfence) == [50, 10] and list(device.upperfence) == [200, 40]


def test_the_lengths_of_steps_are_those_of_the_measured_rounds() -> None:
    (one,) = arms("ids", num_rounds=2)
    (box,) = figure_of(span_figures.wall_times([one], "decode")).data
    walls = np.concatenate([run.steps.query("kind == 'decode'")["wall_ms"].dropna() for run in one.runs])
    assert box.median[0] == pytest.approx(np.median(walls), rel=1e-4)
    assert box.upperfence[0] == pytest.approx(np.percentile(walls, 95), rel=1e-4)


# timeline


def timeline_of(num_arms: int = 2, num_steps: int = 3, pieces: int = 1, most: int = 6_000) -> Chart:
    series = arms(*[f"arm-{number}" for number in range(num_arms)], num_rounds=1, num_requests=2)
    lanes = make.lanes(num_steps, pieces)
    rows = (make.span_row("forward", serial=1),)
    return timeline_figures.timeline(
        [make.with_costs(one, make.step_costs(rows, lanes)) for one in series], most
    )


def test_bars_lie_where_the_pieces_were() -> None:
    figure = figure_of(timeline_of())
    options = figure.layout.meta["pair"]["options"]
    traces = [figure.data[index] for index in options[0]["traces"]]
    model = next(trace for trace in traces if trace.name == "model: forward, sample")
    assert list(model.y) == ["device"] * 3
    assert list(model.base) == [1, 11, 21] and list(model.x) == [6, 6, 6]
    assert list(model.text) == ["0", "1", "2"]
    work = next(trace for trace in traces if trace.name == "host works")
    assert list(work.base) == [0, 10, 20] and list(work.x) == [1, 1, 1]


def test_a_gap_tells_its_causes_and_a_bar_its_rows_route_and_bytes() -> None:
    figure = figure_of(timeline_of())
    gaps = next(trace for trace in figure.data if trace.name == "device idle, and why")
    assert list(gaps.base) == [7, 17] and list(gaps.x) == [4, 4]
    assert "because of wait.output 2,000\u00a0µs, schedule 2,000\u00a0µs" in gaps.hovertext[0]
    for told in ("4\u00a0rows", "5\u00a0positions", "2 supplied", "ids slice, embeddings merge", "1,234 B"):
        assert told in gaps.hovertext[0]


def test_every_arm_is_in_the_figure_and_two_are_shown_above_one_another() -> None:
    figure = figure_of(timeline_of(num_arms=4))
    pair = figure.layout.meta["pair"]
    assert [option["label"] for option in pair["options"]] == [f"arm-{number}" for number in range(4)]
    assert len({len(option["traces"]) for option in pair["options"]}) == 1
    shown = {index for index, trace in enumerate(figure.data) if trace.visible}
    upper, lower = (pair["options"][index]["traces"] for index in pair["chosen"])
    assert shown == {*upper, *lower}
    assert {figure.data[index].yaxis for index in upper} == {"y"}
    assert {figure.data[index].yaxis for index in lower} == {"y2"}


def test_a_timeline_of_many_pieces_has_fewer_steps_and_says_how_many() -> None:
    chart = timeline_of(num_arms=3, num_steps=12, pieces=100, most=2_000)
    figure = figure_of(chart)
    bars = sum(len(trace.x) for trace in figure.data)
    assert 1_000 < bars <= 2_000
    assert "6 steps in a row" in chart.caption


def test_a_window_that_is_not_steady_is_told() -> None:
    (one,) = arms("ids", num_rounds=1)
    lanes = replace(make.lanes(2), window=None, not_steady="the last 8 steps have from 1 to 9 rows")
    rows = (make.span_row("forward", serial=1),)
    chart = timeline_figures.timeline([make.with_costs(one, make.step_costs(rows, lanes))])
    assert "none, the last 8 steps have from 1 to 9 rows" in chart.caption


# uploads


def with_steps(one: Series, steps: pd.DataFrame) -> Series:
    return replace(one, runs=(replace(one.runs[0], steps=steps),))


def test_a_mark_is_the_mean_bytes_of_a_buffer_and_the_stroke_their_sum() -> None:
    (one,) = arms("ids", num_rounds=1)
    steps = pd.DataFrame(
        {
            "kind": ["decode", "decode", "mixed"],
            "num_tokens": [4, 8, 64],
            "bytes.inputs_embeds": [100, 300, 5000],
            "bytes.step_metadata.0": [10, 0, 50],
            "bytes.step_metadata.1": [0, 20, 0],
        }
    )
    traces = by_name(figure_of(upload_figures.by_buffer([with_steps(one, steps)], "decode")))
    assert list(traces["inputs_embeds"].x) == [200]
    assert list(traces["step_metadata"].x) == [15]  # the halves of a ring are one buffer
    assert list(traces["sum"].x) == [215]


def test_the_flags_have_a_mark_however_small_they_are() -> None:
    (one,) = arms("ids", num_rounds=1)
    names = [f"bytes.buffer_{number}" for number in range(9)]
    steps = pd.DataFrame(
        {"kind": ["decode"], **{name: [10_000] for name in names}, "bytes.is_token_ids": [1]}
    )
    chart = upload_figures.by_buffer([with_steps(one, steps)], "decode")
    traces = by_name(figure_of(chart))
    assert "is_token_ids" in traces and len(traces) == upload_figures.MAX_BUFFERS + 1
    assert "Smaller ones are not drawn: buffer_5, buffer_6, buffer_7, buffer_8" in chart.caption


def test_bytes_are_told_by_how_many_positions_a_step_has() -> None:
    (one,) = arms("ids", num_rounds=1)
    steps = pd.DataFrame(
        {"kind": ["decode"] * 3, "num_tokens": [4, 8, 8], "bytes.a": [10, 20, 40], "bytes.b": [1, 0, 0]}
    )
    (line,) = figure_of(upload_figures.against_positions([(0, with_steps(one, steps))])).data
    assert list(line.x) == [4, 8] and list(line.y) == [11, 30]
    assert list(line.customdata) == [1, 2]


def test_many_sizes_are_grouped_and_no_step_is_lost() -> None:
    (one,) = arms("ids", num_rounds=1)
    sizes = np.arange(1, 3001)
    steps = pd.DataFrame({"kind": "mixed", "num_tokens": sizes, "bytes.a": 4 * sizes})
    (line,) = figure_of(upload_figures.against_positions([(0, with_steps(one, steps))])).data
    assert len(line.x) <= upload_figures.MAX_SIZES
    assert sum(line.customdata) == 3000
    assert line.y == pytest.approx(4 * np.array(line.x), rel=1e-3)


def test_bandwidth_is_drawn_beside_its_ceiling() -> None:
    (one,) = arms("ids", num_rounds=1)
    share = CeilingShare("upload.inputs_embeds", "decode", "GB/s", 2.0, 8.0, 0.25, 20, "bytes")
    forward = CeilingShare("forward", "decode", "GFLOP/s", 1.0, 2.0, 0.5, 20, "operations")
    costs = make.step_costs((make.span_row("forward", serial=1),), shares=(share, forward))
    chart = upload_figures.bandwidth([make.with_costs(one, costs)])
    traces = by_name(figure_of(chart))
    assert list(traces["reached"].x) == [2.0] and list(traces["ceiling"].x) == [8.0]
    assert traces["reached"].customdata[0] == "ids, 25 % of it"
    without = make.with_costs(one, make.step_costs((make.span_row("forward", serial=1),)))
    assert "ceilings of this machine" in upload_figures.bandwidth([without]).reason


# the bill


def attribution(kind: str = "decode") -> list[Any]:
    factors = (
        make.line("embedding copy", "refresh", "async-rows", None, reason="same commands", kind=kind),
        make.line("overlap", "async-rows", "sync-rows", -0.2, kind=kind),
        make.line("embedding copy, sync", "sync-rows", "gated", -0.1, kind=kind),
    )
    return [
        make.line("price of disabling async", "refresh", "gated", -0.3, kind=kind, factors=factors),
        make.line("flag upload", "async-rows", "async-fill", 0.02, Word.CANNOT_TELL, kind=kind),
        make.line("masked merge", "async-fill", "skip", 0.05, Word.SLOWER, kind=kind),
        make.line("to the ceiling", "skip", "ids", 0.01, Word.SLOWER, kind=kind),
    ]


def test_the_waterfall_goes_from_the_gated_arm_to_the_ceiling_and_multiplies() -> None:
    lines = attribution()
    way = bill_figures.moves(lines, "decode")
    assert [move.to for move in way] == ["sync-rows", "async-rows", "async-fill", "skip", "ids"]
    assert [move.log for move in way] == pytest.approx([-0.1, -0.2, -0.02, -0.05, -0.01])
    figure = figure_of(bill_figures.waterfall(lines, "decode"))
    ends = figure.data[0]
    assert ends.x == pytest.approx([100, 100 * math.exp(-0.38)], rel=1e-4)
    saves = by_name(figure)["saves"]
    assert saves.base[0] == 100
    assert saves.base[0] + saves.x[0] == pytest.approx(100 * math.exp(-0.1), rel=1e-4)
    assert by_name(figure)["cannot tell"].y == ("flag upload: to async-fill",)


def test_an_interval_is_turned_with_the_direction_of_the_way() -> None:
    (move,) = bill_figures.moves([make.line("flag upload", "async-rows", "async-fill", 0.02)], "decode")
    assert move.interval == pytest.approx((-0.03, -0.01))


def test_arms_with_the_same_commands_are_a_way_of_no_length() -> None:
    lines = [
        make.line("price of disabling async", "refresh", "gated", -0.3),
        make.line("embedding copy", "refresh", "async-rows", None, Word.NONE, reason="same commands"),
    ]
    way = bill_figures.moves(lines, "decode")
    assert [(move.to, move.log) for move in way] == [("refresh", -0.3), ("async-rows", 0.0)]
    figure = figure_of(bill_figures.waterfall(lines, "decode"))
    assert "  same commands" in figure.data[-1].text


def test_a_factor_of_the_price_never_stands_for_the_line_of_its_arms() -> None:
    factors = (
        make.line("embedding copy under async", "refresh", "async-rows", 0.001, Word.NONE),
        make.line("overlap", "async-rows", "sync-rows", -0.2, Word.NONE),
        make.line("embedding copy under sync, undone", "sync-rows", "gated", -0.1, Word.NONE),
    )
    lines = [
        make.line("embedding copy", "refresh", "async-rows", None, Word.NONE, reason="same commands"),
        make.line("overlap", "async-rows", "sync-rows", -0.19),
        make.line("embedding copy under sync", "gated", "sync-rows", 0.11, Word.SLOWER),
        make.line("price of disabling async", "refresh", "gated", -0.3, factors=factors),
    ]
    way = bill_figures.moves(lines, "decode")
    assert [(move.source, move.to, move.log, move.line.verdict) for move in way] == [
        ("gated", "sync-rows", -0.11, Word.SLOWER),
        ("sync-rows", "async-rows", -0.19, Word.FASTER),
    ]
    # A factor without a line of its own is the only one to know its two arms.
    way = bill_figures.moves(lines[-1:], "decode")
    assert [(move.source, move.to) for move in way] == [("gated", "sync-rows"), ("sync-rows", "async-rows")]


def test_kinds_of_step_are_told_apart_and_what_was_not_compared_has_its_reason() -> None:
    lines = [
        *attribution("mixed"),
        make.line("overlap", "async-rows", "sync-rows", None, Word.NONE, reason="no runs"),
    ]
    assert bill_figures.waterfall(lines, "decode").reason == "no runs"
    assert bill_figures.waterfall([], "decode").reason == "no two arms were compared on decode steps"
    figure_of(bill_figures.waterfall(lines, "mixed"))


def test_a_decided_cost_has_its_interval_and_another_is_at_most_its_upper_end() -> None:
    told = make.bill("gated", make.amplified("merge", 5, 8, 11), make.amplified("flags", -3, 1, 4))
    traces = by_name(figure_of(bill_figures.amplified([told], "decode", "none")))
    decided, at_most = traces["in place, with interval"], traces["in place: at most (cannot tell)"]
    assert (list(decided.x), list(decided.y)) == ([8], ["merge"])
    assert (list(decided.error_x.array), list(decided.error_x.arrayminus)) == ([3], [3])
    assert (list(at_most.x), list(at_most.y)) == ([4], ["flags"])
    # A step has three of each, of 2 µs by the device's clock.
    assert list(traces["device's clock (events)"].x) == [6, 6]


def test_a_cost_that_five_rounds_have_not_decided_is_at_most_its_upper_end() -> None:
    line = make.amplified("merge", 5, 8, 11)
    assert line.cost is not None
    few = replace(line, cost=replace(line.cost, num_rounds=4))
    traces = by_name(figure_of(bill_figures.amplified([make.bill("gated", few)], "decode", "")))
    assert "in place, with interval" not in traces
    assert list(traces["in place: at most (cannot tell)"].x) == [11]


def test_without_a_bill_the_command_that_makes_one_is_told() -> None:
    assert bill_figures.amplified([], "decode", "suite cost does").reason == "suite cost does"
    told = make.bill("gated", make.amplified("merge", 5, 8, 11))
    assert bill_figures.amplified([told], "mixed", "").reason == "no whole round has mixed steps"


# does async pay?


def sweep(**more: object) -> list[Any]:
    return [
        make.cell(0.1, Word.FASTER, rows=8, ratio=0.0, **more),
        make.cell(-0.1, Word.SLOWER, rows=64, ratio=0.0, **more),
        make.cell(0.001, Word.FASTER, rows=8, ratio=0.5, **more),  # its interval crosses 1
        make.cell(0.0, Word.EQUAL, rows=64, ratio=0.5, half=0.001, **more),
    ]


def test_a_cell_is_coloured_by_its_verdict_and_grey_where_the_interval_crosses_one() -> None:
    (chart,) = break_even_figures.surfaces(sweep())
    traces = {trace.name[2:]: trace for trace in figure_of(chart).data}
    assert set(traces) == set(break_even_figures.COLOURS)
    grid = {name: np.array(trace.z, dtype=object) for name, trace in traces.items()}
    assert grid["async is better"].tolist() == [[1, None], [None, None]]
    assert grid["sync is better"].tolist() == [[None, 1], [None, None]]
    assert grid["cannot tell"].tolist() == [[None, None], [1, None]]
    assert traces["async is better"].text[0][0] == "▲ 1.11"
    assert traces["cannot tell"].text[1][0] == "? 1"
    assert "(1 of 4)" in chart.caption


def test_numbers_stand_by_their_size_on_an_axis() -> None:
    cells = [make.cell(0.1, Word.FASTER, rows=rows) for rows in (64, 8, 256)]
    (chart,) = break_even_figures.surfaces(cells)
    assert list(figure_of(chart).layout.xaxis.categoryarray) == ["8", "64", "256"]


def test_further_keys_give_a_small_chart_for_each_value() -> None:
    charts = break_even_figures.surfaces([*sweep(images=0), *sweep(images=1), *sweep(images=2)])
    # The keys with most values are the axes: images across, rows upward.
    assert [chart.title.rpartition(", ")[2] for chart in charts] == ["ratio 0", "ratio 0.5"]
    assert (
        sum(np.sum([np.array(t.z, dtype=object) == 1 for t in figure_of(chart).data]) for chart in charts)
        == 12
    )


def test_nothing_swept_gives_the_reason_and_the_command() -> None:
    from suite.report import panel_pays

    panel = panel_pays.panel(scenario(num_rounds=1))
    assert panel.is_empty and "--arms sync-rows,async-rows" in panel.reason and "sweep" in panel.reason
    assert break_even_figures.surfaces([make.cell(0.1, Word.FASTER)]) == []


def test_cells_that_no_chart_can_show_are_in_the_table() -> None:
    from suite.report import panel_pays

    cells = (make.cell(0.1, Word.FASTER),)
    panel = panel_pays.panel(replace(scenario(num_rounds=1), break_even=cells))
    (detail,) = panel.details
    assert not panel.charts and len(detail.tables[0].rows) == 1


# requests


def test_goodput_is_the_share_of_requests_that_meet_each_gate() -> None:
    (one,) = arms("ids", num_rounds=2, num_requests=10)
    requests = pd.concat([run.requests for run in one.runs])
    limit = float(np.percentile(requests["ttft_ms"], 30))
    chart = request_figures.goodput([("ids", one)], {"ttft": limit, "e2el": 1e9}, "")
    traces = figure_of(chart).data
    share = 100 * float((requests["ttft_ms"] <= limit).mean())
    assert [trace.x[0] for trace in traces] == pytest.approx([share, 100, share])
    assert "20\u00a0requests" in chart.caption


def test_a_request_of_one_token_is_held_to_the_other_gates() -> None:
    (one,) = arms("ids", num_rounds=1, num_requests=4, num_output=1)
    figure = figure_of(request_figures.goodput([("ids", one)], {"tpot": 0.001, "ttft": 1e9}, ""))
    assert [trace.x[0] for trace in figure.data] == [100, 100, 100]


def test_a_failed_request_meets_no_gate() -> None:
    (one,) = from_loaded(fabricate.none_finished()).series
    figure = figure_of(request_figures.goodput([("ids", one)], {"ttft": 1e9}, ""))
    assert [trace.x[0] for trace in figure.data] == [0, 0]


def test_without_gates_the_option_is_told() -> None:
    assert "--goodput" in request_figures.goodput([], {}, "--goodput sets some").reason


def test_a_mark_of_a_class_is_the_median_of_its_requests() -> None:
    (one,) = arms("ids", num_rounds=2, num_requests=9)
    requests = pd.concat([run.requests for run in one.runs])
    traces = by_name(figure_of(request_figures.by_class([("ids", one)], "ttft_ms")))
    assert list(traces) == ["text", "image"]
    for kind, trace in traces.items():
        mine = requests.loc[requests["kind"] == kind, "ttft_ms"]
        assert trace.x[0] == pytest.approx(mine.median(), rel=1e-4)
        assert trace.customdata[0][1] == len(mine)


def test_first_tokens_over_time_keep_the_slowest_when_thinned() -> None:
    (one,) = arms("ids", num_rounds=1, num_requests=500)
    chart = request_figures.first_tokens_over_time([("ids", one)], 100)
    (points,) = figure_of(chart).data
    assert len(points.x) <= 100
    assert max(points.y) == pytest.approx(one.runs[0].requests["ttft_ms"].max(), rel=1e-4)
    assert "At most 100 requests" in chart.caption


def test_requests_that_arrive_at_once_have_no_chart_over_arrival() -> None:
    (one,) = arms("ids", num_rounds=1, num_requests=5)
    frame = one.runs[0].requests.assign(scheduled_ns=0)
    at_once = replace(one, runs=(replace(one.runs[0], requests=frame),))
    chart = request_figures.first_tokens_over_time([("ids", at_once)], 100)
    assert chart.reason == "all requests arrive at the same moment"


def test_gaps_over_time_count_every_gap_once() -> None:
    (one,) = arms("ids", num_rounds=1, num_requests=50, num_output=9)
    chart = request_figures.gaps_over_time([("ids", one)])
    _, line = figure_of(chart).data
    assert sum(count for _, count in line.customdata) == 50 * 8
    assert len(line.x) <= request_figures.MAX_BINS
    assert "400 gaps" in chart.caption


# tokens


def with_tokens(one: Series, **columns: Any) -> Series:
    runs = tuple(replace(run, requests=run.requests.assign(**columns)) for run in one.runs)
    return replace(one, runs=runs)


def test_the_matrix_has_a_cell_for_each_arm_and_request_by_its_verdict() -> None:
    right, other = arms("ids", "stale", num_rounds=1, num_requests=3)
    wrong = with_tokens(
        other,
        num_tokens_right=pd.array([8, 5, 7], dtype="Int64"),
        num_tokens_wrong=pd.array([0, 3, 0], dtype="Int64"),
        num_tokens_tied=[0, 0, 1],
        first_wrong=pd.array([None, 5, None], dtype="Int64"),
    )
    figure = figure_of(token_figures.matrix([right, wrong]))
    cells = {trace.name: np.array(trace.text).tolist() for trace in figure.data}
    assert cells["✓ right"] == [["✓", "✓", "✓"], ["✓", "", ""]]
    assert cells["✗ wrong"] == [["", "", ""], ["", "✗", ""]]
    assert cells["≈ tie"] == [["", "", ""], ["", "", "≈"]]
    told = by_name(figure)["✗ wrong"].customdata[1][1]
    assert "5 right, 3 wrong, 0 tied" in told and "output token 5 of round 1" in told


def test_of_many_requests_the_wrong_ones_are_drawn() -> None:
    (one,) = arms("stale", num_rounds=1, num_requests=200)
    wrong = np.zeros(200, dtype=int)
    wrong[150] = 1
    chart = token_figures.matrix([with_tokens(one, num_tokens_wrong=wrong)])
    figure = figure_of(chart)
    assert len(figure.data[0].x) == token_figures.MAX_REQUESTS
    assert sum(text == "✗" for trace in figure.data for text in trace.text[0]) == 1
    assert "24 requests are drawn" in chart.caption


def test_unchecked_tokens_are_told_apart_from_right_ones() -> None:
    (one,) = from_loaded(fabricate.none_finished()).series
    figure = figure_of(token_figures.matrix([one]))
    assert [trace.name for trace in figure.data] == ["· not checked"]


def divergence_cells(**columns: Any) -> list[str]:
    data = scenario(arms=("stale",), num_rounds=1, num_requests=1)
    one = with_tokens(data.series[0], first_wrong=pd.array([5], dtype="Int64"), **columns)
    table = token_tables.divergences(replace(data, series=(one,)))
    (row,) = table.rows
    return [cell.lines[0].text for cell in row]


def test_the_tokens_around_the_first_wrong_one_stand_beside_the_expected_ones() -> None:
    cells = divergence_cells(expected_from=[3], expected_ids=[(3, 4, 99, 6, 7)])
    assert cells == [
        *("stale", "request-0", "round 1", "5", "3 4 [99] 6 7", "3 4 [5] 6 7"),
        "n/a: only ids are recorded",
    ]


def test_where_texts_were_recorded_they_stand_beside_the_ids() -> None:
    data = scenario(arms=("stale",), num_rounds=1, num_requests=1)
    texts = {
        "expected_texts": [(" of", " France", " is <b>", " Paris", ".")],
        "produced_texts": [(" of", " France", " are", " is", ".")],
    }
    ids = {"expected_from": [3], "expected_ids": [(3, 4, 99, 6, 7)]}
    one = with_tokens(data.series[0], first_wrong=pd.array([5], dtype="Int64"), **ids, **texts)
    (row,) = token_tables.divergences(replace(data, series=(one,))).rows
    assert [line.text for line in row[-1].lines] == [
        "expected: “ of France[ is <b>] Paris.”",
        "came: “ of France[ are] is.”",
    ]


def test_older_files_have_the_tokens_that_came_and_say_so() -> None:
    cells = divergence_cells(expected_from=[None], expected_ids=[None])
    assert cells[4:6] == ["n/a: not in these result files", "3 4 [5] 6 7"]


def test_a_run_without_wrong_tokens_says_none() -> None:
    table = token_tables.divergences(scenario(num_rounds=1))
    assert not table.rows and table.reason.startswith("None")


# panels


def test_arms_stand_as_the_scenario_names_them_whatever_the_order_of_the_rounds() -> None:
    data = replace(scenario(arms=("b", "a"), cases=("x", "y"), num_rounds=1), config={"arms": ["a", "b"]})
    assert [(one.case_label, one.arm) for one in in_order(data)] == [
        *(("x", "a"), ("x", "b")),
        *(("y", "a"), ("y", "b")),
    ]


def sweep_of(num_cases: int, *of_arms: str) -> ScenarioData:
    cases = [f"ratio={number}" for number in range(num_cases)]
    return scenario(cases=cases, arms=of_arms, num_rounds=1, num_requests=2, num_steps=8, has_warmup=False)


def test_every_case_of_a_sweep_is_drawn_and_one_of_them_open() -> None:
    data = sweep_of(9, "ids")
    assert [len(part) for part in drawn_cases(data)] == [9, 0]
    for panel in scenario_panels.of_scenario(data, 200):
        if panel.id in ("panel-bill", "panel-spans", "panel-timeline", "panel-uploads", "panel-tokens"):
            assert [one.label for one in panel.cases] == [f"ratio={number}" for number in range(9)]
            assert [one.is_open for one in panel.cases] == [True] + 8 * [False]
            assert "drawn" not in panel.lead


def test_of_a_sweep_too_large_to_draw_it_is_said_which_cases_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(case_drawing, "MAX_ARMS", 10)
    drawn, told = drawn_cases(sweep_of(9, "ids", "sync-ids"))
    assert [case.label for case in drawn] == ["ratio=0", "ratio=2", "ratio=4", "ratio=6", "ratio=8"]
    assert "5 of 9\u00a0cases are drawn" in told
    assert told.endswith("Left out: ratio=1; ratio=3; ratio=5; ratio=7.")
    monkeypatch.setattr(case_drawing, "MAX_NAMES", 1)
    assert drawn_cases(sweep_of(9, "ids", "sync-ids"))[1].endswith("Left out: ratio=1; and 3 more.")


FOLDERS: Mapping[str, Callable[[], fabricate.FakeLoaded]] = {
    "one": fabricate.loaded,
    "all-failed": fabricate.all_failed,
    "none-finished": fabricate.none_finished,
    "interrupted": fabricate.interrupted,
    "hostile": fabricate.hostile,
    "controls": fabricate.with_controls,
    "one-token": lambda: fabricate.loaded(num_output=1),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_every_panel_is_drawn_or_replaced_by_its_reason(name: str) -> None:
    for data in from_loaded(FOLDERS[name]()).scenarios:
        for panel in scenario_panels.of_scenario(data, 200):
            assert panel.reason or not panel.is_empty, panel.id
            for chart in charts_of(panel):
                assert (chart.figure is None) == bool(chart.reason), chart.title
                if chart.figure is not None:
                    figure_of(chart)
                    assert "n\u00a0=" in chart.caption or "n = " in chart.caption, chart.title


def charts_of(panel: Panel) -> list[Chart]:
    folds = (*panel.cases, *panel.details)
    folds += tuple(inner for fold in folds for inner in fold.details)
    return [*panel.charts, *(chart for fold in folds for chart in fold.charts)]


def test_axes_have_their_units() -> None:
    series = [spans_of(one) for one in arms("sync-ids", "ids", num_rounds=1)]
    data = replace(scenario(arms=("sync-ids", "ids"), num_rounds=1), series=tuple(series))
    for panel in scenario_panels.of_scenario(data, 200):
        for chart in charts_of(panel):
            if chart.figure is not None and panel.id != "panel-tokens":
                layout = chart.figure.to_plotly_json()["layout"]
                numeric = [
                    axis
                    for name, axis in layout.items()
                    if name.startswith(("xaxis", "yaxis")) and axis.get("type") != "category"
                ]
                titled = [axis for axis in numeric if axis.get("title", {}).get("text")]
                assert titled, chart.title


def test_a_name_with_markup_stands_literally_in_a_figure() -> None:
    series = [spans_of(one) for one in from_loaded(fabricate.hostile()).series if one.runs]
    for chart in (
        span_figures.lengthening(series, "decode"),
        upload_figures.by_buffer(series, "decode"),
        request_figures.by_class([(one.arm, one) for one in series], "ttft_ms"),
        token_figures.matrix(series),
    ):
        names = [
            str(name) for trace in figure_of(chart).data for name in (trace.y if trace.y is not None else ())
        ]
        assert names and not any("<img" in name or "</script" in name for name in names)
