"""Devices and oracles shared by a whole test session, since a model takes a while to build."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from fabrication import SharedDevice

from runner.config import RunnerConfig
from runner.device.base import Device, open_device
from runner.models import MODELS, ModelSpec
from suite.oracle import Oracle


@pytest.fixture(scope="session")
def shared_device() -> Iterator[SharedDevice]:
    """A device of that kind, model and sizes, opened once; an engine resets it before use.

    Not for tests that break a device.
    """
    opened: dict[tuple[str, str, RunnerConfig], Device] = {}
    with ExitStack() as stack:

        def get(kind: str, model: ModelSpec, config: RunnerConfig) -> Device:
            key = (kind, model.name, config)
            if key not in opened:
                opened[key] = stack.enter_context(open_device(kind, model, config))
            return opened[key]

        yield get


@pytest.fixture(scope="session")
def oracles() -> Callable[[str], Oracle]:
    """The oracle of a preset; its verdicts are cached for the session."""
    made: dict[str, Oracle] = {}

    def get(name: str) -> Oracle:
        if name not in made:
            made[name] = Oracle(MODELS[name], num_threads=1)
        return made[name]

    return get
