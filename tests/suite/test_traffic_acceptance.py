"""Traffic held against what was asked for: distributions, rates, queues, lengths, the same draw anywhere."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from bad_inputs import GOOD
from built_cases import built, built_case
from records import MS, make_request
from scipy import stats
from test_arrivals import SECOND, FakeEngine, _requests, _served

from runner.config import RunnerConfig
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3
from suite.arrivals import ScheduledArrivals
from suite.metrics import run_metrics
from suite.scenario import dump_scenario
from suite.traffic import Traffic
from suite.worker import _ended_ns, request_record
from suite.workload import build_workload

NUM = 20_000
LEAST_P = 1e-3
"""Of a Kolmogorov-Smirnov test. Seeds are fixed; with others one in 56 sets of 18 tests would fail."""


def gaps(seed, **arrivals):
    lengths = {"num_requests": 1, "prompt_tokens": 4, "output_tokens": 4}
    process = Traffic.model_validate({**lengths, "arrivals": arrivals}).arrivals
    return np.diff(process.times(NUM + 1, np.random.default_rng(seed)))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("rate", [0.05, 1.0, 37.5, 4000.0])
def test_poisson_gaps_pass_for_exponential_at_every_rate(rate, seed):
    assert stats.kstest(gaps(seed, kind="poisson", rate=rate), "expon", args=(0, 1 / rate)).pvalue > LEAST_P


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("rate", "burstiness"), [(0.5, 0.25), (8, 0.5), (8, 1), (200, 2.5), (1000, 50)])
def test_gamma_gaps_pass_for_gamma_of_that_burstiness_and_mean(rate, burstiness, seed):
    """vLLM's: shape `burstiness`, scale 1 / (rate x burstiness).

    Below 0.2 many gaps are less than a nanosecond, in which times are counted, and become 0.
    """
    found = gaps(seed, kind="gamma", rate=rate, burstiness=burstiness)
    assert stats.kstest(found, "gamma", args=(burstiness, 0, 1 / (rate * burstiness))).pvalue > LEAST_P


@pytest.mark.parametrize(
    ("found", "name", "args"),
    [
        (gaps(1, kind="constant", rate=8), "expon", (0, 1 / 8)),
        (gaps(1, kind="gamma", rate=8, burstiness=0.9), "expon", (0, 1 / 8)),
        (gaps(1, kind="gamma", rate=8, burstiness=1.1), "expon", (0, 1 / 8)),
        (gaps(1, kind="poisson", rate=8.5), "expon", (0, 1 / 8)),
        (gaps(1, kind="poisson", rate=8), "gamma", (2, 0, 1 / 16)),
        (gaps(1, kind="gamma", rate=8, burstiness=0.5), "gamma", (0.5, 0, 1 / 8)),  # scale 1 / rate
        (gaps(1, kind="ramp", from_rate=4, to_rate=12), "expon", (0, 1 / 8)),
        (np.random.default_rng(1).uniform(0, 2 / 8, NUM), "expon", (0, 1 / 8)),
    ],
    ids=["constant", "burstiness 0.9", "burstiness 1.1", "6 % faster", "poisson", "scale", "ramp", "uniform"],
)
def test_a_wrong_distribution_of_the_right_mean_or_a_wrong_mean_does_not_pass(found, name, args):
    assert stats.kstest(found, name, args=args).pvalue < LEAST_P


@pytest.mark.parametrize(
    "arrivals", [{"kind": "poisson", "rate": 8}, {"kind": "gamma", "rate": 8, "burstiness": 0.3}]
)
def test_a_gap_says_nothing_of_the_next_one(arrivals):
    """The distribution of gaps alone would pass for sorted ones as well."""
    found = gaps(5, **arrivals)
    assert abs(stats.spearmanr(found[:-1], found[1:]).statistic) < 4 / np.sqrt(NUM)
    assert stats.spearmanr(np.sort(found)[:-1], np.sort(found)[1:]).statistic > 0.99


def test_in_real_time_too_the_rate_is_met_within_2_percent():
    """600 requests at 200/s, by the line through all sendings: one stall of the machine is not all of it."""
    requests = _requests([index / 200 for index in range(600)])
    arrivals = ScheduledArrivals(requests, is_timed=True)
    engine = _served(arrivals, "ids")
    sent_s = [engine.recorder.timelines[one.request.request_id].sent_ns / SECOND for one in requests]
    assert 1 / np.polyfit(np.arange(600), sent_s, 1)[0] == pytest.approx(200, rel=0.02)
    assert min(np.array(sent_s) - [arrivals.scheduled_ns(i) / SECOND for i in range(600)]) >= 0


def test_a_queue_that_grows_shows_in_every_latency_that_counts_from_the_arrival():
    """10 requests a second, one at a time, 1 s each: coordinated omission would show 1 s for all of them."""
    engine = FakeEngine(service_ns=SECOND, step_ns=100 * MS)
    requests = _requests([index / 10 for index in range(20)])
    arrivals = ScheduledArrivals(requests, True, engine.clock, engine.sleep, max_concurrency=1)
    engine.run(arrivals)
    records = []
    for index, item in enumerate(requests):
        sent_ns = engine.sent[item.request.request_id]
        times = {"token_ns": (sent_ns + SECOND // 2, sent_ns + SECOND), "finished_ns": sent_ns + SECOND}
        scheduled_ns = arrivals.scheduled_ns(index)
        records.append(
            make_request(
                f"r{index}", scheduled_ns=scheduled_ns, sent_ns=sent_ns, first_scheduled_ns=sent_ns, **times
            )
        )
    found = run_metrics(records, [], 20.0)
    for name, seconds in (
        ("max_e2e_ms", 18.1),
        ("max_ttft_ms", 17.6),
        ("max_queue_delay_ms", 17.1),
        ("max_send_delay_ms", 17.1),
        ("median_e2e_ms", 9.55),
    ):
        assert found[name].value == pytest.approx(1000 * seconds, abs=10), name
    assert found["max_itl_ms"].value == pytest.approx(500), "what was served itself is as fast as ever"


def test_on_a_real_engine_records_show_the_queue_from_the_scheduled_arrival():
    requests = _requests([index / 100 for index in range(12)])
    arrivals = ScheduledArrivals(requests, True, max_concurrency=1)
    engine = _served(arrivals, "sync-ids", host_work_us=30_000)
    records = [
        request_record(
            item,
            arrivals.scheduled_ns(index),
            engine.requests[item.request.request_id],
            engine.recorder.timelines[item.request.request_id],
        )
        for index, item in enumerate(requests)
    ]
    found = run_metrics(records, engine.recorder.steps, 1.0)
    # The last, due at 110 ms, waits for the host work of the eleven before it; its own comes after its token.
    assert found["max_e2e_ms"].value >= 11 * 30 - 110 and found["max_queue_delay_ms"].value >= 11 * 30 - 110


# Lengths


@pytest.mark.parametrize("num_tokens", [1, 2, 4092, 4093])
def test_prompts_are_as_long_as_asked_to_the_token_and_so_is_what_the_runner_computes(num_tokens, tmp_path):
    workload = built(
        tmp_path,
        *("model=tiny-qwen3", "traffic.multimodal_ratio=0", "traffic.arrivals={kind: all_at_once}"),
        *(f"traffic.prompt_tokens={num_tokens}", "traffic.output_tokens=3", "traffic.num_requests=3"),
        *("runner.max_model_len=4096", "runner.num_blocks=2048", "runner.max_num_batched_tokens=4096"),
    )
    assert {len(item.request.prompt) for item in workload.requests} == {num_tokens}
    config = RunnerConfig(max_model_len=4096, num_blocks=2048, max_num_batched_tokens=4096)
    device = NullDevice(TINY_QWEN3, config, lambda _step_id, _commands: None, token_id=9)
    engine = Engine(TINY_QWEN3, config, device, ARMS["sync-ids"])
    arrivals = ScheduledArrivals(workload.requests, is_timed=False)
    arrivals.start(ended_ns=lambda name: _ended_ns(engine, name))
    engine.run(arrivals)
    records = [
        request_record(
            item,
            0,
            engine.requests[item.request.request_id],
            engine.recorder.timelines[item.request.request_id],
        )
        for item in workload.requests
    ]
    assert {record.num_prompt_tokens for record in records} == {num_tokens}
    assert {record.num_output_tokens for record in records} == {3}
    assert sum(step.num_tokens for step in engine.recorder.steps) == 3 * (num_tokens + 2)


def test_image_tokens_are_part_of_a_prompts_length_and_told_apart(tmp_path):
    vision = TINY_GEMMA3_VL.vision
    assert vision is not None
    workload = built(tmp_path, "traffic.multimodal_ratio=1", "traffic.images_per_request=2")
    for item in workload.requests:
        record = request_record(item, 0, None, None)
        assert record.num_images == 2 and record.num_image_tokens == 2 * 16
        text = [one for one in item.request.prompt.token_ids if one not in vision.placeholder_ids()]
        assert record.num_prompt_tokens == len(text) + 2 * len(vision.placeholder_ids())


def test_a_run_leaves_nothing_in_the_prefix_cache_for_the_next_one():
    """Points of a sweep that replay the same prompts from a cache that stayed would look faster, unevenly."""
    config = RunnerConfig(prefix_caching=True)
    device = NullDevice(TINY_QWEN3, config, lambda _step_id, _commands: None, token_id=9)
    cached = []
    for _ in range(2):
        engine = Engine(TINY_QWEN3, config, device, ARMS["ids"])
        arrivals = ScheduledArrivals(_requests([0.0] * 3, prompt_tokens=64), is_timed=True)
        arrivals.start(ended_ns=lambda name, engine=engine: _ended_ns(engine, name))
        engine.run(arrivals)
        cached.append([state.num_cached for state in engine.requests.values()])
    # The three prompts of `_requests` are alike, so that a cache has something to give within a run.
    assert cached[0] == cached[1] and cached[1][0] == 0


# The same seed


OPTIONS = (
    ("traffic.arrivals={kind: poisson, rate: 3}", "traffic.images_per_request={uniform: [1, 3]}"),
    (
        "traffic.arrivals={kind: gamma, rate: 3, burstiness: 0.4}",
        "traffic.embeds_ratio=0.5",
        "traffic.embeds_noise=0.1",
    ),
    ("traffic.shared_prefix={groups: 3, tokens: 6}", "traffic.num_requests=10"),
    (
        "traffic.prompt_tokens={lognormal: {median: 9, sigma: 1, max: 40}}",
        "traffic.sampling.temperature=0.7",
    ),
)


def test_workloads_do_not_depend_on_what_was_built_before_or_on_any_global_generator(tmp_path):
    """As where one worker builds all cases, or several build some each."""
    cases = [built_case(tmp_path, *options, text=GOOD) for options in OPTIONS]
    alone = [build_workload(case, 7).hash for case in cases]
    assert len(set(alone)) == len(cases)
    for order in itertools.permutations(range(len(cases))):
        random.seed(order[0])
        np.random.seed(order[1])
        assert {index: build_workload(cases[index], 7).hash for index in order} == dict(enumerate(alone))


_PRINT = """
import sys
from pathlib import Path
from suite.scenario import expand, load_scenario
from suite.workload import build_workload
for path in sys.argv[1:]:
    (case,) = expand(load_scenario(Path(path)))
    print(build_workload(case, 7).hash)
"""


def test_any_number_of_workers_of_any_hash_seed_and_threads_draw_the_same(tmp_path):
    """All cases in one process, and each in one of several that run at the same time."""
    paths = []
    for number, options in enumerate(OPTIONS):
        folder = tmp_path / str(number)
        folder.mkdir()
        case = built_case(folder, *options, text=GOOD)
        file = folder / "whole.yaml"
        file.write_text(dump_scenario(case.scenario), encoding="utf-8")
        paths.append(file)
    here = [build_workload(built_case(tmp_path, *options, text=GOOD), 7).hash for options in OPTIONS]

    def printed(numbers, hash_seed, threads):
        return subprocess.run(
            [sys.executable, "-c", _PRINT, *(str(paths[number]) for number in numbers)],
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHONHASHSEED": hash_seed,
                "OMP_NUM_THREADS": threads,
                "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()

    with ThreadPoolExecutor(2) as pool:
        together = pool.submit(printed, range(len(paths)), "0", "1")
        apart = [pool.submit(printed, [number], "4711", "4") for number in (3, 1)]
        assert together.result() == here
        assert [found.result()[0] for found in apart] == [here[3], here[1]]
