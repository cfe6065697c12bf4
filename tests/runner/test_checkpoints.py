"""Checkpoints of every family: saved by transformers, run by us, tokens as transformers alone gives them."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fabrication import together
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from runner.checkpoints import checkpoint_spec
from runner.config import RunnerConfig
from runner.core import Prompt, Request, RunnerError, SamplingParams
from runner.device.base import open_device
from runner.engine import Engine
from runner.gguf import _save, convert_gguf
from runner.inputs.arms import ARMS
from runner.models import TINY_QWEN25_VL
from runner.weights import build_model

TEXT = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}
CONFIG = RunnerConfig(
    max_num_seqs=3, max_num_batched_tokens=16, max_model_len=64, block_size=8, num_blocks=24
)
OUTPUT_TOKENS = 12


def of_family(family: str) -> Any:
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**TEXT, tie_word_embeddings=True))
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**TEXT, head_dim=32, tie_word_embeddings=False))
    if family == "gemma3-text":
        kinds = ["sliding_attention", "full_attention"]
        text = {**TEXT, "head_dim": 32, "sliding_window": 8, "layer_types": kinds}
        return Gemma3ForCausalLM(
            Gemma3TextConfig(**text, query_pre_attn_scalar=32, tie_word_embeddings=False)
        )
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**TINY_QWEN25_VL.hf_config))


FAMILIES = ["llama", "qwen3", "gemma3-text", "qwen2.5-vl"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each family's, with weights wide enough that its output is no repetition."""
    folders = {}
    for seed, family in enumerate(FAMILIES):
        model = of_family(family)
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.requires_grad_(False).parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15, generator=generator)
        folders[family] = tmp_path_factory.mktemp("checkpoint") / family
        model.save_pretrained(folders[family])
    return folders


def requests(vocab_size: int) -> list[Request]:
    draw = torch.Generator().manual_seed(11)
    lengths = (5, 17, 9, 23)
    ids = [torch.randint(3, vocab_size, (length,), generator=draw).tolist() for length in lengths]
    return [
        Request(f"r{index}", Prompt(tuple(tokens)), SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True))
        for index, tokens in enumerate(ids)
    ]


