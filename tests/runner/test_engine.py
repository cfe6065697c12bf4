"""The engine's tokens, held against transformers alone, on every device and under every kind of pressure."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import psutil
import pytest
from fabrication import (
    VISION,
    SharedDevice,
    Staggered,
    image,
    prompt_of,
    request,
    text,
    text_request,
    together,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import runner.kernels.model
from runner.config import RunnerConfig
from runner.core import DeviceError, FinishReason, Prompt, Request
from runner.device.base import open_device
from runner.engine import Arrivals, Engine
from runner.inputs.batch import InputBatch
from runner.models import MODELS, TINY_GEMMA3_VL, TINY_QWEN3, ModelSpec
from suite.oracle import Oracle, max_ties

Oracles = Callable[[str], Oracle]
KINDS = ("inline", "process")

CONFIG = RunnerConfig(
    max_num_seqs=3,
    max_num_batched_tokens=24,
    max_model_len=128,
    block_size=8,
    num_blocks=48,
    num_encoder_slots=2,
    max_images_per_step=2,
)
CHUNKED = dataclasses.replace(CONFIG, max_num_batched_tokens=7)  # less than an image's 16 rows
TIGHT = dataclasses.replace(CONFIG, num_blocks=12)


@dataclass(frozen=True, slots=True)
class Case:
    """Arrivals on one model under one config."""

    model: ModelSpec
    config: RunnerConfig
    arrivals: Sequence[tuple[int, Request]]

    @property
    def requests(self) -> list[Request]:
        return [made for _, made in self.arrivals]


def serve(case: Case, kind: str, shared_device: SharedDevice) -> Engine:
    engine = Engine(case.model, case.config, shared_device(kind, case.model, case.config))
    engine.run(Staggered(case.arrivals))
    return engine


def outputs(engine: Engine) -> dict[str, list[int]]:
    return {name: list(state.output_ids) for name, state in engine.requests.items()}


def assert_all_right(engine: Engine, requests: Iterable[Request], oracle: Oracle) -> None:
    """Every request has all its tokens, each the one transformers alone would give; nothing is left over."""
    num_checked = num_ties = 0
    for made in requests:
        state = engine.requests[made.request_id]
        assert state.finish_reason is FinishReason.MAX_TOKENS
        assert len(state.output_ids) == made.sampling.max_tokens
        check = oracle.check(made, state.output_ids)
        assert check.num_wrong == 0, f"{made.request_id}: {check}"
        num_checked += check.num_checked
        num_ties += check.num_ties
    assert num_ties <= max_ties(num_checked)
    engine.scheduler.check()
    assert not engine.scheduler.has_work


def texts(model: ModelSpec, lengths: Iterable[int], max_tokens: Iterable[int]) -> list[Request]:
    pairs = zip(lengths, max_tokens, strict=True)
    return [text_request(model, f"t{i}", length, count) for i, (length, count) in enumerate(pairs)]


def pictures(max_tokens: int = 6) -> list[Request]:
    """Images that are distinct, shared between requests, and twice in one request; text among them."""
    recipes: dict[str, list[int | tuple[str, int]]] = {
        "one": [5, ("image", 1), 4],
        "two": [("image", 2), 3, ("image", 3), 2],
        "shared": [9, ("image", 1), 1],
        "twice": [1, ("image", 4), ("image", 4), 6],
        "plain": [13],
    }
    return [
        request(name, prompt_of(TINY_GEMMA3_VL, pieces, seed), max_tokens)
        for seed, (name, pieces) in enumerate(recipes.items(), start=1)
    ]


def staggered(requests: Iterable[Request], gap: int) -> list[tuple[int, Request]]:
    return [(index * gap, made) for index, made in enumerate(requests)]


def cases() -> dict[str, Case]:
    found = {}
    for model in MODELS.values():
        waiting = texts(model, [9, 20, 3, 40, 1, 17, 33], [12, 3, 9, 5, 7, 1, 4])
        found[f"{model.name} waiting queue"] = Case(model, CONFIG, staggered(waiting, 0))
        found[f"{model.name} staggered"] = Case(model, CONFIG, staggered(waiting, 2))
        found[f"{model.name} chunked"] = Case(model, CHUNKED, staggered(waiting, 1))
        # Positions beyond the sliding window of 32, in decodes as well as in chunks.
        long = texts(model, [70, 45, 60], [10, 30, 20])
        found[f"{model.name} long"] = Case(model, CONFIG, staggered(long, 1))
        squeezed = texts(model, [20, 24, 30], [40, 36, 25])
        found[f"{model.name} preempted"] = Case(model, TIGHT, staggered(squeezed, 1))
    found["images"] = Case(TINY_GEMMA3_VL, CONFIG, staggered(pictures(), 0))
    found["images chunked"] = Case(TINY_GEMMA3_VL, CHUNKED, staggered(pictures(), 1))
    one_slot = dataclasses.replace(CONFIG, num_encoder_slots=1, max_images_per_step=1)
    found["images one slot"] = Case(TINY_GEMMA3_VL, one_slot, staggered(pictures(), 0))
    found["images preempted"] = Case(
        TINY_GEMMA3_VL, dataclasses.replace(CHUNKED, num_blocks=10), staggered(pictures(30), 0)
    )
    return found


CASES = cases()


Served = Callable[[str, str], Engine]


@pytest.fixture(scope="module")
def served(shared_device: SharedDevice) -> Served:
    """The engine that served a case on a device kind; each is run once."""
    engines: dict[tuple[str, str], Engine] = {}

    def get(name: str, kind: str) -> Engine:
        if (name, kind) not in engines:
            engines[name, kind] = serve(CASES[name], kind, shared_device)
        return engines[name, kind]

    return get


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_every_token_is_right(name: str, kind: str, served: Served, oracles: Oracles) -> None:
    case, engine = CASES[name], served(name, kind)
    assert_all_right(engine, case.requests, oracles(case.model.name))
    if "preempted" in name:
        preemptions = sum(state.num_preemptions for state in engine.requests.values())
        assert preemptions > 0
        assert sum(step.num_preempted for step in engine.recorder.steps) == preemptions
    if "chunked" in name:
        assert max(step.num_tokens for step in engine.recorder.steps) <= 7


def steps(engine: Engine) -> list[tuple[object, ...]]:
    """What each step was made of, times aside."""
    return [
        (step.step_id, step.kind, step.num_rows, step.num_tokens, step.num_preempted, step.num_image_rows)
        for step in engine.recorder.steps
    ]


@pytest.mark.parametrize("name", CASES)
def test_both_devices_give_the_same_tokens_in_the_same_steps(name: str, served: Served) -> None:
    inline, process = served(name, "inline"), served(name, "process")
    assert outputs(inline) == outputs(process)
    assert steps(inline) == steps(process)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["images", "tiny-qwen3 staggered"])
def test_a_second_run_on_the_same_device_repeats_the_first(
    name: str, kind: str, served: Served, shared_device: SharedDevice
) -> None:
    first, second = served(name, kind), serve(CASES[name], kind, shared_device)
    assert outputs(first) == outputs(second)
    assert steps(first) == steps(second)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_a_middle_request_that_finishes_first_moves_a_row_and_disturbs_nobody(
    model: ModelSpec,
    kind: str,
    shared_device: SharedDevice,
    oracles: Oracles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves = []
    update = InputBatch.update

    def spy(batch: InputBatch, *arguments: object) -> None:
        before = dict(batch.row_of)
        update(batch, *arguments)
        moves.extend(name for name in before if batch.row_of.get(name, before[name]) != before[name])

    monkeypatch.setattr(InputBatch, "update", spy)
    case = Case(model, CONFIG, staggered(texts(model, [8, 7, 6], [12, 3, 12]), 0))
    engine = serve(case, kind, shared_device)
    assert moves == ["t2"]
    assert_all_right(engine, case.requests, oracles(model.name))


def test_output_is_diverse_so_that_a_fault_would_show(served: Served) -> None:
    for model in MODELS.values():
        produced = outputs(served(f"{model.name} long", "inline")).values()
        tokens = [token for ids in produced for token in ids]
        assert len(set(tokens)) > len(tokens) / 2


# ---- requests that fail alone


def bad_requests() -> list[Request]:
    ids = (5, *VISION.placeholder_ids(), 6)
    return [
        request("too few placeholders", Prompt(ids[:-3], (image(1),))),
        request("an image too many", Prompt(ids, (image(1), image(2)))),
        request("too long", Prompt(text(TINY_GEMMA3_VL, CONFIG.max_model_len, seed=1))),
        request("no such id", Prompt((5, TINY_GEMMA3_VL.vocab_size))),
        request("empty", Prompt(())),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_request_fails_alone(kind: str, shared_device: SharedDevice) -> None:
    good = staggered(pictures(), 1)
    alone = serve(Case(TINY_GEMMA3_VL, CONFIG, good), kind, shared_device)
    bad = [(index, made) for index, made in enumerate(bad_requests())]
    mixed = serve(Case(TINY_GEMMA3_VL, CONFIG, [*bad, *good]), kind, shared_device)
    for name, tokens in outputs(alone).items():
        assert outputs(mixed)[name] == tokens
    for _, made in bad:
        state = mixed.requests[made.request_id]
        assert state.is_finished
        assert state.finish_reason is FinishReason.ERROR
        assert state.error is not None
        assert made.request_id in state.error
        assert state.output_ids == []
        assert mixed.recorder.timelines[made.request_id].first_scheduled_ns is None
    mismatch = mixed.requests["too few placeholders"].error or ""
    assert "15 image placeholders" in mismatch
    assert "16 image tokens" in mismatch


def test_an_engine_given_only_bad_requests_ends_without_a_step(shared_device: SharedDevice) -> None:
    engine = serve(Case(TINY_GEMMA3_VL, CONFIG, staggered(bad_requests(), 0)), "inline", shared_device)
    assert engine.recorder.steps == []
    assert len(engine.requests) == 5


def test_an_engine_without_requests_ends(shared_device: SharedDevice) -> None:
    engine = serve(Case(TINY_QWEN3, CONFIG, []), "inline", shared_device)
    assert engine.recorder.steps == []


# ---- how a request ends


@pytest.mark.parametrize("kind", KINDS)
def test_eos_ends_a_request_unless_it_is_ignored(kind: str, shared_device: SharedDevice) -> None:
    """The model's own fourth token is declared to be EOS."""
    prompt = prompt_of(TINY_QWEN3, [12], seed=5)
    free = serve(Case(TINY_QWEN3, CONFIG, [(0, request("r", prompt, 10))]), kind, shared_device)
    tokens = outputs(free)["r"]
    spec = dataclasses.replace(TINY_QWEN3, eos_token_id=tokens[3])
    both = [(0, request("stops", prompt, 10, ignore_eos=False)), (0, request("goes on", prompt, 10))]
    engine = serve(Case(spec, CONFIG, both), kind, shared_device)
    assert outputs(engine) == {"stops": tokens[: tokens.index(tokens[3]) + 1], "goes on": tokens}
    assert engine.requests["stops"].finish_reason is FinishReason.EOS


