"""Pure functions from records to tables and sentences: the text half of the page.

A figure's cell keeps the exact value beside the rounded text; what is undefined reads "n/a: reason".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from runner.inputs.arms import ARMS
from suite.comparison import Comparison
from suite.metrics import STEP_KINDS, least_samples
from suite.ratios import factor
from suite.record import CompileUse, Status, TokenVerdict
from suite.report.comparison_text import METRIC_WORDS, ratio_rounds
from suite.report.data import ReportData, ScenarioData, Series, round_label
from suite.report.figures import why_no_steps
from suite.report.samples import CLOCKS, HASH, step_samples
from suite.report.upload_totals import buffers
from suite.report.wording import cut, median, number, plural, quantity, sample_count, spread, undefined
from suite.validity.rule import broken_rules
from suite.verdict import Word

MAX_ROWS = 100
MAX_TEXT = 2000
SPEED_METRICS = (
    ("Output throughput", (("", "output_throughput"),)),
    ("TTFT", (("median", "median_ttft_ms"), ("p99", "p99_ttft_ms"))),
    ("ITL", (("median", "median_itl_ms"), ("p99", "p99_itl_ms"))),
)
_E2E = (("median", "median_e2e_ms"), ("p99", "p99_e2e_ms"))
_GOODPUT = (("", "request_goodput"),)

_IMAGE_ATTENTION: Mapping[str, str] = {
    "causal": "causal: rows before their own only, as text does",
    "bidirectional": "bidirectional: all rows of their image, in layers with a sliding window too; an image "
    "is computed in one step",
}

Mark = Literal["", "right", "wrong", "doubt"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a cell: its text, the exact value it was made from, and a quieter addition."""

    text: str
    exact: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """`mark` colours the cell, as its text does in words. `sort`: its place, if not by its exact value.

    `hint`: what a name stands for, for the page, where nobody has read anything yet.
    """

    lines: tuple[Line, ...]
    mark: Mark = ""
    is_number: bool = False
    sort: float | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """`reason` stands in for a table without rows: "n/a: why" or "None: why". `note` gives n and cuts."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    reason: str = ""
    note: str = ""


def text(value: str, mark: Mark = "") -> Cell:
    return Cell((Line(value),), mark)


def figure(value: float, unit: str = "") -> Cell:
    return Cell((Line(quantity(value, unit), value),), is_number=True)


def names(one: Series) -> tuple[Cell, ...]:
    """Scenario, case and arm; a case that only repeats the scenario's name is not said twice."""
    case = "(one case)" if one.case_label == one.scenario else one.case_label
    return (text(one.scenario), text(case), text(one.arm))


# verdicts


def token_verdicts(one: Series) -> list[TokenVerdict]:
    """Of all runs, warm-up included: a token that is wrong there is wrong."""
    return [record.tokens for record in one.records if record.tokens is not None]


def token_mark(one: Series) -> Mark:
    """Whether all tokens of all runs are right; "doubt" where a measured round was not checked.

    A folder of `suite cost` has no measured round: there the runs that were checked tell.

    None of these for a negative control.
    """
    if one.control is not None:
        return ""
    if any(verdict.num_wrong for verdict in token_verdicts(one)):
        return "wrong"
    measured = [run.record.tokens for run in one.runs] or list(token_verdicts(one))
    is_checked = all(verdict is not None and verdict.is_right for verdict in measured)
    return "right" if measured and is_checked else "doubt"


def why_no_speed(one: Series) -> str:
    """Why an arm gets no verdict on its speed; empty where it gets one."""
    if one.control is not None:
        return "wrong by design, speed not judged"
    return "wrong tokens, speed not judged" if token_mark(one) == "wrong" else ""


