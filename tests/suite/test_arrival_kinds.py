"""When requests should come: the distributions of gaps, ramps, and the same times in every process."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from bad_inputs import GOOD, VIDUR_LENGTHS
from built_cases import built, built_case, printed_by_fresh_processes
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from suite.arrival_kinds import Arrivals, most_at_once
from suite.traffic import Traffic
from suite.workload import build_workload

NUM = 20_000
CRITICAL = 1.95  # of the Kolmogorov-Smirnov distance times sqrt(n), at 0.1 % significance


def _arrivals(**keys: object) -> Arrivals:
    lengths = {"num_requests": 1, "prompt_tokens": 4, "output_tokens": 4}
    return Traffic.model_validate({**lengths, "arrivals": keys}).arrivals


def _times(count: int = NUM, seed: int = 1, **keys: object) -> np.ndarray:
    arrivals = _arrivals(**keys)
    assert arrivals.kind != "trace"
    return np.array(arrivals.times(count, np.random.default_rng(seed)))


def _distance(values: np.ndarray, probabilities: np.ndarray) -> float:
    """The largest distance between a sample and the distribution that has `probabilities` at its sorted
    values, times sqrt(n).
    """
    count = len(values)
    above = np.arange(1, count + 1) / count - probabilities
    below = probabilities - np.arange(count) / count
    return float(max(above.max(), below.max()) * math.sqrt(count))


def _gamma_distribution(values: np.ndarray, shape: float) -> np.ndarray:
    """The lower incomplete gamma function, regularised, by its series (Abramowitz and Stegun 6.5.29)."""
    with np.errstate(divide="ignore"):
        start = np.exp(shape * np.log(values) - values - math.lgamma(shape + 1))
    total, term = np.ones_like(values), np.ones_like(values)
    for number in range(1, 400):
        term = term * values / (shape + number)
        total = total + term
    return start * total


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("rate", [0.5, 200.0])
def test_poisson_gaps_are_exponential(rate: float, seed: int) -> None:
    gaps = np.sort(np.diff(_times(kind="poisson", rate=rate, seed=seed)))
    assert _distance(gaps, -np.expm1(-gaps * rate)) < CRITICAL
    assert _distance(gaps, -np.expm1(-gaps * rate * 1.05)) > CRITICAL, "5 % off would be seen"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_shape_of_their_burstiness(burstiness: float, seed: int) -> None:
    rate = 8.0
    gaps = np.sort(np.diff(_times(kind="gamma", rate=rate, burstiness=burstiness, seed=seed)))
    unit = gaps * rate * burstiness
    assert _distance(gaps, _gamma_distribution(unit, burstiness)) < CRITICAL
    assert _distance(gaps, _gamma_distribution(unit, burstiness * 1.1)) > CRITICAL, "10 % off would be seen"
    assert gaps.mean() == pytest.approx(1 / rate, rel=5 / math.sqrt(burstiness * NUM))


def test_a_burstiness_of_one_is_poisson() -> None:
    assert (_times(kind="gamma", rate=3, burstiness=1) == _times(kind="poisson", rate=3)).all()


def test_another_rate_stretches_the_same_draw() -> None:
    slow, fast = _times(kind="poisson", rate=2), _times(kind="poisson", rate=8)
    assert np.allclose(slow, fast * 4, atol=1e-8)


def test_an_even_ramp_inverts_the_integrated_rate() -> None:
    times = _times(100, kind="ramp", from_rate=1, to_rate=9, duration_s=10, spacing="even")
    rising = times[times <= 10]
    assert np.allclose(rising + 0.4 * rising**2, np.arange(len(rising)), atol=1e-6)  # t + 8 t² / 20
    assert len(rising) == 51 and np.allclose(np.diff(times[50:]), 1 / 9, atol=1e-8)


def test_a_ramp_may_fall_stay_and_end_with_the_last_request() -> None:
    falling = _times(51, kind="ramp", from_rate=9, to_rate=1, spacing="even")
    assert falling[-1] == pytest.approx(10.0)
    assert np.diff(falling)[0] < 0.12 and np.diff(falling)[-1] > 0.6
    level = _times(51, kind="ramp", from_rate=4, to_rate=4, spacing="even")
    assert np.allclose(level, np.arange(51) / 4)
    assert _times(1, kind="ramp", from_rate=4, to_rate=4).tolist() == [0.0]


def test_a_poisson_ramp_is_poisson_on_the_clock_of_its_rate() -> None:
    times = _times(kind="ramp", from_rate=2, to_rate=20, duration_s=1000)
    inside = times[times <= 1000]
    assert 9_000 < len(inside) < 13_000
    gaps = np.sort(np.diff(2 * inside + 18 * inside**2 / 2000))
    assert _distance(gaps, -np.expm1(-gaps)) < CRITICAL


@given(
    count=st.integers(1, 300),
    keys=st.sampled_from(
        [
            {"kind": "all_at_once"},
            {"kind": "closed_loop", "concurrency": 3},
            {"kind": "constant", "rate": 7},
            {"kind": "poisson", "rate": 7},
            {"kind": "gamma", "rate": 7, "burstiness": 0.001},
            {"kind": "gamma", "rate": 7, "burstiness": 1e6},
            {"kind": "ramp", "from_rate": 1e-9, "to_rate": 1e9},
            {"kind": "ramp", "from_rate": 1e9, "to_rate": 1e-9, "duration_s": 1e-9},
        ]
    ),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_times_are_finite_start_at_nothing_and_never_go_back(
    count: int, keys: dict[str, object], seed: int
) -> None:
    times = _times(count, seed, **keys)
    assert len(times) == count and times[0] == 0.0
    assert np.isfinite(times).all() and (np.diff(times) >= 0).all()


def test_a_limit_stands_with_every_kind_that_a_clock_drives() -> None:
    assert most_at_once(_arrivals(kind="poisson", rate=1)) is None
    assert most_at_once(_arrivals(kind="poisson", rate=1, max_concurrency=4)) == 4
    assert most_at_once(_arrivals(kind="closed_loop", concurrency=5)) == 5
    with pytest.raises(ValidationError, match="unknown"):
        _arrivals(kind="closed_loop", concurrency=5, max_concurrency=4)


def test_the_pace_is_part_of_the_hash(tmp_path: Path) -> None:
    kinds = (
        "{kind: all_at_once}",
        "{kind: all_at_once, max_concurrency: 2}",
        "{kind: closed_loop, concurrency: 2}",
        "{kind: closed_loop, concurrency: 3}",
        "{kind: poisson, rate: 9}",
        "{kind: gamma, rate: 9, burstiness: 2}",
        "{kind: ramp, from_rate: 5, to_rate: 9}",
    )
    hashes = {built(tmp_path, f"traffic.arrivals={kind}").hash for kind in kinds}
    assert len(hashes) == len(kinds)


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        (
            "{kind: closed_loop, concurrency: 2}",
            "closed loop: a request is sent, and due, when one of 2 places",
        ),
        (
            "{kind: constant, rate: 8, max_concurrency: 3}",
            "at most 3 requests at once: one that waits longer",
        ),
        ("{kind: poisson, rate: 8}", "poisson arrivals: 4 requests within "),
    ],
)
def test_the_pace_is_said(kind: str, note: str, tmp_path: Path) -> None:
    assert note in "\n".join(built(tmp_path, f"traffic.arrivals={kind}").notes)


def test_lengths_without_times_are_replayed_by_a_process(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(VIDUR_LENGTHS)
    arrivals = "{kind: trace, path: trace.csv, length_scale: 0.1, process: {kind: constant, rate: 2}}"
    text = f"name: a\nmodel: tiny-qwen3\ntraffic:\n  arrivals: {arrivals}\n"
    workload = built(tmp_path, text=text)
    assert [item.arrival_s for item in workload.requests] == [0.0, 0.5, 1.0]
    assert [len(item.request.prompt) for item in workload.requests] == [77, 95, 97]
    assert "times from traffic.arrivals.process (constant), not from the trace" in workload.notes


@pytest.mark.parametrize(
    "options",
    [
        ("traffic.arrivals={kind: poisson, rate: 3}",),
        (
            "traffic.arrivals={kind: gamma, rate: 3, burstiness: 0.3}",
            "traffic.prompt_tokens={lognormal: {median: 9, sigma: 1, max: 40}}",
        ),
        (
            "traffic.arrivals={kind: ramp, from_rate: 1, to_rate: 5}",
            'traffic.output_tokens={histogram: {"3": 1, "8": 2}}',
        ),
        (
            "traffic.arrivals={kind: closed_loop, concurrency: 2}",
            "traffic.images_per_request={uniform: [1, 3]}",
        ),
    ],
    ids=["poisson", "gamma", "ramp", "closed loop"],
)
def test_times_and_lengths_are_the_same_in_every_process(options: tuple[str, ...], tmp_path: Path) -> None:
    case = built_case(tmp_path, *options, text=GOOD)
    (printed,) = printed_by_fresh_processes(tmp_path / "scenario.yaml", options, 7)
    assert printed.split()[0] == build_workload(case, 7).hash
