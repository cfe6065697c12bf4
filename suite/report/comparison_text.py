"""What a comparison says, in words and figures, for the page and the terminal alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from suite.comparison import Comparison
from suite.ratios import Interval, LeftOut, Ratio
from suite.report.wording import plural, rounds_used, sample_count
from suite.verdict import Word

MAX_SENTENCES = 3
METRIC_WORDS: Mapping[str, str] = {
    "output_throughput": "output throughput",
    "median_e2e_ms": "median E2E latency",
    "median_itl_ms": "median inter-token latency",
}
_LARGEST_LOG = 10.0  # 22,000 times: larger changes are told as such


def sentences(comparisons: Sequence[Comparison], max_sentences: int = MAX_SENTENCES) -> list[str]:
    """What the comparisons of one scenario say: each of a few, the first few of many and a count of all."""
    judged = [one for one in comparisons if one.verdict.word is not Word.NONE]
    has_cases = len({one.case_id for one in judged}) > 1
    ordered = sorted(
        judged, key=lambda one: one.verdict.word is Word.CANNOT_TELL
    )  # what is known comes first
    told = [sentence(one, has_cases) for one in ordered[:max_sentences]]
    if len(judged) > max_sentences:
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
        change = ""
    else:
        change = f"{change_text(one.ratio.mean_log)} ({_evidence(one, one.ratio.interval)})"
    seen = f"{metric} {change}"
    if word in (Word.FASTER, Word.SLOWER):
        return f"{where}{one.arm} is {word.value} than {one.reference}: {seen}."
    if word is Word.EQUAL:
        return f"{where}{one.arm} and {one.reference} are equal within the noise floor: {seen}."
    doubt = f"{where}Whether {one.arm} is faster or slower than {one.reference} in {metric} one cannot tell"
    return f"{doubt}: {one.verdict.reason}{f'; {change}' if change else ''}."


def _evidence(one: Comparison, interval: Interval) -> str:
    n = ratio_rounds(one.ratio)
    floor = "" if one.floor.value is None else f"; noise floor {size_text(one.floor.value)}"
    return f"95 % interval {interval_text(interval)}, {n}{floor}"


def ratio_rounds(ratio: Ratio | None) -> str:
    """Of how many pairs of rounds: "n = 6 of 8 rounds: 2 INVALID (foreign-load)"."""
    return used_rounds(0, None) if ratio is None else used_rounds(ratio.num_rounds, ratio.left_out)


def used_rounds(count: int, left_out: LeftOut | None) -> str:
    if left_out is None:
        return sample_count(count, "round")
    return rounds_used(count, left_out.num_rounds, left_out.num_invalid, left_out.rules)


def interval_text(interval: Interval) -> str:
    return f"{_percent(interval.low)} to {_percent(interval.high)}\u00a0%"


def change_text(log: float) -> str:
    return f"{_percent(log)}\u00a0%"


def size_text(log: float) -> str:
    return f"{_percent(log).lstrip('+')}\u00a0%"


def _percent(log: float) -> str:
    """A log ratio as a change, "+3.12"; a hundredth of a percent is far below any noise."""
    if log > _LARGEST_LOG:
        return f"more than +{100 * math.expm1(_LARGEST_LOG):,.0f}"
    return f"{100 * math.expm1(log):+,.2f}"
