"""A plan made again from config.yaml is the plan the run began with, whatever the scenario says."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.environment import CompiledFacts, DeviceFacts, capture
from suite.errors import SuiteError
from suite.plan import Options, make_plan, plan_scenarios
from suite.precision import Precision
from suite.resume import Given, Resumed, _check_given, _options, _scenario, differences
from suite.store import Config, RunFolder, as_stored

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "scenarios").rglob("*.yaml"))


def made_again(plan):
    stored = as_stored(plan.document())
    options = _options(ROOT, stored["invocation"])
    again = plan_scenarios([_scenario(ROOT, one) for one in stored["scenarios"]], options)
    return stored, as_stored(again.document()), options


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_shipped_scenario_is_planned_again_alike_from_its_configuration(file):
    stored, again, _ = made_again(make_plan([file], Options(device="inline", instrument="events")))
    assert stored["cases"] or stored["skipped"]
    assert list(differences(stored, again)) == []


TEXT = """\
name: odd
description: "null: yes, 1e-05 \\U0001F9E8"
model: tiny-qwen3
traffic: {num_requests: 2, prompt_tokens: 4, output_tokens: 4, arrivals: {kind: poisson, rate: 1e+2}}
sweep: {runner.max_num_seqs: [2, 4]}
arms: [sync-ids, ids]
baseline: ids
timeout_s: 1e+2
"""


@pytest.mark.parametrize(
    "options",
    [
        Options(device="inline"),
        Options(device="shuffle:3", rounds=7, seed=5, overrides=("timeout_s=12.5", "isolation=process")),
        Options(device="inline", until=Precision(0.5, 90.0), sync_check="warn", has_window=True),
        Options(device="inline", arms=("sync-ids",)),  # a single arm that is not the baseline
    ],
    ids=["plain", "options", "adaptive", "one arm"],
)
def test_options_are_those_the_run_began_with(tmp_path, options):
    (tmp_path / "odd.yaml").write_text(TEXT, encoding="utf-8")
    stored, again, found = made_again(make_plan([tmp_path / "odd.yaml"], options))
    found_differences = [key for key, _, _ in differences(stored, again)]
    # A single arm is compared with none, whatever the baseline of the others was.
    assert found_differences == ([".scenarios[0].baseline"] if options.arms else [])
    assert found == options
    every = tuple(options.document(options.device))
    _check_given(tmp_path, Given(options=options, names=every), Config(invocation=stored["invocation"]))


def test_every_key_that_differs_is_named_with_both_values():
    before = {"a": [1, {"b": 2}], "gone": 1, "same": None}
    now = {"a": [1, {"b": 3}], "new": "x", "same": None, "null": None}
    assert list(differences(before, now)) == [(".a[1].b", 2, 3), (".gone", 1, None), (".new", None, "x")]
    assert list(differences({"a": [1]}, {"a": [1, 2]})) == [(".a", [1], [1, 2])]


DEVICE = DeviceFacts(kind="process", name="cpu", num_threads=1, torch_version="2.13", attention="sdpa")


def resumed_on(device):
    environment = capture(()).model_copy(update={"device": device})
    return Resumed(RunFolder(Path("folder")), None, (), environment, (), is_finished=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_threads": 2},
        {"attention": "triton 3.9", "graph_sizes": (1, 2)},
        {"compiled": CompiledFacts(num_graphs=2, duration_s=41.5)},
    ],
    ids=["threads", "attention", "compiled"],
)
def test_what_a_case_says_of_the_device_is_no_other_device(changes):
    """The record has the last case's; another case of the sweep has its own, and compiling takes its time."""
    resumed_on(DEVICE).check_device(DEVICE.model_copy(update=changes))
    again = DEVICE.model_copy(update={"compiled": CompiledFacts(num_graphs=2, duration_s=43.9)})
    resumed_on(DEVICE.model_copy(update=changes)).check_device(again)


@pytest.mark.parametrize("changes", [{"kind": "inline"}, {"name": "a GPU"}, {"torch_version": "2.14"}])
def test_another_device_is_refused_with_what_differs(changes):
    ((key, value),) = changes.items()
    with pytest.raises(SuiteError, match=rf"--resume folder: device\.{key} is '{value}', and was "):
        resumed_on(DEVICE).check_device(DEVICE.model_copy(update=changes))
