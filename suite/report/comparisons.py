"""Arms held against the reference arm of their case, as a table for the page."""

from __future__ import annotations

from suite.comparison import Comparison
from suite.report.comparison_text import METRIC_WORDS, change_text, interval_text, ratio_rounds, size_text
from suite.report.data import ScenarioData
from suite.report.tables import Cell, Line, Mark, Table, text
from suite.report.wording import undefined
from suite.verdict import Word

_COLUMNS = (
    *("Case", "Arm", "Against", "Metric", "Verdict", "Change", "95 % interval", "Noise floor"),
    *("Smallest effect", "p, by Holm"),
)


def table(scenario: ScenarioData) -> Table:
    """A row for each arm and primary metric of each case."""
    labels = {one.case_id: one.case_label for one in scenario.series}
    return Table(
        "Arms against the reference arm of their case",
        _COLUMNS,
        tuple(_row(one, labels.get(one.case_id, one.case_label)) for one in scenario.comparisons),
        reason=undefined("no case ran two arms"),
        note="Rounds are paired: mean of the logs of their ratios, Student's t interval; where the reference "
        "arm ran twice a round, to the geometric mean of both. Noise floor: half "
        "the width of that interval for the reference arm against itself (A/A), at least 0.5 %. An interval "
        "wholly outside the floor is faster or slower, wholly inside equal, anything else cannot tell. "
        "Where A/A itself shows a difference there is no floor: only an interval beyond all of it decides. "
        "Smallest effect: what so many rounds of such noise would have decided in 4 of 5 experiments.",
    )


def _row(one: Comparison, label: str) -> tuple[Cell, ...]:
    metric = text(METRIC_WORDS.get(one.metric, one.metric))
    heads = (text(label), text(one.arm), text(one.reference), metric, _verdict(one))
    mean_log, interval = one.ratio.mean_log, one.ratio.interval
    if mean_log is None or interval is None:
        absent = text(undefined(one.verdict.reason))
        return (*heads, *(absent for _ in _COLUMNS[len(heads) :]))
    smallest = one.smallest_effect
    return (
        *heads,
        Cell((Line(change_text(mean_log), one.ratio.value, _n(one)),), is_number=True),
        text(interval_text(interval)),
        text(undefined(one.floor.reason or ""))
        if one.floor.value is None
        else text(size_text(one.floor.value)),
        text(undefined("no noise floor")) if smallest is None else text(size_text(smallest)),
        text(undefined("no p value")) if one.adjusted_p is None else text(f"{one.adjusted_p:.2g}"),
    )


def _verdict(one: Comparison) -> Cell:
    mark: Mark = "doubt" if one.verdict.word is Word.CANNOT_TELL else ""
    return Cell((Line(one.verdict.word.value, note=one.verdict.reason),), mark)


def _n(one: Comparison) -> str:
    """How many rounds, what was left out, and whether resampling says the same."""
    notes = [ratio_rounds(one.ratio), *one.ratio.notes]
    if one.ratio.bootstrap is not None:
        word = "disagrees" if one.ratio.bootstrap_disagrees else "agrees"
        notes.append(f"bootstrap {word}: {interval_text(one.ratio.bootstrap)}")
    return "; ".join(notes)
