"""The order in which the CUDA device launches, records and waits, against a recording fake of torch.cuda."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN3
from arm_probes import edited
from arm_workloads import Arrivals, Recipe, outputs, request_of
from fake_cuda import FakeCuda, FakeEvent, LoggedProgram, program_maker

from runner.commands import OUTPUT_READY, UPLOADS_DONE, Command, Lookup, Record, Wait, buffer_table, row_bytes
from runner.config import RunnerConfig
from runner.core import DeviceError, RunnerError
from runner.device.base import open_device
from runner.device.cuda import CudaDevice, graph_ladder
from runner.engine import Engine
from runner.executor import Executor
from runner.inputs.arms import ARMS
from runner.kernels.program import Program
from runner.measure import Instrument
from runner.ranges import NoRanges
from runner.spans import Span

MODEL = MICRO_GEMMA3_VL
CONFIG = RunnerConfig(
    max_num_seqs=2,
    max_num_batched_tokens=8,
    max_model_len=32,
    block_size=8,
    num_blocks=8,
    num_resident_rows=16,
    cuda_graphs=False,
)

# Three consecutive async steps of `refresh`: a prompt, then two decodes, all three planned ahead.
GOLDEN = """
compute: record start 0
compute: upload input_ids
compute: upload step_metadata.0
compute: upload is_token_ids
compute: upload inputs_embeds
compute: record uploads 0
compute: positions step_metadata.0
compute: merge.ids where
compute: lookup safe
compute: merge where
compute: forward
compute: sample sampled_ids.0
compute: record sampled 0
output: wait sampled 0
output: download sampled_ids.0
output: record output 0
host: reached uploads 0
compute: record start 1
compute: upload step_metadata.1
compute: upload is_token_ids
compute: record uploads 1
compute: positions step_metadata.1
compute: route.ids slice
compute: merge.ids where
compute: lookup safe
compute: merge where
compute: forward
compute: sample sampled_ids.1
compute: record sampled 1
output: wait sampled 1
output: download sampled_ids.1
output: record output 1
host: reached output 0
host: reached uploads 1
compute: record start 2
compute: upload step_metadata.0
compute: upload is_token_ids
compute: record uploads 2
compute: positions step_metadata.0
compute: route.ids slice
compute: merge.ids where
compute: lookup safe
compute: merge where
compute: forward
compute: sample sampled_ids.0
compute: record sampled 2
output: wait sampled 2
output: download sampled_ids.0
output: record output 2
host: reached output 1
host: reached output 2
""".strip().splitlines()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = FakeCuda()
    fake.install(monkeypatch)
    yield fake


def serve_three_steps(cuda: FakeCuda, device: CudaDevice, config: RunnerConfig = CONFIG) -> Engine:
    engine = Engine(MODEL, config, device, ARMS["refresh"])
    cuda.clear()
    engine.run(Arrivals([(0, request_of(MODEL, "r", Recipe("pure", 4, max_tokens=3, seed=1)))]))
    return engine


def test_three_async_steps_launch_record_and_wait_in_this_order(
    cuda: FakeCuda, models_built_once: None
) -> None:
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        engine = serve_three_steps(cuda, device)
        assert cuda.log == GOLDEN
    assert cuda.log[-1] == "synchronize device", "nothing may run when the buffers go"
    assert len(engine.recorder.steps) == 3


def test_a_fence_behind_the_embeddings_is_recorded_just_before_the_forward(
    cuda: FakeCuda, models_built_once: None
) -> None:
    """The same order but for that."""
    late = []
    for line in GOLDEN:
        if line == "compute: forward":
            late.append(f"compute: record embeddings {sum('record embeddings' in one for one in late)}")
        if not line.startswith("compute: record uploads"):
            late.append(line.replace("reached uploads", "reached embeddings"))
    cuda.event_names = ("start", "embeddings", "sampled", "output")
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        serve_three_steps(cuda, device, replace(CONFIG, fence="embeddings"))
        assert cuda.log == late


def test_the_tokens_are_those_of_every_other_device(
    cuda: FakeCuda, devices: Any, models_built_once: None
) -> None:
    request = request_of(MODEL, "r", Recipe("pure", 4, max_tokens=3, seed=1))
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        tokens = outputs(serve_three_steps(cuda, device))
    inline = Engine(MODEL, CONFIG, devices("inline", MODEL, CONFIG), ARMS["refresh"])
    inline.run(Arrivals([(0, request)]))
    assert tokens == outputs(inline)


# ---- dropping any one of them shows

Drop = Callable[[Command], bool]
PER_STEP: dict[str, Drop] = {
    "the wait for the sampled ids": lambda command: isinstance(command, Wait),
    "the record of the uploads": lambda command: (
        isinstance(command, Record) and command.event == UPLOADS_DONE
    ),
    "the record of the sampled ids": lambda command: (
        isinstance(command, Record) and command.event == "sampled"
    ),
    "the record of the output": lambda command: isinstance(command, Record) and command.event == OUTPUT_READY,
}


@pytest.mark.parametrize("step_id", range(3))
@pytest.mark.parametrize("name", PER_STEP)
def test_dropping_one_wait_or_record_of_one_step_shows(
    name: str, step_id: int, cuda: FakeCuda, models_built_once: None
) -> None:
    def edit(step: int, commands: Sequence[Command]) -> list[Command]:
        return [command for command in commands if step != step_id or not PER_STEP[name](command)]

    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device, edited(device, edit):
        try:
            serve_three_steps(cuda, device)
        except (KeyError, RunnerError):
            return  # a wait for an event that was never recorded
        assert cuda.log != GOLDEN


@pytest.mark.parametrize("number", range(5))
def test_dropping_one_wait_of_the_host_shows(
    number: int, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, models_built_once: None
) -> None:
    """The fence, and the waits for a step's output."""
    assert sum(line.startswith("host:") for line in GOLDEN) == 5
    wait = CudaDevice.wait
    seen: list[str] = []

    def skip_one(device: CudaDevice, event: str, step_id: int) -> None:
        seen.append(event)
        if len(seen) - 1 != number:
            wait(device, event, step_id)

    monkeypatch.setattr(CudaDevice, "wait", skip_one)
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        serve_three_steps(cuda, device)
    assert seen.count(UPLOADS_DONE) == 2
    assert seen.count(OUTPUT_READY) == 3
    assert cuda.log[: len(GOLDEN)] != GOLDEN


