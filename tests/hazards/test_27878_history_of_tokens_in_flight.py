"""Penalties and bad words without effect: the sampler sees -1 for tokens in flight (vLLM #27878, #26467,
#27910, #52461).

Minimal: a request with penalties joins a running batch without any, async, so that its last token is never
known to the host when the next one is sampled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN3
from arm_sampling import faults, serve_sampled
from arm_workloads import Case, Recipe, check_finished, outputs
from hazard_traffic import CONFIG, fitting

from runner.inputs.arms import ARMS
from runner.kernels.program import Program

PLAIN: dict[str, Any] = {}
REPEATS = {"repetition_penalty": 0.3, "frequency_penalty": -2.0}
JOINING = (
    Recipe("ids", 5, max_tokens=20, seed=1),
    Recipe("pure", 6, max_tokens=14, seed=2),
    Recipe("ids", 4, max_tokens=14, seed=3),
    Recipe("spliced", 7, max_tokens=10, seed=4),
)


@pytest.mark.parametrize("kind", ["inline", "lazy", "shuffle:5", "process"])
@pytest.mark.parametrize("model", [MICRO_GEMMA3_VL, MICRO_QWEN3], ids=lambda model: model.name)
def test_a_penalty_that_joins_a_running_batch_sees_every_token(kind: str, model: Any, devices: Any) -> None:
    case = Case(model, CONFIG, JOINING, gap=3)
    device = devices(kind, model, CONFIG)
    for arm in fitting(model):
        engine = serve_sampled(case, device, arm, PLAIN, REPEATS)
        check_finished(engine)
        assert faults(engine, model) == {}, arm.name


@pytest.mark.parametrize("name", ["sync-rows", "async-rows"])
def test_a_bad_word_of_two_ids_is_stopped_behind_a_token_in_flight(name: str, devices: Any) -> None:
    """Its first id is sampled, its second was the next one: now that one never follows."""
    case = Case(MICRO_GEMMA3_VL, CONFIG, JOINING[:1])
    device = devices("inline", MICRO_GEMMA3_VL, CONFIG)
    (whole,) = outputs(serve_sampled(case, device, ARMS[name], PLAIN)).values()
    for index in range(1, 6):
        word = tuple(whole[index : index + 2])
        engine = serve_sampled(case, device, ARMS[name], {"bad_words": (word,)})
        (found,) = outputs(engine).values()
        assert found[: index + 1] == whole[: index + 1]
        assert found[index + 1] != whole[index + 1]
        assert faults(engine, MICRO_GEMMA3_VL) == {}


@pytest.mark.parametrize("name", ["sync-rows", "async-rows"])
def test_resumed_after_preemption_it_sees_what_it_said_before(name: str, devices: Any) -> None:
    tight = replace(CONFIG, num_blocks=13)
    case = Case(MICRO_GEMMA3_VL, tight, JOINING, gap=1)
    engine = serve_sampled(case, devices("inline", MICRO_GEMMA3_VL, tight), ARMS[name], REPEATS)
    assert any(state.num_preemptions and state.output_ids for state in engine.requests.values())
    assert faults(engine, MICRO_GEMMA3_VL) == {}


@pytest.mark.parametrize("name", ["sync-rows", "async-rows"])
def test_chunks_of_a_prompt_add_nothing_to_its_history(name: str, devices: Any) -> None:
    """What is sampled behind a chunk is thrown away: the prompt's own next id stands there."""
    config = replace(CONFIG, max_num_seqs=1, max_num_batched_tokens=4)
    case = Case(MICRO_GEMMA3_VL, config, (Recipe("ids", 18, max_tokens=6, seed=1),))
    device = devices("inline", MICRO_GEMMA3_VL, config)
    engine = serve_sampled(case, device, ARMS[name], REPEATS)
    state = engine.requests["r0"]
    kept = device._runner._program._buffers["token_history"][0].tolist()
    expected = [*state.request.prompt.token_ids, *state.output_ids]
    assert kept[: len(expected)] == expected


@pytest.mark.parametrize("params", [REPEATS, {"bad_words": ((7, 8),)}], ids=["penalties", "bad words"])
def test_a_history_that_lags_by_the_token_in_flight_is_seen(
    params: dict[str, Any], devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: what a step samples is not remembered, as if only the host knew tokens."""
    case = Case(MICRO_GEMMA3_VL, CONFIG, JOINING[:1])
    device = devices("inline", MICRO_GEMMA3_VL, CONFIG)
    if "bad_words" in params:
        (whole,) = outputs(serve_sampled(case, device, ARMS["async-rows"], PLAIN)).values()
        params = {"bad_words": (tuple(whole[2:4]),)}
    right = outputs(serve_sampled(case, device, ARMS["async-rows"], params))
    remember = Program._remember

    def forgets(program: Program, kept: torch.Tensor, num_kept: torch.Tensor) -> None:
        before = program._buffers["token_history"].clone()
        remember(program, kept, num_kept)
        program._buffers["token_history"].copy_(before)

    monkeypatch.setattr(Program, "_remember", forgets)
    engine = serve_sampled(case, device, ARMS["async-rows"], params)
    assert outputs(engine) != right
    assert faults(engine, MICRO_GEMMA3_VL) != {}
