"""Every right arm gives the right tokens: under a pairwise covering table, on every device, and at random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import pytest
from arm_models import MICRO, MICRO_BOTH_WAYS, MICRO_GEMMA3_VL, MICRO_QWEN25_VL, TINY, vision_of
from arm_workloads import (
    Case,
    PromptKind,
    Recipe,
    check_finished,
    outputs,
    request_of,
    serve,
    wrong_requests,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config import RunnerConfig
from runner.device.base import open_device
from runner.device.null import NullDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm, is_wrong_by_rule, parse_arm
from runner.inputs.batch import InputBatch
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3, TINY_QWEN25_VL, ModelSpec

RIGHT = [arm for arm in ARMS.values() if arm.is_right]

# ---- the covering table

FACTORS: dict[str, tuple[Any, ...]] = {
    "embeds_ratio": (0.0, 0.5, 1.0),
    "multimodal_ratio": (0.0, 0.5, 1.0),
    "kind": ("pure", "spliced"),
    "arrivals": ("joint", "staggered"),
    "reorders": (True, False),
    "preempts": (True, False),
    "chunks": (True, False),
}
Row = Mapping[str, Any]


def is_possible(row: Row) -> bool:
    """A prompt of embeddings only holds no image, so both ratios cannot be 1 at once."""
    return not (row["kind"] == "pure" and row["embeds_ratio"] + row["multimodal_ratio"] > 1)


def covering_table(factors: Mapping[str, tuple[Any, ...]]) -> list[Row]:
    """Rows that hold every possible pair of values, chosen greedily from all possible rows."""
    rows = [dict(zip(factors, values, strict=True)) for values in product(*factors.values())]
    rows = [row for row in rows if is_possible({**dict.fromkeys(FACTORS, 0.0), **row})]
    missing = {pair for row in rows for pair in combinations(row.items(), 2)}
    table: list[Row] = []
    while missing:
        best = max(rows, key=lambda row: len(missing & set(combinations(row.items(), 2))))
        missing -= set(combinations(best.items(), 2))
        table.append(best)
    return table


MULTIMODAL_TABLE = covering_table(FACTORS)
TEXT_TABLE = [
    {**row, "multimodal_ratio": 0.0}
    for row in covering_table(
        {name: values for name, values in FACTORS.items() if name != "multimodal_ratio"}
    )
]
BASE = RunnerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=64,
    block_size=4,
    num_blocks=60,
    num_encoder_slots=2,
    max_images_per_step=2,
    num_resident_rows=160,
)


# Output lengths to choose from, and blocks beyond the fewest: which of them makes rows move or requests give
# way depends on how long the prompts are, so the first that does is taken (`case_of`).
TOKENS = ((7, 2, 6, 5), (12, 3, 12, 9), (18, 4, 14, 12), (15, 15, 6, 16), (20, 12, 18, 18))
EXTRA_BLOCKS = (1, 2, 4, 3)


def case_of(model: ModelSpec, row: Row) -> Case:
    """Four requests with the row's ratios met exactly; which of them supply rows and hold images differs."""
    if not row["reorders"] and not row["preempts"]:
        return make_case(model, row, (5, 5, 6, 7), 0)
    for extra, tokens in product(EXTRA_BLOCKS if row["preempts"] else (0,), TOKENS):
        case = make_case(model, row, tokens, extra)
        if happens(case, row):
            return case
    raise AssertionError(f"nothing tried makes happen what {row} asks for")


def make_case(model: ModelSpec, row: Row, tokens: tuple[int, ...], extra_blocks: int) -> Case:
    num_supplied, num_images = int(row["embeds_ratio"] * 4), int(row["multimodal_ratio"] * 4)
    kinds: list[PromptKind] = [row["kind"] if i < num_supplied else "ids" for i in range(4)]
    recipes = tuple(
        Recipe(
            kinds[i], (9, 5, 7, 6)[i], int(i >= 4 - num_images), tokens[i] + 4 * row["preempts"], seed=i + 1
        )
        for i in range(4)
    )
    config = replace(BASE, max_num_batched_tokens=6) if row["chunks"] else BASE
    if row["preempts"]:
        config = replace(config, num_blocks=tight_blocks(model, recipes, config) + extra_blocks)
    return Case(model, config, recipes, gap=2 if row["arrivals"] == "staggered" else 0)


def happens(case: Case, row: Row) -> bool:
    """Whether sync and async plans do what the row asks for. Plans do not depend on the tokens."""
    null = NullDevice(case.model, case.config, lambda _step_id, _commands: None, token_id=9)
    for arm in (ARMS["sync-ids"], ARMS["ids"], ARMS["refresh"]):
        with pytest.MonkeyPatch.context() as patch:
            moves = count_moves(patch)
            engine = serve(case, null, arm)
        preemptions = sum(state.num_preemptions for state in engine.requests.values())
        if (row["preempts"] and not preemptions) or (row["reorders"] and not moves):
            return False
    return True