def test_without_the_fence_the_golden_order_differs(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, models_built_once: None
) -> None:
    monkeypatch.setattr(Executor, "_wait_for_fence", lambda _executor: None)
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        serve_three_steps(cuda, device)
        assert cuda.log == [line for line in GOLDEN if not line.startswith("host: reached uploads")]


# ---- buffers, events, clocks


def test_every_host_buffer_is_pinned_and_every_event_new_timed_and_blocking(
    cuda: FakeCuda, models_built_once: None
) -> None:
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        table = buffer_table(CONFIG, MODEL)
        assert cuda.pinned == [item.shape[0] * row_bytes(item) for item in table.values()]
        assert set(device.host) == set(table)
        serve_three_steps(cuda, device)
    assert len(cuda.events) == 12
    assert all(event.is_timed and event.is_blocking and event.is_recorded for event in cuda.events)
    assert [stream.name for stream in cuda.streams] == ["compute", "output"]


def test_a_report_is_read_only_from_adjacent_events_and_only_after_the_output(
    cuda: FakeCuda, models_built_once: None
) -> None:
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        serve_three_steps(cuda, device)
    (first, *pairs) = cuda.elapsed
    assert first[1] == "start 0"  # from the event that ties the clocks
    assert pairs == [
        ("start 0", "output 0"),
        ("start 0", "start 1"),
        ("start 1", "output 1"),
        ("start 1", "start 2"),
        ("start 2", "output 2"),
    ]


