"""Models in 16 bits: every arm's tokens within rounding of the oracle's, controls wrong, bits untouched.

Judged as a scenario is: transformers in float32 with rounded weights, given the runner's own tokens.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from arm_models import MICRO, MICRO_GEMMA3_VL, MICRO_QWEN3, MICRO_QWEN25_VL
from arm_reference import reference_of
from arm_workloads import Arrivals, Case, Recipe, check_finished, outputs, request_of, serve
from test_arm_tokens import MULTIMODAL_TABLE, TEXT_TABLE, Row, case_of, name_of

from runner.commands import OUTPUT_READY, UPLOADS_DONE, Download, Record, Upload, Wait
from runner.config import RunnerConfig
from runner.core import FinishReason, FloatType, Prompt, Request, SamplingParams, SuppliedRows
from runner.device.base import open_device
from runner.device.host import HostDevice
from runner.engine import Engine
from runner.inputs.arms import ARMS, Arm
from runner.inputs.float_bits import rounded
from runner.kernels.sdpa_attention import _SdpaStep
from runner.models import ModelSpec
from suite.logprob_check import position_errors
from suite.oracle import Check, Oracle, verdict
from suite.record import TokenVerdict
from suite.tolerance import LOGPROB_MARGIN, TOLERANCES

RIGHT = [arm for arm in ARMS.values() if arm.is_right]
HALVES: list[FloatType] = ["bfloat16", "float16"]
CONFIG = RunnerConfig(
    max_num_seqs=5,
    max_num_batched_tokens=64,
    max_model_len=64,
    block_size=8,
    num_blocks=60,
    num_encoder_slots=4,
    num_resident_rows=160,
)


def in_type(case: Case, dtype: FloatType) -> Case:
    return replace(case, config=replace(case.config, dtype=dtype))


@cache
def oracle_of(name: str, dtype: FloatType) -> Oracle:
    return Oracle(next(model for model in MICRO if model.name == name), 1, dtype)


def checks_of(engine: Engine, model: ModelSpec, dtype: FloatType) -> dict[str, Check]:
    oracle = oracle_of(model.name, dtype)
    return {name: oracle.check(one.request, one.output_ids) for name, one in engine.requests.items()}


def judged(engine: Engine, model: ModelSpec, dtype: FloatType) -> tuple[TokenVerdict, str | None]:
    return verdict(checks_of(engine, model, dtype), TOLERANCES[dtype])


# ---- every arm against the oracle


def rows_of(model: ModelSpec) -> list[Row]:
    """A few that hold chunks, preemption, moving rows, images, pure and spliced prompts among them."""
    table = MULTIMODAL_TABLE if model.is_multimodal else TEXT_TABLE
    return [row for row in table if row["embeds_ratio"]][:4]


TABLE = [
    pytest.param(model, row, id=f"{model.name}-{name_of(row)}") for model in MICRO for row in rows_of(model)
]


@pytest.mark.parametrize(("model", "row"), TABLE)
def test_every_right_arm_is_right_in_bfloat16(model: ModelSpec, row: Row, devices: Any) -> None:
    case = in_type(case_of(model, row), "bfloat16")
    for arm in RIGHT:
        if arm.fits(model.is_multimodal):
            engine = serve(case, devices("inline", model, case.config), arm)
            check_finished(engine)
            found, note = judged(engine, model, "bfloat16")
            assert found.is_right and note is None, (arm.name, found, note)


@pytest.mark.parametrize("model", MICRO, ids=lambda model: model.name)
@pytest.mark.parametrize("arm", ["refresh", "fused", "text"])
def test_so_are_a_few_in_float16(arm: str, model: ModelSpec, devices: Any) -> None:
    if not ARMS[arm].fits(model.is_multimodal):
        pytest.skip("the arm is for other models")
    case = in_type(case_of(model, rows_of(model)[0]), "float16")
    found, note = judged(serve(case, devices("inline", model, case.config), ARMS[arm]), model, "float16")
    assert found.is_right and note is None, found


@pytest.mark.parametrize("arm", ["refresh", "fused"])
def test_a_device_process_gives_the_tokens_of_an_inline_one(arm: str, devices: Any) -> None:
    case = in_type(case_of(MICRO_QWEN3, rows_of(MICRO_QWEN3)[0]), "bfloat16")
    found = [
        outputs(serve(case, devices(kind, MICRO_QWEN3, case.config), ARMS[arm]))
        for kind in ("inline", "process")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", HALVES)
def test_sampled_tokens_and_log_probabilities_are_within_rounding_too(dtype: FloatType, devices: Any) -> None:
    config = replace(CONFIG, dtype=dtype)
    asked: Any = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1, "logprobs": 4}
    requests = [
        replace(
            request_of(MICRO_QWEN3, f"r{seed}", Recipe("pure" if seed % 2 else "ids", 6 + seed, seed=seed)),
            sampling=SamplingParams(12, ignore_eos=True, seed=seed, **asked),
        )
        for seed in range(8)
    ]
    engine = Engine(MICRO_QWEN3, config, devices("inline", MICRO_QWEN3, config), ARMS["async-rows"])
    engine.run(Arrivals((0, request) for request in requests))
    found, note = judged(engine, MICRO_QWEN3, dtype)
    assert found.is_right and note is None and found.num_checked == 96
    oracle, num_beyond_float32 = oracle_of(MICRO_QWEN3.name, dtype), 0
    for state in engine.requests.values():
        expected = oracle.logprobs(state.request, state.output_ids)
        errors = position_errors(expected, state.output_ids, state.logprobs, 4, dtype)
        assert all(error.value <= error.margin for error in errors), errors
        num_beyond_float32 += sum(error.value > LOGPROB_MARGIN for error in errors)
    assert num_beyond_float32 > 0


# ---- negative controls


def pure(length: int, seed: int) -> Recipe:
    return Recipe("pure", length, max_tokens=8, seed=seed)


CONTROLS = Case(MICRO_GEMMA3_VL, CONFIG, (pure(6, 1), pure(5, 2), pure(7, 3), pure(4, 4)), noise=0.3)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("model", [MICRO_GEMMA3_VL, MICRO_QWEN25_VL], ids=lambda model: model.name)
@pytest.mark.parametrize("arm", ["stale", "overwrite"])
def test_negative_controls_are_wrong_at_the_same_tolerance(
    arm: str, model: ModelSpec, dtype: FloatType, devices: Any
) -> None:
    case = in_type(replace(CONTROLS, model=model), dtype)
    device = devices("inline", model, case.config)
    checks = checks_of(serve(case, device, ARMS[arm]), model, dtype)
    assert all(check.num_wrong for check in checks.values()), "beyond the margin, not by too many ties"
    assert judged(serve(case, device, ARMS["refresh"]), model, dtype)[0].is_right


def test_a_sliding_window_one_longer_is_found_in_bfloat16(devices: Any, monkeypatch: Any) -> None:
    """A fault that moves logits by little: most of its tokens are ties, and too many of them."""
    recipes = tuple(Recipe("ids", 20 + seed, max_tokens=16, seed=seed) for seed in range(8))
    case = in_type(Case(MICRO_GEMMA3_VL, CONFIG, recipes), "bfloat16")
    device = devices("inline", case.model, case.config)
    attend = _SdpaStep.attend

    def one_longer(step: Any, layer: int, query: Any, scaling: float, window: int | None) -> torch.Tensor:
        return attend(step, layer, query, scaling, None if window is None else window + 1)

    for arm in ("ids", "refresh"):
        assert judged(serve(case, device, ARMS[arm]), case.model, "bfloat16")[0].is_right
        with monkeypatch.context() as patch:
            patch.setattr(_SdpaStep, "attend", one_longer)
            assert not judged(serve(case, device, ARMS[arm]), case.model, "bfloat16")[0].is_right


# ---- bits and bytes

EVERY = np.arange(1 << 16, dtype=np.uint16)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("buffer", ["inputs_embeds", "supplied_rows", "resident_rows"])
@pytest.mark.parametrize("kind", ["inline", "process"])
def test_every_pattern_of_bits_survives_the_upload(kind: str, buffer: str, dtype: FloatType) -> None:
    model = MICRO_QWEN3
    count = len(EVERY) // model.hidden_size
    config = replace(CONFIG, max_num_batched_tokens=count, num_resident_rows=count, dtype=dtype)
    with open_device(kind, model, config) as device:
        device.reset()
        host = device.host[buffer]
        assert host.dtype == np.uint16 and host.nbytes == 2 * count * model.hidden_size
        host[:] = EVERY.reshape(host.shape)
        device.execute(0, [Upload(buffer, 0, 0, count), Record(UPLOADS_DONE, "compute")])
        device.wait(UPLOADS_DONE, 0)
        host[:] = 0
        ready = [Record(UPLOADS_DONE, "compute"), Wait(UPLOADS_DONE, "output")]
        device.execute(1, [*ready, Download(buffer, count), Record(OUTPUT_READY, "output")])
        device.wait(OUTPUT_READY, 1)
        assert (host.reshape(-1) == EVERY).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_all_that_the_device_keeps_of_rows_is_in_the_models_type(dtype: FloatType) -> None:
    config = replace(CONFIG, dtype=dtype)
    with HostDevice(MICRO_GEMMA3_VL, config, "inline") as device:
        program: Any = device._runner._program
        own = getattr(torch, dtype)
        names = ("inputs_embeds", "supplied_rows", "resident_rows")
        kept = [program._buffers[name] for name in names]
        kept += [*program._cache.keys, *program._cache.values, program._encoder_rows, program._table]
        assert {tensor.dtype for tensor in kept} == {own}
        weights = {parameter.dtype for parameter in program._model._model.parameters()}
        assert weights == {own}
        frequencies = [t for name, t in program._model._model.named_buffers() if "inv_freq" in name]
        assert frequencies and {tensor.dtype for tensor in frequencies} == {torch.float32}
        assert program._model.logits(torch.ones(2, 64, dtype=own)).dtype is torch.float32


@pytest.mark.parametrize("arm", ["refresh", "async-rows", "fused"])
def test_rows_take_half_the_bytes_and_nothing_else_changes(arm: str, devices: Any) -> None:
    case = Case(MICRO_QWEN3, CONFIG, (pure(6, 1), pure(5, 2), Recipe("spliced", 9, seed=3)))
    wide, half = (
        bytes_by_buffer(in_type(case, dtype), ARMS[arm], devices) for dtype in ("float32", "bfloat16")
    )
    rows = {"inputs_embeds", "supplied_rows", "resident_rows"} & set(wide)
    assert rows
    assert half == {name: count // 2 if name in rows else count for name, count in wide.items()}
    if arm == "refresh":
        num_supplied = 6 + 5 + 9  # all prompts come in one step, and no later step takes ids from the host
        assert half["inputs_embeds"] == num_supplied * MICRO_QWEN3.hidden_size * 2


def bytes_by_buffer(case: Case, arm: Arm, devices: Any) -> dict[str, int]:
    engine = serve(case, devices("inline", case.model, case.config), arm)
    total: dict[str, int] = {}
    for step in engine.recorder.steps:
        for name, count in step.bytes.items():
            total[name] = total.get(name, 0) + count
    return {name: count for name, count in total.items() if count}


# ---- rows of another type than the model's


def with_rows(name: str, values: np.ndarray, dtype: FloatType) -> Request:
    rows = SuppliedRows(rounded(values, dtype).tobytes(), len(values), values.shape[1], dtype)
    return Request(name, Prompt((), embeds=rows), SamplingParams(6, ignore_eos=True))


@pytest.mark.parametrize("own", ["float32", "bfloat16"])
def test_rows_cast_beforehand_and_at_admission_give_the_same_tokens(own: FloatType, devices: Any) -> None:
    config = replace(CONFIG, dtype=own)
    values = reference_of("micro-qwen3").embed([7, 70, 700, 9]).numpy()
    came: FloatType = "bfloat16" if own == "float32" else "float32"
    read = torch.from_numpy(values).to(getattr(torch, came)).float().numpy()
    given = [with_rows("cast", read, came), with_rows("own", read, own)]
    for arm in ("refresh", "fused"):
        engine = Engine(MICRO_QWEN3, config, devices("inline", MICRO_QWEN3, config), ARMS[arm])
        engine.run(Arrivals((0, request) for request in given))
        check_finished(engine)
        cast, left = engine.requests["cast"], engine.requests["own"]
        assert left.note is None and cast.note is not None
        assert f"came in {came} and were cast to {own}" in cast.note
        assert cast.output_ids == left.output_ids


def test_rows_too_large_for_float16_are_refused_and_the_others_are_served(devices: Any) -> None:
    config = replace(CONFIG, dtype="float16")
    values = np.zeros((3, 64), np.float32)
    values[2, 5] = 1e5
    engine = Engine(MICRO_QWEN3, config, devices("inline", MICRO_QWEN3, config), ARMS["fused"])
    fine = request_of(MICRO_QWEN3, "fine", Recipe("pure", 6))
    engine.run(Arrivals((0, request) for request in (with_rows("large", values, "float32"), fine)))
    large = engine.requests["large"]
    assert large.finish_reason is FinishReason.ERROR
    assert large.error is not None and "request large: supplied row 2 holds 100000.0" in large.error
    assert len(engine.requests["fine"].output_ids) == 5
