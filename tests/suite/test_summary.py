"""Medians over measured rounds; what does not count is counted apart."""

from __future__ import annotations

import csv
import io
import json

import pytest
from records import failed_request, make_request, make_run

from suite.checks import Finding
from suite.metrics import empty_metrics
from suite.record import Failure, Status
from suite.store import to_json
from suite.summary import summarise, to_csv, to_document


def rounds(*durations_s):
    return [
        make_run([make_request()], duration_s=duration, run_id=f"r{i}", round=i)
        for i, duration in enumerate(durations_s)
    ]


def test_figures_are_medians_over_measured_completed_rounds():
    warmup = make_run([make_request()], duration_s=100.0, run_id="w0", is_warmup=True)
    lost = make_run(
        [make_request()],
        run_id="r3",
        status=Status.FAILED,
        metrics=empty_metrics("the worker died"),
        failure=Failure(kind="worker died", message="the worker died"),
    )
    cut = make_run([], run_id="r4", status=Status.INTERRUPTED, metrics=empty_metrics("stopped"))
    (arm,) = summarise([warmup, *rounds(1.0, 2.0, 3.0), lost, cut], ())
    throughput = arm.metrics["output_throughput"]
    assert (throughput.median, throughput.minimum, throughput.maximum) == (1.5, 1.0, 3.0)
    assert throughput.values == (3.0, 1.5, 1.0) and throughput.num_rounds == 3
    assert (arm.num_rounds, arm.num_failed, arm.num_interrupted, arm.num_warmup) == (3, 1, 1, 1)


def test_a_run_with_instruments_or_repeated_commands_enters_no_figure_and_the_ratio_is_told():
    on = make_run([make_request()], duration_s=4.0, run_id="i0", instrument="events")
    amplified = make_run([make_request()], duration_s=90.0, run_id="a0", repeats={"merge": 33})
    checked = make_run([make_request()], duration_s=90.0, run_id="s0", sync_check="warn")
    (arm,) = summarise([*rounds(1.0, 2.0, 3.0), on, amplified, checked], ())
    assert arm.metrics["output_throughput"].values == (3.0, 1.5, 1.0) and arm.num_rounds == 3
    instrument = arm.instrument
    assert (instrument.level, instrument.num_runs) == ("events", 1)
    assert instrument.throughput_ratio == pytest.approx(0.5)
    document = to_document([arm], (), (), False)["arms"][0]["instrument"]
    assert document["throughput_ratio"] == instrument.throughput_ratio


def test_without_an_instrumented_run_that_completed_there_is_no_ratio_but_a_reason():
    assert summarise(rounds(1.0), ())[0].instrument is None
    metrics = empty_metrics("died")
    lost = make_run(run_id="i0", instrument="nvtx", status=Status.FAILED, metrics=metrics)
    instrument = summarise([*rounds(1.0), lost], ())[0].instrument
    assert (instrument.throughput_ratio, instrument.reason) == (
        None,
        "no run with instruments has a throughput",
    )


def test_a_metric_that_no_round_has_is_null_with_the_reason():
    runs = [make_run([failed_request()], run_id=f"r{i}") for i in range(2)]
    (arm,) = summarise(runs, ())
    metric = arm.metrics["median_ttft_ms"]
    assert metric.median is None and metric.reason == "no request completed" and metric.num_rounds == 0


def test_a_metric_that_only_some_rounds_have_counts_only_those():
    runs = [*rounds(1.0), make_run([failed_request()], run_id="r1")]
    (arm,) = summarise(runs, ())
    assert arm.metrics["output_throughput"].values == (3.0,)


def test_tokens_of_all_runs_are_added_up_and_findings_make_an_arm_invalid():
    runs = [make_run([make_request()], run_id="r0"), make_run([make_request()], run_id="r1", num_wrong=1)]
    finding = Finding("r1", "tokens-wrong", "1 of 3", "find the cause", False)
    (arm,) = summarise(runs, [finding])
    assert (arm.tokens.num_checked, arm.tokens.num_right, arm.tokens.num_wrong) == (6, 5, 1)
    assert arm.tokens.first_wrong == ("a", 1)
    assert not arm.is_valid and arm.findings == (finding,)
    assert summarise(runs, ())[0].is_valid


