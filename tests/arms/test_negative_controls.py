"""The wrong arms follow theory: exactly the rows it names are wrong, with exactly the values it names.

`stale`: from the last mixed step until the next one, batch row i is given inputs_embeds[i] of that step,
whoever owns the row, iff flag i of that step was false. `overwrite`: exactly the supplied positions are given
embed(whatever id the row holds, -1 as 0). Both are computed here from the recorded commands, the host buffers
at upload, and the requests' own tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN3
from arm_probes import SeenRow, SeenStep, probed
from arm_reference import reference_of
from arm_workloads import (
    Arrivals,
    Case,
    Recipe,
    check_finished,
    outputs,
    request_of,
    wrong_requests,
)
from numpy.typing import NDArray

from runner.commands import Merge, RouteIds, Upload
from runner.config import RunnerConfig
from runner.core import Prompt
from runner.engine import Engine
from runner.inputs.arms import ARMS, parse_arm
from runner.models import TINY_GEMMA3_VL, ModelSpec

CONFIG = RunnerConfig(
    max_num_seqs=5,
    max_num_batched_tokens=64,
    max_model_len=64,
    block_size=8,
    num_blocks=60,
    num_encoder_slots=4,
    num_resident_rows=160,
)
Rows = NDArray[np.float32]


def right_rows(engine: Engine, model: ModelSpec, row: SeenRow) -> Rows:
    """[count, hidden] that the model should be given for a batch row; tokens are the request's own."""
    state = engine.requests[row.request_id]
    reference = reference_of(model.name)
    rows = np.concatenate(
        [reference.prompt_rows(state.request.prompt).numpy(), reference.embed(state.output_ids).numpy()]
    )
    return rows[row.first : row.first + row.count]


def supplied_at(prompt: Prompt, position: int) -> bool:
    return prompt.embeds is not None and prompt.embeds.is_supplied(position)


@dataclass(slots=True)
class Found:
    """What a run's rows were, step by step: packed offsets that are wrong, and whose they are."""

    wrong: list[set[int]] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)


def observe(engine: Engine, model: ModelSpec, steps: Iterable[SeenStep]) -> Found:
    """Compare every row that the model was given with the right one, bit by bit where no image is."""
    found = Found()
    for step in steps:
        assert step.given is not None
        wrong = set()
        for row in step.rows:
            expected = right_rows(engine, model, row)
            got = step.given[row.offset : row.offset + row.count]
            differs = ~np.isclose(got, expected, rtol=1e-4, atol=1e-4).all(axis=1)
            wrong |= {row.offset + int(index) for index in np.flatnonzero(differs)}
            if differs.any():
                found.requests.add(row.request_id)
        found.wrong.append(wrong)
    return found


# ---- stale


@dataclass(slots=True)
class StaleTheory:
    """The device's flags and rows under `stale`, by rule alone."""

    flags: NDArray[np.bool_]
    rows: Rows
    wrong: list[set[int]] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)

    def advance(self, engine: Engine, model: ModelSpec, step: SeenStep) -> Rows:
        """What the model is given in this step [tokens, hidden]."""
        is_mixed = step.has(Upload, buffer="is_token_ids")
        merges = step.has(Merge, kind="where")
        count = step.num_tokens
        given = np.concatenate([right_rows(engine, model, row) for row in step.rows])
        if is_mixed:
            self.flags[:count] = self._recorded_flags(engine, step)
        elif merges:
            stale = np.flatnonzero(~self.flags[:count])
            given[stale] = self.rows[stale]
            self._note(step, stale)
        if is_mixed or not merges:
            self._note(step, np.empty(0, np.int64))
        self.rows[:count] = given
        return given

    def _note(self, step: SeenStep, offsets: NDArray[Any]) -> None:
        if len(self.wrong) <= step.step_id:
            self.wrong.append({int(offset) for offset in offsets})
        for row in step.rows:
            if any(row.offset <= offset < row.offset + row.count for offset in offsets):
                self.requests.add(row.request_id)

    def _recorded_flags(self, engine: Engine, step: SeenStep) -> NDArray[np.bool_]:
        """The flags uploaded, which are those of the prompts themselves."""
        recorded = step.uploaded["is_token_ids"].astype(np.bool_)
        expected = [
            not supplied_at(engine.requests[row.request_id].request.prompt, row.first + index)
            for row in step.rows
            for index in range(row.count)
        ]
        assert recorded.tolist() == expected
        return recorded


