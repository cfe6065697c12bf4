"""What the machine did meanwhile: other processes, stolen time, a GPU that is slow, hot or shared."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from records import make_request, make_run

from suite import gpu_use
from suite.checks import check_run, check_runs
from suite.cpu_use import CpuMeter
from suite.gpu_use import GpuWatch, watch_for
from suite.record import CpuUse, GpuUse

REQUESTS = [make_request("a", num_prompt_tokens=1)]


def rules(**changes):
    run = make_run(REQUESTS, **changes)
    return [one.rule for one in check_run(run, REQUESTS, []) if one.is_timing]


def messages(**changes):
    return [one.message for one in check_run(make_run(REQUESTS, **changes), REQUESTS, []) if one.is_timing]


def use(busy_s, own_s, stolen_s=0.0, wall_s=1.0, num_cores=2):
    return CpuUse(wall_s=wall_s, num_cores=num_cores, busy_s=busy_s, own_s=own_s, stolen_s=stolen_s)


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        (use(1.5, 1.45), []),
        (use(1.5, 1.2), ["foreign-load"]),
        (use(1.2, 1.5), []),  # ticks of a short run may make ours more than all
        (use(0.045, 0.0, wall_s=0.1), []),  # four ticks of 10 ms are not to be told from none
        (use(1.5, 1.2, num_cores=16), []),  # a core of sixteen
        (use(1.5, 1.5, stolen_s=0.039), []),
        (use(1.5, 1.5, stolen_s=0.041), ["stolen-time"]),
        (use(1.5, 1.5, stolen_s=None), []),
        (None, []),
    ],
)
def test_load_of_others_and_stolen_time_make_a_run_invalid_for_timing(cpu, expected):
    assert rules(cpu=cpu) == expected


def test_what_was_seen_is_told_with_its_share():
    assert messages(cpu=use(1.8, 0.8, stolen_s=0.2)) == [
        "other processes used 50 % of the time of 2 cores",
        "the hypervisor took 10 % of the cores' time",
    ]


def test_of_a_run_with_instruments_the_load_is_not_judged():
    assert rules(cpu=use(1.8, 0.8), instrument="events") == []


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
def test_a_process_that_is_not_ours_is_counted_as_foreign_and_one_that_is_as_ours():
    """A child that is busy for half a second, once said to be ours and once not."""
    me = psutil.Process()
    for is_ours in (True, False):
        child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        own = [me, psutil.Process(child.pid)] if is_ours else [me]
        try:
            meter = CpuMeter(lambda own=own: own)
            time.sleep(0.5)
            used_s = sum(psutil.Process(child.pid).cpu_times()[:2])
            found = meter.use()
        finally:
            child.kill()
            child.wait()
        assert found.wall_s == pytest.approx(0.5, abs=0.3) and found.num_cores >= 1
        # At least half of what it used is seen where it should be, however busy the machine is.
        if is_ours:
            assert found.own_s >= 0.5 * used_s
        else:
            assert found.foreign_s >= 0.5 * used_s and found.own_s <= 0.2


def test_a_system_that_does_not_let_itself_be_counted_leaves_the_load_unknown(monkeypatch):
    def refuse(percpu):
        raise PermissionError("/proc/stat")

    monkeypatch.setattr(psutil, "cpu_times", refuse)
    assert CpuMeter(lambda: []).use() is None and rules(cpu=None) == []


class FakeNvml:
    """A driver that says what it is told to. Names and numbers as in nvml.h."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, clocks=(1980,), reasons=0, pids=(), refuses=()):
        self._clocks = list(clocks)
        self._reasons, self._pids, self._refuses = reasons, pids, refuses
        self.opened = None

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in object.__getattribute__(self, "_refuses"):
            raise RuntimeError("Not Supported")
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByIndex(self, index):
        self.opened = index
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self.opened = uuid
        return "handle"

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA H200"

    def nvmlDeviceGetClockInfo(self, handle, kind):
        assert (handle, kind) == ("handle", self.NVML_CLOCK_SM)
        return self._clocks.pop(0) if len(self._clocks) > 1 else self._clocks[0]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self._reasons

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 61

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self._pids]


def watched(nvml, num_samples=2):
    watch = GpuWatch(nvml)
    watch.start()
    for _ in range(num_samples):
        watch.sample()
    return watch.use()


def test_a_gpu_that_is_alone_cool_and_steady_breaks_nothing():
    found = watched(FakeNvml(pids=[os.getpid()]))
    assert found == GpuUse(
        name="NVIDIA H200", sm_clock_mhz=1980, throttled_by=(), num_other_processes=0, temperature_c=61
    )
    assert rules(gpu=found) == []


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        (0x04, "NVIDIA H200 was slowed down: limit of power"),
        (0x60, "NVIDIA H200 was slowed down: temperature (software), temperature (hardware)"),
        (0x88, "NVIDIA H200 was slowed down: hardware slowdown, power brake"),
    ],
)
def test_throttling_makes_a_run_invalid_and_says_by_what(reasons, told):
    assert messages(gpu=watched(FakeNvml(reasons=reasons))) == [told]


