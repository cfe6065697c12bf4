"""Reads a capture from whatever file a profiler wrote."""

from __future__ import annotations

import tempfile
from pathlib import Path

from suite.errors import SuiteError
from suite.profile.capture import Capture
from suite.profile.nsys import SUFFIXES, to_sqlite
from suite.profile.nsys_sqlite import read_sqlite
from suite.profile.trace_events import read_trace_events
from suite.yaml_source import path_errors

KNOWN = (".sqlite", *SUFFIXES, ".json", ".json.gz")


def read_capture(path: Path) -> Capture:
    """A capture of nsys or of torch's profiler. SuiteError names the file and what to give instead."""
    with path_errors(path):
        if not path.is_file():
            kind = "a directory" if path.is_dir() else "no file there"
            raise SuiteError(f"--import {path}: {kind}; give a file: {', '.join(KNOWN)}")
    if path.suffix in SUFFIXES:
        with tempfile.TemporaryDirectory(prefix="stepcost-") as folder:
            return read_sqlite(to_sqlite(path, Path(folder)))
    if path.suffix == ".sqlite":
        return read_sqlite(path)
    if path.name.endswith((".json", ".json.gz")):
        return read_trace_events(path)
    raise SuiteError(f"--import {path}: not a file that can be imported; give one of {', '.join(KNOWN)}")
