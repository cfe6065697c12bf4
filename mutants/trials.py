"""Trials: tests run in a forked child on a copy of the tree, patched or not, a few children at a time.

The parent has the libraries loaded (`preload`) and nothing of the tree, so that a child starts at once and
imports its own copy. A child leads a process group of its own, which is killed when its trial ends, however
that came about.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, Phase, settings

from mutants.mutant import Mutant

Outcome = Literal["killed", "timeout", "survived", "error"]

# The tests' own packages are the only ones that every child imports anew.
_LIBRARIES = (
    *("numpy", "torch", "hypothesis", "_hypothesis_pytestplugin", "transformers"),
    *("transformers.models.gemma3.modeling_gemma3", "transformers.models.qwen3.modeling_qwen3"),
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
)
_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "results", "build", "docs")
_POLL_S = 0.02
_ALL_PASSED, _SOME_FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a mutant. `test` noticed it (or broke), `text` is the first line of how."""

    mutant: Mutant
    outcome: Outcome
    seconds: float = 0.0
    test: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child's tests ended; `code` is pytest's, None when the child was cut or died."""

    code: int | None
    seconds: float
    test: str = ""
    text: str = ""
    timed_out: bool = False


def preload() -> None:
    """Load what the tests load, so that no child has to; starts no thread."""
    if not Path("/proc/driver/nvidia/version").exists():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # as tests/conftest.py, before Triton is imported
    for name in _LIBRARIES:
        importlib.import_module(name)


class Bench:
    """Copies of a tree in a temporary folder, one for every child at work; a context manager.

    While it is open, SIGINT and SIGTERM are kept for `check`: nothing is ever interrupted half-way.
    """

    def __init__(self, root: Path, num_slots: int) -> None:
        self._root = root
        self._num_slots = num_slots
        self._stack = ExitStack()
        self._is_interrupted = False

    def __enter__(self) -> Bench:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._stack.callback(signal.signal, number, signal.signal(number, self._interrupt))
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="stepcost-mutants-"))
        self._folder = Path(folder)
        self.free = [self._folder / f"tree{slot}" for slot in range(self._num_slots)]
        for copy in self.free:
            shutil.copytree(self._root, copy, ignore=_NOT_COPIED)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def check(self) -> None:
        """KeyboardInterrupt if a signal asked for the end."""
        if self._is_interrupted:
            raise KeyboardInterrupt

    def _interrupt(self, *_signal: object) -> None:
        self._is_interrupted = True


class Trial:
    """A child at work on a copy; the copy is as it was once the trial is closed."""

    def __init__(self, copy: Path, tests: Sequence[str], timeout_s: float, mutant: Mutant | None) -> None:
        self.mutant = mutant
        self.copy = copy
        self._kept = (copy / mutant.file).read_bytes() if mutant else b""
        self._told, self._log = copy.with_suffix(".json"), copy.with_suffix(".log")
        self._started = time.monotonic()
        self._timeout_s = timeout_s
        if mutant:
            mutant.apply(copy)
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if not self._pid:
            _child(copy, tests, self._told, self._log)
        with contextlib.suppress(OSError):  # the child does the same; whoever is first
            os.setpgid(self._pid, self._pid)

    def ending(self) -> Ending | None:
        """How it ended, or None while it runs."""
        seconds = time.monotonic() - self._started
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            if seconds < self._timeout_s:
                return None
            self.close()
            return Ending(None, seconds, text=f"no end after {self._timeout_s:.0f} s", timed_out=True)
        self._pid = 0
        told = json.loads(self._told.read_text(encoding="utf-8")) if self._told.exists() else {}
        said = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        self.close(group=pid)
        code = os.waitstatus_to_exitcode(status)
        if code < 0 or "code" not in told:
            return Ending(None, seconds, text=f"its process ended with {code} and told nothing")
        errors = (line for line in said if line.startswith("ERROR"))
        text = told["text"] or next(errors, "")
        return Ending(told["code"], seconds, told["test"], text)

    def close(self, group: int = 0) -> None:
        """Kill what is left of the child's group and put the copy right. Harmless when called twice."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group or self._pid:
                os.killpg(group or self._pid, signal.SIGKILL)
        if self._pid:
            os.waitpid(self._pid, 0)
            self._pid = 0
        self._told.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)
        if self.mutant:
            (self.copy / self.mutant.file).write_bytes(self._kept)


