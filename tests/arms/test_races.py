"""The race detector: take away one thing that orders two sides, and a device order shows it.

`lazy` runs nothing until someone waits, so it shows a host write that comes too early; `inline` runs all at
once, so it shows a device write that comes too early; `shuffle` draws an order and finds both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN25_VL
from arm_probes import edited
from arm_workloads import Case, Recipe, outputs, serve, wrong_requests

import runner.executor
import runner.inputs.compile
from runner.commands import (
    EMBEDDINGS_DONE,
    OUTPUT_READY,
    SAMPLED,
    UPLOADS_DONE,
    Command,
    Download,
    Record,
    Sample,
    Upload,
    Wait,
    ring,
)
from runner.config import RunnerConfig
from runner.core import DeviceError
from runner.device.base import Device, open_device
from runner.executor import Executor
from runner.inputs.arms import ARMS

CONFIG = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=12,
    max_model_len=32,
    block_size=4,
    num_blocks=40,
    num_encoder_slots=2,
    max_images_per_step=2,
    num_resident_rows=60,
)
NUM_SEEDS = 50
RECIPES = (
    Recipe("pure", 5, max_tokens=6, seed=1),
    Recipe("spliced", 6, num_images=1, max_tokens=3, seed=2),
    Recipe("ids", 4, num_images=1, max_tokens=6, seed=3),
    Recipe("pure", 7, max_tokens=4, seed=4),
    Recipe("spliced", 9, max_tokens=5, seed=5),
)
CASE = Case(MICRO_GEMMA3_VL, CONFIG, RECIPES, gap=1)
ARM_NAMES = ("refresh", "async-rows", "fused")

Mutant = Callable[[Device], AbstractContextManager[None]]


def edit_commands(edit: Callable[[list[Command]], list[Command]]) -> Mutant:
    def apply(device: Device) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = edited(
            device, lambda _step_id, commands: edit(list(commands))
        )
        return context

    return apply


@contextmanager
def no_fence(_device: Device) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "_wait_for_fence", lambda _executor: None)
        yield


@contextmanager
def fence_only_at_first(_device: Device) -> Iterator[None]:
    """The first steps are fenced, the steady ones are not."""
    wait = Executor._wait_for_fence

    def wait_at_first(executor: Executor) -> None:
        if executor._last is not None and executor._last.plan.step_id < 2:
            wait(executor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "_wait_for_fence", wait_at_first)
        yield


def single_buffer(name: str) -> Mutant:
    """The ring of that name has one buffer, used by every step."""

    def one_copy(buffer: str, step_id: int) -> str:
        return ring(buffer, 0 if buffer == name else step_id)

    @contextmanager
    def apply(_device: Device) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner.inputs.compile, "ring", one_copy)
            patch.setattr(runner.executor, "ring", one_copy)
            yield

    return apply


def moved_before(event: str, kind: type[Command], last: bool = False) -> Mutant:
    """The record of an event comes before the first (or last) command of a kind instead of after it."""

    def edit(commands: list[Command]) -> list[Command]:
        (record,) = [
            command for command in commands if isinstance(command, Record) and command.event == event
        ]
        commands.remove(record)
        places = [index for index, command in enumerate(commands) if isinstance(command, kind)]
        commands.insert(places[-1 if last else 0], record)
        return commands

    return edit_commands(edit)


def without_wait(commands: list[Command]) -> list[Command]:
    return [command for command in commands if not isinstance(command, Wait)]


MUTANTS: dict[str, Mutant] = {
    "no fence": no_fence,
    "no fence after the first steps": fence_only_at_first,
    "one buffer of step metadata": single_buffer("step_metadata"),
    "one buffer of sampled ids": single_buffer("sampled_ids"),
    "no wait for the sampled ids": edit_commands(without_wait),
    "uploads recorded before the first": moved_before(UPLOADS_DONE, Upload),
    "uploads recorded before the last": moved_before(UPLOADS_DONE, Upload, last=True),
    "sampled recorded before the sample": moved_before(SAMPLED, Sample),
    "output recorded before the download": moved_before(OUTPUT_READY, Download),
}
# Orders that show a mutant at once, whatever the seed.
HOST_TOO_EARLY = (
    "no fence",
    "no fence after the first steps",
    "one buffer of step metadata",
    "uploads recorded before the first",
    "uploads recorded before the last",
    "output recorded before the download",
)
DEVICE_TOO_EARLY = ("one buffer of sampled ids",)

LATE_FENCE = replace(CASE, config=replace(CONFIG, fence=EMBEDDINGS_DONE))
LATE_FENCE_MUTANTS: dict[str, Mutant] = {
    "no fence": no_fence,
    "no fence after the first steps": fence_only_at_first,
    "embeddings recorded before the first upload": moved_before(EMBEDDINGS_DONE, Upload),
    "embeddings recorded before the last upload": moved_before(EMBEDDINGS_DONE, Upload, last=True),
}


def expected(case: Case, devices: Any) -> dict[str, list[int]]:
    """The right tokens, held against transformers alone."""
    engine = serve(case, devices("inline", case.model, case.config), ARMS["sync-rows"])
    assert wrong_requests(engine) == {}
    return outputs(engine)


def is_found(case: Case, mutant: Mutant | None, kind: str, arm: str, right: dict[str, list[int]]) -> bool:
    """Whether an order shows it: wrong tokens, or a typed device error."""
    with open_device(kind, case.model, case.config) as device:
        try:
            if mutant is None:
                return outputs(serve(case, device, ARMS[arm])) != right
            with mutant(device):
                return outputs(serve(case, device, ARMS[arm])) != right
        except DeviceError:
            return True


@pytest.mark.parametrize("arm", ARM_NAMES)
@pytest.mark.parametrize("name", MUTANTS)
def test_shuffle_finds_every_mutant_within_50_seeds(
    name: str, arm: str, devices: Any, models_built_once: None
) -> None:
    right = expected(CASE, devices)
    seeds = (
        seed for seed in range(NUM_SEEDS) if is_found(CASE, MUTANTS[name], f"shuffle:{seed}", arm, right)
    )
    assert next(seeds, None) is not None, "50 orders gave the right tokens"


@pytest.mark.parametrize("arm", ARM_NAMES)
@pytest.mark.parametrize("name", HOST_TOO_EARLY)
def test_lazy_finds_a_host_that_is_too_early_at_once(
    name: str, arm: str, devices: Any, models_built_once: None
) -> None:
    assert is_found(CASE, MUTANTS[name], "lazy", arm, expected(CASE, devices))


@pytest.mark.parametrize("arm", ARM_NAMES)
@pytest.mark.parametrize("name", DEVICE_TOO_EARLY)
def test_inline_finds_a_device_that_is_too_early_at_once(
    name: str, arm: str, devices: Any, models_built_once: None
) -> None:
    assert is_found(CASE, MUTANTS[name], "inline", arm, expected(CASE, devices))


@pytest.mark.parametrize("name", ["no fence", "one buffer of step metadata"])
def test_inline_is_blind_to_a_host_that_is_too_early(
    name: str, devices: Any, models_built_once: None
) -> None:
    """Why one order is not enough; if this changes, so does what the orders are for."""
    assert not is_found(CASE, MUTANTS[name], "inline", "refresh", expected(CASE, devices))


@pytest.mark.parametrize("arm", ARM_NAMES)
def test_without_a_mutant_no_order_finds_anything(arm: str, devices: Any, models_built_once: None) -> None:
    right = expected(CASE, devices)
    kinds = ["inline", "lazy", *(f"shuffle:{seed}" for seed in range(15))]
    assert [kind for kind in kinds if is_found(CASE, None, kind, arm, right)] == []


@pytest.mark.parametrize("arm", ARM_NAMES)
@pytest.mark.parametrize("name", LATE_FENCE_MUTANTS)
def test_lazy_finds_a_fence_that_is_open_where_it_stands_behind_the_embeddings(
    name: str, arm: str, devices: Any, models_built_once: None
) -> None:
    right = expected(CASE, devices)
    assert is_found(LATE_FENCE, LATE_FENCE_MUTANTS[name], "lazy", arm, right)
    assert not is_found(LATE_FENCE, None, "lazy", arm, right)


def test_m_rope_positions_are_fenced_as_well(devices: Any, models_built_once: None) -> None:
    """A model whose positions are uploaded: the record must come after that copy too."""
    case = replace(CASE, model=MICRO_QWEN25_VL)
    right = expected(case, devices)

    def edit(commands: list[Command]) -> list[Command]:
        """The copy of the positions moved behind the record."""
        (rope,) = [c for c in commands if isinstance(c, Upload) and c.buffer == "rope_positions"]
        commands.remove(rope)
        commands.insert(commands.index(Record(UPLOADS_DONE)) + 1, rope)
        return commands

    assert is_found(case, edit_commands(edit), "lazy", "refresh", right)
    assert not is_found(case, None, "lazy", "refresh", right)


def test_a_shuffled_order_depends_on_its_seed_alone(devices: Any, models_built_once: None) -> None:
    """So that a failure can be run again."""

    def order(seed: int) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        with (
            open_device(f"shuffle:{seed}", CASE.model, CONFIG) as device,
            pytest.MonkeyPatch.context() as patch,
        ):
            runner_of: Any = device
            run = runner_of._runner.run

            def watch(step_id: int, command: Sequence[Any]) -> None:
                seen.append((str(command[0]), step_id))
                run(step_id, command)

            patch.setattr(runner_of._runner, "run", watch)
            serve(CASE, device, ARMS["refresh"])
        return seen

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(order(1)) == sorted(order(2))
