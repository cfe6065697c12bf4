"""Mutant: one small patch, the hazard it stands for, and the tests that should notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old`, which must occur exactly once in `file` (relative to the tree), is replaced by `new`.

    `hazard` is a row of tests/hazards, or GENERIC; `tests` are pytest selectors, the fewest and fastest.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    hazard: str = GENERIC

    def stale(self, root: Path) -> str | None:
        """Why the patch does not apply to a tree, or None when it does."""
        path = root / self.file
        if not path.is_file():
            return f"there is no {self.file}"
        count = path.read_text(encoding="utf-8").count(self.old)
        return None if count == 1 else f"its old text occurs {count} times in {self.file}, not once"

    def apply(self, root: Path) -> None:
        path = root / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")
