"""The planted faults: they still apply and name tests that exist; and the tool that plants them."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from mutants import hazards
from mutants.catalogue import CATALOGUE, by_name
from mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[1]


# ---- the catalogue


def test_every_mutant_applies_exactly_once() -> None:
    stale = {name: why for name, mutant in CATALOGUE.items() if (why := mutant.stale(ROOT)) is not None}
    assert stale == {}


def test_every_mutated_file_is_still_python() -> None:
    """A fault that cannot be read would be found by anything."""
    for mutant in CATALOGUE.values():
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        ast.parse(text.replace(mutant.old, mutant.new), mutant.name)


def test_every_mutant_names_tests_that_exist() -> None:
    for mutant in CATALOGUE.values():
        assert mutant.tests, mutant.name
        for selector in mutant.tests:
            file, _, test = selector.partition("::")
            assert (ROOT / file).is_file(), f"{mutant.name}: {selector}"
            name = test.partition("[")[0]
            assert not name or name in functions_of(file), f"{mutant.name}: {selector}"


def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_hazard_has_a_mutant_and_a_row_in_the_table() -> None:
    named = {text for name, text in vars(hazards).items() if name.isupper()}
    assert {mutant.hazard for mutant in CATALOGUE.values()} <= named | {"generic"}
    assert named <= {mutant.hazard for mutant in CATALOGUE.values()}
    table = (ROOT / "tests/hazards/README.md").read_text(encoding="utf-8")
    for hazard in named:
        for number in re.findall(r"#\d+", hazard):
            assert number in table, hazard


def test_two_mutants_of_one_name_are_refused() -> None:
    mutant = Mutant("twice", "a.py", "a", "b", ("tests/test_a.py",))
    with pytest.raises(AssertionError, match="twice"):
        by_name([mutant, mutant])


# ---- the tool, on a tree of its own

CODE = "def double(x):\n    return 2 * x\n"
TESTS = """
import time
from code_under_test import double

def test_double():
    assert double(3) == 6, "three is not doubled"

def test_nothing():
    pass
"""
DRIVER = """
import sys
from pathlib import Path
from rich.console import Console
from mutants.__main__ import run
from mutants.mutant import Mutant

root = Path(sys.argv[1])
mutants = [Mutant(name, "code_under_test.py", old, new, (test,)) for name, old, new, test in {mutants}]
sys.exit(run(root, mutants, Console(width=200), num_jobs=2, timeout_s={timeout_s}))
"""
FOUND = ("found", "2 * x", "3 * x", "tests/test_code.py::test_double")
SURVIVOR = ("unseen", "2 * x", "3 * x", "tests/test_code.py::test_nothing")
STALE = ("stale", "4 * x", "3 * x", "tests/test_code.py::test_double")
HANGING = ("hanging", "return 2 * x", "import time; time.sleep(600)", "tests/test_code.py::test_double")
DYING = ("dying", "return 2 * x", "import os; os.abort()", "tests/test_code.py::test_double")
UNREADABLE = ("unreadable", "2 * x", "undefined(", "tests/test_code.py::test_double")
NO_TEST = ("no test", "2 * x", "3 * x", "tests/test_code.py::test_that_is_not_there")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "tests").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (root / "code_under_test.py").write_text(CODE)
    (root / "tests" / "test_code.py").write_text(TESTS)
    return root


def start(tree: Path, *mutants: tuple[str, str, str, str], timeout_s: float = 60.0) -> subprocess.Popen[str]:
    driver = tree.parent / "driver.py"
    driver.write_text(textwrap.dedent(DRIVER).format(mutants=repr(mutants), timeout_s=timeout_s))
    temporary = tree.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, str(driver), str(tree)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
    )


def outcome(tree: Path, *mutants: tuple[str, str, str, str], timeout_s: float = 60.0) -> tuple[int, str]:
    process = start(tree, *mutants, timeout_s=timeout_s)
    text, _ = process.communicate(timeout=120)
    assert left_behind(tree) == []
    assert (tree / "code_under_test.py").read_text() == CODE
    assert sorted(path.name for path in tree.rglob("*") if path.is_file()) == [
        "code_under_test.py",
        "pyproject.toml",
        "test_code.py",
    ]
    return process.returncode, text


def left_behind(tree: Path) -> list[Path]:
    return list((tree.parent / "tmp").iterdir())


def test_a_mutant_that_is_noticed_is_told_with_its_test_and_its_first_line(tree: Path) -> None:
    code, text = outcome(tree, FOUND)
    assert code == 0
    assert "test_code.py::test_double" in text
    assert "three is not doubled" in text
    assert "1 mutants: 1 killed" in text


def test_a_survivor_is_reported_and_fails_the_run(tree: Path) -> None:
    code, text = outcome(tree, FOUND, SURVIVOR)
    assert code == 1
    assert "SURVIVED" in text
    assert "1 killed, 1 survived" in text


def test_one_that_no_longer_applies_is_an_error_before_anything_is_tried(tree: Path) -> None:
    code, text = outcome(tree, FOUND, STALE)
    assert code == 1
    assert "mutant stale is stale: its old text occurs 0 times in code_under_test.py" in text
    assert "killed" not in text


def test_one_that_hangs_is_cut_and_counts_as_noticed(tree: Path) -> None:
    started = time.monotonic()
    code, text = outcome(tree, HANGING, timeout_s=3.0)
    assert code == 0
    assert "timeout: no end after 3 s" in text
    assert time.monotonic() - started < 60


def test_one_whose_process_dies_counts_as_noticed(tree: Path) -> None:
    code, text = outcome(tree, DYING)
    assert code == 0
    assert f"ended with {-signal.SIGABRT}" in text


def test_one_that_cannot_be_tried_is_an_error(tree: Path) -> None:
    code, text = outcome(tree, UNREADABLE)
    assert code == 1
    assert "ERROR, its tests did not run" in text


def test_tests_that_do_not_pass_without_a_fault_or_are_not_there_fail_the_run(tree: Path) -> None:
    code, text = outcome(tree, NO_TEST)
    assert (code, "without any fault the tests do not pass" in text) == (1, True)
    assert "test_that_is_not_there" in text
    (tree / "tests" / "test_code.py").write_text(TESTS.replace("== 6", "== 7"))
    code, text = outcome(tree, FOUND)
    assert (code, "without any fault the tests do not pass" in text) == (1, True)
    assert "test_double" in text


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_run_leaves_nothing_behind(tree: Path, signal_number: signal.Signals) -> None:
    process = start(tree, HANGING, HANGING)
    assert process.stdout is not None
    assert "pass" in process.stdout.readline()
    deadline = time.monotonic() + 60
    while not (children := children_of(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children
    process.send_signal(signal_number)
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 130, text
    assert left_behind(tree) == []
    assert (tree / "code_under_test.py").read_text() == CODE
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_mistyped_name_is_told_with_what_is_near() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mutants", "--only", "no-fense"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "no mutant 'no-fense'; near: no-fence" in done.stderr
