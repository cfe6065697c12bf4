"""The table of a step's bill: what repeating a command costs, beside what its own clock says."""

from __future__ import annotations

from suite.amplification import AmplifiedCost
from suite.bill import ArmBill, verdict
from suite.ratios import CONFIDENCE
from suite.report.data import Series
from suite.report.tables import Cell, Line, Table, figure, text
from suite.report.wording import plural, quantity, undefined

_CAPTION = "The bill of a step: what each command costs in place"
_COLUMNS = (
    "Steps",
    "Span",
    "µs a step",
    "Share of a step",
    "Device, each",
    "Queueing, each",
    "Verdict",
)
_NONE = "no command was repeated (`python -m suite cost SCENARIO`, or amplify: in the scenario)"


def bill(one: Series) -> Table:
    """A row for each kind of step and span whose commands were repeated."""
    if one.bill is None:
        return Table(_CAPTION, _COLUMNS, (), reason=undefined(_NONE))
    rows = tuple(_row(line) for line in one.bill.lines)
    return Table(_CAPTION, _COLUMNS, rows, reason=undefined("no whole round"), note=_note(one.bill))


def _note(told: ArmBill) -> str:
    notes = "".join(f" {note[:1].upper()}{note[1:]}." for note in told.notes)
    return (
        "µs a step: the slope of the step's time on how often its commands of that span are run, with "
        f"Student's {CONFIDENCE:.0%} interval over {plural(told.num_rounds, 'round')}. Device: the median of "
        f"one command on the device's clock, from a run with instruments.{notes}"
    )


def _row(line: AmplifiedCost) -> tuple[Cell, ...]:
    times = line.times
    ks = ", ".join(map(str, line.ks))
    n = f"{plural(line.num_steps, 'step')} of {quantity(line.step_us, 'µs')}; k {ks}"
    return (
        text(line.kind),
        Cell((Line(line.span, note=n),)),
        _cost(line),
        text(undefined("no whole round")) if line.share is None else figure(100 * line.share, "%"),
        _time(times.device_us, times.device_reason),
        _time(times.enqueue_us, times.enqueue_reason),
        text(verdict(line), "right" if line.cost is not None and line.cost.is_decided else "doubt"),
    )


def _cost(line: AmplifiedCost) -> Cell:
    cost = line.cost
    if cost is None:
        return text(undefined("no whole round"))
    interval = "no interval"
    if cost.low_us is not None and cost.high_us is not None:
        interval = f"{quantity(cost.low_us, 'µs')} to {quantity(cost.high_us, 'µs')}"
    return Cell((Line(quantity(cost.mean_us, "µs"), cost.mean_us, note=interval),), is_number=True)


def _time(value: float | None, reason: str | None) -> Cell:
    return text(undefined(reason or "not recorded")) if value is None else figure(value, "µs")
