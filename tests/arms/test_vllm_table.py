"""Our commands beside what the real vLLM did: the same batches, step by step, without vLLM at hand.

tests/data/vllm-steps.json was recorded from vLLM 0.32's V1 runner by tools/vllm_steps.py. Its block size and
its many small uploads are its own (we pack ours); ids, flags, embeddings, routes and merges must agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runner.commands import Command, Merge, RouteIds, Upload
from runner.config import RunnerConfig
from runner.core import (
    Prompt,
    Request,
    RequestState,
    SamplingParams,
    ScheduledRow,
    StepPlan,
    SuppliedRows,
)
from runner.device.null import NullDevice
from runner.executor import Executor, InFlight
from runner.inputs.arms import ARMS, parse_arm
from runner.measure import StepClock
from runner.models import ModelSpec, get_model

TABLE = json.loads((Path(__file__).parent.parent / "data" / "vllm-steps.json").read_text("utf-8"))
COMPARED = ("input_ids", "inputs_embeds", "is_token_ids")
PAIRS = (
    ("tiny-gemma3-vl", "sync", "gated"),
    ("tiny-gemma3-vl", "async", "refresh"),
    ("tiny-qwen3", "async", "text"),
    ("tiny-qwen3", "sync", "sync/all/always/index"),
)


@dataclass
class Replay:
    """Gives an executor the table's batches and keeps what it sent to the device."""

    model: ModelSpec
    arm: str
    is_async: bool
    sent: list[Sequence[Command]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = RunnerConfig(
            max_num_seqs=TABLE["config"]["max_num_seqs"],
            max_num_batched_tokens=TABLE["config"]["max_num_batched_tokens"],
            max_model_len=TABLE["config"]["max_model_len"],
            block_size=TABLE["config"]["block_size"],
            num_blocks=64,
        )
        self.device = NullDevice(self.model, config, lambda _step, sent: self.sent.append(sent), 7)
        self.executor = Executor(self.model, config, parse_arm(self.arm), self.device)
        self.states = {item["id"]: _state(item, self.model) for item in TABLE["requests"]}
        self.slots = {name: index % config.max_num_seqs for index, name in enumerate(self.states)}

    def steps(self, recorded: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], InFlight]]:
        last: InFlight | None = None
        for step_id, entry in enumerate(recorded):
            step = self._launch(step_id, entry)
            yield entry, step
            if self.is_async and last is not None:
                self._retire(last)
            if not self.is_async:
                self._retire(step)
            is_gap = step_id + 1 < len(recorded) and recorded[step_id + 1]["step"] > entry["step"] + 1
            last = None if is_gap else step
            if is_gap and self.is_async:
                self._retire(step)

    def _launch(self, step_id: int, entry: dict[str, Any]) -> InFlight:
        rows = tuple(self._row(*row[:3]) for row in entry["rows"])
        clock = StepClock()
        return self.executor.launch(StepPlan(step_id, rows), self.states, clock)

    def _row(self, name: str, first: int, count: int) -> ScheduledRow:
        state = self.states[name]
        blocks = -(-(first + count) // 32)
        state.block_ids.extend(range(len(state.block_ids), blocks))
        samples = first + count == state.num_tokens + state.num_in_flight
        state.num_in_flight += samples
        return ScheduledRow(name, self.slots[name], first, count, samples)

    def _retire(self, step: InFlight) -> None:
        for name, tokens in step.result().sampled.items():
            self.states[name].output_ids.extend(tokens)
            self.states[name].num_in_flight -= 1


def _state(item: dict[str, Any], model: ModelSpec) -> RequestState:
    count = item["num_prompt"]
    supplied = [any(begin <= i < end for begin, end in item["supplied"]) for i in range(count)]
    ids = tuple(range(10, 10 + count))
    data = bytes(count * model.hidden_size * 4)
    prompts = {
        "ids": Prompt(ids),
        "pure": Prompt((), (), SuppliedRows(data, count, model.hidden_size)),
        "spliced": Prompt(ids, (), SuppliedRows(data, count, model.hidden_size, mask=bytes(supplied))),
    }
    sampling = SamplingParams(item["max_tokens"], ignore_eos=True)
    return RequestState(Request(item["id"], prompts[item["kind"]], sampling), spans=())


def _recorded(model: str, scheduling: str) -> list[dict[str, Any]]:
    (run,) = [r for r in TABLE["runs"] if (r["model"], r["scheduling"]) == (model, scheduling)]
    steps: list[dict[str, Any]] = run["steps"]
    return steps


def _merge_branch(sent: Sequence[Command]) -> str:
    kinds = {command.kind for command in sent if isinstance(command, Merge)}
    return {"where": "M1", "copy": "M2", "index": "T1"}[kinds.pop()] if kinds else "T1"


@pytest.mark.parametrize(("model", "scheduling", "arm"), PAIRS)
def test_every_step_uploads_routes_and_merges_as_vllm_did(model: str, scheduling: str, arm: str) -> None:
    recorded = _recorded(model, scheduling)
    replay = Replay(get_model(model), arm, is_async=scheduling == "async")
    seen = 0
    for entry, step in replay.steps(recorded):
        where = f"step {entry['step']}"
        sent = replay.sent[-1]
        assert [row[0] for row in entry["rows"]] == [
            name for name, _ in sorted(replay.executor.row_of.items(), key=lambda item: item[1])
        ], where
        report = replay.device.report(step.plan.step_id)
        for buffer in COMPARED:
            copies, num_bytes = entry["copies"][buffer]
            assert report.copies.get(buffer, 0) == copies, (where, buffer)
            assert report.bytes.get(buffer, 0) == num_bytes, (where, buffer)
        assert step.ids_route == entry["ids"], where
        routed = [[c.kind, c.count] for c in sent if isinstance(c, RouteIds)]
        assert routed == entry["routed"], where
        assert _merge_branch(sent) == entry["merge"], where
        flags = replay.device.host["is_token_ids"][: len(entry["flags"])]
        assert "".join(str(flag) for flag in flags) == entry["flags"], where
        seen += 1
    assert seen == len(recorded) >= 30


def test_the_table_names_its_version_and_exercises_every_route_and_branch() -> None:
    assert TABLE["vllm_version"] == "0.32.0"
    steps = [step for run in TABLE["runs"] for step in run["steps"]]
    assert {step["ids"] for step in steps} == {"host", "mixed", "slice", "scatter"}
    assert {step["merge"] for step in steps} == {"M1", "M2", "T1"}


def test_an_arm_that_is_not_vllms_differs_from_the_table() -> None:
    """A comparison that holds for anything would be worthless."""
    recorded = _recorded("tiny-gemma3-vl", "async")
    replay = Replay(get_model("tiny-gemma3-vl"), "skip", is_async=True)
    differing = 0
    for entry, step in replay.steps(recorded):
        copied = replay.device.report(step.plan.step_id).bytes.get("is_token_ids", 0)
        differing += copied != entry["copies"]["is_token_ids"][1]
    assert differing > 0
    assert ARMS["refresh"].held_to == TABLE["vllm_version"]


def test_token_index_is_uploaded_only_where_a_position_is_looked_up() -> None:
    recorded = _recorded("tiny-qwen3", "async")
    replay = Replay(get_model("tiny-qwen3"), "text", is_async=True)
    for entry, _step in replay.steps(recorded):
        uploads = [c for c in replay.sent[-1] if isinstance(c, Upload) and c.buffer == "token_index"]
        assert [upload.count for upload in uploads] == [entry["flags"].count("1")] * ("1" in entry["flags"])
