"""Every route driven and read back from the records, with copies and bytes as the copies counted them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from arm_models import MICRO, MICRO_GEMMA3_VL, MICRO_QWEN3, MICRO_QWEN25_VL
from arm_probes import Probe, probed
from arm_workloads import Arrivals, Case, Recipe, check_finished, request_of

from runner.commands import Download, RouteIds, Upload, buffer_table, row_bytes
from runner.config import RunnerConfig
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm, parse_arm
from runner.measure import StepRecord
from runner.models import TINY_GEMMA3_VL, ModelSpec

CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=32,
    max_model_len=64,
    block_size=8,
    num_blocks=40,
    num_encoder_slots=2,
    num_resident_rows=128,
)


def run(model: ModelSpec, arm: Arm, recipes: list[tuple[int, Recipe]], devices: Any) -> Engine:
    engine = Engine(model, CONFIG, devices("inline", model, CONFIG), arm)
    engine.run(
        Arrivals(
            (at, request_of(model, f"r{i}", recipe, arm.prompt_embeds))
            for i, (at, recipe) in enumerate(recipes)
        )
    )
    check_finished(engine)
    return engine


def ids(max_tokens: int, length: int = 3) -> Recipe:
    return Recipe("ids", length, max_tokens=max_tokens, seed=max_tokens)


def pure(max_tokens: int, length: int = 4) -> Recipe:
    return Recipe("pure", length, max_tokens=max_tokens, seed=max_tokens)


# ---- how ids come about


def routes(engine: Engine) -> list[str]:
    return [step.ids_route for step in engine.recorder.steps]


@pytest.mark.parametrize("model", MICRO, ids=lambda model: model.name)
@pytest.mark.parametrize("name", ["ids", "refresh", "fused"])
def test_the_first_step_is_host_then_a_steady_batch_is_sliced(
    name: str, model: ModelSpec, devices: Any
) -> None:
    engine = run(model, ARMS[name], [(0, pure(6)), (0, ids(6))], devices)
    assert routes(engine) == ["host"] + ["slice"] * 5


def test_a_newcomer_makes_the_step_mixed(devices: Any) -> None:
    engine = run(MICRO_GEMMA3_VL, ARMS["refresh"], [(0, ids(6)), (2, pure(3))], devices)
    assert routes(engine) == ["host", "slice", "mixed", "slice", "slice", "slice"]


def test_a_middle_row_that_leaves_scatters_one_step(devices: Any) -> None:
    """The last row moves into its place; from then on the order is the same again."""
    engine = run(MICRO_GEMMA3_VL, ARMS["refresh"], [(0, ids(7)), (0, pure(2)), (0, ids(6))], devices)
    assert routes(engine) == ["host", "slice", "scatter", "slice", "slice", "slice", "slice"]


def test_a_tail_row_that_leaves_keeps_the_slice(devices: Any) -> None:
    engine = run(MICRO_GEMMA3_VL, ARMS["refresh"], [(0, ids(7)), (0, pure(2))], devices)
    assert routes(engine) == ["host"] + ["slice"] * 6


def test_a_prefill_chunk_without_any_sample_needs_host_ids_again(devices: Any) -> None:
    """A row whose last step was an unfinished chunk sampled nothing that could be routed."""
    engine = run(MICRO_GEMMA3_VL, ARMS["refresh"], [(0, ids(3, length=40))], devices)
    assert routes(engine) == ["host", "host", "slice", "slice"]


@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if arm.scheduling != "async"])
def test_sync_takes_every_id_from_the_host(name: str, devices: Any) -> None:
    engine = run(MICRO_GEMMA3_VL, ARMS[name], [(0, ids(6)), (0, pure(2)), (1, ids(4))], devices)
    assert set(routes(engine)) == {"host"}


def test_the_routes_recorded_are_those_the_device_was_told(devices: Any) -> None:
    model, arm = MICRO_GEMMA3_VL, ARMS["refresh"]
    recipes = [(0, ids(7)), (0, pure(2)), (0, ids(6)), (3, pure(3)), (4, ids(5))]
    engine = Engine(model, CONFIG, devices("inline", model, CONFIG), arm)
    with probed(engine, devices("inline", model, CONFIG)) as probe:
        engine.run(
            Arrivals((at, request_of(model, f"r{i}", recipe)) for i, (at, recipe) in enumerate(recipes))
        )
    seen = set()
    for step, record in zip(probe.steps, engine.recorder.steps, strict=True):
        told = [command for command in step.commands if isinstance(command, RouteIds)]
        has_ids = step.has(Upload, buffer="input_ids")
        assert has_ids == (record.ids_route in ("host", "mixed"))
        assert bool(told) == (record.ids_route != "host")
        if record.ids_route in ("slice", "scatter"):
            assert (told[0].kind, told[0].count) == (record.ids_route, record.num_tokens)
        seen.add(record.ids_route)
    assert seen == {"host", "mixed", "slice", "scatter"}


# ---- how embeddings come about

BRANCHES = {
    # arm: branch of a batch with a supplied row, of its decode, of a batch that never had one
    "ids": ("lookup", "lookup", "lookup"),
    "sync-ids": ("lookup", "lookup", "lookup"),
    "overwrite": ("lookup", "lookup", "lookup"),
    "stale": ("merge", "merge", "lookup"),
    "gated": ("merge", "merge", "lookup"),
    "refresh": ("merge", "merge", "lookup"),
    "sync-rows": ("merge", "merge", "lookup"),
    "async-rows": ("merge", "merge", "lookup"),
    "async-fill": ("merge", "merge", "lookup"),
    "skip": ("merge", "lookup", "lookup"),
    "resident-where": ("merge", "lookup", "lookup"),
    "resident": ("merge", "lookup", "lookup"),
    "fused": ("merge", "lookup", "lookup"),
    "sync-fused": ("merge", "lookup", "lookup"),
    "text": ("merge", "merge", "merge"),
}


@pytest.mark.parametrize("name", ARMS)
def test_the_branch_of_a_step_is_the_arms_own(name: str, devices: Any) -> None:
    arm = ARMS[name]
    model = MICRO_QWEN3 if arm.models == "text" else MICRO_GEMMA3_VL
    engine = run(model, arm, [(0, pure(4))], devices)
    branches = [step.embeds_route for step in engine.recorder.steps]
    assert branches == [BRANCHES[name][0]] + [BRANCHES[name][1]] * 3
    engine = run(model, arm, [(0, ids(4))], devices)
    assert {step.embeds_route for step in engine.recorder.steps} == {BRANCHES[name][2]}


@pytest.mark.parametrize("name", ["ids", "sync-ids"])
def test_plain_text_leaves_the_lookup_to_the_graph(name: str, devices: Any) -> None:
    engine = run(MICRO_QWEN3, ARMS[name], [(0, ids(4))], devices)
    assert {step.embeds_route for step in engine.recorder.steps} == {"graph"}


def test_the_slow_branch_goes_off_when_the_last_request_with_embeddings_is_gone(devices: Any) -> None:
    recipes = [(0, pure(4)), (0, pure(3)), *((4 + i, ids(5)) for i in range(4))]
    for name in ("refresh", "async-rows", "async-fill", "gated"):
        engine = run(MICRO_GEMMA3_VL, ARMS[name], recipes, devices)
        branches = [step.embeds_route for step in engine.recorder.steps]
        last = max(i for i, branch in enumerate(branches) if branch == "merge")
        assert set(branches[: last + 1]) == {"merge"}
        assert last == 3
        assert len(branches) > 8
    engine_state = engine.requests["r0"]
    assert engine_state.is_finished


# ---- bytes and copies


def decode_step(name: str, devices: Any) -> tuple[StepRecord, ModelSpec]:
    """A step of 256 decodes, half of them of requests that supplied rows."""
    arm = ARMS[name]
    model = MICRO_QWEN3 if arm.models == "text" else TINY_GEMMA3_VL
    config = RunnerConfig(
        max_num_seqs=256,
        max_num_batched_tokens=512,
        max_model_len=8,
        block_size=8,
        num_blocks=256,
        num_resident_rows=256,
    )
    recipes = [Recipe("pure" if i % 2 else "ids", 1, max_tokens=3, seed=i) for i in range(256)]
    engine = Engine(model, config, devices("inline", model, config), arm)
    engine.run(
        Arrivals(
            (0, request_of(model, f"r{i}", recipe, arm.prompt_embeds)) for i, recipe in enumerate(recipes)
        )
    )
    (step,) = [step for step in engine.recorder.steps if step.step_id == 1]
    assert (step.kind, step.num_decode_rows, step.num_tokens) == ("decode", 256, 256)
    return step, model


METADATA_BYTES = 4 * (257 + 3 * 256)  # starts, computed, slots, one block each


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("refresh", {"is_token_ids": 256}),
        ("async-rows", {"is_token_ids": 256}),
        ("async-fill", {}),
        ("skip", {}),
        ("resident-where", {}),
        ("resident", {}),
        ("fused", {}),
        ("stale", {}),
        ("overwrite", {}),
        ("ids", {}),
        ("text", {"is_token_ids": 256, "token_index": 256 * 8}),
        ("sync-ids", {"input_ids": 1024}),
        ("gated", {"input_ids": 1024, "is_token_ids": 256, "inputs_embeds": 256 * 256 * 4}),
        ("sync-rows", {"input_ids": 1024, "is_token_ids": 256}),
        ("sync-fused", {"input_ids": 1024}),
    ],
)
def test_what_256_decodes_upload(name: str, expected: dict[str, int], devices: Any) -> None:
    step, _ = decode_step(name, devices)
    routed = 0 if "input_ids" in expected else 2 * 256 * 4
    assert step.bytes == {"step_metadata.1": METADATA_BYTES + routed, **expected}
    assert step.copies == dict.fromkeys(step.bytes, 1)
    assert step.download_bytes == 1024


ALL_ARMS = [
    *ARMS.values(),
    *map(parse_arm, ("async/all/fill/where", "sync/resident/skip/where", "async/rows/always/index")),
]
TRAFFIC = (
    Recipe("pure", 6, max_tokens=6, seed=1),
    Recipe("spliced", 9, num_images=1, max_tokens=3, seed=2),
    Recipe("ids", 5, num_images=2, max_tokens=5, seed=3),
    Recipe("ids", 40, max_tokens=4, seed=4),
    Recipe("pure", 37, max_tokens=4, seed=5),
    Recipe("spliced", 6, max_tokens=7, seed=6),
)


def traffic(model: ModelSpec) -> Case:
    recipes = TRAFFIC if model.is_multimodal else tuple(replace(r, num_images=0) for r in TRAFFIC)
    return Case(model, CONFIG, recipes, gap=1)


@pytest.mark.parametrize("kind", ["inline", "process"])
@pytest.mark.parametrize(
    "model", [MICRO_GEMMA3_VL, MICRO_QWEN25_VL, MICRO_QWEN3], ids=lambda model: model.name
)
def test_what_the_commands_say_is_what_the_copies_counted_on_every_step_of_every_arm(
    model: ModelSpec, kind: str, devices: Any
) -> None:
    device = devices(kind, model, CONFIG)
    for arm in ALL_ARMS:
        if not arm.fits(model.is_multimodal):
            continue
        case = traffic(model)
        engine = Engine(model, CONFIG, device, arm)
        with probed(engine, device) as probe:
            engine.run(case.arrivals(arm.prompt_embeds))
        check_finished(engine)
        assert counted(engine) == predicted(probe, model)


def counted(engine: Engine) -> list[tuple[dict[str, int], dict[str, int], int]]:
    return [(dict(step.copies), dict(step.bytes), step.download_bytes) for step in engine.recorder.steps]


def predicted(probe: Probe, model: ModelSpec) -> list[tuple[dict[str, int], dict[str, int], int]]:
    """From the commands' fields and the shapes of the buffers they name."""
    table = buffer_table(CONFIG, model)
    steps = []
    for step in probe.steps:
        copies: Counter[str] = Counter()
        num_bytes: Counter[str] = Counter()
        downloaded = 0
        for command in step.commands:
            if isinstance(command, Upload):
                copies[command.buffer] += 1
                num_bytes[command.buffer] += command.count * row_bytes(table[command.buffer])
            if isinstance(command, Download):
                downloaded += command.count * row_bytes(table[command.buffer])
        steps.append((dict(copies), dict(num_bytes), downloaded))
    return steps


