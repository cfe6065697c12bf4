"""Trace files: what the readers accept, and how a replay is made to fit a model."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from bad_inputs import AZURE, REBASED
from hypothesis import given
from hypothesis import strategies as st
from recorded_traces import recorded

from runner.config import RunnerConfig
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3, ModelSpec
from suite.demand import plan_demand
from suite.errors import SuiteError
from suite.need import Demand, scaled
from suite.traces.reading import read_trace
from suite.traces.sample import sample_text
from suite.traffic import Traffic

ROOT = Path(__file__).resolve().parents[2]


def _real(name: str) -> Path:
    return recorded("azure_lmm_2025", name)


def _write(folder: Path, content: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _demand(
    path: Path,
    arrivals: dict[str, object],
    traffic: dict[str, object] | None = None,
    model: ModelSpec = TINY_GEMMA3_VL,
    seed: int = 0,
) -> Demand:
    replay = {"kind": "trace", "path": str(path), **arrivals}
    checked = Traffic.model_validate({"arrivals": replay, **(traffic or {})})
    return plan_demand(checked, model, RunnerConfig(max_model_len=1024), seed)


def _notes(demand: Demand) -> str:
    return "\n".join(demand.notes)


def test_both_formats_are_known_by_their_header(tmp_path: Path) -> None:
    azure, rebased = read_trace(_write(tmp_path, AZURE)), read_trace(_write(tmp_path, REBASED, "b.csv"))
    assert (azure.format.name, rebased.format.name) == ("azure-lmm", "azure-lmm-rebased")
    assert [(row.time_s, row.num_images, row.context_tokens, row.output_tokens) for row in azure.rows] == [
        (0.0, 0, 770, 491),
        (1.5, 1, 949, 126),
        (1.5, 2, 964, 79),
    ]
    assert [row.time_s for row in rebased.rows] == [0.0, 5.55, 6.244]
    assert {row.num_images for row in rebased.rows} == {None}
    assert [row.line for row in azure.rows] == [2, 3, 4]


@pytest.mark.parametrize(
    "variant",
    [
        AZURE.rstrip("\n"),
        AZURE.replace("\n", "\r\n"),
        "\ufeff" + AZURE,
        AZURE + "\n\n",
        AZURE.replace(",", " , "),
        AZURE.replace("Z,", "+00:00,"),
        AZURE.replace("949", '"949"'),
    ],
    ids=["no last newline", "CRLF", "byte-order mark", "blank lines", "spaces", "offset", "quotes"],
)
def test_variants_of_a_file_give_the_same_rows(variant: str, tmp_path: Path) -> None:
    expected = read_trace(_write(tmp_path, AZURE, "plain.csv")).rows
    assert read_trace(_write(tmp_path, variant)).rows == expected


def test_columns_are_read_by_name_in_any_order(tmp_path: Path) -> None:
    turned = "output_tokens,arrival_time,input_tokens\n491,0.0,770\n126,5.55,949\n79,6.244,964\n"
    expected = read_trace(_write(tmp_path, REBASED, "plain.csv")).rows
    assert read_trace(_write(tmp_path, turned)).rows == expected


def test_a_gzip_file_is_read_and_a_broken_one_refused(tmp_path: Path) -> None:
    packed = gzip.compress(AZURE.encode())
    assert len(read_trace(_write(tmp_path, packed, "trace.csv.gz")).rows) == 3
    assert len(read_trace(_write(tmp_path, packed, "unnamed.csv")).rows) == 3
    for broken in (packed[:-12], AZURE.encode(), packed[:-8] + b"\xff" * 8):
        with pytest.raises(SuiteError, match=r"broken\.csv\.gz.*fetch it again"):
            read_trace(_write(tmp_path, broken, "broken.csv.gz"))


def test_rows_behind_the_limit_are_not_read(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path, AZURE + "not,a,row\n"), limit=3)
    assert len(trace.rows) == 3 and trace.is_cut
    assert not read_trace(_write(tmp_path, AZURE), limit=3).is_cut
    with pytest.raises(SuiteError, match=":5: 3 columns"):
        read_trace(_write(tmp_path, AZURE + "not,a,row\n"), limit=4)


def test_times_of_an_epoch_are_exact_to_the_microsecond(tmp_path: Path) -> None:
    text = AZURE.replace("10:00:01.500Z,1", "10:00:00.000001Z,1").replace(
        "10:00:01.500Z,2", "23:59:59.999999Z,2"
    )
    assert [row.time_s for row in read_trace(_write(tmp_path, text)).rows] == [0.0, 0.000001, 50399.999999]


def test_long_silences_are_cut_before_times_are_scaled_and_counted(tmp_path: Path) -> None:
    text = "arrival_time,input_tokens,output_tokens\n100,10,1\n103,10,1\n803,10,1\n809,10,1\n"
    demand = _demand(_write(tmp_path, text), {"time_scale": 0.5, "max_gap_s": 6.0})
    assert [need.arrival_s for need in demand.needs] == [0.0, 1.5, 4.5, 7.5]
    assert "silences cut to traffic.arrivals.max_gap_s 6: 1, 694.000 s of the trace left out" in _notes(
        demand
    )
    assert "times multiplied by traffic.arrivals.time_scale 0.5" in _notes(demand)


@given(count=st.integers(1, 10**6), percent=st.integers(1, 200))
def test_scaling_rounds_up_exactly(count: int, percent: int) -> None:
    assert scaled(count, percent / 100) == max(1, -(-count * percent // 100))


def test_scaled_context_is_the_whole_prompt_or_the_text_alone(tmp_path: Path) -> None:
    path = _write(tmp_path, AZURE)
    whole = _demand(path, {"length_scale": 0.1})
    assert [(need.text_tokens, need.num_images, need.output_tokens) for need in whole.needs] == [
        (77, 0, 50),
        (95 - 18, 1, 13),
        (97 - 36, 2, 8),
    ]
    alone = _demand(path, {"length_scale": 0.1, "context_includes_images": False})
    assert [need.text_tokens for need in alone.needs] == [77, 95, 97]
    assert "taken to include image tokens" in _notes(whole)
    assert "taken to exclude image tokens" in _notes(alone)
    assert "length_scale 0.1, rounded up" in _notes(whole)


def test_images_larger_than_the_scaled_context_leave_one_text_token(tmp_path: Path) -> None:
    demand = _demand(_write(tmp_path, AZURE), {"length_scale": 0.01})
    assert [need.text_tokens for need in demand.needs] == [8, 1, 1]
    assert "1 text token kept: 2" in _notes(demand)


def test_images_beyond_the_cap_are_dropped_and_counted(tmp_path: Path) -> None:
    path = _write(tmp_path, AZURE.replace(",2,964", ",16,4564"))
    demand = _demand(path, {"length_scale": 0.1, "max_images": 4})
    assert [need.num_images for need in demand.needs] == [0, 1, 4]
    assert "images dropped by traffic.arrivals.max_images 4: 12, of 1 of the requests" in _notes(demand)
    text_only = _demand(path, {"length_scale": 0.1, "max_images": 0}, model=TINY_QWEN3)
    assert [need.num_images for need in text_only.needs] == [0, 0, 0]


def test_requests_too_long_are_skipped_or_truncated_with_counts(tmp_path: Path) -> None:
    path = _write(tmp_path, AZURE.replace("964,79", "9640,790"))
    skipped = _demand(path, {"length_scale": 0.2, "over_length": "skip"})
    assert len(skipped.needs) == 2
    assert "skipped as too long (runner.max_model_len is 1024): 1" in _notes(skipped)
    truncated = _demand(path, {"length_scale": 0.2, "over_length": "truncate"})
    last = truncated.needs[2]
    assert (last.text_tokens, last.num_images, last.output_tokens) == (1024 - 36 - 158, 2, 158)
    assert f"1, by {1928 + 158 - 1024} tokens in all" in _notes(truncated)
    longer_output = _write(tmp_path, AZURE.replace("964,79", "964,9999"), "output.csv")
    last = _demand(longer_output, {"length_scale": 0.2, "over_length": "truncate"}).needs[2]
    assert (last.text_tokens, last.output_tokens) == (1, 1024 - 36 - 1)


def test_images_alone_too_many_cannot_be_truncated_away(tmp_path: Path) -> None:
    path = _write(tmp_path, AZURE.replace(",2,964", ",60,964"))
    with pytest.raises(SuiteError, match=r":4: the request has 1 text \+ 1080 image .* max_images"):
        _demand(path, {"length_scale": 0.1, "over_length": "truncate"})


def test_without_an_image_column_the_ratio_of_the_scenario_is_used_and_said(tmp_path: Path) -> None:
    path = _write(tmp_path, REBASED)
    demand = _demand(path, {"length_scale": 0.1}, {"multimodal_ratio": 0.34})
    assert sum(need.num_images for need in demand.needs) == 1
    assert "the trace has no image column: traffic.multimodal_ratio 0.34" in _notes(demand)
    own = _demand(_write(tmp_path, AZURE), {"length_scale": 0.1}, {"multimodal_ratio": 0.34})
    assert "images from the trace's own column: 2 requests have some" in _notes(own)
    assert "multimodal_ratio 0.34 is not used" in _notes(own)


def test_the_limit_is_told_where_it_cuts(tmp_path: Path) -> None:
    path = _write(tmp_path, AZURE)
    assert "only the first 2 rows read" in _notes(_demand(path, {"limit": 2, "length_scale": 0.1}))
    assert "only the first" not in _notes(_demand(path, {"limit": 3, "length_scale": 0.1}))


def test_the_sample_in_the_repository_is_what_its_recipe_makes() -> None:
    committed = (ROOT / "scenarios" / "data" / "azure-lmm-sample.csv").read_bytes()
    assert committed.decode() == sample_text()


def test_the_recorded_ten_rows_load_with_their_week_of_silence_cut() -> None:
    path = _real("azure_lmm2025_original_format.10rows.csv")
    trace = read_trace(path)
    assert len(trace.rows) == 10
    assert [row.num_images for row in trace.rows] == [0, 1, 1, 0, 1, 16, 1, 1, 1, 0]
    demand = _demand(path, {"length_scale": 0.05})
    assert demand.needs[-1].arrival_s < 15
    assert "max_gap_s 5: 2," in _notes(demand)


def test_the_recorded_rebased_rows_are_the_rows_of_the_original() -> None:
    original = read_trace(_real("azure_lmm2025_original_format.10rows.csv"))
    rebased = read_trace(_real("azure_lmm2025_rebased.first650.csv"))
    assert len(rebased.rows) == 650
    assert [replace(row, num_images=None) for row in original.rows[:5]] == list(rebased.rows[:5])