def test_the_models_length_ends_a_request(shared_device: SharedDevice, oracles: Oracles) -> None:
    made = text_request(TINY_GEMMA3_VL, "r", 120, max_tokens=50)
    engine = serve(Case(TINY_GEMMA3_VL, CONFIG, [(0, made)]), "inline", shared_device)
    state = engine.requests["r"]
    assert state.finish_reason is FinishReason.MODEL_LENGTH
    assert len(state.output_ids) == 8
    assert oracles(TINY_GEMMA3_VL.name).check(made, state.output_ids).num_right == 8


class Aborting(Staggered):
    """Arrivals that abort a request at the n-th time they are asked."""

    def __init__(self, requests: Iterable[Request], name: str, at: int) -> None:
        super().__init__((0, made) for made in requests)
        self.engine: Engine | None = None
        self._name, self._left = name, at
        self._queue = [(0, made) for made in requests]

    def due(self) -> list[Request]:
        ready = [made for _, made in self._queue]
        self._queue = []
        if self._left == 0 and self.engine is not None:
            self.engine.abort(self._name)
        self._left -= 1
        return ready

    def wait(self) -> bool:
        return False


@pytest.mark.parametrize("at", [1, 3])
def test_an_aborted_request_keeps_its_tokens_and_disturbs_nobody(
    at: int, shared_device: SharedDevice, oracles: Oracles
) -> None:
    made = texts(TINY_QWEN3, [8, 7, 6], [9, 9, 9])
    arrivals = Aborting(made, "t1", at)
    engine = Engine(TINY_QWEN3, CONFIG, shared_device("inline", TINY_QWEN3, CONFIG))
    arrivals.engine = engine
    engine.run(arrivals)
    state = engine.requests["t1"]
    assert state.finish_reason is FinishReason.ABORTED
    assert len(state.output_ids) == at
    assert engine.recorder.timelines["t1"].finished_ns is not None
    assert_all_right(engine, [made[0], made[2]], oracles(TINY_QWEN3.name))


