"""What a feature costs, in the answer: disabling async, the flag upload, the masked merge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from suite.amplification import AmplifiedCost
from suite.attribution import NOT_GATED, Line
from suite.comparison import Comparison
from suite.ratios import MIN_ROUNDS, Interval
from suite.report.choice import ceiling_arms
from suite.report.comparison_text import METRIC_WORDS, change_text, interval_text, ratio_rounds
from suite.report.cost_hint import cost_time
from suite.report.data import ScenarioData, Series
from suite.report.point import Point
from suite.report.wording import listed, quantity, sample_count
from suite.verdict import Word

FLAGS, MERGES = "upload.is_token_ids", ("merge", "merge.ids")
_FLAG_BYTES = "bytes.is_token_ids"
_ASYNC_PAIRS = (
    ("gated", "refresh"),
    ("sync-rows", "async-rows"),
    ("sync-fused", "fused"),
    ("sync-ids", "ids"),
)
PRICE, OVERLAP = "price of disabling async", "overlap"  # lines of the attribution
_DECIDED = (Word.FASTER, Word.SLOWER, Word.EQUAL)
_SKIPS = "On steps that hold token ids alone arm skip does without flags and merge."
_ASYNC, _FLAG, _MERGE = "Price of disabling async", "Flag upload", "Masked merge"
_HINTS = {
    _ASYNC: "async: a step is planned while the one before it runs",
    _FLAG: "flags: which positions hold a token id, which a given embedding",
    _MERGE: "of looked-up rows and given ones, by the flags",
}


def points(scenario: ScenarioData) -> tuple[Point, ...]:
    """Each measured, or not and how it would be."""
    found = (*_of_async(scenario), _of_flags(scenario), *_of_merge(scenario))
    return tuple(replace(point, hint=_HINTS[point.label]) for point in found)


# disabling async


def _of_async(scenario: ScenarioData) -> tuple[Point, ...]:
    """From the attribution on equal steps; else from comparisons of an arm under both ways of scheduling."""
    attributed = _attributed(scenario, PRICE)
    if attributed:
        told = " ".join(map(_told_of_price, attributed))
        return (Point(_ASYNC, told, "" if _is_known(attributed) else "doubt"),)
    ceilings, arms = ceiling_arms(scenario), {one.arm for one in scenario.measured}
    pairs = [pair for pair in _ASYNC_PAIRS if not ceilings & set(pair)]
    not_gated = [sync for sync, fast in pairs if {sync, fast} <= arms and _ran_async(scenario, sync)]
    pairs = [pair for pair in pairs if pair[0] not in not_gated]
    why_not = f"{listed(not_gated)} ran async: {NOT_GATED.removeprefix('n/a: ')}." if not_gated else ""
    found = [one for pair in pairs for one in _between(scenario.comparisons, pair)]
    if found:
        texts = [*(_told_of_async(one) for one in found[:2]), *([why_not] if why_not else [])]
        return (Point(_ASYNC, " ".join(texts), "" if _is_decided(found[0]) else "doubt"),)
    untold = next((pair for pair in pairs if set(pair) <= arms), None)
    if len({one.case_id for one in scenario.measured}) > 1:
        return ()
    if untold is None:
        return (Point(_ASYNC, why_not, "doubt"),) if why_not else ()
    sync, fast = untold
    told = f"Not told: {sync} and {fast} were not held against one another. To do it:"
    command = f"python -m suite run {scenario.file} --arms {sync},{fast} --rounds 10"
    return (Point(_ASYNC, told, "doubt", command),)


def _ran_async(scenario: ScenarioData, arm: str) -> bool:
    """A gated arm is scheduled async where its model is not gated."""
    records = (record for one in scenario.series if one.arm == arm for record in one.records)
    return any(record.scheduling == "async" for record in records)


def _between(comparisons: Iterable[Comparison], pair: tuple[str, str]) -> list[Comparison]:
    cases = [one for one in comparisons if {one.arm, one.reference} == set(pair)]
    return cases if len({one.case_id for one in cases}) == 1 else []  # of a sweep, the panel tells


def _is_decided(one: Comparison) -> bool:
    return one.verdict.word in _DECIDED


def _told_of_async(one: Comparison) -> str:
    sync, fast = next(pair for pair in _ASYNC_PAIRS if {one.arm, one.reference} == set(pair))
    metric = METRIC_WORDS.get(one.metric, one.metric)
    if one.ratio.mean_log is None or one.ratio.interval is None:
        return f"Cannot tell ({sync} against {fast}): {one.verdict.reason}."
    log, interval = one.ratio.mean_log, one.ratio.interval
    if one.arm == fast:  # sync over async is asked for
        log, interval = -log, Interval(-interval.high, -interval.low)
    evidence = f"95 % interval {interval_text(interval)}, {ratio_rounds(one.ratio)}"
    evidence += "; the reciprocal of the ratio in the table" if one.arm == fast else ""
    doubt = "" if _is_decided(one) else f" One cannot tell it from nothing: {one.verdict.reason}."
    return f"Without async ({sync} against {fast}): {metric} {change_text(log)} ({evidence}).{doubt}"


# attribution: arms that ran the same steps


def _attributed(scenario: ScenarioData, name: str) -> list[Line]:
    """The lines of a name, decode steps first; of a sweep none, for there the panel tells."""
    lines = [line for line in scenario.attribution if line.name == name]
    if len({line.case_id for line in lines}) > 1:
        return []
    told = [line for line in lines if line.ratio is not None] or lines[:1]
    return sorted(told, key=lambda line: line.kind != "decode")


def _is_known(lines: Iterable[Line]) -> bool:
    return any(line.verdict in _DECIDED for line in lines)


def _is_measured(lines: Iterable[Line]) -> bool:
    return any(line.ratio is not None for line in lines)


def _told_of_price(line: Line) -> str:
    """ "On decode steps disabling async costs 15 % [13, 17] of throughput (x 0.91 by lost overlap, ..." """
    where = f"On {line.kind} steps"
    if line.value is None or line.interval is None:
        return f"{where}: {line.reason.removeprefix('n/a: ')}."
    n = ratio_rounds(line.ratio)
    cost = f"{_lost(math.log(line.value))}\u00a0% [{_lost(line.interval.high)}, {_lost(line.interval.low)}]"
    doubt = "" if line.verdict in _DECIDED else f"; {line.verdict.value}: {line.reason}"
    return f"{where} disabling async costs {cost} of throughput ({_parts_of(line)}{n}{doubt})."


def _lost(log: float) -> str:
    """The share of throughput that a log ratio of times, async over sync, is worth: "15.0"."""
    return f"{-100 * math.expm1(log):.1f}"


def _parts_of(line: Line) -> str:
    """Overlap apart from the embedding copy, two of the three factors: what each multiplies throughput by."""
    logs = {part.name: part.ratio.mean_log for part in line.factors if part.ratio is not None}
    known = [log for log in logs.values() if log is not None]
    if not line.factors or len(known) < len(line.factors) or logs.get(OVERLAP) is None:
        return ""
    overlap = logs[OVERLAP] or 0.0
    return (
        f"{_times(overlap)} by lost overlap, {_times(sum(known) - overlap)} by the embedding copy "
        "that sync repeats every step; "
    )


def _times(log: float) -> str:
    return f"\N{MULTIPLICATION SIGN}\u00a0{math.exp(log):.2f}"


def _told_of_line(line: Line) -> str:
    """ "+0.04 % of the time of a decode step (async-rows against async-fill; ...)"."""
    arms = f"{line.over} against {line.under}"
    if line.value is None or line.interval is None:
        return f"{line.kind} steps, {arms}: {line.reason.removeprefix('n/a: ')}."
    n = ratio_rounds(line.ratio)
    doubt = "" if line.verdict in _DECIDED else f"; {line.verdict.value}"
    evidence = f"95 % interval {interval_text(line.interval)}, {n}{doubt}"
    change = change_text(math.log(line.value))
    return f"{change} of the time of {_article(line.kind)} {line.kind} step ({arms}; {evidence})."


def _of_lines(label: str, attributed: Sequence[Line]) -> Point:
    """What was measured on equal steps, decided or not."""
    told = " ".join(map(_told_of_line, attributed))
    return Point(label, f"{told[:1].upper()}{told[1:]}", "" if _is_known(attributed) else "doubt")


# the flag upload and the merge


def _of_flags(scenario: ScenarioData) -> Point:
    found = _lines(scenario, (FLAGS,))
    if found:
        billed = _billed(_FLAG, found)
        busy = _busy(scenario, found)
        return replace(billed, text=f"{billed.text} {busy}", mark="doubt") if busy else billed
    attributed = _attributed(scenario, "flag upload")
    if _is_measured(attributed):
        return _of_lines(_FLAG, attributed)
    if scenario.thinned_bill:
        return Point(_FLAG, f"Not shown: {scenario.thinned_bill}.", "doubt")
    if counted := _uploads_flags(scenario):
        return Point(_FLAG, f"{counted} {_how(scenario)}", "doubt", _command(scenario))
    if _counts_bytes(scenario):
        why = "" if _has_supplied_rows(scenario) else ": no request brings embeddings"
        return Point(_FLAG, f"No arm uploads flags here{why}.")
    return Point(_FLAG, f"Not measured. {_how(scenario)}", "doubt", _command(scenario))


def _of_merge(scenario: ScenarioData) -> tuple[Point, ...]:
    found = _lines(scenario, MERGES)
    if found:
        saved = f" {_SKIPS}" if _lines(scenario, (FLAGS,)) else ""
        billed = _billed(_MERGE, found)
        return (replace(billed, text=f"{billed.text}{saved}"),)
    attributed = _attributed(scenario, "masked merge")
    if _is_measured(attributed):
        told = _of_lines(_MERGE, attributed)
        return (replace(told, text=f"{told.text} {_SKIPS}"),)
    if scenario.thinned_bill:
        return (Point(_MERGE, f"Not shown: {scenario.thinned_bill}.", "doubt"),)
    if not _uploads_flags(scenario):
        return ()
    return (Point(_MERGE, f"Not measured. {_how(scenario)}", "doubt", _command(scenario)),)


def _command(scenario: ScenarioData) -> str:
    return f"python -m suite cost {scenario.file}"


def _how(scenario: ScenarioData) -> str:
    time = cost_time(scenario)
    return f"To measure it, {time}:" if time else "To measure it:"


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


def _busy(scenario: ScenarioData, found: Sequence[tuple[str, AmplifiedCost]]) -> str:
    """Whether others used the machine meanwhile, as a sentence."""
    told = next((one.bill.busy for one in scenario.series if one.arm == found[0][0] and one.bill), "")
    return told and f"{told[:1].upper()}{told[1:]}."


def _line(line: AmplifiedCost) -> str:
    """ "3.10 µs a decode step (95 % interval 2.40 to 3.80 µs, 0.042 % of it, n = 12 rounds)"."""
    cost, step = line.cost, f"{_article(line.kind)} {line.kind} step"
    name = "" if line.span in (FLAGS, "merge") else f"{line.span} "
    if cost is None:
        return f"{name}cannot tell of {step}: no whole round"
    rounds = sample_count(cost.num_rounds, "round")
    if not cost.is_decided:
        most = "" if line.upper_us is None else f", at most {_three(line.upper_us)}\u00a0µs"
        few = f", {MIN_ROUNDS} are needed" if cost.num_rounds < MIN_ROUNDS else ""
        return f"{name}cannot tell of {step}{most} ({rounds}{few})"
    assert cost.low_us is not None and cost.high_us is not None
    share = "" if line.share is None else f"{_percent(line.share)} of it, "
    interval = f"95 % interval {_three(cost.low_us)} to {_three(cost.high_us)}\u00a0µs"
    return f"{name}{_three(cost.mean_us)}\u00a0µs {step} ({interval}, {share}{rounds})"


def _three(value: float) -> str:
    """Three figures, never an exponent."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _percent(share: float) -> str:
    """Two figures: 0.04 %, 12 %."""
    percent = 100 * share
    digits = max(0, 1 - math.floor(math.log10(abs(percent)))) if percent else 0
    return f"{percent:.{digits}f}\u00a0%"


