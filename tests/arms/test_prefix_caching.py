"""Prefix caching changes no token: every kind of prompt, every right arm, every device order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from arm_models import (
    MICRO,
    MICRO_BOTH_WAYS,
    MICRO_GEMMA3_VL,
    MICRO_QWEN3,
    MICRO_QWEN25_VL,
    vision_of,
)
from arm_reference import reference_of
from arm_workloads import Arrivals, check_finished, image_of, outputs, text_ids, wrong_requests

from runner.block_hashes import BlockHashes
from runner.config import RunnerConfig
from runner.core import FinishReason, Prompt, Request, RequestState, SamplingParams, SuppliedRows
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm
from runner.inputs.batch import InputBatch
from runner.models import ModelSpec
from runner.scheduler import Scheduler

BASE = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=64,
    block_size=4,
    num_blocks=80,
    num_encoder_slots=2,
    max_images_per_step=2,
    num_resident_rows=160,
    prefix_caching=True,
)
CHUNKED = replace(BASE, max_num_batched_tokens=6)
RIGHT = [arm for arm in ARMS.values() if arm.is_right]


def right_arms(model: ModelSpec) -> list[Arm]:
    return [arm for arm in RIGHT if arm.fits(model.is_multimodal)]


# ---- prompts that begin alike


def rows_of(model: ModelSpec, ids: Sequence[int], mask: bytes | None = None) -> SuppliedRows:
    """Near embed(ids), so that equal beginnings have equal rows; noise where the mask has an id count."""
    rows = reference_of(model.name).embed(ids).numpy().copy()
    noise = [
        np.random.default_rng([place, token]).standard_normal(model.hidden_size)
        for place, token in enumerate(ids)
    ]
    rows += (0.2 * model.weight_std * np.array(noise)).astype(np.float32)
    return SuppliedRows(rows.tobytes(), len(ids), model.hidden_size, mask=mask)


def ids_prompt(model: ModelSpec, ids: Sequence[int], num_images: int = 0, first: int = 0) -> Prompt:
    """Images lie behind the first three ids."""
    placeholders = vision_of(model).placeholder_ids() * num_images if num_images else ()
    images = tuple(image_of(model.name, first + index) for index in range(num_images))
    return Prompt((*ids[:3], *placeholders, *ids[3:]), images)


def pure_prompt(model: ModelSpec, ids: Sequence[int]) -> Prompt:
    return Prompt((), embeds=rows_of(model, ids))


def spliced_prompt(
    model: ModelSpec, ids: Sequence[int], num_images: int = 0, first: int = 0, until: int = 64
) -> Prompt:
    """Every other text position before `until` is supplied, with another id beside it."""
    plain = ids_prompt(model, ids, num_images, first)
    image_id = vision_of(model).image_token_id if num_images else None
    mask = bytes(
        token != image_id and place % 2 == 0 and place < until for place, token in enumerate(plain.token_ids)
    )
    held = tuple(7 if given else token for token, given in zip(plain.token_ids, mask, strict=True))
    return replace(plain, token_ids=held, embeds=rows_of(model, plain.token_ids, mask))


def family(model: ModelSpec, arm: Arm) -> list[Prompt]:
    """Prompts of every kind, most with a beginning that another has too, some the same as another."""
    base = text_ids(model, 13, 1)
    bodies = [base, base, (*base[:9], *text_ids(model, 5, 2)), (*base, *text_ids(model, 4, 3))]
    prompts = [ids_prompt(model, ids) for ids in bodies]
    if model.is_multimodal:
        prompts += [ids_prompt(model, ids, 1, first) for ids in bodies[1:] for first in (0, 1)]
    if arm.prompt_embeds:
        prompts += [pure_prompt(model, ids) for ids in bodies]
        prompts += [spliced_prompt(model, ids, until=until) for ids in bodies for until in (64, 8)]
        if model.is_multimodal:
            prompts += [spliced_prompt(model, ids, 2, first, 20) for ids in bodies[1:] for first in (0, 1)]
    random.Random(5).shuffle(prompts)
    return prompts


def requests_of(prompts: Iterable[Prompt], max_tokens: int = 4) -> list[Request]:
    return [
        Request(f"r{index}", prompt, SamplingParams(max_tokens + index % 3, ignore_eos=True))
        for index, prompt in enumerate(prompts)
    ]


@cache
def traffic(model_name: str, arm_name: str) -> tuple[Request, ...]:
    model = reference_of(model_name).spec
    return tuple(requests_of(family(model, ARMS[arm_name])))


def serve(
    model: ModelSpec,
    config: RunnerConfig,
    device: Device,
    arm: Arm,
    requests: Sequence[Request],
    gap: int = 1,
) -> Engine:
    engine = Engine(model, config, device, arm)
    engine.run(Arrivals((index * gap, request) for index, request in enumerate(requests)))
    check_finished(engine)
    check_account(engine)
    return engine


def check_account(engine: Engine) -> None:
    """Every position computed is one of the requests', and none is counted twice or left out."""
    states = engine.requests.values()
    needed = sum(
        state.num_prompt + len(state.output_ids) - 1
        - state.num_cached + state.num_recomputed + state.num_wasted
        for state in states
    )  # fmt: skip
    assert sum(step.num_tokens for step in engine.recorder.steps) == needed


