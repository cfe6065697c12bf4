"""Devices of the arms' tests, and how many examples hypothesis draws."""

from __future__ import annotations

import os

import pytest
from arm_devices import devices, models_built_once
from hypothesis import settings

__all__ = ["devices", "models_built_once"]

settings.register_profile("arms-local", max_examples=40, deadline=None)
settings.register_profile("arms-ci", max_examples=300, deadline=None)


@pytest.fixture(scope="session")
def hypothesis_profile() -> str:
    return "arms-ci" if os.environ.get("CI") == "true" else "arms-local"