def tokens_cell(one: Series) -> Cell:
    verdicts = token_verdicts(one)
    mark = token_mark(one)
    if not verdicts:
        return text(undefined("tokens not checked" if one.runs else one.reason("steps")), mark)
    checked = sum(verdict.num_checked for verdict in verdicts)
    wrong = sum(verdict.num_wrong for verdict in verdicts)
    ties = sum(verdict.num_ties for verdict in verdicts)
    requests = sum(v.num_requests_right + v.num_requests_wrong for v in verdicts)
    n = f"{sample_count(checked, 'token')}, {plural(requests, 'request')}, {plural(len(verdicts), 'run')}"
    n += " (warm-up too)" if any(record.is_warmup and record.tokens for record in one.records) else ""
    n += f"; {plural(ties, 'tie')}"
    if one.control is not None:
        return Cell((Line(f"{one.control}: {wrong:,} wrong of {checked:,}", wrong, n),), mark)
    if mark == "right":
        return Cell((Line("✓ right", checked, n),), mark)
    if mark == "wrong":
        lines = (Line(f"✗ {wrong:,} wrong of {checked:,}{_first_divergence(one)}", wrong, n),)
        return Cell(lines, mark)
    unchecked = sum(run.record.tokens is None or not run.record.tokens.num_checked for run in one.runs)
    return Cell((Line(f"? {unchecked} of {len(one.runs)} rounds not checked", unchecked, n),), mark)


def _first_divergence(one: Series) -> str:
    for record in one.records:
        if record.tokens is not None and record.tokens.first_wrong is not None:
            request_id, index = record.tokens.first_wrong
            return f", first in {round_label(record)}, request {request_id}, output token {index}"
    return ""


def metric_cell(one: Series, metrics: Sequence[tuple[str, str]]) -> Cell:
    """Medians over rounds of one or two metrics of the same samples, each with its spread; n below."""
    lines: list[Line] = []
    for word, name in metrics:
        values = one.values(name)
        if not values:
            return Cell((*lines, Line(undefined(one.reason(name)))))
        unit = next(metric.unit for metric in one.metrics(name) if metric.value is not None)
        unit = "" if unit == name else unit  # "64 steps" under the heading "Steps"
        value = median(values)
        shown = f"{word} {quantity(value, unit)}".lstrip()
        lines.append(Line(shown, value, spread(values, unit) + _thin(one, name)))
    n = one.rounds_used(name)
    if unit == "ms":
        n += f", {plural(sum(found.num_samples for found in one.metrics(name)), 'sample')}"
    return Cell((*lines, Line("", note=n)), is_number=True)


def _thin(one: Series, name: str) -> str:
    """What to know of a percentile beyond which no sample of some round can lie."""
    fewest = min(found.num_samples for found in one.metrics(name) if found.value is not None)
    return f"; a round has {fewest}: near its maximum" if fewest < least_samples(name) else ""


def speed_cell(one: Series, metrics: Sequence[tuple[str, str]]) -> Cell:
    reason = why_no_speed(one)
    return text(undefined(reason)) if reason and one.runs else metric_cell(one, metrics)


def scheduling_cell(one: Series) -> Cell:
    """How the arm scheduled, and the gate's reason; every run of an arm in a case is decided alike."""
    decided = dict.fromkeys(
        (record.scheduling, record.scheduling_reason) for record in one.records if record.scheduling
    )
    if not decided:
        return text(undefined("not recorded"))
    return Cell(tuple(Line(str(scheduling), note=reason or "") for scheduling, reason in decided))


def validity_cell(one: Series) -> Cell:
    if not one.runs:
        return text(undefined(one.reason("steps")), "doubt" if one.num_failed or one.num_interrupted else "")
    if not one.findings:
        return text("✓ VALID", "right")
    rules = list(dict.fromkeys(finding.rule for finding in one.findings))
    runs = len(broken_rules(one.findings))
    whose = plural(runs, "run") if runs else "its rounds taken together"
    is_timing = all(finding.is_timing for finding in one.findings)
    word = "? INVALID for timing" if is_timing else "✗ INVALID"
    line = Line(f"{word}: {', '.join(rules)}", note=f"{whose}; see Validity")
    return Cell((line,), "doubt" if is_timing else "wrong")


def hits_cell(one: Series) -> Cell:
    """The share of prompt positions the prefix cache gave; in doubt where nothing was meant to be shared."""
    if not one.has_cache:
        return text("off" if one.runs else undefined(one.reason("prefix_cache_hit_rate")))
    cell = metric_cell(one, (("", "prefix_cache_hit_rate"),))
    is_broken = any(finding.rule == "cache-hits" for finding in one.findings)
    if not is_broken and not one.warnings:
        return cell
    where = "see Validity" if is_broken else "see the answer"  # a warning, in older result files
    return replace(cell, lines=(*cell.lines, Line("? repeated prompts", note=where)), mark="doubt")