def test_idling_and_clocks_that_were_asked_for_are_no_throttling():
    assert rules(gpu=watched(FakeNvml(reasons=0x01 | 0x02 | 0x10 | 0x100))) == []


def test_a_reason_seen_once_in_a_run_stays_and_is_forgotten_at_the_next():
    nvml = FakeNvml(reasons=0x40)
    watch = GpuWatch(nvml)
    watch.start()
    watch.sample()
    nvml._reasons = 0
    assert watch.use().throttled_by == ("temperature (hardware)",)
    watch.start()
    assert watch.use().throttled_by == ()


def test_another_process_on_the_gpu_makes_a_run_invalid():
    assert messages(gpu=watched(FakeNvml(pids=[os.getpid(), 1]))) == [
        "another process computes on NVIDIA H200"
    ]
    assert messages(gpu=watched(FakeNvml(pids=[os.getpid(), 1, 2]))) == [
        "2 other processes compute on NVIDIA H200"
    ]


def test_in_a_container_one_process_of_an_unknown_number_is_our_own():
    assert watched(FakeNvml(pids=[999_999_991])).num_other_processes == 0
    assert watched(FakeNvml(pids=[999_999_991, 999_999_992])).num_other_processes == 1
    assert watched(FakeNvml(pids=[])).num_other_processes == 0


def test_what_a_driver_refuses_is_unknown_and_the_run_goes_on():
    refuses = [name for name in dir(FakeNvml) if name.startswith("nvmlDeviceGet") and "Handle" not in name]
    assert watched(FakeNvml(refuses=refuses)) == GpuUse(name="GPU")
    assert rules(gpu=GpuUse(name="GPU")) == []


def test_an_older_driver_or_library_is_asked_by_the_older_name():
    nvml = FakeNvml(refuses=["nvmlDeviceGetCurrentClocksEventReasons"])
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x20
    assert watched(nvml).throttled_by == ("temperature (software)",)


def test_the_library_has_every_name_we_ask_it_by_and_the_bits_mean_what_we_say():
    library = pytest.importorskip("pynvml")
    names = [name for name in dir(FakeNvml) if name.lower().startswith("nvml")]
    assert [name for name in names if not hasattr(library, name)] == []
    assert FakeNvml.NVML_CLOCK_SM == library.NVML_CLOCK_SM
    assert FakeNvml.NVML_TEMPERATURE_GPU == library.NVML_TEMPERATURE_GPU
    asked = {"SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"}
    bits = {getattr(library, f"nvmlClocksThrottleReason{name}") for name in asked}
    assert bits == set(gpu_use._THROTTLES)


@pytest.mark.parametrize(
    ("visible", "opened"), [("", 0), ("3", 3), ("2,0", 2), ("GPU-5fd4", "GPU-5fd4"), ("MIG-1", None)]
)
def test_the_gpu_that_is_watched_is_the_first_that_cuda_may_use(visible, opened, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = FakeNvml()
    watch = GpuWatch(nvml)
    assert nvml.opened == opened
    if opened is None:
        assert watch.use() is None and "CUDA_VISIBLE_DEVICES begins with MIG-1" in watch.note


def test_the_library_is_asked_for_only_where_a_gpu_is_used_and_its_absence_is_told(monkeypatch):
    asked = []

    def absent(name):
        asked.append(name)
        raise ImportError(name)

    monkeypatch.setattr(gpu_use.importlib, "import_module", absent)
    for device in ("process", "inline", "lazy", "shuffle:7"):
        watch = watch_for(device)
        watch.sample()
        assert watch.use() is None and watch.note is None
    assert asked == []
    assert "pip install nvidia-ml-py" in watch_for("cuda").note and asked == ["pynvml"]


def test_a_driver_that_cannot_be_opened_is_told_and_nothing_more():
    watch = GpuWatch(FakeNvml(refuses=["nvmlInit"]))
    watch.sample()
    assert watch.use() is None and watch.note.endswith("were not watched: Not Supported")


def test_a_clock_below_that_of_the_cases_other_runs_makes_the_slow_runs_invalid():
    """Also where the arms differ: they are compared. Another case may run at another clock."""
    clocks = {"a0": ("a", 1980), "a1": ("a", 1890), "b0": ("b", 1870), "b1": ("b", 1870), "odd": ("a", None)}
    runs = [
        make_run(REQUESTS, run_id=name, arm=arm, gpu=GpuUse(name="GPU", sm_clock_mhz=mhz))
        for name, (arm, mhz) in clocks.items()
    ]
    other = make_run(REQUESTS, run_id="c0", case_id="c" * 16, gpu=GpuUse(name="GPU", sm_clock_mhz=900))
    found = check_runs([*runs, other], lambda _: REQUESTS, lambda _: [])
    slow = [(one.run_id, one.message) for one in found if one.rule == "gpu-clocks"]
    told = "the GPU ran at 1870 MHz; in another run of the case it had 1980 MHz"
    assert slow == [("b0", told), ("b1", told)]
