"""Requests that begin alike: spread exactly, and equal to the bit at shared positions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from bad_inputs import AZURE, GOOD, REPLAY, safetensors_bytes
from built_cases import built, built_case, printed_by_fresh_processes
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config import RunnerConfig
from runner.models import TINY_GEMMA3_VL
from suite.demand import plan_demand
from suite.need import Need
from suite.traffic import Traffic
from suite.workload import Workload, WorkloadRequest, build_workload, materialise

HIDDEN = TINY_GEMMA3_VL.hidden_size
VISION = TINY_GEMMA3_VL.vision
assert VISION is not None
NO_IMAGES = "traffic.multimodal_ratio=0"
MANY = ("traffic.num_requests=40", "traffic.prompt_tokens={uniform: [24, 48]}")
SHARED = "traffic.shared_prefix={groups: 3, tokens: 20}"
EMBEDS = ("traffic.embeds_ratio=0.75", "traffic.embeds_kind={spliced: 0.5}", "traffic.embeds_noise=0.2")


def _needs(folder: Path, *overrides: str, text: str = GOOD) -> tuple[Need, ...]:
    case = built_case(folder, *overrides, text=text)
    return plan_demand(case.scenario.traffic, case.model_spec, case.runner_config, 7).needs


def _embed(token_ids: Sequence[int]) -> np.ndarray:
    columns = np.arange(HIDDEN, dtype=np.float32)
    return np.sin(np.asarray(token_ids, np.float32)[:, None] + 1 + columns).astype(np.float32)


def _groups(workload: Workload, num_shared: int) -> dict[tuple[int, ...], list[WorkloadRequest]]:
    """Requests by the ids they begin with."""
    found = defaultdict(list)
    for item in workload.requests:
        found[item.request.prompt.token_ids[:num_shared]].append(item)
    return found


@given(count=st.integers(1, 60), groups=st.integers(1, 70), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=40, deadline=None)
def test_no_request_is_lost_and_groups_differ_by_one_at_most(count: int, groups: int, seed: int) -> None:
    traffic = Traffic.model_validate(
        {
            "num_requests": count,
            "prompt_tokens": {"uniform": [2, 9]},
            "output_tokens": 3,
            "shared_prefix": {"groups": groups, "tokens": {"uniform": [1, 9]}},
        }
    )
    needs = plan_demand(traffic, TINY_GEMMA3_VL, RunnerConfig(), seed).needs
    assert len(needs) == count
    sizes = Counter(need.prefix.group for need in needs if need.prefix)
    assert sizes.total() == count and len(sizes) == min(count, groups)
    assert max(sizes.values()) - min(sizes.values()) <= 1
    lengths = {(need.prefix.group, need.prefix.group_tokens) for need in needs if need.prefix}
    assert len(lengths) == len(sizes), "one length a group"
    assert all(need.prefix and 1 <= need.prefix.num_tokens <= need.text_tokens for need in needs)


def test_requests_of_a_group_begin_alike_and_go_on_apart(tmp_path: Path) -> None:
    workload = built(tmp_path, *MANY, SHARED, NO_IMAGES)
    groups = _groups(workload, 20)
    assert sorted(len(group) for group in groups.values()) == [13, 13, 14]
    rests = [item.request.prompt.token_ids[20:] for item in workload.requests]
    assert len(set(rests)) == 40
    assert len({rest[0] for rest in rests}) > 30
    assert "40 requests in 3 groups of 13 to 14 begin with their group's 20 text tokens" in workload.notes[1]


def test_a_shared_prefix_leaves_lengths_and_the_rest_as_they_were(tmp_path: Path) -> None:
    plain = built(tmp_path, *MANY, NO_IMAGES)
    shared = built(tmp_path, *MANY, NO_IMAGES, SHARED)
    for one, other in zip(plain.requests, shared.requests, strict=True):
        assert one.request.prompt.token_ids[20:] == other.request.prompt.token_ids[20:]
        assert one.request.sampling == other.request.sampling
    assert plain.hash != shared.hash


def test_text_shorter_than_its_prefix_is_the_beginning_of_it_and_is_told(tmp_path: Path) -> None:
    options = ("traffic.num_requests=12", "traffic.prompt_tokens={uniform: [8, 32]}", NO_IMAGES)
    workload = built(tmp_path, *options, "traffic.shared_prefix={groups: 1, tokens: 30}")
    prompts = [item.request.prompt.token_ids for item in workload.requests]
    longest = max(prompts, key=len)
    assert all(longest[: min(len(ids), 30)] == ids[:30] for ids in prompts)
    short = sum(len(ids) < 30 for ids in prompts)
    assert short and f"all of it shared: {short}" in workload.notes[2]


def test_more_groups_than_requests_share_nothing_and_say_so(tmp_path: Path) -> None:
    options = ("traffic.num_requests=2", NO_IMAGES, "traffic.shared_prefix={groups: 3, tokens: 8}")
    workload = built(tmp_path, *options)
    assert len(workload.requests) == 2 and len(_groups(workload, 8)) == 2
    assert "leaves one request to a group: none shares" in workload.notes[-1]


def test_own_images_stand_behind_shared_text(tmp_path: Path) -> None:
    workload = built(tmp_path, *MANY, SHARED, "traffic.multimodal_ratio=1")
    assert sorted(len(group) for group in _groups(workload, 20).values()) == [13, 13, 14]
    starts = {item.request.prompt.token_ids.index(VISION.begin_token_id) for item in workload.requests}
    assert min(starts) >= 20 and len(starts) > 5
    keys = {item.request.prompt.images[0].key for item in workload.requests}
    assert len(keys) == 40


def test_shared_images_are_the_groups_and_stand_right_behind_its_text(tmp_path: Path) -> None:
    images = "traffic.images_per_request={uniform: [1, 2]}"
    shared = "traffic.shared_prefix={groups: 3, tokens: 20, images: shared}"
    workload = built(tmp_path, *MANY, shared, images)
    with_images = [item for item in workload.requests if item.request.prompt.images]
    assert len(with_images) == 20, "the ratio is met as ever"
    by_group: dict[tuple[int, ...], set[tuple[str, ...]]] = defaultdict(set)
    for item in with_images:
        prompt = item.request.prompt
        assert prompt.token_ids[20 : 20 + 18] == VISION.placeholder_ids()
        by_group[prompt.token_ids[:20]].add(tuple(image.key for image in prompt.images))
    assert len(by_group) == 3
    for keys in by_group.values():
        longest = max(keys, key=len)
        assert keys <= {longest, longest[:1]} and len(set(longest)) == len(longest)
    firsts = {max(keys, key=len)[0] for keys in by_group.values()}
    assert len(firsts) == 3


def _rows_and_ids(item: WorkloadRequest, first: int) -> tuple[bytes, bytes, tuple[int, ...]]:
    """What a request hands over at its first positions: rows, mask, ids."""
    prompt = item.request.prompt
    assert prompt.embeds is not None
    rows = np.frombuffer(prompt.embeds.data, np.float32).reshape(len(prompt), HIDDEN)[:first]
    return rows.tobytes(), (prompt.embeds.mask or b"")[:first], prompt.token_ids[:first]


@pytest.mark.parametrize("images", ["own", "shared"])
def test_what_a_group_supplies_is_equal_to_the_bit_noise_included(tmp_path: Path, images: str) -> None:
    shared = f"traffic.shared_prefix={{groups: 3, tokens: 20, images: {images}}}"
    workload = built(tmp_path, *MANY, *EMBEDS, shared, "traffic.num_requests=120")
    handed = defaultdict(list)
    for plain, item in zip(workload.requests, materialise(workload, _embed), strict=True):
        if item.embeds is not None:
            kind = "pure" if item.kind == "pure" else "spliced"
            handed[plain.request.prompt.token_ids[:20], kind].append(_rows_and_ids(item, 20))
    assert {kind for _, kind in handed} == {"pure", "spliced"} and len(handed) == 6
    assert all(len(given) > 1 and len(set(given)) == 1 for given in handed.values())
    assert len({given[0] for given in handed.values()}) == 6


def test_noise_behind_a_shared_prefix_is_each_requests_own(tmp_path: Path) -> None:
    options = ("traffic.embeds_ratio=1", "traffic.embeds_noise=0.2", "traffic.embeds_kind=pure")
    workload = built(tmp_path, *MANY, NO_IMAGES, SHARED, *options)
    noises = []
    for plain, item in zip(workload.requests, materialise(workload, _embed), strict=True):
        ids, embeds = plain.request.prompt.token_ids, item.request.prompt.embeds
        assert embeds is not None
        noise = np.frombuffer(embeds.data, np.float32).reshape(len(ids), HIDDEN) - _embed(ids)
        assert 0.17 < noise[20:].std() / _embed(ids[20:]).std() < 0.23
        assert 0.17 < noise[:20].std() / _embed(ids[:20]).std() < 0.23
        noises.append(noise[20].tobytes())
    assert len(set(noises)) == 40


def test_a_spliced_prompt_is_well_formed_however_its_prefix_is_cut(tmp_path: Path) -> None:
    options = ("traffic.prompt_tokens={uniform: [1, 12]}", "traffic.num_requests=300", NO_IMAGES)
    embeds = ("traffic.embeds_ratio=1", "traffic.embeds_kind=spliced")
    for tokens in (1, 2, 12):
        shared = f"traffic.shared_prefix={{groups: 40, tokens: {tokens}}}"
        for item in built(tmp_path, *options, *embeds, shared).requests:
            assert item.embeds is not None
            mask = np.frombuffer(item.embeds.mask, np.bool_)
            ids, beside = np.array(item.request.prompt.token_ids), np.array(item.embeds.decoy_ids)
            assert len(mask) == len(ids) and mask.sum() == item.num_supplied >= 1
            assert not mask.all() or len(ids) == 1
            assert (beside[mask] != ids[mask]).all() and (beside[~mask] == ids[~mask]).all()


def test_a_prompt_from_a_file_shares_nothing_and_the_others_are_spread_without_it(tmp_path: Path) -> None:
    (tmp_path / "rows.safetensors").write_bytes(safetensors_bytes((4, HIDDEN), 0.5))
    options = ("traffic.num_requests=7", NO_IMAGES, "traffic.embeds_files=[rows.safetensors]", "arms=[fused]")
    needs = _needs(tmp_path, *options, "traffic.shared_prefix={groups: 2, tokens: 8}")
    assert [need.prefix for need in needs if need.rows] == [None]
    assert sorted(Counter(need.prefix.group for need in needs if need.prefix).values()) == [3, 3]


def test_a_replayed_trace_shares_as_well(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(AZURE)
    workload = built(tmp_path, "traffic.shared_prefix={groups: 1, tokens: 50}", text=REPLAY)
    assert len(workload.requests) == 3 and len(_groups(workload, 50)) == 1
    assert [len(item.request.prompt) for item in workload.requests] == [77, 95, 97]


def test_the_hash_covers_groups_lengths_and_images(tmp_path: Path) -> None:
    changes = ("groups: 3, tokens: 20", "groups: 4, tokens: 20", "groups: 3, tokens: 21")
    hashes = {built(tmp_path, *MANY, f"traffic.shared_prefix={{{change}}}").hash for change in changes}
    hashes.add(built(tmp_path, *MANY, "traffic.shared_prefix={groups: 3, tokens: 20, images: shared}").hash)
    hashes.add(built(tmp_path, *MANY, SHARED, seed=8).hash)
    hashes.add(built(tmp_path, *MANY).hash)
    assert len(hashes) == 6


def test_the_same_seed_gives_the_same_sharing_in_fresh_processes(tmp_path: Path) -> None:
    options = (
        *MANY,
        *EMBEDS,
        "traffic.shared_prefix={groups: 3, tokens: {uniform: [4, 24]}, images: shared}",
        "traffic.sampling={temperature: 1.0}",
    )
    case = built_case(tmp_path, *options)
    printed = printed_by_fresh_processes(case.scenario.path, options, seed=777)
    (text,) = printed
    assert text.split()[0] == build_workload(case, 777).hash
