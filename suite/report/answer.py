"""A scenario's answer in points, made from its runs: which arm, how sure, what it costs, tokens, beware."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from suite.bill import ArmBill
from suite.report import choice, prices
from suite.report.data import ScenarioData, Series
from suite.report.point import Point
from suite.report.tables import Mark, token_mark, token_verdicts, tokens_cell
from suite.report.wording import listed, median, number, plural, quantity, sample_count, spread
from suite.validity.rule import broken_rules

HIT_RATE = "prefix_cache_hit_rate"
_MAX_GOODPUTS = 4
AGAINST = ", held against transformers alone"


def points(scenario: ScenarioData) -> tuple[Point, ...]:
    """What the first screen says of a scenario, the most wanted first."""
    billed = [one.bill for one in scenario.series if one.bill is not None]
    if not scenario.measured and not billed:
        failed = sum(one.num_failed for one in scenario.series)
        interrupted = sum(one.num_interrupted for one in scenario.series)
        told = f"Cannot tell: no measured run completed ({failed} failed, {interrupted} interrupted)."
        if scenario.thinned_bill:
            told = f"Not shown: {scenario.thinned_bill}."
        return (Point("Answer", told, "doubt"),)
    first = choice.points(scenario) if scenario.measured else (_of_bills(billed),)
    tokens = _tokens(scenario)
    found = [*first, *prices.points(scenario)]
    found.insert(0 if tokens.mark == "wrong" else len(found), tokens)  # a wrong arm's speed means nothing
    found += [_also(scenario), _beware(scenario)]
    return tuple(point for point in found if point.text)


def _of_bills(bills: Sequence[ArmBill]) -> Point:
    """For a folder of `suite cost`, which measures no round by itself."""
    decided = sum(line.cost is not None and line.cost.is_decided for bill in bills for line in bill.lines)
    lines = sum(len(bill.lines) for bill in bills)
    arms = listed(list(dict.fromkeys(bill.arm for bill in bills)))
    return Point(
        "What this is",
        f"The bill of a step of {arms}: what its commands cost in place, {decided} of "
        f"{plural(lines, 'line')} decided. No arms were compared.",
    )


def _tokens(scenario: ScenarioData) -> Point:
    told = _tokens_of_measured(scenario) if scenario.measured else _tokens_of_all(scenario)
    return Point("Tokens", told and f"{told}{_rule(scenario)}", _tokens_mark(scenario))


def _rule(scenario: ScenarioData) -> str:
    """By which rule they were judged, where it is not that of float32 alone."""
    dtypes = list(dict.fromkeys(record.dtype for one in scenario.series for record in one.records))
    return "" if dtypes in ([], ["float32"]) else f" Judged by the rule for {listed(dtypes)} (see the notes)."


def _tokens_of_measured(scenario: ScenarioData) -> str:
    told = _verdict([one for one in scenario.measured if one.control is None], scenario)
    controls = [one for one in scenario.measured if one.control is not None]
    if controls:
        has_cases = len({one.case_id for one in scenario.series}) > 1
        which = "; ".join(f"{one.label if has_cases else one.arm} {one.control}" for one in controls)
        told = f"{told} Arms that are wrong by design, not among these: {which}.".lstrip()
    return told


def _tokens_mark(scenario: ScenarioData) -> Mark:
    marks = {token_mark(one) for one in scenario.series if one.control is None and token_verdicts(one)}
    order: tuple[Mark, ...] = ("wrong", "doubt", "right")
    return next((mark for mark in order if mark in marks), "doubt")


def _tokens_of_all(scenario: ScenarioData) -> str:
    """Of every run, measured or not."""
    verdicts = [verdict for one in scenario.series for verdict in token_verdicts(one)]
    checked, wrong = (sum(getattr(one, name) for one in verdicts) for name in ("num_checked", "num_wrong"))
    if not checked:
        return "Cannot tell whether tokens are right: none was checked."
    return (
        f"Tokens are WRONG: {wrong:,} of {checked:,}."
        if wrong
        else f"All {checked:,} output tokens checked are right{AGAINST}."
    )


def _verdict(meant_right: list[Series], scenario: ScenarioData) -> str:
    if not meant_right:
        return ""
    wrong = [one for one in meant_right if token_mark(one) == "wrong"]
    unchecked = [one for one in meant_right if token_mark(one) == "doubt"]
    if wrong:
        where = "; ".join(_told(scenario, one) for one in wrong[:3])
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return f"Tokens are WRONG: {where}{more}."
    if unchecked:
        return f"Cannot tell whether tokens are right: {_told(scenario, unchecked[0])}."
    verdicts = [verdict for one in meant_right for verdict in token_verdicts(one)]
    requests = sum(verdict.num_requests_right for verdict in verdicts)
    tokens = sum(verdict.num_checked for verdict in verdicts)
    ties = sum(verdict.num_ties for verdict in verdicts)
    return (
        f"All {tokens:,} output tokens checked are right{AGAINST} ({plural(requests, 'request')} in "
        f"{plural(len(verdicts), 'run')}, warm-up included; {plural(ties, 'tie')})."
    )


def _told(scenario: ScenarioData, one: Series) -> str:
    """The tokens' verdict without its sign, and whose it is where there are several."""
    verdict = tokens_cell(one).lines[0].text.lstrip("✗? ")
    return verdict if len(scenario.series) == 1 else f"{one.label}: {verdict}"


