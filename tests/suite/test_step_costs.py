"""An arm's instrumented run, from the run folder to the summary and the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ceiling_fabrication import ceilings
from records import make_request, make_run, make_step

from runner.measure import StepRecord
from runner.spans import Span
from suite.instrumented_runs import costs_by_arm
from suite.kept_ceilings import CaseCeilings, to_document
from suite.micro.catalogue import Row
from suite.publish import publish
from suite.record import RequestRecord, RunRecord, Status
from suite.report.data import from_loaded
from suite.report.span_tables import ceiling_shares, idle, instruments, silent_waits, spans
from suite.store import RunFolder, load_run, to_json
from suite.validity.rule import broken

MS = 1_000_000


def steps() -> list[StepRecord]:
    """Two decode steps of 2 ms on the host, each with a millisecond on the device, half a one apart."""
    return [
        replace(
            make_step(index, 2 * index, 2 * index + 2, num_rows=1, num_tokens=4),
            start_ns=2 * index * MS,
            end_ns=(2 * index + 2) * MS,
            device_start_ns=(2 * index + 1) * MS,
            device_end_ns=(2 * index + 2) * MS,
        )
        for index in range(2)
    ]


def request() -> RequestRecord:
    """The one that these steps computed: 6 positions of its prompt, and all but the last of 3 outputs."""
    times = {"scheduled_ns": 0, "sent_ns": 0, "first_scheduled_ns": 0}
    return make_request(num_prompt_tokens=6, token_ns=(MS, 2 * MS, 4 * MS), finished_ns=4 * MS, **times)


def spans_of(records: list[StepRecord], reason: str | None = None) -> list[Span]:
    """schedule until the device starts, then wait.output; on the device a forward, and a draft."""
    found = []
    for record in records:
        start, end = record.device_start_ns, record.device_end_ns
        found += [
            Span(record.step_id, "schedule", "host", record.start_ns, start),
            Span(record.step_id, "wait.output", "host", start, record.end_ns),
            Span(record.step_id, "forward", "compute", start, end - MS // 4),
        ]
        if reason:
            found.append(Span(record.step_id, "draft", "compute", None, None, reason))
    return found


def folder_of(tmp_path: Path, *runs: tuple[RunRecord, list[Span]]) -> RunFolder:
    folder = RunFolder.create(tmp_path, "costs")
    folder.write_config({"scenarios": [{"name": "smoke"}]})
    for run, recorded in runs:
        folder.append_run(run)
        folder.write_steps(run.run_id, steps())
        folder.write_requests(run.run_id, [request()])
        if recorded:
            folder.write_spans(run.run_id, recorded)
    return folder


def measured(number: int, duration_s: float = 1.0) -> tuple[RunRecord, list[Span]]:
    return make_run([request()], steps(), duration_s, run_id=f"r{number}", round=number), []


def instrumented(
    recorded: list[Span], level: str = "events", status: Status = Status.COMPLETED
) -> tuple[RunRecord, list[Span]]:
    run = make_run(
        [request()],
        steps(),
        2.0,
        run_id="i0",
        instrument=level,
        status=status,
        clock_uncertainty_ns=1500,
    )
    return run, recorded


def test_spans_of_the_instrumented_run_become_the_arms_tables_in_summary_and_page(tmp_path: Path) -> None:
    recorded = spans_of(steps(), "it had not run")
    folder = folder_of(tmp_path, measured(0), measured(1), instrumented(recorded))
    publish(folder.path)
    (arm,) = json.loads((folder.path / "summary.json").read_text())["arms"]
    costs = arm["step_costs"]
    assert (costs["run_id"], costs["num_steps"], costs["num_spans"], costs["reason"]) == ("i0", 2, 8, None)
    (kind,) = costs["tables"]["kinds"]
    assert (kind["kind"], kind["num_steps"]) == ("decode", 2)
    assert (kind["host_us"], kind["device_us"], kind["idle_us"]) == (2000, 1000, 500)
    assert kind["idle_causes_us"] == {"schedule": 500}
    rows = {(row["lane"], row["name"]): row for row in costs["tables"]["spans"]}
    forward = rows["compute", "forward"]
    assert (forward["mean_us"], forward["share"], forward["serial_us"]) == (750, 0.75, 750)
    assert rows["host", "schedule"]["idle_causing_us"] == 1000
    assert rows["host", "wait.output"]["overlapped_us"] == 1000
    assert rows["compute", "unattributed"]["mean_us"] == 250
    page = (folder.path / "report.html").read_text()
    for text in ("forward", "750", "it had not run", "1.500\xa0µs", "2\xa0spans without times"):
        assert text in page, text
    assert arm["instrument"]["throughput_ratio"] == pytest.approx(0.5)


def test_the_tables_of_the_page_hold_the_exact_figures(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, measured(0), measured(1), instrumented(spans_of(steps())))
    loaded = load_run(folder.path)
    data = from_loaded(loaded, costs_by_arm(loaded.runs, loaded))
    (one,) = data.series
    exact = {
        (row[1].lines[0].text, row[2].lines[0].text): [line.exact for cell in row[3:8] for line in cell.lines]
        for row in spans(one).rows
    }
    assert exact["host", "schedule"] == [1000, 50, 0, 0, 1000]
    assert exact["device", "forward"] == [750, 75, 750, 0, 0]
    (row,) = idle(one).rows
    assert [line.text for line in row[5].lines] == ["schedule 500\xa0µs"]
    assert [line.text for line in row[6].lines] == ["host 0\xa0%", "device 25\xa0%"]
    (row,) = instruments(data.scenarios[0]).rows
    assert row[3].lines[0].text == "events" and row[4].lines[0].exact == 3
    assert "micro --only instrument --output RUN" in row[5].lines[0].text
    assert row[6].lines[0].exact == pytest.approx(0.5)
    assert "2\xa0rounds, 1.000 to 1.000" in row[6].lines[0].note


def kept_row(name: str, level: str, median_ns: float) -> dict[str, object]:
    return Row(
        name=name,
        size=level,
        best_ns=median_ns,
        median_ns=median_ns,
        low_ns=None,
        high_ns=None,
        interval_reason="made up",
        n=31,
        calls=1,
        enqueue_ns=None,
        launch_bound=False,
        memory="warm",
        rate=None,
        unit=None,
    ).model_dump(mode="json")


def test_what_spans_cost_a_step_is_ns_a_span_times_spans_a_step(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, measured(0), measured(1), instrumented(spans_of(steps())))
    loaded = load_run(folder.path)
    num_host, num_commands = 2, 1  # of the three spans a step
    folder.write_micro(
        {"rows": [kept_row("span.host", "events", 600.0), kept_row("span.command", "events", 9_000.0)]}
    )
    (costs,) = costs_by_arm(loaded.runs, loaded).values()
    assert costs.instrument_us == pytest.approx((600 * num_host + 9_000 * num_commands) / 1e3)
    (row,) = instruments(from_loaded(loaded, costs_by_arm(loaded.runs, loaded)).scenarios[0]).rows
    assert row[5].lines[0].exact == costs.instrument_us and row[5].lines[0].note.endswith("of a step")
    folder.write_micro({"rows": [{"name": 3}]})
    (costs,) = costs_by_arm(loaded.runs, loaded).values()
    assert costs.instrument_us is None and "micro.json: 0.name" in str(costs.no_instrument_us)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (instrumented([]), "its spans are not in the run folder"),
        (instrumented([], level="nvtx"), "level nvtx records nothing of its own"),
        (instrumented([], status=Status.FAILED), "no run with instruments completed"),
        (
            instrumented([Span(0, "a", "host", 0, 5), Span(0, "b", "host", 3, 9)]),
            "overlap",
        ),
    ],
)
def test_without_tables_there_is_a_reason_on_the_page_and_in_the_summary(
    run: tuple[RunRecord, list[Span]], reason: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, measured(0), run)
    publish(folder.path)
    (arm,) = json.loads((folder.path / "summary.json").read_text())["arms"]
    assert arm["step_costs"]["tables"] is None and reason in arm["step_costs"]["reason"]
    assert reason in (folder.path / "report.html").read_text()


def test_shares_of_the_ceilings_known_at_the_time_are_in_summary_and_page(tmp_path: Path) -> None:
    run, recorded = instrumented(spans_of(steps()))
    folder = folder_of(tmp_path, measured(0), (run, recorded))
    kept = CaseCeilings(model="tiny-qwen3", ceilings=ceilings())
    folder.write_ceilings(to_document({run.case_id: kept}))
    publish(folder.path)
    (arm,) = json.loads((folder.path / "summary.json").read_text())["arms"]
    assert arm["step_costs"]["no_ceiling_shares"] is None
    (forward,) = (row for row in arm["step_costs"]["ceiling_shares"] if row["span"] == "forward")
    assert (forward["group"], forward["n"], forward["unit"]) == ("decode", 2, "GFLOP/s")
    assert forward["share"] == pytest.approx(forward["value"] / forward["ceiling"])
    loaded = load_run(folder.path)
    (one,) = from_loaded(loaded, costs_by_arm(loaded.runs, loaded)).series
    (row,) = (row for row in ceiling_shares(one).rows if row[1].lines[0].text == "forward")
    assert row[4].lines[0].exact == pytest.approx(100 * forward["share"])


def test_a_forward_in_another_type_than_the_ceilings_is_told_with_the_command_on_the_page(
    tmp_path: Path,
) -> None:
    """The copies keep their shares."""
    made = [replace(step, copies={"input_ids": 1}, bytes={"input_ids": 400}) for step in steps()]
    copied = [Span(step.step_id, "upload.input_ids", "compute", 0, 1000) for step in made]
    run, recorded = instrumented([*spans_of(made), *copied])
    run = run.model_copy(update={"dtype": "bfloat16"})
    folder = folder_of(tmp_path, measured(0), (run, recorded))
    folder.write_steps(run.run_id, made)
    kept = CaseCeilings(model="tiny-qwen3", ceilings=ceilings())
    folder.write_ceilings(to_document({run.case_id: kept}))
    loaded = load_run(folder.path)
    (one,) = from_loaded(loaded, costs_by_arm(loaded.runs, loaded)).series
    table = ceiling_shares(one)
    assert [row[1].lines[0].text for row in table.rows] == ["upload.input_ids"]
    command = "python -m suite micro --only ceilings --dtype bfloat16 --model tiny-qwen3 --threads 1"
    assert "No share of the forward: the ceiling was measured in float32" in (table.note or "")
    assert command in (table.note or "")
    publish(folder.path)
    assert command in (folder.path / "report.html").read_text()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "were not known: `python -m suite micro --only ceilings --dtype float32`"),
        ("{}", "were not known"),
        ('{"1234567890abcdef": {"model": 3}}', "ceilings.json of the run cannot be used: "),
        ("[1, 2", "ceilings.json of the run cannot be used: "),
    ],
)
def test_without_ceilings_there_is_a_reason(content: str | None, reason: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, measured(0), instrumented(spans_of(steps())))
    if content is not None:
        (folder.path / "ceilings.json").write_text(content)
    publish(folder.path)
    (arm,) = json.loads((folder.path / "summary.json").read_text())["arms"]
    assert reason in arm["step_costs"]["no_ceiling_shares"] and arm["step_costs"]["ceiling_shares"] == []
    assert reason.partition(":")[0] in (folder.path / "report.html").read_text()


def test_ceilings_of_another_model_are_a_reason_and_no_share(tmp_path: Path) -> None:
    run, recorded = instrumented(spans_of(steps()))
    folder = folder_of(tmp_path, measured(0), (run, recorded))
    kept = CaseCeilings(model="tiny-qwen3", ceilings=ceilings(linear_parameters=5))
    folder.write_ceilings(to_document({run.case_id: kept}))
    loaded = load_run(folder.path)
    (costs,) = costs_by_arm(loaded.runs, loaded).values()
    assert costs.shares == () and "the ceilings are those of" in (costs.no_shares or "")


def test_a_checkpoint_has_no_ceilings_whatever_it_is_named(tmp_path: Path) -> None:
    run, recorded = instrumented(spans_of(steps()))
    folder = folder_of(tmp_path, measured(0), (run, recorded))
    folder.write_config({"scenarios": [{"name": "smoke", "model": {"path": "/models/tiny-qwen3"}}]})
    folder.write_ceilings(to_document({run.case_id: CaseCeilings(model="tiny-qwen3", ceilings=ceilings())}))
    loaded = load_run(folder.path)
    (costs,) = costs_by_arm(loaded.runs, loaded).values()
    assert (costs.shares, costs.no_shares) == ((), "no ceilings are measured for a checkpoint")
    swept = run.model_copy(update={"case_values": {"model": "tiny-qwen3"}})
    (costs,) = costs_by_arm([swept], loaded).values()
    assert costs.shares and costs.no_shares is None


def test_an_invalid_run_with_instruments_gives_no_figures_and_says_which_rule_it_broke(
    tmp_path: Path,
) -> None:
    run, recorded = instrumented(spans_of(steps()))
    again = run.model_copy(update={"run_id": "i1"})
    folder = folder_of(tmp_path, measured(0), (run, recorded), (again, recorded))
    loaded = load_run(folder.path)
    wrong = [broken("spans-within-step", run, "its spans are longer than its steps")]
    (costs,) = costs_by_arm(loaded.runs, loaded, wrong).values()
    assert costs.run_id == "i1" and costs.tables is not None
    (costs,) = costs_by_arm([run], loaded, wrong).values()
    assert costs.tables is None
    assert costs.reason == "the run is INVALID: spans-within-step: its spans are longer than its steps"


def test_at_level_host_the_device_is_not_recorded_and_nothing_of_it_is_unattributed(tmp_path: Path) -> None:
    host_only = [span for span in spans_of(steps()) if span.lane == "host"]
    folder = folder_of(tmp_path, measured(0), instrumented(host_only, level="host"))
    publish(folder.path)
    (arm,) = json.loads((folder.path / "summary.json").read_text())["arms"]
    tables = arm["step_costs"]["tables"]
    assert {row["lane"] for row in tables["spans"]} == {"host"}
    assert tables["kinds"][0]["unattributed_device_share"] is None
    assert "device: n/a: not recorded" in (folder.path / "report.html").read_text()


def test_the_document_on_standard_output_is_that_of_the_summary(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, measured(0), measured(1), instrumented(spans_of(steps())))
    told = json.loads(to_json(publish(folder.path).document()))
    written = json.loads((folder.path / "summary.json").read_text())
    assert {name: told[name] for name in written} == written and told["report"]


def test_silent_waits_are_a_table_of_their_own_and_cast_no_doubt_on_the_cache(tmp_path: Path) -> None:
    run = make_run([request()], steps(), run_id="s0", sync_check="warn", warnings=("step 3: a copy",))
    folder = folder_of(tmp_path, measured(0), measured(1), (run, []))
    loaded = load_run(folder.path)
    data = from_loaded(loaded)
    assert data.series[0].warnings == () and data.series[0].silent_waits == ("step 3: a copy",)
    (row,) = silent_waits(data).rows
    assert row[3].lines[0].text == "step 3: a copy"
    without = from_loaded(load_run(folder_of(tmp_path / "b", measured(0)).path))
    assert "--sync-check warn" in silent_waits(without).reason


def test_a_folder_without_instrumented_runs_says_how_to_get_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, measured(0), measured(1))
    publish(folder.path)
    (arm,) = json.loads((folder.path / "summary.json").read_text())["arms"]
    assert arm["step_costs"] is None and arm["instrument"] is None
    assert "--instrument events" in (folder.path / "report.html").read_text()