def test_aborting_a_request_nobody_knows_is_ignored(shared_device: SharedDevice) -> None:
    Engine(TINY_QWEN3, CONFIG, shared_device("inline", TINY_QWEN3, CONFIG)).abort("nobody")


# ---- a device that fails


class Killing:
    """Arrivals of one long request that kill a process at the n-th time they are asked."""

    def __init__(self, made: Request, pid: int, at: int) -> None:
        self._made: list[Request] = [made]
        self._pid, self._left = pid, at

    def due(self) -> list[Request]:
        if self._left == 0:
            os.kill(self._pid, signal.SIGKILL)
        self._left -= 1
        ready, self._made = self._made, []
        return ready

    def wait(self) -> bool:
        return False


def test_what_was_recorded_before_the_device_died_stays() -> None:
    open_device("process", TINY_QWEN3, CONFIG).close()  # the fork server is then there already
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with open_device("process", TINY_QWEN3, CONFIG) as device:
        (pid,) = {child.pid for child in psutil.Process().children(recursive=True)} - before
        engine = Engine(TINY_QWEN3, CONFIG, device)
        arrivals: Arrivals = Killing(text_request(TINY_QWEN3, "r", 5, 100), pid, at=4)
        with pytest.raises(DeviceError, match="signal 9"):
            engine.run(arrivals)
    assert [step.step_id for step in engine.recorder.steps] == [0, 1, 2, 3]
    assert len(engine.recorder.timelines["r"].token_ns) == len(engine.requests["r"].output_ids) == 4


