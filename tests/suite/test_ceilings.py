"""Shares of ceilings: arithmetic over fabricated times, and counts of passes against real command lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

import pytest
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN3
from arm_workloads import Arrivals, Recipe, request_of
from ceiling_fabrication import ceilings, point
from records import make_step

from runner.commands import Command, Positions
from runner.config import RunnerConfig
from runner.core import FloatType
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.measure import StepRecord
from runner.models import TINY_QWEN3
from runner.spans import Lane, Span
from suite.ceilings import (
    CeilingShare,
    linear_parameters,
    passes_of,
    shares,
    time_at,
)
from suite.command_costs import pass_of

HIDDEN = TINY_QWEN3.hidden_size
ROW = HIDDEN * 4


def step(step_id: int, kind: str = "decode", **changes: object) -> StepRecord:
    return make_step(step_id, step_id * 10, step_id * 10 + 10, kind, **changes)


def span(step_id: int, name: str, duration_ns: int | None, lane: Lane = "compute") -> Span:
    if duration_ns is None:
        return Span(step_id, name, lane, None, None, "it had not run")
    return Span(step_id, name, lane, 1000, 1000 + duration_ns)


def found(rows: Sequence[CeilingShare], name: str, group: str = "decode") -> CeilingShare:
    (row,) = (row for row in rows if (row.span, row.group) == (name, group))
    return row


def test_time_is_linear_between_sizes_and_keeps_the_last_rate_beyond() -> None:
    points = (point(300, 70), point(100, 10), point(200, 30))
    assert [time_at(points, size) for size in (1, 100, 150, 200, 275, 300, 600)] == [
        *(10, 10, 20, 30, 60, 70),
        140,
    ]


def test_forward_counts_two_operations_a_weight_and_token() -> None:
    steps = [step(step_id=1, num_tokens=64), step(step_id=2, num_tokens=32)]
    spans = [span(1, "forward", 128_000), span(2, "forward", 64_000)]
    row = found(shares(ceilings(), steps, spans, TINY_QWEN3, ARMS["sync-ids"]), "forward")
    operations = 2 * linear_parameters(TINY_QWEN3) * 96
    assert row.value == pytest.approx(operations / 192_000)
    assert row.ceiling == pytest.approx(operations / 96_000)
    assert row.share == pytest.approx(0.5)
    assert (row.unit, row.n, row.reason) == ("GFLOP/s", 2, None)


def test_the_linear_layers_of_tiny_qwen3_by_hand() -> None:
    """4 layers: q and o of 256 x 256, k and v of 256 x 128, gate, up and down of 256 x 512."""
    assert linear_parameters(TINY_QWEN3) == 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512)


def test_uploads_are_held_against_as_many_copies_of_their_mean_size() -> None:
    """2 copies of 500 bytes take 2 x 600 ns at best; a ring buffer goes by its plain name."""
    made = step(step_id=3, copies={"step_metadata.1": 2}, bytes={"step_metadata.1": 1000})
    spans = [span(3, "upload.step_metadata", 1000), span(3, "upload.step_metadata", 3800)]
    row = found(shares(ceilings(), [made], spans, TINY_QWEN3, ARMS["refresh"]), "upload.step_metadata")
    assert row.value == pytest.approx(1000 / 4800)
    assert row.share == pytest.approx(1200 / 4800)


def test_a_merge_is_held_against_a_copy_that_moves_as_much() -> None:
    """where: 5 rows and a flag a token, at 2 bytes a ns."""
    made = step(step_id=4, kind="mixed", num_tokens=100, num_supplied_rows=40, embeds_route="merge")
    moved = 100 * (1 + 5 * ROW)
    rows = shares(ceilings(), [made], [span(4, "merge", 2 * moved)], TINY_QWEN3, ARMS["refresh"])
    row = found(rows, "merge", "mixed")
    assert row.value == pytest.approx(0.5)
    assert row.share == pytest.approx(0.25, rel=0.001)
    assert found(rows, "lookup", "mixed").reason == "these steps have no span lookup"


def test_the_hosts_lane_is_no_device_time() -> None:
    made = step(step_id=1, num_tokens=16)
    spans = [span(1, "forward", 32_000), span(1, "forward", 10**9, "host")]
    row = found(shares(ceilings(), [made], spans, TINY_QWEN3, ARMS["sync-ids"]), "forward")
    assert row.share == pytest.approx(0.5)


def test_steps_without_a_time_are_left_out_and_counted_out() -> None:
    steps = [step(step_id=1, num_tokens=16), step(step_id=2, num_tokens=16)]
    spans = [span(1, "forward", 32_000), span(2, "forward", None)]
    row = found(shares(ceilings(), steps, spans, TINY_QWEN3, ARMS["sync-ids"]), "forward")
    assert (row.n, row.share) == (1, pytest.approx(0.5))
    halves = [*spans[:1], span(1, "forward", None), span(1, "forward", 7)]
    assert found(shares(ceilings(), steps, halves, TINY_QWEN3, ARMS["sync-ids"]), "forward").n == 0
    none = found(shares(ceilings(), steps[1:], spans[1:], TINY_QWEN3, ARMS["sync-ids"]), "forward")
    assert (none.value, none.ceiling, none.share, none.n) == (None, None, None, 0)
    assert none.reason == "none of its spans has a time"


def test_a_run_without_device_spans_says_what_it_lacks() -> None:
    spans = [Span(1, "retire", "host", 0, 5)]
    rows = shares(ceilings(), [step(step_id=1)], spans, TINY_QWEN3, ARMS["sync-ids"])
    assert {row.reason for row in rows} == {"the run holds no device spans; they need --instrument events"}


def test_decode_and_other_steps_are_told_apart() -> None:
    steps = [
        step(step_id=index, kind=kind, num_tokens=16)
        for index, kind in enumerate(("decode", "prefill", "mixed"))
    ]
    spans = [span(index, "forward", 1000) for index in range(3)]
    rows = shares(ceilings(), steps, spans, TINY_QWEN3, ARMS["sync-ids"])
    assert [found(rows, "forward", group).n for group in ("decode", "mixed")] == [1, 2]


def test_an_empty_step_is_in_no_figure() -> None:
    row = found(shares(ceilings(), [step(1)], [span(1, "forward", 9)], TINY_QWEN3, ARMS["ids"]), "forward")
    assert (row.n, row.value) == (0, None)


@pytest.mark.parametrize(("load", "is_told"), [(None, False), (0.9, False), (1.1, True)])
def test_ceilings_of_a_busy_machine_come_with_a_caveat(load: float | None, is_told: bool) -> None:
    caveat = ceilings(load_average=load).caveat
    assert (caveat is not None) == is_told
    assert caveat is None or ("load 1.1 on 2 cores" in caveat and "--fresh" in caveat)


def test_the_caveats_command_measures_the_same_ceilings_again() -> None:
    busy = ceilings(load_average=9.0, dtype="float16", device="inline", num_threads=2)
    command = "--only ceilings --dtype float16 --model tiny-qwen3 --threads 2 --device inline --fresh"
    assert (busy.caveat or "").endswith(f"python -m suite micro {command}")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_forward_is_held_against_a_ceiling_of_its_own_type_alone(dtype: FloatType) -> None:
    steps, spans = [step(step_id=1, num_tokens=64)], [span(1, "forward", 128_000)]
    for computed in get_args(FloatType):
        rows = shares(ceilings(dtype=dtype), steps, spans, TINY_QWEN3, ARMS["sync-ids"], computed)
        row = found(rows, "forward")
        assert (row.share, row.n) == ((pytest.approx(0.5), 1) if computed == dtype else (None, 0))
        reason = row.reason or ""
        told = f"measured in {dtype}, and the model computes in {computed}"
        assert computed == dtype or (told in reason and f"--dtype {computed}" in reason)


def test_ceilings_of_another_model_are_refused() -> None:
    with pytest.raises(ValueError, match="the ceilings are those of tiny-qwen3, the steps those of micro"):
        shares(ceilings(), [], [], MICRO_QWEN3, ARMS["sync-ids"])


CONFIG = RunnerConfig(max_num_seqs=4, max_num_batched_tokens=24, max_model_len=128, num_blocks=64)


@pytest.mark.parametrize("name", ARMS)
def test_the_passes_of_a_step_are_those_of_its_commands(name: str) -> None:
    """Read back from records alone, for every arm, on steps of every route."""
    arm = ARMS[name]
    model = MICRO_QWEN3 if arm.models == "text" else MICRO_GEMMA3_VL
    lists: list[Sequence[Command]] = []
    device = NullDevice(model, CONFIG, lambda _step_id, commands: lists.append(commands), token_id=9)
    engine = Engine(model, CONFIG, device, arm)
    recipes = (Recipe("ids", 10), Recipe("pure", 7, seed=1), Recipe("spliced", 30, seed=2), Recipe("ids", 5))
    engine.run(
        Arrivals(
            (index * 3, request_of(model, f"r{index}", recipe, arm.prompt_embeds))
            for index, recipe in enumerate(recipes)
        )
    )
    steps = engine.recorder.steps
    assert len(steps) == len(lists)
    assert {made.kind for made in steps} >= {"decode", "mixed"}
    for made, commands in zip(steps, lists, strict=True):
        derives = any(isinstance(command, Positions) and command.derives_flags for command in commands)
        billed = [
            pass_of(command, derives)
            for command in commands
            if command.operation in ("place", "lookup", "merge")
        ]
        assert Counter(passes_of(made, arm)) == Counter(billed)
