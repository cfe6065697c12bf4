"""Runs with repeats in the worker: the first is recorded and checked, the rest are held against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from runner.repeats import NO_REPEATS, Turn
from suite import worker as worker_module
from suite.plan import Options, PlannedCase, make_plan
from suite.protocol import Close, Finished, OpenCase, RunArm, pack_case
from suite.record import RunRecord, Status
from suite.store import RunFolder, load_run
from suite.worker import serve

SPAN = "upload.is_token_ids"
SCENARIO = """\
name: replay
model: tiny-gemma3-vl
runner: {max_num_seqs: 3, max_num_batched_tokens: 16, max_model_len: 64, num_blocks: 32}
traffic:
  num_requests: 4
  prompt_tokens: {uniform: [4, 12]}
  output_tokens: {uniform: [3, 6]}
  embeds_ratio: 0.5
  arrivals: {kind: constant, rate: 20}
"""
TURNS: tuple[Turn, ...] = (NO_REPEATS, (SPAN, 3), ("merge", 2))


@pytest.fixture
def planned(tmp_path: Path) -> PlannedCase:
    path = tmp_path / "replay.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    (case,) = make_plan([path], Options(device="inline", arms=("refresh",))).cases
    return case


def serve_runs(planned: PlannedCase, folder: Path, runs: Sequence[RunArm]) -> list[RunRecord]:
    opening = OpenCase(
        case=pack_case(planned.case),
        seed=planned.seed,
        device="inline",
        workload_hash=planned.workload_hash,
        folder=str(folder),
        is_timed=True,
    )
    commands = iter([*runs, Close()])
    replies = []
    serve(opening, lambda: next(commands), replies.append)
    return [reply.record for reply in replies if isinstance(reply, Finished)]


def run_arm(run_id: str, **changes: object) -> RunArm:
    given = {"arm": "refresh", "round": 0, "is_warmup": False, "repeats": {SPAN: 3, "merge": 2}} | changes
    return RunArm(run_id=run_id, **given)  # type: ignore[arg-type]


def test_later_runs_take_the_steps_and_have_the_checked_tokens_of_the_first(
    planned: PlannedCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    check = worker_module.CaseRunner._check
    monkeypatch.setattr(
        worker_module.CaseRunner,
        "_check",
        lambda self, requests, given: asked.append(1) or check(self, requests, given),
    )
    folder = RunFolder.create(tmp_path, "replay")
    folder.write_config({})
    runs = [
        run_arm("first", is_warmup=True, repeats={SPAN: 1, "merge": 1}),
        run_arm("everywhere", repeats={SPAN: 5}),
        run_arm("in-turn", turns=TURNS),
        run_arm("plain", repeats={}),
    ]
    records = serve_runs(planned, folder.path, runs)
    for record in records:
        folder.append_run(record)
    loaded = load_run(folder.path)
    assert [run.status for run in loaded.runs] == [Status.COMPLETED] * 4, [run.failure for run in records]
    assert [run.is_measured for run in loaded.runs] == [False, False, False, True]
    assert loaded.runs[2].turns == TURNS
    assert len(asked) == 2, "the oracle is asked about the first run with repeats, and the one without any"

    first, everywhere, in_turn = (loaded.step_records(name) for name in ("first", "everywhere", "in-turn"))
    assert len(first) == len(everywhere) == len(in_turn) > 4
    for plain, five, turned in zip(first, everywhere, in_turn, strict=True):
        assert (plain.kind, plain.num_tokens, plain.num_rows) == (five.kind, five.num_tokens, five.num_rows)
        assert five.bytes["is_token_ids"] == 5 * plain.bytes["is_token_ids"]
        k = 3 if plain.step_id % 3 == 1 else 1
        assert turned.copies["is_token_ids"] == k * plain.copies["is_token_ids"]
    # Recorded over its arrivals' 150 ms, replayed without a wait.
    assert loaded.runs[0].duration_s > 0.15
    tokens = [run.tokens for run in loaded.runs]
    assert tokens[0] is not None and tokens[0].is_right and tokens[0] == tokens[1] == tokens[2]


def test_a_replay_that_takes_other_steps_fails_and_says_where_and_the_next_is_fine(
    planned: PlannedCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path, "replay")
    measure = worker_module.CaseRunner._measure

    def measure_otherwise(self, arm, given, command):
        outcome = measure(self, arm, given, command)
        if command.run_id != "odd":
            return outcome
        steps = [*outcome.steps]
        steps[2] = replace(steps[2], num_tokens=steps[2].num_tokens + 1)
        return replace(outcome, steps=steps)

    monkeypatch.setattr(worker_module.CaseRunner, "_measure", measure_otherwise)
    first, odd, even = serve_runs(planned, folder.path, [run_arm("first"), run_arm("odd"), run_arm("even")])
    assert first.status is even.status is Status.COMPLETED
    assert odd.status is Status.FAILED and odd.failure is not None
    assert "step 2 is not the one that first recorded: its num_tokens was" in odd.failure.message
    assert odd.tokens is None
