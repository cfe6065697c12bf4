"""The attribution of one scenario: as a table for the page, as lines for the terminal; break-even alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from suite.attribution import Line as Attributed
from suite.break_even import Cell as BreakEven
from suite.ratios import Ratio
from suite.report.comparison_text import METRIC_WORDS, change_text, interval_text, size_text
from suite.report.data import ScenarioData
from suite.report.panels import Detail, Panel
from suite.report.tables import Cell, Line, Mark, Table, text
from suite.report.wording import sample_count, undefined
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
MAX_CELLS = 40
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


def attached(panels: Sequence[Panel], scenario: ScenarioData) -> tuple[Panel, ...]:
    """The panels with these tables folded away in the two that they are the figures of."""
    tables = {"panel-bill": table(scenario), "panel-pays": break_even(scenario)}
    return tuple(
        replace(panel, details=(*panel.details, Detail(found.caption, tables=(found,))), reason="")
        if (found := tables.get(panel.id)) is not None and found.rows
        else panel
        for panel in panels
    )


def lines(attributed: Sequence[Attributed]) -> list[str]:
    """For the terminal: a block for each case, a line for each that has something to say."""
    found: list[str] = []
    for scenario, case_id in dict.fromkeys((one.scenario, one.case_id) for one in attributed):
        of_case = [one for one in attributed if (one.scenario, one.case_id) == (scenario, case_id)]
        label = "" if of_case[0].case_label == scenario else f" [{of_case[0].case_label}]"
        found += ["", f"{scenario}{label}: time a token, the same steps in every arm"]
        rows = [row for one in of_case if _is_told(one) for row in _text_rows(one)]
        widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
        found += [
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]
            ).rstrip()
            for row in rows
        ]
        notes = dict.fromkeys(f"note: {one.note}" for one in of_case if one.note and one.ratio is not None)
        found += [
            *notes,
            *sorted({f"not told: {one.name}: {one.reason}" for one in of_case if not _is_told(one)}),
        ]
    return found


def break_even_lines(cells: Sequence[BreakEven]) -> list[str]:
    """For the terminal: a line for each cell of the sweeps, the first MAX_CELLS of many."""
    if not cells:
        return []
    rows = [_cell_text(cell) for cell in cells[:MAX_CELLS]]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    more = len(cells) - len(rows)
    return [
        "",
        "break-even: async arms over their sync twins",
        *("  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows),
        *([f"  and {more} more: see summary.json or the page"] if more else []),
    ]


def _cell_text(cell: BreakEven) -> tuple[str, str, str, str]:
    ratio, told = cell.ratio, cell.verdict.value
    if ratio.mean_log is not None and ratio.interval is not None:
        told = f"{change_text(ratio.mean_log)}  {interval_text(ratio.interval)}  {told}"
    elif cell.reason:
        told = f"{told} ({cell.reason})"
    metric = METRIC_WORDS.get(cell.metric, cell.metric)
    return f"  {cell.case_label}", f"{cell.over} / {cell.under}", metric, told


def _is_told(one: Attributed) -> bool:
    """Whether both its arms were run and may be compared, or are the same there."""
    return one.ratio is not None or not one.reason.startswith("n/a")


def _text_rows(one: Attributed) -> list[tuple[str, str, str, str]]:
    rows = [(f"  {one.kind}", one.name, f"{one.over} / {one.under}", _told(one))]
    for factor in one.factors:
        rows.append(("", f"  x {factor.name}", f"{factor.over} / {factor.under}", _figures(factor)))
    if one.is_product is False:
        rows.append(("", "  the factors do not multiply to it", "", f"their product is {one.product}"))
    return rows


def _told(one: Attributed) -> str:
    if one.ratio is None:
        return one.reason
    reason = f" ({one.reason})" if one.verdict is Word.CANNOT_TELL else ""
    return f"{_figures(one)}  {one.verdict.value}{reason}"


def _figures(one: Attributed) -> str:
    ratio = one.ratio
    if ratio is None or ratio.value is None or ratio.interval is None:
        return "n/a"
    return f"{ratio.value:.4f}  {interval_text(ratio.interval)}, {sample_count(ratio.num_rounds, 'round')}"


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
    notes = "; ".join([sample_count(ratio.num_rounds, "round"), *ratio.notes])
    change = Cell((Line(change_text(ratio.mean_log), ratio.value, notes),), is_number=True)
    return change, text(interval_text(ratio.interval))


def _verdict(word: Word, reason: str) -> Cell:
    mark: Mark = "doubt" if word is Word.CANNOT_TELL else ""
    return Cell((Line("—" if word is Word.NONE else word.value, note=reason),), mark)
