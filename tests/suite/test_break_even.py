"""Break-even: over the cases of a sweep, where an async arm beats its sync twin."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from records import make_request, make_run

from runner.inputs.arms import ARMS
from suite.break_even import TWINS, Cell, break_even
from suite.case_design import AT_ONCE_METRICS, OPEN_LOOP_METRICS, Design
from suite.checks import Finding
from suite.record import Metric, RunRecord
from suite.report.attribution_tables import break_even as table
from suite.report.attribution_text import MAX_CELLS, break_even_lines
from suite.report.data import ScenarioData
from suite.store import to_json
from suite.verdict import NO_FLOOR, Word

RATIOS = {0.0: 1.2, 0.5: 1.0, 1.0: 0.8}  # speed of async-rows over sync-rows, by multimodal ratio
NUM_ROUNDS = 8


def runs_of(
    case: float, arm: str, speed: float, is_aa: bool = False, noise: float = 0.001, **changes: object
) -> list[RunRecord]:
    drawn = np.random.default_rng([int(case * 10), *arm.encode(), is_aa]).normal(0, noise, NUM_ROUNDS)
    return [
        make_run(
            [make_request()],
            duration_s=float((1 + 0.1 * number) * np.exp(drawn[number]) / speed),
            arm=arm,
            round=number,
            run_id=f"{case}-{arm}-{'aa' if is_aa else 'r'}{number}",
            case_id=f"case-{case}",
            case_label=f"ratio={case}",
            case_values={"traffic.multimodal_ratio": case},
            scheduling=changes.get("scheduling") or ("sync" if arm in SYNC else "async"),
            is_aa=is_aa,
            is_control=not ARMS[arm].is_right,
        )
        for number in range(NUM_ROUNDS)
    ]


SYNC = ("sync-rows", "gated", "sync-fused", "sync-ids")
DESIGNS = {("smoke", f"case-{case}"): Design("sync-rows", AT_ONCE_METRICS) for case in RATIOS}


def sweep(over: str = "async-rows", under: str = "sync-rows", aa: str = "sync-rows") -> list[RunRecord]:
    return [
        run
        for case, ratio in RATIOS.items()
        for runs in (
            runs_of(case, under, 1.0),
            runs_of(case, over, ratio),
            runs_of(case, aa, 1.0, is_aa=True),
            *([runs_of(case, aa, 1.0)] if aa != under else []),
        )
        for run in runs
    ]


def by_ratio(cells: tuple[Cell, ...]) -> dict[object, Cell]:
    return {cell.values["traffic.multimodal_ratio"]: cell for cell in cells}


@pytest.mark.parametrize("pair", TWINS, ids="-".join)
def test_twins_differ_in_scheduling_alone(pair: tuple[str, str]) -> None:
    over, under = (ARMS[name] for name in pair)
    assert over.choices == under.choices and over.scheduling == "async"
    assert under.scheduling == "sync" or under.rules == "gated"


def test_the_sign_turns_where_it_was_planted() -> None:
    cells = by_ratio(break_even(sweep(), DESIGNS))
    assert list(cells) == [0.0, 0.5, 1.0]
    assert [cell.verdict for cell in cells.values()] == [Word.FASTER, Word.EQUAL, Word.SLOWER]
    for case, ratio in RATIOS.items():
        cell = cells[case]
        assert cell.value == pytest.approx(ratio, rel=0.003)
        assert cell.interval is not None and cell.interval.low <= np.log(ratio) <= cell.interval.high
        assert (cell.over, cell.under, cell.metric) == ("async-rows", "sync-rows", "output_throughput")


def test_every_pair_of_twins_that_a_case_ran_has_a_cell_with_the_floor_of_the_reference() -> None:
    runs = sweep("refresh", "gated", aa="sync-rows")
    cells = break_even(runs, DESIGNS)
    assert {(cell.over, cell.under) for cell in cells} == {("refresh", "gated")} and len(cells) == 3
    assert all(cell.floor.value is not None for cell in cells)
    assert [cell.verdict for cell in cells] == [Word.FASTER, Word.EQUAL, Word.SLOWER]


def test_without_aa_rounds_there_is_a_ratio_and_no_verdict() -> None:
    runs = [run for run in sweep() if not run.is_aa]
    for cell in break_even(runs, DESIGNS):
        assert (cell.verdict, cell.reason) == (Word.CANNOT_TELL, NO_FLOOR)
        assert cell.value is not None


def test_one_case_is_no_sweep_and_an_arm_without_its_twin_no_cell() -> None:
    alone = [run for run in sweep() if run.case_id == "case-0.5"]
    assert break_even(alone, DESIGNS) == ()
    assert break_even([run for run in sweep() if run.arm != "sync-rows"], DESIGNS) == ()


def test_a_gated_arm_that_schedules_async_is_no_sync_twin() -> None:
    runs = [
        run.model_copy(update={"scheduling": "async"}) if run.arm == "gated" else run
        for run in sweep("refresh", "gated", aa="sync-rows")
    ]
    assert break_even(runs, DESIGNS) == ()


def test_invalid_runs_and_wrong_arms_get_no_say() -> None:
    runs = sweep()
    bad = [Finding(f"0.0-async-rows-r{number}", "off-schedule", "late", "mend", True) for number in range(4)]
    cell = by_ratio(break_even(runs, DESIGNS, bad))[0.0]
    assert cell.ratio.num_rounds == NUM_ROUNDS - 4 and cell.value is None and cell.verdict is Word.CANNOT_TELL
    wrong = [
        run.model_copy(update={"tokens": make_run([make_request()], num_wrong=1).tokens})
        if run.run_id == "1.0-async-rows-r3"
        else run
        for run in runs
    ]
    cell = by_ratio(break_even(wrong, DESIGNS))[1.0]
    assert (cell.verdict, cell.value) == (Word.NONE, None) and "wrong tokens" in cell.reason


def test_below_saturation_latency_decides() -> None:
    designs = {key: Design("sync-rows", OPEN_LOOP_METRICS) for key in DESIGNS}
    cell = break_even(sweep(), designs)[0]
    assert (cell.metric, cell.better) == ("median_e2e_ms", "lower")


def faster(run: RunRecord, log: float) -> Metric:
    metric = run.metrics["output_throughput"]
    return metric.model_copy(update={"value": (metric.value or 0.0) * math.exp(log)})


def test_holm_is_over_all_cells_of_the_sweep() -> None:
    """A p value of 0.02 in one cell decides beside one other cell, and not beside nineteen."""

    def one(case: float, mean_log: float) -> list[RunRecord]:
        plain = runs_of(case, "sync-rows", 1.0)
        logs = [mean_log + 0.04 * (-1) ** number for number in range(NUM_ROUNDS)]
        over = [
            run.model_copy(
                update={
                    "arm": "async-rows",
                    "run_id": f"over-{run.run_id}",
                    "metrics": {**run.metrics, "output_throughput": faster(run, log)},
                }
            )
            for run, log in zip(plain, logs, strict=True)
        ]
        again = [run.model_copy(update={"is_aa": True, "run_id": f"aa-{run.run_id}"}) for run in plain]
        return [*plain, *over, *again]

    many = [number / 20 for number in range(20)]
    runs = [run for case in many for run in one(case, 0.0454 if case == 0.0 else 0.0)]
    designs = {("smoke", f"case-{case}"): Design("sync-rows", AT_ONCE_METRICS) for case in many}
    first = break_even([run for run in runs if run.case_id in ("case-0.0", "case-0.05")], designs)[0]
    assert first.verdict is Word.FASTER and first.ratio.p_value == pytest.approx(0.02, abs=0.003)
    first = break_even(runs, designs)[0]
    assert first.verdict is Word.CANNOT_TELL and first.reason.endswith("(Holm)")


def test_the_terminal_has_a_line_a_cell_up_to_a_number_of_them() -> None:
    cells = break_even(sweep(), DESIGNS)
    title, *shown = break_even_lines(cells)[1:]
    assert title.startswith("break-even") and len(shown) == 3
    assert [line.split("  ")[-1].strip() for line in shown] == ["faster", "equal within the floor", "slower"]
    assert break_even_lines(()) == []
    many = break_even_lines(cells * 20)
    assert len(many) == 2 + MAX_CELLS + 1 and many[-1].startswith(f"  and {60 - MAX_CELLS} more")


def test_the_document_is_strict_json_and_the_table_has_a_row_a_cell() -> None:
    cells = break_even(sweep(), DESIGNS)
    document = cells[0].document()
    assert json.loads(to_json(document)) == json.loads(json.dumps(document))
    assert document["values"] == {"traffic.multimodal_ratio": 0.0}
    assert {"ratio", "interval_low", "interval_high", "verdict", "num_rounds"} <= document.keys()
    page = table(ScenarioData("smoke", "", None, (), (), break_even=cells))
    assert len(page.rows) == 3 and {len(row) for row in page.rows} == {len(page.columns)}
    assert table(ScenarioData("smoke", "", None, (), ())).reason.startswith("n/a")
