"""A scenario's answer in words, made from its runs: tokens, then throughput, then what to beware."""

from __future__ import annotations

from collections.abc import Sequence

from suite.bill import ArmBill
from suite.ratios import MIN_ROUNDS
from suite.report.comparison_text import sentences
from suite.report.data import ScenarioData, Series
from suite.report.tables import token_mark, token_verdicts, tokens_cell, why_no_speed
from suite.report.wording import median, number, plural, quantity, sample_count, spread

THROUGHPUT = "output_throughput"
HIT_RATE = "prefix_cache_hit_rate"


def answer(scenario: ScenarioData) -> str:
    billed = [one.bill for one in scenario.series if one.bill is not None]
    if not scenario.measured and billed:
        return f"{_tokens_of_all(scenario)} {_of_bills(billed)}"
    if not scenario.measured:
        failed = sum(one.num_failed for one in scenario.series)
        interrupted = sum(one.num_interrupted for one in scenario.series)
        return f"Cannot tell: no measured run completed ({failed} failed, {interrupted} interrupted)."
    return (
        f"{_tokens(scenario)} {_throughput(scenario)}{_cache(scenario)}{_drafts(scenario)}{_beware(scenario)}"
    )


def _tokens_of_all(scenario: ScenarioData) -> str:
    """Of every run, measured or not."""
    verdicts = [verdict for one in scenario.series for verdict in token_verdicts(one)]
    checked, wrong = (sum(getattr(one, name) for one in verdicts) for name in ("num_checked", "num_wrong"))
    if not checked:
        return "Cannot tell whether tokens are right: none was checked."
    return (
        f"Tokens are WRONG: {wrong:,} of {checked:,}."
        if wrong
        else f"All {checked:,} output tokens are right."
    )


def _of_bills(bills: Sequence[ArmBill]) -> str:
    """For a folder of `suite cost`, which measures no round by itself."""
    told = []
    for bill in bills:
        decided = sum(line.cost is not None and line.cost.is_decided for line in bill.lines)
        told.append(f"{bill.arm}: {decided} of {plural(len(bill.lines), 'line')} decided")
    return f"What the commands of a step cost in place ({'; '.join(told)}): see the bill below."


def _tokens(scenario: ScenarioData) -> str:
    told = _verdict([one for one in scenario.measured if one.control is None], scenario)
    controls = [one for one in scenario.measured if one.control is not None]
    if not controls:
        return told
    which = "; ".join(f"{one.label}: {one.control}" for one in controls)
    return f"{told} Negative controls: {which}.".lstrip()


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
        f"All {tokens:,} output tokens checked are right ({plural(requests, 'request')} in "
        f"{plural(len(verdicts), 'run')}, warm-up included; {plural(ties, 'tie')})."
    )


def _told(scenario: ScenarioData, one: Series) -> str:
    """The tokens' verdict without its sign, and whose it is where there are several."""
    verdict = tokens_cell(one).lines[0].text.lstrip("✗? ")
    return verdict if len(scenario.series) == 1 else f"{one.label}: {verdict}"


def _throughput(scenario: ScenarioData) -> str:
    told = [one for one in scenario.measured if one.values(THROUGHPUT)]
    judged = [one for one in told if not why_no_speed(one)]
    if not told:
        return f"Throughput cannot be told: {scenario.measured[0].reason(THROUGHPUT)}."
    if not judged:
        return "The speed of a run with wrong tokens is not judged."
    if len(judged) == 1:
        which = "" if len(scenario.series) == 1 else f" of {judged[0].label}"
        sure = "" if len(judged[0].values(THROUGHPUT)) > 1 else " How sure that is one round cannot tell."
        return f"Output throughput{which}: median {_rate(judged[0])}.{sure}"
    compared = sentences(scenario.comparisons)
    return " ".join((_medians(judged), *compared)).lstrip() if compared else _extremes(judged)


def _medians(judged: list[Series]) -> str:
    """Of the arms of the only case."""
    if len({one.case_id for one in judged}) > 1:
        return ""
    return f"Median output throughput: {'; '.join(f'{one.arm} {_rate(one)}' for one in judged)}."


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


def _extremes(judged: list[Series]) -> str:
    """The slowest and the fastest, and whether their rounds lie apart."""
    ordered = sorted(judged, key=lambda one: median(one.values(THROUGHPUT)))
    low, high = ordered[0], ordered[-1]
    text = (
        f"Median output throughput of {len(judged)} pairs of case and arm: lowest {_rate(low)} with "
        f"{low.label}, highest {_rate(high)} with {high.label}."
    )
    num_rounds = min(len(low.values(THROUGHPUT)), len(high.values(THROUGHPUT)))
    if num_rounds < MIN_ROUNDS:
        told = "one round cannot tell" if num_rounds == 1 else f"{num_rounds} rounds cannot tell"
        return f"{text} Whether they differ {told}: at least {MIN_ROUNDS} are needed."
    if max(low.values(THROUGHPUT)) >= min(high.values(THROUGHPUT)):
        return f"{text} Whether they differ one cannot tell: their rounds overlap."
    return f"{text} Their rounds do not overlap."


def _rate(one: Series) -> str:
    values = one.values(THROUGHPUT)
    middle = quantity(median(values), "tok/s")
    return f"{middle} ({spread(values, 'tok/s')}, {sample_count(len(values), 'round')})"


def _beware(scenario: ScenarioData) -> str:
    failed = sum(one.num_failed for one in scenario.series)
    interrupted = sum(one.num_interrupted for one in scenario.series)
    invalid = sum(len({finding.run_id for finding in one.findings}) for one in scenario.series)
    parts = [
        f"{plural(count, 'run')} {what}"
        for count, what in ((failed, "failed"), (interrupted, "interrupted"), (invalid, "INVALID"))
        if count
    ]
    told = f" Beware: {', '.join(parts)} (see below)." if parts else ""
    warnings = dict.fromkeys((one.label, text) for one in scenario.measured for text in one.warnings[:1])
    more = f" The same holds for {len(warnings) - 1} more." if len(warnings) > 1 else ""
    for label, text in list(warnings)[:1]:
        told += f" Beware of {label}: {text}.{more}"
    waiting = [one for one in scenario.series if one.silent_waits]
    if waiting:
        kinds = plural(sum(len(one.silent_waits) for one in waiting), "kind")
        told += f" Beware: {kinds} of silent waits in {plural(len(waiting), 'arm')} (see below)."
    return told