def _also(scenario: ScenarioData) -> Point:
    told = (_goodput(scenario), _cache(scenario), _drafts(scenario))
    return Point("Also", " ".join(text.strip() for text in told if text))


def _goodput(scenario: ScenarioData) -> str:
    """The share of requests that met the gates, where the scenario sets any."""
    found = [
        (one, one.values("request_goodput")) for one in scenario.measured if one.values("request_goodput")
    ]
    if not found:
        return ""
    gates = ", ".join(f"{name} {number(float(ms))} ms" for name, ms in scenario.gates.items())
    shown = "; ".join(
        f"{one.label if len(found) > 1 else 'median'} {quantity(median(values), 'req/s')} "
        f"({one.rounds_used('request_goodput')})"
        for one, values in found[:_MAX_GOODPUTS]
    )
    more = f"; {len(found) - _MAX_GOODPUTS} more below" if len(found) > _MAX_GOODPUTS else ""
    return f"Goodput{f' under {gates}' if gates else ''}: {shown}{more}."


def _cache(scenario: ScenarioData) -> str:
    """What the prefix cache gave, where it was on."""
    rates = [rate for one in scenario.measured for rate in one.values(HIT_RATE)]
    if not any(one.has_cache for one in scenario.measured):
        return ""
    if not rates:
        return " Prefix cache hits cannot be told: no request was admitted."
    n = f"{spread(rates, '%')}, {sample_count(len(rates), 'round')} with prefix caching"
    return f" The prefix cache gave a median of {quantity(median(rates), '%')} of prompt positions ({n})."


def _drafts(scenario: ScenarioData) -> str:
    """How many drafts were right, where there were any."""
    drafting = [one for one in scenario.measured if one.has_drafts]
    if not drafting:
        return ""
    drafted = sum(sum(one.values("drafted_tokens")) for one in drafting)
    accepted = sum(sum(one.values("accepted_tokens")) for one in drafting)
    if not drafted:
        return " Speculation was on, and no token was drafted."
    share = quantity(100 * accepted / drafted, "%")
    runs = plural(sum(len(one.runs) for one in drafting), "round")
    return f" Of {number(drafted)} tokens drafted in {runs} {share} were accepted."


def _beware(scenario: ScenarioData) -> Point:
    parts = [*_lost_runs(scenario), *_doubted_arms(scenario)]
    told = [f"{', '.join(parts)}; see below."] if parts else []
    warned = [(one.label, one.warnings[0]) for one in scenario.measured if one.warnings]
    told += [f"{label}: {text}." for label, text in warned[:1]]
    told += [f"The same holds for {len(warned) - 1} more."] if len(warned) > 1 else []
    waiting = [one for one in scenario.series if one.silent_waits]
    if waiting:
        kinds = plural(sum(len(one.silent_waits) for one in waiting), "kind")
        told.append(f"{kinds} of silent waits in {plural(len(waiting), 'arm')}; see below.")
    return Point("Beware", " ".join(told), "doubt")


def _lost_runs(scenario: ScenarioData) -> Iterator[str]:
    """ "1 run failed", "2 runs INVALID (foreign-load)"; of those that did not come to their end once."""
    for count, what in (
        (sum(one.num_failed for one in scenario.series), "failed"),
        (sum(one.num_interrupted for one in scenario.series), "interrupted"),
    ):
        if count:
            yield f"{plural(count, 'run')} {what}"
    completed = {record.run_id for one in scenario.series for record in one.records if record.is_completed}
    broken = broken_rules(finding for one in scenario.series for finding in one.findings)
    invalid = [rules for run_id, rules in broken.items() if run_id in completed]
    if invalid:
        which = ", ".join(dict.fromkeys(rule for rules in invalid for rule in rules))
        yield f"{plural(len(invalid), 'run')} INVALID ({which})"


def _doubted_arms(scenario: ScenarioData) -> Iterator[str]:
    in_doubt = [one for one in scenario.series if one.doubts]
    if in_doubt:
        which = ", ".join(dict.fromkeys(doubt.rule for one in in_doubt for doubt in one.doubts))
        first = in_doubt[0]
        seen = first.doubts[0].message
        told = f" ({first.arm}: {seen})" if seen else ""
        yield f"{plural(len(in_doubt), 'arm')} in doubt: {which}{told}"
