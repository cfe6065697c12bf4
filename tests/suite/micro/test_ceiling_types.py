"""Products of the ceilings in 16 bits: computed as the runner's forward does, asked for, kept and told."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from micro_fabrication import make_ceilings, make_machine
from typer.testing import CliRunner

from runner.core import FloatType
from runner.kernels.cpu_layers import products
from runner.kernels.model import DeviceModel
from runner.kernels.packed_linear import PackedLinear, can_pack
from runner.models import MODELS, TINY_QWEN3
from suite.ceiling_store import fingerprint, load, save
from suite.ceilings import Ceilings, linear_parameters, linear_shapes
from suite.cli import DataType, app
from suite.micro import ceiling_probes, session
from suite.micro.ceiling_probes import language_model_of, measure_ceilings
from suite.micro.protocol import Message, Order
from suite.micro.session import Findings, measured_ceilings
from suite.micro.table import lines

CPU = torch.device("cpu")
HALVES: list[FloatType] = ["bfloat16", "float16"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def measured(monkeypatch: pytest.MonkeyPatch, dtype: FloatType) -> Ceilings:
    monkeypatch.setattr(ceiling_probes, "COPY_BYTES", (64,))
    with torch.inference_mode():
        return measure_ceilings(make_machine(cache_bytes=1 << 14), TINY_QWEN3, lambda _: None, dtype)


def shapes_of_runner(dtype: torch.dtype) -> list[tuple[int, int]]:
    """(inner, outer) of the products of the runner's own model, in their order."""
    language_model = DeviceModel(TINY_QWEN3, dtype, CPU)._language_model
    plain = [layer for layer in language_model.layers.modules() if isinstance(layer, torch.nn.Linear)]
    if plain:
        assert {layer.weight.dtype for layer in plain} == {dtype}
        assert not any(isinstance(layer, PackedLinear) for layer in language_model.layers.modules())
        return [(layer.in_features, layer.out_features) for layer in plain]
    return [(product.inner, product.outer) for product in products(language_model)]


@pytest.mark.parametrize("dtype", get_args(FloatType))
def test_the_products_of_a_pass_are_those_of_the_runners_forward(dtype: FloatType) -> None:
    torch_type = getattr(torch, dtype)
    found = ceiling_probes._products(language_model_of(TINY_QWEN3, CPU, torch_type))
    assert [(product.inner, product.outer) for product in found] == shapes_of_runner(torch_type)
    are_packed = {isinstance(product, PackedLinear) for product in found}
    assert are_packed == {dtype == "float32" and can_pack()}


@pytest.mark.parametrize("dtype", HALVES)
def test_weights_and_activations_are_of_the_type_in_every_product(
    dtype: FloatType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch is given them: all products of passes and of shapes alike."""
    multiply, seen = torch.nn.functional.linear, Counter[tuple[torch.dtype, ...]]()

    def counted(given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        product = multiply(given, weight, bias)
        seen[given.dtype, weight.dtype, product.dtype] += 1
        return product

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    found = measured(monkeypatch, dtype)
    assert set(seen) == {(getattr(torch, dtype),) * 3}
    assert seen.total() >= 2 * len(ceiling_probes.TOKENS) * len(linear_shapes(TINY_QWEN3))
    assert found.dtype == dtype


def test_ceilings_in_bfloat16_are_whole_and_printed_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, "bfloat16")
    assert [point.size for point in found.matmul] == list(ceiling_probes.TOKENS)
    assert all(point.best_ns > 0 for point in found.matmul)
    assert {(shape.inner, shape.outer) for shape in found.shapes} == set(linear_shapes(TINY_QWEN3))
    assert found.linear_parameters == linear_parameters(TINY_QWEN3)
    order = Order(device="inline", model="tiny-qwen3", num_threads=1, dtype="bfloat16", chosen=())
    text = "\n".join(lines(Findings(order, found)))
    assert "GFLOP/s of the linear layers of tiny-qwen3 in bfloat16; all: one pass" in text


# ---- as a user asks for them


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["micro", *arguments])


def test_a_real_order_in_bfloat16_is_measured_and_kept_apart_from_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the process that measures, as fast as it may be."""
    wide, key = make_ceilings(), fingerprint("process", "cpu", 1, TINY_QWEN3)
    save(key, wide)
    measure = session.measure
    monkeypatch.setattr(
        session, "measure", lambda order, tell: measure(order.model_copy(update={"budget_ns": 1}), tell)
    )
    result = invoke("--only", "ceilings", "--device", "process", "--dtype", "bfloat16", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["ceilings"]["dtype"], found["is_cached"]) == ("bfloat16", False)
    half = load(fingerprint("process", "cpu", 1, TINY_QWEN3, "bfloat16")).ceilings
    assert half is not None and half.model_dump(mode="json") == found["ceilings"]
    assert load(key).ceilings == wide
    monkeypatch.setattr(session, "measure", None)
    assert measured_ceilings("process", "tiny-qwen3", dtype="bfloat16") == half
    assert measured_ceilings("process", "tiny-qwen3") == wide


@pytest.mark.parametrize(("given", "dtype"), [((), "float32"), (("--dtype", "float16"), "float16")])
def test_the_type_is_in_the_order_and_float32_where_none_is_given(
    given: tuple[str, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[Order] = []

    def measure(order: Order, _tell: object) -> Findings:
        orders.append(order)
        return Findings(order)

    monkeypatch.setattr(session, "measure", measure)
    assert invoke("--only", "ceilings", *given).exit_code == 0
    assert [order.dtype for order in orders] == [dtype]


def test_a_type_that_is_not_known_is_one_error_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "measure", None)
    result = invoke("--dtype", "bf16")
    assert result.exit_code == 2 and result.stdout == "" and "Traceback" not in result.stderr
    for word in ("--dtype", "bf16", *get_args(FloatType)):
        assert word in result.stderr


def test_the_command_line_knows_the_runners_types() -> None:
    assert tuple(known.value for known in DataType) == get_args(FloatType)


def test_ceilings_that_have_to_be_measured_are_ordered_in_their_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = make_ceilings(dtype="bfloat16")

    def measure(order: Order) -> Findings:
        findings = Findings(order)
        findings.take(Message(kind="ceilings", ceilings=made.model_copy(update={"dtype": order.dtype})))
        return findings

    monkeypatch.setattr(session, "measure", measure)
    save(fingerprint("process", "cpu", 1, MODELS["tiny-qwen3"]), make_ceilings())
    assert measured_ceilings("process", "tiny-qwen3", dtype="bfloat16") == made