def test_times_are_summed_in_integers_from_step_to_step(cuda: FakeCuda, models_built_once: None) -> None:
    """After a minute a float32 of milliseconds counts in steps of 4 us; here every step stays exact."""
    cuda.tick_ns = 123_457
    config = RunnerConfig(
        max_num_seqs=1,
        max_num_batched_tokens=4,
        max_model_len=100,
        block_size=8,
        num_blocks=16,
        cuda_graphs=False,
    )
    with CudaDevice(MODEL, config, program_maker(cuda)) as device:
        engine = Engine(MODEL, config, device, ARMS["sync-ids"])
        cuda.now_ns += 3_600_000_000_000  # an hour after the clocks were tied
        device._start_clock()
        engine.run(Arrivals([(0, request_of(MODEL, "r", Recipe("ids", 2, max_tokens=60, seed=1)))]))
    steps = engine.recorder.steps
    starts = [step.device_start_ns for step in steps]
    assert {after - before for before, after in pairwise(starts)} == {4 * 123_457}
    assert {step.device_ns for step in steps} == {3 * 123_457}


# ---- spans


def spans_of_three_steps(cuda: FakeCuda, device: CudaDevice) -> tuple[Engine, list[Span]]:
    instrument = Instrument("events", NoRanges())
    engine = Engine(MODEL, CONFIG, device, ARMS["refresh"], instrument)
    cuda.clear()
    engine.run(Arrivals([(0, request_of(MODEL, "r", Recipe("pure", 4, max_tokens=3, seed=1)))]))
    return engine, instrument.spans


def test_every_command_has_a_span_on_its_stream_and_one_of_its_queueing(
    cuda: FakeCuda, models_built_once: None
) -> None:
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        engine, spans = spans_of_three_steps(cuda, device)
    for record in engine.recorder.steps:
        own = [span for span in spans if span.step_id == record.step_id]
        computed = [span.name for span in own if span.lane == "compute"]
        assert computed[-2:] == ["forward", "sample"] and "upload.is_token_ids" in computed
        assert [span.name for span in own if span.lane == "output"] == ["download"]
        queued = [span for span in own if span.lane == "host" and span.name in (*computed, "download")]
        assert [span.name for span in queued] == [*computed, "download"]
        (launch,) = (span for span in own if span.name == "launch")
        for span in queued:
            assert (
                (launch.start_ns or 0) <= (span.start_ns or 0) <= (span.end_ns or 0) <= (launch.end_ns or 0)
            )


def test_a_spans_time_is_that_between_its_own_two_events_and_sums_stay_exact(
    cuda: FakeCuda, models_built_once: None
) -> None:
    """A tick passes before every event: each command is one tick long, wherever on the clock it lies."""
    cuda.tick_ns = 123_457
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        engine, spans = spans_of_three_steps(cuda, device)
    for record in engine.recorder.steps:
        own = [s for s in spans if s.step_id == record.step_id and s.lane in ("compute", "output")]
        assert {span.duration_ns for span in own} == {123_457}
        times = [time for span in own for time in (span.start_ns or 0, span.end_ns or 0)]
        assert times == sorted(times)
        assert record.device_start_ns < times[0] and times[-1] < record.device_end_ns
        assert (times[0] - record.device_start_ns) % 123_457 == 0


def test_events_that_time_spans_are_used_again_once_they_are_read(
    cuda: FakeCuda, models_built_once: None
) -> None:
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        _, spans = spans_of_three_steps(cuda, device)
        timed = [span for span in spans if span.lane in ("compute", "output")]
        assert len(cuda.timers) < 2 * len(timed)
        assert len(device._timers) == len(cuda.timers), "an event was lost, or put back twice"


