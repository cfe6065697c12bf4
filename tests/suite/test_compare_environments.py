"""What makes two run folders incomparable, and what does not."""

from __future__ import annotations

import pytest
from compared_folders import ENVIRONMENT

from suite import environment
from suite.compare_environments import environment_differences
from suite.environment import Checkout

BASE = ENVIRONMENT.model_dump(mode="json")


def differing(**changes):
    changed = ENVIRONMENT.model_copy(update=changes).model_dump(mode="json")
    return [str(one) for one in environment_differences(BASE, changed)]


def test_one_machine_with_the_same_versions_is_comparable_whatever_code_it_ran():
    changes = {
        "checkout": Checkout(commit="b" * 40, is_dirty=True),
        "command_line": "python -m suite run --rounds 3",
        "started_utc": "2026-02-01T00:00:00Z",
        "available_memory_bytes": 1,
        "packages": {**ENVIRONMENT.packages, "plotly": "5.0.0"},
    }
    assert differing(**changes) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cpu_model": "Slow CPU"}, "CPU model: Fast CPU and Slow CPU"),
        ({"num_cores": 8}, "cores: 4 and 8"),
        ({"num_usable_cores": 2}, "usable cores: 4 and 2"),
        ({"os": "Linux 6.2 x86_64"}, "operating system: Linux 6.1 x86_64 and Linux 6.2 x86_64"),
        ({"python": "CPython 3.12.0"}, "Python: CPython 3.11.2 and CPython 3.12.0"),
        ({"packages": {**ENVIRONMENT.packages, "torch": "2.12.0"}}, "torch: 2.13.0 and 2.12.0"),
        (
            {"packages": {**ENVIRONMENT.packages, "transformers": None}},
            "transformers: 5.0.0 and not recorded",
        ),
        ({"variables": {}}, "OMP_NUM_THREADS: 1 and not set"),
        ({"variables": {"OMP_NUM_THREADS": "1", "CI": "true"}}, "CI: not set and true"),
    ],
)
def test_another_machine_or_version_is_named_with_both_values(changes, told):
    assert differing(**changes) == [told]


def test_another_device_or_number_of_threads_is_named():
    device = ENVIRONMENT.device.model_copy(update={"kind": "inline", "num_threads": 2})
    assert differing(device=device) == ["device: process and inline", "compute threads: 1 and 2"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"attention": "flash"}, "attention: none and flash"),
        ({"graph_sizes": (1, 8)}, "captured graphs: none and 1, 8"),
        ({"fuses_routes": True}, "fused routes: none and True"),
    ],
)
def test_a_device_that_computes_in_another_way_is_named(changes, told):
    assert differing(device=ENVIRONMENT.device.model_copy(update=changes)) == [told]


def test_triton_is_compared_and_its_absence_is_no_difference():
    assert "triton" in environment.capture(()).packages
    assert differing(packages={**ENVIRONMENT.packages, "triton": "3.5"}) == ["triton: none and 3.5"]
    assert differing(packages={**ENVIRONMENT.packages, "triton": None}) == []


def test_what_neither_folder_recorded_is_not_known_to_be_alike():
    found = environment_differences({}, {})
    assert {one.what for one in found} >= {"CPU model", "torch", "device", "compute threads"}
    assert {(one.base, one.other) for one in found} == {("not recorded", "not recorded")}
    damaged = {"packages": 3, "device": [], "variables": "x"}
    assert environment_differences(damaged, damaged) == found
