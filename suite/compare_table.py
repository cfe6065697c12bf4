"""A comparison of runs as text: a table for the terminal, the same for Markdown, and what the gate says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from suite.compare_result import RunComparison
from suite.compare_runs import Difference, Middle
from suite.gate import Judged, Outcome
from suite.metrics import DEFINITIONS
from suite.report.comparison_text import change_text, interval_text, size_text, used_rounds
from suite.report.wording import number
from suite.verdict import Word

_UNBOUNDED = 10_000
_STYLES = {Word.FASTER: "green", Word.SLOWER: "red", Word.CANNOT_TELL: "yellow"}
_ABSENT = "n/a"
_NUM_TEXT_COLUMNS = 3


def print_comparison(console: Console, result: RunComparison) -> None:
    """The table where it fits, else a block of lines for each row; then what it does not say."""
    for line in _heads(result):
        console.print(line)
    for text in result.caveats():
        console.print(Text(text, style="yellow"))
    if result.compared.differences:
        _print_rows(console, result)
    console.print(result.counts() or "nothing was compared")
    for whom, reason in result.reasons():
        console.print(f"{whom}: {_plain(reason)}")
    for line, is_bad in gate_lines(result):
        console.print(Text(line, style="bold red" if is_bad else ""))


def markdown(result: RunComparison) -> str:
    """The same as Markdown, for a pull request or a job's summary."""
    lines = ["## stepcost: runs compared", "", *(f"- {_escaped(line)}" for line in _heads(result))]
    lines += [f"- **{_escaped(text)}**" for text in result.caveats()]
    header = _header(result)
    marks = [":--" if index < _num_text(result) else "--:" for index in range(len(header) - 1)]
    lines += ["", _row(header), _row([*marks, ":--"])]
    lines += [_row([_escaped(cell) for cell in _cells(result, one)]) for one in result.differences]
    lines += ["", f"{_escaped(result.counts()) or 'nothing was compared'}", ""]
    lines += [f"- {_escaped(f'{whom}: {_plain(reason)}')}" for whom, reason in result.reasons()]
    lines += [f"- **{_escaped(line)}**" if bad else f"- {_escaped(line)}" for line, bad in gate_lines(result)]
    return "\n".join(lines) + "\n"


def gate_lines(result: RunComparison) -> Iterator[tuple[str, bool]]:
    """A line for everything that was held to a limit, failures first; and whether it is one to look at."""
    order = list(Outcome)
    for one in sorted(result.judged, key=lambda one: order.index(one.outcome)):
        yield _gate_line(result, one), one.outcome is not Outcome.HELD
    if result.judged:
        failed = sum(one.outcome.is_failure for one in result.judged)
        doubtful = sum(one.outcome is Outcome.CANNOT_TELL for one in result.judged)
        counts = f"{failed} of {len(result.judged)} failed"
        told = f", {doubtful} CANNOT TELL and so do not fail" if doubtful else ""
        yield f"gate: {counts}{told}", bool(failed or doubtful)


def _gate_line(result: RunComparison, one: Judged) -> str:
    if one.difference is None:
        return _plain(f"{one.outcome.value}: {one.limit.text}: {one.reason}")
    mean, interval = one.difference.ratio.mean_log, one.difference.ratio.interval
    seen = ""
    if mean is not None and interval is not None:
        seen = f": {change_text(mean)} ({interval_text(interval)}, {one.difference.pairing})"
    whom = result.who(one.difference)
    return _plain(f"{one.outcome.value}: {one.limit.text}: {whom}{seen}: {one.reason}")


def _heads(result: RunComparison) -> list[str]:
    """Which runs are compared."""
    letters = result.letters()
    names = ", ".join(f"{letters[head.name]} = {head}" for head in result.heads)
    return [f"compared: {names}", f"with the base: {letters[result.base.name]} = {result.base}"]


def _print_rows(console: Console, result: RunComparison) -> None:
    header = _header(result)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        is_text = index < _num_text(result) or index == len(header) - 1
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for one in result.differences:
        *cells, verdict = _cells(result, one)
        table.add_row(*map(Text, cells), Text(verdict, style=_STYLES.get(one.verdict.word, "")))
    if Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table).maximum <= console.width:
        console.print(table, soft_wrap=False)
        return
    for one in result.differences:
        for name, cell in zip(header, _cells(result, one), strict=True):
            console.print(f"{name}: {cell}")
        console.print()


def _num_text(result: RunComparison) -> int:
    return _NUM_TEXT_COLUMNS + (len(result.heads) > 1)


def _header(result: RunComparison) -> list[str]:
    run = ["run"] if len(result.heads) > 1 else []
    kinds = dict.fromkeys(one.pairing for one in result.compared.differences)
    interval = f"95 % interval ({', '.join(kinds)})" if kinds else "95 % interval"
    return [*run, "case", "arm", "metric", "base", "now", "change", interval, "noise floor", "verdict"]


def _cells(result: RunComparison, one: Difference) -> list[str]:
    ratio, floor = one.ratio, one.floor.value
    has_interval = ratio.mean_log is not None and ratio.interval is not None
    cells = [
        *([one.head] if len(result.heads) > 1 else []),
        *(one.case, one.arm, one.metric),
        *(_middle(one.base_middle, one.metric), _middle(one.head_middle, one.metric)),
        change_text(ratio.mean_log) if ratio.mean_log is not None and has_interval else _ABSENT,
        interval_text(ratio.interval) if ratio.interval is not None else _ABSENT,
        _ABSENT if floor is None else size_text(floor),
        result.verdict_text(one),
    ]
    return [_plain(cell) for cell in cells]


def _middle(middle: Middle, metric: str) -> str:
    if middle.value is None:
        return _ABSENT
    n = f"n={middle.num_rounds}"
    if middle.left_out is not None:
        n = used_rounds(middle.num_rounds, middle.left_out)
    return f"{number(middle.value)} {DEFINITIONS[metric].unit} ({n})"


def _plain(text: str) -> str:
    """Without spaces that do not break: a terminal may not have them."""
    return text.replace("\u00a0", " ")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """No character of a name may end a cell or begin a mark."""
    for character in "\\`*_|<>[]":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
