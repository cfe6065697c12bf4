"""What every device promises, whatever runs behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from fabrication import SharedDevice

from runner.commands import (
    OUTPUT_READY,
    SAMPLED,
    UPLOADS_DONE,
    Command,
    Download,
    Forward,
    MetadataLayout,
    Positions,
    Record,
    Sample,
    Upload,
    Wait,
    buffer_table,
)
from runner.config import RunnerConfig
from runner.core import DeviceError, RunnerError
from runner.device.base import DEVICE_KINDS, Device, open_device
from runner.measure import now_ns
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3
from runner.spans import Level

KINDS = ("inline", "process")
CONFIG = RunnerConfig(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=16, block_size=4, num_blocks=8)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def device(kind: str, shared_device: SharedDevice) -> Device:
    """A working device, reset; not to be broken."""
    shared = shared_device(kind, TINY_QWEN3, CONFIG)
    shared.reset()
    return shared


@pytest.fixture
def own_device(kind: str) -> Iterator[Device]:
    """A device of the test's own, which it may break."""
    with open_device(kind, TINY_QWEN3, CONFIG) as opened:
        yield opened


def run(device: Device, step_id: int, commands: Sequence[Command]) -> None:
    """Execute a step to its end: downloads go out on their own stream, once the rest is done."""
    downloads = [command for command in commands if isinstance(command, Download)]
    computing = [command for command in commands if not isinstance(command, Download)]
    ending = [Record(SAMPLED), Wait(SAMPLED, "output"), *downloads, Record(OUTPUT_READY, "output")]
    device.execute(step_id, [*computing, *ending])
    device.wait(OUTPUT_READY, step_id)


def step_commands(device: Device, ids: Sequence[int], blocks: Sequence[int]) -> list[Command]:
    """A whole prefill of one row of `ids`, its input buffers written."""
    layout = MetadataLayout(1, len(blocks))
    device.host["input_ids"][: len(ids)] = ids
    device.host["step_metadata.0"][: layout.size] = [0, len(ids), 0, 0, *blocks]
    return [
        Upload("input_ids", 0, 0, len(ids)),
        Upload("step_metadata.0", 0, 0, layout.size),
        Record(UPLOADS_DONE),
        Positions("step_metadata.0", len(ids), *layout),
        Forward(len(ids), "input_ids", len(ids), len(ids), int(len(ids) == 1)),
        Sample("sampled_ids.0", 1, 1),
        Download("sampled_ids.0", 1),
    ]


# ---- buffers


def test_the_host_has_every_named_buffer_in_its_shape_and_type(device: Device) -> None:
    table = buffer_table(CONFIG, TINY_QWEN3)
    assert {name: (array.dtype.name, array.shape) for name, array in device.host.items()} == dict(table)


def test_writing_the_host_side_after_an_upload_does_not_change_the_device(device: Device) -> None:
    device.host["input_ids"][:3] = [1, 2, 3]
    device.execute(0, [Upload("input_ids", 0, 0, 3), Record(UPLOADS_DONE)])
    device.wait(UPLOADS_DONE, 0)
    device.host["input_ids"][:] = 99
    run(device, 1, [Download("input_ids", 3)])
    assert device.host["input_ids"][:4].tolist() == [1, 2, 3, 99]


def test_the_two_buffers_of_a_ring_are_separate(device: Device) -> None:
    device.host["sampled_ids.0"][:] = 5
    device.host["sampled_ids.1"][:] = 6
    run(device, 0, [Upload("sampled_ids.0", 0, 0, 2), Upload("sampled_ids.1", 0, 0, 2)])
    for name in ("sampled_ids.0", "sampled_ids.1"):
        device.host[name][:] = 0
    run(device, 1, [Download("sampled_ids.0", 2), Download("sampled_ids.1", 2)])
    assert device.host["sampled_ids.0"].tolist() == [5, 5]
    assert device.host["sampled_ids.1"].tolist() == [6, 6]


def test_two_devices_at_once_share_no_memory(kind: str, device: Device) -> None:
    with open_device(kind, TINY_QWEN3, CONFIG) as other:
        for number, each in ((7, device), (8, other)):
            each.host["input_ids"][:] = number
            run(each, 0, [Upload("input_ids", 0, 0, 2)])
            each.host["input_ids"][:] = 0
        for number, each in ((7, device), (8, other)):
            run(each, 1, [Download("input_ids", 2)])
            assert each.host["input_ids"][:2].tolist() == [number, number]


# ---- events, reports