def run_stale(case: Case, devices: Any) -> tuple[Engine, StaleTheory]:
    """Run `stale`, hold every row given against the theory, and the tokens against its verdict."""
    device = devices("inline", case.model, case.config)
    engine = Engine(case.model, case.config, device, ARMS["stale"])
    with probed(engine, device) as probe:
        engine.run(case.arrivals())
    check_finished(engine)
    tokens = case.config.max_num_batched_tokens
    theory = StaleTheory(np.ones(tokens, np.bool_), np.zeros((tokens, case.model.hidden_size), np.float32))
    for step in probe.steps:
        given = theory.advance(engine, case.model, step)
        assert step.given is not None
        np.testing.assert_allclose(step.given, given, rtol=1e-4, atol=1e-4)
    found = observe(engine, case.model, probe.steps)
    assert found.wrong == theory.wrong
    assert found.requests == theory.requests
    wrong = set(wrong_requests(engine))
    assert wrong <= theory.requests
    # One short request may by chance be given the token it would have had.
    assert len(theory.requests - wrong) <= 1
    return engine, theory


def pure(length: int, seed: int, max_tokens: int = 6) -> Recipe:
    return Recipe("pure", length, max_tokens=max_tokens, seed=seed)


def ids(length: int, seed: int, max_tokens: int = 6) -> Recipe:
    return Recipe("ids", length, max_tokens=max_tokens, seed=seed)


JOINT = Case(MICRO_GEMMA3_VL, CONFIG, (pure(6, 1), pure(5, 2), pure(7, 3), pure(4, 4)))
STAGGERED = Case(MICRO_GEMMA3_VL, CONFIG, (pure(6, 1, 12), pure(5, 2, 9), pure(7, 3, 8)), gap=2)
MODELS = [MICRO_GEMMA3_VL, MICRO_QWEN3, TINY_GEMMA3_VL]


def on(model: ModelSpec, case: Case) -> Case:
    return Case(model, case.config, case.recipes, case.gap, case.noise)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_stale_fails_every_request_when_all_prompts_come_first_in_one_step(
    model: ModelSpec, devices: Any
) -> None:
    engine, theory = run_stale(on(model, JOINT), devices)
    assert theory.requests == set(engine.requests)
    # Each decode step is given rows 0 to 3 of the first prompt, so a request repeats one token.
    for name, state in engine.requests.items():
        assert wrong_requests(engine)[name] == 1
        assert state.output_ids != []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_stale_spares_row_0_when_it_decodes_while_the_others_arrive(model: ModelSpec, devices: Any) -> None:
    case = Case(model, CONFIG, (ids(6, 1, 14), pure(5, 2), pure(7, 3)), gap=2)
    _, theory = run_stale(case, devices)
    assert "r0" not in theory.requests
    assert theory.requests == {"r1", "r2"}


