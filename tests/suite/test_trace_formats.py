"""Each trace format gives the requests it says, and the recorded files of each load."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import pytest
from bad_inputs import (
    AZURE_2023,
    AZURE_2024,
    BURST,
    BURST_SESSIONS,
    MOONCAKE,
    REBASED,
    VIDUR,
    VIDUR_LENGTHS,
)
from recorded_traces import recorded

from runner.config import RunnerConfig
from runner.models import TINY_GEMMA3_VL
from suite.demand import plan_demand
from suite.need import Demand
from suite.traces.base import PrefixBlocks, TraceRow
from suite.traces.reading import read_trace
from suite.traffic import Traffic


def _rows(folder: Path, text: str) -> tuple[TraceRow, ...]:
    path = folder / "trace"
    path.write_text(text)
    return read_trace(path).rows


def _values(rows: tuple[TraceRow, ...]) -> list[tuple[float, int, int]]:
    return [(row.time_s, row.context_tokens, row.output_tokens) for row in rows]


def _demand(path: Path, **arrivals: object) -> Demand:
    replay = {"kind": "trace", "path": str(path), "length_scale": 0.05, "over_length": "skip", **arrivals}
    traffic = Traffic.model_validate({"arrivals": replay})
    return plan_demand(traffic, TINY_GEMMA3_VL, RunnerConfig(max_model_len=4096), 0)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (AZURE_2023, "azure-llm"),
        (AZURE_2023.replace("\n", "\r\n").rstrip("\r\n"), "azure-llm"),
        (AZURE_2024, "azure-llm"),
        (VIDUR, "vidur"),
        (REBASED, "azure-lmm-rebased"),
    ],
    ids=["2023", "2023 as published", "2024", "vidur", "rebased"],
)
def test_formats_of_one_trace_give_the_same_requests(text: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(text.encode())
    assert read_trace(path).format.name == name
    assert _values(read_trace(path).rows) == [(0.0, 770, 491), (5.55, 949, 126), (6.244, 964, 79)]


@pytest.mark.parametrize("text", [BURST, BURST_SESSIONS], ids=["six columns", "eight columns"])
def test_both_column_sets_of_burstgpt_are_read_by_name(text: str, tmp_path: Path) -> None:
    expected = [(0.0, 472, 18), (40.0, 1087, 230), (113.0, 417, 276)]
    assert _values(_rows(tmp_path, text)) == expected


def test_requests_that_failed_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(BURST.replace("1087,230", "1087,0"))
    assert [row.is_failed for row in read_trace(path).rows] == [False, True, False]
    demand = _demand(path, max_gap_s=1000.0)
    assert [(need.arrival_s, need.text_tokens) for need in demand.needs] == [(0.0, 24), (113.0, 21)]
    notes = "\n".join(demand.notes)
    assert "left out that failed when they were recorded (traffic.arrivals.failed_requests): 1" in notes
    whole = tmp_path / "whole.csv"
    whole.write_text(BURST)
    assert "failed" not in "\n".join(_demand(whole).notes)


def test_prefix_blocks_come_with_milliseconds(tmp_path: Path) -> None:
    rows = _rows(tmp_path, MOONCAKE)
    assert _values(rows) == [(0.0, 1030, 5), (5.55, 1500, 12), (6.244, 512, 79)]
    assert [row.blocks for row in rows] == [
        PrefixBlocks((0, 1, 2), 512),
        PrefixBlocks((0, 1, 3), 512),
        PrefixBlocks((4,), 512),
    ]


def test_a_block_may_be_full_in_one_prompt_and_cut_short_at_the_end_of_another(tmp_path: Path) -> None:
    text = MOONCAKE.replace(
        '"input_length": 512, "output_length": 79', '"input_length": 100, "output_length": 1'
    )
    assert len(_rows(tmp_path, text.replace("[4]", "[1]"))) == 3


def test_json_lines_may_be_packed_blank_and_without_a_last_line_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(("\n" + MOONCAKE.rstrip("\n").replace("\n", "\r\n\r\n")).encode()))
    rows = read_trace(path).rows
    assert [row.line for row in rows] == [2, 4, 6]
    assert _values(rows) == _values(_rows(tmp_path, MOONCAKE))


@pytest.mark.parametrize("text", [AZURE_2024, MOONCAKE], ids=["CSV", "JSON lines"])
def test_what_lies_behind_the_limit_costs_nothing(text: str, tmp_path: Path) -> None:
    """A sparse file of a terabyte, its rows at the start."""
    path = tmp_path / "trace"
    path.write_text(text)
    os.truncate(path, 2**40)
    started = time.monotonic()
    trace = read_trace(path, limit=3)
    assert len(trace.rows) == 3 and trace.is_cut
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("names", "trace_format", "num_rows"),
    [
        (("azure_2023", "AzureLLMInferenceTrace_code.first5000.csv"), "azure-llm", 5000),
        (("azure_2023", "AzureLLMInferenceTrace_conv.first8000.csv"), "azure-llm", 8000),
        (("mooncake_fast25", "conversation_trace.first2000.jsonl"), "mooncake", 2000),
        (("mooncake_fast25", "synthetic_trace.first1500.jsonl"), "mooncake", 1500),
        (("vidur_processed", "splitwise_conv.first2000.csv"), "vidur", 2000),
        (("vidur_processed", "splitwise_code.first2000.csv"), "vidur", 2000),
        (
            (
                "vidur_processed",
                "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.first8000.csv",
            ),
            "vidur-lengths",
            8000,
        ),
    ],
)
def test_recorded_files_load(names: tuple[str, ...], trace_format: str, num_rows: int) -> None:
    trace = read_trace(recorded(*names))
    assert trace.format.name == trace_format
    assert len(trace.rows) == num_rows
    assert trace.rows[0].time_s == 0.0
    process = {} if trace.format.has_times else {"process": {"kind": "poisson", "rate": 50}}
    assert len(_demand(trace.path, **process).needs) > num_rows * 0.5


@pytest.mark.parametrize("kind", ["conv", "code"])
def test_azure_and_vidur_tell_the_same_requests(kind: str) -> None:
    azure = recorded(
        "azure_2023", f"AzureLLMInferenceTrace_{kind}.first{8000 if kind == 'conv' else 5000}.csv"
    )
    vidur = recorded("vidur_processed", f"splitwise_{kind}.first2000.csv")
    rows = read_trace(vidur).rows
    assert len(rows) == 2000
    assert rows == read_trace(azure, limit=2000).rows


def test_lengths_without_times_load_as_rows(tmp_path: Path) -> None:
    rows = _rows(tmp_path, VIDUR_LENGTHS)
    assert _values(rows) == [(0.0, 770, 491), (0.0, 949, 126), (0.0, 964, 79)]
