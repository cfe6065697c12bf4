"""The environment names what changes a result, and nobody."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys

import pytest

from suite.environment import capture, find_checkout


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, timeout=30)


@pytest.fixture
def checkout(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("x = 1\n")
    return tmp_path.resolve()


def test_the_machine_versions_and_command_are_there(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = capture(["run", "my scenario.yaml"])
    assert found.command_line == "python -m suite run 'my scenario.yaml'"
    assert found.cpu_model and found.num_cores >= found.num_usable_cores >= 1
    assert found.memory_bytes > found.available_memory_bytes > 0
    assert found.python == f"CPython {sys.version.split()[0]}"
    assert found.packages["torch"] and found.packages["numpy"]
    assert found.variables["OMP_NUM_THREADS"] == "3"
    assert found.started_utc.endswith("Z")
    json.dumps(found.model_dump(mode="json"), allow_nan=False)


def test_no_user_and_no_host_is_named(monkeypatch):
    monkeypatch.setenv("USER", "somebody-in-particular")
    monkeypatch.setenv("HOME", "/home/somebody-in-particular")
    values = json.dumps(list(capture([]).model_dump(mode="json").values()))
    assert "somebody-in-particular" not in values
    assert socket.gethostname() not in values or len(socket.gethostname()) < 4
    assert f'"{getpass.getuser()}"' not in values


def test_a_checkout_without_commits_with_one_and_with_changes(checkout):
    assert find_checkout(checkout).commit is None
    git(checkout, "add", "code.py")
    git(checkout, "commit", "-qm", "first")
    clean = find_checkout(checkout)
    assert len(clean.commit) == 40 and not clean.is_dirty
    (checkout / "code.py").write_text("x = 2\n")
    assert find_checkout(checkout) == clean.model_copy(update={"is_dirty": True})


def test_a_repository_around_the_code_is_not_taken_for_its_checkout(checkout):
    inner = checkout / "site-packages"
    inner.mkdir()
    assert find_checkout(inner) is None


def test_without_git_there_is_no_checkout_and_no_error(checkout, monkeypatch):
    monkeypatch.setenv("PATH", os.devnull)
    assert find_checkout(checkout) is None


def test_a_package_that_is_not_installed_is_none(monkeypatch):
    monkeypatch.setattr("suite.environment._PACKAGES", ("numpy", "no-such-package-at-all"))
    assert capture([]).packages["no-such-package-at-all"] is None