def unmutated(bench: Bench, mutants: Sequence[Mutant], timeout_s: float) -> Ending:
    """All selected tests, once, on the tree as it is: shared out over the slots. The first bad ending."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    num_slots = min(len(bench.free), len(tests))
    shares = [tests[slot::num_slots] for slot in range(num_slots)]
    jobs = [(None, share, timeout_s) for share in shares]
    endings = [ending for _, ending in _run(bench, jobs)]
    bad = [ending for ending in endings if ending.code != _ALL_PASSED]
    return bad[0] if bad else Ending(_ALL_PASSED, max(ending.seconds for ending in endings))


def trials(bench: Bench, mutants: Sequence[Mutant], timeout_s: float) -> Generator[Verdict, None, None]:
    """Each mutant's verdict, as they come."""
    jobs = [(mutant, mutant.tests, timeout_s) for mutant in mutants]
    with contextlib.closing(_run(bench, jobs)) as endings:
        for mutant, ending in endings:
            assert mutant is not None
            yield _verdict(mutant, ending)


def _run(
    bench: Bench, jobs: Sequence[tuple[Mutant | None, Sequence[str], float]]
) -> Generator[tuple[Mutant | None, Ending], None, None]:
    left = list(reversed(jobs))
    running: list[Trial] = []
    try:
        while left or running:
            bench.check()
            while left and bench.free:
                mutant, tests, timeout_s = left.pop()
                running.append(Trial(bench.free.pop(), tests, timeout_s, mutant))
            for trial in list(running):
                ending = trial.ending()
                if ending is not None:
                    running.remove(trial)
                    bench.free.append(trial.copy)
                    yield trial.mutant, ending
            time.sleep(_POLL_S)
    finally:
        for trial in running:
            trial.close()


def _verdict(mutant: Mutant, ending: Ending) -> Verdict:
    if ending.timed_out:
        outcome: Outcome = "timeout"
    elif ending.code in (None, _SOME_FAILED):
        outcome = "killed"
    else:
        outcome = "survived" if ending.code == _ALL_PASSED else "error"
    return Verdict(mutant, outcome, ending.seconds, ending.test, ending.text)


# ---- in the child


class _Listener:
    """A pytest plugin: the first failure, and why."""

    def __init__(self) -> None:
        self.test = ""
        self.text = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._keep(report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._keep(report)

    def _keep(self, report: Any) -> None:
        if self.test:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(crash.message if crash else report.longrepr).strip()
        self.test = report.nodeid
        self.text = next(iter(text.splitlines()), "")


def _child(copy: Path, tests: Sequence[str], told: Path, log: Path) -> None:
    """Run the tests in the copy, tell how they ended, and end this process."""
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _move_into(copy, log)
        listener = _Listener()
        pytest_code = int(pytest.main([*_pytest_options(), f"--rootdir={copy}", *tests], plugins=[listener]))
        story = {"code": pytest_code, "test": listener.test, "text": listener.text}
        told.write_text(json.dumps(story), encoding="utf-8")
        code = 0
    finally:
        os._exit(code)


def _pytest_options() -> Sequence[str]:
    """The first failure is enough: hypothesis draws the same examples every time and shrinks none."""
    settings.register_profile(
        "mutants",
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow],
    )
    hypothesis = ("-p", "_hypothesis_pytestplugin", "--hypothesis-seed=0", "--hypothesis-profile=mutants")
    return ("-x", "-q", "-p", "no:cacheprovider", *hypothesis)


def _move_into(copy: Path, log: Path) -> None:
    """The copy instead of the tree: as current folder, for imports, and for processes started from here."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(copy)
    sys.path[:] = [str(copy), *(path for path in sys.path[1:] if path)]
    # A mutant may be as long as the original and written in the same second: no cached bytecode.
    sys.dont_write_bytecode = True
    os.environ |= {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(copy),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": "1",
    }