def test_an_event_of_a_step_is_also_that_of_the_steps_before(device: Device) -> None:
    for step_id in range(3):
        device.execute(step_id, [Record(UPLOADS_DONE), Record(OUTPUT_READY)])
    for step_id in (2, 0, 1, 2):
        device.wait(OUTPUT_READY, step_id)
        device.wait(UPLOADS_DONE, step_id)


def test_a_step_computes_the_same_token_on_every_device(kind: str, shared_device: SharedDevice) -> None:
    tokens = []
    for each in ("inline", kind):
        device = shared_device(each, TINY_QWEN3, CONFIG)
        device.reset()
        run(device, 0, step_commands(device, [5, 6, 7, 8, 9], [3, 1]))
        tokens.append(int(device.host["sampled_ids.0"][0]))
    assert tokens[0] == tokens[1]
    assert 0 <= tokens[0] < TINY_QWEN3.vocab_size


def test_a_report_counts_the_copies_of_its_own_step_only(device: Device) -> None:
    run(device, 0, [Upload("input_ids", 0, 0, 5), Upload("input_ids", 0, 0, 3), Download("input_ids", 2)])
    run(device, 1, [Upload("step_metadata.1", 0, 0, 4)])
    first, second = device.report(0), device.report(1)
    assert (first.copies, first.bytes) == ({"input_ids": 2}, {"input_ids": 32})
    assert first.download_bytes == 8
    assert (second.copies, second.bytes) == ({"step_metadata.1": 1}, {"step_metadata.1": 16})
    assert second.download_bytes == 0


def test_a_reports_times_lie_between_submission_and_wait_on_the_hosts_clock(device: Device) -> None:
    before = now_ns()
    run(device, 0, step_commands(device, [5, 6, 7], [2]))
    after = now_ns()
    report = device.report(0)
    assert before <= report.start_ns < report.end_ns <= after


SPANS = ("upload.input_ids", "upload.step_metadata", "positions", "forward", "sample", "download")


def test_every_command_of_a_step_has_its_span_within_the_steps_own_time(device: Device) -> None:
    device.reset("events")
    for step_id in range(2):
        run(device, step_id, step_commands(device, [5, 6, 7], [2]))
    for step_id in range(2):
        spans, report = device.spans(step_id, SPANS), device.report(step_id)
        assert tuple(span.name for span in spans) == SPANS
        assert {(span.step_id, span.lane, span.reason) for span in spans} == {(step_id, "compute", None)}
        times = [time or 0 for span in spans for time in (span.start_ns, span.end_ns)]
        assert times == sorted(times)
        assert report.start_ns <= times[0] and times[-1] <= report.end_ns


@pytest.mark.parametrize("level", ["off", "nvtx", "host"])
def test_below_events_a_device_records_no_span(device: Device, level: Level) -> None:
    device.reset(level)
    run(device, 0, step_commands(device, [5, 6, 7], [2]))
    assert device.spans(0, SPANS) == ()


def test_a_command_that_did_not_run_has_a_span_without_times_and_a_reason(device: Device) -> None:
    device.reset("events")
    run(device, 0, [Upload("input_ids", 0, 0, 2)])
    ran, other = device.spans(0, ("upload.input_ids", "draft"))
    assert ran.reason is None and (ran.duration_ns or 0) > 0
    assert (other.name, other.start_ns, other.end_ns) == ("draft", None, None)
    assert other.reason == "it had not run when the step was retired"


def test_a_step_with_more_commands_than_there_is_room_for_says_so_and_loses_no_other(device: Device) -> None:
    device.reset("events")
    run(device, 0, [Upload("input_ids", 0, 0, 2)] * 500)
    spans = device.spans(0, ["upload.input_ids"] * 500)
    without = [span for span in spans if span.duration_ns is None]
    assert len(spans) == 500 and 0 < len(without) < 500
    assert {span.reason for span in without} == {"the step has more spans than there is room for"}
    run(device, 1, [Upload("input_ids", 0, 0, 2)])
    assert [span.reason for span in device.spans(1, ["upload.input_ids"])] == [None]


def test_a_device_names_itself(kind: str, device: Device) -> None:
    assert device.info.kind == kind
    assert device.info.num_threads == CONFIG.num_threads
    assert device.info.torch_version


# ---- reset


