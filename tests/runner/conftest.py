"""Devices and oracles shared by a whole test session, since a model takes a while to build."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from arm_devices import each_opened_once
from fabrication import SharedDevice

from runner.models import MODELS
from suite.oracle import Oracle


@pytest.fixture(scope="session")
def shared_device() -> Iterator[SharedDevice]:
    with each_opened_once() as get:
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
