"""Runs of a list of steps in the worker, for real: written, recorded, instrumented, checked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from listed_cases import LISTED, MIX

from runner.inputs.arms import ARMS
from suite import replay, workload
from suite.errors import SuiteError
from suite.plan import Options, PlannedCase, for_check, make_plan
from suite.protocol import Close, Finished, OpenCase, RunArm, pack_case
from suite.publish import publish
from suite.record import RunRecord, Status
from suite.step_list import RecordedRun
from suite.step_list_recorded import read_recorded
from suite.store import RunFolder, load_run
from suite.worker import serve

ALL_ARMS = tuple(name for name, arm in ARMS.items() if arm.fits(True))
REQUESTS = """\
name: requests
model: tiny-gemma3-vl
runner: {max_num_seqs: 24, max_num_batched_tokens: 24, max_model_len: 64}
traffic:
  num_requests: 6
  prompt_tokens: {uniform: [4, 40]}
  output_tokens: {uniform: [3, 6]}
  multimodal_ratio: 0.5
  embeds_ratio: 0.5
  arrivals: {kind: closed_loop, concurrency: 3}
sweep:
  traffic.embeds_noise: [0, 0.5]
"""
REPLAY = """\
name: replay
model: tiny-gemma3-vl
runner: {{max_num_seqs: 24, max_num_batched_tokens: 24, max_model_len: 64}}
traffic:
  steps: {{recorded: {folder}, run: {run}}}
"""


def planned(
    folder: Path, text: str, name: str = "scenario", arms: Sequence[str] = ("refresh",)
) -> PlannedCase:
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    plan = make_plan([path], Options(device="inline", arms=tuple(arms)))
    return plan.cases[-1]


def serve_runs(case: PlannedCase, folder: Path, runs: Sequence[RunArm]) -> list[RunRecord]:
    opening = OpenCase(
        case=pack_case(case.case),
        seed=case.seed,
        device="inline",
        workload_hash=case.workload_hash,
        folder=str(folder),
        is_timed=True,
    )
    commands = iter([*runs, Close()])
    replies = []
    serve(opening, lambda: next(commands), replies.append)
    found = [reply.record for reply in replies if isinstance(reply, Finished)]
    assert len(found) == len(runs), replies
    return found


def once(arms: Sequence[str], **changes: object) -> list[RunArm]:
    return [
        RunArm(run_id=f"run-{arm}", arm=arm, round=0, is_warmup=False, **changes)  # type: ignore[arg-type]
        for arm in arms
    ]


def new_folder(parent: Path, text: str, name: str) -> RunFolder:
    """A folder with the plan in it, as an experiment leaves one."""
    path = parent / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    folder = RunFolder.create(parent, name)
    folder.write_config(make_plan([path], Options(device="inline")).document())
    folder.write_environment({})
    return folder


def test_every_arm_runs_the_written_steps_and_its_tokens_are_checked(tmp_path: Path) -> None:
    text = LISTED.format(model="tiny-gemma3-vl", mix=MIX, runner="")
    folder = new_folder(tmp_path, text, "listed")
    arms = ("gated", "sync-rows", "async-rows", "async-fill", "refresh", "fused", "ids", "stale")
    records = serve_runs(planned(tmp_path, text, arms=arms), folder.path, once(arms))
    for record in records:
        assert record.status is Status.COMPLETED, record.failure
        assert record.step_list is not None and record.step_list.difference is None
        assert record.tokens is not None and record.tokens.num_checked == 8 * 4 + 4 + 2 * 2
        assert record.tokens.num_wrong == 0 or not ARMS[record.arm].is_right
    lists = {record.step_list.hash for record in records if record.step_list}
    assert len(lists) == 1
    for record in records:
        folder.append_run(record)
    published = publish(folder.path)
    rules = {finding.rule for finding in published.findings}
    assert "too-few-rounds" in rules and not rules & {"other-steps", "tokens-wrong", "tokens-conserved"}
    summary = json.loads((folder.path / "summary.json").read_text(encoding="utf-8"))
    lines = {(line["line"], line["over"], line["kind"]): line for line in summary["attribution"]}
    assert lines["embedding copy under async", "refresh", "decode"]["reason"] == "same commands"
    assert lines["flag upload", "async-rows", "mixed"]["reason"] == "same commands"
    assert lines["overlap", "async-rows", "mixed"]["verdict"] == "cannot tell"
    assert "price of disabling async" in (folder.path / "report.html").read_text(encoding="utf-8")


def test_a_run_with_repeats_and_a_token_check_work_on_a_list_too(tmp_path: Path) -> None:
    text = LISTED.format(model="tiny-gemma3-vl", mix=MIX, runner="")
    folder = new_folder(tmp_path, text, "listed")
    case = planned(tmp_path, text)
    span = "upload.is_token_ids"
    runs = [
        RunArm(run_id="first", arm="refresh", round=0, is_warmup=True, repeats={span: 1}),
        RunArm(run_id="more", arm="refresh", round=0, is_warmup=False, repeats={span: 5}),
        RunArm(run_id="rotated", arm="refresh", round=0, is_warmup=False, rotation=2),
    ]
    first, more, rotated = serve_runs(case, folder.path, runs)
    assert [record.status for record in (first, more, rotated)] == [Status.COMPLETED] * 3
    assert first.step_list is not None and more.step_list is not None
    assert first.step_list.difference is more.step_list.difference is None
    assert rotated.step_list is None and rotated.tokens is not None and rotated.tokens.num_wrong == 0
    path = tmp_path / "scenario.yaml"
    checked = for_check(make_plan([path], Options(device="inline", arms=("refresh",))))
    assert checked.cases[0].num_rotations


def test_a_run_that_takes_other_steps_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = LISTED.format(model="tiny-gemma3-vl", mix=MIX, runner="")
    folder = new_folder(tmp_path, text, "listed")
    case = planned(tmp_path, text)
    init = replay.StepArrivals.__init__

    def late(self: replay.StepArrivals, requests: Sequence[object]) -> None:
        init(self, requests)  # type: ignore[arg-type]
        self._handed_at = [ask + (ask > 3) for ask in self._handed_at]

    monkeypatch.setattr(replay.StepArrivals, "__init__", late)
    (record,) = serve_runs(case, folder.path, once(["refresh"]))
    folder.append_run(record)
    assert record.step_list is not None
    assert record.step_list.difference == "step 4 should have kind mixed, and has decode"
    (finding,) = [one for one in publish(folder.path).findings if one.rule == "other-steps"]
    assert "runner.max_num_seqs" in finding.remedy and not finding.is_timing


# ---- recorded lists


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of requests, with embeddings under sync and async and as ids."""
    parent = tmp_path_factory.mktemp("recorded")
    folder = new_folder(parent, REQUESTS, "requests")
    arms = ("gated", "refresh", "ids")
    for record in serve_runs(planned(parent, REQUESTS, arms=arms), folder.path, once(arms)):
        assert record.status is Status.COMPLETED, record.failure
        folder.append_run(record)
    return folder.path


