"""The silent synchronisation check: each kind of wait is found when planted, a run of ours has none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import planted_wait
import pytest
import torch
from arm_models import MICRO, MICRO_GEMMA3_VL, MICRO_QWEN3
from arm_sampling import CONFIG, REPEATING, mixed_case, sampled_requests
from arm_workloads import Arrivals, Case, outputs
from fake_cuda import FakeCuda, program_maker

import runner.device.process
import runner.kernels.sync_watch
from runner.config import RunnerConfig
from runner.core import DeviceError
from runner.device.base import Device, open_device
from runner.device.cuda import CudaDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm
from runner.kernels import program
from runner.kernels.program import Program
from runner.kernels.sync_watch import SyncWatch
from runner.measure import Instrument
from runner.models import ModelSpec
from runner.sync_check import ALLOWED, SyncCheck, SyncFinding, is_allowed

SAMPLED = (REPEATING, {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "logprobs": 3}, {})
DRAFTING = replace(CONFIG, num_speculative_tokens=2)


def case_of(model: ModelSpec, config: RunnerConfig = CONFIG) -> Case:
    return mixed_case(model, config, count=6, lengths=(5, 30, 9), max_tokens=(4, 7))


def serve(
    case: Case, device: Device, arm: Arm, sync_check: SyncCheck = "warn", *params: dict[str, Any]
) -> Engine:
    engine = Engine(case.model, case.config, device, arm, Instrument(sync_check=sync_check))
    requests = sampled_requests(case, arm, *(params or ({},)))
    engine.run(Arrivals((index * case.gap, request) for index, request in enumerate(requests)))
    return engine


# ---- a run of ours


@pytest.mark.parametrize("model", MICRO, ids=lambda model: model.name)
@pytest.mark.parametrize("kind", ["inline", "process"])
def test_no_arm_waits_anywhere_but_where_it_is_allowed(kind: str, model: ModelSpec, devices: Any) -> None:
    device = devices(kind, model, CONFIG)
    for arm in ARMS.values():
        if arm.fits(model.is_multimodal):
            serve(case_of(model), device, arm)
            assert list(device.sync_findings()) == [], arm.name


def test_neither_sampling_nor_drafts_wait(devices: Any) -> None:
    device = devices("inline", MICRO_GEMMA3_VL, DRAFTING)
    for name in ("ids", "refresh", "fused", "gated"):
        serve(case_of(MICRO_GEMMA3_VL, DRAFTING), device, ARMS[name], "warn", *SAMPLED)
        assert list(device.sync_findings()) == [], name


def test_every_place_that_is_allowed_is_met(devices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is gone is to be taken out of the table."""
    met: set[tuple[str, str]] = set()

    def note(operation: str, place: str) -> bool:
        met.update({(operation, place), ("*", place)} & set(ALLOWED))
        return is_allowed(operation, place)

    monkeypatch.setattr(runner.kernels.sync_watch, "is_allowed", note)
    for model in MICRO:
        serve(case_of(model), devices("inline", model, CONFIG), ARMS["ids"])
    assert met == set(ALLOWED)


def test_tokens_are_the_same_under_the_check(devices: Any) -> None:
    device = devices("inline", MICRO_GEMMA3_VL, CONFIG)
    found = [
        outputs(serve(case_of(MICRO_GEMMA3_VL), device, ARMS["refresh"], mode))
        for mode in ("off", "warn", "error")
    ]
    assert found[0] == found[1] == found[2]


def test_off_nothing_is_looked_for(devices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyncWatch, "over", None)
    device = devices("inline", MICRO_QWEN3, CONFIG)
    serve(case_of(MICRO_QWEN3), device, ARMS["text"], "off")
    assert list(device.sync_findings()) == []


# ---- planted waits

Plant = Callable[[Program, str, int, int, int], None]


def upload_with(copy: Callable[[torch.Tensor, torch.Tensor], object]) -> Plant:
    """An upload that copies in another way."""

    def upload(self: Program, buffer: str, host_first: int, device_first: int, count: int) -> None:
        source = self._host[buffer][host_first : host_first + count]
        target = self._buffers[buffer][device_first : device_first + count]
        copy(target, source)
        self._copies.upload(buffer, source)

    return upload


def strided(target: torch.Tensor, source: torch.Tensor) -> None:
    """All rows but their last elements, and those."""
    if source.dim() == 2:
        target[:, :-1].copy_(source[:, :-1], non_blocking=True)
        target[:, -1:].copy_(source[:, -1:], non_blocking=True)
    else:
        target.copy_(source, non_blocking=True)


UPLOADS = [
    (
        lambda target, source: target.copy_(source.clone(), non_blocking=True),
        "copies from or to memory that is not pinned",
    ),
    (
        lambda target, source: target.copy_(torch.from_numpy(source.numpy().copy())),
        "makes a tensor of host values, which are in no pinned memory",
    ),
    (lambda target, source: target.copy_(source), "copies and waits until that is done"),
    (strided, "copies a strided view"),
]


