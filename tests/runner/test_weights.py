"""A preset's random weights: each drawn once, by its own name, on whatever core; and the embedding alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from arm_models import MICRO_GEMMA3_VL, MICRO_QWEN3, MICRO_QWEN25_VL
from torch.utils._python_dispatch import TorchDispatchMode

from runner import weights
from runner.model_spec import ModelSpec
from runner.weights import build_embedding, build_model

MODELS = pytest.mark.parametrize(
    "spec", [MICRO_GEMMA3_VL, MICRO_QWEN25_VL, MICRO_QWEN3], ids=lambda spec: spec.name
)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of what is drawn."""
    names: list[str] = []
    draw = weights._draw

    def noted(name: str, *rest: Any) -> None:
        names.append(name)
        draw(name, *rest)

    monkeypatch.setattr(weights, "_draw", noted)
    yield names


@MODELS
def test_every_matrix_is_its_own_generators_and_all_else_is_as_transformers_makes_it(
    spec: ModelSpec,
) -> None:
    config_class, model_class = weights._CLASSES[spec.family]
    theirs = dict(model_class(config_class(**spec.hf_config)).named_parameters())
    for name, parameter in build_model(spec).named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.dim() < 2:
            assert torch.equal(parameter, theirs[name]), name
        elif not name.endswith(weights._PROJECTOR):
            generator = torch.Generator().manual_seed(spec.weight_seed ^ zlib.crc32(name.encode()))
            wanted = torch.empty(parameter.shape).normal_(0.0, spec.weight_std, generator=generator)
            assert torch.equal(parameter, wanted), name


@MODELS
def test_buffers_are_those_that_transformers_computes(spec: ModelSpec) -> None:
    config_class, model_class = weights._CLASSES[spec.family]
    theirs = dict(model_class(config_class(**spec.hf_config)).named_buffers())
    ours = dict(build_model(spec).named_buffers())
    assert ours.keys() == theirs.keys() and ours
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


class Drawing(TorchDispatchMode):
    """Counts what this thread draws; ours are drawn on others."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in weights._DRAWS
        return func(*args, **(kwargs or {}))


@MODELS
def test_nothing_is_drawn_that_is_drawn_again(spec: ModelSpec) -> None:
    """torch and transformers draw all of it when a model is made: minutes, for one of billions."""
    config_class, model_class = weights._CLASSES[spec.family]
    with Drawing() as drawing:
        model_class(config_class(**spec.hf_config))
        assert drawing.count > 0
        drawing.count = 0
        build_model(spec)
    assert drawing.count == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@MODELS
def test_the_embedding_alone_is_the_models_and_no_other_matrix_is_drawn(
    spec: ModelSpec, dtype: torch.dtype, drawn: list[str]
) -> None:
    ids = torch.arange(spec.vocab_size)
    with torch.inference_mode():
        wanted = build_model(spec, dtype).get_input_embeddings()(ids)
        drawn.clear()
        found = build_embedding(spec, dtype)(ids)
    assert found.dtype is dtype and torch.equal(found, wanted)
    assert len(drawn) == 1 and drawn[0].endswith("embed_tokens.weight")


def test_what_fails_on_another_core_fails_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(weights, "_draw", broken)
    with pytest.raises(MemoryError, match="no room"):
        build_model(MICRO_QWEN3)