def drafts_cell(one: Series) -> Cell:
    """The share of drafts that were right, and the tokens a request gets from a decode step."""
    if not one.has_drafts:
        return text("off" if one.runs else undefined(one.reason("acceptance_rate")))
    rate = metric_cell(one, (("", "acceptance_rate"),))
    tokens = one.values("tokens_per_step")
    if not tokens:
        return rate
    line = Line(quantity(median(tokens), "tokens"), median(tokens), note="a decode step")
    return replace(rate, lines=(*rate.lines, line))


def logprobs_cell(one: Series) -> Cell:
    """Log-probabilities of all runs against the oracle's; unmarked for a negative control."""
    found = [record.logprobs for record in one.records if record.logprobs is not None]
    if not found:
        return text(undefined("none asked for" if one.runs else one.reason("steps")))
    n = sample_count(sum(verdict.num_checked for verdict in found), "token")
    wrong = sum(verdict.num_wrong for verdict in found)
    largest = max((verdict.max_error for verdict in found if verdict.max_error is not None), default=None)
    error = "no error is a number" if largest is None else f"largest error {number(largest)}"
    if one.control is not None:
        return Cell((Line(f"{wrong:,} wrong, by design", wrong, f"{n}; {error}"),))
    if wrong:
        return Cell((Line(f"✗ {wrong:,} wrong", wrong, f"{n}; {error}"),), "wrong")
    return Cell((Line("✓ right", largest, f"{n}; {error}"),), "right")


def goodput_cell(one: Series) -> Cell:
    return speed_cell(one, _GOODPUT)


def ratio_cell(one: Series, comparisons: Sequence[Comparison]) -> Cell:
    """Against the reference arm of the case, in each primary metric, with the verdict in words."""
    mine = [found for found in comparisons if (found.case_id, found.arm) == (one.case_id, one.arm)]
    if mine:
        decided = any(found.verdict.word in (Word.FASTER, Word.SLOWER, Word.EQUAL) for found in mine)
        is_doubt = not decided and any(found.verdict.word is Word.CANNOT_TELL for found in mine)
        mark: Mark = "doubt" if is_doubt else ""
        return Cell(tuple(map(_ratio_line, mine)), mark, sort=mine[0].ratio.value)
    if any((found.case_id, found.reference) == (one.case_id, one.arm) for found in comparisons):
        return Cell((Line("1 the reference"),), sort=1.0)
    return text(undefined("no other arm of the case to compare with"))


def _ratio_line(found: Comparison) -> Line:
    """ "1.031 faster", with the interval of the ratio, n and the metric."""
    word, ratio = found.verdict.word.value, found.ratio
    if ratio.value is None or ratio.interval is None:
        return Line(word, note=found.verdict.reason)
    low, high = (factor(end) or 0.0 for end in (ratio.interval.low, ratio.interval.high))
    n = ratio_rounds(ratio)
    metric = METRIC_WORDS.get(found.metric, found.metric)
    return Line(f"{ratio.value:.3f} {word}", ratio.value, f"{low:.3f} to {high:.3f}, {n}, {metric}")


_Extra = tuple[str, Callable[[Series], bool], Callable[[Series], Cell]]
# Columns that stand where any arm of any case has something to say in them.
_EXTRAS: tuple[_Extra, ...] = (
    ("Cache hits", lambda one: one.has_cache, hits_cell),
    ("Drafts accepted", lambda one: one.has_drafts, drafts_cell),
    ("Log-probabilities", lambda one: any(record.logprobs for record in one.records), logprobs_cell),
)