@pytest.fixture
def device(models_built_once: None) -> Iterator[Device]:
    """Its own device: what is planted in a program stays there."""
    with open_device("inline", MICRO_GEMMA3_VL, CONFIG) as opened:
        yield opened


def findings_of(device: Device, arm: str = "refresh") -> list[SyncFinding]:
    serve(case_of(MICRO_GEMMA3_VL), device, ARMS[arm])
    return list(device.sync_findings())


@pytest.mark.parametrize(("copy", "what"), UPLOADS)
def test_a_copy_that_waits_is_found(copy: Any, what: str, models_built_once: None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "_upload", upload_with(copy))
        with open_device("inline", MICRO_GEMMA3_VL, CONFIG) as device:
            found = findings_of(device)
    assert what in {finding.what for finding in found}
    assert {finding.command for finding in found} <= {
        *("upload.input_ids", "upload.is_token_ids", "upload.inputs_embeds", "upload.step_metadata"),
        "upload.pixels",
    }


READS: list[tuple[Callable[[torch.Tensor], object], str]] = [
    (lambda logits: logits[0, 0].item(), "(item)"),
    (lambda logits: int(logits.argmax()), "(item)"),
    (lambda logits: bool(logits.any()), "(is_nonzero)"),
    (lambda logits: logits.argmax(dim=-1).tolist(), "(tolist)"),
    (lambda logits: logits.cpu(), "(cpu)"),
    (lambda logits: logits.numpy(), "(numpy)"),
    (lambda logits: (logits > 0).nonzero(), "(nonzero)"),
    (lambda logits: (logits > 0).nonzero(as_tuple=True), "(nonzero_numpy)"),
    (lambda logits: torch.where(logits > 0), "(where)"),
    (lambda logits: logits[logits > 0], "(index)"),
    (lambda logits: logits.clone().__setitem__(logits > 0, 0.0), "(index_put_)"),
    (lambda logits: torch.masked_select(logits, logits > 0), "(masked_select)"),
    (lambda logits: torch.unique(logits), "(_unique2)"),
    (lambda logits: torch.equal(logits, logits), "(equal)"),
    (lambda logits: torch.repeat_interleave(logits.argmax(dim=-1)), "(repeat_interleave)"),
    (lambda logits: torch.tensor([1, 2], device=logits.device), "makes a tensor of host values"),
]


@pytest.mark.parametrize(("read", "what"), READS)
def test_a_value_taken_to_the_host_is_found(
    read: Callable[[torch.Tensor], object], what: str, device: Device
) -> None:
    plant_after(device, "sample", lambda made: read(made._logits))
    found = findings_of(device)
    assert {finding.command for finding in found} == {"sample"}
    assert [finding.first_step_id for finding in found if what in finding.what] == [0]
    assert all(finding.num_times > 1 for finding in found)


def plant_after(device: Any, operation: str, more: Callable[[Any], object]) -> None:
    """Let a command of an open inline device do more than it should."""
    made = device._runner._program
    handler = made._handlers[operation]

    def both(*given: Any) -> None:
        handler(*given)
        more(made)

    made._handlers[operation] = both


def test_reading_a_host_buffer_in_a_device_command_is_found(device: Device) -> None:
    plant_after(device, "positions", lambda made: made._host["step_metadata.0"].clone())
    (found,) = findings_of(device)
    assert (found.command, found.what) == ("positions", "copies a host buffer to memory that is not pinned")


