"""What a scenario's `model` may be: a preset's name, a checkpoint's folder, or a model of the hub."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from runner.core import ITEM_BYTES, FloatType, RunnerError, first_line
from runner.models import ALL_MODELS, ImageAttention, ModelSpec, get_model, with_image_attention
from suite.schema import StrictModel, broken_rule, one_of

_SAMPLES = 64
_SAMPLE_BYTES = 1 << 20


class Checkpoint(StrictModel):
    """`path`: a folder as transformers saves it. `hub`: owner/name, from the local cache or the hub."""

    path: str | None = None
    hub: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise broken_rule("give either path, a checkpoint's folder, or hub, owner/name")
        return self

    @property
    def folder(self) -> Path:
        """Where it lies; RunnerError where the hub's model is neither kept here nor to be had."""
        return Path(self.path) if self.path is not None else _from_hub(str(self.hub))


def _is_known(value: object) -> object:
    if isinstance(value, str) and value not in ALL_MODELS:
        raise broken_rule(f"{one_of(value, sorted(ALL_MODELS))}; or a checkpoint: {{path: FOLDER}}")
    if not isinstance(value, str | Mapping | Checkpoint):
        raise broken_rule("it must be a preset's name, {path: FOLDER} or {hub: OWNER/NAME}")
    return value


ModelSource = Annotated[
    Annotated[str, Tag("<name>")] | Annotated[Checkpoint, Tag("<checkpoint>")],
    Discriminator(lambda value: "<name>" if isinstance(value, str) else "<checkpoint>"),
    BeforeValidator(_is_known),
]


def spec_of(model: str | Checkpoint, image_attention: ImageAttention | None = None) -> ModelSpec:
    """The model's spec; RunnerError where there is none, its folder is damaged, or it cannot attend so."""
    if isinstance(model, str):
        return with_image_attention(get_model(model), image_attention)
    from runner.checkpoints import checkpoint_spec  # transformers' configurations take seconds to import

    return with_image_attention(checkpoint_spec(model.folder), image_attention)


def weight_bytes(model: ModelSpec, dtype: FloatType) -> int:
    """What the weights of its language model take in a type; those of a vision tower are left out."""
    text = model.hf_config.get("text_config", model.hf_config)
    assert isinstance(text, Mapping)
    attention = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim * model.hidden_size
    mlp = 3 * model.hidden_size * int(text["intermediate_size"])
    num_weights = model.num_layers * (attention + mlp) + 2 * model.vocab_size * model.hidden_size
    return ITEM_BYTES[dtype] * num_weights


def model_digest(model: str | Checkpoint) -> str | dict[str, str]:
    """What stands for the model in a case's id: a name, or what a checkpoint's files hold.

    Of weights, gigabytes, it is the size and 64 samples of 1 MiB each, evenly spaced. RunnerError where a
    file cannot be read.
    """
    if isinstance(model, str):
        return model
    files = [*model.folder.glob("config.json"), *model.folder.glob("*.safetensors")]
    return {file.name: _file_digest(file) for file in sorted(files)}


def _file_digest(file: Path) -> str:
    try:
        known = file.stat()
        return _digest(file, known.st_size, known.st_mtime_ns)
    except OSError as error:
        raise RunnerError(f"{file} cannot be read: {error.strerror or error}") from None


@cache
def _digest(file: Path, size: int, _stamp: int) -> str:
    found = hashlib.sha256(str(size).encode())
    with file.open("rb") as opened:
        if size <= _SAMPLES * _SAMPLE_BYTES:
            found.update(opened.read())
            return found.hexdigest()
        for sample in range(_SAMPLES):
            opened.seek((size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
            found.update(opened.read(_SAMPLE_BYTES))
    return found.hexdigest()


@cache
def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.safetensors", "tokenizer*", "*.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, local_files_only=True))
    except Exception:  # it is not kept here: its own errors say no more
        pass
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # of requests, of the hub, of the disk
        raise RunnerError(
            f"the model {name} is not kept on this machine, and the hub did not give it: "
            f"{first_line(error)}; "
            "download it where there is a network, and give its folder: model: {path: FOLDER}"
        ) from None