def _counts_bytes(scenario: ScenarioData) -> bool:
    """Whether any step was recorded with its bytes."""
    return any(
        len(run.steps) and any(str(name).startswith("bytes.") for name in run.steps)
        for one in scenario.measured
        for run in one.runs
    )


def _has_supplied_rows(scenario: ScenarioData) -> bool:
    frames = [run.requests for one in scenario.measured for run in one.runs]
    return any(
        "num_supplied_tokens" in frame and (frame["num_supplied_tokens"] > 0).any() for frame in frames
    )


def _uploads_flags(scenario: ScenarioData) -> str:
    """What is known without a clock, of the arm that uploads most: "refresh uploads 8 B in a decode step"."""
    uploads = [(one, *_flag_bytes(one)) for one in scenario.measured if one.control is None]
    uploads = [upload for upload in uploads if upload[1]]
    if not uploads:
        return ""
    one, _, mean = max(uploads, key=lambda upload: upload[2])
    if not mean:
        return "Not timed; flags are uploaded in steps with prefill only."
    return f"Not timed; {one.arm} uploads {quantity(mean, 'B')} a decode step (mean).{one.thinning}"


def _flag_bytes(one: Series) -> tuple[bool, float]:
    """Whether any flag is uploaded, and mean bytes a decode step, of its first round."""
    steps = one.runs[0].steps
    if not {_FLAG_BYTES, "kind"} <= set(steps) or not (steps[_FLAG_BYTES] > 0).any():
        return False, 0.0
    decode = steps.loc[steps["kind"] == "decode", _FLAG_BYTES]
    return True, float(decode.mean()) if len(decode) else 0.0
