"""What traffic.sampling makes of each request, and what seeds promise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from bad_inputs import GOOD
from built_cases import built, built_case

from runner.core import SamplingParams
from runner.models import TINY_QWEN3
from suite.arms import named_arm
from suite.errors import SuiteError
from suite.explain import explain_steps
from suite.sampling import Sampling, lasting_token
from suite.scenario import dump_scenario, expand, load_scenario
from suite.workload import Workload

WARM = "traffic.sampling.temperature=0.8"
ALL = (
    "traffic.sampling={temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, repetition_penalty: 1.1, "
    "presence_penalty: 0.5, frequency_penalty: -0.5, bad_words: [7, [8, 9]], logprobs: 0, "
    "stop_token_ids: [11, 12], min_tokens: 2}"
)


def _params(workload: Workload) -> list[SamplingParams]:
    return [item.request.sampling for item in workload.requests]


def test_requests_are_greedy_unless_asked_otherwise(tmp_path: Path) -> None:
    assert all(params.is_plain for params in _params(built(tmp_path)))


def test_every_request_carries_what_the_scenario_says(tmp_path: Path) -> None:
    for params in _params(built(tmp_path, ALL)):
        assert replace(params, seed=0) == SamplingParams(
            max_tokens=8,
            ignore_eos=True,
            temperature=0.8,
            top_k=40,
            top_p=0.95,
            min_p=0.05,
            repetition_penalty=1.1,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            bad_words=((7,), (8, 9)),
            logprobs=0,
            stop_token_ids=(11, 12),
            min_tokens=2,
        )


def test_no_two_requests_share_their_noise_and_the_same_seed_gives_it_again(tmp_path: Path) -> None:
    seeds = [params.seed for params in _params(built(tmp_path, WARM, "traffic.num_requests=500"))]
    assert len(set(seeds)) == 500
    again = [params.seed for params in _params(built(tmp_path, WARM, "traffic.num_requests=500"))]
    other = [params.seed for params in _params(built(tmp_path, WARM, seed=8))]
    assert seeds == again and not set(seeds) & set(other)


def test_a_seed_that_is_given_is_what_every_request_sends(tmp_path: Path) -> None:
    params = _params(built(tmp_path, WARM, "traffic.sampling.seed=42"))
    assert [one.seed for one in params] == [42] * 4


def test_sampling_leaves_prompts_lengths_and_seeds_as_they_were(tmp_path: Path) -> None:
    for one, other in zip(built(tmp_path).requests, built(tmp_path, ALL).requests, strict=True):
        assert one.request.prompt == other.request.prompt and one.arrival_s == other.arrival_s
        assert one.request.sampling.seed == other.request.sampling.seed


def test_the_hash_covers_every_key_of_sampling(tmp_path: Path) -> None:
    changes = (
        "temperature: 0.8",
        "top_k: 40",
        "top_p: 0.9",
        "min_p: 0.1",
        "repetition_penalty: 1.1",
        "presence_penalty: 1",
        "frequency_penalty: 1",
        "bad_words: [7]",
        "bad_words: [[7, 8]]",
        "logprobs: 0",
        "logprobs: 1",
        "stop_token_ids: [7]",
        "min_tokens: 3",
        "seed: 3",
    )
    hashes = {built(tmp_path, f"traffic.sampling={{{change}}}").hash for change in changes}
    assert len(hashes | {built(tmp_path).hash}) == len(changes) + 1
    covered = {change.partition(":")[0] for change in changes}
    assert covered == set(Sampling.model_fields), "a new key belongs here"


def test_what_is_not_at_its_default_is_told(tmp_path: Path) -> None:
    assert not any("sampling" in note for note in built(tmp_path).notes)
    assert "temperature 0.8, top_p 0.9" in built(tmp_path, WARM, "traffic.sampling.top_p=0.9").notes[-1]


def test_what_a_greedy_choice_makes_no_use_of_is_noted(tmp_path: Path) -> None:
    greedy = built(tmp_path, "traffic.sampling={top_p: 0.9, top_k: 5, logprobs: 1}").notes
    assert greedy[-1] == "traffic.sampling.temperature is 0 (greedy): top_k, top_p change nothing"
    assert not any("greedy" in note for note in built(tmp_path, "traffic.sampling.logprobs=1").notes)


def test_a_sweep_over_sampling_makes_a_case_a_value(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(
        GOOD + "sweep:\n  traffic.sampling: [{}, {top_k: 5}]\n  runner.prefix_caching: [false, true]\n"
    )
    scenario = load_scenario(path)
    cases = expand(scenario)
    assert [case.scenario.traffic.sampling.top_k for case in cases] == [0, 0, 5, 5]
    assert [case.runner_config.prefix_caching for case in cases] == [False, True, False, True]
    assert len({case.case_id for case in cases}) == 4
    again = tmp_path / "again.yaml"
    again.write_text(dump_scenario(scenario))
    assert [case.case_id for case in expand(load_scenario(again))] == [case.case_id for case in cases]


def test_a_dumped_scenario_keeps_its_sampling_and_features(tmp_path: Path) -> None:
    shared = "traffic.shared_prefix={groups: 2, tokens: {uniform: [3, 8]}, images: shared}"
    scenario = built_case(tmp_path, ALL, shared, "runner.num_speculative_tokens=3").scenario
    again = tmp_path / "again.yaml"
    again.write_text(dump_scenario(scenario))
    assert load_scenario(again).model_dump(exclude={"path"}) == scenario.model_dump(exclude={"path"})


def test_the_token_that_stands_for_output_ends_no_request(tmp_path: Path) -> None:
    sampling = Sampling.model_validate({"stop_token_ids": [0, 2, 3]})
    assert lasting_token(sampling, TINY_QWEN3) == 4  # and 1 is its EOS
    overrides = ("traffic.sampling.stop_token_ids=[0, 2]", "traffic.ignore_eos=false")
    stopped = explain_steps(built_case(tmp_path, *overrides), named_arm("sync-ids"))
    assert len(stopped) == len(explain_steps(built_case(tmp_path), named_arm("sync-ids")))


def test_sequences_whose_ids_and_samples_exceed_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * 2**20))
    fine = ("runner.num_blocks=64", "runner.num_resident_rows=256")
    assert built_case(tmp_path, *fine)
    with pytest.raises(
        SuiteError, match=r"runner\.max_num_seqs is 256; the ids and samples of each sequence"
    ):
        built_case(tmp_path, *fine, "runner.max_num_seqs=256", "runner.num_speculative_tokens=256")
