"""What a run's record, its validity and the report say of torch.compile, and when a lack of it is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import report_fabrication as fabricate
from bad_inputs import GOOD
from records import make_run

from suite.checks import check_run
from suite.errors import SuiteError
from suite.plan import Options, make_plan
from suite.record import CompileUse, RunRecord
from suite.report import tables
from suite.report.data import from_loaded


def write(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def compiled(num_within: int) -> RunRecord:
    return make_run().model_copy(
        update={"compiled": CompileUse(num_graphs=2, duration_s=41.5, num_within=num_within)}
    )


@pytest.mark.parametrize("sweep", [False, True])
def test_a_missing_compiler_is_told_with_file_and_key_before_anything_runs(
    sweep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only a later case of a sweep compiles."""
    text = GOOD + "sweep: {runner.torch_compile: [false, true]}\n" if sweep else GOOD
    options = Options(device="inline", overrides=() if sweep else ("runner.torch_compile=true",))
    path = write(tmp_path, text)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SuiteError) as caught:
        make_plan([path], options)
    assert str(caught.value).startswith(
        f"{path}: runner.torch_compile is true, but there is no C++ compiler 'no-such-compiler' here"
    )
    assert "\n" not in str(caught.value)
    make_plan([write(tmp_path, GOOD)], Options(device="inline"))


def test_a_run_that_compiled_within_a_step_is_invalid_and_one_that_did_before_is_not() -> None:
    rules = [
        [found.rule for found in check_run(record, (), ()) if "compiled" in found.rule]
        for record in (compiled(0), compiled(3), make_run())
    ]
    assert rules == [[], ["compiled-within"], []]


def test_the_report_tells_how_long_compiling_took_and_how_often_it_was_late() -> None:
    loaded = fabricate.loaded(num_rounds=3)
    (scenario,) = from_loaded(loaded).scenarios
    assert tables.compilation(scenario) == ()
    late = [
        run.model_copy(
            update={"compiled": CompileUse(num_graphs=2, duration_s=41.5, num_within=int(index == 1))}
        )
        for index, run in enumerate(loaded.runs)
    ]
    (scenario,) = from_loaded(replace(loaded, runs=late)).scenarios
    (table,) = tables.compilation(scenario)
    (row,) = table.rows
    assert [cell.lines[0].exact for cell in row[1:]] == [2, 41.5, 1]
