"""The attribution as lines for the terminal; break-even alike. Loads nothing that is slow."""

from __future__ import annotations

from collections.abc import Sequence

from suite.attribution import Line as Attributed
from suite.break_even import Cell as BreakEven
from suite.case_label import case_title
from suite.report.comparison_text import METRIC_WORDS, change_text, interval_text, ratio_rounds
from suite.verdict import Word

MAX_CELLS = 40


def lines(attributed: Sequence[Attributed]) -> list[str]:
    """For the terminal: a block for each case, a line for each that has something to say."""
    found: list[str] = []
    for scenario, case_id in dict.fromkeys((one.scenario, one.case_id) for one in attributed):
        of_case = [one for one in attributed if (one.scenario, one.case_id) == (scenario, case_id)]
        title = case_title(scenario, of_case[0].case_label)
        found += ["", f"{title}: time a token, the same steps in every arm"]
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
            *sorted(
                {
                    f"not told: {one.name}, {one.over} / {one.under}: {one.reason}"
                    for one in of_case
                    if not _is_told(one)
                }
            ),
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
    return f"{ratio.value:.4f}  {interval_text(ratio.interval)}, {ratio_rounds(ratio)}"
