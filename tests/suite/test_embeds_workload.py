"""Requests that bring embeddings: exact shares, what is supplied, and the rows made for it."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from bad_inputs import GOOD, safetensors_bytes
from built_cases import built, built_case, printed_by_fresh_processes
from hypothesis import given
from hypothesis import strategies as st

from runner.admission import admit
from runner.config import RunnerConfig
from runner.core import Prompt
from runner.models import MODELS, TINY_GEMMA3_VL, ModelSpec
from suite.demand import plan_demand
from suite.scenario import expand, load_scenario
from suite.supplied import embedding_lookup
from suite.traffic import Traffic
from suite.workload import Workload, WorkloadRequest, build_workload, materialise

HIDDEN = TINY_GEMMA3_VL.hidden_size
ALL_KINDS = (
    "traffic.num_requests=40",
    "traffic.embeds_ratio=0.5",
    "traffic.embeds_kind={spliced: 0.5}",
)


def _embed(token_ids: Sequence[int], width: int = HIDDEN) -> np.ndarray:
    """A row that tells its id, never zero, with a spread of about one in all."""
    columns = np.arange(width, dtype=np.float32)
    return np.sin(np.asarray(token_ids, np.float32)[:, None] + 1 + columns).astype(np.float32)


def _rows(prompt: Prompt) -> np.ndarray:
    assert prompt.embeds is not None
    return np.frombuffer(prompt.embeds.data, np.float32).reshape(prompt.embeds.num_rows, HIDDEN)


def _pairs(workload: Workload) -> list[tuple[WorkloadRequest, WorkloadRequest]]:
    return list(zip(workload.requests, materialise(workload, _embed), strict=True))


def _half_up(count: int, percent: int) -> int:
    return (2 * count * percent + 100) // 200


@given(
    count=st.integers(1, 300),
    embeds=st.integers(0, 100),
    images=st.integers(0, 100),
    spliced=st.integers(0, 100),
    seed=st.integers(0, 2**63 - 1),
)
def test_both_ratios_and_the_spliced_share_are_met_exactly_and_told(
    count: int, embeds: int, images: int, spliced: int, seed: int
) -> None:
    traffic = Traffic.model_validate(
        {
            "num_requests": count,
            "prompt_tokens": {"uniform": [1, 9]},
            "output_tokens": 3,
            "multimodal_ratio": images / 100,
            "embeds_ratio": embeds / 100,
            "embeds_kind": {"spliced": spliced / 100},
        }
    )
    demand = plan_demand(traffic, TINY_GEMMA3_VL, RunnerConfig(), seed)
    given_embeds = [need for need in demand.needs if need.embeds]
    assert len(given_embeds) == _half_up(count, embeds)
    assert sum(need.num_images > 0 for need in demand.needs) == _half_up(count, images)
    beside = [need for need in given_embeds if need.num_images]
    assert all(need.embeds == "spliced" for need in beside), "an image stays where its placeholders are"
    alone = [need.embeds for need in given_embeds if not need.num_images]
    assert alone.count("spliced") == _half_up(len(alone), spliced)
    kinds = Counter(need.embeds for need in given_embeds)
    if given_embeds:
        assert f"{len(given_embeds)} of {count} requests bring embeddings" in demand.notes[-1]
        assert f"{kinds['pure']} pure, {kinds['spliced']} spliced" in demand.notes[-1]


def test_every_kind_of_request_is_named(tmp_path: Path) -> None:
    kinds = Counter(item.kind for item in built(tmp_path, *ALL_KINDS).requests)
    assert set(kinds) == {"text", "image", "pure", "spliced", "image+spliced"}
    assert kinds["pure"] + kinds["spliced"] + kinds["image+spliced"] == 20
    assert kinds["image"] + kinds["image+spliced"] == 20


def test_a_pure_prompt_is_its_ids_looked_up_and_nothing_else(tmp_path: Path) -> None:
    workload = built(tmp_path, "traffic.multimodal_ratio=0", "traffic.embeds_ratio=1")
    for ids, given_rows in _pairs(workload):
        assert (ids.kind, given_rows.kind) == ("pure", "pure")
        prompt = given_rows.request.prompt
        assert (prompt.kind, prompt.token_ids) == ("pure", ())
        assert ids.num_supplied == len(prompt) == len(ids.request.prompt)
        assert (_rows(prompt) == _embed(ids.request.prompt.token_ids)).all()
        assert given_rows.request.sampling == ids.request.sampling


def test_a_spliced_prompt_supplies_text_only_and_a_wrong_id_stands_beside_each_row(tmp_path: Path) -> None:
    workload = built(tmp_path, *ALL_KINDS, "traffic.embeds_kind=spliced")
    vision = TINY_GEMMA3_VL.vision
    assert vision is not None
    seen = 0
    for ids, spliced in _pairs(workload):
        if ids.embeds is None:
            assert spliced == ids
            continue
        prompt = spliced.request.prompt
        assert prompt.kind == "spliced" and prompt.embeds is not None and prompt.embeds.mask is not None
        is_supplied = np.frombuffer(prompt.embeds.mask, np.bool_)
        right, beside = np.array(ids.request.prompt.token_ids), np.array(prompt.token_ids)
        assert 0 < is_supplied.sum() == ids.num_supplied < len(right)
        assert (beside[~is_supplied] == right[~is_supplied]).all()
        assert (beside[is_supplied] != right[is_supplied]).all()
        reserved = sorted(TINY_GEMMA3_VL.reserved_ids)
        assert not np.isin([right[is_supplied], beside[is_supplied]], reserved).any()
        assert (_rows(prompt)[is_supplied] == _embed(right[is_supplied].tolist())).all()
        assert not _rows(prompt)[~is_supplied].any()
        assert prompt.images == ids.request.prompt.images
        seen += bool(prompt.images)
    assert seen > 5


def test_supplied_positions_come_in_runs_early_and_late(tmp_path: Path) -> None:
    workload = built(
        tmp_path,
        "traffic.num_requests=200",
        "traffic.multimodal_ratio=0",
        "traffic.embeds_ratio=1",
        "traffic.embeds_kind=spliced",
    )
    masks = [np.frombuffer(item.embeds.mask, np.uint8) for item in workload.requests if item.embeds]
    runs = Counter(int((np.diff(mask, prepend=0) == 1).sum()) for mask in masks)
    assert set(runs) == {1, 2, 3} and min(runs.values()) > 20
    assert 20 < sum(mask[0] for mask in masks) < 180
    assert 20 < sum(mask[-1] for mask in masks) < 180
    assert 0.3 < np.mean([mask.mean() for mask in masks]) < 0.7


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_shortest_prompts_can_be_spliced(length: int, tmp_path: Path) -> None:
    workload = built(
        tmp_path,
        f"traffic.prompt_tokens={length}",
        "traffic.num_requests=20",
        "traffic.multimodal_ratio=0",
        "traffic.embeds_ratio=1",
        "traffic.embeds_kind=spliced",
    )
    supplied = {item.num_supplied for item in workload.requests}
    assert supplied == ({1} if length == 1 else set(range(1, length)))


@pytest.mark.parametrize("model", sorted(MODELS))
def test_the_runner_admits_every_request_on_every_model(model: str, tmp_path: Path) -> None:
    ratio = 0.5 if MODELS[model].is_multimodal else 0
    case = built_case(tmp_path, *ALL_KINDS, f"model={model}", f"traffic.multimodal_ratio={ratio}")
    workload = build_workload(case, 0)
    for item in materialise(workload, partial(_embed, width=MODELS[model].hidden_size)):
        state = admit(item.request, case.model_spec, case.runner_config)
        assert sum(span.count for span in state.spans) == item.num_image_tokens


def test_noise_has_the_asked_spread_on_supplied_rows_only(tmp_path: Path) -> None:
    options = (*ALL_KINDS, "traffic.embeds_kind=spliced")
    plain, noisy = built(tmp_path, *options), built(tmp_path, *options, "traffic.embeds_noise=0.25")
    shares = []
    for before, after in zip(materialise(plain, _embed), materialise(noisy, _embed), strict=True):
        if before.embeds is None:
            continue
        supplied = np.frombuffer(before.embeds.mask, np.bool_)
        change = _rows(after.request.prompt) - _rows(before.request.prompt)
        assert not change[~supplied].any()
        shares.append(change[supplied].std() / _rows(before.request.prompt)[supplied].std())
    assert np.allclose(shares, 0.25, rtol=0.2) and abs(np.mean(shares) - 0.25) < 0.01
    assert materialise(noisy, _embed) == materialise(noisy, _embed)
    assert "noise of 0.25 of their own spread" in noisy.notes[-1]


def test_embeddings_leave_ids_lengths_and_images_as_they_were(tmp_path: Path) -> None:
    """So that the cases of a sweep over the ratio differ in how prompts are handed over alone."""
    plain = built(tmp_path, "traffic.num_requests=40")
    half = built(tmp_path, *ALL_KINDS)
    all_of_them = built(tmp_path, *ALL_KINDS, "traffic.embeds_ratio=1")
    for one, other, third in zip(plain.requests, half.requests, all_of_them.requests, strict=True):
        assert one.request == other.request == third.request
        assert third.embeds is not None and (other.embeds is None or other.embeds == third.embeds)


def test_the_hash_covers_which_positions_are_supplied_and_the_noise(tmp_path: Path) -> None:
    changes = (
        (),
        ("traffic.embeds_ratio=0.25",),
        ("traffic.embeds_kind=pure",),
        ("traffic.embeds_kind=spliced",),
        ("traffic.embeds_noise=0.1",),
        ("traffic.embeds_noise=0.2",),
    )
    hashes = {built(tmp_path, *ALL_KINDS, *change).hash for change in changes}
    hashes.add(built(tmp_path, *ALL_KINDS, seed=8).hash)
    assert len(hashes) == len(changes) + 1


def test_the_same_seed_gives_the_same_rows_in_fresh_processes_and_no_torch(tmp_path: Path) -> None:
    options = (*ALL_KINDS, "traffic.embeds_noise=0.5")
    case = built_case(tmp_path, *options)
    printed = printed_by_fresh_processes(case.scenario.path, options, seed=777)
    assert len(printed) == 1
    (text,) = printed
    assert text.split()[0] == build_workload(case, 777).hash
    assert text.endswith("False"), "drawing a workload imported torch"


@pytest.mark.parametrize("model", sorted(MODELS.values(), key=lambda spec: spec.name), ids=lambda m: m.name)
def test_the_lookup_gives_what_the_model_would_look_up(model: ModelSpec) -> None:
    embed = embedding_lookup(model)
    rows = embed([5, 6, 5])
    assert rows.shape == (3, model.hidden_size) and rows.dtype == np.float32
    assert (rows[0] == rows[2]).all() and (rows[0] != rows[1]).any()
    scale = model.hidden_size**0.5 if model.family == "gemma3" else 1.0
    assert rows.std() == pytest.approx(model.weight_std * scale, rel=0.15)


def _files(folder: Path, *lengths: int) -> str:
    for length in lengths:
        name = folder / f"rows{length}.safetensors"
        name.write_bytes(safetensors_bytes((length, HIDDEN), float(length)))
    return f"traffic.embeds_files=[{', '.join(f'rows{length}.safetensors' for length in lengths)}]"


def test_each_file_is_one_pure_prompt_beside_the_others(tmp_path: Path) -> None:
    option = _files(tmp_path, 3, 5)
    workload = built(tmp_path, option, "arms=[fused, refresh]")
    pure = [item for item in materialise(workload, _embed) if item.kind == "pure"]
    assert {len(item.request.prompt) for item in pure} == {3, 5}
    for item in pure:
        rows = _rows(item.request.prompt)
        assert (rows == len(rows)).all() and item.num_supplied == len(rows)
        assert item.request.sampling.max_tokens == 8
    assert Counter(item.kind for item in workload.requests) == {"pure": 2, "image": 2}
    assert workload.notes[-1] == "2 of 4 requests bring embeddings, pure, from traffic.embeds_files"


def test_a_file_is_known_by_its_bytes_and_not_by_its_path(tmp_path: Path) -> None:
    seen = []
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.safetensors").write_bytes(safetensors_bytes((4, HIDDEN), value))
        case = built_case(folder, "arms=[fused]", f"traffic.embeds_files=[{name}.safetensors]")
        seen.append((case.case_id, build_workload(case, 0).hash))
    assert seen[0] == seen[1] and seen[1][0] != seen[2][0] and seen[1][1] != seen[2][1]


def test_swept_files_are_found_and_labelled_by_name(tmp_path: Path) -> None:
    _files(tmp_path, 3, 5)
    sweep = "sweep:\n  traffic.embeds_files: [[rows3.safetensors], [rows3.safetensors, rows5.safetensors]]\n"
    path = tmp_path / "scenario.yaml"
    path.write_text(GOOD.replace("rounds: 2", "arms: [fused]") + sweep)
    cases = expand(load_scenario(path))
    assert [case.label for case in cases] == [
        "embeds_files=['rows3.safetensors']",
        "embeds_files=['rows3.safetensors', 'rows5.safetensors']",
    ]
    assert cases[0].scenario.traffic.embeds_files == (str(tmp_path / "rows3.safetensors"),)


def test_a_cast_is_noted(tmp_path: Path) -> None:
    (tmp_path / "half.safetensors").write_bytes(safetensors_bytes((4, HIDDEN // 2), 1.0, "F16"))
    wide = safetensors_bytes((2, HIDDEN), 0.0).replace(b'"F32", "shape": [2,', b'"F16", "shape": [4,')
    (tmp_path / "half.safetensors").write_bytes(wide)
    workload = built(tmp_path, "arms=[fused]", "traffic.embeds_files=[half.safetensors]")
    assert workload.notes[-1] == "half.safetensors: float16 rows cast to float32"
