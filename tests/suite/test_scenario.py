"""What a scenario file may say, how options change it, and the cases its sweep makes."""

import os
import pickle
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from bad_inputs import AZURE, GOOD, REPLAY
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from runner.config import RunnerConfig
from suite.arrival_kinds import Constant, TraceReplay
from suite.errors import SuiteError
from suite.lengths import Fixed, Uniform
from suite.scenario import (
    RunnerSection,
    Scenario,
    dump_scenario,
    expand,
    json_schema,
    load_scenario,
    missing_requirements,
)

ROOT = Path(__file__).resolve().parents[2]


def _write(folder: Path, text: str, name: str = "scenario.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def _load(folder: Path, text: str, *overrides: str) -> Scenario:
    return load_scenario(_write(folder, text), overrides)


def test_a_scenario_holds_what_its_file_says(tmp_path: Path) -> None:
    scenario = _load(tmp_path, GOOD)
    assert (scenario.name, scenario.rounds, scenario.seed) == ("fine", 2, 7)
    assert scenario.path == tmp_path / "scenario.yaml"
    assert scenario.runner.max_model_len == 256
    assert scenario.traffic.arrivals == Constant(kind="constant", rate=8.0)
    assert scenario.traffic.prompt_tokens == Uniform(uniform=(8, 32))
    assert scenario.arms == ("sync-ids",)


def test_a_bare_number_is_a_fixed_length(tmp_path: Path) -> None:
    scenario = _load(tmp_path, GOOD.replace("{fixed: 8}", "24"))
    assert scenario.traffic.output_tokens == Fixed(fixed=24)


def test_the_runner_section_has_the_fields_and_defaults_of_runner_config() -> None:
    assert set(RunnerSection.model_fields) == {field.name for field in fields(RunnerConfig)}
    assert RunnerConfig(**RunnerSection().model_dump()) == RunnerConfig()


def test_byte_order_mark_crlf_merge_keys_and_comments_are_read(tmp_path: Path) -> None:
    text = GOOD.replace(
        "arrivals: {kind: constant, rate: 8.0}", "arrivals:\n    <<: &a {kind: constant, rate: 2}"
    )
    path = tmp_path / "scenario.yaml"
    path.write_bytes(b"\xef\xbb\xbf# first\r\n" + text.replace("\n", "\r\n").encode())
    assert load_scenario(path).traffic.arrivals == Constant(kind="constant", rate=2.0)


def test_yaml_one_two_keeps_yes_as_text(tmp_path: Path) -> None:
    assert _load(tmp_path, GOOD.replace("name: fine", "name: yes")).name == "yes"


@pytest.mark.parametrize("name", ["混合流量", "Łukasz", "a</script><b>", "🙂 traffic"])
def test_any_readable_name_is_accepted(name: str, tmp_path: Path) -> None:
    assert _load(tmp_path, GOOD.replace("name: fine", f"name: {name}")).name == name


def test_options_replace_values_and_make_what_is_missing(tmp_path: Path) -> None:
    scenario = _load(
        tmp_path,
        GOOD,
        "rounds=5",
        "runner.num_blocks=99",
        "traffic.output_tokens={uniform: [4, 6]}",
        "sweep.traffic.multimodal_ratio=[0, 1]",
    )
    assert scenario.rounds == 5
    assert scenario.runner.num_blocks == 99
    assert scenario.traffic.output_tokens == Uniform(uniform=(4, 6))
    assert scenario.sweep == {"traffic.multimodal_ratio": (0, 1)}


def test_an_option_can_clear_a_sweep_and_set_its_key(tmp_path: Path) -> None:
    scenario = _load(tmp_path, GOOD + "sweep: {seed: [1, 2]}\n", "sweep={}", "seed=3")
    assert [case.scenario.seed for case in expand(scenario)] == [3]


def test_the_seed_argument_wins_over_the_file(tmp_path: Path) -> None:
    assert load_scenario(_write(tmp_path, GOOD), seed=11).seed == 11


def test_a_sweep_makes_every_combination_with_its_last_key_fastest(tmp_path: Path) -> None:
    text = GOOD + "sweep:\n  traffic.multimodal_ratio: [0, 1]\n  runner.max_num_seqs: [2, 4]\n"
    cases = expand(_load(tmp_path, text))
    assert [case.label for case in cases] == [
        "multimodal_ratio=0, max_num_seqs=2",
        "multimodal_ratio=0, max_num_seqs=4",
        "multimodal_ratio=1, max_num_seqs=2",
        "multimodal_ratio=1, max_num_seqs=4",
    ]
    assert [case.runner_config.max_num_seqs for case in cases] == [2, 4, 2, 4]
    assert cases[2].values == {"traffic.multimodal_ratio": 1, "runner.max_num_seqs": 2}
    assert all(not case.scenario.sweep for case in cases)
    assert len({case.case_id for case in cases}) == 4


def test_what_is_swept_need_not_be_written_twice(tmp_path: Path) -> None:
    text = GOOD.replace("  num_requests: 4\n", "") + "sweep: {traffic.num_requests: [2, 3]}\n"
    assert [case.scenario.traffic.num_requests for case in expand(_load(tmp_path, text))] == [2, 3]


def test_a_scenario_without_a_sweep_is_one_case_of_its_name(tmp_path: Path) -> None:
    (case,) = expand(_load(tmp_path, GOOD))
    assert case.label == "fine"
    assert case.model_spec.name == "tiny-gemma3-vl"
    assert case.runner_config == RunnerConfig(max_model_len=256)


def test_the_case_id_tells_what_is_run_and_not_how_often(tmp_path: Path) -> None:
    def case_id(*overrides: str) -> str:
        return expand(_load(tmp_path, GOOD, *overrides))[0].case_id

    assert case_id() == case_id("rounds=9", "description=other", "timeout_s=5", "warmup_rounds=0")
    assert case_id("traffic.multimodal_ratio=1") == case_id("traffic.multimodal_ratio=1.0")
    changed = ("seed=8", "model=tiny-qwen3", "traffic.num_requests=5", "runner.num_blocks=99", "name=b")
    ids = {case_id(change, "traffic.multimodal_ratio=0") for change in changed}
    assert len(ids | {case_id()}) == len(changed) + 1


def test_a_key_of_the_runner_that_is_young_changes_no_id_while_it_has_its_default(tmp_path: Path) -> None:
    def case_id(*overrides: str) -> str:
        return expand(_load(tmp_path, GOOD, *overrides))[0].case_id

    for key, default, other in (
        ("attention", "auto", "sdpa"),
        ("cuda_graphs", "true", "false"),
        ("fence", "uploads", "embeddings"),
        ("torch_compile", "false", "true"),
    ):
        assert case_id() == case_id(f"runner.{key}={default}") != case_id(f"runner.{key}={other}")


def test_cases_that_differ_in_the_fence_are_named_by_it_and_the_later_one_has_a_note(tmp_path: Path) -> None:
    early, late = expand(_load(tmp_path, GOOD + "sweep: {runner.fence: [uploads, embeddings]}\n"))
    assert (early.label, late.label) == ("fence=uploads", "fence=embeddings")
    assert (early.runner_config.fence, late.runner_config.fence) == ("uploads", "embeddings")
    assert (early.notes, [note.split(": ")[:2] for note in late.notes]) == (
        (),
        [["runner.fence", "embeddings"]],
    )
    with pytest.raises(SuiteError, match=r"runner\.fence.*'output'.*uploads"):
        _load(tmp_path, GOOD, "runner.fence=output")


def test_how_images_attend_is_another_case_and_the_models_own_way_is_not(tmp_path: Path) -> None:
    (plain,) = expand(_load(tmp_path, GOOD))
    (causal,) = expand(_load(tmp_path, GOOD, "image_attention=causal"))
    (both_ways,) = expand(_load(tmp_path, GOOD, "image_attention=bidirectional"))
    assert plain.case_id == causal.case_id != both_ways.case_id
    assert (plain.model_spec.image_attention, both_ways.model_spec.image_attention) == (
        "causal",
        "bidirectional",
    )
    text = GOOD + "sweep: {image_attention: [causal, bidirectional]}\n"
    assert [case.label for case in expand(_load(tmp_path, text))] == [
        "image_attention=causal",
        "image_attention=bidirectional",
    ]
    small = ("runner.max_num_seqs=8", "runner.max_num_batched_tokens=15")
    _load(tmp_path, GOOD, *small)
    _load(tmp_path, GOOD, "image_attention=bidirectional", small[0], "runner.max_num_batched_tokens=16")


def test_the_case_id_of_a_replay_follows_the_trace_and_not_its_path(tmp_path: Path) -> None:
    ids = []
    for name, trace in (("a", AZURE), ("b", AZURE), ("c", AZURE.replace("949", "948"))):
        folder = tmp_path / name
        folder.mkdir()
        _write(folder, trace, "trace.csv")
        ids.append(expand(_load(folder, REPLAY))[0].case_id)
    assert ids[0] == ids[1] != ids[2]


def test_case_ids_are_the_same_in_fresh_processes(tmp_path: Path) -> None:
    path = _write(tmp_path, GOOD + "sweep: {traffic.multimodal_ratio: [0, 0.5]}\n")
    program = (
        "import sys; from pathlib import Path; from suite.scenario import expand, load_scenario\n"
        "print([case.case_id for case in expand(load_scenario(Path(sys.argv[1])))])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program, str(path)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert printed == {str([case.case_id for case in expand(load_scenario(path))])}


def test_a_case_survives_pickling(tmp_path: Path) -> None:
    cases = expand(_load(tmp_path, GOOD + "sweep: {seed: [1, 2]}\n"))
    assert pickle.loads(pickle.dumps(cases)) == cases


@pytest.mark.parametrize("text", [GOOD, REPLAY, GOOD + "sweep: {traffic.arrivals: [{kind: all_at_once}]}\n"])
def test_a_dumped_scenario_is_read_back_the_same(text: str, tmp_path: Path) -> None:
    _write(tmp_path, AZURE, "trace.csv")
    scenario = _load(tmp_path, text)
    dumped = dump_scenario(scenario)
    assert "max_images_per_step" in dumped, "defaults are written out"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = load_scenario(_write(elsewhere, dumped))
    assert again.model_dump(exclude={"path"}) == scenario.model_dump(exclude={"path"})
    assert [case.case_id for case in expand(again)] == [case.case_id for case in expand(scenario)]


@settings(max_examples=25, deadline=None)
@given(name=st.text(min_size=1, max_size=30).filter(lambda text: text.strip() and text.isprintable()))
def test_any_name_survives_dumping(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("dump")
    scenario = _load(folder, GOOD).model_copy(update={"name": name})
    assert load_scenario(_write(folder, dump_scenario(scenario), "again.yaml")).name == name


def test_a_trace_path_in_a_file_starts_at_the_file_and_in_an_option_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    for folder in (here, there):
        _write(folder, AZURE, "trace.csv")
    path = _write(there, REPLAY)
    _write(here, AZURE, "only-here.csv")
    _write(there, AZURE, "only-there.csv")

    def trace_of(*overrides: str) -> Path:
        arrivals = load_scenario(Path("../there/scenario.yaml"), overrides).traffic.arrivals
        assert isinstance(arrivals, TraceReplay)
        return Path(arrivals.path)

    assert path.exists()
    assert trace_of() == there / "trace.csv"
    assert trace_of("traffic.arrivals.path=trace.csv") == here / "trace.csv"
    assert trace_of("traffic.arrivals.path=only-there.csv") == there / "only-there.csv"
    path.write_text(REPLAY.replace("trace.csv", "only-here.csv"))
    assert trace_of() == here / "only-here.csv"


def test_swept_traces_are_found_and_labelled_by_name(tmp_path: Path) -> None:
    _write(tmp_path, AZURE, "one.csv")
    (tmp_path / "two.csv").write_text(AZURE.replace("949", "950"))
    text = (
        REPLAY.replace("    path: trace.csv\n", "") + "sweep: {traffic.arrivals.path: [one.csv, two.csv]}\n"
    )
    cases = expand(_load(tmp_path, text))
    assert [case.label for case in cases] == ["path=one.csv", "path=two.csv"]
    nested = REPLAY + (
        "sweep:\n  traffic.arrivals:\n"
        "    - {kind: trace, path: one.csv, length_scale: 0.1}\n"
        "    - {kind: trace, path: two.csv, length_scale: 0.1}\n"
    )
    _write(tmp_path, AZURE, "trace.csv")
    paths = [case.scenario.traffic.arrivals.path for case in expand(_load(tmp_path, nested))]
    assert paths == [str(tmp_path / "one.csv"), str(tmp_path / "two.csv")]


def test_too_many_cases_are_refused(tmp_path: Path) -> None:
    seeds = list(range(40))
    text = f"{GOOD}sweep: {{seed: {seeds}, traffic.num_requests: {seeds[1:]}}}\n"
    with pytest.raises(SuiteError, match="it makes 1560 cases, at most 1000 are run"):
        _load(tmp_path, text)


def test_requirements_name_what_is_missing(tmp_path: Path) -> None:
    def missing(requires: str, device_kind: str = "process") -> str | None:
        return missing_requirements(_load(tmp_path, GOOD, f"requires={requires}"), device_kind)

    assert missing("{device: any}") is None
    assert missing("{device: cuda}", "cuda") is None
    assert missing("{device: cuda}") == "needs a CUDA device; this run uses the device process"
    assert str(missing("{min_cores: 100000}")).startswith("needs 100000 cores; this process may use")
    assert str(missing("{min_memory_gib: 1.0e+6}")).startswith("needs 1e+06 GiB of memory")
    assert missing("{min_cores: 1, min_memory_gib: 0.1}") is None


def test_the_json_schema_names_every_key_and_refuses_others() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(Scenario.model_fields) - {"path"}
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"name", "model", "traffic"}


def test_every_shipped_scenario_loads_and_is_named_like_its_file() -> None:
    paths = sorted((ROOT / "scenarios").glob("*.yaml"))
    assert {"smoke", "mixed-traffic", "azure-lmm"} <= {path.stem for path in paths}
    for path in paths:
        scenario = load_scenario(path)
        assert scenario.name == path.stem
        assert scenario.traffic.ignore_eos
        assert expand(scenario)


def test_shipped_scenarios_are_plain_yaml_for_other_readers() -> None:
    for path in (ROOT / "scenarios").glob("*.yaml"):
        assert isinstance(YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8")), dict)
