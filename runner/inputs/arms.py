"""The arm table: one runner configuration compared within a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True)
class Arm:
    """A named choice of how a step is built. `is_right` is false for negative controls."""

    name: str
    scheduling: Literal["sync"]
    description: str
    is_right: bool = True


_PRESETS = (
    Arm(
        name="sync",
        scheduling="sync",
        description="the host waits for each step's tokens before it plans the next step",
    ),
)

ARMS: Mapping[str, Arm] = MappingProxyType({arm.name: arm for arm in _PRESETS})