# ---- drawn at random

PIECES = st.lists(
    st.one_of(st.integers(1, 14), st.tuples(st.just("image"), st.integers(0, 2))), min_size=1, max_size=3
)


@st.composite
def drawn_cases(draw: st.DrawFn) -> Case:
    model = draw(st.sampled_from([TINY_GEMMA3_VL, TINY_QWEN3]))
    pieces = PIECES if model.is_multimodal else st.lists(st.integers(1, 40), min_size=1, max_size=1)
    arrivals = []
    for index in range(draw(st.integers(1, 5))):
        prompt = prompt_of(model, draw(pieces), draw(st.integers(1, 50)))
        arrivals.append((draw(st.integers(0, 6)), request(f"r{index}", prompt, draw(st.integers(1, 7)))))
    longest = max(len(made.prompt) + made.sampling.max_tokens for _, made in arrivals)
    block_size = draw(st.integers(1, 17))
    num_seqs = draw(st.integers(1, 5))
    config = RunnerConfig(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_seqs + draw(st.integers(0, 40)),
        max_model_len=longest,
        block_size=block_size,
        num_blocks=-(-longest // block_size) + draw(st.integers(0, 6)),
        num_encoder_slots=draw(st.integers(1, 3)),
        max_images_per_step=draw(st.integers(1, 2)),
    )
    return Case(model, config, arrivals)


@pytest.fixture(scope="module")
def built_once() -> Iterable[None]:
    """Weights are built once a model instead of once an example; devices only read them."""
    build = runner.kernels.model.build_model
    built: dict[tuple[str, object], object] = {}

    def cached(spec: ModelSpec, dtype: object) -> object:
        key = repr(spec), dtype
        if key not in built:
            built[key] = build(spec, dtype)
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner.kernels.model, "build_model", cached)
        yield


@settings(max_examples=50)
@given(case=drawn_cases())
def test_any_workload_under_any_sizes_gives_the_right_tokens(
    case: Case, built_once: None, oracles: Oracles
) -> None:
    with open_device("inline", case.model, case.config) as device:
        engine = Engine(case.model, case.config, device)
        engine.run(Staggered(case.arrivals))
        assert_all_right(engine, case.requests, oracles(case.model.name))
        assert engine.scheduler.blocks.num_free == case.config.num_blocks


def test_a_second_engine_on_a_device_sees_nothing_of_the_first(shared_device: SharedDevice) -> None:
    device = shared_device("inline", TINY_GEMMA3_VL, CONFIG)
    first = Engine(TINY_GEMMA3_VL, CONFIG, device)
    first.run(together(pictures()))
    second = Engine(TINY_GEMMA3_VL, CONFIG, device)
    second.run(together(reversed(pictures())))
    assert outputs(second) == outputs(first)
    assert second.recorder.steps[0].step_id == 0
