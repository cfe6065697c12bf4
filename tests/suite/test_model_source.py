"""A scenario's model: a preset, a checkpoint's folder, a model of the hub."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from runner.core import FloatType
from runner.models import TINY_GEMMA3_VL, get_model
from runner.weights import build_model
from suite import model_source
from suite.errors import SuiteError
from suite.model_source import weight_bytes
from suite.plan import Options, PlannedCase, make_plan
from suite.protocol import Close, Finished, OpenCase, RunArm, pack_case
from suite.record import RunRecord, Status
from suite.scenario import Case, dump_scenario, expand, load_scenario
from suite.worker import serve

SCENARIO = """\
name: checkpoint
model: {model}
runner: {{max_num_seqs: 3, max_num_batched_tokens: 16, max_model_len: 64, num_blocks: 32}}
traffic: {{num_requests: 4, prompt_tokens: 9, output_tokens: 6, embeds_ratio: 0.5}}
arms: [ids]
"""


def save_checkpoint(folder: Path, seed: int = 0) -> None:
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=1,
        bos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.requires_grad_(False).parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.15, generator=generator)
    model.save_pretrained(folder)


def written(folder: Path, model: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO.format(model=model), encoding="utf-8")
    return path


def case_of(folder: Path, model: str) -> Case:
    (case,) = expand(load_scenario(written(folder, model)))
    return case


def served(planned: PlannedCase, arm: str) -> RunRecord:
    """The record of one run, which completed."""
    opening = OpenCase(
        case=pack_case(planned.case),
        seed=planned.seed,
        device="inline",
        workload_hash=planned.workload_hash,
        folder=None,
        is_timed=False,
    )
    commands = iter([RunArm(run_id="a", arm=arm, round=0, is_warmup=False), Close()])
    replies: list[object] = []
    serve(opening, lambda: next(commands), replies.append)
    records = [reply.record for reply in replies if isinstance(reply, Finished)]
    assert len(records) == 1, replies
    (record,) = records
    assert record.status is Status.COMPLETED, record.failure
    return record


def test_a_checkpoint_beside_the_scenario_is_run_and_its_tokens_are_right(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "mine")
    path = written(tmp_path, "{path: mine}")
    (planned,) = make_plan([path], Options(device="inline")).cases
    assert planned.case.model_spec.checkpoint == str((tmp_path / "mine").resolve())
    record = served(planned, "ids")
    assert record.tokens is not None and record.tokens.is_right and record.tokens.num_checked == 24


GEMMA3_SCENARIO = """\
name: images
model: {path: mine}
runner: {max_num_seqs: 3, max_num_batched_tokens: 7, max_model_len: 64, num_blocks: 32, prefix_caching: true}
traffic:
  {num_requests: 4, prompt_tokens: 9, output_tokens: 6, embeds_ratio: 0.5, multimodal_ratio: 0.75,
   images_per_request: {uniform: [1, 2]}, embeds_kind: {spliced: 0.5}}
arms: [refresh]
"""


@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
def test_a_gemma_3_checkpoints_images_attend_as_trained_or_as_the_scenario_says(
    attention: str, tmp_path: Path
) -> None:
    save_gemma3(tmp_path / "mine")
    path = tmp_path / "scenario.yaml"
    text = GEMMA3_SCENARIO if attention == "bidirectional" else f"{GEMMA3_SCENARIO}image_attention: causal\n"
    path.write_text(text, encoding="utf-8")
    (planned,) = make_plan([path], Options(device="inline")).cases
    record = served(planned, "refresh")
    assert record.image_attention == attention
    assert record.tokens is not None and record.tokens.is_right and record.tokens.num_checked == 24


def save_gemma3(folder: Path) -> None:
    """Of the tiny preset's weights, with images of four rows."""
    config: dict[str, Any] = {**TINY_GEMMA3_VL.hf_config, "mm_tokens_per_image": 4}
    assert TINY_GEMMA3_VL.vision is not None
    vision = replace(TINY_GEMMA3_VL.vision, grid_height=2, grid_width=2)
    build_model(replace(TINY_GEMMA3_VL, vision=vision, hf_config=config)).save_pretrained(folder)


