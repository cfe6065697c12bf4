"""Spans of whole runs: instruments change no token, and name every command and phase of every step once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN3
from arm_probes import edited
from arm_workloads import Case, Recipe, outputs

from runner.commands import Command, Forward, Upload, is_repeatable
from runner.config import RunnerConfig
from runner.core import DeviceError
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.measure import Instrument, StepRecord
from runner.spans import HOST_PHASES, LEVELS, Level, Span, step_label, upload_span

MODEL = MICRO_GEMMA3_VL
CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=16,
    max_model_len=48,
    block_size=4,
    num_blocks=40,
    prefix_caching=True,
    num_speculative_tokens=2,
)
KINDS_OF_PROMPT: tuple[tuple[Any, int], ...] = (("ids", 1), ("pure", 0), ("spliced", 1), ("ids", 0))
CASE = Case(
    MODEL,
    CONFIG,
    tuple(
        Recipe(kind, 9, images, max_tokens=6, seed=index)
        for index, (kind, images) in enumerate(KINDS_OF_PROMPT * 2)
    ),
    gap=2,
)
KINDS = ("process", "inline", "lazy", "shuffle:3")


class Ranges:
    """Counts what is opened and closed."""

    def __init__(self) -> None:
        self.depth = 0
        self.open: dict[object, str] = {}
        self.started: list[tuple[str, int]] = []

    def push(self, name: str, step_id: int) -> None:
        self.depth += 1

    def pop(self) -> None:
        self.depth -= 1

    def start(self, name: str, step_id: int) -> object:
        self.started.append((name, step_id))
        self.open[handle := object()] = name
        return handle

    def end(self, handle: object) -> None:
        del self.open[handle]


def serve(
    device: Device, level: Level, arm: str, ranges: Ranges | None = None, case: Case = CASE
) -> tuple[Engine, list[Span]]:
    instrument = Instrument(level, ranges)
    engine = Engine(case.model, CONFIG, device, ARMS[arm], instrument)
    engine.run(case.arrivals(ARMS[arm].prompt_embeds))
    return engine, instrument.spans


def label_of(step: StepRecord) -> str:
    return step_label(step.kind, step.ids_route, step.embeds_route)


@pytest.mark.parametrize("arm", ["refresh", "gated", "fused"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_level_changes_a_token(kind: str, arm: str, devices: Any) -> None:
    device = devices(kind, MODEL, CONFIG)
    expected = outputs(serve(device, "off", arm)[0])
    for level in LEVELS[1:]:
        engine, _ = serve(device, level, arm)
        assert outputs(engine) == expected, level


@pytest.mark.parametrize("arm", ["refresh", "gated"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_command_of_every_step_has_a_span(kind: str, arm: str, devices: Any) -> None:
    device = devices(kind, MODEL, CONFIG)
    lists: list[Counter[str]] = []

    def keep(_step: int, commands: Sequence[Command]) -> Sequence[Command]:
        lists.append(Counter(command.span for command in commands if command.span))
        return commands

    with edited(device, keep):
        engine, spans = serve(device, "events", arm)
    assert len(lists) == len(engine.recorder.steps)
    for step_id, expected in enumerate(lists):
        found = [span for span in spans if span.step_id == step_id and span.lane == "compute"]
        assert Counter(span.name for span in found) == expected
        lacking = {span.name for span in found if span.duration_ns is None}
        assert lacking <= {"draft"}, "only what is proposed behind the output may come too late"
        if kind in ("process", "inline"):
            assert not lacking


@pytest.mark.parametrize("arm", ["refresh", "gated"])
def test_every_step_has_each_phase_and_one_range_of_its_kind_and_routes(arm: str, devices: Any) -> None:
    ranges = Ranges()
    engine, spans = serve(devices("inline", MODEL, CONFIG), "host", arm, ranges)
    assert (ranges.depth, ranges.open) == (0, {})
    steps = engine.recorder.steps
    assert ranges.started == [(label_of(step), step.step_id) for step in steps]
    assert {span.lane for span in spans} == {"host", "steps"}
    for step in steps:
        own = [span for span in spans if span.step_id == step.step_id]
        assert [span.name for span in own if span.lane == "steps"] == [label_of(step)]
        inside = [s for s in own if s.lane == "host" and (s.start_ns or 0) >= step.start_ns]
        assert [span.name for span in inside if span.name != "wait.fence"] == [
            name for name in HOST_PHASES if name != "wait.fence"
        ]
        by_name = Counter[str]()
        for span in inside:
            by_name[span.name] += span.duration_ns or 0
        assert by_name["stage"] + by_name["compile"] == step.compile_ns
        assert by_name["launch"] == step.launch_ns and by_name["retire"] == step.retire_ns


def test_ranges_of_steps_overlap_under_async_and_not_under_sync(devices: Any) -> None:
    for arm, is_async in (("async-rows", True), ("sync-rows", False)):
        _, spans = serve(devices("inline", MODEL, CONFIG), "host", arm)
        ranges = [span for span in spans if span.lane == "steps"]
        ranges.sort(key=lambda span: span.step_id)
        overlaps = [(after.start_ns or 0) < (before.end_ns or 0) for before, after in pairwise(ranges)]
        assert any(overlaps) is is_async


def test_spans_of_the_host_do_not_overlap(devices: Any) -> None:
    _, spans = serve(devices("process", MODEL, CONFIG), "events", "refresh")
    for lane in ("host", "compute"):
        own = sorted((s.start_ns, s.end_ns) for s in spans if s.lane == lane and s.end_ns is not None)
        assert all(before[1] <= after[0] for before, after in pairwise(own)), lane


def test_a_step_that_fails_leaves_no_range_open_and_what_was_recorded(models_built_once: None) -> None:
    def fail(step: int, commands: Sequence[Command]) -> Sequence[Command]:
        return [Upload("no buffer", 0, 0, 1) if isinstance(c, Forward) and step == 4 else c for c in commands]

    ranges = Ranges()
    instrument = Instrument("events", ranges)
    with open_device("inline", MODEL, CONFIG) as device, edited(device, fail):
        engine = Engine(MODEL, CONFIG, device, ARMS["refresh"], instrument)
        with pytest.raises(DeviceError):
            engine.run(CASE.arrivals())
    assert (ranges.depth, ranges.open) == (0, {})
    assert {span.step_id for span in instrument.spans if span.lane == "steps"} == set(range(5))
    assert len([span for span in instrument.spans if span.name == "forward"]) == 3


TEXT = replace(CASE, model=MICRO_QWEN3, recipes=tuple(replace(one, num_images=0) for one in CASE.recipes))


@pytest.mark.parametrize("case", [CASE, TEXT], ids=lambda case: case.model.name)
def test_commands_that_may_be_repeated_change_no_token_when_they_are(case: Case, devices: Any) -> None:
    device = devices("inline", case.model, CONFIG)
    seen = set()
    for arm in (arm for arm in ARMS.values() if arm.is_right and arm.fits(case.model.is_multimodal)):
        engine, spans = serve(device, "events", arm.name, case=case)
        names = {span.name for span in spans if span.lane == "compute" and is_repeatable(span.name)}
        for name in names - seen:
            again = Engine(case.model, CONFIG, device, arm, repeats={name: 3})
            again.run(case.arrivals(arm.prompt_embeds))
            assert outputs(again) == outputs(engine), (arm.name, name)
            for once, thrice in zip(engine.recorder.steps, again.recorder.steps, strict=True):
                assert thrice.copies == {
                    buffer: count * (3 if upload_span(buffer) == name else 1)
                    for buffer, count in once.copies.items()
                }
        seen |= names
    assert seen >= {"positions", "route.ids", "flags", "place", "lookup", "merge", "upload.is_token_ids"}