def verdicts(data: ReportData) -> Table:
    """The first table of the page: a row for each arm of each case, its name in as few columns as tell it."""
    has_goodput = any(one.values("request_goodput") for one in data.series)
    labels = (*(label for label, _ in SPEED_METRICS), *(("Goodput",) if has_goodput else ()))
    heads = _heads(data)
    first = {one.arm: one for one in reversed(data.series)}  # there an arm is explained
    rows = tuple(
        (
            *(cell for cell, head in zip(names(one)[:-1], _NAMES[:-1], strict=True) if head in heads),
            _arm_cell(one.arm, is_first=first[one.arm] is one),
            tokens_cell(one),
            *(speed_cell(one, metrics) for _, metrics in SPEED_METRICS),
            *((goodput_cell(one),) if has_goodput else ()),
            ratio_cell(one, scenario.comparisons),
            validity_cell(one),
        )
        for scenario in data.scenarios
        for one in scenario.series
    )
    return Table(
        "Verdicts: every arm of every case",
        (*heads, "Tokens", *labels, "Ratio to the reference arm", "Validity"),
        rows,
        reason="" if rows else undefined("no run was started"),
        note="Large: the median over measured rounds. Small: lowest to highest round, and n. Latency "
        "percentiles are taken within each round over its completed requests. Ratio: this arm over the "
        "reference arm round by round, with its 95 % interval, so not the quotient of the two medians."
        f"{_TWICE if any(record.is_aa for one in data.series for record in one.records) else ''}",
    )


_TWICE = (
    " The reference arm ran twice a round: how far apart the two come out is the noise floor, and the ratios "
    "of this table are to the mean of both. The medians are without these repeats; their tokens are checked."
)


def _arm_cell(name: str, is_first: bool) -> Cell:
    """With what the preset is, where it stands first."""
    return replace(text(name), hint=ARMS[name].description if is_first and name in ARMS else "")


_NAMES = ("Scenario", "Case", "Arm")


def _heads(data: ReportData) -> tuple[str, ...]:
    """Which of scenario and case must be named to tell the rows apart; the arm always is."""
    has_cases = any(one.case_label != one.scenario for one in data.series)
    wanted = {"Scenario": len(data.scenarios) > 1, "Case": has_cases, "Arm": True}
    return tuple(head for head in _NAMES if wanted[head])


def more_verdicts(scenario: ScenarioData) -> Table:
    """What the first table has no room for: how an arm scheduled, E2E latency, features, steps."""
    extras = [(label, cell) for label, says, cell in _EXTRAS if any(says(one) for one in scenario.series)]
    rows = tuple(
        (
            *names(one)[1:],
            scheduling_cell(one),
            speed_cell(one, _E2E),
            *(cell(one) for _, cell in extras),
            metric_cell(one, (("", "steps"),)),
        )
        for one in scenario.series
    )
    columns = ("Case", "Arm", "Scheduling", "E2E latency", *(label for label, _ in extras), "Steps")
    return Table(
        "Scheduling, E2E latency and features", columns, rows, reason=undefined("no run was started")
    )


# details of one arm of one case


def step_times(one: Series) -> Table:
    rows = []
    for kind in STEP_KINDS:
        for column, clock in {**CLOCKS, HASH: "hashing prompts, for the prefix cache"}.items():
            found = step_samples(one.pooled_steps, column, kind)
            if found.num and (column != HASH or found.values[-1] > 0):
                shares = np.percentile(found.values, [50, 95, 99, 100])
                rows.append(
                    (text(kind), text(clock), figure(found.num), *(figure(float(v), "ms") for v in shares))
                )
    columns = ("Kind", "Time", "n steps", "Median", "95th percentile", "99th percentile", "Longest")
    reason = "" if rows else undefined(why_no_steps(one, "the result files have no times of steps"))
    return Table("Time of a step in figures", columns, tuple(rows), reason, one.thinning.strip())


def uploads(one: Series) -> Table:
    """Mean bytes and copies a step by buffer and kind of step; buffers of most bytes first."""
    totals = one.upload_totals
    rows = []
    for name in buffers(totals):
        for kind, total in totals.iterrows():
            count = float(total["num_steps"])
            means = (total[f"bytes.{name}"] / count, total.get(f"copies.{name}", np.nan) / count)
            rows.append(
                (text(name), text(str(kind)), figure(means[0], "B"), _mean_copies(means[1]), figure(count))
            )
    columns = ("Buffer", "Kind of step", "Mean bytes a step", "Mean copies a step", "n steps")
    reason = undefined(why_no_steps(one, "the result files count no bytes by buffer"))
    return Table("Uploads in figures", columns, tuple(rows), "" if rows else reason, one.thinning.strip())


