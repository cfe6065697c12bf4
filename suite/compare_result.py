"""What a comparison of run folders came to: for the terminal, a file and the page alike. Pure."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from suite.compare_environments import EnvironmentDifference
from suite.compare_runs import Compared, Difference
from suite.gate import Judged, Outcome
from suite.verdict import Word

SCHEMA_VERSION = 1
ACROSS = "across machines"
UNPAIRED = (
    "unpaired: the runs were made at different times, and what changed on the machine between them is in the "
    "difference; run --baseline GITREF takes turns instead"
)

_ORDER = (Word.SLOWER, Word.FASTER, Word.CANNOT_TELL, Word.EQUAL, Word.NONE)


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """A run folder as it is told apart from others.

    `code`: its commit, and whether files were changed. `ref`: as the command line named that commit
    (--baseline); "" where it named none.
    """

    name: str
    started_utc: str
    code: str
    ref: str = ""

    @classmethod
    def of(cls, name: str, environment: Mapping[str, Any], invocation: Mapping[str, Any]) -> FolderFacts:
        checkout = environment.get("checkout")
        code = "no git checkout"
        if isinstance(checkout, Mapping):
            changed = " with changed files" if checkout.get("is_dirty") else ""
            code = f"commit {str(checkout.get('commit') or 'none yet')[:12]}{changed}"
        started = str(environment.get("started_utc") or "at a time not recorded")
        return cls(name, started, code, _baseline_ref(invocation))

    @property
    def title(self) -> str:
        """Short: the ref, or else the folder without its path, and the commit."""
        folder = self.name.rstrip("/").rpartition("/")[2]
        return f"{self.ref or folder or self.name} ({self.code})"

    def __str__(self) -> str:
        return f"{self.name} ({self.code}, {self.started_utc})"


@dataclass(frozen=True, slots=True)
class RunComparison:
    """`environments`: for each head that is of another machine or version, its name and what differs."""

    base: FolderFacts
    heads: tuple[FolderFacts, ...]
    environments: tuple[tuple[str, tuple[EnvironmentDifference, ...]], ...]
    compared: Compared
    judged: tuple[Judged, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def differences(self) -> list[Difference]:
        """Those that matter first: slower, faster, cannot tell, equal, no verdict."""
        return sorted(self.compared.differences, key=lambda one: _ORDER.index(one.verdict.word))

    @property
    def is_broken(self) -> bool:
        return any(one.outcome.is_failure for one in self.judged)

    def gate_text(self) -> str:
        """What the limits came to, in one sentence; "" where there are none."""
        untold = sum(one.outcome is Outcome.CANNOT_TELL for one in self.judged)
        if not self.judged:
            return ""
        if self.is_broken:
            return "The gate failed"
        if untold == len(self.judged):
            return "The gate decided nothing: no limit can be told to hold or to be broken"
        return (
            f"The gate held, but {untold} of {len(self.judged)} limits cannot be told"
            if untold
            else "The gate held"
        )

    def is_across(self, head: str) -> bool:
        """Whether a head was run on another machine or version than the base."""
        return any(name == head for name, _ in self.environments)

    def verdict_text(self, one: Difference) -> str:
        """The verdict's word, marked where machines differ."""
        return f"{one.verdict.word.value} ({ACROSS})" if self.is_across(one.head) else one.verdict.word.value

    def document(self) -> dict[str, object]:
        """For JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "base": _facts(self.base),
            "heads": [_facts(head) for head in self.heads],
            "across_machines": {name: list(map(_differs, found)) for name, found in self.environments},
            "differences": [
                {**one.document(), "across_machines": self.is_across(one.head)} for one in self.differences
            ],
            "unmatched": list(self.compared.unmatched),
            "gate": [one.document() for one in self.judged],
            "is_broken": self.is_broken,
            "warnings": list(self.warnings),
        }

    def counts(self) -> str:
        """ "2 slower, 3 cannot tell" """
        words = [one.verdict.word for one in self.compared.differences]
        return ", ".join(f"{words.count(word)} {word.value}" for word in _ORDER if word in words)

    def reasons(self) -> Iterable[tuple[str, str]]:
        """What could not be told or is not judged, and why: each reason once, with whom it is about."""
        found: dict[tuple[str, str], list[str]] = {}
        for one in self.differences:
            if one.verdict.word in (Word.CANNOT_TELL, Word.NONE):
                key = (self.verdict_text(one), one.verdict.reason)
                found.setdefault(key, []).append(f"{self.who(one)}, {one.metric}")
        for (word, reason), whom in found.items():
            yield f"{word}: {_some(whom)}", reason

    def letters(self) -> Mapping[str, str]:
        """Folder -> what it is called for short: the base A, the others B, C..."""
        names = [self.base.name, *(head.name for head in self.heads)]
        return {name: _letter(place) for place, name in enumerate(names)}

    def titles(self) -> Iterator[str]:
        """ "A, the base: v1.2 (commit 0123)", a line for each folder."""
        letters = self.letters()
        yield f"{letters[self.base.name]}, the base: {self.base.title}"
        yield from (f"{letters[head.name]}: {head.title}" for head in self.heads)

    def who(self, one: Difference) -> str:
        """Case and arm, and the run where there are several."""
        run = f"{one.head}: " if len(self.heads) > 1 else ""
        return f"{run}{one.case}, {one.arm}"

    def caveats(self) -> Iterator[str]:
        """What every reader must know before the figures."""
        for name, found in self.environments:
            told = "; ".join(map(str, found))
            yield f"ACROSS MACHINES: {self.base.name} and {name} differ in {told}"
        if any(not one.ratio.is_paired for one in self.compared.differences):
            yield UNPAIRED
        yield from self.warnings
        yield from (f"not compared: {text}" for text in self.compared.unmatched)


def _baseline_ref(invocation: Mapping[str, Any]) -> str:
    turns = invocation.get("interleaved")
    if not isinstance(turns, Mapping) or turns.get("side") != "baseline":
        return ""
    return str(turns.get("ref") or "")


def _some(whom: list[str]) -> str:
    shown = "; ".join(whom[:3])
    return shown if len(whom) <= 3 else f"{shown}; and {len(whom) - 3} more"


def _letter(place: int) -> str:
    """A to Z, then A2 to Z2..."""
    turn, index = divmod(place, len(string.ascii_uppercase))
    return string.ascii_uppercase[index] + (str(turn + 1) if turn else "")


def _facts(folder: FolderFacts) -> dict[str, object]:
    return {"folder": folder.name, "started_utc": folder.started_utc, "code": folder.code}


def _differs(one: EnvironmentDifference) -> dict[str, str]:
    return {"what": one.what, "base": one.base, "head": one.other}