def test_the_times_of_an_invalid_round_are_in_no_figure_and_what_it_counted_is():
    runs = rounds(1.0, 2.0, 4.0)
    late = Finding("r0", "off-schedule", "late", "leave a core", True)
    of_all = Finding("r2", "drift", "down", "warm up", True)
    (arm,) = summarise(runs, [late, of_all])
    assert arm.metrics["output_throughput"].values == (1.5, 0.75)
    assert arm.metrics["median_ttft_ms"].num_rounds == 2
    assert arm.metrics["output_tokens"].num_rounds == arm.metrics["failed_requests"].num_rounds == 3
    assert (arm.num_rounds, arm.num_invalid, arm.is_valid) == (3, 1, False)
    assert to_document([arm], (), (), False)["arms"][0]["num_invalid"] == 1


def test_where_every_round_is_invalid_there_is_no_time_but_the_rules_that_were_broken():
    runs = rounds(1.0, 2.0)
    findings = [Finding(run.run_id, "foreign-load", "busy", "wait", True) for run in runs]
    findings.append(Finding("r1", "drift", "down", "warm up", True))
    (arm,) = summarise(runs, findings)
    metric = arm.metrics["output_throughput"]
    assert (metric.median, metric.num_rounds, metric.unit) == (None, 0, "tok/s")
    assert metric.reason == "every round is INVALID: foreign-load"
    assert arm.metrics["output_tokens"].median == 3


def test_the_instruments_ratio_is_taken_to_valid_rounds():
    on = make_run([make_request()], duration_s=4.0, run_id="i0", instrument="events")
    late = Finding("r0", "off-schedule", "late", "leave a core", True)
    (arm,) = summarise([*rounds(1.0, 2.0), on], [late])
    assert arm.instrument.throughput_ratio == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("name", "num", "is_thin"),
    [
        ("p99_ttft_ms", 99, True),
        ("p99_ttft_ms", 100, False),
        ("p95_e2e_ms", 19, True),
        ("p95_e2e_ms", 20, False),
        ("p90_e2e_ms", 9, True),
        ("p90_e2e_ms", 10, False),
        ("median_ttft_ms", 1, False),
        ("max_ttft_ms", 1, False),
        ("p99_decode_step_wall_ms", 0, False),
    ],
)
def test_a_percentile_of_too_few_samples_is_marked_with_their_number(name, num, is_thin):
    """The round that has fewest decides, even where all rounds together would have enough."""
    requests = [make_request(f"r{index}") for index in range(max(num, 1))]
    many = [make_request(f"r{index}") for index in range(200)]
    runs = [make_run(requests, run_id="a"), make_run(many, run_id="b", round=1)]
    (arm,) = summarise(runs, ())
    caution = arm.metrics[name].caution
    assert (caution is not None) == is_thin
    if is_thin:
        assert caution.startswith(f"of {num} samples a round; ")
        assert to_document([arm], (), (), False)["arms"][0]["metrics"][name]["caution"] == caution


def test_cases_and_arms_are_kept_apart_in_the_order_they_ran():
    runs = [
        make_run([make_request()], run_id="1", arm="sync-ids", case_id="b" * 16),
        make_run([make_request()], run_id="2", arm="other", case_id="b" * 16),
        make_run([make_request()], run_id="3", arm="sync-ids", case_id="a" * 16),
    ]
    assert [(arm.case_id[0], arm.arm) for arm in summarise(runs, ())] == [
        ("b", "sync-ids"),
        ("b", "other"),
        ("a", "sync-ids"),
    ]


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_the_document_is_strict_json_and_says_how_it_ended(is_interrupted):
    arms = summarise([make_run([failed_request()], run_id="r0")], ())
    document = json.loads(to_json(to_document(arms, (), [("gpu", "needs a CUDA device")], is_interrupted)))
    assert document["status"] == ("interrupted" if is_interrupted else "completed")
    assert document["skipped"] == [{"scenario": "gpu", "reason": "needs a CUDA device"}]
    assert document["arms"][0]["metrics"]["p99_ttft_ms"]["median"] is None


def test_the_table_has_a_line_for_each_metric_and_quotes_odd_names():
    run = make_run([make_request()], scenario='a "name", with\nall of it', case_label="x=1, y=2")
    rows = list(csv.DictReader(io.StringIO(to_csv(summarise([run], ())))))
    assert len(rows) == len(run.metrics)
    assert rows[0]["scenario"] == 'a "name", with\nall of it'
    by_name = {row["metric"]: row for row in rows}
    assert float(by_name["output_throughput"]["median"]) == 3.0
    assert by_name["median_mixed_step_wall_ms"]["median"] == ""
    assert by_name["median_mixed_step_wall_ms"]["reason"] == "no mixed step"


def test_no_runs_give_no_arms():
    assert summarise([], ()) == () and to_csv(()).count("\n") == 1
