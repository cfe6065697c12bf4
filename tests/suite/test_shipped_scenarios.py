"""The scenarios in the repository hold what their descriptions say."""

from collections import Counter
from pathlib import Path

import pytest

from runner.inputs.arms import ARMS
from runner.real_shapes import REAL_SHAPES
from suite.attribution import ONE_CHOICE, SWITCH
from suite.break_even import TWINS
from suite.ratios import MIN_ROUNDS
from suite.scenario import expand, load_scenario, missing_requirements
from suite.workload import build_workload

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_case_of_every_scenario_can_be_built(path: Path) -> None:
    for case in expand(load_scenario(path)):
        assert build_workload(case, case.scenario.seed).requests
        assert case.scenario.name == path.stem


def test_attribution_has_every_arm_of_its_table_on_steps_of_both_kinds() -> None:
    scenario = load_scenario(SCENARIOS / "attribution.yaml")
    half, none = expand(scenario)
    needed = {arm for pair in (*ONE_CHOICE, SWITCH) for arm in (pair.over, pair.under)}
    assert needed <= set(scenario.arms) and scenario.rounds >= MIN_ROUNDS and scenario.aa
    for case, kinds in ((half, {"spliced", "image+spliced"}), (none, {"text", "image"})):
        workload = build_workload(case, scenario.seed)
        measured = [step for step in workload.steps if not step.is_lead_in]
        assert Counter(step.kind for step in measured) == {"decode": 20, "mixed": 5}
        assert {item.kind for item in workload.requests} == kinds


def test_break_even_sweeps_images_embeddings_and_rows_over_an_arm_and_its_twin() -> None:
    scenario = load_scenario(SCENARIOS / "large" / "break-even.yaml")
    assert tuple(reversed(scenario.arms)) in TWINS and scenario.rounds >= MIN_ROUNDS and scenario.aa
    swept = ["traffic.multimodal_ratio", "traffic.embeds_ratio", "runner.max_num_seqs"]
    assert list(scenario.sweep) == swept and len(expand(scenario)) == 27


def test_fence_compares_both_places_beside_an_arm_that_no_fence_touches() -> None:
    scenario = load_scenario(SCENARIOS / "large" / "fence.yaml")
    cases = expand(scenario)
    assert [case.runner_config.fence for case in cases] == ["uploads", "embeddings"]
    assert scenario.arms[0] == "sync-rows" and scenario.rounds >= MIN_ROUNDS and scenario.aa
    for case in cases:
        requests = build_workload(case, scenario.seed).requests
        assert {item.kind for item in requests} >= {"image", "image+spliced"}


def test_flag_upload_has_what_the_first_screen_is_to_answer() -> None:
    scenario = load_scenario(SCENARIOS / "flag-upload.yaml")
    (case,) = expand(scenario)
    right = [name for name in scenario.arms if ARMS[name].is_right]
    assert right == ["gated", "refresh", "skip"] and "stale" in scenario.arms
    assert scenario.rounds >= 2 * MIN_ROUNDS and set(scenario.amplify) == {"upload.is_token_ids", "merge"}
    kinds = {item.kind for item in build_workload(case, scenario.seed).requests}
    assert kinds >= {"text", "pure", "spliced"}


def test_prompt_embeds_compares_every_preset_that_fits_its_model_on_every_kind_of_request() -> None:
    scenario = load_scenario(SCENARIOS / "prompt-embeds.yaml")
    (case,) = expand(scenario)
    assert set(scenario.arms) == {arm.name for arm in ARMS.values() if arm.fits(True)}
    kinds = {item.kind for item in build_workload(case, scenario.seed).requests}
    assert kinds == {"text", "image", "pure", "spliced", "image+spliced"}