def test_the_resolved_scenario_reads_back_the_same(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "mine")
    scenario = load_scenario(written(tmp_path, "{path: mine}"))
    again = tmp_path / "elsewhere"
    again.mkdir()
    (again / "scenario.yaml").write_text(dump_scenario(scenario), encoding="utf-8")
    assert load_scenario(again / "scenario.yaml").model == scenario.model


def test_other_weights_are_another_case_and_another_place_is_not(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        save_checkpoint(tmp_path / name, seed)
    one, same, other = (case_of(tmp_path, f"{{path: {name}}}").case_id for name in ("one", "same", "other"))
    assert one == same != other


def test_checkpoints_can_be_swept(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "other")):
        save_checkpoint(tmp_path / name, seed)
    path = written(tmp_path, "tiny-qwen3")
    text = path.read_text().replace("model: tiny-qwen3\n", "")
    path.write_text(text + "sweep: {model: [tiny-qwen3, {path: one}, {path: other}]}\n")
    specs = [case.model_spec for case in expand(load_scenario(path))]
    assert [spec.name for spec in specs] == ["tiny-qwen3", "one", "other"]


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("tiny-qwen", "did you mean tiny-qwen3"),
        ("{path: nowhere}", r"model\.path is 'nowhere', no folder; tried"),
        ("{path: scenario.yaml}", "a file; name a folder"),
        ("{}", "give either path"),
        ("{path: ., hub: a/b}", "give either path"),
        ("{hub: ''}", r"model\.hub is ''; it must not be empty"),
        ("{paht: .}", "path"),
        ("7", "a preset's name"),
        ("[tiny-qwen3]", "a preset's name"),
        ("{path: .}", r"config\.json: No such file"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(model: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=rf"scenario\.yaml:2: .*{told}") as caught:
        load_scenario(written(tmp_path, model))
    assert len(str(caught.value).splitlines()) == 1


def test_a_model_of_the_hub_without_a_network_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def refused(*_given: object, **_named: object) -> str:
        raise OSError("no route to host\nand a page of advice")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)
    model_source._from_hub.cache_clear()
    with pytest.raises(SuiteError, match=r"an/unknown is not kept .*no route to host; down") as told:
        load_scenario(written(tmp_path, "{hub: an/unknown}"))
    assert len(str(told.value).splitlines()) == 1


def test_weights_that_do_not_fit_are_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"model is 'gemma-3-12b'; its weights take [0-9,]{14} bytes"):
        load_scenario(written(tmp_path, "gemma-3-12b"))
    path = written(tmp_path, "gemma-3-12b")
    path.write_text(path.read_text() + "requires: {device: cuda}\n")
    assert load_scenario(path).model == "gemma-3-12b"


@pytest.mark.parametrize(
    ("dtype", "bytes_a_weight"), [("float32", 4 + 4), ("bfloat16", 2 + 4), ("float16", 2 + 4)]
)
def test_weights_take_the_runners_type_on_the_device_and_float32_in_the_oracle(
    dtype: FloatType, bytes_a_weight: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where just as much memory is there it is taken, with a byte less it is refused."""
    of_device = weight_bytes(get_model("gemma-3-12b"), dtype)
    of_oracle = weight_bytes(get_model("gemma-3-12b"), "float32")
    needed = bytes_a_weight * of_oracle // 4
    path = written(tmp_path, "gemma-3-12b")

    def load_with(total: int) -> None:
        monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=total))
        load_scenario(path, [f"runner.dtype={dtype}"])

    load_with(needed)
    told = (
        f"its weights take {of_device:,} bytes for the device, in {dtype}, and {of_oracle:,} for the "
        f"oracle, in float32, and there are {needed - 1:,}: "
    )
    with pytest.raises(SuiteError, match=re.escape(told)):
        load_with(needed - 1)


def test_a_file_of_a_checkpoint_that_cannot_be_read_is_a_mistake_in_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_checkpoint(folder)
    weights = folder / "model.safetensors"
    weights.unlink()
    weights.symlink_to(tmp_path / "gone.safetensors")
    with pytest.raises(SuiteError, match=r"model\.safetensors cannot be read: No such file") as caught:
        case_of(tmp_path, "{path: model}")
    assert "scenario.yaml:2: model is" in str(caught.value)