def test_a_span_that_is_not_done_is_null_with_a_reason_and_nobody_waits_for_it(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, models_built_once: None
) -> None:
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        monkeypatch.setattr(FakeEvent, "query", lambda event: event.is_blocking)
        _, spans = spans_of_three_steps(cuda, device)
    assert not [line for line in cuda.log if "synchronize timer" in line]
    timed = [span for span in spans if span.lane in ("compute", "output")]
    assert timed and all(
        (span.start_ns, span.end_ns, span.reason) == (None, None, "it was not done when the step was retired")
        for span in timed
    )


def test_what_is_launched_and_in_which_order_is_the_same_with_instruments(
    cuda: FakeCuda, models_built_once: None
) -> None:
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        spans_of_three_steps(cuda, device)
        assert cuda.log == GOLDEN


def test_the_uncertainty_of_the_clocks_is_what_tying_them_took(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, models_built_once: None
) -> None:
    times = iter((1_000, 9_000))
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        monkeypatch.setattr("runner.device.cuda.now_ns", lambda: next(times))
        device._start_clock()
        assert device.clock_uncertainty_ns == 8_000


def test_a_failing_command_is_typed_and_poisons_the_device(cuda: FakeCuda, models_built_once: None) -> None:
    def edit(step: int, commands: Sequence[Command]) -> list[Command]:
        return [Lookup("ids", 999_999) if isinstance(c, Lookup) and step == 1 else c for c in commands]

    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device, edited(device, edit):
        with pytest.raises(DeviceError) as caught:
            serve_three_steps(cuda, device)
        assert caught.value.step_id == 1
        for call in (lambda: device.wait(OUTPUT_READY, 0), lambda: device.execute(5, []), device.reset):
            with pytest.raises(DeviceError):
                call()
    assert cuda.log[-1] != "synchronize device", "a device that failed is not waited for"


def test_a_failure_the_device_tells_at_a_wait_is_typed(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, models_built_once: None
) -> None:
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        event = type(cuda.events[0])

        def fail(_event: object) -> None:
            raise RuntimeError("an illegal memory access was encountered")

        Engine(MODEL, CONFIG, device, ARMS["refresh"])
        monkeypatch.setattr(event, "query", fail)
        device.execute(0, [Record(UPLOADS_DONE)])
        with pytest.raises(DeviceError, match="illegal memory access") as caught:
            device.wait(UPLOADS_DONE, 0)
        assert caught.value.step_id == 0


def test_a_wait_for_a_device_that_hangs_ends_and_is_typed(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, models_built_once: None
) -> None:
    for name, seconds in (("_WAIT_TIMEOUT_S", 0.03), ("_SPIN_S", 0.01)):
        monkeypatch.setattr(f"runner.device.cuda.{name}", seconds)
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        Engine(MODEL, CONFIG, device, ARMS["refresh"])
        device.execute(0, [Record(UPLOADS_DONE)])
        cuda.events[-1].is_done = False
        with pytest.raises(
            DeviceError, match=r"step 0: uploads failed .* not reached within 0.03 s"
        ) as caught:
            device.wait(UPLOADS_DONE, 0)
        assert caught.value.step_id == 0
        with pytest.raises(DeviceError):
            device.execute(1, [])
    assert cuda.log[-1] != "synchronize device", "a device that hangs is not waited for"


# ---- captured decode steps

GRAPHS = replace(CONFIG, cuda_graphs=True)


def with_replays(golden: list[str], graph: str) -> list[str]:
    """The same order, the forward of every step but the first (a prompt) being a replay."""
    forwards = [number for number, line in enumerate(golden) if line == "compute: forward"]
    found = list(golden)
    for number in reversed(forwards[1:]):
        found.insert(number + 1, f"compute: replay {graph}")
    return found


