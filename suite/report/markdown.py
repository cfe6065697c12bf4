"""The answer, the first table and the validity as Markdown, short enough for a pull request. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from suite.report import tables
from suite.report.answer import points
from suite.report.data import ReportData, ScenarioData
from suite.report.tables import Cell, Line, Table

MAX_ROWS = 40
_MAX_FINDINGS = 10
_SPECIAL = re.compile(r"[\\`*_{}\[\]#!|~@]")
_BREAKS = re.compile(r"[\s\u0085\u2028\u2029]+")
_SIGNS = {"right": "✓ ", "wrong": "✗ ", "doubt": "? ", "": ""}


def render(data: ReportData) -> str:
    """Ends in a newline. Names are escaped, so that they appear as they are."""
    blocks = [
        *(f"> {escape(text)}" for text in _banners(data)),
        *(block for scenario in data.scenarios for block in _answer(scenario)),
        *([] if data.scenarios else ["Cannot tell: no run was started."]),
        *_table(tables.verdicts(data)),
        *_validity(data),
    ]
    return "\n\n".join(blocks) + "\n"


def _banners(data: ReportData) -> Iterable[str]:
    if data.is_interrupted:
        yield "Interrupted: the experiment ended before all of its runs; these are partial results."
    if data.progress:
        yield f"Still running: {data.progress}; figures and verdicts are of these, and will change."
    yield from data.warnings


def _answer(scenario: ScenarioData) -> Iterable[str]:
    yield f"### {escape(scenario.name)}"
    yield "\n".join(
        f"- **{_SIGNS[point.mark]}{escape(point.label)}:** {escape(point.text)}{_code(point.command)}"
        for point in points(scenario)
    )


def _code(command: str) -> str:
    """In a fence of backquotes longer than any run of them inside it."""
    if not command:
        return ""
    longest = max((len(run) for run in re.findall("`+", command)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f" {fence}{space}{_BREAKS.sub(' ', command)}{space}{fence}"


def _table(table: Table) -> Iterable[str]:
    if not table.rows:
        yield escape(table.reason)
        return
    shown = table.rows[:MAX_ROWS]
    lines = [_row(table.columns), _row("---" for _ in table.columns)]
    lines += [_row(map(_cell, row)) for row in shown]
    yield "\n".join(lines)
    if len(table.rows) > len(shown):
        yield f"{len(shown)} of {len(table.rows)} rows are shown; the page has all."


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    """On one line; where n stands by itself the spreads are left to the page."""
    alone = "; ".join(escape(line.note) for line in cell.lines if not line.text)
    shown = [line for line in cell.lines if line.text]
    if not alone:
        return ", ".join(map(_line, shown))
    return f"{', '.join(escape(line.text) for line in shown)} ({alone})"


def _line(line: Line) -> str:
    return f"{escape(line.text)} ({escape(line.note)})" if line.note else escape(line.text)


def _validity(data: ReportData) -> Iterable[str]:
    broken = list(dict.fromkeys((one.rule, one.message, one.remedy) for one in data.findings))
    if not broken:
        yield "VALID: no rule was broken." if data.series else "Validity: no run was started."
        return
    yield "\n".join(_finding(*one) for one in broken[:_MAX_FINDINGS])
    if len(broken) > _MAX_FINDINGS:
        yield f"{_MAX_FINDINGS} of {len(broken)} findings are shown; the page has all."


def _finding(rule: str, message: str, remedy: str) -> str:
    return f"- **INVALID: {escape(rule)}**: {escape(message)}; {escape(remedy)}"


def escape(text: str) -> str:
    """A text on one line that Markdown and the HTML in it show as it is."""
    flat = _BREAKS.sub(_space, text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    return _SPECIAL.sub(r"\\\g<0>", flat)


def _space(found: re.Match[str]) -> str:
    return "\u00a0" if found[0] == "\u00a0" else " "