def test_the_demonstration_admits_nothing_before_its_embeddings() -> None:
    scenario = load_scenario(SCENARIOS / "repro-45673.yaml")
    (case,) = expand(scenario)
    assert {"ids", "refresh", "stale", "overwrite", "gated"} == set(scenario.arms)
    assert {item.kind for item in build_workload(case, scenario.seed).requests} == {"pure"}


def test_sampling_compares_greedy_with_all_that_a_sampler_does_on_ids_and_embeddings() -> None:
    scenario = load_scenario(SCENARIOS / "sampling.yaml")
    greedy, warm = (build_workload(case, scenario.seed).requests for case in expand(scenario))
    assert all(item.request.sampling.is_plain for item in greedy)
    params = [item.request.sampling for item in warm]
    assert all(one.temperature and one.repetition_penalty != 1 and one.logprobs for one in params)
    assert len({one.seed for one in params}) == len(params)
    assert {item.kind for item in warm} >= {"text", "image", "spliced"}
    for one, other in zip(greedy, warm, strict=True):
        assert one.request.prompt == other.request.prompt


def test_prefix_caching_has_every_kind_of_prompt_more_than_once_in_each_group() -> None:
    scenario = load_scenario(SCENARIOS / "prefix-caching.yaml")
    off, on = expand(scenario)
    assert (off.runner_config.prefix_caching, on.runner_config.prefix_caching) == (False, True)
    workload = build_workload(on, scenario.seed)
    assert workload.hash == build_workload(off, scenario.seed).hash
    shared = scenario.traffic.shared_prefix
    assert shared is not None and shared.tokens.largest >= 2 * on.runner_config.block_size
    groups = {item.request.prompt.token_ids[: shared.tokens.largest] for item in workload.requests}
    assert len(groups) == shared.groups
    kinds = Counter(item.kind for item in workload.requests)
    assert set(kinds) == {"text", "image", "pure", "spliced", "image+spliced"}
    images = [image.key for item in workload.requests for image in item.request.prompt.images]
    assert len(set(images)) == shared.groups < len(images)


def test_speculation_compares_none_with_some_on_output_that_repeats_itself() -> None:
    scenario = load_scenario(SCENARIOS / "speculation.yaml")
    cases = expand(scenario)
    assert [case.runner_config.num_speculative_tokens for case in cases] == [0, 3]
    requests = build_workload(cases[1], scenario.seed).requests
    assert {item.kind for item in requests} >= {"text", "image", "spliced"}
    for item in requests:  # a penalty below 1 rewards repeating
        assert item.request.sampling.repetition_penalty < 1 and item.request.sampling.temperature == 0
        assert item.request.sampling.max_tokens >= 64


@pytest.mark.parametrize("path", sorted((SCENARIOS / "gpu").glob("*.yaml")), ids=lambda path: path.stem)
def test_scenarios_for_a_gpu_are_sound_and_skipped_without_one(path: Path) -> None:
    scenario = load_scenario(path)
    assert (
        missing_requirements(scenario, "process") == "needs a CUDA device; this run uses the device process"
    )
    assert {case.model_spec.name for case in expand(scenario)} <= set(REAL_SHAPES)


def test_the_attribution_on_a_gpu_has_64_and_256_decodes_on_both_shapes() -> None:
    small, large = (SCENARIOS / "gpu" / f"gemma-3-{size}-attribution.yaml" for size in ("4b", "12b"))
    assert small.read_text().replace("gemma-3-4b", "gemma-3-12b") == large.read_text()
    scenario = load_scenario(small)
    needed = {arm for pair in ONE_CHOICE for arm in (pair.over, pair.under)}
    assert needed <= set(scenario.arms) and scenario.rounds >= MIN_ROUNDS and scenario.aa
    rows = []
    for case in expand(scenario):
        steps = [step for step in build_workload(case, scenario.seed).steps if not step.is_lead_in]
        assert Counter(step.kind for step in steps) == {"decode": 80, "mixed": 10}
        rows.append(max(step.num_rows for step in steps if step.kind == "decode"))
    assert rows == [64, 256]