def test_decode_steps_are_captured_once_and_replayed_in_the_same_order(
    cuda: FakeCuda, models_built_once: None
) -> None:
    """Two rows at most: sizes 2 and 1, the largest first, of embeddings made outside."""
    with CudaDevice(MODEL, GRAPHS, program_maker(cuda)) as device:
        assert device.info.graph_sizes == (1, 2)
        assert [line for line in cuda.log if "capture" in line] == [
            "compute: capture graph 0",
            "compute: capture graph 1",
        ]
        engine = serve_three_steps(cuda, device, GRAPHS)
        assert cuda.log == with_replays(GOLDEN, "graph 1")
    assert [step.graph_rows for step in engine.recorder.steps] == [0, 1, 1]


def test_plain_ids_are_looked_up_inside_their_own_graph(cuda: FakeCuda, models_built_once: None) -> None:
    with CudaDevice(MICRO_QWEN3, GRAPHS, program_maker(cuda)) as device:
        assert len(cuda.graphs) == 4, "two sizes, of ids and of embeddings"
        engine = Engine(MICRO_QWEN3, GRAPHS, device, ARMS["ids"])
        cuda.clear()
        engine.run(Arrivals([(0, request_of(MICRO_QWEN3, "r", Recipe("ids", 4, max_tokens=3, seed=1)))]))
        assert [line for line in cuda.log if "replay" in line] == ["compute: replay graph 2"] * 2
        assert not [line for line in cuda.log if "lookup" in line]
        assert {step.embeds_route for step in engine.recorder.steps} == {"graph"}


@pytest.mark.parametrize("arm", ["refresh", "gated", "fused", "ids"])
def test_replays_give_the_tokens_of_every_other_device(
    arm: str, cuda: FakeCuda, devices: Any, models_built_once: None
) -> None:
    """A graph's output is memory that the next replay overwrites: a step in flight must not need it then."""

    def requests() -> Arrivals:
        prompt_embeds = ARMS[arm].prompt_embeds
        kinds: tuple[Any, ...] = ("pure", "ids", "spliced")
        recipes = [Recipe(kind, 4 + i, max_tokens=3 + i, seed=i) for i, kind in enumerate(kinds)]
        made = [request_of(MODEL, f"r{i}", recipe, prompt_embeds) for i, recipe in enumerate(recipes)]
        return Arrivals([(2 * index, request) for index, request in enumerate(made)])

    found = []
    with CudaDevice(MODEL, GRAPHS, program_maker(cuda)) as device:
        for opened in (device, devices("inline", MODEL, CONFIG)):
            engine = Engine(MODEL, GRAPHS, opened, ARMS[arm])
            engine.run(requests())
            found.append(outputs(engine))
    assert found[0] == found[1]
    assert any("replay graph 0" in line for line in cuda.log), "no step of two rows"
    assert any("replay graph 1" in line for line in cuda.log), "no step of one row"


def test_attention_that_reads_the_device_is_not_captured(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, models_built_once: None
) -> None:
    monkeypatch.setattr(LoggedProgram, "can_be_captured", Program.can_be_captured)
    with CudaDevice(MODEL, GRAPHS, program_maker(cuda)) as device:
        assert device.info.attention == "sdpa", "which is a CPU's here"
        assert (device.info.graph_sizes, cuda.graphs) == ((), [])


def test_without_graphs_nothing_is_captured(cuda: FakeCuda, models_built_once: None) -> None:
    with CudaDevice(MODEL, CONFIG, program_maker(cuda)) as device:
        assert device.info.graph_sizes == ()
        assert cuda.graphs == []


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 64, 255, 256, 300, 1024])
def test_the_ladder_ends_with_the_largest_step_and_wastes_little(rows: int) -> None:
    ladder = graph_ladder(rows)
    assert ladder[-1] == rows
    assert list(ladder) == sorted(set(ladder))
    for wanted in range(1, rows + 1):
        graph = next(size for size in ladder if size >= wanted)
        assert graph <= max(4, 2 * wanted) and graph - wanted < 16


def test_without_a_device_the_error_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RunnerError, match="--device process"):
        open_device("cuda", MODEL, CONFIG)
