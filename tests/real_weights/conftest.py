"""Devices of the soak: those of the arms' tests."""

from __future__ import annotations

from arm_devices import devices, models_built_once

__all__ = ["devices", "models_built_once"]
