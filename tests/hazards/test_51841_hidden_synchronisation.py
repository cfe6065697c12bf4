"""Async gives no speed-up: something inside a step waits for the device (vLLM #51841, #53412, #54292, #28141,
#41429): a strided slice of a pinned buffer, a pageable source, `nonzero`, `.item()`.

What can be told without a GPU: the copies that are asked for, and every place where the device half takes a
value from a tensor to the host. Those that are left are named here with their reason; a new one fails. That
host buffers are pinned is held by the golden order of CUDA calls; what a copy costs there is not known here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN25_VL
from arm_workloads import Recipe
from hazard_traffic import CONFIG, engine_of, fitting
from torch.overrides import TorchFunctionMode

from runner.kernels import program
from runner.kernels.program import CopyCounter, Program, Wire
from runner.models import ModelSpec

TRAFFIC = (
    (0, Recipe("pure", 5, max_tokens=4, seed=1)),
    (0, Recipe("ids", 4, max_tokens=2, seed=2)),
    (1, Recipe("spliced", 30, max_tokens=4, seed=3)),
    (2, Recipe("ids", 4, num_images=1, max_tokens=3, seed=4)),
)
# Taking a value to the host: on a GPU each of these waits for all that is queued before it.
TO_HOST = frozenset(
    {"tolist", "item", "nonzero", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__"}
)
# Per command, by the function that does it: why it is there.
KNOWN = {
    ("forward", "read"): "the geometry as host lists, which the reference attention loops over",
    ("forward", "_decode_group"): "the width of a group of decodes, for the same attention",
    ("forward", "rows"): "which copies of blocks are out of date, on a CPU alone",
    ("forward", "order"): "which row begins with which block, there",
    ("encode", "transformers"): "the vision tower of transformers reads its grid",
}


@dataclass(slots=True)
class Copies:
    """(operation, non_blocking, both sides contiguous) of every copy between the sides."""

    seen: list[tuple[str, bool, bool]] = field(default_factory=list)


class Watch(TorchFunctionMode):
    """Notes every call that takes a value to the host, and who made it."""

    def __init__(self) -> None:
        super().__init__()
        self.command = ""
        self.found: set[tuple[str, str]] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in TO_HOST:
            self.found.add((self.command, _caller()))
        return func(*args, **(kwargs or {}))


def _caller() -> str:
    """The nearest function of ours above the watch, or the library that is."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("runner."):
            return frame.f_code.co_name
        if name.startswith("transformers.models"):
            return "transformers"
        frame = frame.f_back
    return "?"


@contextmanager
def watched() -> Iterator[tuple[Watch, Copies]]:
    """Every command of an inline device runs under a watch; range checks, which a GPU skips, do not."""
    watch, copies = Watch(), Copies()
    execute = Program.execute

    def run(self: Program, command: Wire, counter: CopyCounter) -> None:
        watch.command = str(command[0])
        with watch:
            execute(self, command, counter)

    def note(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if watch.command in ("upload", "download"):
            sides = self.is_contiguous() and source.is_contiguous()
            copies.seen.append((watch.command, non_blocking, sides))
        return copy(self, source, non_blocking)

    copy = torch.Tensor.copy_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "execute", run)
        patch.setattr(program, "_check_range", lambda *_: None)
        patch.setattr(torch.Tensor, "copy_", note)
        yield watch, copies


@pytest.mark.parametrize("model", [MICRO_GEMMA3_VL, MICRO_QWEN25_VL], ids=lambda model: model.name)
def test_every_copy_is_contiguous_and_does_not_block(model: ModelSpec, devices: Any) -> None:
    device = devices("inline", model, CONFIG)
    for arm in fitting(model):
        with watched() as (_, copies):
            engine_of(model, CONFIG, device, arm.name, TRAFFIC)
        assert {seen[0] for seen in copies.seen} == {"upload", "download"}
        assert {seen[1:] for seen in copies.seen} == {(True, True)}, arm.name


def test_no_command_takes_a_value_to_the_host_but_those_that_are_named(devices: Any) -> None:
    found: set[tuple[str, str]] = set()
    for model in (MICRO_GEMMA3_VL, MICRO_QWEN25_VL):
        device = devices("inline", model, CONFIG)
        for arm in fitting(model):
            with watched() as (watch, _):
                engine_of(model, CONFIG, device, arm.name, TRAFFIC)
            found |= watch.found
    assert found == set(KNOWN), "one that is gone is to be taken out of KNOWN"


def test_a_planted_item_and_a_strided_copy_are_seen() -> None:
    """Negative control."""
    watch = Watch()
    watch.command = "planted"
    with watch:
        torch.ones(1).item()
    assert {command for command, _ in watch.found} == {"planted"}
    with watched() as (planted, copies):
        planted.command = "upload"
        torch.zeros(4, 2).copy_(torch.zeros(4, 4)[:, :2])
    assert copies.seen == [("upload", False, False)]
