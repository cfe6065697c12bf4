"""Devices shared by a test session. Models are built once a process: a device only reads its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import runner.kernels.model
from runner.config import RunnerConfig
from runner.device.base import Device, open_device
from runner.models import ModelSpec

Open = Callable[[str, ModelSpec, RunnerConfig], Device]


@pytest.fixture(scope="session")
def models_built_once() -> Iterator[None]:
    build = runner.kernels.model.build_model
    built: dict[tuple[str, object], Any] = {}

    def cached(spec: ModelSpec, dtype: object) -> Any:
        key = repr(spec), dtype  # two checkpoints may have one name
        if key not in built:
            built[key] = build(spec, dtype)
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner.kernels.model, "build_model", cached)
        yield


@contextmanager
def each_opened_once() -> Iterator[Open]:
    """Gives a device of a kind, model and sizes, opened once; an engine resets it. Not for breaking."""
    opened: dict[tuple[str, str, RunnerConfig], Device] = {}
    with ExitStack() as stack:

        def get(kind: str, model: ModelSpec, config: RunnerConfig) -> Device:
            key = (kind, repr(model), config)
            if key not in opened:
                opened[key] = stack.enter_context(open_device(kind, model, config))
            return opened[key]

        yield get


@pytest.fixture(scope="session")
def devices(models_built_once: None) -> Iterator[Open]:
    with each_opened_once() as get:
        yield get
