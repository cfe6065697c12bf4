"""A wait put into one command of the device, and of the host, is what amplification finds.

One of each size; tools/planted_costs.py makes a series of each. What a step loses by a wait is more than the
wait: the device's own clock around it, and the same waits as one without amplification, tell how much.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from planting import MODEL, Found, PlantedDevice, SlowHostDevice, Steps, planted_case, recovered, repeats_for

from suite.amplification import Estimate

pytestmark = pytest.mark.alone


LIMIT_S = 110
STEP_US = 7000


def enough_by(deadline_s: float, is_decided: bool):
    """Whether no more rounds are needed, or there is no time for any."""

    def is_enough(found: Found) -> bool:
        if time.monotonic() > deadline_s:
            return True
        return found.planted.num_rounds >= 8 and (found.planted.is_decided or not is_decided)

    return is_enough


def interval(found: Estimate | None) -> tuple[float, float]:
    assert found is not None and found.low_us is not None and found.high_us is not None
    return found.low_us, found.high_us


@pytest.mark.parametrize("cost_us", [5, 20, 100])
def test_a_wait_in_the_device_process_is_recovered(cost_us: int, tmp_path: Path) -> None:
    """Its own interval misses the truth once in twenty times; one of twice the width, hardly ever.

    The truth is what the waits cost by the device's clock, and the rest of a step by such waits as one.
    """
    case = planted_case(tmp_path)
    k = repeats_for(cost_us, STEP_US)
    with PlantedDevice(MODEL, case.runner_config, cost_us, k) as device:
        enough = enough_by(time.monotonic() + LIMIT_S, is_decided=cost_us >= 20)
        found = recovered(device, Steps(device, case), "refresh", k, seed=1, num_rounds=60, is_enough=enough)
    low, high = interval(found.planted)
    beyond_low, beyond_high = interval(found.beyond)
    assert abs(found.beyond.mean_us) <= beyond_high - beyond_low, str(found)
    assert high >= cost_us * 0.9, str(found)
    if cost_us >= 20:
        assert low > 0, str(found)


def test_a_wait_on_the_host_shows_under_sync_and_less_under_async(tmp_path: Path) -> None:
    case = planted_case(tmp_path)
    with SlowHostDevice(MODEL, case.runner_config, 100) as device:
        steps = Steps(device, case)
        enough = enough_by(time.monotonic() + LIMIT_S, is_decided=True)
        sync = recovered(device, steps, "gated", 9, seed=1, num_rounds=60, is_enough=enough)
        refresh = recovered(device, steps, "refresh", 9, seed=1, num_rounds=sync.planted.num_rounds)
    assert sync.planted.is_decided and sync.planted.mean_us > 0, str(sync)
    assert sync.planted.mean_us >= refresh.planted.mean_us, f"{sync}; {refresh}"