@pytest.mark.parametrize("model", [MICRO_GEMMA3_VL, MICRO_QWEN3], ids=lambda model: model.name)
@pytest.mark.parametrize("gap", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_stale_is_wrong_exactly_where_theory_says_whatever_the_traffic(
    seed: int, gap: int, model: ModelSpec, devices: Any
) -> None:
    draw = np.random.default_rng(seed)
    recipes = tuple(
        Recipe(
            ("ids", "pure", "spliced")[int(draw.integers(3))],
            int(draw.integers(1, 9)),
            max_tokens=int(draw.integers(1, 8)),
            seed=seed * 10 + index,
        )
        for index in range(8)
    )
    run_stale(Case(model, CONFIG, recipes, gap, noise=0.3), devices)


def test_stale_reaches_an_ids_request_that_took_over_a_row(devices: Any) -> None:
    """Whoever owns the row: the victim never supplied anything."""
    # The pure prompt leaves flags 0 to 4 false; when it ends, the last row moves into its place.
    case = Case(MICRO_GEMMA3_VL, CONFIG, (pure(5, 1, 2), pure(1, 2, 9), ids(3, 3, 9)))
    engine, theory = run_stale(case, devices)
    assert engine.requests["r2"].request.prompt.embeds is None
    assert "r2" in theory.requests


# What hides it


def spliced_late(seed: int) -> Recipe:
    return Recipe("spliced", 12, max_tokens=6, seed=seed, supplied_from=6)


@pytest.mark.parametrize(
    "recipes",
    [(ids(6, 1), pure(5, 2), pure(6, 3)), (spliced_late(1), pure(5, 2), spliced_late(3))],
    ids=["ids first", "spliced starting late"],
)
def test_some_orders_hide_stale_and_a_rotation_shows_it(recipes: tuple[Recipe, ...], devices: Any) -> None:
    case = Case(MICRO_GEMMA3_VL, CONFIG, recipes)
    assert run_stale(case, devices)[1].requests == set()
    shown = [bool(run_stale(case.rotated(by), devices)[1].requests) for by in range(len(recipes))]
    assert shown[0] is False
    assert any(shown)


# ---- overwrite


def run_overwrite(model: ModelSpec, arrivals: Arrivals, devices: Any) -> tuple[Engine, set[str]]:
    """Run `overwrite` and hold every supplied position against embed(the id uploaded, -1 as 0)."""
    device = devices("inline", model, CONFIG)
    engine = Engine(model, CONFIG, device, ARMS["overwrite"])
    with probed(engine, device) as probe:
        engine.run(arrivals)
    check_finished(engine)
    expected = Found()
    for step in probe.steps:
        assert step.given is not None
        given, wrong = _overwritten(engine, model, step, expected)
        np.testing.assert_allclose(step.given, given, rtol=1e-4, atol=1e-4)
        expected.wrong.append(wrong)
    found = observe(engine, model, probe.steps)
    assert found.wrong == expected.wrong
    assert found.requests == expected.requests
    assert set(wrong_requests(engine)) == expected.requests
    return engine, expected.requests


def _overwritten(engine: Engine, model: ModelSpec, step: SeenStep, expected: Found) -> tuple[Rows, set[int]]:
    """What theory gives for a step's rows, and which packed offsets it calls wrong."""
    given = np.concatenate([right_rows(engine, model, row) for row in step.rows])
    wrong = set()
    for row in step.rows:
        state = engine.requests[row.request_id]
        for index in range(row.count):
            offset = row.offset + index
            if not supplied_at(state.request.prompt, row.first + index):
                continue
            held = max(0, int(step.uploaded["input_ids"][offset]))
            looked_up = reference_of(model.name).embed([held]).numpy()[0]
            if not np.allclose(looked_up, given[offset], rtol=1e-4, atol=1e-4):
                wrong.add(offset)
                expected.requests.add(row.request_id)
            given[offset] = looked_up
    return given, wrong


@pytest.mark.parametrize("model", [MICRO_GEMMA3_VL, TINY_GEMMA3_VL], ids=lambda model: model.name)
def test_overwrite_fails_every_request_with_a_supplied_row_and_no_other(
    model: ModelSpec, devices: Any
) -> None:
    recipes = (
        pure(6, 1),
        ids(5, 2),
        Recipe("spliced", 8, num_images=1, max_tokens=5, seed=3),
        pure(4, 4),
        ids(3, 5),
    )
    engine, wrong = run_overwrite(model, Case(model, CONFIG, recipes, gap=1).arrivals(), devices)
    assert wrong == {"r0", "r2", "r3"}
    # Wrong from the first token on: the prompt itself was lost.
    assert {name: first for name, first in wrong_requests(engine).items()} == dict.fromkeys(wrong, 0)


@pytest.mark.parametrize("seed", range(4))
def test_overwrite_is_wrong_exactly_where_theory_says_in_rows_used_before(seed: int, devices: Any) -> None:
    """Twelve requests through five rows, so that prompts of embeddings find the ids of earlier owners."""
    draw = np.random.default_rng(seed)
    recipes = tuple(
        Recipe(
            ("ids", "pure", "spliced")[int(draw.integers(3))],
            int(draw.integers(1, 9)),
            max_tokens=int(draw.integers(1, 6)),
            seed=seed * 20 + index,
        )
        for index in range(12)
    )
    run_overwrite(MICRO_GEMMA3_VL, Case(MICRO_GEMMA3_VL, CONFIG, recipes).arrivals(), devices)


def test_a_placeholder_left_by_an_earlier_owner_is_looked_up_as_0(devices: Any) -> None:
    """Under async a row holds -1 where its last owner's tokens were never known to the host in time."""
    model = MICRO_GEMMA3_VL
    short, long = request_of(model, "short", ids(2, 1, 8)), request_of(model, "long", pure(9, 2, 3))
    device = devices("inline", model, CONFIG)
    engine = Engine(model, CONFIG, device, ARMS["overwrite"])
    with probed(engine, device) as probe:
        engine.run(Arrivals([(0, short), (14, long)]))
    uploaded = [step.uploaded["input_ids"] for step in probe.steps if "input_ids" in step.uploaded]
    assert -1 in uploaded[-1]
    assert (uploaded[-1] >= -1).all()
    check_finished(engine)
    run_overwrite(model, Arrivals([(0, short), (14, long)]), devices)


def test_the_same_prompts_as_ids_on_the_same_engine_hide_overwrite(devices: Any) -> None:
    """Rows keep the ids of their last owner, so a prompt of embeddings finds its very ids there."""
    model = MICRO_GEMMA3_VL
    recipes = (pure(6, 1, 4), pure(5, 2, 4), pure(7, 3, 4))
    first = [
        (0, request_of(model, f"ids{i}", recipe, prompt_embeds=False)) for i, recipe in enumerate(recipes)
    ]
    then = [(20, request_of(model, f"r{i}", recipe)) for i, recipe in enumerate(recipes)]
    engine, wrong = run_overwrite(model, Arrivals([*first, *then]), devices)
    assert wrong == set()
    for i in range(3):
        assert engine.requests[f"ids{i}"].output_ids == engine.requests[f"r{i}"].output_ids
    # On a fresh engine, the candidate first, nothing is hidden.
    _, wrong = run_overwrite(model, Arrivals([(0, request) for _, request in then]), devices)
    assert wrong == {"r0", "r1", "r2"}


def test_overwrite_needs_no_async_and_stale_does(devices: Any) -> None:
    case = JOINT
    device = devices("inline", case.model, case.config)
    for text, wrong in (("sync/all/with-ids/none", True), ("sync/all/with-ids/where", False)):
        engine = Engine(case.model, case.config, device, parse_arm(text))
        engine.run(case.arrivals())
        assert bool(wrong_requests(engine)) == wrong


def test_a_right_arm_gives_the_rows_that_the_wrong_ones_lose(devices: Any) -> None:
    """The same observation on `refresh` finds nothing, so that it is the arm and not the probe."""
    for case in (JOINT, STAGGERED):
        device = devices("inline", case.model, case.config)
        engine = Engine(case.model, case.config, device, ARMS["refresh"])
        with probed(engine, device) as probe:
            engine.run(case.arrivals())
        found = observe(engine, case.model, probe.steps)
        assert found.requests == set()
        assert any(step.has(RouteIds) for step in probe.steps)
        assert len({tuple(tokens) for tokens in outputs(engine).values()}) == len(case.recipes)