def watch_admissions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each admission, positions lost before it and positions that the cache gives."""
    seen: list[tuple[int, int]] = []
    count_cached = Scheduler._count_cached

    def watch(scheduler: Scheduler, state: RequestState) -> None:
        seen.append((state.num_lost, state.num_computed))
        count_cached(scheduler, state)

    monkeypatch.setattr(Scheduler, "_count_cached", watch)
    return seen


def num_cached(engine: Engine) -> int:
    return sum(state.num_cached for state in engine.requests.values())


# ---- cache on = cache off


@pytest.mark.parametrize("config", [BASE, CHUNKED], ids=["whole", "chunked"])
@pytest.mark.parametrize("model", (*MICRO, MICRO_BOTH_WAYS), ids=lambda model: model.name)
def test_cached_beginnings_change_no_token_under_any_right_arm(
    model: ModelSpec, config: RunnerConfig, devices: Any
) -> None:
    device = devices("inline", model, config)
    for arm in right_arms(model):
        requests = traffic(model.name, arm.name)
        engine = serve(model, config, device, arm, requests)
        assert num_cached(engine) > (100 if arm.prompt_embeds else 20), arm.name
        assert wrong_requests(engine) == {}, arm.name
        plain = serve(model, replace(config, prefix_caching=False), device, arm, requests)
        assert num_cached(plain) == 0
        assert outputs(engine) == outputs(plain), arm.name


@pytest.mark.parametrize("kind", ["inline", "lazy"])
@pytest.mark.parametrize("model", (*MICRO, MICRO_BOTH_WAYS), ids=lambda model: model.name)
def test_requests_that_all_come_at_once_share_the_blocks_of_the_step_they_are_in(
    model: ModelSpec, kind: str, devices: Any
) -> None:
    """One step computes a beginning for the first and lets the others read it, layer by layer."""
    config = replace(BASE, max_num_seqs=8, max_num_batched_tokens=256)
    device = devices(kind, model, config)
    for arm in (ARMS["sync-ids"], ARMS["ids"], ARMS["refresh"], ARMS["fused"]):
        requests = traffic(model.name, arm.name)
        engine = serve(model, config, device, arm, requests, gap=0)
        first = engine.recorder.steps[0]
        assert first.num_rows >= 4
        assert first.num_tokens < sum(len(request.prompt) for request in requests[: first.num_rows])
        assert wrong_requests(engine) == {}, arm.name


@pytest.mark.parametrize(
    "arm_name", ["sync-ids", "ids", "gated", "refresh", "async-rows", "fused", "resident"]
)
@pytest.mark.parametrize(
    "model", [MICRO_GEMMA3_VL, MICRO_QWEN25_VL, MICRO_BOTH_WAYS], ids=lambda model: model.name
)
def test_preempted_requests_come_back_to_their_blocks_with_the_right_tokens(
    model: ModelSpec, arm_name: str, devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(BASE, max_num_batched_tokens=24, num_blocks=17)
    arm = ARMS[arm_name]
    prompts = family(model, arm)[:12]
    requests = requests_of(prompts, max_tokens=17)
    returns = watch_admissions(monkeypatch)
    engine = serve(model, config, devices("inline", model, config), arm, requests)
    states = engine.requests.values()
    preempted = [state for state in states if state.num_preemptions]
    assert preempted
    assert wrong_requests(engine) == {}
    plain_config = replace(config, prefix_caching=False)
    plain = serve(model, plain_config, devices("inline", model, config), arm, requests)
    assert outputs(engine) == outputs(plain)
    assert any(lost > 0 and given > 0 for lost, given in returns), "no one came back to blocks of its own"


def test_the_next_turn_of_a_conversation_computes_only_what_is_new(devices: Any) -> None:
    model = MICRO_GEMMA3_VL
    for arm in right_arms(model):
        engine = Engine(model, BASE, devices("inline", model, BASE), arm)
        make = pure_prompt if arm.prompt_embeds else ids_prompt
        prompt = make(model, text_ids(model, 10, 1))
        for turn in range(3):
            engine.run(Arrivals([(0, Request(f"turn{turn}", prompt, SamplingParams(7, ignore_eos=True)))]))
            answer = tuple(engine.requests[f"turn{turn}"].output_ids)
            prompt = longer(model, prompt, (*answer, *text_ids(model, 3, turn)))
        check_finished(engine)
        check_account(engine)
        assert wrong_requests(engine) == {}
        assert [state.num_cached for state in engine.requests.values()] == [0, 16, 24], arm.name


def longer(model: ModelSpec, prompt: Prompt, ids: tuple[int, ...]) -> Prompt:
    """More ids behind a prompt; behind embeddings they are the spliced kind."""
    if prompt.embeds is None:
        return Prompt((*prompt.token_ids, *ids))
    embeds, num_rows = prompt.embeds, len(prompt) + len(ids)
    mask = (embeds.mask or b"\x01" * embeds.num_rows) + bytes(len(ids))
    data = embeds.data + bytes(4 * model.hidden_size * len(ids))
    held = prompt.token_ids or (9,) * embeds.num_rows
    return Prompt((*held, *ids), (), SuppliedRows(data, num_rows, model.hidden_size, mask=mask))


@pytest.mark.parametrize("model", [MICRO_GEMMA3_VL, MICRO_QWEN25_VL], ids=lambda model: model.name)
def test_an_image_before_cached_text_keeps_its_place_in_the_positions(model: ModelSpec, devices: Any) -> None:
    """M-RoPE counts an image by its grid: cached or not, what follows has the positions it always had."""
    device = devices("inline", model, BASE)
    ids = text_ids(model, 14, 4)
    prompts = [ids_prompt(model, ids[:cut], 2) for cut in (14, 14, 12, 8)]
    moved = ids_prompt(model, (*ids[:3], *ids[4:]), 2)
    engine = serve(model, BASE, device, ARMS["ids"], requests_of([*prompts, moved], 6), gap=8)
    cached = [state.num_cached for state in engine.requests.values()]
    rows = vision_of(model).rows_per_image
    assert cached[0] == 0
    assert all(taken > 3 + 2 * (rows + 2) for taken in cached[1:3]), "text after the images is cached"
    assert sum(step.num_images_encoded for step in engine.recorder.steps) == 2
    assert wrong_requests(engine) == {}


@pytest.mark.parametrize("arm_name", ["resident-where", "resident", "fused", "sync-fused"])
def test_supplied_rows_that_are_all_cached_are_not_brought_to_the_device(arm_name: str, devices: Any) -> None:
    """Beside a request whose rows are there, so that flags and gathers of both kinds meet in one step."""
    model = MICRO_GEMMA3_VL
    ids = text_ids(model, 13, 1)
    prompt = spliced_prompt(model, ids, until=8)
    # Its mask lies where positions without a place in the arena would look.
    others = [spliced_prompt(model, text_ids(model, 18, 5)), pure_prompt(model, text_ids(model, 9, 6))]
    changed = spliced_prompt(model, (*ids[:11], *text_ids(model, 3, 8)), until=8)
    requests = requests_of([others[0], prompt, others[1], prompt, changed], 9)
    config = replace(BASE, max_num_seqs=6)
    engine = Engine(model, config, devices("inline", model, config), ARMS[arm_name])
    engine.run(Arrivals(zip((0, 0, 3, 3, 3), requests, strict=True)))
    check_finished(engine)
    check_account(engine)
    assert [state.num_cached for state in engine.requests.values()] == [0, 0, 0, 12, 8]
    brought = [step.copies.get("resident_rows", 0) for step in engine.recorder.steps]
    assert sum(brought) == 3
    assert wrong_requests(engine) == {}


def test_rows_read_from_an_arena_place_that_is_not_theirs_would_be_noticed(
    devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above with the batch told that the rows are still to be read."""
    monkeypatch.setattr(InputBatch, "_reads_supplied", lambda _batch, _state: True)
    with pytest.raises(AssertionError):
        test_supplied_rows_that_are_all_cached_are_not_brought_to_the_device("fused", devices)