def test_a_download_into_memory_that_is_not_pinned_is_found(
    models_built_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(self: Program, buffer: str, count: int) -> None:
        fresh = torch.empty_like(self._host[buffer][:count])
        fresh.copy_(self._buffers[buffer][:count], non_blocking=True)
        self._host[buffer][:count].copy_(fresh, non_blocking=True)
        self._copies.download_bytes += fresh.nbytes

    monkeypatch.setattr(Program, "_download", download)
    with open_device("inline", MICRO_GEMMA3_VL, CONFIG) as device:
        found = findings_of(device)
    assert {(finding.command, finding.what) for finding in found} == {
        ("download", "copies from or to memory that is not pinned")
    }


def test_a_finding_names_the_function_and_is_told_once(models_built_once: None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "_rows", lambda tensor, first, count: tensor[first : first + count].clone())
        with open_device("inline", MICRO_GEMMA3_VL, CONFIG) as device:
            serve_until_wrong(device)
            found = list(device.sync_findings())
    uploads = [finding for finding in found if finding.command == "upload.input_ids"]
    assert uploads
    assert all(finding.place == "runner/kernels/program.py:Program._upload" for finding in uploads)
    assert len({(finding.place, finding.what) for finding in uploads}) == len(uploads)
    text = uploads[0].text
    assert "upload.input_ids" in text
    assert "in runner/kernels/program.py:Program._upload" in text
    assert "first in step 0" in text


def serve_until_wrong(device: Device) -> None:
    """What is copied arrives nowhere: the device may refuse what it computes from that."""
    with pytest.raises(DeviceError):
        serve(case_of(MICRO_GEMMA3_VL), device, ARMS["refresh"])


# ---- error, and a process


def check_error(caught: DeviceError) -> None:
    assert caught.step_id == 0
    assert "'sample'" in caught.command
    assert "sample takes a value to the host (item), in " in str(caught)


def test_as_an_error_it_names_command_and_place(device: Device) -> None:
    plant_after(device, "sample", lambda made: made._logits.argmax().item())
    with pytest.raises(DeviceError) as caught:
        serve(case_of(MICRO_GEMMA3_VL), device, ARMS["refresh"], "error")
    check_error(caught.value)


def test_a_device_process_tells_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.device.process, "_serve", planted_wait.serve)
    with open_device("process", MICRO_GEMMA3_VL, CONFIG) as device:
        first, again = findings_of(device), list(device.sync_findings())
        assert first == again
        ((command, _, what, first_step_id, count),) = first
        assert (command, what, first_step_id) == ("sample", "takes a value to the host (item)", 0)
        assert count > 5
        assert findings_of(device) == first, "a reset forgets"
        serve(case_of(MICRO_GEMMA3_VL), device, ARMS["refresh"], "off")
        assert list(device.sync_findings()) == []
        with pytest.raises(DeviceError) as caught:
            serve(case_of(MICRO_GEMMA3_VL), device, ARMS["refresh"], "error")
        check_error(caught.value)


# ---- on CUDA: the same watch, and torch's own word


@pytest.fixture
def cuda(models_built_once: None) -> Iterator[tuple[FakeCuda, CudaDevice]]:
    fake = FakeCuda()
    with pytest.MonkeyPatch.context() as patch:
        fake.install(patch)
        with CudaDevice(MICRO_GEMMA3_VL, CONFIG, program_maker(fake)) as device:
            yield fake, device


def waiting_on_cuda(made: Any) -> None:
    """As torch does in its sync-debug mode."""
    warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)


def plant_on_cuda(device: CudaDevice, operation: str, more: Callable[[Any], object]) -> None:
    handler = device._program._handlers[operation]

    def both(*given: Any) -> None:
        handler(*given)
        more(device._program)

    device._program._handlers[operation] = both


def test_torchs_sync_debug_mode_is_on_around_each_step_and_only_then(
    cuda: tuple[FakeCuda, CudaDevice],
) -> None:
    fake, device = cuda
    engine = serve(case_of(MICRO_GEMMA3_VL), device, ARMS["refresh"])
    assert fake.sync_debug_modes == ["warn", "default"] * len(engine.recorder.steps)
    assert list(device.sync_findings()) == []
    fake.sync_debug_modes.clear()
    serve(case_of(MICRO_GEMMA3_VL), device, ARMS["refresh"], "off")
    assert fake.sync_debug_modes == []


def test_a_wait_that_torch_alone_knows_of_is_found_with_its_place(cuda: tuple[FakeCuda, CudaDevice]) -> None:
    fake, device = cuda
    plant_on_cuda(device, "merge.ids", waiting_on_cuda)
    (found,) = findings_of(device)
    assert found.command == "merge.ids"
    assert found.what == "waits for the device, says torch's sync-debug mode"
    assert found.place == "runner/kernels/program.py:Program.execute"
    assert fake.sync_debug_modes[-1] == "default"


def test_what_the_watch_knows_better_is_told_once(cuda: tuple[FakeCuda, CudaDevice]) -> None:
    def both(made: Any) -> None:
        waiting_on_cuda(made)
        made._logits.argmax().item()

    plant_on_cuda(cuda[1], "sample", both)
    (found,) = findings_of(cuda[1])
    assert found.what == "takes a value to the host (item)"


def test_a_warning_about_something_else_is_shown_as_ever(cuda: tuple[FakeCuda, CudaDevice]) -> None:
    plant_on_cuda(cuda[1], "sample", lambda _: warnings.warn("something else", stacklevel=1))
    with pytest.warns(UserWarning, match="something else"):
        assert findings_of(cuda[1]) == []


def test_on_cuda_an_error_poisons_the_device(cuda: tuple[FakeCuda, CudaDevice]) -> None:
    fake, device = cuda
    plant_on_cuda(device, "merge.ids", waiting_on_cuda)
    with pytest.raises(DeviceError, match=r"step 2: SafeIds.*merge.ids waits for the device.* in runner/"):
        serve(case_of(MICRO_GEMMA3_VL), device, ARMS["refresh"], "error")
    assert fake.sync_debug_modes[-1] == "default"
