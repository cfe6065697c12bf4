"""Ceilings kept in the user's cache directory: a file each machine, device, torch, threads, model and type.

A file that cannot be read is no error: it is measured anew, and a note says why.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import psutil
from pydantic import ValidationError

from runner.core import FloatType, usable_cores
from runner.models import ModelSpec
from suite.atomic_file import replace_file
from suite.ceilings import SCHEMA_VERSION, Ceilings, linear_shapes
from suite.environment import cpu_model


class Kept(NamedTuple):
    """What the cache had: ceilings, or none and, where a file was there, a note on what is wrong with it."""

    ceilings: Ceilings | None
    note: str | None = None


def fingerprint(
    device: str, device_name: str, num_threads: int, model: ModelSpec, dtype: FloatType = "float32"
) -> str:
    """Equal where the ceilings must be equal but for noise."""
    facts = {
        "schema_version": SCHEMA_VERSION,
        "cpu_model": cpu_model(),
        "num_cores": os.cpu_count(),
        "num_usable_cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "device": device,
        "device_name": device_name,
        "torch": torch_version(),
        "num_threads": num_threads,
        "model": [model.num_layers, linear_shapes(model)],
        "dtype": dtype,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def torch_version() -> str:
    """Read from its package, for it must not be loaded here."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


def cache_folder() -> Path:
    """In $XDG_CACHE_HOME, if that is absolute, as it must be, or in ~/.cache. OSError without a home."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        home = given if given.is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise OSError(f"{error} Set XDG_CACHE_HOME") from None
    return home / "stepcost" / "ceilings"


def cache_path(key: str) -> Path:
    return cache_folder() / f"{key}.json"


def load(key: str) -> Kept:
    """The ceilings of that fingerprint, if they are there and whole."""
    path: Path | str = "the cache"
    try:
        path = cache_path(key)
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Kept(None)
    except (OSError, UnicodeDecodeError) as error:
        return Kept(None, f"{path} cannot be read ({_why(error)}); measured anew")
    try:
        ceilings = Ceilings.model_validate_json(text, strict=True)
    except ValidationError as error:
        return Kept(None, f"{path} is damaged ({_first(error)}); measured anew")
    if ceilings.schema_version != SCHEMA_VERSION:
        return Kept(None, f"{path} has schema version {ceilings.schema_version}; measured anew")
    return Kept(ceilings)


def save(key: str, ceilings: Ceilings) -> str | None:
    """Keep them, whole or not at all, whoever else writes; a note where the disk refuses."""
    path: Path | str = "the cache"
    text = json.dumps(ceilings.model_dump(mode="json"), allow_nan=False, indent=2) + "\n"
    try:
        path = cache_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda file: file.write(text.encode()))
    except OSError as error:
        return f"{path} cannot be written ({_why(error)}); the ceilings are not kept"
    return None


def _why(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _first(error: ValidationError) -> str:
    detail = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, detail["loc"]))
    return f"{place}: {detail['msg']}" if place else detail["msg"]
