"""Tables of where a step's time goes: by span, by cause of idle time, and what the instruments cost."""

from __future__ import annotations

from collections.abc import Sequence

from suite.ceilings import CeilingShare
from suite.cost_tables import CostTables, KindRow, SpanRow
from suite.record import RunRecord
from suite.report.data import ReportData, ScenarioData, Series
from suite.report.tables import Cell, Line, Table, figure, names, text
from suite.report.wording import median, plural, quantity, undefined
from suite.step_costs import StepCosts
from suite.summary import throughput_ratio, throughputs

LANE_NAMES = {"host": "host", "compute": "device", "output": "device, output stream"}
_SPANS = "Where the step goes: by span"
_IDLE = "When the device is idle, and why"
_NO_RUN = "no run with instruments (--instrument events makes one of every arm)"


def spans(one: Series) -> Table:
    """A row for each kind of step, lane and name; host rows add up to a step's host time, device rows too."""
    columns = (
        *("Steps", "Lane", "Span", "µs a step", "Share", "Serial", "Overlapped", "Idle-causing"),
        *("One span, median", "One span, p95"),
    )
    tables, reason = tables_of(one)
    if tables is None:
        return Table(_SPANS, columns, (), reason=undefined(reason))
    rows = tuple(_span_row(row) for row in tables.spans)
    return Table(_SPANS, columns, rows, reason=undefined("no step"), note=_note(one.costs, tables))


def idle(one: Series) -> Table:
    """A row for each kind of step: its two clocks, and every cause of device idle time."""
    columns = (
        "Steps",
        "n",
        "Host, of it waits",
        "Device",
        "Device idle before it",
        "Because of",
        "Unattributed",
    )
    tables, reason = tables_of(one)
    if tables is None:
        return Table(_IDLE, columns, (), reason=undefined(reason))
    note = (
        "µs a step, means. Idle time is laid to what the host was doing then; handoff: the step was launched."
    )
    return Table(
        _IDLE, columns, tuple(_kind_row(row) for row in tables.kinds), reason=undefined("no step"), note=note
    )


def silent_waits(data: ReportData) -> Table:
    """What `--sync-check` found, arm by arm."""
    rows = tuple((*names(one), text(found)) for one in data.series for found in one.silent_waits)
    was_asked = any(record.sync_check != "off" for one in data.series for record in one.records)
    return Table(
        "Silent waits: copies and reads that hold the host up",
        ("Scenario", "Case", "Arm", "What"),
        rows,
        reason="None: nothing waited" if was_asked else undefined("not looked for (--sync-check warn)"),
    )


def ceiling_shares(one: Series) -> Table:
    """What forward, uploads and device passes reach of what the machine can do at best."""
    caption = "Share of the machine's ceiling"
    columns = ("Steps", "Span", "Reached", "Ceiling", "Share")
    if one.costs is None or one.costs.no_shares is not None:
        return Table(caption, columns, (), reason=undefined((one.costs and one.costs.no_shares) or _NO_RUN))
    rows = tuple(_share_row(share) for share in one.costs.shares if share.value is not None)
    bases = "; ".join(
        dict.fromkeys(f"{share.basis}" for share in one.costs.shares if share.value is not None)
    )
    no_forward = _no_forward(one.costs.shares)
    return Table(
        caption,
        columns,
        rows,
        reason=undefined(no_forward or "no span has a time"),
        note=f"Sums over the steps of a group: what was done, over the time it took. {bases}."
        f"{_sentence(no_forward)}{_sentence(one.costs.caveat)}",
    )


def _no_forward(shares: Sequence[CeilingShare]) -> str | None:
    """Why the forward, which every step has, is not in the table."""
    reasons = (share.reason for share in shares if share.span == "forward" and share.reason)
    return next((f"no share of the forward: {reason}" for reason in reasons), None)


def _sentence(text: str | None) -> str:
    return f" {text[:1].upper()}{text[1:]}." if text else ""


def _share_row(share: CeilingShare) -> tuple[Cell, ...]:
    assert share.value is not None and share.ceiling is not None and share.share is not None
    steps = "decode" if share.group == "decode" else "with prefill"
    return (
        text(steps),
        Cell((Line(share.span, note=plural(share.n, "step")),)),
        figure(share.value, share.unit),
        figure(share.ceiling, share.unit),
        figure(100 * share.share, "%"),
    )


def instruments(scenario: ScenarioData) -> Table:
    """What recording spans did to each arm; such runs enter no other figure."""
    rows = tuple(_instrument_row(one) for one in scenario.series if one.num_instrumented)
    return Table(
        "What the instruments cost",
        (
            *("Scenario", "Case", "Arm", "Level", "Spans a step"),
            *("Spans cost a step", "Throughput with ÷ without"),
        ),
        rows,
        reason=undefined(_NO_RUN),
        note="One run with instruments beside the median of those without: a ratio within their spread says "
        "nothing. What spans cost: ns a span, as `suite micro` measured it, x spans a step, were none of it "
        "hidden. Hidden under async and exposed under sync, instruments are kept out of every verdict.",
    )


