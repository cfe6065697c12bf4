"""The table of costs against what the device half really does, operation by operation."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from bad_inputs import GOOD
from torch.utils._python_dispatch import TorchDispatchMode

from runner.commands import Command, Logprobs, Positions, RouteDrafts, Upload, buffer_table, history_width
from runner.config import RunnerConfig
from runner.core import Request
from runner.device.host import HostDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.kernels import program
from runner.models import MODELS, ImageAttention, ModelSpec, with_image_attention
from suite.command_costs import MODEL_OPERATIONS, PASSES, pass_of, scaled_pass, step_costs
from suite.scenario import Case, expand, load_scenario
from suite.supplied import embedding_lookup
from suite.workload import build_workload, materialise

# How often each operation reads or writes a row of its output.
_ROW_PASSES = {
    "embedding": 2,
    "mul": 2,
    "copy_": 2,
    "where": 3,
    "index_select": 2,
    "index_copy_": 2,
    "index_put_": 2,
}
_SOURCES = {"index_copy_": 3, "index_put_": 2}  # their result is the whole target; the argument that is not
_NO_LAUNCH = {
    *("slice", "view", "flatten", "select", "unsqueeze", "resolve_conj", "resolve_neg"),
    *("t", "detach", "alias"),
}


_NEVER_MULTIMODAL = {("lookup", "indexed"), ("merge", "index")}
_NEVER_WITHOUT_DRAFTS = {("route.drafts", "scatter")}
_NEVER_TEXT = {("merge.ids", "clamp"), ("splice", "looked_up"), ("splice", "inputs_embeds")}


class _Operations(TorchDispatchMode):
    """Counts operations that launch something, and passes over rows `hidden` wide."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.launches = 0
        self.passes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in _NO_LAUNCH or (name == "to" and result is args[0]):
            return result
        self.launches += 1
        if result.is_floating_point() and result.dim() == 2 and result.shape[1] == self.hidden:
            written = args[_SOURCES[name]] if name in _SOURCES else result
            self.passes += _ROW_PASSES.get(name, 0) * (written.numel() // self.hidden)
        return result


class _Staggered:
    """A request every third step, so that requests join, leave and move."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._left = list(requests)
        self._step = -1

    def due(self) -> Sequence[Request]:
        self._step += 1
        return [self._left.pop(0)] if self._left and self._step % 3 == 0 else []

    def wait(self) -> bool:
        return bool(self._left)


class _CountingDevice(HostDevice):
    """Inline; keeps every command with what running it took."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.model_spec, case.runner_config, "inline")
        self._hidden = case.model_spec.hidden_size
        self.seen: list[tuple[Command, bool, _Operations]] = []
        self.lists: list[tuple[Command, ...]] = []

    def execute(self, step_id: int, commands: Sequence[Command]) -> None:
        self.lists.append(tuple(commands))
        is_derived = any(isinstance(item, Positions) and item.derives_flags for item in commands)
        for command in commands:
            operations = _Operations(self._hidden)
            is_model = command.operation in MODEL_OPERATIONS
            with contextlib.nullcontext() if is_model else operations:
                super().execute(step_id, [command])
            self.seen.append((command, is_derived, operations))


Setup = tuple[str, int, ImageAttention]
_SETUPS: tuple[Setup, ...] = (
    ("tiny-gemma3-vl", 0, "causal"),
    ("tiny-gemma3-vl", 2, "causal"),
    ("tiny-gemma3-vl", 0, "bidirectional"),
    ("tiny-qwen2.5-vl", 2, "causal"),
    ("tiny-qwen3", 0, "causal"),
)


@pytest.fixture(params=_SETUPS, ids=lambda setup: f"{setup[0]}-{setup[1]}-drafts-{setup[2]}", scope="module")
def setup(request: pytest.FixtureRequest) -> Setup:
    """A model, how many drafts are proposed, and how its images attend."""
    found: Setup = request.param
    return found


@pytest.fixture(scope="module")
def model(setup: Setup) -> ModelSpec:
    return with_image_attention(MODELS[setup[0]], setup[2])


@pytest.fixture(scope="module")
def counted(
    setup: Setup, model: ModelSpec, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Case, _CountingDevice]]:
    """A device that has served a small mix under every preset."""
    path = tmp_path_factory.mktemp("costs") / "scenario.yaml"
    path.write_text(GOOD)
    options = (
        f"model={model.name}",
        f"image_attention={setup[2]}",
        "runner={max_num_seqs: 4, max_num_batched_tokens: 32, max_model_len: 128, num_blocks: 64, "
        f"num_speculative_tokens: {setup[1]}}}",
        "traffic.num_requests=6",
        "traffic.prompt_tokens={uniform: [8, 24]}",
        "traffic.output_tokens={uniform: [3, 6]}",
        "traffic.embeds_ratio=0.5",
        "traffic.embeds_kind={spliced: 0.5}",
        f"traffic.multimodal_ratio={0.5 if model.is_multimodal else 0}",
    )
    (case,) = expand(load_scenario(path, options))
    workload = build_workload(case, 0)
    supplied = materialise(workload, embedding_lookup(model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "_check_range", lambda *_: None)  # a CPU's own, no device does it
        device = _CountingDevice(case)
        for arm in ARMS.values():
            if arm.fits(model.is_multimodal):
                items = supplied if arm.prompt_embeds else workload.requests
                Engine(model, case.runner_config, device, arm).run(
                    _Staggered([item.request for item in items])
                )
        yield case, device


def test_every_pass_launches_what_the_table_says_and_moves_its_rows_as_often(
    setup: Setup, model: ModelSpec, counted: tuple[Case, _CountingDevice]
) -> None:
    _, device = counted
    met: Counter[tuple[str, str]] = Counter()
    for command, is_derived, operations in device.seen:
        if command.operation in (
            "route.ids",
            "route.drafts",
            "flags",
            "place",
            "merge.ids",
            "lookup",
            "splice",
            "merge",
        ):
            key, count = pass_of(command, is_derived)
            cost = scaled_pass(key, model)
            assert operations.launches == cost.launches, f"{command}"
            assert operations.passes == cost.row_passes * count, f"{command}"
            met[key] += 1
    never = _NEVER_MULTIMODAL if model.is_multimodal else _NEVER_TEXT
    if not setup[1]:
        never = never | _NEVER_WITHOUT_DRAFTS
    by_chance = {("route.ids", "slice")}  # rows with drafts are more than one id each
    assert set(met) | by_chance == (set(PASSES) - never) | by_chance


def test_copies_and_positions_launch_what_the_table_says(counted: tuple[Case, _CountingDevice]) -> None:
    case, device = counted
    seen = iter(device.seen)
    buffers = buffer_table(case.runner_config, case.model_spec)
    met = set()
    for commands in device.lists:
        for command, cost in zip(commands, step_costs(commands, case.model_spec, buffers), strict=True):
            same, _, operations = next(seen)
            assert same is command
            met |= {command.num_images} if isinstance(command, Positions) else set()
            if cost.launches is not None:
                assert operations.launches == cost.launches, f"{command}"
    assert len(met) > 1 if case.model_spec.attends_both_ways else met == {0}


def test_what_the_model_computes_is_left_to_it_and_drafts_are_an_id_read_and_written() -> None:
    config, model = RunnerConfig(num_speculative_tokens=3), MODELS["tiny-qwen3"]
    commands: list[Command] = [Logprobs("logprobs.0", "logprob_ids.0", 4), RouteDrafts("draft_ids.1", 6)]
    computed, drafts = step_costs(commands, model, buffer_table(config, model))
    assert (computed.device_bytes, computed.launches, computed.copies) == (None, None, 0)
    assert pass_of(commands[1], is_derived=False) == (("route.drafts", "scatter"), 6)
    assert drafts.device_bytes == 6 * 8 and drafts.launches


def test_a_row_of_a_slot_is_an_upload_like_any_other() -> None:
    config, model = RunnerConfig(max_model_len=64), MODELS["tiny-qwen3"]
    (cost,) = step_costs([Upload("token_history", 2, 2, 3)], model, buffer_table(config, model))
    assert (cost.copies, cost.upload_bytes) == (1, 3 * history_width(config) * 4)
