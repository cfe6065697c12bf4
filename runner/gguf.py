"""GGUF: a quantised file made into a checkpoint folder, once, so that loading it costs nothing each time.

transformers dequantises it (to float32); it needs the packages gguf and accelerate.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Protocol

from runner.core import RunnerError, first_line


def convert_gguf(file: Path, folder: Path) -> None:
    """Write config.json, the weights and the tokenizer of `file` to a new or empty `folder`.

    RunnerError: no such file, a folder with something in it, a package that is missing, a file that
    transformers cannot read, or a disk that refuses. Then nothing of it is left behind.
    """
    if not file.is_file():
        raise RunnerError(f"{file}: there is no such file; name a .gguf file")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunnerError(f"{folder}: it is there already; name a new folder")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        given = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except ImportError as error:
        raise RunnerError(f"{file}: {first_line(error)}; pip install gguf accelerate") from None
    except Exception as error:  # its parser raises what it meets
        raise RunnerError(f"{file}: transformers cannot read it as GGUF: {first_line(error)}") from None
    # What loading leaves on the model object (hooks, a quantiser) must not be saved with it.
    clean = type(given)(type(given.config)(**_plain(given.config.to_dict())))
    clean.load_state_dict(given.state_dict())
    _save(folder.resolve(), clean, tokenizer)


class _Saved(Protocol):
    def save_pretrained(self, folder: Path) -> object: ...


def _save(folder: Path, *parts: _Saved) -> None:
    """All of them or nothing: into a folder beside it that takes its name at the end."""
    made = [parent for parent in folder.parents if not parent.exists()]
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        for part in parts:
            part.save_pretrained(partial)
        partial.replace(folder)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in made:  # the innermost first
            with contextlib.suppress(OSError):
                parent.rmdir()
        if isinstance(error, Exception):  # the writer of weights has its own for a full disk
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise RunnerError(f"{folder} cannot be written: {reason}") from None
        raise


def _plain(config: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in config.items() if not key.startswith("_")}