@pytest.mark.parametrize("name", ARMS)
def test_a_device_that_computes_nothing_is_told_the_same(name: str, devices: Any) -> None:
    """So that what an arm does can be read without running it. Token values change no command here."""
    arm = ARMS[name]
    model = MICRO_QWEN3 if arm.models == "text" else MICRO_GEMMA3_VL
    real = devices("inline", model, CONFIG)
    engine = Engine(model, CONFIG, real, arm)
    with probed(engine, real) as probe:
        engine.run(traffic(model).arrivals(arm.prompt_embeds))
    told: list[list[Any]] = []
    null = NullDevice(model, CONFIG, lambda _step_id, commands: told.append(list(commands)), token_id=9)
    pretended = Engine(model, CONFIG, null, arm)
    pretended.run(traffic(model).arrivals(arm.prompt_embeds))
    assert told == [step.commands for step in probe.steps]
    assert counted(pretended) == counted(engine)


@pytest.mark.parametrize(("name", "buffer"), [("refresh", "inputs_embeds"), ("async-rows", "supplied_rows")])
def test_supplied_rows_cost_what_the_arm_says(name: str, buffer: str, devices: Any) -> None:
    """`all`: every scheduled row of a step with host ids; `rows`: the supplied ones; resident: once."""
    model = MICRO_GEMMA3_VL
    engine = run(model, ARMS[name], [(0, ids(6, length=10)), (2, pure(3, length=7))], devices)
    row = model.hidden_size * 4
    uploaded = [step.bytes.get(buffer, 0) // row for step in engine.recorder.steps]
    expected = [10, 0, 8] if name == "refresh" else [0, 0, 7]
    assert uploaded == [*expected, 0, 0, 0]
    assert [step.num_supplied_rows for step in engine.recorder.steps] == [0, 0, 7, 0, 0, 0]
    resident = run(model, ARMS["resident"], [(0, ids(6, length=10)), (2, pure(3, length=7))], devices)
    arena = [step.bytes.get("resident_rows", 0) // row for step in resident.recorder.steps]
    assert arena == [0, 0, 7, 0, 0, 0]


def test_resident_rows_travel_once_however_many_chunks_they_are_read_in(devices: Any) -> None:
    engine = run(MICRO_GEMMA3_VL, ARMS["fused"], [(0, Recipe("spliced", 50, max_tokens=3, seed=1))], devices)
    steps = engine.recorder.steps
    assert [step.num_tokens for step in steps] == [32, 18, 1, 1]
    assert [step.bytes.get("resident_rows", 0) for step in steps] == [50 * 64 * 4, 0, 0, 0]
    assert [step.bytes.get("resident_mask", 0) for step in steps] == [50, 0, 0, 0]