def test_a_fresh_engine_on_the_same_device_starts_with_an_empty_cache(devices: Any) -> None:
    model = MICRO_QWEN3
    device = devices("inline", model, BASE)
    requests = traffic(model.name, "refresh")
    first, second = (serve(model, BASE, device, ARMS["refresh"], requests) for _ in range(2))
    assert second.requests["r0"].num_cached == 0
    counts = [[state.num_cached for state in engine.requests.values()] for engine in (first, second)]
    assert counts[0] == counts[1]
    assert outputs(first) == outputs(second)


# ---- in flight


@cache
def eos_traffic(model_name: str) -> tuple[ModelSpec, tuple[Request, ...]]:
    """A model whose EOS greedy output really holds, and requests that end by it, again and again."""
    model = reference_of(model_name).spec
    prompts = [ids_prompt(model, (*text_ids(model, 9, 1), *text_ids(model, extra, 2))) for extra in (0, 4, 1)]
    token = reference_of(model_name).greedy(prompts[0], 5)[3]
    ending = replace(model, eos_token_id=token)
    return ending, tuple(
        Request(f"r{index}", prompt, SamplingParams(11, ignore_eos=False))
        for index, prompt in enumerate(prompts * 5)
    )


@pytest.mark.parametrize("kind", ["inline", "lazy", *(f"shuffle:{seed}" for seed in range(6))])
def test_blocks_freed_by_eos_with_a_step_in_flight_are_safe_to_share_and_to_reuse(
    kind: str, models_built_once: None
) -> None:
    """A pool so small that what the step in flight still writes is given away at once."""
    model, requests = eos_traffic(MICRO_QWEN3.name)
    config = replace(BASE, max_num_seqs=2, num_blocks=9, max_model_len=32)
    with open_device(kind, model, config) as device:
        engine = serve(model, config, device, ARMS["ids"], requests)
        sync = serve(model, config, device, ARMS["sync-ids"], requests)
    ended = [state for state in engine.requests.values() if state.finish_reason is FinishReason.EOS]
    assert len(ended) >= 5
    assert sum(state.num_wasted for state in ended) == len(ended)
    assert num_cached(engine) > 0
    assert wrong_requests(engine) == {}
    assert outputs(engine) == outputs(sync)


