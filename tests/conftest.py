"""Settings of all tests: a loaded machine must not fail one for being slow."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "stepcost", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("stepcost")
