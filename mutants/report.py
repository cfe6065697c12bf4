"""What came of the mutants, as a table and a line of counts (rich)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mutants.mutant import Mutant
from mutants.trials import Verdict

_STYLES = {"killed": "green", "timeout": "yellow", "survived": "bold red", "error": "bold red"}


def print_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    table = Table("mutant", "hazard", "killed by", "s", title="Planted faults")
    for verdict in verdicts:
        style = _STYLES[verdict.outcome]
        table.add_row(
            escape(verdict.mutant.name),
            escape(verdict.mutant.hazard),
            f"[{style}]{escape(_story(verdict))}[/]",
            f"{verdict.seconds:.1f}",
        )
    console.print(table)
    counts = Counter(verdict.outcome for verdict in verdicts)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    console.print(f"{len(verdicts)} mutants: {told}")


def print_catalogue(console: Console, mutants: Iterable[Mutant]) -> None:
    table = Table("mutant", "hazard", "file", "tests")
    for mutant in mutants:
        tests = "\n".join(mutant.tests)
        table.add_row(*(escape(cell) for cell in (mutant.name, mutant.hazard, mutant.file, tests)))
    console.print(table)


def _story(verdict: Verdict) -> str:
    if verdict.outcome == "survived":
        return "SURVIVED"
    if verdict.outcome == "timeout":
        return f"timeout: {verdict.text}"
    file, _, test = verdict.test.partition("::")
    name = f"{file.rpartition('/')[2]}::{test}" if test else file
    told = f"{name}\n{verdict.text}" if name else verdict.text
    return f"ERROR, its tests did not run: {told}" if verdict.outcome == "error" else told