def tables_of(one: Series) -> tuple[CostTables | None, str]:
    """The tables of an arm's instrumented run, or None and why there are none."""
    if one.costs is None:
        return None, _NO_RUN
    return one.costs.tables, one.costs.reason or ""


def _note(costs: StepCosts | None, tables: CostTables) -> str:
    assert costs is not None
    told = (
        f"Means over the steps of a kind, of one run with instruments ({plural(costs.num_steps, 'step')}, "
        f"{plural(costs.num_spans, 'span')}); exclusive of spans within. Shares: of the host's own time of a "
        "step, of the device's. Serial lengthens the step; overlapped lies under device work; idle-causing "
        "does not."
    )
    if costs.clock_uncertainty_ns is not None:
        told += _clocks(costs.clock_uncertainty_ns)
    missing = sum(row.count for row in tables.missing)
    if missing:
        reasons = "; ".join(dict.fromkeys(row.reason for row in tables.missing))
        told += f" {plural(missing, 'span')} without times, in no sum: {reasons}."
    return told


def _clocks(uncertainty_ns: int) -> str:
    if not uncertainty_ns:
        return " Host and device times are of one clock."
    return f" Device times lie on the host's clock within {quantity(uncertainty_ns / 1e3, 'µs')}."


def _us(value: float) -> Cell:
    return figure(value, "µs")


def _percent(share: float | None, of_what: str) -> Cell:
    return text(undefined(f"no {of_what}")) if share is None else figure(100 * share, "%")


def _span_row(row: SpanRow) -> tuple[Cell, ...]:
    n = f"{plural(row.num_spans, 'span')} in {plural(row.num_steps, 'step')}"
    return (
        text(row.kind),
        text(LANE_NAMES[row.lane]),
        Cell((Line(row.name, note=n),)),
        _us(row.mean_us),
        _percent(row.share, "time in this lane"),
        *(_us(value) for value in (row.serial_us, row.overlapped_us, row.idle_causing_us)),
        *(_us(value) for value in (row.median_us, row.p95_us)),
    )


def _kind_row(row: KindRow) -> tuple[Cell, ...]:
    causes = sorted(row.idle_causes_us.items(), key=lambda cause: -cause[1])
    lines = tuple(Line(f"{name} {quantity(us, 'µs')}", us) for name, us in causes if us)
    unattributed = ((row.unattributed_host_share, "host"), (row.unattributed_device_share, "device"))
    return (
        text(row.kind),
        figure(row.num_steps),
        Cell(
            (
                Line(quantity(row.host_us, "µs"), row.host_us),
                Line(f"waits {quantity(row.host_wait_us, 'µs')}", row.host_wait_us),
            ),
            is_number=True,
        ),
        _us(row.device_us),
        _us(row.idle_us),
        Cell(lines or (Line("never idle"),)),
        Cell(tuple(_share_line(share, where) for share, where in unattributed)),
    )


def _share_line(share: float | None, where: str) -> Line:
    if share is None:
        return Line(f"{where}: {undefined('not recorded')}")
    return Line(f"{where} {quantity(100 * share, '%')}", 100 * share)


def _instrument_row(one: Series) -> tuple[Cell, ...]:
    runs = [record for record in one.records if record.is_instrumented]
    costs = one.costs
    per_step = (
        figure(costs.num_spans / costs.num_steps)
        if costs is not None and costs.num_steps
        else text(undefined((costs.reason if costs else None) or _NO_RUN))
    )
    return (*names(one), text(runs[0].instrument), per_step, _paid(one), _ratio(one, runs))


def _paid(one: Series) -> Cell:
    """What the spans of a step take by arithmetic, and its share of a step without them."""
    costs = one.costs
    if costs is None or costs.instrument_us is None:
        return text(undefined((costs.no_instrument_us if costs else None) or _NO_RUN))
    paid = costs.instrument_us
    steps_us = [
        1e6 * run.record.duration_s / run.record.num_steps for run in one.valid_runs if run.record.num_steps
    ]
    share = f"{quantity(100 * paid / median(steps_us), '%')} of a step" if steps_us else ""
    return Cell((Line(quantity(paid, "µs"), paid, note=share),), is_number=True)


def _ratio(one: Series, instrumented: Sequence[RunRecord]) -> Cell:
    measured = [run.record for run in one.valid_runs]
    ratio, reason = throughput_ratio(instrumented, measured)
    if ratio is None:
        return text(undefined(reason or ""))
    off = throughputs(measured)
    low, high = min(off) / median(off), max(off) / median(off)
    note = f"without: {plural(len(off), 'round')}, {low:.3f} to {high:.3f}"
    return Cell((Line(f"{ratio:.3f}", ratio, note=note),), is_number=True)
