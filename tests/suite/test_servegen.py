"""ServeGen clients: rates met window by window, lengths from their histograms, all drawn from the seed."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from built_cases import built, built_case, printed_by_fresh_processes
from recorded_traces import recorded

from runner.config import RunnerConfig
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3, ModelSpec
from suite.demand import plan_demand
from suite.errors import SuiteError
from suite.need import Demand
from suite.scenario import load_scenario
from suite.traces.reading import read_trace
from suite.traces.servegen_dataset import literal_histogram
from suite.traffic import Traffic
from suite.workload import build_workload

WINDOWS = """\
0,0.5,0.7071067811865476,Gamma,2.0,1.0
600,0,0,,0,0
1200,1.25,1.1,Weibull,0.9,0.76
"""
IMAGES = {
    "text_tokens": "{0: 0.25, 100: 0.75}",
    "image_tokens": "{4: 0.5, 1196: 0.5}",
    "audio_tokens": "{0: 1.0}",
    "video_tokens": "{0: 1.0}",
    "image_count": "{0: 0.2, 1: 0.5, 3: 0.3}",
    "audio_count": "{0: 1.0}",
    "video_count": "{0: 1.0}",
    "output_tokens": "{0: 0.1, 20: 0.9}",
}
LANGUAGE = {"input_tokens": "{50: 0.5, 200: 0.5}", "output_tokens": "{7: 1.0}"}
REPLAY = """\
name: clients
model: tiny-gemma3-vl
traffic:
  arrivals: {kind: trace, path: clients, limit: 60, length_scale: 0.1, over_length: truncate}
