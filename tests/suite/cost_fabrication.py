"""Step costs, lanes, bills and lines of an attribution made up for the report's tests."""

from __future__ import annotations

from dataclasses import replace

from suite.amplification import AmplifiedCost, CommandTimes, Estimate
from suite.attribution import Line
from suite.bill import ArmBill
from suite.break_even import Cell
from suite.ceilings import CeilingShare
from suite.cost_tables import CostTables, KindRow, SpanRow
from suite.lanes import LaneGap, LanePiece, Lanes, LaneStep
from suite.ratios import Interval, Ratio
from suite.report.data import Series
from suite.span_costs import CostLane
from suite.steady import Window
from suite.step_costs import StepCosts
from suite.verdict import Word

MS = 1_000_000


def span_row(
    name: str,
    lane: CostLane = "compute",
    serial: float = 0.0,
    overlapped: float = 0.0,
    idle: float = 0.0,
    kind: str = "decode",
) -> SpanRow:
    """A row whose times are its mean's parts, and whose single spans scatter around it."""
    mean = serial + overlapped + idle
    return SpanRow(
        kind=kind,
        lane=lane,
        name=name,
        num_spans=20,
        num_steps=10,
        mean_us=mean,
        beyond_us=0.0,
        p5_us=mean / 2,
        p25_us=0.75 * mean,
        median_us=mean,
        p75_us=1.25 * mean,
        p95_us=2 * mean,
        share=0.1,
        serial_us=serial,
        overlapped_us=overlapped,
        idle_causing_us=idle,
    )


def kind_row(kind: str = "decode") -> KindRow:
    return KindRow(
        kind=kind,
        num_steps=10,
        host_us=0.0,
        host_wait_us=0.0,
        device_us=0.0,
        idle_us=0.0,
        idle_causes_us={},
        unattributed_host_share=None,
        unattributed_work_share=None,
        unattributed_device_share=None,
    )


def step_costs(
    rows: tuple[SpanRow, ...] = (), lanes: Lanes | None = None, shares: tuple[CeilingShare, ...] = ()
) -> StepCosts:
    kinds = dict.fromkeys(row.kind for row in rows)
    return StepCosts(
        run_id="i0",
        level="events",
        num_steps=10,
        num_spans=200,
        clock_uncertainty_ns=0,
        tables=CostTables(tuple(map(kind_row, kinds)), rows, {}, ()),
        shares=shares,
        no_shares=None if shares else "the ceilings of this machine were not known",
        lanes=lanes,
    )


def with_costs(one: Series, costs: StepCosts) -> Series:
    return replace(one, costs=costs)


def lanes(num_steps: int = 2, pieces_a_step: int = 1) -> Lanes:
    """Steps of 10 ms: the host works 1 ms, the device starts then and computes for 6 ms, then is idle."""
    steps, pieces, gaps = [], [], []
    for number in range(num_steps):
        first = 10 * MS * number
        steps.append(LaneStep(number, "decode", "slice", "merge", 4, 5, 2, 1_234, first, first + 10 * MS))
        pieces.append(LanePiece("host", "schedule", number, first, first + MS))
        pieces.append(LanePiece("host", "wait.output", number, first + MS, first + 9 * MS))
        width = 6 * MS // pieces_a_step
        pieces += [
            LanePiece("compute", "forward", number, first + MS + width * i, first + MS + width * (i + 1))
            for i in range(pieces_a_step)
        ]
        if number:
            gaps.append(
                LaneGap(number, first - 3 * MS, first + MS, {"wait.output": 2 * MS, "schedule": 2 * MS})
            )
    window = Window(0, num_steps - 1, num_steps, 4.0, "num_steps")
    return Lanes(tuple(steps), tuple(pieces), tuple(gaps), window, None)


def ratio(log: float, half: float = 0.01, rounds: int = 10) -> Ratio:
    return Ratio(rounds, log, Interval(log - half, log + half))


def line(
    name: str,
    over: str,
    under: str,
    log: float | None,
    word: Word = Word.FASTER,
    kind: str = "decode",
    reason: str = "",
    factors: tuple[Line, ...] = (),
) -> Line:
    return Line(
        scenario="smoke",
        case_id="id-smoke",
        case_label="smoke",
        name=name,
        over=over,
        under=under,
        kind=kind,
        ratio=None if log is None else ratio(log),
        verdict=word,
        reason=reason,
        factors=factors,
    )


def amplified(
    span: str, low: float, mean: float, high: float, device_us: float | None = 2.0
) -> AmplifiedCost:
    return AmplifiedCost(
        span=span,
        kind="decode",
        ks=(1, 9),
        num_steps=30,
        step_us=1000.0,
        cost=Estimate(mean, low, high, 6),
        times=CommandTimes(3.0, device_us, None if device_us else "no event", None, "one message"),
    )


def bill(arm: str, *lines: AmplifiedCost) -> ArmBill:
    return ArmBill("smoke", "id-smoke", "smoke", arm, 6, lines)


def cell(log: float, word: Word, half: float = 0.01, **values: object) -> Cell:
    label = ", ".join(f"{key}={value}" for key, value in values.items())
    return Cell(
        scenario="smoke",
        case_id=f"id-{label}",
        case_label=label,
        values=values,
        over="async-rows",
        under="sync-rows",
        metric="output_throughput",
        better="higher",
        ratio=ratio(log, half),
        verdict=word,
        reason="the interval says so",
    )