def routes(one: Series) -> Table:
    """How many steps of each kind took which routes, over all measured rounds."""
    wanted = ["kind", "ids_route", "embeds_route"]
    frames = [run.steps[wanted] for run in one.runs if set(wanted) <= set(run.steps)]
    steps = pd.concat(frames) if frames else pd.DataFrame(columns=wanted)
    of_kind = steps["kind"].value_counts()
    rows = tuple(
        (
            *(text(str(name)) for name in (kind, ids, embeds)),
            figure(len(group)),
            figure(100 * len(group) / of_kind[str(kind)], "%"),
        )
        for (kind, ids, embeds), group in steps.groupby(wanted)
    )
    columns = ("Kind of step", "Ids", "Embeddings", "n steps", "Share of the kind")
    reason = undefined(why_no_steps(one, "the result files have no routes"))
    note = (
        "Ids: from the host, sampled ids mixed with them, or taken on the device as a slice or scattered. "
        "Embeddings: merged with supplied rows, looked up only, or looked up inside the forward (graph)."
        f"{one.thinning}"
    )
    return Table("Routes of the steps", columns, rows, "" if rows else reason, note if rows else "")


def _mean_copies(mean: float) -> Cell:
    return text(undefined("copies not counted")) if np.isnan(mean) else figure(mean)


def all_metrics(scenario: ScenarioData) -> Table:
    """Every recorded metric: its median over rounds for each arm of each case."""
    series = scenario.measured
    found = dict.fromkeys(name for one in series for run in one.runs for name in run.record.metrics)
    rows = []
    for name in found:
        units = {metric.unit for one in series for metric in one.metrics(name)}
        cells = (_plain_metric(one, name) for one in series)
        rows.append((text(name), text(" / ".join(sorted(units))), *cells))
    columns = ("Metric", "Unit", *(one.label for one in series))
    reason = "" if rows else undefined("no measured run completed")
    note = "Median over measured rounds."
    return Table("Every metric", columns, tuple(rows), reason, note)


def _plain_metric(one: Series, name: str) -> Cell:
    values = one.values(name)
    if not values:
        return text(undefined(one.reason(name)))
    value = median(values)
    return Cell((Line(number(value), value, one.rounds_used(name)),), is_number=True)


# requests


def request_tokens(scenario: ScenarioData) -> Table:
    """Tokens of each request over its rounds, wrong ones first; rows of one arm of one case together."""
    rows: list[tuple[int, tuple[Cell, ...]]] = []
    features = [item for item in _FEATURES if any(item[1](one) for one in scenario.measured)]
    for one in scenario.measured:
        rows += _request_rows(one, features)
    rows.sort(key=lambda row: -row[0])  # stable: order of arrival within the right ones
    first = 2 if len(scenario.series) == 1 else 0  # the one case and arm need no columns
    shown = tuple(cells[first:] for _, cells in rows[:MAX_ROWS])
    counts = ("Right", "Wrong", "Ties", "First divergence", "Supplied rows", "Wasted tokens")
    columns = ("Case", "Arm", "Request", "Kind", "Verdict", *counts, *(item[0] for item in features))[first:]
    note = "Tokens are summed over measured rounds; wrong requests first. Supplied rows are of one round."
    if len(rows) > MAX_ROWS:
        note += f" {MAX_ROWS} of {len(rows):,} rows are shown; requests/*.parquet have all."
    reason = "" if shown else undefined("no request was recorded in a measured run")
    return Table("Tokens of each request", columns, shown, reason, note)


_Feature = tuple[str, Callable[[Series], bool], Callable[[pd.Series], Cell]]
# Columns about a request, from its sums over rounds, that stand where the feature is on anywhere.
_FEATURES: tuple[_Feature, ...] = (
    ("Cached tokens", lambda one: one.has_cache, lambda sums: _share(sums, "num_cached_tokens", _PROMPT)),
    (
        "Drafts accepted",
        lambda one: one.has_drafts,
        lambda sums: _share(sums, "num_accepted_tokens", "num_drafted_tokens"),
    ),
)
_PROMPT = "num_prompt_tokens"
_FEATURE_COLUMNS = ("num_cached_tokens", _PROMPT, "num_accepted_tokens", "num_drafted_tokens")


def _share(sums: pd.Series, part: str, whole: str) -> Cell:
    """A sum and what it is a part of: "96 of 192"."""
    if pd.isna(sums[part]) or pd.isna(sums[whole]):
        return text(undefined("not recorded"))
    value = float(sums[part])
    return Cell((Line(f"{number(value)} of {number(float(sums[whole]))}", value),), is_number=True)


