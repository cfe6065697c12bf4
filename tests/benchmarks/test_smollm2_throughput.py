"""Decode on the shape of SmolLM2-135M beside a bare forward of the same rows, and beside `generate`.

Random weights; float32; every contender with the same one thread, interleaved in pairs. The bare forward is
transformers' own, one token for each row over a cache that is there: no scheduling, no sampling.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from contenders import _AllAtOnce
from transformers import DynamicCache, GenerationConfig, LlamaConfig, LlamaForCausalLM

from runner.checkpoints import checkpoint_spec
from runner.config import RunnerConfig
from runner.core import Prompt, Request, SamplingParams
from runner.device.base import Device, open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.model_spec import ModelSpec

NUM_THREADS = 1
PROMPT_TOKENS = 64
NUM_PAIRS = 5
MIN_OF_BARE = 0.85
MIN_OF_GENERATE = 1.2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8_192,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        eos_token_id=2,
        bos_token_id=1,
        pad_token_id=2,
    )
    place = tmp_path_factory.mktemp("shape") / "smollm2-135m-shape"
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def spec(folder: Path) -> ModelSpec:
    return checkpoint_spec(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(NUM_THREADS)
    yield
    torch.set_num_threads(before)


def config_for(num_rows: int) -> RunnerConfig:
    return RunnerConfig(
        max_num_seqs=num_rows,
        max_num_batched_tokens=max(num_rows, 512),
        max_model_len=256,
        num_blocks=num_rows * 16,
        num_threads=NUM_THREADS,
    )


def prompts(num_rows: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(num_rows)
    return torch.randint(3, 49_152, (num_rows, PROMPT_TOKENS), generator=draw)


def serve(
    spec: ModelSpec, device: Device, config: RunnerConfig, ids: torch.Tensor, num_tokens: int
) -> Engine:
    engine = Engine(spec, config, device, ARMS["ids"])
    sampling = SamplingParams(num_tokens, ignore_eos=True)
    given = [Request(f"r{n}", Prompt(tuple(row)), sampling) for n, row in enumerate(ids.tolist())]
    engine.run(_AllAtOnce(given))
    return engine


def decode_step_ms(engine: Engine) -> float:
    """From one decode step's end to the next one's, the median."""
    steps = [step for step in engine.recorder.steps if step.kind == "decode"]
    ends = [step.device_end_ns for step in steps]
    return median(after - before for before, after in pairwise(ends)) / 1e6


def bare_forward_ms(model: Any, ids: torch.Tensor, num_steps: int) -> float:
    with torch.inference_mode():
        cache = DynamicCache()
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token, spent = ids[:, -1:], []
        for _ in range(num_steps):
            begin = time.perf_counter()
            model(input_ids=token, past_key_values=cache, use_cache=True)
            spent.append(time.perf_counter() - begin)
    return median(spent) * 1e3


@pytest.mark.parametrize("num_rows", [16, 64])
def test_a_decode_step_is_little_more_than_a_bare_forward(
    num_rows: int, spec: ModelSpec, reference: Any, threads: None, capsys: pytest.CaptureFixture[str]
) -> None:
    ids, ratios, told = prompts(num_rows), [], []
    with open_device("process", spec, config_for(num_rows)) as device:
        serve(spec, device, config_for(num_rows), ids, 4)
        for _ in range(NUM_PAIRS):
            step_ms = decode_step_ms(serve(spec, device, config_for(num_rows), ids, 24))
            bare_ms = bare_forward_ms(reference, ids, 16)
            ratios.append(bare_ms / step_ms)
            told.append(f"{step_ms:.0f}/{bare_ms:.0f}")
    with capsys.disabled():
        print(f"\n{num_rows} rows: bare forward / decode step {median(ratios):.2f} ({', '.join(told)} ms)")
    assert median(ratios) >= MIN_OF_BARE


def test_sixteen_requests_beside_generate(
    spec: ModelSpec, reference: Any, threads: None, capsys: pytest.CaptureFixture[str]
) -> None:
    ids, ratios, rates = prompts(16), [], []
    settings = GenerationConfig(do_sample=False, pad_token_id=2, eos_token_id=None, max_new_tokens=64)
    with open_device("process", spec, config_for(16)) as device:
        serve(spec, device, config_for(16), ids, 4)
        for _ in range(NUM_PAIRS):
            begin = time.perf_counter()
            engine = serve(spec, device, config_for(16), ids, 64)
            middle = time.perf_counter()
            with torch.inference_mode():
                all_ones = torch.ones_like(ids)
                wanted = reference.generate(ids, attention_mask=all_ones, generation_config=settings)
            end = time.perf_counter()
            ratios.append((end - middle) / (middle - begin))
            rates.append(f"{1024 / (middle - begin):.0f}/{1024 / (end - middle):.0f}")
    found = [list(engine.requests[f"r{n}"].output_ids) for n in range(16)]
    same = sum(a == b for a, b in zip(found, wanted[:, PROMPT_TOKENS:].tolist(), strict=True))
    with capsys.disabled():
        print(f"\n16 x 64: {median(ratios):.2f} of generate ({', '.join(rates)} tok/s); {same} of 16 alike")
    assert same >= 15  # a tie may go either way
    assert median(ratios) >= MIN_OF_GENERATE