def test_a_reset_poisons_both_sides_of_every_buffer(device: Device) -> None:
    device.host["input_ids"][:] = 5
    run(device, 0, [Upload("input_ids", 0, 0, 8)])
    device.reset()
    for array in device.host.values():
        poison = np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).max
        assert np.array_equal(array, np.full_like(array, poison), equal_nan=array.dtype.kind == "f")
    run(device, 0, [Download("input_ids", 8)])
    assert device.host["input_ids"].tolist() == [-1] * 8


def test_after_a_reset_steps_count_from_zero_again(device: Device) -> None:
    for step_id in range(4):
        run(device, step_id, [])
    device.reset()
    device.host["input_ids"][:2] = [3, 4]
    run(device, 0, [Upload("input_ids", 0, 0, 2)])
    assert device.report(0).copies == {"input_ids": 1}


def test_what_is_read_after_a_reset_without_being_written_shows(device: Device) -> None:
    """Ids of -1 reach the lookup only if a step forgets its upload."""
    commands = step_commands(device, [5, 6, 7], [2])
    run(device, 0, commands)
    expected = device.host["sampled_ids.0"][0]
    device.reset()
    run(device, 0, step_commands(device, [5, 6, 7], [2]))
    assert device.host["sampled_ids.0"][0] == expected


# ---- errors


def fail(device: Device, step_id: int, commands: Sequence[Command]) -> DeviceError:
    with pytest.raises(DeviceError) as caught:
        run(device, step_id, commands)
    return caught.value


def test_an_error_names_its_step_and_command_and_brings_the_devices_traceback(own_device: Device) -> None:
    run(own_device, 0, [])
    run(own_device, 1, [])
    error = fail(own_device, 2, [Upload("nothing", 0, 0, 1)])
    assert error.step_id == 2
    assert "upload" in error.command
    assert "nothing" in error.command
    assert "Traceback" in error.traceback_text
    assert "KeyError" in error.traceback_text
    assert "step 2" in str(error)
    assert "KeyError" in str(error)


def test_an_id_of_minus_one_that_reaches_the_lookup_is_a_typed_error(own_device: Device) -> None:
    error = fail(own_device, 0, step_commands(own_device, [5, -1, 6], [2]))
    assert error.step_id == 0
    assert "forward" in error.command


@pytest.mark.parametrize("block", [-1, CONFIG.num_blocks])
def test_a_block_outside_the_cache_is_a_typed_error(own_device: Device, block: int) -> None:
    error = fail(own_device, 0, step_commands(own_device, [5, 6, 7, 8, 9], [2, block]))
    assert error.step_id == 0
    assert "positions" in error.command
    assert "block id" in str(error)


def test_an_error_poisons_every_later_call(own_device: Device) -> None:
    first = fail(own_device, 0, [Upload("nothing", 0, 0, 1)])
    calls = [
        lambda: own_device.execute(1, [Record(OUTPUT_READY)]),
        lambda: own_device.wait(OUTPUT_READY, 0),
        lambda: own_device.wait(OUTPUT_READY, 1),
        lambda: own_device.wait(UPLOADS_DONE, 0),
        own_device.reset,
        lambda: own_device.report(0),
    ]
    for call in calls:
        with pytest.raises(DeviceError) as caught:
            call()
        assert (caught.value.step_id, caught.value.command) == (first.step_id, first.command)


def test_a_broken_device_can_be_closed_and_another_opened(kind: str) -> None:
    for _ in range(2):
        with open_device(kind, TINY_QWEN3, CONFIG) as opened:
            run(opened, 0, [])
            fail(opened, 1, [Upload("nothing", 0, 0, 1)])


def test_closing_twice_is_harmless(kind: str) -> None:
    opened = open_device(kind, TINY_QWEN3, CONFIG)
    opened.close()
    opened.close()


def test_closing_with_steps_in_flight_is_harmless(kind: str) -> None:
    opened = open_device(kind, TINY_QWEN3, CONFIG)
    commands = step_commands(opened, [5, 6, 7], [2])
    for step_id in range(2):
        opened.execute(step_id, commands)
    opened.close()


def test_an_unknown_kind_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(RunnerError) as caught:
        open_device("abacus", TINY_QWEN3, CONFIG)
    assert "'abacus'" in str(caught.value)
    assert all(known in str(caught.value) for known in DEVICE_KINDS)


def test_sizes_the_model_cannot_have_are_refused_before_anything_is_opened(kind: str) -> None:
    too_long = RunnerConfig(max_model_len=TINY_GEMMA3_VL.max_position + 1)
    with pytest.raises(RunnerError, match="max_model_len is 4097"):
        open_device(kind, TINY_GEMMA3_VL, too_long)
