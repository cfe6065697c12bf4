"""Each device has a model of its own: one shared with devices on a CPU would be moved away from them."""

from __future__ import annotations

import pytest

import runner.kernels.model
import runner.weights


@pytest.fixture(autouse=True)
def own_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.kernels.model, "build_model", runner.weights.build_model)
