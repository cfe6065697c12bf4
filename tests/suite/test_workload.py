"""Workloads: ratios met exactly, prompts laid out for the model, and the same draw in every process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bad_inputs import AZURE, REPLAY
from built_cases import built, built_case
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config import RunnerConfig
from runner.inputs.arms import ARMS
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3
from suite.demand import plan_demand
from suite.errors import SuiteError
from suite.need import exact_share
from suite.traffic import Traffic
from suite.workload import build_workload

ROOT = Path(__file__).resolve().parents[2]
VISION = TINY_GEMMA3_VL.vision
assert VISION is not None


@given(count=st.integers(1, 400), percent=st.integers(0, 100), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=60, deadline=None)
def test_ratios_are_met_exactly_with_half_rounded_up(count: int, percent: int, seed: int) -> None:
    traffic = Traffic.model_validate(
        {
            "num_requests": count,
            "prompt_tokens": {"uniform": [4, 9]},
            "output_tokens": 3,
            "multimodal_ratio": percent / 100,
            "images_per_request": {"uniform": [1, 3]},
        }
    )
    needs = plan_demand(traffic, TINY_GEMMA3_VL, RunnerConfig(), seed).needs
    assert len(needs) == count
    assert sum(need.num_images > 0 for need in needs) == (2 * count * percent + 100) // 200
    assert all(4 <= need.text_tokens <= 9 and need.num_images <= 3 for need in needs)


def test_a_half_is_rounded_up_and_decimals_are_taken_as_written() -> None:
    assert exact_share(5, 0.5) == 3
    assert exact_share(50, 0.29) == 15  # 14.5; as binary floats it is 14.499999999999998
    assert exact_share(1, 0.0) == 0


def test_a_prompt_holds_its_text_and_its_images_in_order(tmp_path: Path) -> None:
    workload = built(tmp_path, "traffic.multimodal_ratio=1", "traffic.images_per_request={uniform: [1, 3]}")
    block = VISION.placeholder_ids()
    for item in workload.requests:
        ids, images = item.request.prompt.token_ids, item.request.prompt.images
        starts = [index for index, token in enumerate(ids) if token == VISION.begin_token_id]
        assert len(starts) == len(images) >= 1
        assert all(ids[start : start + len(block)] == block for start in starts)
        text = [token for token in ids if token not in block]
        assert len(text) == len(ids) - len(images) * len(block)
        assert 8 <= len(text) <= 32
        assert item.kind == "image" and item.num_image_tokens == 16 * len(images)
        assert all(image.shape == VISION.image_shape for image in images)


def test_images_lie_at_different_places(tmp_path: Path) -> None:
    workload = built(tmp_path, "traffic.multimodal_ratio=1", "traffic.num_requests=40")
    places = {item.request.prompt.token_ids.index(VISION.begin_token_id) for item in workload.requests}
    assert 0 in places and len(places) > 8


def test_text_ids_are_drawn_from_all_of_the_vocabulary_but_reserved_ids(tmp_path: Path) -> None:
    workload = built(tmp_path, "model=tiny-qwen3", "traffic.multimodal_ratio=0", "traffic.num_requests=2000")
    drawn = {token for item in workload.requests for token in item.request.prompt.token_ids}
    assert not drawn & TINY_QWEN3.reserved_ids
    assert drawn == set(range(TINY_QWEN3.vocab_size)) - TINY_QWEN3.reserved_ids
    assert {item.kind for item in workload.requests} == {"text"}


def test_requests_are_numbered_in_order_of_arrival_with_their_sampling(tmp_path: Path) -> None:
    workload = built(tmp_path, "traffic.output_tokens={uniform: [2, 5]}", "traffic.ignore_eos=false")
    assert [item.request.request_id for item in workload.requests] == [
        f"request-{index:04d}" for index in range(4)
    ]
    assert [item.arrival_s for item in workload.requests] == [0.0, 0.125, 0.25, 0.375]
    assert all(2 <= item.request.sampling.max_tokens <= 5 for item in workload.requests)
    assert not any(item.request.sampling.ignore_eos for item in workload.requests)


def test_a_constant_rate_does_not_drift(tmp_path: Path) -> None:
    workload = built(
        tmp_path, "traffic.arrivals.rate=200", "traffic.num_requests=2001", "traffic.multimodal_ratio=0"
    )
    assert workload.requests[-1].arrival_s == 10.0


@pytest.mark.parametrize(("distinct", "expected"), [("null", 12), ("5", 5), ("99", 12)])
def test_as_many_different_images_as_asked_for(tmp_path: Path, distinct: str, expected: int) -> None:
    workload = built(
        tmp_path,
        "traffic.num_requests=12",
        "traffic.multimodal_ratio=1",
        f"traffic.distinct_images={distinct}",
    )
    keys = [image.key for item in workload.requests for image in item.request.prompt.images]
    assert len(keys) == 12 and len(set(keys)) == expected
    assert max(keys.count(key) for key in keys) == -(-12 // expected)


def test_the_hash_changes_with_whatever_is_run(tmp_path: Path) -> None:
    changes = (
        (),
        ("traffic.arrivals.rate=9",),
        ("traffic.output_tokens=9",),
        ("traffic.ignore_eos=false",),
        ("traffic.num_requests=5",),
        ("traffic.multimodal_ratio=0.75",),
        ("traffic.distinct_images=1",),
        ("traffic.prompt_tokens=20",),
    )
    hashes = {built(tmp_path, *change).hash for change in changes}
    hashes.add(built(tmp_path, seed=8).hash)
    assert len(hashes) == len(changes) + 1


def test_the_hash_does_not_change_with_what_is_not_run(tmp_path: Path) -> None:
    assert ARMS
    other = built(tmp_path, "rounds=9", "runner.max_num_seqs=2", "name=other")
    assert other.hash == built(tmp_path).hash


def test_the_same_seed_gives_the_same_workload_in_fresh_processes(tmp_path: Path) -> None:
    case = built_case(tmp_path, "traffic.images_per_request={uniform: [1, 3]}")
    program = (
        "import sys, random, numpy\n"
        "random.seed(); numpy.random.seed(None)\n"
        "from pathlib import Path\n"
        "from suite.scenario import expand, load_scenario\n"
        "from suite.workload import build_workload\n"
        "override = 'traffic.images_per_request={uniform: [1, 3]}'\n"
        "(case,) = expand(load_scenario(Path(sys.argv[1]), [override]))\n"
        "print(build_workload(case, 777).hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program, str(case.scenario.path)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2", "3")
    }
    assert hashes == {build_workload(case, 777).hash}


@given(seed=st.integers(0, 2**63 - 1))
@settings(max_examples=15, deadline=None)
def test_a_seed_gives_one_workload_and_another_seed_another(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case = built_case(tmp_path_factory.mktemp("seed"))
    assert build_workload(case, seed) == build_workload(case, seed)
    assert build_workload(case, seed).hash != build_workload(case, seed + 1).hash


def test_adding_images_leaves_text_and_lengths_as_they_were(tmp_path: Path) -> None:
    """So that the cases of a sweep over the ratio differ in their images alone."""
    plain = built(tmp_path, "traffic.multimodal_ratio=0")
    mixed = built(tmp_path, "traffic.multimodal_ratio=1")
    block = set(VISION.placeholder_ids())
    for one, other in zip(plain.requests, mixed.requests, strict=True):
        text = tuple(token for token in other.request.prompt.token_ids if token not in block)
        assert text == one.request.prompt.token_ids
        assert one.request.sampling == other.request.sampling


def test_a_replay_becomes_requests_with_notes(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(AZURE)
    workload = built(tmp_path, text=REPLAY)
    assert [len(item.request.prompt) for item in workload.requests] == [77, 95, 97]
    assert [item.arrival_s for item in workload.requests] == [0.0, 1.5, 1.5]
    assert [len(item.request.prompt.images) for item in workload.requests] == [0, 1, 2]
    assert "3 requests from trace.csv (format azure-lmm)" in workload.notes[0]


def test_a_trace_changed_after_the_scenario_was_read_is_still_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(AZURE)
    case = built_case(tmp_path, text=REPLAY)
    (tmp_path / "trace.csv").unlink()
    with pytest.raises(SuiteError, match=r"trace\.csv: cannot be read: No such file"):
        build_workload(case, 0)
