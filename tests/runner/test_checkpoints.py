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
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
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
from runner.core import Image, Prompt, Request, RunnerError, SamplingParams
from runner.device.base import open_device
from runner.engine import Engine
from runner.gguf import _save, convert_gguf
from runner.inputs.arms import ARMS
from runner.models import TINY_GEMMA3_VL, TINY_QWEN25_VL, with_image_attention
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
    if family == "gemma3":
        given: Any = {**TINY_GEMMA3_VL.hf_config, "mm_tokens_per_image": 4}
        return Gemma3ForConditionalGeneration(Gemma3Config(**given))
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**TINY_QWEN25_VL.hf_config))


FAMILIES = ["llama", "qwen3", "gemma3-text", "gemma3", "qwen2.5-vl"]


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
    attends = {family: checkpoint_spec(folder).image_attention for family, folder in checkpoints.items()}
    assert attends == {**dict.fromkeys(FAMILIES, "causal"), "gemma3": "bidirectional"}


def greedy_with_images(model: Any, prompt: Prompt, image_id: int) -> list[int]:
    """By transformers alone, ids, pixels and token types in, one whole forward for each token."""
    pixels = torch.stack(
        [torch.frombuffer(bytearray(one.data), dtype=torch.uint8).reshape(one.shape) for one in prompt.images]
    )
    given = (pixels.permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    ids = list(prompt.token_ids)
    with torch.inference_mode():
        for _ in range(OUTPUT_TOKENS):
            tokens = torch.tensor([ids])
            types = (tokens == image_id).long()
            logits = model(input_ids=tokens, pixel_values=given, token_type_ids=types).logits
            ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_a_gemma_3_checkpoints_tokens_with_images_are_those_of_transformers(
    checkpoints: dict[str, Path],
) -> None:
    spec = checkpoint_spec(checkpoints["gemma3"])
    assert spec.vision is not None and spec.vision.rows_per_image == 4 and spec.eos_token_id == 1
    assert {4093, 4094, 4095, 0, 1, 2} <= spec.reserved_ids
    draw = torch.Generator().manual_seed(4)
    images = [
        Image(
            bytes(torch.randint(256, spec.vision.image_shape, generator=draw).flatten().tolist()),
            spec.vision.image_shape,
        )
        for _ in range(3)
    ]
    text = torch.randint(3, 4000, (9,), generator=draw).tolist()
    one = spec.vision.placeholder_ids()
    prompts = [
        Prompt((*text[:3], *one, *text[3:]), (images[0],)),
        Prompt((*one, *text, *one), (images[1], images[2])),
        Prompt((*one, *text[:2]), (images[2],)),
    ]
    reference = Gemma3ForConditionalGeneration.from_pretrained(checkpoints["gemma3"]).eval()
    wanted = {
        f"r{index}": greedy_with_images(reference, prompt, spec.vision.image_token_id)
        for index, prompt in enumerate(prompts)
    }
    sampling = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    asked = [Request(f"r{index}", prompt, sampling) for index, prompt in enumerate(prompts)]
    for attention in ("bidirectional", "causal"):
        attending = with_image_attention(spec, attention)  # type: ignore[arg-type]
        with open_device("inline", attending, CONFIG) as device:
            for arm in ("refresh", "fused"):
                engine = Engine(attending, CONFIG, device, ARMS[arm])
                engine.run(together(asked))
                found = {name: list(state.output_ids) for name, state in engine.requests.items()}
                assert (found == wanted) == (attention == "bidirectional"), (attention, arm)


@pytest.mark.parametrize(("rows", "reason"), [(100, "8 x 8 patches; set it to 64 at most"), (0, "is 0, and")])
def test_more_rows_an_image_than_it_has_patches_are_refused(
    rows: int, reason: str, tmp_path: Path, checkpoints: dict[str, Path]
) -> None:
    folder = copied(checkpoints["gemma3"], tmp_path, mm_tokens_per_image=rows)
    with pytest.raises(RunnerError, match=rf"config\.json: mm_tokens_per_image .*{reason}"):
        checkpoint_spec(folder)


@pytest.mark.parametrize(("wanted", "rows"), [(4, 4), (9, 16), (16, 16), (64, 64)])
def test_the_rows_of_an_image_are_those_the_projector_makes(
    wanted: int, rows: int, tmp_path: Path, checkpoints: dict[str, Path]
) -> None:
    folder = copied(checkpoints["gemma3"], tmp_path, mm_tokens_per_image=wanted)
    spec = checkpoint_spec(folder)
    assert spec.vision is not None and spec.vision.rows_per_image == rows
    pixels = torch.zeros(1, 3, spec.vision.image_height, spec.vision.image_width)
    with torch.inference_mode():
        assert build_model(spec).model.get_image_features(pixels).pooler_output.shape[1] == rows


def test_the_end_of_sequence_of_the_whole_model_counts_first(
    tmp_path: Path, checkpoints: dict[str, Path]
) -> None:
    folder = copied(checkpoints["gemma3"], tmp_path, eos_token_id=[106, 1])
    assert checkpoint_spec(folder).eos_token_id == 106


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
    with pytest.raises(
        RunnerError, match=r"model_type 'gpt2' is no model.*it runs gemma3, gemma3_text, llama"
    ):
        checkpoint_spec(tmp_path / "gpt2")


def test_an_encoder_of_gemmas_build_is_refused(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    folder = copied(checkpoints["gemma3-text"], tmp_path, use_bidirectional_attention=True)
    with pytest.raises(
        RunnerError, match=r"config\.json: use_bidirectional_attention is True: it is an encoder"
    ):
        checkpoint_spec(folder)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3-text"])
def test_a_norm_without_epsilon_is_one(family: str, tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    spec = checkpoint_spec(copied(checkpoints[family], tmp_path, rms_norm_eps=0.0))
    asked = requests(spec.vocab_size)[:1]
    with open_device("inline", spec, CONFIG) as device:
        engine = Engine(spec, CONFIG, device, ARMS["ids"])
        engine.run(together(asked))
    assert list(engine.requests["r0"].output_ids) == greedy(build_model(spec), asked[0].prompt.token_ids)


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
