"""Settings of all tests: a loaded machine must not fail one for being slow."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from hypothesis import HealthCheck, settings

# Triton's kernels run in its interpreter where there is no GPU; it must know before it is imported.
if not Path("/proc/driver/nvidia/version").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile(
    "stepcost", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("stepcost")

# Tests that run on several processes are told a terminal's width, which is not that of what they print.
os.environ.pop("COLUMNS", None)

# Started in the background by a shell, tests would hand on to all they start that SIGINT is ignored.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
