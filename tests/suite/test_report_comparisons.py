"""The report on arms against their reference: its table, its answer, and both where nothing can be told."""

from __future__ import annotations

import report_fabrication as fabricate

from suite.comparison import compare
from suite.report.answer import points
from suite.report.comparisons import table
from suite.report.data import ReportData, from_loaded
from suite.report.page import render
from suite.report.tables import Cell


def reported(num_rounds: int, has_aa: bool = True, **changes: object) -> ReportData:
    """sync-ids and ids; ids takes a tenth less time in every round."""
    loaded = fabricate.loaded(arms=("sync-ids", "ids"), num_rounds=num_rounds, has_warmup=False)
    throughput = [run.metrics["output_throughput"] for run in loaded.runs]
    faster = [metric.model_copy(update={"value": 1.1 * (metric.value or 0)}) for metric in throughput]
    loaded.runs = [
        run
        if run.arm == "sync-ids"
        else run.model_copy(update={"metrics": {**run.metrics, "output_throughput": metric}, **changes})
        for run, metric in zip(loaded.runs, faster, strict=True)
    ]
    again = [run.model_copy(update={"is_aa": True}) for run in loaded.runs if run.arm == "sync-ids"]
    runs = [*loaded.runs, *(again if has_aa else ())]
    return from_loaded(loaded, comparisons=compare(runs, {}))


def words(cell: Cell) -> str:
    return " ".join(f"{line.text} {line.note}".strip() for line in cell.lines).replace("\u00a0", " ")


def told(data: ReportData) -> str:
    return " ".join(point.plain for point in points(data.scenarios[0])).replace("\u00a0", " ")


def test_the_answer_is_on_the_arms_of_a_case_and_gives_the_interval_and_the_floor() -> None:
    text = told(reported(5))
    assert "ids is faster than sync-ids: output throughput +10.00 % (95 % interval +10.00 to +10.00 %" in text
    assert "n = 5 rounds; noise floor 0.50 %)." in text
    assert text.startswith("Use ids: known to be faster than sync-ids in output throughput.")
    assert "lowest" not in text and "overlap" not in text


def test_with_the_two_rounds_of_a_shipped_scenario_the_answer_cannot_tell() -> None:
    doubt = (
        "Whether ids is faster or slower than sync-ids in output throughput one cannot tell: 2 rounds, at "
        "least 5 are needed."
    )
    assert doubt in told(reported(2))
    assert "aa: true runs the reference arm twice a round" in told(reported(5, has_aa=False))


def test_the_table_has_a_row_for_each_arm_and_says_why_where_there_is_no_figure() -> None:
    shown = table(reported(5).scenarios[0])
    (row,) = shown.rows
    cells = dict(zip(shown.columns, map(words, row), strict=True))
    assert (cells["Arm"], cells["Against"]) == ("ids", "sync-ids")
    assert cells["Change"].startswith("+10.00 % n = 5 rounds")
    assert cells["Verdict"].startswith("faster") and cells["Noise floor"] == "0.50 %"
    (row,) = table(reported(2).scenarios[0]).rows
    assert {words(cell) for cell in row[5:]} == {"n/a: 2 rounds, at least 5 are needed"}
    assert words(row[4]).startswith("cannot tell") and row[4].mark == "doubt"


def test_a_scenario_of_one_arm_has_no_row_and_says_why() -> None:
    data = from_loaded(fabricate.loaded())
    assert table(data.scenarios[0]).rows == () and "no case ran two arms" in table(data.scenarios[0]).reason


def test_a_wrong_arm_is_in_the_table_without_a_verdict_and_not_in_the_answer() -> None:
    data = reported(5, is_control=True)
    (row,) = table(data.scenarios[0]).rows
    assert words(row[4]) == "no verdict wrong by design, speed not judged"
    assert "faster" not in told(data)


def test_the_page_holds_the_table() -> None:
    page = render(reported(5))
    assert "Arms against the reference arm of their case" in page and "ids is faster than sync-ids" in page
