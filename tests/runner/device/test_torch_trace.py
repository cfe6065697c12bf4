"""torch's profiler in a device: the spans' names, each in its step's range, and only when asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from fabrication import SharedDevice
from torch.profiler import profile, record_function

from runner.commands import OUTPUT_READY, Record, Upload
from runner.config import RunnerConfig
from runner.core import RunnerError
from runner.device.base import Device
from runner.device.null import NullDevice
from runner.device.torch_trace import TorchRanges, TorchTrace
from runner.models import TINY_QWEN3
from runner.ranges import NvtxRanges

CONFIG = RunnerConfig(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=16, block_size=4, num_blocks=8)


@pytest.fixture(params=["inline", "process"])
def device(request: pytest.FixtureRequest, shared_device: SharedDevice) -> Iterator[Device]:
    shared = shared_device(request.param, TINY_QWEN3, CONFIG)
    shared.reset()
    yield shared
    shared.reset()


def run_steps(device: Device, number: int) -> None:
    for step_id in range(number):
        device.host["input_ids"][:4] = 5
        device.execute(step_id, [Upload("input_ids", 0, 0, 4), Record(OUTPUT_READY, "output")])
        device.wait(OUTPUT_READY, step_id)


def annotations(path: Path) -> list[tuple[str, float, float]]:
    """Name, start and end (us) of every range in a trace, in order of start."""
    events = json.loads(path.read_text())["traceEvents"]
    found = [event for event in events if event.get("cat") == "user_annotation"]
    return sorted(((e["name"], e["ts"], e["ts"] + e["dur"]) for e in found), key=lambda item: item[1])


def test_every_command_lies_in_a_range_of_its_name_in_one_of_its_step(device: Device, tmp_path: Path) -> None:
    device.start_trace()
    device.reset("events")
    run_steps(device, 3)
    device.write_trace(str(tmp_path / "trace.json"))
    found = annotations(tmp_path / "trace.json")
    steps = [item for item in found if item[0].startswith("stepcost step ")]
    uploads = [item for item in found if item[0] == "upload.input_ids"]
    assert [name for name, _, _ in steps] == [f"stepcost step {number}" for number in range(3)]
    assert len(uploads) == 3
    for (_, start, end), (_, outer_start, outer_end) in zip(uploads, steps, strict=True):
        assert outer_start <= start <= end <= outer_end
    assert all(left[2] <= right[1] for left, right in pairwise(steps))


def test_what_comes_after_a_trace_is_in_none(device: Device, tmp_path: Path) -> None:
    device.start_trace()
    device.reset("host")
    run_steps(device, 1)
    device.write_trace(str(tmp_path / "first.json"))
    device.reset("host")
    run_steps(device, 5)
    device.start_trace()
    device.reset("host")
    run_steps(device, 2)
    device.write_trace(str(tmp_path / "second.json"))
    names = [name for name, _, _ in annotations(tmp_path / "second.json")]
    assert names == ["stepcost step 0", "upload.input_ids", "stepcost step 1", "upload.input_ids"]


def test_an_instrument_that_is_off_leaves_no_range(device: Device, tmp_path: Path) -> None:
    device.start_trace()
    device.reset("off")
    run_steps(device, 1)
    device.write_trace(str(tmp_path / "trace.json"))
    assert annotations(tmp_path / "trace.json") == []


def test_a_device_that_computes_nothing_says_so() -> None:
    device = NullDevice(TINY_QWEN3, CONFIG, lambda *_: None)
    with pytest.raises(RunnerError, match="nothing that torch's profiler could record"):
        device.start_trace()


def test_what_an_error_left_open_is_closed_before_the_next_step(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with profile() as profiled:
        ranges = TorchRanges()
        ranges.push("forward", 0)  # never popped
        ranges.push("forward", 1)
        ranges.pop()
        ranges.close()
        with record_function("after"):
            pass
    profiled.export_chrome_trace(str(path))
    found = {name: (start, end) for name, start, end in annotations(path)}
    assert set(found) == {"stepcost step 0", "stepcost step 1", "forward", "after"}
    assert found["stepcost step 0"][1] <= found["stepcost step 1"][0]
    assert found["stepcost step 1"][1] <= found["after"][0]


def test_a_trace_takes_the_place_of_nvtx_only_while_it_lasts(tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    trace = TorchTrace()
    assert isinstance(trace.make_ranges(), NvtxRanges)
    trace.start()
    assert isinstance(trace.make_ranges(), TorchRanges)
    trace.write(str(tmp_path / "trace.json"))
    assert isinstance(trace.make_ranges(), NvtxRanges)
