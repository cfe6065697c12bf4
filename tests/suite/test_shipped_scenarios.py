"""The scenarios in the repository hold what their descriptions say."""

from pathlib import Path

import pytest

from runner.inputs.arms import ARMS
from suite.scenario import expand, load_scenario
from suite.workload import build_workload

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_case_of_every_scenario_can_be_built(path: Path) -> None:
    for case in expand(load_scenario(path)):
        assert build_workload(case, case.scenario.seed).requests
        assert case.scenario.name == path.stem


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