"""


def _client(
    folder: Path, name: str = "chunk-0", windows: str = WINDOWS, dataset: dict[str, object] | None = None
) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-trace.csv"
    path.write_text(windows)
    histograms = (
        dataset if dataset is not None else {"0": IMAGES, "1200": {**IMAGES, "output_tokens": "{9: 1.0}"}}
    )
    (folder / f"{name}-dataset.json").write_text(json.dumps(histograms, indent=2))
    return path


def _demand(path: Path, model: ModelSpec = TINY_GEMMA3_VL, **arrivals: object) -> Demand:
    replay = {"kind": "trace", "path": str(path), "length_scale": 0.05, "over_length": "skip", **arrivals}
    traffic = Traffic.model_validate({"arrivals": replay})
    return plan_demand(traffic, model, RunnerConfig(max_model_len=4096), 0)


def test_each_window_has_the_requests_its_rate_says_and_an_idle_one_none(tmp_path: Path) -> None:
    trace = read_trace(_client(tmp_path), seed=3)
    assert trace.format.name == "servegen" and trace.format.has_images and not trace.is_cut
    assert Counter(row.line for row in trace.rows) == {1: 300, 3: 750}
    times = [row.time_s for row in trace.rows]
    assert times == sorted(times) and times[0] == 0.0
    assert times[299] < 600 < 1200 - 10 < times[300] + 10 and times[-1] < 1800


@pytest.mark.parametrize(
    ("pattern", "shape"), [("Gamma", 0.5), ("Gamma", 4.0), ("Weibull", 0.7), ("Weibull", 2.0)]
)
def test_gaps_have_the_shape_of_their_pattern(pattern: str, shape: float, tmp_path: Path) -> None:
    """The largest distance between drawn and wanted distribution, at 0.1 % significance."""
    windows = f"0,16,1,{pattern},{shape},1\n600,0,0,,0,0\n"
    times = np.array([row.time_s for row in read_trace(_client(tmp_path, windows=windows), seed=5).rows])
    gaps = np.sort(np.diff(times))
    own = np.random.default_rng(1)
    drawn = own.standard_gamma(shape, 400_000) if pattern == "Gamma" else own.weibull(shape, 400_000)
    wanted = np.sort(drawn / drawn.mean() / 16)
    seen = np.arange(1, len(gaps) + 1) / len(gaps)
    distance = np.abs(np.searchsorted(wanted, gaps) / len(wanted) - seen).max()
    assert distance < 1.95 / math.sqrt(len(gaps))


def test_lengths_come_from_the_histograms_of_the_dataset_window(tmp_path: Path) -> None:
    rows = read_trace(_client(tmp_path), seed=3).rows
    early, late = rows[:300], rows[300:]
    assert {row.output_tokens for row in late} == {9}
    assert {row.output_tokens for row in early} == {1, 20}
    for group in (early, late):
        share = sum(row.context_tokens == 0 for row in group) / len(group)
        assert abs(share - 0.25) < 4 * math.sqrt(0.25 * 0.75 / len(group))
        assert {row.context_tokens for row in group} == {0, 100}
        assert {row.num_images for row in group} == {0, 1, 3}
    for row in rows:
        count, tokens = row.num_images or 0, row.image_tokens or 0
        assert tokens in {4 * small + 1196 * (count - small) for small in range(count + 1)}
    notes = read_trace(_client(tmp_path), seed=3).notes
    assert (
        f"requests drawn with 0 output tokens, 1 asked for: {sum(row.output_tokens == 1 for row in early)}"
        in notes
    )


def test_clients_are_superposed_and_none_changes_another(tmp_path: Path) -> None:
    one = read_trace(_client(tmp_path / "clients", "a"), seed=3)
    other = read_trace(_client(tmp_path / "clients", "b"), seed=3)
    both = read_trace(tmp_path / "clients", seed=3)
    assert len(both.rows) == len(one.rows) + len(other.rows)
    assert [row.time_s for row in one.rows] != [row.time_s for row in other.rows]
    of_one = [row for row in both.rows if row.file == "a-trace.csv"]
    shift = of_one[0].time_s
    assert [round(row.time_s - shift, 6) for row in of_one] == pytest.approx(
        [row.time_s for row in one.rows], abs=2e-6
    )
    assert "2 clients together: a, b" in both.notes


def test_the_limit_cuts_and_changes_nothing_before_it(tmp_path: Path) -> None:
    path = _client(tmp_path)
    cut = read_trace(path, limit=100, seed=3)
    assert cut.is_cut
    assert cut.rows == read_trace(path, seed=3).rows[:100]
    assert cut.rows != read_trace(path, limit=100, seed=4).rows


def test_images_become_the_models_own_by_their_tokens(tmp_path: Path) -> None:
    sizes = {**IMAGES, "text_tokens": "{0: 1}", "image_tokens": "{1150: 1}", "image_count": "{2: 1}"}
    path = _client(tmp_path, dataset={"0": sizes})
    demand = _demand(path, limit=10)
    assert {need.num_images for need in demand.needs} == {7}  # 2 x 1150 x 0.05 = 115 tokens, of 16 rows each
    assert {need.text_tokens for need in demand.needs} == {1}
    notes = "\n".join(demand.notes)
    assert "20 recorded images of 23000 tokens in all became 70 of the model's images of 16 rows" in notes
    assert "requests recorded without text, 1 text token given: 10" in notes
    assert "text and image tokens are counted apart by the trace" in notes
    small = _client(tmp_path, dataset={"0": {**sizes, "image_tokens": "{4: 1}"}})
    assert {need.num_images for need in _demand(small, limit=10).needs} == {1}


def test_clients_without_images_take_the_ratio_of_the_scenario(tmp_path: Path) -> None:
    demand = _demand(_client(tmp_path, dataset={"0": LANGUAGE}), TINY_QWEN3, limit=10, length_scale=1.0)
    assert {need.text_tokens for need in demand.needs} == {50, 200}
    assert "the trace has no image column" in "\n".join(demand.notes)


def test_audio_is_left_out_and_said(tmp_path: Path) -> None:
    path = _client(tmp_path, dataset={"0": {**IMAGES, "audio_count": "{0: 0.5, 1: 0.5}"}})
    assert "left out, no model takes them: audio_count" in read_trace(path).notes


def test_empty_histograms_matter_only_where_requests_are_sent(tmp_path: Path) -> None:
    empty = {name: "{}" for name in IMAGES}
    assert read_trace(_client(tmp_path, dataset={"0": IMAGES, "600": empty, "1200": IMAGES})).rows
    with pytest.raises(SuiteError, match=r"dataset\.json:\d+: text_tokens is '{}'; .*give them lengths"):
        read_trace(_client(tmp_path, dataset={"0": IMAGES, "1200": empty}))


@pytest.mark.parametrize(
    "text",
    ["{1: 2, }", "{ 1: 2e-05, 3:4 }", "{}"],
)
def test_histograms_are_read_as_literals(text: str) -> None:
    assert literal_histogram(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').abort()",
        "{1: 0}",
        "{1: -1}",
        "{1: 1e999}",
        "[1]",
        "{1}",
        "{" * 100_000,
        "{1: " + "-" * 100_000 + "1}",
        "{'a': 1}",
        "{01: 1}",
        "{1.1.1: 1}",
        7,
        None,
    ],
)
def test_what_is_no_histogram_is_never_evaluated(text: object) -> None:
    assert literal_histogram(text) is None


@pytest.mark.parametrize(
    ("old", "new", "expect"),
    [
        ("0.5,0.7", "-0.5,0.7", ":1: rate is '-0.5'"),
        ("Gamma", "Gama", ":1: pattern is 'Gama'"),
        ("600,0,0,,", "600,1,0,,", ":2: rate is '1'; the pattern is ''"),
        ("1200,1.25", "600,1.25", ":3: timestamp is '600'; windows must lie in order"),
        ("0.9,0.76", "0,0.76", ":3: arg1 is '0'; the shape"),
        ("1.25,1.1", "1e9,1.1", ":3: rate is '1e9'; it makes more than 1,000,000"),
        ("1.25,1.1,Weibull,0.9,0.76", "1.25", ":3: 2 columns"),
    ],
)
def test_bad_windows_are_refused_with_their_line(old: str, new: str, expect: str, tmp_path: Path) -> None:
    assert WINDOWS.count(old) == 1
    with pytest.raises(SuiteError) as caught:
        read_trace(_client(tmp_path, windows=WINDOWS.replace(old, new)))
    assert f"chunk-0-trace.csv{expect}" in str(caught.value)


@pytest.mark.parametrize(
    ("dataset", "expect"),
    [
        ({}, "must map each window's start"),
        ({"zero": IMAGES}, ":2: the window 'zero' does not fit"),
        ({"0": {"output_tokens": "{1: 1}"}}, "of no known dataset"),
        ({"0": {**LANGUAGE, "input_tokens": "{1: 1"}}, ":3: input_tokens is '{1: 1'; it must be a histogram"),
        ({"0": {**LANGUAGE, "input_tokens": "{0.5: 1}"}}, ":3: input_tokens is '{0.5: 1}'"),
        ({"0": {**LANGUAGE, "output_tokens": 5}}, ":4: output_tokens is 5"),
    ],
)
def test_bad_datasets_are_refused_with_their_line(
    dataset: dict[str, object], expect: str, tmp_path: Path
) -> None:
    with pytest.raises(SuiteError) as caught:
        read_trace(_client(tmp_path, dataset=dataset))
    assert "chunk-0-dataset.json" in str(caught.value) and expect in str(caught.value)


def test_a_client_without_its_dataset_or_with_none_that_sends_is_refused(tmp_path: Path) -> None:
    path = _client(tmp_path)
    (tmp_path / "chunk-0-dataset.json").write_text("not JSON")
    with pytest.raises(SuiteError, match=r"dataset\.json: not JSON"):
        read_trace(path)
    (tmp_path / "chunk-0-dataset.json").unlink()
    with pytest.raises(SuiteError, match=r"no chunk-0-dataset\.json beside it"):
        read_trace(path)
    with pytest.raises(SuiteError, match="every rate is 0"):
        read_trace(_client(tmp_path, windows="0,0,0,,0,0\n600,0,0,,0,0\n"))
    with pytest.raises(SuiteError, match="needs two to know their width"):
        read_trace(_client(tmp_path, windows="0,1,1,Gamma,1,1\n"))
    path.rename(tmp_path / "renamed.csv")
    with pytest.raises(SuiteError, match=r"is called NAME-trace\.csv"):
        read_trace(tmp_path / "renamed.csv")
    (tmp_path / "other.csv").write_text("TIMESTAMP\n")
    with pytest.raises(SuiteError, match=r"format is servegen, and a client's file ends in -trace\.csv"):
        read_trace(tmp_path / "other.csv", "servegen")


def test_clients_with_and_without_images_are_not_mixed(tmp_path: Path) -> None:
    _client(tmp_path, "a")
    _client(tmp_path, "b", dataset={"0": LANGUAGE})
    with pytest.raises(SuiteError, match="put them apart"):
        read_trace(tmp_path)


def test_more_than_a_million_requests_need_a_limit(tmp_path: Path) -> None:
    path = _client(tmp_path, windows="0,1000,1,Gamma,1,1\n600,1000,1,Gamma,1,1\n")
    with pytest.raises(SuiteError, match=r"more than 1,000,000 requests: set traffic\.arrivals\.limit"):
        read_trace(path)


def test_a_folder_of_clients_is_a_scenarios_traffic(tmp_path: Path) -> None:
    _client(tmp_path / "clients", "a")
    _client(tmp_path / "clients", "b")
    workload = built(tmp_path, text=REPLAY)
    assert len(workload.requests) == 60
    assert {item.kind for item in workload.requests} == {"text", "image"}
    case = built_case(tmp_path, text=REPLAY)
    (printed,) = printed_by_fresh_processes(tmp_path / "scenario.yaml", (), 7)
    assert printed.split()[0] == build_workload(case, 7).hash
    before = case.case_id
    _client(tmp_path / "clients", "b", dataset={"0": {**IMAGES, "output_tokens": "{8: 1}"}})
    assert built_case(tmp_path, text=REPLAY).case_id != before


def test_a_request_too_long_is_told_with_its_clients_file(tmp_path: Path) -> None:
    _client(tmp_path / "clients", "a")
    path = tmp_path / "scenario.yaml"
    path.write_text(REPLAY.replace("0.1, over_length: truncate", "100"))
    with pytest.raises(SuiteError, match=r"clients/a-trace\.csv:1: the request has "):
        load_scenario(path)


def test_a_trace_whose_name_ends_alike_is_still_known_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "your-trace.csv"
    path.write_text("arrival_time,input_tokens,output_tokens\n0.0,770,491\n")
    assert read_trace(path).format.name == "azure-lmm-rebased"


@pytest.mark.parametrize(
    ("folder", "num_clients", "has_images"),
    [("multimodal/mm-image", 18, True), ("reason/deepseek-r1", 4, False), ("language/m-small", 4, False)],
)
def test_recorded_clients_load(folder: str, num_clients: int, has_images: bool) -> None:
    path = recorded("servegen", *folder.split("/"))
    traces = sorted(path.glob("*-trace.csv"))
    assert len(traces) == num_clients
    for client in (path, *traces):
        trace = read_trace(client, limit=200)
        assert len(trace.rows) == 200 and trace.format.has_images == has_images
    assert len(_demand(path, limit=200).needs) == 200
