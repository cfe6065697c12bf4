"""Speculation changes how many steps a run takes, never a token: under every right arm, on every device."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from arm_models import MICRO, MICRO_GEMMA3_VL, MICRO_QWEN3, MICRO_QWEN25_VL
from arm_probes import edited, probed
from arm_sampling import CONFIG, CYCLING, REPEATING, mixed_case, serve_sampled
from arm_workloads import Case, Recipe, check_finished, outputs, serve, wrong_requests
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.commands import Command, Download, Draft, RouteDrafts, Sample
from runner.config import RunnerConfig
from runner.core import DeviceError
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm
from runner.models import ModelSpec

Open = Callable[[str, ModelSpec, RunnerConfig], Device]

TIGHT = replace(CONFIG, num_blocks=18)
RIGHT = [arm for arm in ARMS.values() if arm.is_right]


def with_drafts(config: RunnerConfig, num_drafts: int = 3) -> RunnerConfig:
    return replace(config, num_speculative_tokens=num_drafts)


def case_of(model: ModelSpec, config: RunnerConfig, count: int = 8) -> Case:
    return mixed_case(model, config, count, range(6, 13), range(6, 16, 2))


def num_accepted(engine: Engine) -> int:
    return sum(step.num_accepted_tokens for step in engine.recorder.steps)


def fitting(model: ModelSpec) -> list[Arm]:
    return [arm for arm in RIGHT if arm.fits(model.is_multimodal)]


@pytest.mark.parametrize("config", [CONFIG, TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize(
    ("model", "arm"),
    [(model, arm) for model in MICRO for arm in fitting(model)],
    ids=lambda value: value.name,
)
def test_every_right_arm_gives_the_tokens_it_gives_without(
    devices: Open, model: ModelSpec, arm: Arm, config: RunnerConfig
) -> None:
    without = serve_sampled(
        case_of(model, config), devices("inline", model, config), arm, REPEATING, CYCLING, {}
    )
    case = case_of(model, with_drafts(config))
    engine = serve_sampled(case, devices("inline", model, case.config), arm, REPEATING, CYCLING, {})
    check_finished(engine)
    assert outputs(engine) == outputs(without)
    assert num_accepted(engine) > 0


@pytest.mark.parametrize("kind", ["lazy", "shuffle:1", "shuffle:2", "shuffle:3", "process"])
@pytest.mark.parametrize("name", ["async-rows", "sync-rows", "fused"])
def test_every_order_of_the_device_gives_the_same(devices: Open, kind: str, name: str) -> None:
    case = case_of(MICRO_GEMMA3_VL, with_drafts(TIGHT))
    expected = serve_sampled(case, devices("inline", case.model, case.config), ARMS[name], REPEATING)
    engine = serve_sampled(case, devices(kind, case.model, case.config), ARMS[name], REPEATING)
    check_finished(engine)
    assert outputs(engine) == outputs(expected)


@pytest.mark.parametrize("model", MICRO, ids=lambda model: model.name)
def test_greedy_tokens_are_the_references(devices: Open, model: ModelSpec) -> None:
    case = case_of(model, with_drafts(TIGHT, 2))
    for name in ("async-rows", "fused") if model.is_multimodal else ("text", "fused"):
        engine = serve(case, devices("inline", model, case.config), ARMS[name])
        assert sum(step.num_draft_tokens for step in engine.recorder.steps) > 0
        assert wrong_requests(engine) == {}


@given(
    seed=st.integers(0, 10**6),
    num_drafts=st.integers(1, 5),
    num_blocks=st.sampled_from([17, 24, 64]),
    lookup=st.sampled_from([(1, 1), (1, 3), (2, 3)]),
    temperature=st.sampled_from([0.0, 0.7]),
)
@settings(max_examples=25, deadline=None)
def test_at_random_sync_without_and_async_with_drafts_agree(
    devices: Open,
    seed: int,
    num_drafts: int,
    num_blocks: int,
    lookup: tuple[int, int],
    temperature: float,
) -> None:
    shortest, longest = lookup
    config = replace(CONFIG, num_blocks=num_blocks, prompt_lookup_min=shortest, prompt_lookup_max=longest)
    params = {**REPEATING, "temperature": temperature, "seed": seed, "top_p": 0.95}
    model = MICRO_QWEN25_VL if seed % 2 else MICRO_GEMMA3_VL
    base, drafted = case_of(model, config, 6), case_of(model, with_drafts(config, num_drafts), 6)
    device = devices("inline", model, config)
    expected = serve_sampled(base, device, ARMS["sync-rows"], params)
    with open_device(f"shuffle:{seed}", model, drafted.config) as other:
        engine = serve_sampled(drafted, other, ARMS["skip"], params)
    check_finished(engine)
    assert outputs(engine) == outputs(expected)


@pytest.mark.parametrize("name", ["sync-rows", "async-rows"])
def test_accepted_drafts_take_fewer_steps(devices: Open, name: str) -> None:
    recipes = (Recipe("spliced", 9, max_tokens=30, seed=4),)
    counts = {}
    for config in (CONFIG, with_drafts(CONFIG)):
        case = Case(MICRO_GEMMA3_VL, config, recipes)
        engine = serve_sampled(case, devices("inline", case.model, config), ARMS[name], REPEATING)
        counts[config.num_speculative_tokens] = len(engine.recorder.steps)
    assert counts[3] < 0.8 * counts[0]


# ---- what is recorded


def test_acceptance_is_recorded_by_step_and_by_request(devices: Open) -> None:
    case = case_of(MICRO_GEMMA3_VL, with_drafts(CONFIG))
    for name in ("sync-rows", "async-rows"):
        engine = serve_sampled(case, devices("inline", case.model, case.config), ARMS[name], REPEATING)
        steps, states = engine.recorder.steps, engine.requests.values()
        drafted = sum(state.num_drafted for state in states)
        accepted = sum(state.num_accepted for state in states)
        assert 0 < accepted < drafted
        wasted = sum(state.num_wasted for state in states)
        assert 0 <= sum(step.num_draft_tokens for step in steps) - drafted <= wasted
        assert 0 <= num_accepted(engine) - accepted <= wasted
        assert all(step.num_accepted_tokens <= step.num_draft_tokens for step in steps)


def test_tokens_computed_are_prompt_output_rejected_wasted_and_recomputed(devices: Open) -> None:
    for config in (CONFIG, TIGHT):
        case = case_of(MICRO_GEMMA3_VL, with_drafts(config))
        for name in ("sync-rows", "async-rows"):
            engine = serve_sampled(case, devices("inline", case.model, case.config), ARMS[name], REPEATING)
            states = engine.requests.values()
            needed = sum(state.num_prompt + len(state.output_ids) - 1 for state in states)
            rejected = sum(state.num_drafted - state.num_accepted for state in states)
            others = sum(state.num_wasted + state.num_recomputed for state in states)
            assert sum(step.num_tokens for step in engine.recorder.steps) == needed + rejected + others


def test_all_routes_of_ids_are_taken(devices: Open) -> None:
    """Drafts do not count when it is asked whether an id must come from the host, as in vLLM."""
    case = case_of(MICRO_GEMMA3_VL, with_drafts(CONFIG))
    engine = serve_sampled(case, devices("inline", case.model, case.config), ARMS["async-rows"], REPEATING)
    routes = Counter(step.ids_route for step in engine.recorder.steps)
    assert set(routes) >= {"host", "mixed", "draft"}
    for step in engine.recorder.steps:
        if step.ids_route == "draft":
            assert step.num_draft_tokens > 0
            assert step.num_tokens == step.num_decode_rows + step.num_draft_tokens
            assert "input_ids" not in step.copies


def test_sync_knows_its_drafts_and_asks_for_those_there_are(devices: Open) -> None:
    case = case_of(MICRO_GEMMA3_VL, with_drafts(CONFIG))
    device = devices("inline", case.model, case.config)
    steps = serve(case, device, ARMS["sync-rows"]).recorder.steps
    optimistic = serve(case, device, ARMS["async-rows"]).recorder.steps
    assert sum(step.num_draft_tokens for step in steps) < sum(step.num_draft_tokens for step in optimistic)
    assert all(step.ids_route == "host" for step in steps)


def test_nothing_is_proposed_and_nothing_kept_where_nobody_speculates(devices: Open) -> None:
    case = case_of(MICRO_QWEN3, CONFIG, 3)
    device = devices("inline", case.model, case.config)
    engine = Engine(case.model, case.config, device, ARMS["fused"])
    with probed(engine, device) as probe:
        engine.run(case.arrivals())
    for step in probe.steps:
        assert not step.has(Draft) and not step.has(RouteDrafts)
        assert "token_history" not in step.uploaded


# ---- ends


@pytest.mark.parametrize("name", ["sync-rows", "async-rows"])
def test_a_token_that_ends_the_request_ends_it_in_the_midst_of_accepted_ones(
    devices: Open, name: str
) -> None:
    """Whatever token of the output is made the stop token, nothing behind it comes out."""
    case = case_of(MICRO_GEMMA3_VL, with_drafts(CONFIG, 4), 3)
    device = devices("inline", case.model, case.config)
    whole = outputs(serve_sampled(case, device, ARMS[name], REPEATING))
    wasted = 0
    for index in range(6):
        stops = tuple(dict.fromkeys(tokens[index] for tokens in whole.values() if index < len(tokens)))
        engine = serve_sampled(case, device, ARMS[name], {**REPEATING, "stop_token_ids": stops})
        for request, tokens in whole.items():
            ends = [i for i, token in enumerate(tokens) if token in stops]
            assert outputs(engine)[request] == tokens[: ends[0] + 1 if ends else None]
        wasted += sum(state.num_wasted for state in engine.requests.values())
    assert wasted > 0


@pytest.mark.parametrize("name", ["sync-rows", "async-rows"])
def test_a_bad_word_is_stopped_behind_a_draft(devices: Open, name: str) -> None:
    """Its first id is a draft of the same step: what is sampled behind it must see it."""
    case = Case(MICRO_GEMMA3_VL, with_drafts(CONFIG), (Recipe("ids", 9, max_tokens=24, seed=4),))
    device = devices("inline", case.model, case.config)
    (said,) = outputs(serve_sampled(case, device, ARMS[name], REPEATING)).values()
    for index in range(len(said) - 1):
        word = (said[index], said[index + 1])
        engine = serve_sampled(case, device, ARMS[name], {**REPEATING, "bad_words": (word,)})
        (tokens,) = outputs(engine).values()
        assert word not in itertools.pairwise(tokens), index


def test_a_prompt_of_embeddings_only_has_nothing_to_look_up(devices: Open) -> None:
    """Its positions hold no ids (vLLM #42302); what it has sampled itself may be repeated."""
    recipes = tuple(Recipe("pure", 8 + index, max_tokens=12, seed=index) for index in range(4))
    case = Case(MICRO_GEMMA3_VL, with_drafts(CONFIG), recipes)
    device = devices("inline", case.model, case.config)
    engine = serve_sampled(case, device, ARMS["sync-rows"], REPEATING)
    without = Case(MICRO_GEMMA3_VL, CONFIG, recipes)
    expected = serve_sampled(without, devices("inline", case.model, CONFIG), ARMS["sync-rows"], REPEATING)
    assert outputs(engine) == outputs(expected)
    assert num_accepted(engine) > 0
    first = engine.recorder.steps[1]
    assert first.num_draft_tokens == 0, "one token each is known, and it is no repetition"


# ---- negative controls: what the tests above are to notice is noticed


def differs(case: Case, arm: Arm, edit: Callable[[int, Sequence[Command]], Sequence[Command]]) -> bool:
    with open_device("inline", case.model, case.config) as device:
        expected = outputs(serve_sampled(case, device, arm, REPEATING))
        with edited(device, edit):
            try:
                return outputs(serve_sampled(case, device, arm, REPEATING)) != expected
            except DeviceError:
                return True


def test_a_ring_of_one_for_accepted_tokens_is_noticed() -> None:
    """Inline runs the next step before the last one's tokens are read."""
    case = case_of(MICRO_GEMMA3_VL, with_drafts(CONFIG))

    def one_buffer(_step_id: int, commands: Sequence[Command]) -> Sequence[Command]:
        return [
            replace(command, accepted="accepted_ids.0")
            if isinstance(command, Sample)
            else Download("accepted_ids.0", command.count)
            if isinstance(command, Download) and command.buffer.startswith("accepted")
            else command
            for command in commands
        ]

    assert differs(case, ARMS["async-rows"], one_buffer)


def test_a_history_that_is_not_uploaded_is_noticed() -> None:
    case = case_of(MICRO_GEMMA3_VL, with_drafts(CONFIG))

    def no_history(_step_id: int, commands: Sequence[Command]) -> Sequence[Command]:
        return [command for command in commands if getattr(command, "buffer", "") != "token_history"]

    assert differs(case, ARMS["async-rows"], no_history)
