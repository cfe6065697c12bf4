"""StepRecord and Timeline: what is recorded of a step and of a request is what happened."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from fabrication import SharedDevice, Staggered, prompt_of, request, text_request
from simulation import Simulation

from runner.commands import Command, MetadataLayout, buffer_table, ring
from runner.config import Fence, RunnerConfig
from runner.core import DeviceInfo, Request
from runner.device.base import Device, DeviceReport
from runner.engine import Engine
from runner.executor import Executor
from runner.inputs.arms import ARMS
from runner.measure import StepClock
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3, ModelSpec
from runner.spans import Level

CONFIG = RunnerConfig(
    max_num_seqs=3,
    max_num_batched_tokens=24,
    max_model_len=128,
    block_size=8,
    num_blocks=48,
    num_encoder_slots=2,
    max_images_per_step=2,
)
INT32 = 4
PIXELS = math.prod((112, 112, 3))

Serve = Callable[[ModelSpec, list[tuple[int, Request]]], Engine]


@pytest.fixture(params=["inline", "process"])
def serve(request: pytest.FixtureRequest, shared_device: SharedDevice) -> Serve:
    kind: str = request.param

    def run(model: ModelSpec, arrivals: list[tuple[int, Request]]) -> Engine:
        engine = Engine(model, CONFIG, shared_device(kind, model, CONFIG))
        engine.run(Staggered(arrivals))
        return engine

    return run


def text_arrivals(model: ModelSpec) -> list[tuple[int, Request]]:
    """Prefill of `a`; its decode beside a chunk, then the rest, of `b`; decodes."""
    return [(0, text_request(model, "a", 10, 5)), (1, text_request(model, "b", 30, 3))]


def image_arrivals() -> list[tuple[int, Request]]:
    two = prompt_of(TINY_GEMMA3_VL, [2, ("image", 1), ("image", 2), 5], seed=1)
    return [
        (0, request("two", two, 3)),
        (0, request("again", prompt_of(TINY_GEMMA3_VL, [("image", 1)], 2), 2)),
    ]


def metadata_bytes(rows: int, longest: int) -> int:
    """Of a step whose longest row ends at position `longest`."""
    return MetadataLayout(rows, -(-longest // CONFIG.block_size)).size * INT32


def test_a_steps_kind_and_composition(serve: Serve) -> None:
    recorded = serve(TINY_QWEN3, text_arrivals(TINY_QWEN3)).recorder.steps
    composition = [
        (step.kind, step.num_rows, step.num_tokens, step.num_decode_rows, step.num_prefill_tokens)
        for step in recorded
    ]
    assert composition == [
        ("prefill", 1, 10, 0, 10),
        ("mixed", 2, 24, 1, 23),
        ("mixed", 2, 8, 1, 7),
        ("decode", 2, 2, 2, 0),
        ("decode", 2, 2, 2, 0),
    ]
    assert [step.step_id for step in recorded] == [0, 1, 2, 3, 4]
    assert [step.num_waiting for step in recorded] == [0] * 5
    assert {step.ids_route for step in recorded} == {"host"}


@pytest.mark.parametrize(
    "lengths", [[25], [1], [1, 30]], ids=["last chunk of one", "prompt of one", "prompt of one and chunks"]
)
def test_every_prompt_token_is_counted_as_prefill_however_short_its_chunk(
    lengths: list[int], serve: Serve
) -> None:
    made = [(0, text_request(TINY_QWEN3, f"r{i}", length, 4)) for i, length in enumerate(lengths)]
    recorded = serve(TINY_QWEN3, made).recorder.steps
    assert recorded[0].kind == "prefill"
    assert sum(step.num_prefill_tokens for step in recorded) == sum(lengths)
    assert sum(step.num_decode_rows for step in recorded) == 3 * len(lengths)


@pytest.mark.parametrize("model", [TINY_QWEN3, TINY_GEMMA3_VL], ids=lambda model: model.name)
def test_copies_and_bytes_of_every_buffer_are_those_of_the_tensors(model: ModelSpec, serve: Serve) -> None:
    recorded = serve(model, text_arrivals(model)).recorder.steps
    shapes = [(1, 10, 10), (2, 24, 23), (2, 8, 30), (2, 2, 31), (2, 2, 32)]  # rows, tokens, longest row's end
    for step, (rows, tokens, longest) in zip(recorded, shapes, strict=True):
        metadata = ring("step_metadata", step.step_id)
        assert step.copies == {"input_ids": 1, metadata: 1}
        assert step.bytes == {"input_ids": tokens * INT32, metadata: metadata_bytes(rows, longest)}
        assert step.download_bytes == rows * INT32


def test_pixels_are_uploaded_once_an_image_and_image_rows_counted_where_they_are_spliced(
    serve: Serve,
) -> None:
    recorded = serve(TINY_GEMMA3_VL, image_arrivals()).recorder.steps
    # A budget of 24: of `two` 2 text ids, 18 of image 1, 4 of image 2; then the rest and `again`.
    assert [step.num_images_encoded for step in recorded[:3]] == [2, 0, 0]
    assert [step.num_image_rows for step in recorded[:3]] == [16 + 3, 13 + 4, 12]
    assert recorded[0].copies["pixels"] == 1
    assert recorded[0].bytes["pixels"] == 2 * PIXELS
    assert all("pixels" not in step.copies for step in recorded[1:])


def test_the_embedding_route_is_that_of_the_model(serve: Serve) -> None:
    routes = {
        model.name: {step.embeds_route for step in serve(model, text_arrivals(model)).recorder.steps}
        for model in (TINY_QWEN3, TINY_GEMMA3_VL)
    }
    assert routes == {"tiny-qwen3": {"graph"}, "tiny-gemma3-vl": {"lookup"}}


def test_free_blocks_and_waiting_requests_are_those_after_planning(serve: Serve) -> None:
    made = [(0, text_request(TINY_QWEN3, f"r{i}", 8, 2)) for i in range(5)]
    first, second = serve(TINY_QWEN3, made).recorder.steps[:2]
    assert (first.num_waiting, first.num_free_blocks) == (2, CONFIG.num_blocks - 3)
    assert (second.num_waiting, second.num_free_blocks) == (2, CONFIG.num_blocks - 6)


def test_times_are_in_order_and_add_up(serve: Serve) -> None:
    recorded = serve(TINY_QWEN3, text_arrivals(TINY_QWEN3)).recorder.steps
    for step in recorded:
        assert 0 < step.handoff_ns <= step.device_start_ns - step.start_ns
        assert step.start_ns < step.device_start_ns < step.device_end_ns < step.end_ns
        assert step.device_ns == step.device_end_ns - step.device_start_ns > 0
        parts = [step.schedule_ns, step.update_batch_ns, step.compile_ns, step.launch_ns, step.retire_ns]
        assert all(part > 0 for part in parts)
        assert step.host_work_ns >= 0
        assert step.host_ns == sum(parts) + step.host_work_ns
        waits = step.wait_fence_ns + step.wait_output_ns
        assert step.host_ns + waits <= step.end_ns - step.start_ns
    for earlier, later in itertools.pairwise(recorded):
        assert earlier.end_ns <= later.start_ns
        assert earlier.device_end_ns <= later.device_start_ns


def test_a_timeline_has_a_stamp_for_every_token_in_order(serve: Serve) -> None:
    engine = serve(TINY_QWEN3, [(i, text_request(TINY_QWEN3, f"r{i}", 30, 4)) for i in range(5)])
    assert set(engine.recorder.timelines) == set(engine.requests)
    for name, timeline in engine.recorder.timelines.items():
        stamps = timeline.token_ns
        assert len(stamps) == len(engine.requests[name].output_ids) == 4
        assert timeline.first_scheduled_ns is not None
        assert timeline.sent_ns < timeline.first_scheduled_ns < stamps[0]
        assert stamps == sorted(set(stamps))
        assert timeline.finished_ns == stamps[-1]
    queued = engine.recorder.timelines["r4"]
    first_end = min(timeline.finished_ns for timeline in engine.recorder.timelines.values())
    assert queued.first_scheduled_ns > first_end, "it had to wait for a slot"


class Watched(Device):
    """A device that computes nothing and notes, at every call, what its host buffers hold."""

    def __init__(self, model: ModelSpec) -> None:
        self.host = {
            name: np.zeros(item.shape, item.dtype) for name, item in buffer_table(CONFIG, model).items()
        }
        self.info = DeviceInfo("watched", "none", 1, "none")
        self.calls: list[tuple[str, int, list[int]]] = []

    def _note(self, call: str, step_id: int) -> None:
        self.calls.append((call, step_id, self.host["input_ids"].tolist()))

    def execute(self, step_id: int, commands: Sequence[Command]) -> None:
        self._note("execute", step_id)

    def wait(self, event: str, step_id: int) -> None:
        self._note(f"wait {event}", step_id)

    def report(self, step_id: int) -> DeviceReport:
        raise AssertionError("nothing was computed")

    def reset(self, level: Level = "off") -> None:
        self._note("reset", -1)

    def close(self) -> None:
        """There is nothing to give back."""


@pytest.mark.parametrize("fence", ["uploads", "embeddings"])
def test_no_host_buffer_is_written_before_the_last_steps_fence(fence: Fence) -> None:
    """The fence: a copy may still be reading the buffers when the next step is ready to be written."""
    device = Watched(TINY_QWEN3)
    simulation = Simulation(CONFIG, TINY_QWEN3)
    executor = Executor(TINY_QWEN3, replace(CONFIG, fence=fence), ARMS["sync-ids"], device)
    simulation.submit(text_request(TINY_QWEN3, "r", 40, 2))
    for _ in range(2):
        plan = simulation.plan()
        assert plan is not None
        executor.launch(plan, simulation.scheduler.requests, StepClock())
        simulation.retire(plan)
    assert [(call, step_id) for call, step_id, _ in device.calls] == [
        ("reset", -1),
        ("execute", 0),
        (f"wait {fence}", 0),
        ("execute", 1),
    ]
    _, first, waiting, second = (held for _, _, held in device.calls)
    assert waiting == first
    assert second != first


def test_a_step_in_flight_knows_its_rows_though_the_batch_has_moved_on() -> None:
    device = Watched(TINY_QWEN3)
    simulation = Simulation(CONFIG, TINY_QWEN3)
    executor = Executor(TINY_QWEN3, CONFIG, ARMS["sync-ids"], device)
    simulation.submit(
        *(text_request(TINY_QWEN3, name, 4, count) for name, count in zip("abc", (1, 9, 9), strict=True))
    )
    flights = []
    for _ in range(2):
        plan = simulation.plan()
        assert plan is not None
        flights.append(executor.launch(plan, simulation.scheduler.requests, StepClock()))
        simulation.retire(plan)
    device.host[ring("sampled_ids", 0)][:3] = [10, 11, 12]
    device.host[ring("sampled_ids", 1)][:2] = [13, 14]
    assert flights[0].result().sampled == {"a": (10,), "b": (11,), "c": (12,)}
    assert flights[1].result().sampled == {"c": (13,), "b": (14,)}, "the last row fills the hole of the first"
    assert [call[:2] for call in device.calls[-2:]] == [("wait output", 0), ("wait output", 1)]
