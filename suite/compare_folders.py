"""`suite compare`: run folders held against the first of them. Prints through a Screen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.case_design import complete_designs, designs
from suite.checks import Finding, check_runs, machine_drifts
from suite.compare_environments import EnvironmentDifference, environment_differences
from suite.compare_result import FolderFacts, RunComparison
from suite.compare_runs import Side, compare_sides
from suite.compare_table import markdown, print_comparison
from suite.errors import SuiteError
from suite.gate import Limit, judge, read_limits
from suite.metrics import DEFINITIONS
from suite.progress import make_console
from suite.schema import one_of
from suite.store import LoadedRun, load_run, to_json, write_file
from suite.yaml_source import path_errors

if TYPE_CHECKING:
    from suite.commands import Screen

_FORMAT_OF = {".md": "markdown", ".json": "json", ".html": "html", ".htm": "html"}

EXIT_FINE = 0
EXIT_BROKEN = 1


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What the command line says. `limits` are those of --fail-on."""

    metrics: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    is_across_machines: bool = False

    @classmethod
    def of(
        cls, metrics: Sequence[str] | None, fail_on: Sequence[str] | None, is_across: bool
    ) -> CompareOptions:
        """SuiteError for a metric that there is not, or a limit that is none."""
        for name in metrics or ():
            if name not in DEFINITIONS:
                raise SuiteError(f"--metric {name}: {one_of(name, DEFINITIONS)}")
        return cls(tuple(metrics or ()), read_limits(fail_on or ()), is_across)


def compare_command(
    paths: Sequence[Path],
    options: CompareOptions,
    form: str | None,
    output: Path | None,
    screen: Screen,
) -> int:
    """Compare, print, write; 1 where a limit is broken. `form`: table, markdown, json or html."""
    form = _format(form, output, screen.is_json)
    result = compare_folders(paths, options)
    show(result, form, output, screen)
    return EXIT_BROKEN if result.is_broken else EXIT_FINE


def compare_folders(
    paths: Sequence[Path], options: CompareOptions, is_one_machine: bool = False
) -> RunComparison:
    """SuiteError where a folder is none or the machines differ, and that was not asked for.

    `is_one_machine`: they were just run here, and what one of them did not come to record is no difference.
    """
    loaded = _load(paths)
    base, *heads = loaded
    environments = []
    for head in heads:
        found = environment_differences(base.environment, head.environment)
        if found and not is_one_machine:
            environments.append((str(head.path), found))
    if environments and not options.is_across_machines:
        raise SuiteError(_refusal(str(base.path), environments))
    limited = [limit.metric for limit in options.limits]
    sides = [side_of(one) for one in loaded]
    compared = compare_sides(sides[0], sides[1:], options.metrics, limited)
    return RunComparison(
        base=_facts(base),
        heads=tuple(map(_facts, heads)),
        environments=tuple(environments),
        compared=compared,
        judged=judge(options.limits, compared),
        warnings=tuple(
            f"{one.path}: {text}"
            for one, side in zip(loaded, sides, strict=True)
            for text in (*one.warnings, *_changes(one, side))
        ),
    )


def show(result: RunComparison, form: str, output: Path | None, screen: Screen) -> None:
    """To the terminal in the form asked for; with a file the form is the file's, and the table is shown."""
    if output is not None:
        write_file(output, _text(result, form).encode("utf-8", "backslashreplace"))
    if screen.is_json:
        screen.document(result.document())
    elif output is not None or form == "table":
        print_comparison(make_console(sys.stdout), result)
        if output is not None:
            make_console(sys.stdout).print(f"written: {output}")
    else:
        sys.stdout.write(_text(result, form))


def side_of(loaded: LoadedRun) -> Side:
    """A run folder's records, with what they were run for and the rules they broke."""
    return Side(
        name=str(loaded.path),
        runs=loaded.runs,
        design_of=designs(loaded.cases),
        findings=findings_of(loaded),
        interleaved=_interleaved(loaded),
    )


def findings_of(loaded: LoadedRun) -> tuple[Finding, ...]:
    """The rules that its runs broke, as its summary tells; found anew where that is missing or damaged.

    Of steps that an archive has thinned none can be.
    """
    found = (loaded.summary or {}).get("findings")
    is_damaged = any("findings are damaged" in text for text in loaded.warnings)
    if loaded.one_in > 1 or (isinstance(found, list) and not is_damaged):
        return loaded.validity
    design_of = complete_designs(loaded.runs, loaded.cases)
    return tuple(
        check_runs(loaded.runs, loaded.request_records, loaded.step_records, loaded.spans, design_of)
    )


def _changes(loaded: LoadedRun, side: Side) -> tuple[str, ...]:
    """That its machine became slower or faster: nothing where two folders took turns, else it may be all."""
    if side.interleaved is not None:
        return ()
    return machine_drifts(side.runs, side.findings, complete_designs(loaded.runs, loaded.cases))


def _interleaved(loaded: LoadedRun) -> str | None:
    """What two folders that took turns in the same rounds have in common."""
    found: Any = loaded.invocation.get("interleaved")
    return str(found["id"]) if isinstance(found, dict) and found.get("id") else None


def _load(paths: Sequence[Path]) -> list[LoadedRun]:
    if len(paths) < 2:
        raise SuiteError("compare: name two run folders or more; the first is the base")
    seen: dict[Path, Path] = {}
    for path in paths:
        with path_errors(path):
            real = path.resolve()
        if real in seen:
            raise SuiteError(f"compare: {seen[real]} and {path} are one folder; a run is never its own base")
        seen[real] = path
    loaded = [load_run(path) for path in paths]
    _refuse_copies(loaded)
    return loaded


def _refuse_copies(loaded: Sequence[LoadedRun]) -> None:
    for one, other in combinations(loaded, 2):
        if one.runs and one.runs == other.runs:
            raise SuiteError(
                f"compare: {other.path} is a copy of {one.path}: all {len(one.runs)} runs are the same in "
                "both; a run is never its own base"
            )


def _facts(loaded: LoadedRun) -> FolderFacts:
    return FolderFacts.of(str(loaded.path), loaded.environment, loaded.invocation)


def _refusal(base: str, environments: Sequence[tuple[str, tuple[EnvironmentDifference, ...]]]) -> str:
    lines = [f"{base} and {name} cannot be compared:" for name, _ in environments[:1]]
    for name, found in environments:
        lines += [f"  {name}: {one.what}: {one.base} in the base, {one.other} there" for one in found]
    lines.append(
        "run both on one machine with one set of versions, or add --across-machines to see it marked"
    )
    return "\n".join(lines)


def _format(form: str | None, output: Path | None, is_json: bool) -> str:
    if form is not None:
        if form == "table" and output is not None:
            raise SuiteError("--format table: a file is markdown, json or html; give one of them")
        if is_json and form != "json" and output is None:
            raise SuiteError(f"--json and --format {form} are two things for one output; give one")
        return form
    if output is None:
        return "json" if is_json else "table"
    found = _FORMAT_OF.get(output.suffix.lower())
    if found is None:
        raise SuiteError(f"--output {output}: which format? End it in .md, .json or .html, or give --format")
    return found


def _text(result: RunComparison, form: str) -> str:
    if form == "html":
        from suite.report.compare_page import render

        return render(result)
    if form == "markdown":
        return markdown(result)
    return to_json(result.document(), indent=2).decode() + "\n"
