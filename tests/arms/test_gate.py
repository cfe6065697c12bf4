"""Whether async scheduling is allowed, and why not: every row of the gate's table."""

from __future__ import annotations

import dataclasses

import pytest

from runner.config import RunnerConfig, SchedulingFacts, resolve
from runner.core import RunnerError
from runner.device.base import Device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3

PLAIN = SchedulingFacts(is_multimodal=True, prompt_embeds=True)

REFUSED = {
    "executor": ({"executor_supports_async": False}, "executor"),
    "n-gram on the host": ({"speculative_method": "ngram"}, "'ngram'"),
    "medusa": ({"speculative_method": "medusa"}, "'medusa'"),
    "suffix": ({"speculative_method": "suffix"}, "'suffix'"),
    "unpadded drafts": ({"disable_padded_drafter_batch": True}, "disable_padded_drafter_batch"),
    "pipeline of 2": ({"pipeline_parallel_size": 2}, "pipeline parallel size is 2"),
    "pipeline of 8": ({"pipeline_parallel_size": 8}, "pipeline parallel size is 8"),
}
ALLOWED_METHODS = ("eagle", "eagle3", "mtp", "ngram_gpu", "draft_model")


@pytest.mark.parametrize("rules", ["default", "gated"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_async_cannot_do_is_an_error_when_asked_for_and_a_warning_when_automatic(
    name: str, rules: str
) -> None:
    change, reason = REFUSED[name]
    facts = dataclasses.replace(PLAIN, is_multimodal=False, **change)
    with pytest.raises(RunnerError, match=reason):
        resolve("async", facts, rules)
    decision = resolve("auto", facts, rules)
    assert decision.scheduling == "sync"
    assert decision.is_warning
    assert reason in decision.reason


@pytest.mark.parametrize("change", [{}, *({"speculative_method": name} for name in ALLOWED_METHODS)])
def test_automatic_is_async_where_nothing_forbids_it(change: dict[str, str]) -> None:
    facts = dataclasses.replace(PLAIN, **change)
    for requested in ("auto", "async"):
        decision = resolve(requested, facts)
        assert (decision.scheduling, decision.is_warning) == ("async", False)


def test_pooling_is_off_when_automatic_without_a_warning_and_allowed_when_asked_for() -> None:
    facts = dataclasses.replace(PLAIN, is_pooling=True)
    decision = resolve("auto", facts)
    assert (decision.scheduling, decision.is_warning) == ("sync", False)
    assert "pooling" in decision.reason
    assert resolve("async", facts).scheduling == "async"


@pytest.mark.parametrize("is_multimodal", [False, True])
@pytest.mark.parametrize("prompt_embeds", [False, True])
def test_only_the_gated_rules_refuse_prompt_embeds_and_only_on_a_multimodal_model(
    is_multimodal: bool, prompt_embeds: bool
) -> None:
    facts = SchedulingFacts(is_multimodal, prompt_embeds)
    assert resolve("async", facts).scheduling == resolve("auto", facts).scheduling == "async"
    if is_multimodal and prompt_embeds:
        with pytest.raises(RunnerError, match="prompt_embeds"):
            resolve("async", facts, "gated")
        decision = resolve("auto", facts, "gated")
        assert (decision.scheduling, decision.is_warning) == ("sync", True)
        assert "prompt_embeds" in decision.reason
    else:
        assert resolve("async", facts, "gated").scheduling == "async"
        assert resolve("auto", facts, "gated") == resolve("auto", facts)


@pytest.mark.parametrize("name", [None, *REFUSED])
@pytest.mark.parametrize("rules", ["default", "gated"])
def test_sync_is_always_allowed(name: str | None, rules: str) -> None:
    change = REFUSED[name][0] if name else {}
    decision = resolve("sync", dataclasses.replace(PLAIN, **change), rules)
    assert (decision.scheduling, decision.is_warning) == ("sync", False)


def test_the_engine_keeps_the_decision_and_its_reason(devices: object) -> None:
    config = RunnerConfig(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=32, num_blocks=8)
    for model, scheduling in ((TINY_GEMMA3_VL, "sync"), (TINY_QWEN3, "async")):
        device: Device = devices("inline", model, config)
        decision = Engine(model, config, device, ARMS["gated"]).decision
        assert decision.scheduling == scheduling
        assert decision.is_warning == (scheduling == "sync")
        assert ("#45383" in decision.reason) == (scheduling == "sync")
