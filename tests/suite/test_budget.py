"""`suite run PATHS --budget TIME`: tokens first, then attribution, then the rest; what is missing is told."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from listed_cases import LISTED, MIX
from nursery import Nursery
from records import make_request, make_run
from typer.testing import CliRunner

from suite.budget import BudgetPace
from suite.cli import app
from suite.errors import SuiteError
from suite.experiment import Experiment, Stop
from suite.left_out import left_out, left_out_texts
from suite.plan import Options, Purpose, for_check, make_plan
from suite.precision import Precision, read_budget
from suite.ratios import MIN_ROUNDS
from suite.store import CONFIG, RunFolder, as_stored, load_run

WORKLOAD = """\
name: a-workload
model: tiny-qwen3
traffic: {num_requests: 6, prompt_tokens: 4, output_tokens: 4}
arms: [sync-ids, ids]
rounds: 8
warmup_rounds: 1
"""
STEPS = LISTED.format(model="tiny-gemma3-vl", mix=MIX, runner="").replace(
    "arms: [refresh]\nrounds: 2", "arms: [async-rows, async-fill]\nrounds: 8\nwarmup_rounds: 1"
)
BUDGET = Options(device="inline", budget_s=60.0)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path):
    """A folder of scenarios: by name the workload comes first."""
    (tmp_path / "a.yaml").write_text(WORKLOAD)
    (tmp_path / "z.yaml").write_text(STEPS)
    return tmp_path


# The order


def test_every_cases_tokens_come_first_then_attribution_then_the_rest(folder):
    plan = make_plan([folder], BUDGET)
    assert [(case.purpose, case.case.scenario.name) for case in plan.cases] == [
        (Purpose.TOKENS, "listed"),
        (Purpose.TOKENS, "a-workload"),
        (Purpose.ATTRIBUTION, "listed"),
        (Purpose.WORKLOAD, "a-workload"),
    ]
    assert all(case.is_budgeted for case in plan.cases) and plan.num_cases == 2
    for case in plan.cases[:2]:
        assert [(run.arm, run.rotation) for run in case.runs()] == [
            (arm, by) for arm in case.arms for by in range(2)
        ]
    stored = plan.document()["cases"]
    assert [(case["scenario"], case["rounds"]) for case in stored] == [("listed", 8), ("a-workload", 8)]


def test_without_a_budget_of_its_own_the_order_is_that_of_the_paths(folder):
    for options in (Options(device="inline"), Options(device="inline", until=Precision(1.0, 60.0))):
        plan = make_plan([folder], options)
        assert [case.case.scenario.name for case in plan.cases] == ["a-workload", "listed"]
        assert Purpose.TOKENS not in {case.purpose for case in plan.cases}
        assert not any(case.is_budgeted for case in plan.cases)


def test_a_dry_run_shows_the_order_and_that_there_may_be_less(folder):
    result = invoke("run", folder, "--budget", "8m", "--dry-run", "--device", "inline")
    assert result.exit_code == 0, result.output
    titles = [line for line in result.stdout.splitlines() if not line.startswith("  ")]
    assert titles[0].startswith("listed: ") and " of the requests in 2 orders" in titles[0]
    assert titles[1].endswith("6 of the requests in 2 orders")
    assert titles[2].endswith("1 warm-up and up to 8 measured rounds")
    assert titles[3].startswith("a-workload: 6 requests") and "up to 8 measured" in titles[3]
    assert titles[4].startswith("2 cases, up to ") and "within 480 s; nothing was run" in titles[4]
    (told,) = (line for line in invoke("run", "--help").stdout.split("--budget") if "TIME" in line[:40])
    assert "the tokens of every case first" in " ".join(told.split())


@pytest.mark.parametrize("text", ["10", "0m", "-1m", " ", "2701h", "nanm"])
def test_a_budget_that_is_no_time_is_refused_alone_as_well(folder, text):
    with pytest.raises(SuiteError, match=r"--budget .*: it must be a duration above 0"):
        read_budget(text)
    result = invoke("run", folder, f"--budget={text}", "--dry-run")
    assert result.exit_code == 2 and "it must be a duration above 0" in result.stderr


def test_a_budget_and_a_baseline_are_refused(folder):
    result = invoke("run", folder / "a.yaml", "--budget", "8m", "--baseline", "HEAD")
    assert result.exit_code == 2 and "--budget does not go with --baseline" in result.stderr


def test_a_token_check_says_how_many_requests_and_orders(folder):
    plan = make_plan([folder / "a.yaml"], BUDGET)
    assert plan.cases[0].runs_text == "6 of the requests in 2 orders"
    assert replace(plan.cases[0], num_rotations=1).runs_text == "6 of the requests in 1 order"
    full = for_check(make_plan([folder / "a.yaml"], Options(device="inline")))
    assert full.cases[0].runs_text == "6 of the requests in 6 orders"


# How many rounds


def played(case, limit_s, left_s, round_s=30.0, opening_s=0.0):
    """What is run of a case whose every round, warm-up and check takes so long, after its opening."""
    now, made = [0.0], []
    pace = BudgetPace(limit_s, left_s, lambda: opening_s, lambda: now[0])
    for run in pace.affordable(case.runs()):
        now[0] += opening_s if not made else 0.0
        made.append(run)
        now[0] += round_s / (len(case.arms) + case.has_aa if run.is_of_round else len(case.arms))
    return made, now[0]


def rounds(made):
    return [run.round for run in made if run.is_of_round]


@pytest.fixture
def timed(folder):
    return make_plan([folder], replace(BUDGET, instrument="events")).cases[-2]


def test_only_whole_rounds_are_made_and_none_that_would_end_behind_the_budget(timed):
    for left_s, num_rounds in ((29.0, 0), (75.0, 1), (95.0, 2), (155.0, 4), (10_000.0, 8)):
        made, spent_s = played(timed, left_s, left_s)
        assert rounds(made) == sorted([*range(num_rounds)] * 3), left_s
        assert spent_s <= left_s or num_rounds == 0
        has_instrumented = [run.arm for run in made if run.instrument == "events"]
        assert len(has_instrumented) == (2 if left_s == 10_000.0 else 0)


def test_a_share_ends_a_case_only_once_its_rounds_are_enough_for_a_verdict(timed):
    made, _ = played(timed, limit_s=1.0, left_s=10_000.0)
    assert max(rounds(made)) + 1 == MIN_ROUNDS
    assert len([run for run in made if run.instrument == "events"]) == 2  # there is time left for these
    made, _ = played(timed, limit_s=205.0, left_s=10_000.0)
    assert max(rounds(made)) + 1 == 5
    made, _ = played(timed, limit_s=235.0, left_s=10_000.0)
    assert max(rounds(made)) + 1 == 6  # a warm-up of 30 s and six rounds


def test_opening_a_case_is_in_the_budget_and_in_no_rounds_length(timed):
    assert played(timed, 99.0, 99.0, opening_s=100.0) == ([], 0.0)
    made, spent_s = played(timed, 200.0, 200.0, opening_s=100.0)
    assert max(rounds(made)) + 1 == 2 and spent_s == pytest.approx(190.0)


def test_with_no_time_left_nothing_is_begun(timed):
    assert played(timed, -5.0, -5.0) == ([], 0.0) and played(timed, 0.0, 0.0) == ([], 0.0)


def test_rounds_beyond_a_verdict_are_not_made_at_the_cost_of_the_cases_after(folder, monkeypatch):
    """Of 60 s, none of which is spent here, each case has its share of all that are left."""
    paces = []

    class Noted(BudgetPace):
        def __init__(self, limit_s, left_s, opening_s):
            paces.append((round(limit_s), round(left_s)))
            super().__init__(0.0, 0.0, opening_s)

    monkeypatch.setattr("suite.experiment.BudgetPace", Noted)
    plan = make_plan([folder], BUDGET)
    records = Experiment(plan, None, None, Stop(), lambda _: None, lambda _: None).run()
    assert records == [] and paces == [(15, 60), (20, 60), (30, 60), (60, 60)]


# All of it, with a worker that computes nothing


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


def run_within(nursery, budget, actions, *options):
    for name in ("scenarios", "results", "acks"):
        path = nursery.folder / name
        if path.exists():
            path.rename(path.with_name(f"{name}-{len(list(nursery.folder.iterdir()))}"))
    (nursery.folder / "scenarios").mkdir()
    (nursery.folder / "scenarios" / "a.yaml").write_text(WORKLOAD)
    (nursery.folder / "scenarios" / "z.yaml").write_text(STEPS)
    given = ("--device", "inline", "--instrument", "off", "-o", "results", *options)
    code = nursery.run("run", "scenarios", "--budget", budget, *given, actions=actions)
    (folder,) = (nursery.folder / "results").iterdir()
    return code, folder


def made_of(folder):
    """(scenario, what kind of runs) in the order in which they were made."""
    order = []
    for run in load_run(folder).runs:
        what = (run.scenario, "check" if run.rotation is not None else "rounds")
        if what not in order:
            order.append(what)
    return order


def test_a_budget_that_suffices_makes_all_and_has_nothing_to_tell(nursery):
    code, folder = run_within(nursery, "10m", {})
    assert code == 0, nursery.said
    assert made_of(folder) == [
        ("listed", "check"),
        ("a-workload", "check"),
        ("listed", "rounds"),
        ("a-workload", "rounds"),
    ]
    assert left_out(load_run(folder)) == () and "budget of" not in nursery.said
    assert "left_out" not in json.loads((folder / "summary.json").read_text())
    arms = json.loads((folder / "summary.json").read_text())["arms"]
    assert {arm["num_rounds"] for arm in arms} == {8}  # the checks are no rounds
    assert {arm["tokens"]["num_checked"] for arm in arms} == {8 * (8 + 1 + 2), 8 * (8 + 1 + 2 + 8)}


def test_what_there_was_no_time_for_is_told_everywhere_and_done_by_resuming(nursery):
    code, folder = run_within(nursery, "8s", {"run_s": 0.5}, "--rounds", "20")
    assert code == 0, nursery.said
    told = json.loads((folder / "summary.json").read_text())["left_out"]
    last = told["cases"][-1]
    assert (last["scenario"], last["planned_rounds"]) == ("a-workload", 20) and last["num_rounds"] < 20
    command = f"python -m suite run --resume {shlex.quote(str(folder.relative_to(nursery.folder)))}"
    assert told["command"] == command and told["budget_s"] == 8.0
    page = (folder / "report.html").read_text(encoding="utf-8")
    for text in (f"the budget of 8 s was spent: a-workload: {last['num_rounds']} of 20 rounds", command):
        assert text in " ".join(nursery.said.split()) and text in page
    before = [run for run in load_run(folder).runs if run.is_timed_alike]
    made = {run.scenario: sum(one.scenario == run.scenario for one in before) for run in before}
    assert all(count % 3 == 0 for count in made.values())  # two arms and one of them again: rounds are whole
    for _ in range(8):
        assert nursery.run("run", "--resume", folder, actions={}) == 0, nursery.said
        if not left_out(load_run(folder)):
            break
    loaded = load_run(folder)
    assert left_out(loaded) == () and "left_out" not in loaded.summary and not loaded.is_interrupted
    after = [run for run in loaded.runs if run.is_timed_alike]
    assert len(after) == 2 * 20 * 3 and after[: len(before)] == before
    assert nursery.run("run", "--resume", folder) == 0 and "is finished" in nursery.said
    assert nursery.run("run", "--resume", folder, "--budget", "9s") == 2 and "budget_s" in nursery.said


def test_a_spent_budget_opens_no_further_case(nursery):
    _, folder = run_within(nursery, "0.5s", {"run_s": 0.6})
    assert made_of(folder) == [("listed", "check")]
    found = left_out(load_run(folder))
    assert [(one.scenario, one.num_rounds) for one in found] == [("listed", 0), ("a-workload", 0)]
    assert found[1].lacks[0].startswith("no check of the tokens of ")
    assert "a-workload: 6 requests" not in nursery.said


def test_wrong_tokens_in_a_check_are_wrong_though_no_round_was_made(nursery):
    code, folder = run_within(nursery, "0.5s", {"k0": "wrong", "run_s": 0.6})
    assert code == 1
    (arm,) = (arm for arm in json.loads((folder / "summary.json").read_text())["arms"])
    assert (arm["num_rounds"], arm["tokens"]["num_wrong"]) == (0, 1)
    assert "WRONG" in nursery.said


def test_a_single_scenario_may_have_a_budget_too(nursery):
    (nursery.folder / "one.yaml").write_text(WORKLOAD)
    given = ("--device", "inline", "--instrument", "off", "-o", "alone")
    assert nursery.run("run", "one.yaml", "--budget", "10m", *given) == 0, nursery.said
    (folder,) = (nursery.folder / "alone").iterdir()
    assert made_of(folder) == [("a-workload", "check"), ("a-workload", "rounds")]


# What was left out, from the folder alone


def test_instruments_waits_and_repeats_that_are_missing_are_named(tmp_path):
    folder = RunFolder.create(tmp_path, "budget")
    case_id = make_run().case_id
    case = {"scenario": "smoke", "case_id": case_id, "label": "x=1", "arms": ["ids", "skip"], "rounds": 2}
    asked = {"budget_s": 90.0, "until_precision_percent": None, "instrument": "events", "sync_check": "warn"}
    config = {"invocation": asked, "scenarios": [{"name": "smoke", "amplify": {"merge": [1, 9]}}]}
    folder.write_config({**config, "cases": [case], "skipped": []})
    for arm in ("ids", "skip"):
        for number in range(2 if arm == "ids" else 1):
            folder.append_run(make_run([make_request()], run_id=f"{arm}-r{number}", arm=arm, round=number))
    folder.append_run(make_run([make_request()], run_id="ids-k0", arm="ids", rotation=0))
    loaded = load_run(folder.path)
    (found,) = left_out(loaded)
    assert found.text == (
        "smoke [x=1]: 1 of 2 rounds, no check of the tokens of skip before, not every run with instruments, "
        "not every look for silent waits, no rounds of repeats"
    )
    told, how = left_out_texts([found], loaded)
    assert told == f"the budget of 90 s was spent: {found.text}" and how.endswith("within as much time again")
    other = as_stored({**config, "cases": [case], "skipped": []})
    other["invocation"]["until_precision_percent"] = 1.0
    folder.write_config(other)
    assert (folder.path / CONFIG).is_file() and left_out(load_run(folder.path)) == ()
