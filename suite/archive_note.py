"""The note that an archive leaves in a run folder where it left anything out: archive.json.

With it goes what was made of all steps before most of them were left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from suite.errors import SuiteError
from suite.yaml_source import show

NOTE = "archive.json"
NOTE_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ListedTimes:
    """Of all steps of a run whose traffic is a list of steps: what its attribution is made of.

    `ns_per_token`: by kind of step. `supplies_rows`: whether any step had a row that was supplied.
    """

    ns_per_token: Mapping[str, float]
    supplies_rows: bool


@dataclass(frozen=True, slots=True)
class ArchiveNote:
    """`one_in`: of each kind of step of a run the first and every `one_in`-th after it were kept; 1: all.

    `num_kept` of `num_steps` steps are here. `left_out`: files that are not. `listed`: by run_id.
    """

    one_in: int
    num_steps: int
    num_kept: int
    left_out: tuple[str, ...] = ()
    listed: Mapping[str, ListedTimes] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """For whoever reads the folder."""
        parts = []
        if self.one_in > 1:
            parts.append(
                f"the archive kept of each kind of step 1 in {self.one_in:,} ({self.num_kept:,} of "
                f"{self.num_steps:,} steps): figures of single steps are of those, and what needs every step "
                "is not made anew; summary.json is of all steps"
            )
        if self.left_out:
            parts.append(f"the archive left out {', '.join(self.left_out)}")
        return f"{NOTE}: {'; '.join(parts)}"

    @property
    def reason(self) -> str:
        """Why something cannot be made of the steps that were kept."""
        return (
            "it needs every step, and the archive that this folder comes from kept of each kind 1 in "
            f"{self.one_in:,}"
        )

    def document(self) -> dict[str, object]:
        """For JSON."""
        return {
            "schema_version": NOTE_SCHEMA_VERSION,
            "one_in": self.one_in,
            "num_steps": self.num_steps,
            "num_kept": self.num_kept,
            "left_out": list(self.left_out),
            "listed": {
                run_id: {"ns_per_token": dict(times.ns_per_token), "supplies_rows": times.supplies_rows}
                for run_id, times in self.listed.items()
            },
        }


def read_note(document: Mapping[str, Any]) -> ArchiveNote:
    """SuiteError where it is none, or of another version."""
    version = document.get("schema_version")
    if version != NOTE_SCHEMA_VERSION:
        raise SuiteError(
            f"schema version {show(version)}, this program reads {NOTE_SCHEMA_VERSION}; read it with the "
            "version that wrote it"
        )
    try:
        return ArchiveNote(
            one_in=_count(document, "one_in"),
            num_steps=_count(document, "num_steps"),
            num_kept=_count(document, "num_kept"),
            left_out=tuple(str(name) for name in document["left_out"]),
            listed={str(run_id): _times(item) for run_id, item in document["listed"].items()},
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        raise SuiteError("it is damaged: unpack the archive again") from None


def _count(document: Mapping[str, Any], name: str) -> int:
    value = document[name]
    if type(value) is not int or value < (1 if name == "one_in" else 0):
        raise ValueError(name)
    return value


def _times(item: Mapping[str, Any]) -> ListedTimes:
    times = {str(kind): float(ns) for kind, ns in item["ns_per_token"].items()}
    return ListedTimes(times, bool(item["supplies_rows"]))