@pytest.mark.parametrize("run", ["run-gated", "run-refresh", "run-ids"])
def test_recorded_steps_are_taken_by_every_arm_with_the_requests_of_their_run(
    run: str, recorded: Path, tmp_path: Path
) -> None:
    text = REPLAY.format(folder=recorded, run=run)
    case = planned(tmp_path, text, arms=ALL_ARMS)
    folder = new_folder(tmp_path, text, "replay")
    records = serve_runs(case, folder.path, once(ALL_ARMS))
    loaded = load_run(recorded)
    (source,) = (record for record in loaded.runs if record.run_id == run)
    for record in records:
        assert record.status is Status.COMPLETED, record.failure
        assert record.step_list is not None and record.step_list.difference is None, record.arm
        assert record.step_list.lead_in == () and record.num_steps == source.num_steps
        assert record.tokens is not None and (record.tokens.num_wrong == 0 or not ARMS[record.arm].is_right)
    before = {request.request_id: request.output_ids for request in loaded.request_records(run)}
    again = {
        request.request_id: request.output_ids for request in load_run(folder.path).request_records("run-ids")
    }
    assert again.keys() == before.keys()
    if run != "run-ids":  # the rows have noise, so that ids are other prompts
        same = {
            request.request_id: request.output_ids
            for request in load_run(folder.path).request_records("run-fused")
        }
        assert same == before
    else:
        assert again == before


def test_the_ask_of_a_recorded_request_is_the_step_it_came_before(recorded: Path) -> None:
    found = read_recorded(recorded, "run-gated")
    loaded = load_run(recorded)
    steps = loaded.step_records("run-gated")
    for request, ask in zip(loaded.request_records("run-gated"), found.asks, strict=True):
        assert all(step.start_ns < request.sent_ns for step in steps[:ask])
        assert all(step.start_ns > request.sent_ns for step in steps[ask:])
    assert found.asks[:3] == (0, 0, 0) and found.asks[-1] > 0
    assert found.origin.traffic.embeds_noise == 0.5  # the swept value of its case


