"""Numbers drawn for requests: within their bounds, as often as asked, the same for the same seed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from bad_inputs import GOOD
from built_cases import built
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.lengths import Lengths
from suite.scenario import dump_scenario, load_scenario
from suite.traffic import Traffic
from suite.weighted import WeightedValues

NUM = 20_000


def _lengths(kind: object) -> Lengths:
    lengths = Traffic.model_validate(
        {"num_requests": 1, "prompt_tokens": kind, "output_tokens": 1}
    ).prompt_tokens
    assert lengths is not None
    return lengths


def test_lognormal_lengths_have_their_median_and_spread() -> None:
    kind = {"lognormal": {"median": 400, "sigma": 0.5, "max": 1_000_000}}
    drawn = np.array(_lengths(kind).draw(np.random.default_rng(1), NUM))
    logs = np.log(drawn)
    assert np.median(drawn) == pytest.approx(400, rel=0.02)
    assert logs.std() == pytest.approx(0.5, rel=0.02)
    values = np.sort((logs - math.log(400)) / 0.5)
    normal = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in values])
    distance = np.abs(np.arange(1, NUM + 1) / NUM - normal).max()
    assert distance * math.sqrt(NUM) < 1.95 + 0.5, "0.1 % significance, and half a token of rounding"


def test_lognormal_lengths_outside_their_bounds_become_the_bound() -> None:
    lengths = _lengths({"lognormal": {"median": 100, "sigma": 2, "min": 50, "max": 200}})
    drawn = lengths.draw(np.random.default_rng(1), NUM)
    assert (min(drawn), max(drawn)) == (lengths.smallest, lengths.largest) == (50, 200)
    below = 0.5 * math.erfc(math.log(2) / 2 / math.sqrt(2))
    assert drawn.count(50) / NUM == pytest.approx(below, rel=0.05)


@given(
    median=st.floats(1, 1e6), sigma=st.floats(0, 10), seed=st.integers(0, 2**32), high=st.integers(1, 10**6)
)
@settings(max_examples=50, deadline=None)
def test_no_lognormal_length_leaves_its_bounds(median: float, sigma: float, seed: int, high: int) -> None:
    shape = {"median": min(median, float(high)), "sigma": sigma, "max": high}
    drawn = _lengths({"lognormal": shape}).draw(np.random.default_rng(seed), 50)
    assert all(type(value) is int and 1 <= value <= high for value in drawn)


def test_a_histogram_is_drawn_by_its_weights_in_whatever_order() -> None:
    lengths = _lengths({"histogram": {"512": 1, "16": 2, "128": 5}})
    assert (lengths.smallest, lengths.largest) == (16, 512)
    drawn = lengths.draw(np.random.default_rng(1), NUM)
    expected = {16: 0.25, 128: 0.625, 512: 0.125}
    statistic = sum(
        (drawn.count(value) - NUM * share) ** 2 / (NUM * share) for value, share in expected.items()
    )
    assert set(drawn) == set(expected) and statistic < 13.8, "chi squared of 2 degrees, at 0.1 %"
    turned = _lengths({"histogram": {"128": 5, "16": 2, "512": 1}})
    assert turned.draw(np.random.default_rng(1), NUM) == drawn


def test_a_weight_next_to_nothing_is_still_above_its_neighbour() -> None:
    drawn = WeightedValues({1: 1e-12, 2: 1.0, 3: 1e-12}).draw(np.random.default_rng(1), 1000)
    assert set(drawn.tolist()) == {2}


def test_the_bounds_are_what_a_request_is_held_against(tmp_path: Path) -> None:
    workload = built(
        tmp_path,
        "traffic.prompt_tokens={lognormal: {median: 20, sigma: 1, max: 60}}",
        'traffic.output_tokens={histogram: {"3": 1, "9": 1}}',
        "traffic.num_requests=60",
        "traffic.multimodal_ratio=0",
    )
    lengths = [len(item.request.prompt) for item in workload.requests]
    assert max(lengths) <= 60 and len(set(lengths)) > 15
    assert {item.request.sampling.max_tokens for item in workload.requests} == {3, 9}


def test_what_is_written_is_read_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(GOOD)
    overrides = (
        "traffic.prompt_tokens={lognormal: {median: 20, sigma: 1, max: 60}}",
        'traffic.output_tokens={histogram: {"3": 1, "9": 1}}',
        "traffic.arrivals={kind: ramp, from_rate: 1, to_rate: 4, spacing: even}",
    )
    scenario = load_scenario(path, overrides)
    (tmp_path / "again.yaml").write_text(dump_scenario(scenario))
    again = load_scenario(tmp_path / "again.yaml")
    assert again.traffic == scenario.traffic
