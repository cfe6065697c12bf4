"""What a feature costs, in the answer: disabling async, the flag upload, the masked merge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from suite.amplification import AmplifiedCost
from suite.comparison import Comparison
from suite.ratios import MIN_ROUNDS, Interval
from suite.report.comparison_text import METRIC_WORDS, change_text, interval_text
from suite.report.data import ScenarioData, Series
from suite.report.point import Point
from suite.report.wording import number, quantity, sample_count
from suite.verdict import Word

FLAGS, MERGES = "upload.is_token_ids", ("merge", "merge.ids")
_FLAG_BYTES = "bytes.is_token_ids"
_ASYNC_PAIRS = (
    ("gated", "refresh"),
    ("sync-rows", "async-rows"),
    ("sync-fused", "fused"),
    ("sync-ids", "ids"),
)
_HOW = "To measure it:"
_ASYNC, _FLAG, _MERGE = "Price of disabling async", "Flag upload", "Masked merge"


def points(scenario: ScenarioData) -> tuple[Point, ...]:
    """Each measured, or not and how it would be."""
    return (*_of_async(scenario), _of_flags(scenario), *_of_merge(scenario))


# disabling async


def _of_async(scenario: ScenarioData) -> tuple[Point, ...]:
    """The same arm under both ways of scheduling, from the scenario's own comparisons."""
    found = [one for pair in _ASYNC_PAIRS for one in _between(scenario.comparisons, pair)]
    if not found:
        return ()
    texts = [_told_of_async(one) for one in found[:2]]
    return (Point(_ASYNC, " ".join(texts), "" if _is_decided(found[0]) else "doubt"),)


def _between(comparisons: Iterable[Comparison], pair: tuple[str, str]) -> list[Comparison]:
    cases = [one for one in comparisons if {one.arm, one.reference} == set(pair)]
    return cases if len({one.case_id for one in cases}) == 1 else []  # of a sweep, the panel tells


def _is_decided(one: Comparison) -> bool:
    return one.verdict.word in (Word.FASTER, Word.SLOWER, Word.EQUAL)


def _told_of_async(one: Comparison) -> str:
    sync, fast = next(pair for pair in _ASYNC_PAIRS if {one.arm, one.reference} == set(pair))
    metric = METRIC_WORDS.get(one.metric, one.metric)
    if one.ratio.mean_log is None or one.ratio.interval is None:
        return f"Cannot tell ({sync} against {fast}): {one.verdict.reason}."
    log, interval = one.ratio.mean_log, one.ratio.interval
    if one.arm == fast:  # sync over async is asked for
        log, interval = -log, Interval(-interval.high, -interval.low)
    evidence = f"95 % interval {interval_text(interval)}, {sample_count(one.ratio.num_rounds, 'round')}"
    doubt = "" if _is_decided(one) else f" One cannot tell it from nothing: {one.verdict.reason}."
    return f"{sync} against {fast}: {metric} {change_text(log)} ({evidence}).{doubt}"


# the flag upload and the merge


def _of_flags(scenario: ScenarioData) -> Point:
    found = _lines(scenario, (FLAGS,))
    if found:
        return _billed(_FLAG, found)
    if counted := _uploads_flags(scenario):
        return Point(_FLAG, f"{counted} {_HOW}", "doubt", _command(scenario))
    if scenario.measured and _counts_bytes(scenario):
        return Point(_FLAG, "No arm uploads flags: no request brings embeddings.")
    return Point(_FLAG, f"Not measured. {_HOW}", "doubt", _command(scenario))


def _of_merge(scenario: ScenarioData) -> tuple[Point, ...]:
    found = _lines(scenario, MERGES)
    if found:
        return (_billed(_MERGE, found),)
    if not _uploads_flags(scenario):
        return ()
    return (Point(_MERGE, f"Not measured. {_HOW}", "doubt", _command(scenario)),)


def _command(scenario: ScenarioData) -> str:
    return f"python -m suite cost {scenario.file}"


def _lines(scenario: ScenarioData, spans: Sequence[str]) -> list[tuple[str, AmplifiedCost]]:
    """(arm, line) of the first arm that has any, decode before mixed."""
    for one in scenario.series:
        lines = [line for line in one.bill.lines if line.span in spans] if one.bill else []
        if lines:
            return [(one.arm, line) for line in sorted(lines, key=lambda line: line.kind != "decode")]
    return []


def _billed(label: str, found: Sequence[tuple[str, AmplifiedCost]]) -> Point:
    """What repeating the commands showed."""
    told = "; ".join(_line(line) for _, line in found)
    is_decided = any(line.cost is not None and line.cost.is_decided for _, line in found)
    return Point(label, f"{told[:1].upper()}{told[1:]} (arm {found[0][0]}).", "" if is_decided else "doubt")


def _line(line: AmplifiedCost) -> str:
    """ "3.1 µs [2.4, 3.8] of a decode step (0.04 %)"."""
    cost, step = line.cost, f"{_article(line.kind)} {line.kind} step"
    name = "" if line.span in (FLAGS, "merge") else f"{line.span} "
    if cost is None:
        return f"{name}cannot tell of {step}: no whole round"
    rounds = sample_count(cost.num_rounds, "round")
    if not cost.is_decided:
        most = "" if line.upper_us is None else f", at most {quantity(line.upper_us, 'µs')}"
        few = f", {MIN_ROUNDS} are needed" if cost.num_rounds < MIN_ROUNDS else ""
        return f"{name}cannot tell of {step}{most} ({rounds}{few})"
    assert cost.low_us is not None and cost.high_us is not None
    share = "" if line.share is None else f"{_percent(line.share)} of it, "
    interval = f"[{number(cost.low_us)}, {number(cost.high_us)}]"
    return f"{name}{quantity(cost.mean_us, 'µs')} {interval} of {step} ({share}{rounds})"


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _percent(share: float) -> str:
    """Two figures: 0.04 %, 12 %."""
    percent = 100 * share
    digits = max(0, 1 - math.floor(math.log10(abs(percent)))) if percent else 0
    return f"{percent:.{digits}f}\u00a0%"


def _counts_bytes(scenario: ScenarioData) -> bool:
    return any(name.startswith("bytes.") for one in scenario.measured for name in _columns(one))


def _columns(one: Series) -> Iterable[str]:
    return (str(name) for run in one.runs for name in run.steps)


def _uploads_flags(scenario: ScenarioData) -> str:
    """ "Counted, not timed: refresh uploads 8 B in a decode step." of the first arm that uploads any."""
    for one in scenario.measured:
        steps = one.runs[0].steps
        if one.control is not None or not {_FLAG_BYTES, "kind"} <= set(steps):
            continue
        decode = steps.loc[(steps["kind"] == "decode") & (steps[_FLAG_BYTES] > 0), _FLAG_BYTES]
        if len(decode):
            mean = quantity(float(decode.mean()), "B")
            return f"Not timed; {one.arm} uploads {mean} in a decode step (mean of {len(decode)})."
        if (steps[_FLAG_BYTES] > 0).any():
            return "Not timed; flags are uploaded in steps with prefill only."
    return ""