def _request_rows(one: Series, features: Sequence[_Feature]) -> list[tuple[int, tuple[Cell, ...]]]:
    counts = ("num_tokens_right", "num_tokens_wrong", "num_tokens_tied")
    extras = ("num_supplied_tokens", "num_wasted_tokens", *_FEATURE_COLUMNS)
    frames = [
        run.requests.reindex(columns=["request_id", "kind", *counts, *extras])
        for run in one.runs
        if "request_id" in run.requests
    ]
    if not frames:
        return []
    whole = pd.concat(frames, ignore_index=True)
    whole[[*counts, *extras]] = whole[[*counts, *extras]].astype("float64")
    grouped = whole.groupby("request_id", sort=False)
    sums = grouped[list(counts)].sum(min_count=1)
    kinds = grouped["kind"].first()
    supplied = grouped["num_supplied_tokens"].max()
    wasted = grouped["num_wasted_tokens"].sum(min_count=1)
    shares = grouped[list(_FEATURE_COLUMNS)].sum(min_count=1)
    first = _first_divergences(one)
    rows = []
    for request_id, right, wrong, ties in sums.itertuples(name=None):
        num_wrong = 0 if pd.isna(wrong) else int(wrong)
        cells = (
            *names(one)[1:],
            text(str(request_id)),
            text(_or_na(kinds[request_id])),
            _request_verdict(right, wrong),
            *(_count(value) for value in (right, wrong, ties)),
            text(_where_wrong(first.get(str(request_id)), right, num_wrong)),
            *(_count(values[request_id], "not recorded") for values in (supplied, wasted)),
            *(cell(shares.loc[request_id]) for _, _, cell in features),
        )
        rows.append((num_wrong, cells))
    return rows


def _first_divergences(one: Series) -> dict[str, str]:
    """request_id -> where it first went wrong, as far as the records tell."""
    found: dict[str, str] = {}
    for run in reversed(one.runs):
        if {"request_id", "first_wrong"} <= set(run.requests):
            wrong = run.requests[["request_id", "first_wrong"]].dropna()
            for request_id, index in wrong.itertuples(index=False, name=None):
                found[str(request_id)] = f"{round_label(run.record)}, output token {int(index)}"
        verdict = run.record.tokens
        if verdict is not None and verdict.first_wrong is not None:
            request_id, index = verdict.first_wrong
            found[request_id] = f"{round_label(run.record)}, output token {index}"
    return found


def _where_wrong(known: str | None, right: float, num_wrong: int) -> str:
    if num_wrong:
        return known or undefined("position not recorded")
    return undefined("not checked") if pd.isna(right) else "none"


def _request_verdict(right: float, wrong: float) -> Cell:
    if pd.isna(right) and pd.isna(wrong):
        return text("? not checked", "doubt")
    return text("✗ wrong", "wrong") if wrong > 0 else text("✓ right", "right")


def _count(value: float, absent: str = "not checked") -> Cell:
    return text(undefined(absent)) if pd.isna(value) else figure(float(value))


def _or_na(value: object) -> str:
    return str(value) if isinstance(value, str) else undefined("not recorded")


def failed_requests(data: ReportData) -> Table:
    """Requests of measured runs that did not complete, with their errors."""
    rows: list[tuple[Cell, ...]] = []
    for one in data.series:
        for run in one.runs:
            rows += _failed_rows(one, run.record.round + 1, run.requests)
    note = f"{MAX_ROWS} of {len(rows):,} are shown." if len(rows) > MAX_ROWS else ""
    return Table(
        "Failed requests",
        ("Scenario", "Case", "Arm", "Round", "Request", "Reason", "Error"),
        tuple(rows[:MAX_ROWS]),
        reason="" if rows else "None: no request of a measured run failed",
        note=note,
    )


def _failed_rows(one: Series, round_number: int, requests: pd.DataFrame) -> Iterable[tuple[Cell, ...]]:
    if "is_completed" not in requests:
        return
    for _, row in requests.loc[~requests["is_completed"].astype(bool)].iterrows():
        error = row.get("error")
        yield (
            *names(one),
            figure(round_number),
            text(str(row.get("request_id"))),
            text(_or_na(row.get("finish_reason"))),
            text(cut(error, MAX_TEXT) if isinstance(error, str) else "no error text", "wrong"),
        )


# runs


