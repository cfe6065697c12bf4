"""What serves for ever forgets: finished requests and the records of retired steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fabrication import SharedDevice, Staggered, text, text_request

from runner.config import RunnerConfig
from runner.core import Prompt, Request, RequestError, RequestStatus, SamplingParams
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.models import TINY_QWEN3

CONFIG = RunnerConfig(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=48, num_blocks=12)
Ask = Callable[[Engine], None]


class Asking(Staggered):
    """One long prompt; `ask` is called before every step."""

    def __init__(self, ask: Ask, length: int = 30) -> None:
        super().__init__([(0, text_request(TINY_QWEN3, "r", length, 6))])
        self.engine: Engine | None = None
        self._ask = ask

    def due(self) -> list[Request]:
        assert self.engine is not None
        self._ask(self.engine)
        return super().due()


def serve(arm: str, ask: Ask, shared_device: SharedDevice) -> Engine:
    engine = Engine(TINY_QWEN3, CONFIG, shared_device("inline", TINY_QWEN3, CONFIG), ARMS[arm])
    arrivals = Asking(ask)
    arrivals.engine = engine
    engine.run(arrivals)
    return engine


def nothing(_engine: Engine) -> None:
    return None


@pytest.mark.parametrize("arm", ["ids", "sync-ids"])
def test_a_forgotten_request_is_known_nowhere_and_its_tokens_stay_with_who_holds_them(
    arm: str, shared_device: SharedDevice
) -> None:
    engine = serve(arm, nothing, shared_device)
    state = engine.requests["r"]
    engine.forget("r")
    assert (engine.requests, engine.recorder.timelines, engine.scheduler.requests) == ({}, {}, {})
    assert len(state.output_ids) == 6
    engine.scheduler.check()


def test_a_refused_request_is_forgotten_too(shared_device: SharedDevice) -> None:
    engine = serve("ids", nothing, shared_device)
    too_long = Prompt(text(TINY_QWEN3, 48, seed=1))
    engine.submit([Request("bad", too_long, SamplingParams(1))])
    engine.forget("bad")
    assert set(engine.requests) == {"r"}


def test_who_is_unknown_or_not_finished_is_not_forgotten(shared_device: SharedDevice) -> None:
    refusals: list[str] = []

    def ask(engine: Engine) -> None:
        if engine.requests and not engine.requests["r"].is_finished:
            with pytest.raises(RequestError, match=r"request r is \w+; abort it first") as caught:
                engine.forget("r")
            refusals.append(str(caught.value))

    engine = serve("ids", ask, shared_device)
    assert len(refusals) >= 6
    with pytest.raises(RequestError, match="request nobody is not known"):
        engine.forget("nobody")
    assert set(engine.requests) == {"r"}


@pytest.mark.parametrize("num_computed", [8, 32], ids=["in its prompt", "in its output"])
def test_an_aborted_request_is_forgotten_only_once_its_step_is_retired(
    num_computed: int, shared_device: SharedDevice
) -> None:
    """A chunk of a prompt has no token in flight, and its step is in flight all the same."""
    asked: list[str] = []

    def ask(engine: Engine) -> None:
        state = engine.requests.get("r")
        if state is None:
            return
        if state.status is RequestStatus.RUNNING and state.num_computed >= num_computed:
            engine.abort("r")
            with pytest.raises(RequestError, match="in a step in flight"):
                engine.forget("r")
            asked.append("refused")

    engine = serve("ids", ask, shared_device)
    assert asked == ["refused"]
    engine.forget("r")
    assert engine.requests == {}


def test_drained_records_are_those_since_the_last_time(shared_device: SharedDevice) -> None:
    drained: list[list[int]] = []

    def ask(engine: Engine) -> None:
        drained.append([step.step_id for step in engine.drain_steps()])

    engine = serve("ids", ask, shared_device)
    assert engine.drain_steps() == []
    ids = [step_id for steps in drained for step_id in steps]
    assert ids == list(range(len(ids)))
    assert max(map(len, drained)) == 1


def test_draining_changes_no_time_that_is_told(shared_device: SharedDevice) -> None:
    """The hand-off counts from where the device was free, though that step's record is gone."""
    kept: list[int] = []

    def ask(engine: Engine) -> None:
        for step in engine.drain_steps():
            assert step.handoff_ns <= step.device_start_ns - (kept[-1] if kept else step.start_ns)
            kept.append(step.device_end_ns)

    serve("ids", ask, shared_device)
    assert len(kept) > 5
