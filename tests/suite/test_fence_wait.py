"""How long the host waits at the fence: to the nanosecond, over a host and a device of known times."""

from __future__ import annotations

from itertools import pairwise

import pytest
from arm_models import MICRO_GEMMA3_VL
from simulated_steps import DeviceTimes, HostTimes, Simulated, simulate

from runner.config import Fence
from runner.measure import StepRecord
from runner.spans import Span

EMBEDDING_NS = {"positions": 7, "lookup": 4_000, "merge": 900}
TIMES = DeviceTimes({"upload.input_ids": 30, "forward": 20_000, "sample": 50, **EMBEDDING_NS})


def served(fence: Fence, arm: str = "ids") -> Simulated:
    with pytest.MonkeyPatch.context() as patch:
        return simulate(patch, MICRO_GEMMA3_VL, arm, HostTimes(), TIMES, fence=fence)


def waited_until_ns(run: Simulated, step: StepRecord) -> int:
    """When the host went on with a step's inputs."""
    (end_ns,) = (s.end_ns for s in run.spans if s.step_id == step.step_id and s.name == "wait.fence")
    assert end_ns is not None
    return end_ns


def done_ns(run: Simulated, step: StepRecord, names: set[str]) -> int:
    """When the last of a step's commands of these spans was done."""
    return max(s.end_ns or 0 for s in run.spans if s.step_id == step.step_id and is_one_of(s, names))


def is_one_of(span: Span, names: set[str]) -> bool:
    return span.lane == "compute" and (span.name in names or span.name.startswith("upload."))


@pytest.mark.parametrize(("fence", "names"), [("uploads", set()), ("embeddings", set(EMBEDDING_NS))])
def test_the_host_goes_on_when_what_the_fence_stands_behind_is_done(fence: Fence, names: set[str]) -> None:
    run = served(fence)
    steps = run.engine.recorder.steps
    assert len(steps) > 4 and steps[0].wait_fence_ns == 0, "the first has no step before it"
    for last, step in pairwise(steps):
        until = waited_until_ns(run, step)
        fence_ns = done_ns(run, last, names)
        assert until == max(fence_ns, until - step.wait_fence_ns)
        assert (step.wait_fence_ns > 0) == (fence_ns > until - step.wait_fence_ns)


def test_behind_embeddings_it_waits_longer_and_never_less() -> None:
    early, late = (served(fence).engine.recorder.steps for fence in ("uploads", "embeddings"))
    longer = [after.wait_fence_ns - before.wait_fence_ns for before, after in zip(early, late, strict=True)]
    assert min(longer) >= 0
    # In steady async steps the host is there as soon as the step begins on the device.
    assert all(more > EMBEDDING_NS["lookup"] / 2 for more in longer[2:-1])


@pytest.mark.parametrize("fence", ["uploads", "embeddings"])
def test_under_sync_there_is_nothing_to_wait_for(fence: Fence) -> None:
    assert {step.wait_fence_ns for step in served(fence, "sync-ids").engine.recorder.steps} == {0}