def unmeasured_runs(data: ReportData) -> Table:
    rows = tuple(
        (
            text(data.run_labels.get(run.record.run_id, run.record.run_id)),
            text(run.record.status.value, "wrong" if run.record.status is Status.FAILED else "doubt"),
            text(run.failure.kind),
            text(cut(run.failure.message, MAX_TEXT)),
            text(cut(run.failure.detail, MAX_TEXT)),
        )
        for run in data.unmeasured
    )
    note = f"{MAX_ROWS} of {len(rows):,} are shown." if len(rows) > MAX_ROWS else ""
    reason = "" if rows else "None: every run that was started completed"
    columns = ("Run", "Status", "Failure", "What happened", "Detail")
    return Table("Failed and interrupted runs", columns, rows[:MAX_ROWS], reason, note)


def skipped_scenarios(data: ReportData) -> Table:
    rows = tuple((text(name), text(cut(reason, MAX_TEXT))) for name, reason in data.skipped)
    reason = "" if rows else "None: no scenario was skipped"
    return Table("Skipped scenarios", ("Scenario", "Why"), rows, reason)


def workload_notes(scenario: ScenarioData) -> Table:
    """What was scaled, cut or generated."""
    rows = tuple((text(note),) for note in scenario.notes)
    reason = undefined("the runs carry no notes")
    return Table("The workload: what was scaled, cut or generated", ("Note",), rows, reason)


def compilation(scenario: ScenarioData) -> tuple[Table, ...]:
    """What torch.compile did before the first run of each case and within runs; none where it is off."""
    found: dict[str, list[CompileUse]] = {}
    for series in scenario.series:
        uses = [record.compiled for record in series.records if record.compiled is not None]
        if uses:
            found.setdefault(series.case_label, []).extend(uses)
    if not found:
        return ()
    rows = tuple(
        (
            text(label),
            figure(uses[0].num_graphs),
            figure(median([use.duration_s for use in uses]), "s"),
            figure(sum(use.num_within for use in uses)),
        )
        for label, uses in found.items()
    )
    columns = ("Case", "Graphs", "Compiling them", "Compiled within runs")
    note = "Before the first run, so that no figure of a run includes it."
    return (Table("The forward under torch.compile", columns, rows, "", note),)


def image_attention(scenario: ScenarioData) -> Table:
    """How the image rows of each case's model attend."""
    told = {
        (one.case_label, record.image_attention)
        for one in scenario.series
        for record in one.records
        if record.image_attention is not None
    }
    rows = tuple((text(case), text(_IMAGE_ATTENTION[kind])) for case, kind in sorted(told))
    reason = undefined("a text model, or a folder from before it was recorded")
    return Table("The model: what image rows attend to", ("Case", "image_attention"), rows, reason)


def findings(data: ReportData) -> Table:
    rows = tuple(
        (
            text(data.run_labels.get(finding.run_id, finding.run_id)),
            text(finding.rule, "wrong"),
            text(cut(finding.message, MAX_TEXT)),
            text(cut(finding.remedy, MAX_TEXT)),
        )
        for finding in data.findings
    )
    note = f"{MAX_ROWS} of {len(rows):,} are shown." if len(rows) > MAX_ROWS else ""
    columns = ("Run", "Rule broken", "Seen", "Remedy")
    return Table("Validity", columns, rows[:MAX_ROWS], "" if rows else "None: no rule was broken", note)


def definitions(data: ReportData) -> Table:
    rows = tuple((text(one.name), text(one.unit), text(one.text)) for one in data.definitions)
    return Table(
        "Definitions", ("Metric", "Unit", "What it is"), rows, "" if rows else undefined("none recorded")
    )


def facts(caption: str, values: Mapping[str, Any], absent: str) -> Table:
    """Nested values as rows of dotted key and text; `absent` says what a missing value means."""
    rows = tuple((text(key), text(cut(value, MAX_TEXT))) for key, value in _flat(values, absent))
    return Table(caption, ("Fact", "Value"), rows, "" if rows else undefined("nothing was recorded"))


def _flat(values: Mapping[str, Any], absent: str, prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, absent, f"{name}.")
        elif value is None:
            yield name, absent
        elif isinstance(value, str):
            yield name, value
        else:
            yield name, json.dumps(value, ensure_ascii=False, default=str)