class Aborting(Arrivals):
    """Ends the named requests at a number of `due` calls."""

    def __init__(self, arrivals: Iterable[tuple[int, Request]], aborts: dict[int, str]) -> None:
        super().__init__(arrivals)
        self.engine: Engine | None = None
        self._aborts = aborts

    def due(self) -> list[Request]:
        name = self._aborts.get(self._calls)
        if name is not None and self.engine is not None:
            self.engine.abort(name)
        return super().due()


@pytest.mark.parametrize("arm_name", ["refresh", "async-rows", "fused", "sync-rows"])
@pytest.mark.parametrize("kind", ["inline", "lazy", "shuffle:1", "shuffle:2", "shuffle:3"])
def test_aborts_and_preemptions_in_flight_leave_the_blocks_of_others_right(
    kind: str, arm_name: str, models_built_once: None
) -> None:
    model = MICRO_GEMMA3_VL
    config = replace(BASE, max_num_batched_tokens=12, num_blocks=17)
    requests = requests_of(family(model, ARMS[arm_name])[:14], 9)
    with open_device(kind, model, config) as device:
        arrivals = Aborting(
            ((index, request) for index, request in enumerate(requests)),
            {call: f"r{index}" for call, index in ((3, 1), (4, 2), (9, 5), (12, 6), (20, 9))},
        )
        engine = arrivals.engine = Engine(model, config, device, ARMS[arm_name])
        engine.run(arrivals)
    engine.scheduler.check()
    states = engine.requests.values()
    assert sum(state.finish_reason is FinishReason.ABORTED for state in states) >= 3
    assert sum(state.num_preemptions for state in states) > 0
    assert num_cached(engine) > 0
    served = {state.request_id for state in states if state.output_ids}
    assert {name for name in wrong_requests(engine) if name in served} == set()


