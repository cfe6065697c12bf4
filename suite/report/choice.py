"""Which arm to use and how sure that is: what a scenario's comparisons come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from suite.comparison import Comparison
from suite.metrics import DEFINITIONS
from suite.ratios import MIN_ROUNDS
from suite.report.comparison_text import METRIC_WORDS, sentences, size_text
from suite.report.data import ScenarioData, Series
from suite.report.point import Point
from suite.report.tables import why_no_speed
from suite.report.wording import listed, median, plural, quantity, spread
from suite.verdict import Word

THROUGHPUT = "output_throughput"
_WHICH, _SURE, _SPEED = "Which arm", "How sure", "Speed"
_MAX_ARMS = 3
_MAX_SENTENCES = 1


def points(scenario: ScenarioData) -> tuple[Point, ...]:
    """For a scenario with at least one measured run."""
    told = [one for one in scenario.measured if one.values(THROUGHPUT)]
    judged = [one for one in told if not why_no_speed(one)]
    if not told:
        reason = scenario.measured[0].reason(THROUGHPUT)
        return (Point(_SPEED, f"Throughput cannot be told: {reason}.", "doubt"),)
    if not judged:
        return (Point(_SPEED, "The speed of a run with wrong tokens is not judged.", "doubt"),)
    compared = [one for one in scenario.comparisons if one.verdict.word is not Word.NONE]
    if compared:
        return _chosen(scenario, compared)
    if len(judged) == 1:
        return (_alone(scenario, judged[0]),)
    return (Point(_SPEED, _extremes(judged)),)


def _alone(scenario: ScenarioData, one: Series) -> Point:
    which = "" if len(scenario.series) == 1 else f" of {one.label}"
    sure = "" if len(one.values(THROUGHPUT)) > 1 else " How sure that is one round cannot tell."
    return Point(
        _SPEED,
        f"Output throughput{which}: median {_rate(one)}.{sure} No other arm to hold it against was judged.",
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    """`arm` is the one to use, where one is."""

    text: str
    is_decided: bool = False
    arm: str | None = None


def _chosen(scenario: ScenarioData, compared: Sequence[Comparison]) -> tuple[Point, Point]:
    metric, ceilings = compared[0].metric, ceiling_arms(scenario)
    usable = [one for one in compared if one.arm not in ceilings]
    if compared[0].reference in ceilings:
        choice = _Choice(
            f"Cannot tell: the arms were held against {compared[0].reference}, which takes token ids and so "
            "is no choice for these prompts."
        )
    elif len({one.case_id for one in compared}) == 1:
        choice = _of_one_case(usable, metric)
    else:
        choice = _of_cases(usable, metric)
    evidence = _how_sure(scenario, usable or compared, metric, choice.arm)
    doubts = _doubts(scenario, compared) if choice.is_decided else ""
    return (
        Point(_WHICH, f"{choice.text}{doubts}", "right" if choice.is_decided and not doubts else "doubt"),
        Point(_SURE, f"{evidence}{_told_of(ceilings)}", "" if choice.is_decided else "doubt"),
    )


def _doubts(scenario: ScenarioData, compared: Sequence[Comparison]) -> str:
    """The rules that the rounds of a compared arm broke, taken together; a run that broke one is left out."""
    arms = {one.arm for one in compared} | {one.reference for one in compared}
    rules = dict.fromkeys(doubt.rule for one in scenario.series if one.arm in arms for doubt in one.doubts)
    return f" In doubt: {', '.join(rules)} (see Beware)." if rules else ""


def _told_of(ceilings: frozenset[str]) -> str:
    if not ceilings:
        return ""
    is_one = "is a ceiling" if len(ceilings) == 1 else "are ceilings"
    return f" {listed(sorted(ceilings))} {is_one}, with prompts as token ids, and no choice here."


def ceiling_arms(scenario: ScenarioData) -> frozenset[str]:
    """Arms that were given token ids where other arms of the scenario were given embeddings."""
    supplied: dict[str, bool] = {}
    for one in scenario.measured:
        for run in one.runs:
            if "num_supplied_tokens" in run.requests:
                has_any = bool((run.requests["num_supplied_tokens"] > 0).any())
                supplied[one.arm] = supplied.get(one.arm, False) or has_any
    if not any(supplied.values()):
        return frozenset()
    return frozenset(arm for arm, has_any in supplied.items() if not has_any)


def _gain(one: Comparison) -> float:
    """The log ratio, positive where the arm is better than its reference."""
    log = one.ratio.mean_log or 0.0
    return log if DEFINITIONS[one.metric].better == "higher" else -log


def _of_one_case(usable: Sequence[Comparison], metric: str) -> _Choice:
    """The arm to use, where one is known to be better than the reference; `metric` is what decides first.

    An arm that is slower in any metric is not the one to use, however much faster it is in another.
    """
    if not usable:
        return _Choice("Cannot tell: only the reference arm and a ceiling were judged.")
    reference, arms = usable[0].reference, list(dict.fromkeys(one.arm for one in usable))
    slower, equal = _arms_with(usable, Word.SLOWER), _arms_with(usable, Word.EQUAL)
    faster = [one for one in usable if one.metric == metric and one.verdict.word is Word.FASTER]
    faster = sorted((one for one in faster if one.arm not in slower), key=_gain, reverse=True)
    both = [arm for arm in _arms_with(usable, Word.FASTER) if arm in slower]
    torn = "; ".join(_told_of_metrics(usable, arm) for arm in both)
    if faster:
        known = f"known to be faster than {reference} in {_words(metric)}{_rivals(faster)}"
        text = f"Use {faster[0].arm}: {known}"
        more = f" Of others it depends: {torn}." if torn else ""
        return _Choice(f"{text}{more}", True, faster[0].arm)
    if torn:
        return _Choice(f"It depends: {torn}, held against {reference}.")
    if len(slower) == len(arms):
        return _Choice(f"Stay with {reference}: {_named(slower)} known to be slower.", True)
    equal = [arm for arm in equal if all(_is(one, Word.EQUAL) for one in usable if one.arm == arm)]
    if len(equal) == len(arms):
        return _Choice(f"Any of them: {_named(equal)} equal to {reference} within the noise floor.", True)
    others = [one for one in usable if _is(one, Word.FASTER)]
    where = f" in {_words(metric)}" if len({one.metric for one in usable}) > 1 else ""
    known = "".join(f" Known to be faster in {_words(one.metric)}: {one.arm}." for one in others)
    known += f" Known to be slower: {listed(slower)}." if slower else ""
    known += f" Equal within the noise floor: {listed(equal)}." if equal else ""
    return _Choice(f"Cannot tell: no arm is known to be faster than {reference}{where}.{known}")


def _is(one: Comparison, word: Word) -> bool:
    return one.verdict.word is word


def _arms_with(found: Iterable[Comparison], word: Word) -> list[str]:
    """Of which this word is said in any metric."""
    return list(dict.fromkeys(one.arm for one in found if one.verdict.word is word))


def _told_of_metrics(found: Sequence[Comparison], arm: str) -> str:
    """ "skip is faster in median E2E latency, slower in median inter-token latency"."""
    parts = []
    for word in (Word.FASTER, Word.SLOWER):
        metrics = [_words(one.metric) for one in found if one.arm == arm and one.verdict.word is word]
        parts.append(f"{word.value} in {listed(metrics)}")
    return f"{arm} is {', '.join(parts)}"


def _words(metric: str) -> str:
    return METRIC_WORDS.get(metric, metric)


def _rivals(faster: Sequence[Comparison]) -> str:
    """The end of the sentence, with others known to be faster than the reference, and whether the best one
    lies clear of them.
    """
    best, others = faster[0], faster[1:]
    if not others:
        return "."
    near = [one.arm for one in others if _overlap(best, one)]
    as_well = f"So {'is' if len(others) == 1 else 'are'} {listed([one.arm for one in others])}"
    if near:
        return f". {as_well}; which of {listed([best.arm, *near])} is the fastest one cannot tell."
    return f". {as_well}, by less."


def _overlap(one: Comparison, other: Comparison) -> bool:
    mine, its = one.ratio.interval, other.ratio.interval
    return mine is None or its is None or (mine.low <= its.high and its.low <= mine.high)


def _named(names: Sequence[str]) -> str:
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'}"


def _of_cases(usable: Sequence[Comparison], metric: str) -> _Choice:
    """How often each arm is faster in the metric that decides first, over the cases of a sweep."""
    counts: dict[str, Counter[Word]] = {}
    for one in usable:
        if one.metric == metric:
            counts.setdefault(one.arm, Counter())[one.verdict.word] += 1
    if not counts:
        return _Choice("Cannot tell: only reference arms and ceilings were judged.")
    slower = Counter(one.arm for one in usable if one.verdict.word is Word.SLOWER)  # in any metric
    ordered = sorted(counts, key=lambda arm: (slower[arm] - counts[arm][Word.FASTER], arm))
    best, reference = ordered[0], usable[0].reference
    told = "; ".join(
        f"{arm} {_counted(counts[arm])}{_elsewhere(usable, arm, metric)}" for arm in ordered[:_MAX_ARMS]
    )
    more = f"; {plural(len(ordered) - _MAX_ARMS, 'more arm')} below" if len(ordered) > _MAX_ARMS else ""
    held = f"Of {plural(counts[best].total(), 'case')}, held against {reference}: {told}{more}."
    if counts[best][Word.FASTER] and not slower[best]:
        return _Choice(f"Use {best}, nowhere known to be slower than {reference}. {held}", True, best)
    if any(count[Word.FASTER] for count in counts.values()):
        return _Choice(f"It depends on the case. {held}")
    where = f" in {_words(metric)}" if len({one.metric for one in usable}) > 1 else ""
    return _Choice(f"Cannot tell: no arm is known to be faster than {reference}{where} in any case. {held}")


def _counted(count: Counter[Word]) -> str:
    return ", ".join(f"{word.value} in {count[word]}" for word in Word if count[word])


def _elsewhere(usable: Sequence[Comparison], arm: str, metric: str) -> str:
    """In how many cases it is slower in a metric other than the first."""
    slower = Counter(
        one.metric for one in usable if one.arm == arm and one.metric != metric and _is(one, Word.SLOWER)
    )
    return "".join(f", slower in {_words(other)} in {count}" for other, count in slower.items())


def _how_sure(scenario: ScenarioData, compared: Sequence[Comparison], metric: str, arm: str | None) -> str:
    """The evidence of the arm to use, or else of the best, in the metric that decides; what could be seen."""
    ordered = sorted(compared, key=lambda one: (one.metric != metric, one.arm != arm, -_gain(one)))
    told = sentences(ordered, max_sentences=_MAX_SENTENCES)
    seen = [one.smallest_effect for one in compared if one.metric == metric]
    known = [effect for effect in seen if effect is not None]
    if known:
        told.append(
            f"A true difference of {size_text(max(known))} of {_words(metric)} is found in 4 of 5 such "
            "experiments, a smaller one less often."
        )
    told.append(_validity(scenario))
    if any(one.verdict.word is Word.CANNOT_TELL for one in compared):
        told.append(f"More rounds tell more: --rounds {_more_rounds(compared)}, or --until-precision 2%.")
    return " ".join(filter(None, told))


def _validity(scenario: ScenarioData) -> str:
    """Where no rule was broken; where one was, the page says so under a heading of its own."""
    if any(one.findings for one in scenario.series):
        return ""
    num_runs = sum(len(one.runs) for one in scenario.measured)
    return f"No rule of validity was broken in {plural(num_runs, 'run')}."


def _more_rounds(compared: Sequence[Comparison]) -> int:
    """Twice as many, and ten at least."""
    return max(2 * MIN_ROUNDS, 2 * max(one.ratio.num_rounds for one in compared))


def _extremes(judged: Sequence[Series]) -> str:
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
    return f"{middle} ({spread(values, 'tok/s')}, {one.rounds_used(THROUGHPUT)})"
