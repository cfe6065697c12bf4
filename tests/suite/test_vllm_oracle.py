"""Our latency code against the figures another program printed for two real vLLM runs, and its two clocks."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from test_cli import assert_refused, invoke

from suite.errors import SuiteError
from suite.metrics import latency_metrics
from suite.vllm_requests import FROM_ARRIVAL, FROM_QUEUE, read_vllm_requests

ROOT = Path(__file__).resolve().parents[2]
RUNS = ("RTX4090_Llama-3.1-8B", "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507")
SAMPLES = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "Latency": "e2e_ms"}
PRINTED = re.compile(r"(TTFT|TPOT|Latency) (\w+)\s+([0-9.]+)\s")  # the first column is vLLM's


def _real(run: str, name: str) -> Path:
    """A file of a recorded run, which the repository does not hold."""
    folder = Path(os.environ.get("STEPCOST_TRACES", ROOT.parent / "shared" / "traces"))
    path = folder / "measured_vllm_llmservingsim" / run / name
    if not path.is_file():
        pytest.skip(f"no {path}; set STEPCOST_TRACES to the folder of recorded traces")
    return path


@pytest.mark.parametrize("run", RUNS)
def test_ttft_tpot_and_latency_of_a_real_vllm_run_are_reproduced_to_the_printed_digit(run):
    printed = PRINTED.findall(_real(run, "validation_summary.txt").read_text(encoding="utf-8"))
    assert len(printed) == 15
    found = {metric.name: metric for metric in latency_metrics(_imported(run).latencies())}
    ours = [found[f"{statistic.lower()}_{SAMPLES[sample]}"] for sample, statistic, _ in printed]
    assert [f"{metric.value:.1f}" for metric in ours] == [figure for *_, figure in printed]
    assert {metric.num_samples for metric in ours} == {300}


def _imported(run):
    return read_vllm_requests(_real(run, "requests.jsonl"))


@pytest.mark.parametrize("run", RUNS)
def test_a_wall_clock_arrival_is_told_and_no_latency_is_negative(run):
    imported = _imported(run)
    assert imported.note == FROM_QUEUE and len(imported.requests) == 300
    for one in imported.latencies():
        assert min(one.ttft_ms, one.tpot_ms, one.e2e_ms, one.queue_delay_ms) >= 0
        assert one.itl_ms.size == 0 and one.undefined["itl_ms"].startswith("only the times of the first")


ROW = {
    "request_id": "bench-0",
    "input_toks": 8,
    "output_toks": 5,
    "arrival_time": 100.0,
    "queued_ts": 100.5,
    "scheduled_ts": 101.0,
    "first_token_ts": 102.0,
    "last_token_ts": 104.0,
}


def read(tmp_path, *rows):
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return read_vllm_requests(path)


def test_on_one_clock_latencies_count_from_the_arrival_and_that_is_told(tmp_path):
    imported = read(tmp_path, ROW)
    (one,) = imported.latencies()
    assert imported.note == FROM_ARRIVAL
    assert (one.ttft_ms, one.tpot_ms, one.e2e_ms, one.queue_delay_ms) == (2000, 500, 4000, 1000)


@pytest.mark.parametrize("arrival", [1_787_267_980.08, 100.6, 100.5 - 25 * 3600 + 90_000 * 2])
def test_one_arrival_on_another_clock_makes_all_count_from_the_queue(tmp_path, arrival):
    imported = read(tmp_path, ROW, {**ROW, "request_id": "bench-1", "arrival_time": arrival})
    assert imported.note == FROM_QUEUE
    assert [one.ttft_ms for one in imported.latencies()] == [1500, 1500]


def test_an_arrival_a_day_before_the_rest_is_on_another_clock(tmp_path):
    late = {name: value + 90_000 if name.endswith("_ts") else value for name, value in ROW.items()}
    assert read(tmp_path, late).note == FROM_QUEUE


def test_one_output_token_has_no_tpot(tmp_path):
    (one,) = read(tmp_path, {**ROW, "output_toks": 1, "last_token_ts": 102.0}).latencies()
    assert one.tpot_ms is None and one.undefined["tpot_ms"] == "one output token" and one.ttft_ms == 2000


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {**ROW, "first_token_ts": 100.9},
            "first_token_ts is 100.9; it must not be before scheduled_ts, 101.0",
        ),
        (
            {**ROW, "last_token_ts": None},
            "last_token_ts is null (nothing); it must be a finite number of seconds",
        ),
        ({**ROW, "queued_ts": -1.5}, "queued_ts is -1.5; it must be a finite number"),
        ({**ROW, "output_toks": 0}, "output_toks is 0; it must be a whole number of at least 1"),
        ({**ROW, "input_toks": "8"}, "input_toks is '8'; it must be a whole number"),
        ({"request_id": "a"}, "arrival_time is missing; the line has request_id"),
        (json.dumps({**ROW, "queued_ts": float("nan")}), "queued_ts is .nan; it must be a finite number"),
        ({**ROW, "input_toks": 9}, "request_id is 'bench-0', as in line 1: a request that stands twice"),
        ("[1, 2]", "it must be a JSON object"),
        ('{"request_id": "bench-0", "inp', "this is no JSON"),
    ],
)
def test_a_bad_line_is_refused_with_file_line_key_and_rule(tmp_path, row, words):
    with pytest.raises(SuiteError) as error:
        read(tmp_path, ROW, "", row)
    assert "requests.jsonl:3: " in str(error.value) and words in str(error.value)


def test_an_empty_file_and_none_at_all_are_refused(tmp_path):
    with pytest.raises(SuiteError, match="it has no request"):
        read(tmp_path, "")
    with pytest.raises(SuiteError, match=r"gone\.jsonl"):
        read_vllm_requests(tmp_path / "gone.jsonl")


@pytest.mark.parametrize("run", RUNS)
def test_the_command_prints_the_figures_of_a_real_run(run):
    result = invoke("metrics", _real(run, "requests.jsonl"))
    assert result.exit_code == 0 and FROM_QUEUE in result.stdout and "300 requests" in result.stdout
    printed = PRINTED.findall(_real(run, "validation_summary.txt").read_text(encoding="utf-8"))
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line}
    shown = dict(zip(rows["ms"], rows["ttft"], strict=True))
    wanted = {statistic.lower(): float(value) for sample, statistic, value in printed if sample == "TTFT"}
    assert all(
        float(shown[name].replace(",", "")) == pytest.approx(value, rel=1e-3)
        for name, value in wanted.items()
    )
    document = json.loads(invoke("metrics", _real(run, "requests.jsonl"), "--json").stdout)
    assert f"{document['metrics']['mean_ttft_ms']['value']:.1f}" == f"{wanted['mean']:.1f}"


def test_the_command_says_what_is_undefined_and_refuses_what_is_no_such_file(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps({**ROW, "output_toks": 1, "last_token_ts": 102.0}))
    text = invoke("metrics", path).stdout
    assert "tpot: n/a: one output token" in text and FROM_ARRIVAL in text
    path.write_text("{}")
    assert_refused(invoke("metrics", path), "requests.jsonl:1: ")
    assert_refused(invoke("metrics", tmp_path / "gone.jsonl"), "gone.jsonl")
