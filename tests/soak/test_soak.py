"""22,000 requests: pools whole at every step, a tenth of the tokens verified, and nothing is kept."""

from __future__ import annotations

import gc
import mmap
from typing import Any

import psutil
import pytest
import torch
from arm_bad_prompts import BAD
from arm_models import MICRO, MICRO_GEMMA3_VL, MICRO_QWEN3, MICRO_QWEN25_VL
from soak_traffic import CONFIG, FULL, Ledger, Traffic, oracle_of, prompts_of, with_eos

from runner.config import RunnerConfig
from runner.core import RequestState
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm
from runner.models import ModelSpec

MIB = 1 << 20
# Between the second rest and the last one; seen were 150.
MAX_OBJECTS_KEPT = 400
# Between the rest in the middle and the last one; allocated were at most 1.2 MiB. The first rests of a fresh
# process see libraries fill their caches of kernels by shape, 24 MiB until the fifth of 24.
MAX_BYTES_KEPT = 4 * MIB
# What is resident moves by where the allocator of a process with gigabytes of heap finds room.
MAX_RESIDENT_BYTES_KEPT = 12 * MIB
LEAK = 64 << 10  # bytes a request, in the controls
# Half of them with everything on: guesses, shared blocks, a small encoder budget.
NUM_INLINE = {MICRO_QWEN3.name: 10000, MICRO_GEMMA3_VL.name: 4500, MICRO_QWEN25_VL.name: 5500}


def arms_of(model: ModelSpec) -> list[Arm]:
    """Every right arm that fits: async ones with sync ones among them."""
    return [arm for arm in ARMS.values() if arm.is_right and arm.fits(model.is_multimodal)]


