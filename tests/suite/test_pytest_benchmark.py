"""Rounds as pytest-benchmark's storage: read by the real program, with its own statistics of them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from compared_folders import ENVIRONMENT, experiment, rounds_of, write_folder
from pytest_benchmark.stats import Stats
from test_cli import assert_refused, invoke

from suite.checks import Finding
from suite.metrics import empty_metrics
from suite.pytest_benchmark import storage_document

BASE = ENVIRONMENT.model_dump(mode="json")


def rows(runs, findings=()):
    document, left_out = storage_document(runs, findings, BASE)
    return {row["name"]: row for row in document["benchmarks"]}, left_out


def compare(*files):
    code = "from pytest_benchmark.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        code,
        "compare",
        *map(str, files),
        "--group-by=name",
        "--columns=mean,ops",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=files[0].parent).stdout


def test_pytest_benchmark_compares_two_exported_runs_row_by_row(tmp_path):
    files = []
    for number, factor in ((1, 1.0), (2, 1.25)):
        folder = write_folder(tmp_path / f"run{number}", experiment(number, ids=factor))
        files.append(tmp_path / f"run{number}.json")
        result = invoke("export", folder, "--format", "pytest-benchmark", "-o", files[-1])
        assert result.exit_code == 0 and "14 rows" in result.stdout, result.output
    text = compare(*files)
    table = text[text.index("benchmark 'smoke ids output_throughput'") :]
    assert "(1.25)" in table.split("benchmark 'smoke ids", 2)[1]
    assert "smoke sync-ids median_e2e_ms" in text
    document = json.loads(files[0].read_text())
    assert document["commit_info"]["id"] == "a" * 40
    assert document["machine_info"]["cpu"]["brand_raw"] == "Fast CPU"


def test_a_throughput_is_the_time_per_token_and_its_rate_is_the_throughput():
    runs = experiment(1)
    found, left_out = rows(runs)
    row = found["smoke sync-ids output_throughput"]
    values = [run.metrics["output_throughput"].value for run in runs if not run.is_aa]
    assert row["stats"]["data"] == pytest.approx([1 / value for value in values])
    assert row["stats"]["ops"] == pytest.approx(len(values) / sum(1 / value for value in values))
    assert found["smoke sync-ids median_e2e_ms"]["stats"]["mean"] == pytest.approx(0.030)
    assert left_out == []


@pytest.mark.parametrize("num_rounds", [1, 2, 3, 4, 5, 8, 9])
def test_statistics_are_those_that_pytest_benchmark_computes(num_rounds):
    found, _ = rows(experiment(3, num_rounds))
    told = found["smoke sync-ids output_throughput"]["stats"]
    own = Stats()
    for value in told["data"]:
        own.update(value)
    for name in ("min", "max", "mean", "stddev", "median", "q1", "q3", "iqr", "ld15iqr", "hd15iqr", "ops"):
        assert told[name] == pytest.approx(getattr(own, name)), name
    assert (told["rounds"], told["outliers"]) == (own.rounds, own.outliers)
    assert told["total"] == pytest.approx(own.total)


def test_wrong_arms_invalid_rounds_and_warm_ups_do_not_enter():
    wrong, control = rounds_of("ids", 1.5, num_wrong=1), rounds_of("stale", 1.5, is_control=True)
    empty = rounds_of("skip", 1.0, metrics=empty_metrics("nothing"))
    runs = [*experiment(1), *wrong, *control, *empty]
    found, left_out = rows(runs, [Finding("sync-ids-r0", "off-schedule", "seen", "remedy", True)])
    assert {row["params"]["arm"] for row in found.values()} == {"sync-ids"}
    assert found["smoke sync-ids output_throughput"]["stats"]["rounds"] == 9
    assert left_out == [
        "smoke ids: wrong tokens, speed not judged",
        "smoke stale: wrong by design, speed not judged",
        "smoke skip: no round that counts has a value",
    ]


def test_a_run_without_any_figure_is_refused(tmp_path):
    folder = write_folder(tmp_path / "empty", rounds_of("ids", 1.0, metrics=empty_metrics("nothing")))
    assert_refused(invoke("export", folder, "--format", "pytest-benchmark"), "nothing to export", "smoke ids")