def tight_blocks(model: ModelSpec, recipes: tuple[Recipe, ...], config: RunnerConfig) -> int:
    """Enough for the longest request, and for the two longest prompts."""
    lengths = [len(request_of(model, "r", recipe, False).prompt) for recipe in recipes]
    longest = max(n + recipe.max_tokens for n, recipe in zip(lengths, recipes, strict=True))
    both = sorted(lengths)[-2:]
    return max(-(-longest // config.block_size), sum(-(-n // config.block_size) for n in both))


def name_of(row: Row) -> str:
    return "-".join(str(value) for value in row.values())


def table_of(model: ModelSpec) -> list[Row]:
    return MULTIMODAL_TABLE if model.is_multimodal else TEXT_TABLE


# The whole table on the small twins, and its most mixed row on the presets themselves.
MIXED = {
    **dict.fromkeys(("embeds_ratio", "multimodal_ratio"), 0.5),
    "kind": "spliced",
    "arrivals": "staggered",
}
MIXED_ROWS = [{**MIXED, "reorders": True, "preempts": preempts, "chunks": True} for preempts in (False, True)]
TABLE_CASES = [
    *(
        pytest.param(model, row, id=f"{model.name}-{name_of(row)}")
        for model in (*MICRO, MICRO_BOTH_WAYS)
        for row in table_of(model)
    ),
    *(
        pytest.param(model, row, id=f"{model.name}-{name_of(row)}")
        for model in (TINY_GEMMA3_VL, TINY_QWEN25_VL)
        for row in MIXED_ROWS[:1]
    ),
    pytest.param(TINY_QWEN3, {**MIXED_ROWS[1], "multimodal_ratio": 0.0}, id="tiny-qwen3-mixed"),
]


def test_the_tables_hold_every_possible_pair() -> None:
    for table, factors in (
        (MULTIMODAL_TABLE, FACTORS),
        (TEXT_TABLE, {k: v for k, v in FACTORS.items() if k != "multimodal_ratio"}),
    ):
        for (one, values), (other, others) in combinations(factors.items(), 2):
            for pair in product(values, others):
                assert any((row[one], row[other]) == pair for row in table), (one, other, pair)


@pytest.mark.parametrize(("model", "row"), TABLE_CASES)
def test_every_right_preset_is_right_under_the_covering_table(
    model: ModelSpec, row: Row, devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = count_moves(monkeypatch)
    case = case_of(model, row)
    device = devices("inline", model, case.config)
    expected = None
    for arm in RIGHT:
        if not arm.fits(model.is_multimodal):
            continue
        moves.clear()
        engine = serve(case, device, arm)
        check_finished(engine)
        assert wrong_requests(engine) == {}, arm.name
        expected = expected or outputs(engine)
        assert outputs(engine) == expected, arm.name
        check_factors(engine, row, moves)


def count_moves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requests that a step moved to another row."""
    moves: list[str] = []
    update = InputBatch.update

    def watch(batch: InputBatch, *arguments: Any) -> None:
        before = dict(batch.row_of)
        update(batch, *arguments)
        moves.extend(name for name, row in before.items() if batch.row_of.get(name, row) != row)

    monkeypatch.setattr(InputBatch, "update", watch)
    return moves


def check_factors(engine: Engine, row: Row, moves: list[str]) -> None:
    """What the row asks for did happen."""
    preemptions = sum(state.num_preemptions for state in engine.requests.values())
    assert (preemptions > 0) or not row["preempts"], "no preemption happened"
    if row["reorders"]:
        assert moves, "no row moved"
    prompts = [state.request.prompt for state in engine.requests.values()]
    if row["chunks"]:
        assert max(step.num_tokens for step in engine.recorder.steps) <= 6 < max(map(len, prompts))
    assert sum(bool(prompt.images) for prompt in prompts) == row["multimodal_ratio"] * 4


# ---- every preset on every device

DEVICE_CASES = {
    model.name: Case(
        model,
        replace(BASE, max_num_batched_tokens=16, num_blocks=16),
        (
            Recipe("pure", 9, max_tokens=9, seed=1),
            Recipe("ids", 6, int(model.is_multimodal), max_tokens=4, seed=2),
            Recipe("spliced", 8, int(model.is_multimodal), max_tokens=8, seed=3),
            Recipe("pure", 5, max_tokens=7, seed=4),
            Recipe("spliced", 12, max_tokens=5, seed=5),
        ),
        gap=1,
        noise=0.1,  # rows that are no id's embedding
    )
    for model in TINY
}


@pytest.mark.parametrize("kind", ["process", "inline", "lazy"])
@pytest.mark.parametrize("model", [TINY_GEMMA3_VL, TINY_QWEN3, TINY_QWEN25_VL], ids=lambda model: model.name)
def test_every_right_preset_is_right_on_every_device(model: ModelSpec, kind: str, devices: Any) -> None:
    case = DEVICE_CASES[model.name]
    device = devices(kind, model, case.config)
    expected = None
    for arm in RIGHT:
        if not arm.fits(model.is_multimodal) or not arm.prompt_embeds:
            continue
        engine = serve(case, device, arm)
        check_finished(engine)
        assert wrong_requests(engine) == {}, arm.name
        expected = expected or outputs(engine)
        assert outputs(engine) == expected, arm.name


@pytest.mark.parametrize("kind", ["process", "inline", "lazy"])
@pytest.mark.parametrize("name", ["ids", "sync-ids"])
def test_the_ceiling_gives_the_same_tokens_as_embeddings_of_the_same_ids(
    name: str, kind: str, devices: Any
) -> None:
    case = replace(DEVICE_CASES[TINY_GEMMA3_VL.name], noise=0.0)
    device = devices(kind, case.model, case.config)
    engine = serve(case, device, ARMS[name])
    check_finished(engine)
    assert wrong_requests(engine) == {}
    assert outputs(engine) == outputs(serve(case, device, ARMS["refresh"]))


@pytest.mark.parametrize("kind", ["process", "inline", "lazy"])
@pytest.mark.parametrize("name", ["stale", "overwrite"])
def test_a_wrong_preset_is_wrong_on_every_device(name: str, kind: str, devices: Any) -> None:
    case = replace(DEVICE_CASES[TINY_GEMMA3_VL.name], config=BASE, gap=0)
    device = devices(kind, case.model, case.config)
    engine = serve(case, device, ARMS[name])
    check_finished(engine)
    assert "r0" in wrong_requests(engine)


# ---- drawn at random


@dataclass(frozen=True, slots=True)
class Drawn:
    case: Case
    arm: Arm
    kind: str


ARM_POOL = [
    parse_arm("/".join(parts))
    for parts in [
        (scheduling, embeds, flags, "where")
        for scheduling in ("sync", "async")
        for embeds in ("all", "rows", "resident")
        for flags in ("always", "fill", "skip")
    ]
] + [arm for arm in RIGHT if arm.choices is not None]


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    model = draw(st.sampled_from((*MICRO, MICRO_BOTH_WAYS)))
    arms = [arm for arm in ARM_POOL if arm.fits(model.is_multimodal)]
    recipes = []
    for index in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["ids", "pure", "spliced"]))
        num_images = draw(st.integers(0, 2)) if model.is_multimodal and kind != "pure" else 0
        recipes.append(
            Recipe(kind, draw(st.integers(1, 12)), num_images, draw(st.integers(1, 7)), seed=index)
        )
    lengths = [len(request_of(model, "r", recipe, False).prompt) for recipe in recipes]
    longest = max(n + recipe.max_tokens for n, recipe in zip(lengths, recipes, strict=True))
    block_size = draw(st.integers(1, 9))
    num_seqs = draw(st.integers(1, 5))
    whole = vision_of(model).rows_per_image if model.attends_both_ways else 0
    config = RunnerConfig(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=max(num_seqs, whole) + draw(st.integers(0, 20)),
        max_model_len=longest,
        block_size=block_size,
        num_blocks=-(-longest // block_size) + draw(st.integers(0, 6)),
        num_encoder_slots=draw(st.integers(1, 3)),
        max_images_per_step=draw(st.integers(1, 2)),
        num_resident_rows=max(lengths) + draw(st.integers(0, 12)),
    )
    case = Case(
        model,
        config,
        tuple(recipes),
        gap=draw(st.integers(0, 2)),
        noise=draw(st.sampled_from([0.0, 0.2])),
    )
    seed = draw(st.integers(0, 2**16))
    return Drawn(case, draw(st.sampled_from(arms)), f"shuffle:{seed}")


def test_the_pool_holds_right_arms_only() -> None:
    assert all(arm.is_right for arm in ARM_POOL)
    for arm in ARM_POOL:
        assert arm.choices is not None
        for scheduling in ("sync", "async"):
            assert not is_wrong_by_rule(scheduling, arm.choices)


def test_any_workload_in_any_order_is_right_under_any_right_arm(
    models_built_once: None, hypothesis_profile: str
) -> None:
    @settings(settings.get_profile(hypothesis_profile))
    @given(drawn())
    def check(example: Drawn) -> None:
        case = example.case
        with open_device(example.kind, case.model, case.config) as device:
            engine = serve(case, device, example.arm)
        check_finished(engine)
        assert wrong_requests(engine) == {}

    check()


def test_the_small_models_tell_one_row_from_another(devices: Any) -> None:
    """Or a wrong row would hide: most output tokens differ, and an image changes the output."""
    for model in MICRO:
        case = Case(model, BASE, tuple(Recipe("ids", 6, max_tokens=16, seed=seed) for seed in range(4)))
        tokens = outputs(serve(case, devices("inline", model, BASE), ARMS["sync-ids"]))
        assert len({token for ids in tokens.values() for token in ids}) > 40
    for model in (MICRO_GEMMA3_VL, MICRO_QWEN25_VL):
        recipes = tuple(Recipe("ids", 1, num_images=1, max_tokens=6, seed=seed) for seed in (3, 4, 5))
        tokens = outputs(serve(Case(model, BASE, recipes), devices("inline", model, BASE), ARMS["sync-ids"]))
        assert len({tuple(ids) for ids in tokens.values()}) == 3