def soak(
    device: Device,
    model: ModelSpec,
    num_requests: int,
    ledger: Ledger,
    arms: list[Arm],
    config: RunnerConfig = CONFIG,
) -> None:
    """Serve them in equal shares, a fresh engine for every arm, with two rests each."""
    spec = with_eos(model)
    warm_up(model)
    for index, arm in enumerate(arms):
        share = num_requests * (index + 1) // len(arms) - num_requests * index // len(arms)
        engine = Engine(spec, config, device, arm)
        engine.run(Traffic(engine, spec, share, -(-share // 2), seed=index, ledger=ledger))
        engine.scheduler.check()


def warm_up(model: ModelSpec) -> None:
    """What is made once and kept, models for one, is made before anything is counted."""
    prompts_of(model.name, True), prompts_of(model.name, False)
    oracle_of(model.name)
    for make in BAD.values():
        make(model)


def check_nothing_is_kept(ledger: Ledger) -> None:
    assert ledger.objects[-1] - ledger.objects[1] <= MAX_OBJECTS_KEPT
    check_bytes_kept(ledger)
    assert ledger.open_files[-1] <= ledger.open_files[1]


def check_bytes_kept(ledger: Ledger) -> None:
    middle = len(ledger.allocated_bytes) // 2
    assert ledger.allocated_bytes[-1] - ledger.allocated_bytes[middle] <= MAX_BYTES_KEPT
    assert ledger.resident_bytes[-1] - ledger.resident_bytes[middle] <= MAX_RESIDENT_BYTES_KEPT


@pytest.mark.parametrize("config", [CONFIG, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("model", MICRO, ids=lambda model: model.name)
def test_20000_requests_of_random_traffic_are_served_whole_and_nothing_is_kept(
    model: ModelSpec, config: RunnerConfig, devices: Any
) -> None:
    ledger, num_requests = Ledger(), NUM_INLINE[model.name] // 2
    soak(devices("inline", model, config), model, num_requests, ledger, arms_of(model), config)
    check_nothing_is_kept(ledger)
    counts = ledger.counts
    assert counts["settled"] == num_requests
    for what, least in (("max_tokens", 0.7), ("verified", 0.07), ("preempted", 0.05), ("eos", 0.01)):
        assert counts[what] >= least * num_requests, what
    for moment in ("waiting", "running", "running with a token in flight", "in its prompt", "preempted"):
        assert counts[f"aborted {moment}"] > 0, moment
    assert counts["wasted"] > 50
    if config is FULL:
        assert counts["accepted"] > 0.05 * num_requests
        assert counts["cached"] > 0.5 * num_requests
    assert sum(name.startswith("refused") for name in counts) >= 12  # of 13 kinds


def test_the_numbers_add_up() -> None:
    assert sum(NUM_INLINE.values()) == 20_000


def test_2000_requests_on_a_device_process_leave_no_memory_and_no_file_behind(
    models_built_once: None,
) -> None:
    with open_device("process", MICRO_GEMMA3_VL, FULL):
        pass  # the server that devices are forked from stays
    gc.collect()
    num_files, num_mappings = files_and_mappings()
    ledger, child_bytes = Ledger(), []
    with open_device("process", MICRO_GEMMA3_VL, FULL) as device:
        process: Any = device
        child = psutil.Process(process._process.pid)
        files = child.num_fds()
        for name in ("refresh", "fused", "gated", "async-rows"):
            soak(device, MICRO_GEMMA3_VL, 500, ledger, [ARMS[name]], FULL)
            child_bytes.append(child.memory_info().rss)
        assert child.num_fds() == files
    assert ledger.counts["settled"] == 2000
    assert ledger.counts["preempted"] > 100
    check_nothing_is_kept(ledger)
    assert child_bytes[-1] - child_bytes[0] <= MAX_BYTES_KEPT
    assert not child.is_running()
    del device, process
    gc.collect()
    assert files_and_mappings() == (num_files, num_mappings)


def files_and_mappings() -> tuple[int, int]:
    """Open files of this process, and mappings of memory that it shares with a device."""
    process = psutil.Process()
    shared = [mapping for mapping in process.memory_maps() if "stepcost" in mapping.path]
    return process.num_fds(), len(shared)


# ---- negative controls: what would be kept is seen


def test_a_leak_of_states_is_seen(devices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[RequestState] = []
    forget = Engine.forget

    def leak(engine: Engine, request_id: str) -> None:
        state = engine.requests[request_id]
        forget(engine, request_id)
        kept.append(state)

    device = devices("inline", MICRO_QWEN3, CONFIG)
    ledger = Ledger()
    monkeypatch.setattr(Engine, "forget", leak)
    soak(device, MICRO_QWEN3, 900, ledger, [ARMS["refresh"], ARMS["fused"]])
    with pytest.raises(AssertionError):
        check_nothing_is_kept(ledger)
    assert ledger.objects[-1] - ledger.objects[1] > MAX_OBJECTS_KEPT


def kept_mapping() -> mmap.mmap:
    """In memory that the kernel gives: none that was freed before can hide it."""
    mapping = mmap.mmap(-1, LEAK)
    mapping.write(b"x" * LEAK)
    return mapping


@pytest.mark.parametrize("keep", [kept_mapping, lambda: torch.ones(LEAK // 4)], ids=["mapped", "allocated"])
def test_a_leak_of_bytes_is_seen(devices: Any, monkeypatch: pytest.MonkeyPatch, keep: Any) -> None:
    kept = []
    forget = Engine.forget

    def leak(engine: Engine, request_id: str) -> None:
        forget(engine, request_id)
        kept.append(keep())

    device = devices("inline", MICRO_QWEN3, CONFIG)
    ledger = Ledger()
    monkeypatch.setattr(Engine, "forget", leak)
    soak(device, MICRO_QWEN3, 900, ledger, [ARMS["refresh"], ARMS["fused"]])
    with pytest.raises(AssertionError):
        check_bytes_kept(ledger)


def test_an_open_file_is_seen(devices: Any, tmp_path: Any) -> None:
    ledger = Ledger()
    ledger.sample()
    ledger.sample()
    with (tmp_path / "left open").open("w"):
        ledger.sample()
    with pytest.raises(AssertionError):
        check_nothing_is_kept(ledger)
