"""Attribution: what one choice of a runner costs, from arms that ran the very same steps.

Pure: records in, lines out. Each line but those against `ids` compares two arms that differ in one choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from runner.inputs.arms import ARMS, Arm
from runner.measure import StepRecord
from suite.archive_note import ListedTimes
from suite.arms import named_arm
from suite.bill import ArmBill
from suite.checks import Broken, Finding, broken_rules
from suite.comparison import invalid_rounds, left_out_rounds
from suite.ratios import Interval, Ratio, factor, paired_ratio, with_left_out
from suite.record import RunRecord, Status, StepListRecord
from suite.verdict import UNKNOWN_FLOOR, Floor, Word, adjusted_p_values, decide, noise_floor


@dataclass(frozen=True, slots=True)
class Line:
    """`over` / `under` in time a token, on one kind of step of one case.

    `ratio` is None exactly where no rounds were compared: the arms run the same commands there, one is
    missing, or the line does not apply; `reason` says which. `verdict` is of `over`: it is faster, slower,
    equal... `factors`: lines whose ratios multiply to this one's, made from the same rounds. `note`: what
    belongs beside it.
    """

    scenario: str
    case_id: str
    case_label: str
    name: str  # such as "flag upload"
    over: str
    under: str
    kind: str  # of step: suite.metrics.STEP_KINDS
    ratio: Ratio | None
    verdict: Word
    reason: str
    floor: Floor = UNKNOWN_FLOOR
    factors: tuple[Line, ...] = ()
    note: str = ""

    @property
    def value(self) -> float | None:
        return None if self.ratio is None else self.ratio.value

    @property
    def interval(self) -> Interval | None:
        return None if self.ratio is None else self.ratio.interval

    @property
    def product(self) -> float | None:
        """Of the factors; None where there are none, or one has no ratio."""
        return factor(self._product_log)

    @property
    def is_product(self) -> bool | None:
        """Whether the ratio is the product of its factors, as it must be; None where there is none."""
        log = None if self.ratio is None else self.ratio.mean_log
        return None if log is None or self._product_log is None else abs(self._product_log - log) < _TINY

    @property
    def _product_log(self) -> float | None:
        logs = [one.ratio.mean_log for one in self.factors if one.ratio is not None]
        known = [log for log in logs if log is not None]
        return sum(known) if known and len(known) == len(self.factors) else None

    def document(self) -> dict[str, object]:
        """For JSON; ratios are factors, so that 1.03 is 3 % more time a token."""
        interval = self.interval
        return {
            "scenario": self.scenario,
            "case_id": self.case_id,
            "case_label": self.case_label,
            "line": self.name,
            "over": self.over,
            "under": self.under,
            "kind": self.kind,
            "ratio": self.value,
            "interval_low": None if interval is None else factor(interval.low),
            "interval_high": None if interval is None else factor(interval.high),
            "num_rounds": 0 if self.ratio is None else self.ratio.num_rounds,
            "noise_floor": factor(self.floor.value),
            "noise_floor_reason": self.floor.reason,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "note": self.note,
            "product_of_factors": self.product,
            "is_product_of_factors": self.is_product,
            "factors": [one.document() for one in self.factors],
        }


@dataclass(frozen=True, slots=True)
class Pair:
    """A line of the table before anything was measured."""

    name: str
    over: str
    under: str


OVERLAP = Pair("overlap", "async-rows", "sync-rows")
PRICE = Pair("price of disabling async", "refresh", "gated")
SWITCH = Pair("price of the switch", "refresh", "ids")
CEILING = "distance to the ceiling"
CEILING_ARM = "ids"

ONE_CHOICE = (
    Pair("flag upload", "async-rows", "async-fill"),
    Pair("masked merge", "async-fill", "skip"),
    Pair("merge: where over overlay", "resident-where", "resident"),
    Pair("merge: overlay over fused", "resident", "fused"),
    Pair("embedding copy under async", "refresh", "async-rows"),
    Pair("embedding copy under sync", "gated", "sync-rows"),
    OVERLAP,
    PRICE,
)
"""Each of two arms that differ in one choice, so that the choice is what the ratio is of."""

PRICE_FACTORS = (
    Pair("embedding copy under async", "refresh", "async-rows"),
    OVERLAP,
    Pair("embedding copy under sync, undone", "sync-rows", "gated"),
)

_PRICE_ARMS = tuple(dict.fromkeys(arm for pair in PRICE_FACTORS for arm in (pair.over, pair.under)))

KINDS = ("decode", "mixed", "prefill")
SAME_COMMANDS = "same commands"
NOT_GATED = (
    "n/a: not gated for this model (the gate bars async only from multimodal models with prompt_embeds), "
    "so async was never disabled"
)
SUPPLIES_ROWS = "n/a: requests bring embeddings here; it is of traffic that brings none"
A_FACTOR = "a factor of the price, of its rounds; the verdict stands at a line of its own"
WRONG_TOKENS = "n/a: wrong tokens, speed not judged"
FILL = "flags"
"""The span of the device fill: in the masked merge, and missing from the flag upload."""

_WITH_FILL = ("flag upload", "masked merge")
_TINY = 1e-9

_NONE_LISTED: Mapping[str, ListedTimes] = MappingProxyType({})

StepsOf = Callable[[str], Sequence[StepRecord]]
Times = Mapping[int, float]
"""round -> time a token"""


def attribution(
    runs: Sequence[RunRecord],
    steps_of: StepsOf,
    findings: Sequence[Finding] = (),
    bills: Sequence[ArmBill] = (),
    listed: Mapping[str, ListedTimes] = _NONE_LISTED,
) -> tuple[Line, ...]:
    """The table of every case whose traffic is a list of steps, in the order the cases ran.

    Only runs that completed, kept to their list and broke no rule enter. `bills` tell what the device fill
    costs by itself. `listed`: by run_id, what was made of all steps where they are no longer here.
    """
    invalid = broken_rules(findings)
    cases: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        if run.step_list is not None and not run.repeats:
            cases.setdefault((run.scenario, run.case_id), []).append(run)
    times_of = partial(_listed_times, steps_of, listed)
    return tuple(line for group in cases.values() for line in _Case(group, times_of, invalid, bills).lines())


def listed_times(run: RunRecord, steps: Sequence[StepRecord]) -> ListedTimes:
    """What the attribution needs of a run whose traffic is a list of steps; `steps` are all of its steps."""
    return ListedTimes(time_per_token(steps, run.is_lead_in), any(step.num_supplied_rows for step in steps))


def _listed_times(steps_of: StepsOf, listed: Mapping[str, ListedTimes], run: RunRecord) -> ListedTimes:
    found = listed.get(run.run_id)
    return listed_times(run, steps_of(run.run_id)) if found is None else found


def time_per_token(
    steps: Sequence[StepRecord], is_left_out: Callable[[int], bool] = lambda _: False
) -> dict[str, float]:
    """For each kind of step: ns from the end of the step before to its own, over all tokens computed.

    Those ends are when the host has a step's tokens, under sync and async alike, so that the times of all
    steps add up to the run's. `is_left_out` of a step id: it only ends the step before.
    """
    durations, tokens = Counter[str](), Counter[str]()
    before_ns: int | None = None
    for step in sorted(steps, key=lambda step: step.step_id):
        if not is_left_out(step.step_id):
            durations[step.kind] += step.end_ns - (step.start_ns if before_ns is None else before_ns)
            tokens[step.kind] += step.num_tokens
        before_ns = step.end_ns
    return {kind: durations[kind] / tokens[kind] for kind in durations if tokens[kind]}


def preset_name(name: str) -> str:
    """The preset that an arm given by its four choices is; its own name where it is none."""
    arm = named_arm(name)
    same = (one.name for one in ARMS.values() if _choices(one) == _choices(arm))
    return next(same, name)


def _choices(arm: Arm) -> tuple[object, ...]:
    return arm.scheduling, arm.choices, arm.rules


class _Case:
    """The runs of one case, and what of them may be compared."""

    def __init__(
        self,
        runs: Sequence[RunRecord],
        times_of: Callable[[RunRecord], ListedTimes],
        invalid: Broken,
        bills: Sequence[ArmBill],
    ) -> None:
        self._first = runs[0]
        self._runs: dict[str, list[RunRecord]] = {}
        for run in runs:
            self._runs.setdefault(preset_name(run.arm), []).append(run)
        self._times_of = times_of
        self._invalid = invalid
        self._bills = [bill for bill in bills if (bill.scenario, bill.case_id) == _case_key(self._first)]
        self._times: dict[tuple[str, bool, str], dict[int, float]] = {}
        for run in runs:
            self._measure(run)

    def lines(self) -> tuple[Line, ...]:
        """Line by line, each on every kind of step there is, with Holm's correction over all of them."""
        kinds = {kind for run in self._listed() for kind in run.commands}
        kinds |= {kind for _, _, kind in self._times}
        found = [self._line(pair, kind) for pair in self._pairs() for kind in KINDS if kind in kinds]
        return tuple(_decided(found))

    def _listed(self) -> list[StepListRecord]:
        return [run.step_list for runs in self._runs.values() for run in runs if run.step_list is not None]

    def _pairs(self) -> list[Pair]:
        ceilings = [Pair(CEILING, arm, CEILING_ARM) for arm in self._runs if arm != CEILING_ARM]
        return [*ONE_CHOICE, SWITCH, *ceilings]

    def _measure(self, run: RunRecord) -> None:
        listed = run.step_list
        is_usable = run.is_timed_alike and run.status is Status.COMPLETED and run.run_id not in self._invalid
        if listed is None or listed.difference is not None or not is_usable:
            return
        for kind, time in self._times_of(run).ns_per_token.items():
            self._times.setdefault((preset_name(run.arm), run.is_aa, kind), {})[run.round] = time

    def _of(self, arm: str, kind: str, *, is_aa: bool = False) -> Times:
        return self._times.get((arm, is_aa, kind), {})

    def _line(self, pair: Pair, kind: str) -> Line:
        """Without a verdict yet, unless there can be none."""
        reason = self._why_none(pair, kind)
        blank = self._blank(pair, kind, reason or "")
        if reason is not None:
            return blank
        rounds = self._rounds_of_price(kind) if pair == PRICE else None
        blank = replace(
            blank,
            ratio=self._ratio(pair, kind, rounds),
            floor=self._floor(kind),
            verdict=Word.CANNOT_TELL,
            note=self._fill_note(kind) if pair.name in _WITH_FILL else "",
        )
        return self._split(blank, kind, rounds) if pair == PRICE else blank

    def _blank(self, pair: Pair, kind: str, reason: str) -> Line:
        scenario, case_id = _case_key(self._first)
        label = self._first.case_label
        return Line(scenario, case_id, label, pair.name, pair.over, pair.under, kind, None, Word.NONE, reason)

    def _why_none(self, pair: Pair, kind: str) -> str | None:
        """Why there is no ratio; None where there may be one."""
        for arm in (pair.over, pair.under):
            runs = self._runs.get(arm)
            if not runs:
                return f"n/a: the scenario has no arm {arm}"
            if any(run.is_control or (run.tokens and run.tokens.num_wrong) for run in runs):
                return WRONG_TOKENS
            if arm == PRICE.under and any(run.scheduling == "async" for run in runs):
                return NOT_GATED
        if pair == SWITCH and self._supplies_rows():
            return SUPPLIES_ROWS
        return SAME_COMMANDS if self._same_commands(pair, kind) else None

    def _same_commands(self, pair: Pair, kind: str) -> bool:
        over, under = (self._commands(arm, kind) for arm in (pair.over, pair.under))
        return over is not None and over == under

    def _commands(self, arm: str, kind: str) -> str | None:
        listed = [run.step_list for run in self._runs[arm] if run.step_list is not None]
        return listed[0].commands.get(kind) if listed else None

    def _supplies_rows(self) -> bool:
        runs = [run for run in self._runs.get(SWITCH.over, ()) if run.status is Status.COMPLETED]
        return any(self._times_of(run).supplies_rows for run in runs[:1])

    def _rounds_of_price(self, kind: str) -> frozenset[int] | None:
        """Those that all four arms of the price have; None where an arm of its factors was not run."""
        if not all(arm in self._runs for arm in _PRICE_ARMS):
            return None
        return frozenset.intersection(*(frozenset(self._of(arm, kind)) for arm in _PRICE_ARMS))

    def _ratio(self, pair: Pair, kind: str, rounds: frozenset[int] | None = None) -> Ratio:
        """Of `rounds` alone where told: those of the price, which is of four arms."""
        arms = (pair.over, pair.under) if rounds is None else _PRICE_ARMS
        runs = [run for arm in arms for run in self._runs.get(arm, ()) if run.is_measured]
        bad = invalid_rounds((runs, self._invalid))
        over, under = (
            {
                number: time
                for number, time in self._of(arm, kind).items()
                if number not in bad and (rounds is None or number in rounds)
            }
            for arm in (pair.over, pair.under)
        )
        return with_left_out(paired_ratio(over, under), left_out_rounds((runs, self._invalid)))

    def _split(self, line: Line, kind: str, rounds: frozenset[int] | None) -> Line:
        """The price with the factors it is the product of."""
        reasons = [self._why_none(pair, kind) for pair in PRICE_FACTORS]
        missing = next((reason for reason in reasons if reason not in (None, SAME_COMMANDS)), None)
        if missing is not None:
            return replace(line, note=f"not split into factors: {missing.removeprefix('n/a: ')}")
        factors = tuple(
            replace(
                self._blank(
                    pair, kind, A_FACTOR if reason is None else f"{SAME_COMMANDS}: what is seen is noise"
                ),
                ratio=self._ratio(pair, kind, rounds),
            )
            for pair, reason in zip(PRICE_FACTORS, reasons, strict=True)
        )
        return replace(line, factors=factors)

    def _floor(self, kind: str) -> Floor:
        """Of the arm that ran twice a round, on this kind of step."""
        twice = next((arm for arm, is_aa, of in self._times if is_aa and of == kind), None)
        if twice is None:
            return UNKNOWN_FLOOR
        return noise_floor(paired_ratio(self._of(twice, kind, is_aa=True), self._of(twice, kind)))

    def _fill_note(self, kind: str) -> str:
        bills = [bill for bill in self._bills if preset_name(bill.arm) == "async-fill"]
        costs = [one.cost for bill in bills for one in bill.lines if (one.span, one.kind) == (FILL, kind)]
        cost = next((cost for cost in costs if cost is not None), None)
        if cost is None:
            return (
                f"the device fill of {FILL} is in the masked merge; amplify: {{{FILL}: [1, 33]}} measures it"
            )
        ends = "" if cost.low_us is None else f" ({cost.low_us:.3g} to {cost.high_us:.3g} us)"
        return f"the device fill, which is in the masked merge: {cost.mean_us:.3g} us a step{ends}, amplified"


def _case_key(run: RunRecord) -> tuple[str, str]:
    return run.scenario, run.case_id


def _decided(found: Sequence[Line]) -> Iterator[Line]:
    """With the verdicts, Holm's correction being over all lines of the case that have a p value."""
    adjusted = iter(adjusted_p_values([(line.ratio, line.floor) for line in found if line.ratio is not None]))
    for line in found:
        if line.ratio is None:
            yield line
            continue
        verdict = decide(line.ratio, line.floor, "lower", next(adjusted))
        yield replace(line, verdict=verdict.word, reason=verdict.reason)
