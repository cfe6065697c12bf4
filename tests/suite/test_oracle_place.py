"""Where the oracle computes: where the device does. Tensors without values stand for those of a GPU."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from bad_inputs import GOOD
from transformers import masking_utils

import suite.oracle
from runner.core import Image, Prompt, SuppliedRows, usable_cores
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3, ModelSpec, with_image_attention
from runner.weights import build_model
from suite import worker
from suite.model_source import weight_bytes
from suite.oracle import Oracle, Reference
from suite.scenario import Case, expand, load_scenario


def an_image(spec: ModelSpec) -> Image:
    assert spec.vision is not None
    height, width, channels = spec.vision.image_shape
    return Image(random.Random(1).randbytes(height * width * channels), spec.vision.image_shape)


def prompts(spec: ModelSpec) -> list[Prompt]:
    rows = SuppliedRows(bytes(3 * spec.hidden_size * 4), 3, spec.hidden_size)
    found = [Prompt((5, 6, 7)), Prompt((), embeds=rows)]
    if spec.vision is not None and not spec.vision.patch_size:
        found.append(Prompt((5, *spec.vision.placeholder_ids(), 6), (an_image(spec),)))
    return found


@pytest.mark.parametrize(
    "spec",
    [TINY_QWEN3, TINY_GEMMA3_VL, with_image_attention(TINY_GEMMA3_VL, "bidirectional")],
    ids=["text", "images", "images both ways"],
)
def test_on_a_gpu_all_that_it_computes_with_lies_there(
    spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[Any] = []

    def loaded(preset: Any) -> Reference:
        placed.append(preset.place)
        return Reference(spec, build_model(spec).to(preset.place))

    # It looks into positions, which have no value here.
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda _: None, raising=False)
    monkeypatch.setattr(suite.oracle, "_load", loaded)
    oracle = Oracle(spec, num_threads=1, place="meta")
    assert placed == ["meta"]
    for prompt in prompts(spec):
        assert oracle._reference.embed_prompt(prompt).is_meta
        types = oracle._reference.token_types([prompt], len(prompt))
        assert types is None or types.is_meta
        logits = oracle.logits(prompt, (5, 6, 7))
        assert logits.is_meta and logits.shape == (3, spec.vocab_size)


def the_case(folder: Path, dtype: str) -> Case:
    path = folder / "scenario.yaml"
    path.write_text(GOOD, encoding="utf-8")
    (case,) = expand(load_scenario(path, (f"runner.dtype={dtype}", "runner.num_threads=1")))
    return case


@pytest.mark.parametrize(
    ("kind", "memory_bytes", "wanted"),
    [
        ("inline", 0, (1, "cpu")),
        ("process", 10**12, (1, "cpu")),
        ("cuda", 2 * weight_bytes(TINY_GEMMA3_VL, "float32"), (usable_cores(), "cuda")),
        ("cuda", 2 * weight_bytes(TINY_GEMMA3_VL, "float32") - 1, (usable_cores(), "cpu")),
    ],
    ids=["cpu", "a process", "a gpu", "a gpu too small"],
)
def test_the_worker_puts_it_where_the_device_is_if_there_is_room(
    kind: str,
    memory_bytes: int,
    wanted: tuple[int, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(suite.oracle, "Oracle", lambda *given: made.append(given))
    monkeypatch.setattr("runner.device.cuda.memory_bytes", lambda: memory_bytes)
    case = the_case(tmp_path, "bfloat16")
    worker._make_oracle(kind, case)
    ((spec, num_threads, dtype, place),) = made
    assert spec == case.model_spec and dtype == "bfloat16"
    assert (num_threads, place) == wanted
