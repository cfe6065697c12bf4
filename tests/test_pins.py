"""The check that an environment is the one it was meant to be."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

from tools import pins

ROOT = Path(__file__).resolve().parents[1]
NUMPY = importlib.metadata.version("numpy")


@pytest.fixture
def pinned(tmp_path: Path) -> Path:
    path = tmp_path / "pins.txt"
    path.write_text(f"# the one we mean\nnumpy=={NUMPY}\n")
    return path


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever environment the tests run in, numpy is its own."""
    spec = importlib.util.find_spec("numpy")
    assert spec is not None
    assert spec.origin is not None
    monkeypatch.setattr(pins.sys, "prefix", str(Path(spec.origin).parents[1]))


def test_what_is_pinned_is_printed_with_its_version_and_place(
    pinned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pins.main([str(pinned)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"numpy {NUMPY} in {pins.sys.prefix}")
    assert printed.err == ""


def test_another_version_is_told_with_both(pinned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pinned.write_text("numpy==0.1\nno-such-package==2.0\n")
    assert pins.main([str(pinned)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"error: numpy is {NUMPY}; 0.1 is pinned",
        "error: no-such-package is not installed; 2.0 is pinned",
    ]


def test_a_package_borrowed_from_another_environment_is_told(
    pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pins.sys, "prefix", str(tmp_path))
    assert pins.main([str(pinned)]) == 1
    assert f"not from this environment, {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [("numpy>=1\n", "line 1 is 'numpy>=1'; write name==version"), ("# nothing\n", "it pins nothing")],
)
def test_a_file_of_no_pins_holds_nothing(
    text: str, told: str, pinned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned.write_text(text)
    assert pins.main([str(pinned)]) == 2
    assert told in capsys.readouterr().err


def test_the_pins_are_the_oldest_that_the_project_allows() -> None:
    """And differ from those of the main environment, so that both are tested."""
    oldest, newest = (dict(pins.read(ROOT / name)) for name in ("constraints-older.txt", "constraints.txt"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in ("transformers", "triton"):
        minor = oldest[name].removesuffix(".0")
        assert f'"{name}>={minor}"' in project
        assert newest[name] != oldest[name]