def greedy(model: Any, prompt: tuple[int, ...]) -> list[int]:
    """By transformers alone, one whole forward for each token."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(OUTPUT_TOKENS):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoints_tokens_are_those_of_transformers(family: str, checkpoints: dict[str, Path]) -> None:
    spec = checkpoint_spec(checkpoints[family])
    assert spec.family == family
    reference = type(of_family(family)).from_pretrained(checkpoints[family]).eval()
    with open_device("inline", spec, CONFIG) as device:
        for arm in ("sync-ids", "ids"):
            engine = Engine(spec, CONFIG, device, ARMS[arm])
            given = requests(spec.vocab_size)
            engine.run(together(given))
            found = {name: list(state.output_ids) for name, state in engine.requests.items()}
            assert found == {made.request_id: greedy(reference, made.prompt.token_ids) for made in given}, arm
    assert len({token for output in found.values() for token in output}) > OUTPUT_TOKENS, "hardly a test"


def test_the_process_device_loads_a_checkpoint_as_well(checkpoints: dict[str, Path]) -> None:
    spec = checkpoint_spec(checkpoints["llama"])
    given = requests(spec.vocab_size)
    found = []
    for kind in ("inline", "process"):
        with open_device(kind, spec, CONFIG) as device:
            engine = Engine(spec, CONFIG, device, ARMS["ids"])
            engine.run(together(given))
            found.append({name: list(state.output_ids) for name, state in engine.requests.items()})
    assert found[0] == found[1]


def test_what_the_spec_says_is_what_the_checkpoint_holds(checkpoints: dict[str, Path]) -> None:
    for family, folder in checkpoints.items():
        spec = checkpoint_spec(folder)
        model = build_model(spec)
        text = model.model.language_model if spec.is_multimodal else model.model
        assert text.get_input_embeddings().weight.shape == (spec.vocab_size, spec.hidden_size)
        query = text.layers[0].self_attn.q_proj.weight
        assert query.shape == (spec.num_heads * spec.head_dim, spec.hidden_size), family
        assert len(text.layers) == spec.num_layers
    assert checkpoint_spec(checkpoints["gemma3-text"]).sliding_window == 8
    assert checkpoint_spec(checkpoints["qwen2.5-vl"]).rope == "mrope"


def copied(folder: Path, tmp_path: Path, **changes: object) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changes}))
    return copy


def test_no_config_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match=r"config\.json: No such file.*folder with config\.json"):
        checkpoint_spec(tmp_path)
    with pytest.raises(RunnerError, match="python -m suite convert"):
        checkpoint_spec(tmp_path / "model.gguf")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hidden_size": 4}', "\x00\xff"])
def test_a_damaged_config_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunnerError, match=r"config\.json: (it is no JSON|model_type 'missing')") as caught:
        checkpoint_spec(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_model_we_do_not_run_is_refused_by_name(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    GPT2Config().save_pretrained(tmp_path / "gpt2")
    with pytest.raises(RunnerError, match=r"model_type 'gpt2' is no model.*it runs gemma3_text, llama"):
        checkpoint_spec(tmp_path / "gpt2")
    folder = copied(checkpoints["llama"], tmp_path, model_type="gemma3")
    with pytest.raises(RunnerError, match="'gemma3': image rows of this model attend in both directions"):
        checkpoint_spec(folder)


def test_a_config_without_an_end_of_sequence_is_refused(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    folder = copied(checkpoints["llama"], tmp_path, eos_token_id=None)
    with pytest.raises(RunnerError, match="eos_token_id is None"):
        checkpoint_spec(folder)


def test_missing_or_damaged_weights_are_one_line(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    folder = copied(checkpoints["llama"], tmp_path, num_hidden_layers=3)
    with pytest.raises(RunnerError, match=r"9 weights are not there, the first model\.layers\.2"):
        build_model(checkpoint_spec(folder))
    (folder / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(RunnerError, match="its weights cannot be loaded") as caught:
        build_model(checkpoint_spec(folder))
    assert "\n" not in str(caught.value)
    (folder / "model.safetensors").unlink()
    with pytest.raises(RunnerError, match="its weights cannot be loaded"):
        build_model(checkpoint_spec(folder))


def test_a_gguf_that_is_none_and_a_folder_in_use_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="there is no such file"):
        convert_gguf(tmp_path / "nothing.gguf", tmp_path / "new")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF but not really")
    with pytest.raises(RunnerError, match="it is there already"):
        convert_gguf(bad, tmp_path)
    with pytest.raises(RunnerError, match="cannot read it as GGUF") as caught:
        convert_gguf(bad, tmp_path / "new")
    assert "\n" not in str(caught.value) and not (tmp_path / "new").exists()


class _Part:
    """A part of a checkpoint, of which saving fails or not."""

    def __init__(self, name: str, error: BaseException | None = None) -> None:
        self.name, self.error = name, error

    def save_pretrained(self, folder: Path) -> None:
        (folder / self.name).write_text("whole")
        if self.error is not None:
            raise self.error


def test_a_checkpoint_is_saved_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "model"
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(RunnerError, match="model cannot be written: No space left on device"):
        _save(folder, _Part("weights"), _Part("tokenizer", full))
    with pytest.raises(KeyboardInterrupt):
        _save(folder, _Part("weights", KeyboardInterrupt()))
    assert list(tmp_path.iterdir()) == []
    folder.mkdir(parents=True)
    _save(folder, _Part("weights"), _Part("tokenizer"))
    assert {file.name for file in folder.iterdir()} == {"weights", "tokenizer"}
    assert list(folder.parent.iterdir()) == [folder]
