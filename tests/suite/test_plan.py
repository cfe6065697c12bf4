"""What paths and options come to, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from suite.cost import cost_plan
from suite.errors import SuiteError
from suite.plan import Options, find_files, for_check, make_plan
from suite.profile.session import plan_profile

TEXT = """\
name: {name}
model: tiny-qwen3
traffic: {{num_requests: 2, prompt_tokens: 4, output_tokens: 4}}
"""


@pytest.fixture
def write(tmp_path):
    def write_file(path, name=None, extra=""):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TEXT.format(name=name or file.stem) + extra)
        return file

    return write_file


def test_a_directory_gives_its_own_yaml_files_in_order_and_none_of_its_subfolders(write, tmp_path):
    for path in ("b.yaml", "a.yaml", "gpu/c.yaml"):
        write(path)
    (tmp_path / "notes.txt").write_text("")
    assert [file.name for file in find_files([tmp_path])] == ["a.yaml", "b.yaml"]
    assert [file.name for file in find_files([tmp_path, tmp_path / "gpu"])] == ["a.yaml", "b.yaml", "c.yaml"]


def test_a_file_named_twice_is_run_once(write, tmp_path):
    file = write("a.yaml")
    assert find_files([file, tmp_path, tmp_path / "." / "a.yaml"]) == [file]


def test_a_directory_without_scenarios_says_that_subfolders_are_not_searched(write, tmp_path):
    write("gpu/c.yaml")
    with pytest.raises(SuiteError, match="subfolders are not searched"):
        find_files([tmp_path])


def test_two_scenarios_of_one_name_are_refused_with_both_files(write):
    with pytest.raises(SuiteError, match=r"b\.yaml: name is 'same', as in .*a\.yaml"):
        make_plan([write("a.yaml", "same"), write("b.yaml", "same")], Options())


def test_options_win_over_the_scenario_and_are_in_the_stored_configuration(write):
    options = Options(rounds=7, seed=5, overrides=("traffic.num_requests=3",), arms=("sync-ids",))
    plan = make_plan([write("a.yaml")], options)
    (case,) = plan.cases
    assert (case.rounds, case.seed, case.num_requests) == (7, 5, 3)
    document = json.loads(json.dumps(plan.document(), allow_nan=False))
    (scenario,) = document["scenarios"]
    assert (scenario["rounds"], scenario["seed"], scenario["traffic"]["num_requests"]) == (7, 5, 3)
    assert document["invocation"]["set"] == ["traffic.num_requests=3"]
    assert document["cases"][0]["workload_hash"] == case.workload_hash


def test_auto_is_the_process_device_and_cuda_says_why_it_cannot_be(write):
    assert make_plan([write("a.yaml")], Options()).device == "process"
    with pytest.raises(SuiteError, match="--device cuda: no CUDA device can be used here"):
        make_plan([write("a.yaml")], Options(device="cuda"))
    with pytest.raises(SuiteError, match="--device proces: did you mean process"):
        make_plan([write("a.yaml")], Options(device="proces"))


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        (("snyc-ids",), "did you mean sync-ids"),
        (("ids", "ids"), "stands twice"),
        (("",), "is no arm"),
        (("async/all/skip/fused",), "means nothing: merge fused reads supplied rows by position"),
    ],
)
def test_arms_that_are_none_are_refused(write, arms, words):
    with pytest.raises(SuiteError, match=words):
        make_plan([write("a.yaml")], Options(arms=arms))


def test_a_scenario_that_this_machine_cannot_run_is_skipped_with_the_reason(write):
    plan = make_plan([write("a.yaml", extra="requires: {min_cores: 100000}\n"), write("b.yaml")], Options())
    assert [case.title for case in plan.cases] == ["b"]
    assert plan.skipped[0][0] == "a" and "100000 cores" in plan.skipped[0][1]


def test_one_bad_scenario_among_good_ones_stops_all(write, tmp_path):
    write("a.yaml")
    write("b.yaml", extra="round: 3\n")
    with pytest.raises(SuiteError, match=r"b\.yaml"):
        make_plan([tmp_path], Options())


def test_run_ids_are_file_names_and_differ(write):
    file = write("a.yaml", "'Łukasz / 测试 ..'", "rounds: 4\nsweep: {runner.max_num_seqs: [1, 2]}\n")
    ids = [run.run_id for case in make_plan([file], Options()).cases for run in case.runs()]
    assert len(set(ids)) == len(ids) == 10
    assert all(Path(name).name == name and name.isascii() for name in ids)


def test_one_more_round_has_instruments_unless_they_are_off_and_comes_last(write):
    file = write("a.yaml", extra="rounds: 2\nwarmup_rounds: 1\n")
    for level in ("nvtx", "events"):
        case = make_plan([file], Options(arms=("ids", "refresh"), instrument=level)).cases[0]
        runs = case.runs()
        assert [run.instrument for run in runs] == ["off"] * 6 + [level] * 2
        assert {run.arm for run in runs[-2:]} == {"ids", "refresh"}
        assert len({run.run_id for run in runs}) == 8
        assert not any(run.is_warmup for run in runs[2:])
    off = make_plan([file], Options(instrument="off"))
    assert {run.instrument for run in off.cases[0].runs()} == {"off"}
    checked = for_check(make_plan([file], Options(instrument="events")))
    assert {run.instrument for run in checked.cases[0].runs()} == {"off"}


def test_one_more_round_looks_for_silent_waits_where_asked_and_comes_last(write):
    file = write("a.yaml", extra="rounds: 2\nwarmup_rounds: 1\n")
    options = Options(arms=("ids", "refresh"), instrument="events", sync_check="warn")
    plan = make_plan([file], options)
    runs = plan.cases[0].runs()
    assert [run.sync_check for run in runs] == ["off"] * 8 + ["warn"] * 2
    assert [run.instrument for run in runs] == ["off"] * 6 + ["events"] * 2 + ["off"] * 2
    assert len({run.run_id for run in runs}) == 10
    assert plan.document()["invocation"]["sync_check"] == "warn"
    assert {run.sync_check for run in for_check(plan).cases[0].runs()} == {"off"}
    assert {run.sync_check for run in make_plan([file], Options()).cases[0].runs()} == {"off"}


def test_a_check_runs_every_arm_in_every_rotation_of_at_most_eight_requests(write):
    for num_requests, num_rotations in ((2, 2), (30, 8)):
        options = Options(overrides=(f"traffic.num_requests={num_requests}",), arms=("ids", "refresh"))
        plan = for_check(make_plan([write("a.yaml", extra="rounds: 5\n")], options))
        runs = plan.cases[0].runs()
        rotations = [*range(num_rotations)]
        assert [(run.arm, run.rotation) for run in runs] == [
            *(("ids", by) for by in rotations),
            *(("refresh", by) for by in rotations),
        ]
        assert not any(run.is_warmup for run in runs) and plan.num_runs == len(runs)
        assert len({run.run_id for run in runs}) == len(runs)


def reference_of(file, arms, **options):
    return make_plan([file], Options(arms=arms, **options)).cases[0].reference


def test_arms_are_compared_with_the_baseline_or_the_first_right_sync_arm(write):
    file = write("a.yaml", extra="arms: [ids, stale, sync-ids]\n")
    assert reference_of(file, None) == "sync-ids"
    assert reference_of(file, None, overrides=("baseline=ids",)) == "ids"
    assert reference_of(file, ("refresh", "ids")) == "refresh"
    assert reference_of(file, ("stale",)) is None
    with pytest.raises(
        SuiteError, match="--arms sync-ids,refresh: the scenario's baseline is ids; name it too"
    ):
        reference_of(file, ("sync-ids", "refresh"), overrides=("baseline=ids",))
    with pytest.raises(SuiteError, match="baseline is 'stale'; it is wrong by design"):
        reference_of(file, None, overrides=("baseline=stale",))
    with pytest.raises(SuiteError, match="baseline is 'refresh'; it must be one of the scenario's arms"):
        reference_of(file, None, overrides=("baseline=refresh",))


def test_a_single_arm_needs_no_baseline_for_it_is_compared_with_none(write):
    file = write("a.yaml", extra="arms: [ids, sync-ids]\nbaseline: ids\nrounds: 5\naa: true\n")
    assert reference_of(file, ("sync-ids",)) == "sync-ids"
    assert reference_of(file, ("stale",)) is None
    assert cost_plan(file, Options(arms=("refresh",))).cases[0].arms == ("refresh",)
    assert plan_profile(file, "refresh", Options())[1] == "refresh"


def test_an_arm_that_takes_embeddings_is_the_reference_before_one_given_ids_in_their_place(write):
    file = write("a.yaml")
    assert reference_of(file, ("ids", "sync-ids", "refresh", "sync-rows")) == "sync-rows"
    assert reference_of(file, ("ids", "sync-ids", "refresh")) == "sync-ids"


def test_the_reference_runs_twice_a_measured_round_where_a_verdict_may_come_of_it(write):
    file = write("a.yaml", extra="arms: [sync-ids, ids]\nwarmup_rounds: 1\n")
    case = make_plan([file], Options(rounds=5, instrument="events")).cases[0]
    repeats = [run for run in case.runs() if run.is_aa]
    assert [(run.arm, run.round) for run in repeats] == [("sync-ids", number) for number in range(5)]
    assert not any(run.is_warmup or run.instrument != "off" for run in repeats)
    assert len({run.run_id for run in case.runs()}) == len(case.runs()) == 2 + 15 + 2
    places = {[run.is_aa for run in case.runs()[2 + 3 * number :][:3]].index(True) for number in range(5)}
    assert len(places) > 1  # shuffled with the arms


@pytest.mark.parametrize(
    ("overrides", "rounds", "arms", "has_aa"),
    [
        ((), 4, ("sync-ids", "ids"), False),
        (("aa=true",), 4, ("sync-ids", "ids"), True),
        (("aa=false",), 9, ("sync-ids", "ids"), False),
        ((), 9, ("sync-ids",), False),
        ((), 9, ("sync-ids", "stale"), False),
        (("aa=true",), 9, ("stale",), False),
        ((), 5, ("ids", "sync-ids"), True),
    ],
)
def test_a_a_runs_are_made_as_told_or_where_rounds_and_arms_suffice(write, overrides, rounds, arms, has_aa):
    options = Options(rounds=rounds, arms=arms, overrides=overrides)
    plan = make_plan([write("a.yaml")], options)
    assert any(run.is_aa for run in plan.cases[0].runs()) is has_aa is plan.document()["cases"][0]["has_aa"]
    assert not any(run.is_aa for run in for_check(plan).cases[0].runs())


def test_kernels_of_a_gpu_are_refused_in_any_case_of_a_sweep(write, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    file = write("a.yaml", extra="sweep: {runner.attention: [sdpa, triton]}\n")
    with pytest.raises(SuiteError, match=r"a\.yaml: runner\.attention is 'triton', which runs on a GPU"):
        make_plan([file], Options(device="inline"))


def test_what_a_gpu_is_required_for_is_skipped_without_one_whatever_its_kernels(write, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    file = write("a.yaml", extra="requires: {device: cuda}\nrunner: {attention: triton}\n")
    plan = make_plan([file], Options(device="inline"))
    assert plan.cases == () and [name for name, _ in plan.skipped] == ["a"]


def test_kernels_of_a_gpu_are_refused_before_a_run_where_there_is_none(write, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    file = write("a.yaml")
    for wanted in ("triton", "varlen"):
        with pytest.raises(SuiteError, match=f"a.yaml: runner.attention is '{wanted}', which runs on a GPU"):
            make_plan([file], Options(device="inline", overrides=(f"runner.attention={wanted}",)))
    assert make_plan([file], Options(device="inline", overrides=("runner.attention=sdpa",))).cases
