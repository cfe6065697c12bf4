"""Positions computed = prompts + outputs - cached + recomputed + wasted + rejected drafts, on real runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest
from records import make_run

from runner.config import RunnerConfig
from runner.core import Prompt, Request, SamplingParams, SuppliedRows
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.measure import StepRecord
from runner.models import MODELS, ModelSpec
from suite.checks import check_run
from suite.metrics import is_completed
from suite.record import RequestRecord
from suite.supplied import embedding_lookup
from suite.worker import request_record
from suite.workload import Embed, WorkloadRequest

BASE = MODELS["tiny-qwen3"]
CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=24,
    max_model_len=64,
    block_size=4,
    num_blocks=10,
    num_resident_rows=64,
)
RIGHT = [name for name, arm in ARMS.items() if arm.is_right and arm.fits(False)]


class AllAtOnce:
    def __init__(self, requests: Sequence[Request]) -> None:
        self._left = list(requests)

    def due(self) -> Sequence[Request]:
        due, self._left = self._left, []
        return due

    def wait(self) -> bool:
        return False


@pytest.fixture(scope="module")
def embed() -> Embed:
    return embedding_lookup(BASE)


@pytest.fixture(scope="module")
def devices() -> Iterator[Callable[[RunnerConfig], Device]]:
    """Opens a device once for each configuration."""
    opened: dict[RunnerConfig, Device] = {}
    with ExitStack() as stack:

        def open_once(config: RunnerConfig) -> Device:
            if config not in opened:
                opened[config] = stack.enter_context(open_device("inline", BASE, config))
            return opened[config]

        yield open_once


def alike(embed: Embed, as_rows: bool, **sampling: float) -> list[WorkloadRequest]:
    """Five prompts that begin alike for two blocks; every other one is supplied, where that is taken."""
    made = []
    for index, (num_own, num_output) in enumerate([(3, 9), (1, 12), (4, 7), (2, 11), (5, 8)]):
        ids = tuple([5, 6, 7, 5, 6, 7, 5, 6] + [(97 * index + 31 * i) % 4000 + 3 for i in range(num_own)])
        prompt = Prompt(ids)
        if as_rows and index % 2 == 0:
            prompt = Prompt((), embeds=SuppliedRows(embed(ids).tobytes(), len(ids), BASE.hidden_size))
        request = Request(f"r{index}", prompt, SamplingParams(num_output, **sampling))
        made.append(WorkloadRequest(request, 0.0, "text", 0))
    return made


def items(embed: Embed, as_rows: bool) -> list[WorkloadRequest]:
    """Six prompts; 10 blocks of 4 hold two of them at full length, so that some are preempted."""
    made = []
    for index, (num_prompt, num_output) in enumerate([(9, 14), (6, 12), (11, 9), (5, 13), (8, 1), (7, 10)]):
        ids = tuple((97 * index + 31 * i) % 4000 + 3 for i in range(num_prompt))
        prompt = Prompt(ids)
        if as_rows and index % 2 == 0:
            prompt = Prompt((), embeds=SuppliedRows(embed(ids).tobytes(), num_prompt, BASE.hidden_size))
        request = Request(f"r{index}", prompt, SamplingParams(num_output))
        made.append(WorkloadRequest(request, 0.0, "text", 0))
    return made


def run(
    device: Device, model: ModelSpec, config: RunnerConfig, arm: str, given: Sequence[WorkloadRequest]
) -> tuple[list[RequestRecord], list[StepRecord]]:
    engine = Engine(model, config, device, ARMS[arm])
    engine.run(AllAtOnce([item.request for item in given]))
    timelines = engine.recorder.timelines
    names = [item.request.request_id for item in given]
    records = [
        request_record(item, 0, engine.requests[name], timelines[name])
        for item, name in zip(given, names, strict=True)
    ]
    return records, engine.recorder.steps


@pytest.fixture(scope="module")
def ending(devices: Callable[[RunnerConfig], Device], embed: Embed) -> ModelSpec:
    """The model with an EOS that greedy output really holds: request 0's sixth token."""
    records, _ = run(devices(CONFIG), BASE, CONFIG, "sync-ids", items(embed, as_rows=False))
    return replace(BASE, eos_token_id=records[0].output_ids[5])


def rules(records: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> list[str]:
    return [finding.rule for finding in check_run(make_run(records, steps), records, steps)]


# With 8 blocks a request is preempted that its token in flight then ends: it is never computed again.
@pytest.mark.parametrize("num_blocks", [10, 8])
@pytest.mark.parametrize("arm", RIGHT)
def test_every_position_computed_is_accounted_for_under_eos_and_preemption(
    arm: str,
    num_blocks: int,
    devices: Callable[[RunnerConfig], Device],
    embed: Embed,
    ending: ModelSpec,
) -> None:
    config = replace(CONFIG, num_blocks=num_blocks)
    given = items(embed, ARMS[arm].prompt_embeds)
    records, steps = run(devices(config), ending, config, arm, given)
    assert all(is_completed(record) for record in records)
    assert records[0].finish_reason == "eos" and records[0].num_output_tokens == 6
    assert sum(record.num_recomputed_tokens for record in records) > 0
    is_async = ARMS[arm].scheduling != "sync"  # a text model has no gate
    num_eos = sum(record.finish_reason == "eos" for record in records)
    assert sum(record.num_wasted_tokens for record in records) == num_eos * is_async
    assert "tokens-conserved" not in rules(records, steps)
    if is_async:  # and the account would show it
        unsaid = [replace(record, num_wasted_tokens=0) for record in records]
        assert "tokens-conserved" in rules(unsaid, steps)


@pytest.mark.parametrize("num_blocks", [24, 8])
@pytest.mark.parametrize("arm", RIGHT)
def test_what_the_prefix_cache_gave_is_not_computed_and_is_accounted_for(
    arm: str, num_blocks: int, devices: Callable[[RunnerConfig], Device], embed: Embed
) -> None:
    config = replace(CONFIG, num_blocks=num_blocks, prefix_caching=True)
    given = alike(embed, ARMS[arm].prompt_embeds)
    records, steps = run(devices(config), BASE, config, arm, given)
    assert all(is_completed(record) for record in records)
    assert sum(record.num_cached_tokens for record in records) > 0
    assert "tokens-conserved" not in rules(records, steps)
    unsaid = [replace(record, num_cached_tokens=0) for record in records]
    assert "tokens-conserved" in rules(unsaid, steps)


@pytest.mark.parametrize("arm", RIGHT)
def test_drafts_are_accounted_for_whether_right_or_wrong(
    arm: str, devices: Callable[[RunnerConfig], Device], embed: Embed
) -> None:
    config = replace(CONFIG, num_speculative_tokens=3)
    # Tokens seen before become likely, so that drafts are right now and then.
    given = alike(embed, ARMS[arm].prompt_embeds, repetition_penalty=0.3, frequency_penalty=-2.0)
    records, steps = run(devices(config), BASE, config, arm, given)
    assert all(is_completed(record) for record in records)
    assert "tokens-conserved" not in rules(records, steps)
    assert 0 < sum(step.num_draft_tokens for step in steps) == sum(r.num_drafted_tokens for r in records)
    assert sum(step.num_accepted_tokens for step in steps) == sum(r.num_accepted_tokens for r in records)
