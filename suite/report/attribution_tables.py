"""The attribution of one scenario as a table for the page; its break-even alike."""

from __future__ import annotations

from suite.attribution import Line as Attributed
from suite.break_even import Cell as BreakEven
from suite.ratios import Ratio
from suite.report.comparison_text import METRIC_WORDS, change_text, interval_text, ratio_rounds, size_text
from suite.report.data import ScenarioData
from suite.report.tables import Cell, Line, Mark, Table, text
from suite.report.wording import undefined
from suite.verdict import Word

_COLUMNS = (
    "Case",
    "Line",
    "Steps",
    "Over",
    "Under",
    "Verdict",
    "Time a token",
    "95 % interval",
    "Noise floor",
)
_CAPTION = "Attribution: what one choice costs, on the same steps"
_NOTE = (
    "Each line is of two arms that differ in one choice (those against ids in prompt_embeds as a whole), on "
    "a list of steps that is the same in every arm. Time a token: from the end of a step to the end of the "
    "next, over all tokens computed; the ratio of the two arms is the mean of the logs over paired rounds, "
    "with Student's interval. Where both arms queue the same commands no ratio is given. The price of "
    "disabling async is the product of the three lines below it."
)
_BREAK_EVEN_COLUMNS = ("Case", "Async arm", "Sync twin", "Metric", "Verdict", "Change", "95 % interval")


def table(scenario: ScenarioData) -> Table:
    """A row for each line, kind of step and case; the factors of the price stand below it."""
    labels = {one.case_id: one.case_label for one in scenario.series}
    rows = tuple(
        _row(line, labels.get(line.case_id, line.case_label), is_factor)
        for whole in scenario.attribution
        for line, is_factor in ((whole, False), *((one, True) for one in whole.factors))
    )
    return Table(_CAPTION, _COLUMNS, rows, reason=undefined("no case replays a list of steps"), note=_NOTE)


def break_even(scenario: ScenarioData) -> Table:
    """A row for each case of the sweep and pair of twins."""
    labels = {one.case_id: one.case_label for one in scenario.series}
    rows = tuple(_cell_row(cell, labels.get(cell.case_id, cell.case_label)) for cell in scenario.break_even)
    return Table(
        "Break-even: where async scheduling pays",
        _BREAK_EVEN_COLUMNS,
        rows,
        reason=undefined("no sweep ran an arm with its sync twin"),
        note="The two arms of a row differ in scheduling alone. Holm's correction is over all rows.",
    )


def _row(one: Attributed, label: str, is_factor: bool) -> tuple[Cell, ...]:
    name = f"\N{MULTIPLICATION SIGN} {one.name}" if is_factor else one.name
    heads = (
        text(label),
        Cell((Line(name, note=one.note),)),
        *(text(value) for value in (one.kind, one.over, one.under)),
        _verdict(one.verdict, one.reason),
    )
    floor = (
        text(undefined(one.floor.reason or ""))
        if one.floor.value is None
        else text(size_text(one.floor.value))
    )
    return (*heads, *_ratio_cells(one.ratio, one.reason), floor if one.ratio is not None else text("—"))


def _cell_row(cell: BreakEven, label: str) -> tuple[Cell, ...]:
    heads = (label, cell.over, cell.under, METRIC_WORDS.get(cell.metric, cell.metric))
    return (*map(text, heads), _verdict(cell.verdict, cell.reason), *_ratio_cells(cell.ratio, cell.reason))


def _ratio_cells(ratio: Ratio | None, reason: str) -> tuple[Cell, Cell]:
    """The change and its interval, or why there is none."""
    if ratio is None or ratio.mean_log is None or ratio.interval is None:
        absent = text(reason if reason.startswith(("n/a", "same")) else undefined(reason))
        return absent, absent
    notes = "; ".join([ratio_rounds(ratio), *ratio.notes])
    change = Cell((Line(change_text(ratio.mean_log), ratio.value, notes),), is_number=True)
    return change, text(interval_text(ratio.interval))


def _verdict(word: Word, reason: str) -> Cell:
    mark: Mark = "doubt" if word is Word.CANNOT_TELL else ""
    return Cell((Line("—" if word is Word.NONE else word.value, note=reason),), mark)
