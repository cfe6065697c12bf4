"""A reader who leaves ends nothing: the exit code is the command's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.standard_output import READABLE

ROOT = Path(__file__).resolve().parents[2]


def test_signs_that_an_encoding_lacks_have_their_like_and_other_characters_their_number() -> None:
    text = "1\u00a0µs · ✓ a ≤ b é 日 🙂"
    assert text.encode("ascii", READABLE) == b"1 us - + a <= b \\xe9 \\u65e5 \\U0001f642"
    assert text.encode("latin-1", READABLE).startswith(b"1\xa0\xb5s \xb7 + a <= b \xe9 ")
    assert text.encode("utf-8", READABLE).decode() == text


@pytest.mark.parametrize(
    ("command", "code"),
    [(["list", "rules"], 0), (["list", "--json"], 0), (["validate", "nothing.yaml"], 2)],
    ids=["table", "json", "mistake"],
)
def test_a_pipe_that_is_closed_changes_no_exit_code(command: list[str], code: int, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "suite", *command],
        stdout=write,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