@pytest.mark.parametrize("arm_name", ["refresh", "fused"])
@pytest.mark.parametrize("kind", ["lazy", *(f"shuffle:{seed}" for seed in range(4))])
def test_every_order_of_a_devices_work_gives_the_same_tokens(
    kind: str, arm_name: str, devices: Any, models_built_once: None
) -> None:
    model = MICRO_GEMMA3_VL
    config = replace(CHUNKED, max_num_batched_tokens=10, num_blocks=24)
    requests = traffic(model.name, arm_name)[:14]
    expected = serve(model, config, devices("inline", model, config), ARMS[arm_name], requests)
    assert wrong_requests(expected) == {}
    with open_device(kind, model, config) as device:
        engine = serve(model, config, device, ARMS[arm_name], requests)
    assert num_cached(engine) > 0
    assert outputs(engine) == outputs(expected)


# ---- keys that leave something out


def without(part: str, *places: int) -> Any:
    """BlockHashes with some of the parts of a kind of run left out."""
    whole = getattr(BlockHashes, part)

    def fewer(hashes: BlockHashes, *arguments: Any) -> Any:
        return (value for place, value in enumerate(whole(hashes, *arguments)) if place not in places)

    return fewer


def blind_cases(model: ModelSpec) -> dict[str, tuple[list[Prompt], dict[str, Any]]]:
    """By what the key forgets: two prompts that differ in it alone, and the key."""
    ids = text_ids(model, 13, 1)
    masked = spliced_prompt(model, ids)
    assert masked.embeds is not None
    other_mask = replace(masked.embeds, mask=bytes(1 - bit for bit in masked.embeds.mask or b""))
    return {
        "the bits of supplied rows": (
            [pure_prompt(model, ids), pure_prompt(model, text_ids(model, 13, 2))],
            {"_supplied": without("_supplied", 3)},
        ),
        "which positions are supplied": (
            [masked, replace(masked, embeds=other_mask)],
            {
                # All ids and all rows of a block, as the mask were not there (vLLM #56655).
                "_parts": lambda hashes, first, end: (
                    *BlockHashes._ids(hashes, first, end),
                    *BlockHashes._supplied(hashes, first, end),
                )
            },
        ),
        "the content of an image": (
            [ids_prompt(model, ids, 1, 0), ids_prompt(model, ids, 1, 1)],
            {"_image": without("_image", 1)},
        ),
        "token ids": (
            [ids_prompt(model, ids), ids_prompt(model, (*text_ids(model, 12, 9), ids[-1]))],
            {"_ids": without("_ids", 1)},
        ),
    }


@pytest.mark.parametrize(
    "forgotten",
    ["the bits of supplied rows", "which positions are supplied", "the content of an image", "token ids"],
)
@pytest.mark.parametrize("arm_name", ["refresh", "fused"])
def test_a_key_that_leaves_something_out_gives_wrong_tokens(
    forgotten: str, arm_name: str, devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MICRO_GEMMA3_VL
    device = devices("inline", model, BASE)
    prompts, key = blind_cases(model)[forgotten]
    requests = requests_of(prompts, 8)
    sound = serve(model, BASE, device, ARMS[arm_name], requests, gap=20)
    assert num_cached(sound) <= 4, "the text before an image"
    assert wrong_requests(sound) == {}
    for name, value in key.items():
        monkeypatch.setattr(BlockHashes, name, value)
    blind = serve(model, BASE, device, ARMS[arm_name], requests, gap=20)
    assert blind.requests["r1"].num_cached >= 12
    assert set(wrong_requests(blind)) == {"r1"}
