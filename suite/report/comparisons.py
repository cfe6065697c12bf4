"""Arms held against the reference arm of their case: a table for the page, and sentences for every reader."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from suite.comparison import Comparison
from suite.ratios import Interval
from suite.report.data import ScenarioData
from suite.report.tables import Cell, Line, Mark, Table, text
from suite.report.wording import plural, sample_count, undefined
from suite.verdict import Word

MAX_SENTENCES = 3
METRIC_WORDS: Mapping[str, str] = {
    "output_throughput": "output throughput",
    "median_e2e_ms": "median E2E latency",
    "median_itl_ms": "median inter-token latency",
}
_COLUMNS = (
    *("Case", "Arm", "Against", "Metric", "Verdict", "Change", "95 % interval", "Noise floor"),
    *("Smallest effect", "p, by Holm"),
)
_LARGEST_LOG = 10.0  # 22,000 times: larger changes are told as such


def table(scenario: ScenarioData) -> Table:
    """A row for each arm and primary metric of each case."""
    labels = {one.case_id: one.case_label for one in scenario.series}
    return Table(
        "Arms against the reference arm of their case",
        _COLUMNS,
        tuple(_row(one, labels.get(one.case_id, one.case_label)) for one in scenario.comparisons),
        reason=undefined("no case ran two arms"),
        note="Rounds are paired: mean of the logs of their ratios, Student's t interval. Noise floor: half "
        "the width of that interval for the reference arm against itself (A/A), at least 0.5 %. An interval "
        "wholly outside the floor is faster or slower, wholly inside equal, anything else cannot tell. "
        "Smallest effect: what so many rounds of such noise would have decided in 4 of 5 experiments.",
    )


def sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """What the comparisons of one scenario say: each of a few, the first few of many and a count of all."""
    judged = [one for one in comparisons if one.verdict.word is not Word.NONE]
    has_cases = len({one.case_id for one in judged}) > 1
    ordered = sorted(
        judged, key=lambda one: one.verdict.word is Word.CANNOT_TELL
    )  # what is known comes first
    told = [sentence(one, has_cases) for one in ordered[:MAX_SENTENCES]]
    if len(judged) > MAX_SENTENCES:
        counts = Counter(one.verdict.word for one in judged)
        all_of_them = ", ".join(f"{counts[word]} {word.value}" for word in Word if counts[word])
        told.append(f"Of {plural(len(judged), 'comparison')}: {all_of_them}.")
    return told


def sentence(one: Comparison, names_case: bool) -> str:
    """ "ids is faster than sync-ids: output throughput +3.1 % (...)." """
    metric = METRIC_WORDS.get(one.metric, one.metric)
    where = f"{one.case_label}: " if names_case else ""
    word = one.verdict.word
    if one.ratio.mean_log is None or one.ratio.interval is None:
        seen = ""
    else:
        seen = f"{metric} {_change(one.ratio.mean_log)} ({_evidence(one, one.ratio.interval)})"
    if word in (Word.FASTER, Word.SLOWER):
        return f"{where}{one.arm} is {word.value} than {one.reference}: {seen}."
    if word is Word.EQUAL:
        return f"{where}{one.arm} and {one.reference} are equal within the noise floor: {seen}."
    doubt = f"{where}Whether {one.arm} is faster or slower than {one.reference} one cannot tell"
    return f"{doubt}: {one.verdict.reason}{f'; {seen}' if seen else ''}."


def _evidence(one: Comparison, interval: Interval) -> str:
    n = sample_count(one.ratio.num_rounds, "round")
    floor = "" if one.floor.value is None else f"; noise floor {_size(one.floor.value)}"
    return f"95 % interval {_interval(interval)}, {n}{floor}"


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
        Cell((Line(_change(mean_log), one.ratio.value, _n(one)),), is_number=True),
        text(_interval(interval)),
        text(undefined(one.floor.reason or "")) if one.floor.value is None else text(_size(one.floor.value)),
        text(undefined("no noise floor")) if smallest is None else text(_size(smallest)),
        text(undefined("no p value")) if one.adjusted_p is None else text(f"{one.adjusted_p:.2g}"),
    )


def _verdict(one: Comparison) -> Cell:
    mark: Mark = "doubt" if one.verdict.word is Word.CANNOT_TELL else ""
    return Cell((Line(one.verdict.word.value, note=one.verdict.reason),), mark)


def _n(one: Comparison) -> str:
    """How many rounds, what was left out, and whether resampling says the same."""
    notes = [sample_count(one.ratio.num_rounds, "round"), *one.ratio.notes]
    if one.ratio.bootstrap is not None:
        word = "disagrees" if one.ratio.bootstrap_disagrees else "agrees"
        notes.append(f"bootstrap {word}: {_interval(one.ratio.bootstrap)}")
    return "; ".join(notes)


def _interval(interval: Interval) -> str:
    return f"{_percent(interval.low)} to {_percent(interval.high)}\u00a0%"


def _change(log: float) -> str:
    return f"{_percent(log)}\u00a0%"


def _size(log: float) -> str:
    return f"{_percent(log).lstrip('+')}\u00a0%"


def _percent(log: float) -> str:
    """A log ratio as a change, "+3.12"; a hundredth of a percent is far below any noise."""
    if log > _LARGEST_LOG:
        return f"more than +{100 * math.expm1(_LARGEST_LOG):,.0f}"
    return f"{100 * math.expm1(log):+,.2f}"
