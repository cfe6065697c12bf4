"""Every figure against numbers worked out by hand, and the cases where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import failed_request, make_request, make_step

from runner.config import RunnerConfig
from suite.metrics import DEFINITIONS, empty_metrics, latencies, run_metrics, step_wall_ms


def value(metrics, name):
    return metrics[name].value


def test_latencies_count_from_the_scheduled_arrival_not_from_the_sending():
    one = latencies(make_request(scheduled_ms=2, sent_ms=6, first_ms=7, token_ms=(10, 20, 40)))
    assert one.ttft_ms == pytest.approx(8)
    assert one.e2e_ms == pytest.approx(38)
    assert one.queue_delay_ms == pytest.approx(5)
    assert one.send_delay_ms == pytest.approx(4)


def test_tpot_divides_by_the_tokens_that_came_not_by_those_asked_for():
    request = make_request(token_ms=(10, 20, 30, 70), requested_output_tokens=256, finish_reason="eos")
    assert latencies(request).tpot_ms == pytest.approx(60 / 3)


def test_one_output_token_has_no_tpot_and_says_so_but_keeps_the_rest():
    request = make_request(token_ms=(10,))
    one = latencies(request)
    assert one.tpot_ms is None and one.undefined == {
        "tpot_ms": "one output token",
        "itl_ms": "one output token",
    }
    metrics = run_metrics([request], [], 1.0)
    assert metrics["median_tpot_ms"].value is None and metrics["median_tpot_ms"].reason == "one output token"
    assert metrics["p99_itl_ms"].value is None and metrics["p99_itl_ms"].reason == "one output token"
    assert value(metrics, "median_ttft_ms") == pytest.approx(10)
    assert value(metrics, "completed_requests") == 1
    assert value(metrics, "output_throughput") == 1


def test_tokens_that_came_all_at_once_have_no_tpot_rather_than_zero():
    metrics = run_metrics([make_request(token_ms=(10, 10, 10))], [], 1.0)
    assert metrics["mean_tpot_ms"].value is None
    assert metrics["mean_tpot_ms"].reason == "all output tokens came at the same time"


def test_a_stall_shows_in_the_pooled_gaps_though_the_mean_per_request_hides_it():
    smooth = make_request("a", token_ms=[10.0 * i for i in range(1, 101)])
    stalled = make_request("b", token_ms=[10.0 * i + (2000 if i > 50 else 0) for i in range(1, 101)])
    metrics = run_metrics([smooth, stalled], [], 3.0)
    assert value(metrics, "max_itl_ms") == pytest.approx(2010)
    assert metrics["max_itl_ms"].num_samples == 198
    assert value(metrics, "median_itl_ms") == pytest.approx(10)
    assert value(metrics, "max_tpot_ms") < 31


def test_throughputs_count_completed_requests_only():
    done = make_request("a", num_prompt_tokens=20, num_image_tokens=16, num_images=1)
    aborted = make_request("b", finish_reason="aborted", error="the run ended before this request did")
    metrics = run_metrics([done, aborted, failed_request()], [], 0.5)
    assert value(metrics, "request_throughput") == 2
    assert value(metrics, "output_throughput") == 6
    assert value(metrics, "total_token_throughput") == 46
    assert value(metrics, "completed_requests") == 1 and value(metrics, "failed_requests") == 2


def test_prompt_tokens_are_split_by_modality_and_add_up():
    requests = [
        make_request("a", num_prompt_tokens=1196, num_image_tokens=1196, num_images=2),
        make_request("b", num_prompt_tokens=30),
    ]
    metrics = run_metrics(requests, [], 1.0)
    assert value(metrics, "prompt_tokens") == 1226
    assert value(metrics, "image_prompt_tokens") == 1196
    assert value(metrics, "text_prompt_tokens") == 30
    assert value(metrics, "images") == 2


def test_a_run_in_which_nothing_completed_still_has_every_metric():
    metrics = run_metrics([failed_request("a"), failed_request("b")], [], 1.0)
    assert set(metrics) == set(DEFINITIONS)
    for name in ("output_throughput", "median_ttft_ms", "p99_itl_ms", "mean_e2e_ms"):
        assert metrics[name].value is None and metrics[name].reason == "no request completed"
    assert value(metrics, "failed_requests") == 2 and value(metrics, "completed_requests") == 0


def test_a_run_of_no_requests_at_all_divides_by_nothing():
    assert run_metrics([], [], 0.0)["request_throughput"].reason == "no request completed"


def test_a_run_that_took_no_time_has_no_throughput():
    metric = run_metrics([make_request()], [], 0.0)["output_throughput"]
    assert metric.value is None and metric.reason == "the run took no time"


def test_percentiles_are_linear_between_ranks():
    requests = [make_request(str(i), token_ms=(10.0 * (i + 1), 500)) for i in range(5)]
    metrics = run_metrics(requests, [], 1.0)
    assert value(metrics, "p90_ttft_ms") == pytest.approx(46)  # ranks 40 and 50, six tenths of the way
    assert value(metrics, "p99_ttft_ms") == pytest.approx(49.6)


def test_step_times_are_kept_apart_by_kind():
    steps = [
        make_step(0, 0, 10, "prefill", schedule_ns=1_000_000, launch_ns=2_000_000, device_end_ns=7_000_000),
        make_step(1, 10, 14, "decode", retire_ns=500_000, device_end_ns=3_000_000),
        make_step(2, 14, 20, "decode", retire_ns=700_000, device_end_ns=5_000_000),
    ]
    metrics = run_metrics([make_request()], steps, 1.0)
    assert value(metrics, "median_prefill_step_host_ms") == pytest.approx(3)
    assert value(metrics, "median_decode_step_host_ms") == pytest.approx(0.6)
    assert value(metrics, "median_decode_step_device_ms") == pytest.approx(4)
    assert value(metrics, "median_decode_step_wall_ms") == pytest.approx(5)
    assert metrics["median_mixed_step_wall_ms"].reason == "no mixed step"


def test_the_wall_time_of_a_step_holds_the_loop_around_it_but_no_wait_for_an_arrival():
    requests = [
        make_request("a", token_ms=(10, 21)),
        make_request("b", scheduled_ms=100, first_ms=100, token_ms=(108,)),
    ]
    steps = [make_step(0, 1, 10), make_step(1, 12, 21), make_step(2, 100, 108)]
    assert step_wall_ms(requests, steps).tolist() == pytest.approx([9, 11, 8])


def test_copies_and_bytes_are_added_over_buffers_and_steps():
    steps = [
        make_step(0, 0, 1, copies={"staging": 1, "pixels": 2}, bytes={"staging": 64, "pixels": 1000}),
        make_step(1, 1, 2, copies={"staging": 1}, bytes={"staging": 32}),
    ]
    metrics = run_metrics([], steps, 1.0)
    assert value(metrics, "upload_copies") == 4 and value(metrics, "upload_bytes") == 1096


def test_a_lost_run_has_every_metric_undefined_for_one_reason():
    metrics = empty_metrics("the worker died")
    assert set(metrics) == set(DEFINITIONS)
    assert {(m.value, m.reason) for m in metrics.values()} == {(None, "the worker died")}


def test_every_metric_is_defined_in_words_with_unit_and_direction():
    for name, definition in DEFINITIONS.items():
        assert definition.name == name and len(definition.text) > 10 and definition.unit
        assert definition.better in ("higher", "lower", "neither")
        if name.endswith("_ms"):
            assert definition.unit == "ms"


token_lists = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=20).map(sorted)


@given(st.lists(token_lists, max_size=8), st.just(0.0) | st.floats(1e-9, 1e4))
def test_no_metric_is_ever_nan_infinite_or_negative_and_null_has_a_reason(all_tokens, duration_s):
    requests = [make_request(str(i), first_ms=0, token_ms=tokens) for i, tokens in enumerate(all_tokens)]
    for metric in run_metrics(requests, [make_step(0, 0, 1)], duration_s).values():
        assert (metric.value is None) == (metric.reason is not None)
        if metric.value is not None:
            assert math.isfinite(metric.value) and metric.value >= 0
        else:
            assert metric.num_samples == 0


@given(st.lists(st.floats(0.001, 1e5), min_size=1, max_size=60))
def test_statistics_equal_numpy_on_the_same_samples(ttfts):
    requests = [make_request(str(i), token_ms=(at, at + 1)) for i, at in enumerate(ttfts)]
    metrics = run_metrics(requests, [], 1.0)
    rounded = np.round(np.asarray(ttfts) * 1e6) / 1e6
    assert value(metrics, "p99_ttft_ms") == pytest.approx(
        np.percentile(rounded, 99, method="linear"), abs=1e-6
    )
    assert value(metrics, "mean_ttft_ms") == pytest.approx(rounded.mean(), abs=1e-6)


CACHING = RunnerConfig(prefix_caching=True)
DRAFTING = RunnerConfig(num_speculative_tokens=3)
OF_CACHE = ("cached_tokens", "prefix_cache_hit_rate", "hash_ms")
OF_DRAFTS = ("drafted_tokens", "accepted_tokens", "acceptance_rate", "tokens_per_step")


def test_what_is_off_has_no_figures_and_says_so():
    metrics = run_metrics([make_request(num_cached_tokens=4)], [make_step(0, 0, 1)], 1.0)
    assert {metrics[name].reason for name in OF_CACHE} == {"prefix caching is off"}
    assert {metrics[name].reason for name in OF_DRAFTS} == {"speculation is off"}
    assert {metrics[name].value for name in (*OF_CACHE, *OF_DRAFTS)} == {None}


def test_the_hit_rate_is_of_the_prompts_that_were_admitted():
    requests = [
        make_request("a", num_prompt_tokens=30, num_cached_tokens=16),
        make_request("b", num_prompt_tokens=10),
        make_request("c", first_ms=None, num_prompt_tokens=1000, finish_reason="aborted", error="cut"),
        make_request("d", num_prompt_tokens=24, num_cached_tokens=16, finish_reason="aborted", error="cut"),
    ]
    steps = [make_step(0, 0, 1, hash_ns=1_500_000), make_step(1, 1, 2, hash_ns=500_000)]
    metrics = run_metrics(requests, steps, 1.0, CACHING)
    assert value(metrics, "cached_tokens") == 32
    assert value(metrics, "prefix_cache_hit_rate") == pytest.approx(50)
    assert metrics["prefix_cache_hit_rate"].num_samples == 3
    assert value(metrics, "hash_ms") == pytest.approx(2)


def test_a_run_that_admitted_nothing_has_no_hit_rate():
    metrics = run_metrics([failed_request()], [], 1.0, CACHING)
    assert metrics["prefix_cache_hit_rate"].reason == "no request was admitted"
    assert value(metrics, "cached_tokens") == 0


def test_drafts_are_counted_over_all_requests_and_steps():
    requests = [
        make_request("a", num_drafted_tokens=6, num_accepted_tokens=3),
        make_request("b", num_drafted_tokens=4),
    ]
    steps = [
        make_step(0, 0, 1, "prefill"),
        make_step(1, 1, 2, num_decode_rows=2, num_accepted_tokens=2),
        make_step(2, 2, 3, num_decode_rows=2, num_accepted_tokens=1),
    ]
    metrics = run_metrics(requests, steps, 1.0, DRAFTING)
    assert value(metrics, "drafted_tokens") == 10 and value(metrics, "accepted_tokens") == 3
    assert value(metrics, "acceptance_rate") == pytest.approx(30)
    assert metrics["acceptance_rate"].num_samples == 10
    assert value(metrics, "tokens_per_step") == pytest.approx(1.75)


def test_without_a_draft_there_is_no_acceptance():
    metrics = run_metrics([make_request()], [make_step(0, 0, 1, "prefill")], 1.0, DRAFTING)
    assert metrics["acceptance_rate"].reason == "no token was drafted"
    assert metrics["tokens_per_step"].reason == "no decode step"


def test_tokens_of_one_step_share_its_time_and_the_wait_is_in_the_gap_before_them():
    request = make_request(token_ms=(10, 40, 40, 40, 50))
    metrics = run_metrics([request], [], 1.0, DRAFTING)
    assert latencies(request).itl_ms.tolist() == pytest.approx([30, 0, 0, 10])
    assert value(metrics, "max_itl_ms") == pytest.approx(30) and value(metrics, "median_itl_ms") == 5
    assert value(metrics, "mean_tpot_ms") == pytest.approx(10)
    assert "share its time" in DEFINITIONS["median_itl_ms"].text


@given(st.lists(st.sampled_from([0.0, 1.0, 250.0]), min_size=1, max_size=8))
def test_no_tpot_is_ever_zero_however_many_tokens_a_step_gave(gaps):
    tokens = [10 + sum(gaps[:index]) for index in range(len(gaps) + 1)]
    metric = run_metrics([make_request(token_ms=tokens)], [], 1.0, DRAFTING)["mean_tpot_ms"]
    assert metric.value is None or metric.value > 0
    assert (metric.value is None) == (sum(gaps) == 0)


def test_a_request_that_a_stop_token_ended_is_complete():
    metrics = run_metrics([make_request(finish_reason="stop")], [], 1.0)
    assert value(metrics, "completed_requests") == 1 and value(metrics, "output_tokens") == 3