def test_the_list_of_a_list_is_the_same_list(tmp_path: Path) -> None:
    text = LISTED.format(model="tiny-gemma3-vl", mix=MIX, runner="")
    folder = new_folder(tmp_path, text, "listed")
    case = planned(tmp_path, text)
    (record,) = serve_runs(case, folder.path, once(["refresh"]))
    folder.append_run(record)
    runner = "{max_num_seqs: 24, max_num_batched_tokens: 128, max_model_len: 64, num_blocks: 512}"
    again = planned(
        tmp_path,
        f"name: again\nmodel: tiny-gemma3-vl\nrunner: {runner}\n"
        f"traffic: {{steps: {{recorded: {folder.path}, run: run-refresh}}}}\n",
        "again",
    )
    (second,) = serve_runs(again, new_folder(tmp_path, text, "second").path, once(["gated"]))
    assert record.step_list is not None and second.step_list is not None
    assert second.step_list.difference is None
    assert (second.step_list.hash, second.step_list.lead_in) == (record.step_list.hash, ((0, 1),))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"run-gated": "run-gatd"},
            "traffic.steps.run is 'run-gatd'; no completed run has this id; did you mean ",
        ),
        ({"max_num_batched_tokens: 24": "max_num_batched_tokens: 32"}, "run-gated ran with 24: set it to 24"),
        (
            {"max_num_seqs: 24": "max_num_seqs: 8"},
            "runner.max_num_seqs is 8; run-gated ran with 24: set as much",
        ),
        (
            {"max_model_len: 64": "max_model_len: 64, num_blocks: 100"},
            "runner.num_blocks is 100; run-gated ran with",
        ),
        (
            {"tiny-gemma3-vl": "tiny-qwen2.5-vl"},
            "model is 'tiny-qwen2.5-vl'; run-gated was run with tiny-gemma3-vl",
        ),
        (
            {"model: tiny-gemma3-vl": "model: tiny-gemma3-vl\nimage_attention: bidirectional"},
            "image_attention is 'bidirectional'; run-gated ran with causal: set it to causal",
        ),
        (
            {"run: run-gated}": "run: run-gated}\n  sampling: {temperature: 1}"},
            "recorded steps have the requests of",
        ),
        ({"recorded: ": "recorded: /nowhere"}, "no folder; tried"),
        ({"run: run-gated": "rum: run-gated"}, "did you mean traffic.steps.run?"),
    ],
)
def test_a_list_that_cannot_be_had_is_refused_with_its_key(
    changes: dict[str, str], told: str, recorded: Path, tmp_path: Path
) -> None:
    text = REPLAY.format(folder=recorded, run="run-gated")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(SuiteError) as caught:
        planned(tmp_path, text)
    assert told in str(caught.value)
    assert f"{tmp_path / 'scenario.yaml'}:" in str(caught.value)


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"traffic\.steps\.recorded is .*; .* is not the folder of a run"):
        planned(tmp_path, REPLAY.format(folder=tmp_path, run="any"))


def test_requests_that_are_no_longer_made_the_same_way_are_refused(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "_pace", lambda traffic: "another program\n")
    with pytest.raises(SuiteError, match=r"whose requests had the hash .* record the run again"):
        planned(tmp_path, REPLAY.format(folder=recorded, run="run-gated"))


def test_the_case_id_follows_the_recorded_files_and_not_the_folder(recorded: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(recorded, moved)
    ids = {
        planned(tmp_path, REPLAY.format(folder=folder, run=run)).case.case_id
        for folder, run in ((recorded, "run-gated"), (moved, "run-gated"), (moved, "run-ids"))
    }
    assert len(ids) == 2


def test_a_relative_folder_is_taken_from_the_scenario(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(recorded)
    case = planned(tmp_path, REPLAY.format(folder="results", run="run-gated"))
    steps = case.case.scenario.traffic.steps
    assert isinstance(steps, RecordedRun) and Path(steps.recorded) == recorded.resolve()


def test_a_recorded_schedule_longer_than_the_timeout_is_no_hindrance(tmp_path: Path) -> None:
    """Steps follow one another whatever the clock said when they were recorded."""
    slow = REQUESTS.replace("{kind: closed_loop, concurrency: 3}", "{kind: constant, rate: 10}")
    folder = new_folder(tmp_path, slow, "requests")
    (record,) = serve_runs(planned(tmp_path, slow), folder.path, once(["refresh"]))
    folder.append_run(record)
    text = REPLAY.format(folder=folder.path, run="run-refresh") + "timeout_s: 0.4\n"
    case = planned(tmp_path, text, "replay")
    (again,) = serve_runs(case, new_folder(tmp_path, text, "replay").path, once(["gated"]))
    assert again.status is Status.COMPLETED, again.failure
    assert again.step_list is not None and again.step_list.difference is None
    assert again.step_list.commands


def test_where_tokens_end_requests_commands_are_not_told_beforehand(tmp_path: Path) -> None:
    """The model chooses the stop token at a step that nothing but the model knows."""
    requests = REQUESTS.replace("output_tokens: {uniform: [3, 6]}", "output_tokens: 6")
    plain = new_folder(tmp_path, requests, "plain")
    (first,) = serve_runs(planned(tmp_path, requests), plain.path, once(["refresh"]))
    plain.append_run(first)
    outputs = load_run(plain.path).request_records("run-refresh")
    stop = next(request.output_ids[1] for request in outputs if len(set(request.output_ids[:2])) == 2)
    ending = requests.replace("arrivals:", f"sampling: {{stop_token_ids: [{stop}]}}\n  arrivals:")
    folder = new_folder(tmp_path, ending, "ending")
    (second,) = serve_runs(planned(tmp_path, ending), folder.path, once(["refresh"]))
    folder.append_run(second)
    found = load_run(folder.path).request_records("run-refresh")
    assert any(request.finish_reason == "stop" for request in found)
    text = REPLAY.format(folder=folder.path, run="run-refresh")
    (again,) = serve_runs(planned(tmp_path, text, "again"), plain.path, once(["fused"]))
    assert again.step_list is not None and again.step_list.difference is None
    assert again.step_list.commands == {}
